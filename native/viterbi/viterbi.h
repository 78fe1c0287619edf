// Viterbi: the best path of a sentence, and the certificate that proves, without running Viterbi, that a path is a
// best one.
//
// Both compute in double precision, so that rounding errors of long sums do not decide between paths. Tags are in
// the lanes: arrays are [position][tag] with rows of P tags, matrices [from][to] with rows of P.
#pragma once
#include "../chain/score_scan.h"

#include <utility>

namespace {

using bcrf::kPaddingTag;

// Converts the transitions of an edge to double, in rows of P numbers. The padding is arbitrary: it only reaches
// padded tags.
template <class Score>
BCRF_INLINE void convert_to_double(const Score* scores, int64_t T, int64_t P, double* out) {
    constexpr int64_t W = lanes<double>();
    for (int64_t s = 0; s < T; ++s)
        for (int64_t j = 0; j < P; j += W)
            store(out + s * P + j, load_or_removed(scores, s * T + j, T * T, 0.0));
}

// N vectors of target tags; loop order: source tag, then vector.
template <int N>
BCRF_INLINE void max_plus_block(
    const double* rows, int64_t T, int64_t P, const double* x, double* out) {
    constexpr int64_t W = lanes<double>();
    Vec<double> best[N];
    BCRF_UNROLL for (int j = 0; j < N; ++j) best[j] = splat(-infinity<double>());
    for (int64_t s = 0; s < T; ++s) {
        const Vec<double> a = splat(x[s]);
        BCRF_UNROLL for (int j = 0; j < N; ++j)
            best[j] = vmax(best[j], a + load(rows + s * P + j * W));
    }
    BCRF_UNROLL for (int j = 0; j < N; ++j) store(out + j * W, best[j]);
}

// out[t] = max_s x[s] + rows[s][t]
BCRF_INLINE void max_plus_product(
    const double* rows, int64_t T, int64_t P, const double* x, double* out) {
    constexpr int64_t W = lanes<double>();
    int64_t left = P / W;
    while (left > 8) {
        max_plus_block<4>(rows, T, P, x, out);
        rows += 4 * W, out += 4 * W, left -= 4;
    }
    if (left == 8) max_plus_block<8>(rows, T, P, x, out);
    if (left == 7) max_plus_block<7>(rows, T, P, x, out);
    if (left == 6) max_plus_block<6>(rows, T, P, x, out);
    if (left == 5) max_plus_block<5>(rows, T, P, x, out);
    if (left == 4) max_plus_block<4>(rows, T, P, x, out);
    if (left == 3) max_plus_block<3>(rows, T, P, x, out);
    if (left == 2) max_plus_block<2>(rows, T, P, x, out);
    if (left == 1) max_plus_block<1>(rows, T, P, x, out);
}

// Shared transitions in double precision: [from][to] and transposed.
template <class Score> struct TransitionsInDouble {
    Array<double> rows, columns;
    bool has_invalid = false;

    explicit TransitionsInDouble(const Problem& p) {
        if (!p.shared) return;
        const int64_t T = p.num_tags, P = padded<double>(T);
        const Score* scores = static_cast<const Score*>(p.transitions);
        for (Array<double>* a : {&rows, &columns}) a->allocate(T * P);
        convert_to_double(scores, T, P, +rows);
        for (int64_t t = 0; t < T; ++t)
            for (int64_t s = 0; s < P; ++s)
                columns[t * P + s] = s < T ? double(scores[s * T + t]) : -infinity<double>();
        has_invalid = scan_scores(scores, T * T).has_invalid;
    }
};

template <class Score> class Viterbi {
  public:
    Viterbi(const Problem& p, const TransitionsInDouble<Score>& shared)
        : problem_(p), T(p.num_tags), P(padded<double>(p.num_tags)), shared_(shared) {
        for (Array<double>* a : {&best_, &incoming_}) a->allocate((p.n + 1) * P);
        for (Array<double>* a : {&x_, &next_, &y_}) a->allocate(P);
        if (!p.shared) edge_.allocate(T * P);
    }

    // Writes the tags of the best path of sentence b and its score. Returns false if there is no path, or a score is
    // invalid.
    bool solve(int64_t b, int64_t* tags, double& score) {
        const int64_t L = problem_.lengths[b];
        if (L < 0 || L > problem_.n) return false;
        for (int64_t i = L; i < problem_.n; ++i) tags[i] = kPaddingTag;
        score = 0;
        if (L == 0) return true;
        bool valid = true;
        for (int64_t i = 0; i < L; ++i) {
            const Score* row = unary(b, i);
            valid &= !scan_scores(row, T).has_invalid;
            double* here = best_ + i * P;
            double* incoming = incoming_ + i * P;
            if (i == 0) {
                std::memset(incoming, 0, size_t(P) * sizeof(double));
            } else {
                if (!problem_.shared) valid &= !scan_scores(transitions(b, i - 1), T * T).has_invalid;
                max_plus_product(edge_in_double(b, i - 1), T, P, here - P, incoming);
            }
            for (int64_t j = 0; j < P; j += W)
                store(here + j, load(incoming + j) + load_or_removed(row, j, T, 0.0));
        }
        int64_t tag = argmax(best_ + (L - 1) * P);
        score = best_[(L - 1) * P + tag];
        if (!valid || score == -infinity<double>()) return false;
        tags[L - 1] = tag;
        // There is no table of back pointers: only the maxima along the best path are searched again.
        for (int64_t i = L - 1; i > 0; --i) {
            const double *x = best_ + (i - 1) * P, max = incoming_[i * P + tag];
            tags[i - 1] = tag = problem_.shared ? shared_best_source(x, tag, max) : best_source(b, i - 1, x, tag);
        }
        return true;
    }

    // Whether the best arcs of all edges, at the dual point lam of a Bregman solver, form a path. If they do, it is a
    // best path, whatever lam is (docs/derivation.md): it is written to `tags`, with its score.
    template <class Solver>
    bool certify(int64_t b, Solver& solver, double temperature, int64_t* tags, double& score) {
        const int64_t L = problem_.lengths[b];
        solver.write_back_dual();
        double *x = x_, *next = next_, *through = best_;
        if (L > 1) reduce_scores(b, 0, solver, temperature, y_, x);
        for (int64_t e = 0; e + 1 < L; ++e) {
            reduce_scores(b, e + 1, solver, temperature, y_, next);
            max_plus_product(edge_in_double(b, e), T, P, x, through);
            Vec<double> top = splat(-infinity<double>());
            for (int64_t j = 0; j < P; j += W) {
                const Vec<double> sum = load(through + j) + load(y_ + j);
                store(through + j, sum);
                top = vmax(top, sum);
            }
            const double max = hmax(top);
            const int64_t target = first_of(through, max);
            if (e == 0) tags[0] = best_source(b, 0, x, target);
            tags[e + 1] = target;
            const double joined = x[tags[e]] + double(transitions(b, e)[tags[e] * T + target]) + y_[target];
            if (joined != max) return false;
            std::swap(x, next);
        }
        if (L == 1) {
            double* here = best_;
            for (int64_t t = 0; t < P; ++t) here[t] = t < T ? double(unary(b, 0)[t]) : -infinity<double>();
            tags[0] = argmax(here);
        }
        for (int64_t i = L; i < problem_.n; ++i) tags[i] = kPaddingTag;
        score = 0;
        for (int64_t i = 0; i < L; ++i) {
            score += double(unary(b, i)[tags[i]]);
            if (i > 0) score += double(transitions(b, i - 1)[tags[i - 1] * T + tags[i]]);
        }
        return true;
    }

  private:
    const Problem& problem_;
    const int64_t T, P;
    const TransitionsInDouble<Score>& shared_;
    static constexpr int64_t W = lanes<double>();
    Array<double> best_, incoming_;  // [n][P]: the best score of a prefix, with and without the unary score of its last tag
    Array<double> x_, next_, y_, edge_;

    const Score* unary(int64_t b, int64_t i) const {
        return static_cast<const Score*>(problem_.unary) + b * problem_.unary_strides[0] +
               i * problem_.unary_strides[1];
    }
    const Score* transitions(int64_t b, int64_t e) const {
        return static_cast<const Score*>(problem_.transitions) + b * problem_.transition_strides[0] +
               e * problem_.transition_strides[1];
    }
    const double* edge_in_double(int64_t b, int64_t e) {
        if (problem_.shared) return shared_.rows;
        convert_to_double(transitions(b, e), T, P, +edge_);
        return edge_;
    }
    int64_t argmax(const double* x) const {
        int64_t best = 0;
        for (int64_t t = 1; t < T; ++t)
            if (x[t] > x[best]) best = t;
        return best;
    }
    // The first tag t with x[t] == number; 0 if there is none.
    int64_t first_of(const double* x, double number) const {
        for (int64_t j = 0; j < P; j += W)
            if (const uint32_t bits = mask_bits(load(x + j) == splat(number)))
                return j + __builtin_ctz(bits);
        return 0;
    }
    // Returns the first source tag of a best arc into `target`; `max` is the score of that arc.
    int64_t shared_best_source(const double* x, int64_t target, double max) const {
        const double* column = shared_.columns + target * P;
        for (int64_t j = 0; j < P; j += W)
            if (const uint32_t bits = mask_bits(load(x + j) + load(column + j) == splat(max)))
                return j + __builtin_ctz(bits);
        return 0;
    }
    // The same for any transitions; the maximum is searched again.
    int64_t best_source(int64_t b, int64_t e, const double* x, int64_t target) const {
        const Score* column = transitions(b, e) + target;
        int64_t best = 0;
        double max = -infinity<double>();
        for (int64_t s = 0; s < T; ++s)
            if (const double score = x[s] + double(column[s * T]); score > max) max = score, best = s;
        return best;
    }

    // The unary shares of a position with the dual: before = share + lam for the arcs that enter it, after = share - lam
    // for those that leave it.
    template <class Solver>
    void reduce_scores(
        int64_t b, int64_t i, const Solver& solver, double temperature, double* before, double* after) const {
        const bool end = i == 0 || i + 1 == problem_.lengths[b];
        const Score* scores = unary(b, i);
        const auto *shares = solver.shares(i), *duals = solver.duals(i);
        const Vec<double> none = splat(-infinity<double>()), part = splat(end ? 1 : 0.5);
        for (int64_t j = 0; j < P; j += W) {
            const Mask<double> free = load_as(shares + j, 0.0) > none;
            const Vec<double> u = load_or_removed(scores, j, T, 0.0) * part;
            const Vec<double> lam = load_as(duals + j, 0.0) * temperature;
            store(before + j, free ? u + lam : none);
            store(after + j, free ? u - lam : none);
        }
    }
};

}  // namespace
