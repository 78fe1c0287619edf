// One sentence in the scratch memory of a thread: its scores are checked, tags on no path are removed, and
// the transitions of each edge are exponentiated.
//
// Layouts (P >= T: tags padded to whole vectors):
//     unary            [position][tag], rows of P; -inf for removed tags and padding
//     exponentials     shared transitions: one [from][to] matrix with rows of P, and its transpose;
//                      per-edge transitions: [slot][from][to] with rows of T, slot = edge % window
//     live bits        [position][word], allowed arcs [edge][from][word]; 64 tags per word
#pragma once
#include "../simd/products.h"
#include "transitions.h"

namespace {

// The padded number of tags: N vectors, known to the compiler, or (N = 0) known at run time only. With a known
// number the loops over tags are unrolled.
template <class Real, int N> struct Padding {
    int64_t value;
    explicit Padding(int64_t T) : value(padded<Real>(T)) {}
    BCRF_INLINE_MEMBER operator int64_t() const { return N > 0 ? N * lanes<Real>() : value; }
};

// Replaces P log weights by x <- exp(x) / sum; returns the log of the sum.
template <class Real> BCRF_INLINE double softmax(Real* x, int64_t P) {
    constexpr int64_t W = lanes<Real>();
    const Real max = max_of<Real>(x, P);
    Vec<Real> sum = {};
    for (int64_t j = 0; j < P; j += W) {
        store(x + j, vexp(load(x + j) - max));
        sum += load(x + j);
    }
    const Vec<Real> factor = splat(Real(1) / hsum(sum));
    for (int64_t j = 0; j < P; j += W) store(x + j, load(x + j) * factor);
    return double(max) + log_of(double(hsum(sum)));
}

// `Score` is the dtype of the given scores, `Real` that of the computation.
template <class Score, class Real, int N> class Sentence {
  public:
    const Problem& problem;
    const SharedTransitions<Score, Real>& shared;
    const int64_t T;
    const Padding<Real, N> P;
    int64_t b = 0, L = 0;        // index and length of the sentence that was read
    Array<Real> unary;           // [n][P]: scaled unary scores, or their shares if the problem is folded
    Array<Real> transition_max;  // [n-1]: subtracted from the transitions of an edge before exponentiating

    // `window`: how many edges a solver needs at the same time.
    Sentence(const Problem& p, const SharedTransitions<Score, Real>& s, int64_t window)
        : problem(p), shared(s), T(p.num_tags), P(p.num_tags), words_((p.num_tags + 63) / 64),
          scale_(Real(p.scale)) {
        const int64_t n = p.n + 1;
        unary.allocate(n * P);
        transition_max.allocate(n);
        live_bits_.allocate(n * words_);
        if (!p.shared) {
            window_ = window < n ? window : n;
            if (window_ < 1) window_ = 1;
            slot_size_ = padded<Real>(T * T) + W;  // the last row too is read as whole vectors
            ring_.allocate(window_ * slot_size_);
            std::memset(ring_, 0, size_t(window_ * slot_size_) * sizeof(Real));
            arc_bits_.allocate(n * T * words_);
            if (p.allowed) constrained_.allocate(n * T * T + lanes<Score>());
        }
    }

    // Reads a sentence; returns false if it is invalid. `bounded`: take the bounded fast path for per-edge
    // transitions (transitions.h); the solver must then ask `out_of_bounds` after `exponentiate_edge`.
    bool read(int64_t sentence, bool bounded = false) {
        b = sentence;
        bounded_ = bounded && !problem.shared && !problem.allowed && T * T >= W;
        removed_arcs_ = kNoArcs;
        largest_ = Mask<Real>{};
        L = problem.lengths[b];
        if (L < 0 || L > problem.n) return false;
        if (L == 0) return true;
        bool removed = false;
        if (!(problem.unary ? read_unary(removed) : read_folded())) return false;
        for (int64_t e = 0; bounded_ && e + 1 < L; ++e) transition_max[e] = 0;
        if (L > 1 && !bounded_ && !scan_transitions(removed)) return false;
        return removed && problem.unary ? trim_dead_tags() : true;
    }
    bool bounded() const { return bounded_; }
    void note_magnitude(Mask<Real> largest) { largest_ = largest > largest_ ? largest : largest_; }
    bool out_of_bounds() const { return any(::out_of_bounds(largest_, scale_)); }

    // The unscaled transition scores of edge e, [T][T].
    const Score* transition_scores(int64_t e) const {
        return constrained_ ? constrained_ + e * T * T : given_transitions(e);
    }
    double arc_score(int64_t e, int64_t s, int64_t t) const {
        return double(transition_scores(e)[s * T + t]) * problem.scale;
    }

    // Scores of the arcs of edge e from tag s to the tags j .. j + W - 1. Lanes beyond T hold the first scores
    // of the next row, or -inf.
    BCRF_INLINE_MEMBER Vec<double> arc_scores(int64_t e, int64_t s, int64_t j) const {
        return load_or_removed(transition_scores(e), s * T + j, T * T, 0.0) * problem.scale;
    }

    // Exponentiates the transitions of edge e; it stays valid until edge e + window takes its slot.
    void exponentiate_edge(int64_t e) {
        if (problem.shared) return;
        const Score* scores = transition_scores(e);
        Real* rows = slot(e);
        const Real max = transition_max[e], scale = scale_;
        const int64_t size = T * T;
        int64_t j = 0;
        if (bounded_) {
            Mask<Real> largest = {};
            const auto exponentiate = [&](int64_t at) __attribute__((always_inline)) {
                store(rows + at, bounded_exp(load_as(scores + at, Real(0)), scale, largest));
            };
            for (; j + W < size; j += W) exponentiate(j);
            exponentiate(size - W);  // the last vector may overlap the one before it
            note_magnitude(largest);
            return;
        }
        for (; j + W <= size; j += W) store(rows + j, vexp(load_as(scores + j, Real(0)) * scale - max));
        if (j < size) store(rows + j, vexp(load_or_removed(scores, j, size, Real(0)) * scale - max));
    }
    EdgeMatrix<Real> edge_matrix(int64_t e) const {
        if (problem.shared) return {shared.rows, shared.columns, P};
        return {slot(e), nullptr, T};
    }

    // log sum_s exp(x[s] + transition[s][t]) for the tags t = j .. j + W - 1 and log weights x.
    Vec<Real> log_forward_product(int64_t e, const Real* x, int64_t j) const {
        const Score* scores = transition_scores(e);
        Vec<Real> most = splat(-infinity<Real>()), sum = {};
        for (int64_t s = 0; s < T; ++s) most = vmax(most, x[s] + row_scores(scores + s * T, j));
        const Vec<Real> base = most > -infinity<Real>() ? most : Vec<Real>{};
        for (int64_t s = 0; s < T; ++s) sum += vexp(x[s] + row_scores(scores + s * T, j) - base);
        return sum > Real(0) ? vlog(sum) + base : splat(-infinity<Real>());
    }
    // log sum_t exp(transition[s][t] + y[t]) for one tag s and log weights y.
    Real log_backward_product(int64_t e, const Real* y, int64_t s) const {
        const Score* row = transition_scores(e) + s * T;
        Vec<Real> most = splat(-infinity<Real>()), sum = {};
        for (int64_t j = 0; j < P; j += W) most = vmax(most, row_scores(row, j) + load(y + j));
        const Real base = hmax(most);
        if (base == -infinity<Real>()) return base;
        for (int64_t j = 0; j < P; j += W) sum += vexp(row_scores(row, j) + load(y + j) - base);
        return log_of(hsum(sum)) + base;
    }

  private:
    static constexpr int64_t W = lanes<Real>();
    int64_t words_, window_ = 1, slot_size_ = 0;
    Real scale_;
    bool bounded_ = false;     // on the bounded fast path
    Mask<Real> largest_ = {};  // bit patterns of the largest magnitudes on that path
    Array<Real> ring_;
    Array<uint64_t> live_bits_, arc_bits_;  // tags that lie on a path; arcs that are not removed
    Array<Score> constrained_;  // [n-1][T][T]: given transitions, -inf where not allowed
    enum { kNoArcs, kSameOnEveryEdge, kAnyArcs } removed_arcs_ = kNoArcs;

    // The comparison avoids the division when the window holds all edges, which is the usual case.
    Real* slot(int64_t e) const { return ring_ + (e < window_ ? e : e % window_) * slot_size_; }

    const Score* given_transitions(int64_t e) const {
        return static_cast<const Score*>(problem.transitions) + b * problem.transition_strides[0] +
               e * problem.transition_strides[1];
    }

    Vec<Real> row_scores(const Score* row, int64_t j) const {
        return load_first<Real>(row + j, T - j, -infinity<Real>()) * scale_;
    }

    void read_row(const Score* from, Real* to) const {
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> x = j + W <= T ? load_as(from + j, Real(0))
                                           : load_first<Real>(from + j, T - j, -infinity<Real>());
            store(to + j, x * scale_);
        }
    }

