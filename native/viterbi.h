// The best path, and the certificate that spares it.
//
// In double precision: rounding of long sums decides nothing.
#pragma once
#include "lanes.h"

namespace {

// The pairs of an edge in double precision. Its padding is arbitrary: nobody looks at those tags.
template <class In>
BCRF_INLINE void widen(const In* raw, int64_t T, int64_t P, double* out) {
    constexpr int64_t W = lanes<double>();
    for (int64_t s = 0; s < T; ++s)
        for (int64_t j = 0; j < P; j += W)
            store(out + s * P + j, load_within(raw, s * T + j, T * T, 0.0));
}

template <int N>
BCRF_INLINE void best_block(
    const double* rows, int64_t T, int64_t P, const double* x, double* out) {
    constexpr int64_t W = lanes<double>();
    Vec<double> best[N];
    BCRF_UNROLL for (int j = 0; j < N; ++j) best[j] = splat(-infinity<double>());
    for (int64_t s = 0; s < T; ++s) {
        const Vec<double> a = splat(x[s]);
        BCRF_UNROLL for (int j = 0; j < N; ++j)
            best[j] = vmax(best[j], add_apart(a, load(rows + s * P + j * W)));
    }
    BCRF_UNROLL for (int j = 0; j < N; ++j) store(out + j * W, best[j]);
}

// out[t] = max_s x[s] + rows[s, t]
BCRF_INLINE void best_arriving(
    const double* rows, int64_t T, int64_t P, const double* x, double* out) {
    constexpr int64_t W = lanes<double>();
    int64_t left = P / W;
    while (left > 8) {
        best_block<4>(rows, T, P, x, out);
        rows += 4 * W, out += 4 * W, left -= 4;
    }
    if (left == 8) best_block<8>(rows, T, P, x, out);
    if (left == 7) best_block<7>(rows, T, P, x, out);
    if (left == 6) best_block<6>(rows, T, P, x, out);
    if (left == 5) best_block<5>(rows, T, P, x, out);
    if (left == 4) best_block<4>(rows, T, P, x, out);
    if (left == 3) best_block<3>(rows, T, P, x, out);
    if (left == 2) best_block<2>(rows, T, P, x, out);
    if (left == 1) best_block<1>(rows, T, P, x, out);
}

// Shared pairs in double precision, by rows and by columns, T of P numbers each.
template <class In> struct WidePairs {
    Array<double> rows, columns;
    bool bad = false;

    explicit WidePairs(const Problem& p) {
        if (!p.shared) return;
        const int64_t T = p.tags, P = padded<double>(T);
        const In* raw = static_cast<const In*>(p.pair);
        for (Array<double>* a : {&rows, &columns}) a->allocate(T * P);
        widen(raw, T, P, +rows);
        for (int64_t t = 0; t < T; ++t)
            for (int64_t s = 0; s < P; ++s)
                columns[t * P + s] = s < T ? double(raw[s * T + t]) : -infinity<double>();
        bad = range_of(raw, T * T).bad;
    }
};

template <class In> class Viterbi {
  public:
    Viterbi(const Problem& p, const WidePairs<In>& shared)
        : problem_(p), T(p.tags), P(padded<double>(p.tags)), shared_(shared) {
        for (Array<double>* a : {&best_, &arriving_}) a->allocate((p.n + 1) * P);
        for (Array<double>* a : {&x_, &next_, &y_}) a->allocate(P);
        if (!p.shared) edge_.allocate(T * P);
    }

    // Tags of the best path of sentence b and its score; false if there is none, or on a bad score.
    bool solve(int64_t b, int64_t* tags, double& score) {
        const int64_t L = problem_.lengths[b];
        if (L < 0 || L > problem_.n) return false;
        for (int64_t i = L; i < problem_.n; ++i) tags[i] = kPad;
        score = 0;
        if (L == 0) return true;
        bool fine = true;
        for (int64_t i = 0; i < L; ++i) {
            const In* row = unary(b, i);
            fine &= !range_of(row, T).bad;
            double* here = best_ + i * P;
            double* arriving = arriving_ + i * P;
            if (i == 0) {
                std::memset(arriving, 0, size_t(P) * sizeof(double));
            } else {
                if (!problem_.shared) fine &= !range_of(pair(b, i - 1), T * T).bad;
                best_arriving(matrix(b, i - 1), T, P, here - P, arriving);
            }
            for (int64_t j = 0; j < P; j += W)
                store(here + j, load(arriving + j) + load_within(row, j, T, 0.0));
        }
        int64_t tag = argmax(best_ + (L - 1) * P);
        score = best_[(L - 1) * P + tag];
        if (!fine || score == -infinity<double>()) return false;
        tags[L - 1] = tag;
        // Only the path's own choices are looked up again: no table of pointers.
        for (int64_t i = L - 1; i > 0; --i) {
            const double *x = best_ + (i - 1) * P, peak = arriving_[i * P + tag];
            tags[i - 1] = tag = problem_.shared ? shared_source(x, tag, peak) : source(b, i - 1, x, tag);
        }
        return true;
    }

    // Whether the arcs that are best on every edge, at the dual point lam, join up to a path.
    // (docs/derivation.md: that path is then a best one, whatever lam is.)
    template <class Solver>
    bool certify(int64_t b, Solver& solver, double tau, int64_t* tags, double& score) {
        const int64_t L = problem_.lengths[b];
        solver.settle();
        double *x = x_, *next = next_, *reach = best_;
        if (L > 1) reduce(b, 0, solver, tau, y_, x);
        for (int64_t e = 0; e + 1 < L; ++e) {
            reduce(b, e + 1, solver, tau, y_, next);
            best_arriving(matrix(b, e), T, P, x, reach);
            Vec<double> top = splat(-infinity<double>());
            for (int64_t j = 0; j < P; j += W) {
                const Vec<double> sum = load(reach + j) + load(y_ + j);
                store(reach + j, sum);
                top = vmax(top, sum);
            }
            const double peak = hmax(top);
            const int64_t target = first_of(reach, peak);
            if (e == 0) tags[0] = source(b, 0, x, target);
            tags[e + 1] = target;
            const double joined = x[tags[e]] + double(pair(b, e)[tags[e] * T + target]) + y_[target];
            if (joined != peak) return false;
            std::swap(x, next);
        }
        if (L == 1) {
            double* here = best_;
            for (int64_t t = 0; t < P; ++t) here[t] = t < T ? double(unary(b, 0)[t]) : -infinity<double>();
            tags[0] = argmax(here);
        }
        for (int64_t i = L; i < problem_.n; ++i) tags[i] = kPad;
        score = 0;
        for (int64_t i = 0; i < L; ++i) {
            score += double(unary(b, i)[tags[i]]);
            if (i > 0) score += double(pair(b, i - 1)[tags[i - 1] * T + tags[i]]);
        }
        return true;
    }

  private:
    const Problem& problem_;
    const int64_t T, P;
    const WidePairs<In>& shared_;
    static constexpr int64_t W = lanes<double>();
    Array<double> best_, arriving_;  // the best score up to a tag, with and without its own
    Array<double> x_, next_, y_, edge_;

    const In* unary(int64_t b, int64_t i) const {
        return static_cast<const In*>(problem_.unary) + b * problem_.node_strides[0] +
               i * problem_.node_strides[1];
    }
    const In* pair(int64_t b, int64_t e) const {
        return static_cast<const In*>(problem_.pair) + b * problem_.pair_strides[0] +
               e * problem_.pair_strides[1];
    }
    const double* matrix(int64_t b, int64_t e) {
        if (problem_.shared) return shared_.rows;
        widen(pair(b, e), T, P, +edge_);
        return edge_;
    }
    int64_t argmax(const double* x) const {
        int64_t best = 0;
        for (int64_t t = 1; t < T; ++t)
            if (x[t] > x[best]) best = t;
        return best;
    }
    // Where the number first occurs among the tags; 0 if it does not.
    int64_t first_of(const double* x, double number) const {
        for (int64_t j = 0; j < P; j += W)
            if (const uint32_t bits = lane_bits(load(x + j) == splat(number)))
                return j + __builtin_ctz(bits);
        return 0;
    }
    // The first tag from which the best way to `target`, of score `peak`, comes.
    int64_t shared_source(const double* x, int64_t target, double peak) const {
        const double* column = shared_.columns + target * P;
        for (int64_t j = 0; j < P; j += W)
            if (const uint32_t bits = lane_bits(load(x + j) + load(column + j) == splat(peak)))
                return j + __builtin_ctz(bits);
        return 0;
    }
    // The same for any pairs; the peak is looked for again.
    int64_t source(int64_t b, int64_t e, const double* x, int64_t target) const {
        const In* column = pair(b, e) + target;
        int64_t best = 0;
        double peak = -infinity<double>();
        for (int64_t s = 0; s < T; ++s)
            if (const double score = x[s] + double(column[s * T]); score > peak) peak = score, best = s;
        return best;
    }

    // The unary share of the arcs before and after a position, with the dual.
    template <class Solver>
    void reduce(
        int64_t b, int64_t i, const Solver& solver, double tau, double* before, double* after) const {
        const bool end = i == 0 || i + 1 == problem_.lengths[b];
        const In* scores = unary(b, i);
        const auto *shares = solver.shares(i), *duals = solver.duals(i);
        const Vec<double> none = splat(-infinity<double>()), part = splat(end ? 1 : 0.5);
        for (int64_t j = 0; j < P; j += W) {
            const Mask<double> free = load_as(shares + j, 0.0) > none;
            const Vec<double> u = load_within(scores, j, T, 0.0) * part;
            const Vec<double> lam = load_as(duals + j, 0.0) * tau;
            store(before + j, free ? u + lam : none);
            store(after + j, free ? u - lam : none);
        }
    }
};

}  // namespace