    // Reads the unary scores, or (read_folded) their shares; false if a score is invalid.
    bool read_unary(bool& removed) {
        const Score* base = static_cast<const Score*>(problem.unary) + b * problem.unary_strides[0];
        ScoreScan<Score> scan;
        for (int64_t i = 0; i < L; ++i) {
            const Score* row = base + i * problem.unary_strides[1];
            scan.add(row, T);
            read_row(row, unary + i * P);
        }
        removed |= scan.has_removed();
        return !scan.has_invalid();
    }

    bool read_folded() {
        const int64_t start = b * problem.unary_strides[0], stride = problem.unary_strides[1];
        const Score* left = static_cast<const Score*>(problem.left) + start;
        const Score* right = static_cast<const Score*>(problem.right) + start;
        ScoreScan<Score> scan;
        for (int64_t i = 0; L > 1 && i < L; ++i) {
            const Score* row = i + 1 < L ? left + i * stride : right + (i - 1) * stride;
            scan.add(row, T);
            read_row(row, unary + i * P);
        }
        return !scan.has_invalid();
    }

    // Finds the maximum of each edge, and whether arcs are removed; false if a score is invalid.
    bool scan_transitions(bool& removed) {
        if (problem.shared) {
            removed |= shared.range.has_removed;
            const Real max = shared.max(problem);
            for (int64_t e = 0; e + 1 < L; ++e) transition_max[e] = max;
            return !shared.range.has_invalid;
        }
        const int64_t size = T * T, m = L - 1;
        const Real scale = scale_;
        Vec<Score> sum[2] = {};
        for (int64_t e = 0; e < m; ++e) {
            const Score* given = given_transitions(e);
            const Score max =
                constrained_ ? add_max_and_sum(given, +shared.removal, size, sum, constrained_ + e * size)
                             : max_and_sum(given, size, sum);
            transition_max[e] = max > -infinity<Score>() ? Real(max) * scale : Real(0);
        }
        if (constrained_) removed_arcs_ = kSameOnEveryEdge, removed = true;
        const Vec<Score> total = sum[0] + sum[1];
        if (!any(~(total - total == Score(0)))) return true;
        // Some score is not finite, or the sum overflowed: look at every score.
        ScoreScan<Score> scan;
        for (int64_t e = 0; e < m; ++e) {
            scan.add(transition_scores(e), size);
            for (int64_t s = 0; s < T; ++s)
                mark_present(transition_scores(e) + s * T, T, arc_bits_ + (e * T + s) * words_);
        }
        if (scan.has_removed()) removed_arcs_ = kAnyArcs, removed = true;
        return !scan.has_invalid();
    }

    // [from][word]: which arcs of edge e are not removed; null: all.
    const uint64_t* allowed_bits(int64_t e) const {
        if (problem.shared) return shared.range.has_removed ? +shared.bits : nullptr;
        if (removed_arcs_ == kSameOnEveryEdge) return shared.bits;
        return removed_arcs_ == kAnyArcs ? arc_bits_ + e * T * words_ : nullptr;
    }

    // Sets the unary scores of tags that lie on no path to -inf: one pass forward, one pass backward over the
    // edges. Returns false if no path is left.
    bool trim_dead_tags() {
        uint64_t* live = live_bits_;
        for (int64_t i = 0; i < L; ++i) mark_present(unary + i * P, T, live + i * words_);
        for (int64_t e = 0; e + 1 < L; ++e) {
            const uint64_t *arcs = allowed_bits(e), *here = live + e * words_;
            uint64_t* next = live + (e + 1) * words_;
            for (int64_t w = 0; arcs && w < words_; ++w) {
                uint64_t reached = 0;
                for (int64_t s = 0; s < T; ++s)
                    if (here[s / 64] >> (s % 64) & 1) reached |= arcs[s * words_ + w];
                next[w] &= reached;
            }
            if (!any_bit(next)) return false;
        }
        if (!any_bit(live)) return false;
        for (int64_t e = L - 2; e >= 0; --e) {
            const uint64_t *arcs = allowed_bits(e), *next = live + (e + 1) * words_;
            uint64_t* here = live + e * words_;
            if (!arcs) continue;
            for (int64_t s = 0; s < T; ++s) {
                uint64_t reaches = 0;
                for (int64_t w = 0; w < words_; ++w) reaches |= arcs[s * words_ + w] & next[w];
                if (!reaches) here[s / 64] &= ~(uint64_t(1) << (s % 64));
            }
            if (!any_bit(here)) return false;
        }
        for (int64_t i = 0; i < L; ++i)
            for (int64_t t = 0; t < T; ++t)
                if (!(live[i * words_ + t / 64] >> (t % 64) & 1))
                    unary[i * P + t] = -infinity<Real>();
        return true;
    }

    bool any_bit(const uint64_t* bits) const {
        uint64_t found = 0;
        for (int64_t w = 0; w < words_; ++w) found |= bits[w];
        return found != 0;
    }
};

}  // namespace
