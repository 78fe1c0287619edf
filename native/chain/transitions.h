// Exponentials of transition scores, and the tables that all sentences share.
#pragma once
#include "score_scan.h"

namespace {

// Messages are sums of products of weights that are at most 1 (with the bounded fast path: exp(20)). Terms
// below the smallest normal number are lost; next to a sum of at least this size they do not matter. A
// sentence with a smaller sum is solved again in a form that loses nothing.
template <class Real> constexpr Real underflow_limit();
template <> constexpr float underflow_limit<float>() { return 1e-28f; }
template <> constexpr double underflow_limit<double>() { return 1e-285; }

// The bounded fast path: we first assume that every scaled transition score is at most 20 in magnitude, which
// saves the pass that finds the maximum of an edge. The largest magnitude is recorded while the exponentials
// are computed; if it is above the bound, the sentence is solved again with the maximum subtracted. 20 keeps
// products of a few exponentials far inside the range of float. It gains 10 to 11 % for forward-backward
// with per-edge transitions (docs/kernels.md).
constexpr double kScoreBound = 20;

// exp(x * scale) under that assumption. `largest` records the magnitudes as bit patterns, which are ordered
// as the numbers are, with NaN above all of them.
template <class Real>
BCRF_INLINE Vec<Real> bounded_exp(Vec<Real> x, Real scale, Mask<Real>& largest) {
    const Mask<Real> magnitude = bits_of(x) & ~sign_bits<Real>();
    largest = magnitude > largest ? magnitude : largest;
    return vexp_in_range(x, scale);
}
// The lanes in which the assumption was wrong.
template <class Real> BCRF_INLINE Mask<Real> out_of_bounds(Mask<Real> largest, Real scale) {
    return largest > bits_of(splat(Real(kScoreBound) / scale));
}

// rows[s][t] = exp(scores[s][t] * scale - max), rows of P numbers. The padding holds the exponentials of the
// first scores of the next row.
template <class Score, class Real>
BCRF_INLINE void exponentiate_rows(
    const Score* scores, int64_t T, int64_t P, Real scale, Real max, Real* rows) {
    for (int64_t s = 0; s < T; ++s)
        for (int64_t j = 0; j < P; j += lanes<Real>()) {
            const Vec<Real> x = load_or_removed(scores, s * T + j, T * T, Real(0));
            store(rows + s * P + j, vexp(x * scale - max));
        }
}

// Calls use(k, vector) for k = 0 .. count - 1. Lane r of the k-th vector is from[r][k], so `from` holds one array
// for each of the W lanes.
template <class Real, class Score, class Use>
BCRF_INLINE void transpose_into_lanes(const Score* const* from, int64_t count, Use use) {
    constexpr int64_t W = lanes<Real>(), H = W / 2;
    int64_t c = 0;
    for (; c + W <= count; c += W) {
        Vec<Real> block[W];
        // Every register is loaded in two halves from two arrays, so that only the halves need transposing.
        BCRF_UNROLL for (int64_t r = 0; r < W; ++r) {
            const int64_t row = r % H, at = c + r / H * H;
            block[r] = load_halves(from[row] + at, from[row + H] + at, Real(0));
        }
        transpose_half_rows(block);
        transpose_half_rows(block + H);
        BCRF_UNROLL for (int64_t k = 0; k < W; ++k) use(c + k, block[k]);
    }
    if (worth_transposing<Real>(count - c)) {
        Vec<Real> block[W];
        BCRF_UNROLL for (int64_t r = 0; r < W; ++r)
            block[r] = load_first<Real>(from[r] + c, count - c, Real(0));
        transpose(block);
        for (int64_t k = 0; c < count; ++c, ++k) use(c, block[k]);
    }
    for (; c < count; ++c) {
        Real lane[W];
        for (int64_t r = 0; r < W; ++r) lane[r] = Real(from[r][c]);
        use(c, load<Real>(lane));
    }
}

// Writes to[lane][k] from rows[k][lane], k = 0 .. count - 1: the inverse of `transpose_into_lanes`.
template <class Real>
BCRF_INLINE void transpose_from_lanes(const Real* rows, int64_t count, Real* const* to) {
    constexpr int64_t W = lanes<Real>();
    int64_t c = 0;
    for (; c + W <= count; c += W) {
        Vec<Real> block[W];
        BCRF_UNROLL for (int64_t k = 0; k < W; ++k) block[k] = load(rows + (c + k) * W);
        transpose(block);
        BCRF_UNROLL for (int64_t r = 0; r < W; ++r) store(to[r] + c, block[r]);
    }
    if (worth_transposing<Real>(count - c)) {
        const int64_t last = count - 1;
        Vec<Real> block[W];
        BCRF_UNROLL for (int64_t k = 0; k < W; ++k) block[k] = load(rows + (c + k < last ? c + k : last) * W);
        transpose(block);
        BCRF_UNROLL for (int64_t r = 0; r < W; ++r) store_first(to[r] + c, count - c, block[r]);
        return;
    }
    for (; c < count; ++c)
        for (int64_t r = 0; r < W; ++r) to[r][c] = rows[c * W + r];
}

// Tables that all sentences and threads share. For shared transitions they hold the exponentials; for per-edge
// transitions they say which transitions are removed from every edge.
template <class Score, class Real> struct SharedTransitions {
    Array<Real> rows, columns;  // shared: [T][P] exponentials, and the transposed matrix
    Array<Score> removal;       // per edge: [T][T], -inf where `problem.allowed` is false, else 0
    Array<uint64_t> bits;       // [T][words]: bit t of row s is set if the transition is not removed
    ScoreRange range;           // of shared transitions

    explicit SharedTransitions(const Problem& problem) {
        const int64_t T = problem.num_tags, P = padded<Real>(T);
        if (!problem.shared && !problem.allowed) return;
        if (!problem.shared) {
            removal.allocate(padded<Score>(T * T));
            for (int64_t k = 0; k < padded<Score>(T * T); ++k)
                removal[k] = k < T * T && problem.allowed[k] ? Score(0) : -infinity<Score>();
            mark(removal, T);
            return;
        }
        const Score* scores = static_cast<const Score*>(problem.transitions);
        range = scan_scores(scores, T * T);
        rows.allocate(T * P);
        columns.allocate(T * P);
        exponentiate_rows(scores, T, P, Real(problem.scale), max(problem), +rows);
        for (int64_t s = 0; s < T; ++s)
            for (int64_t t = 0; t < P; ++t) columns[s * P + t] = t < T ? rows[t * P + s] : Real(0);
        if (range.has_removed) mark(scores, T);
    }
    // The largest scaled score, 0 if all are removed: what was subtracted before exponentiating.
    Real max(const Problem& problem) const {
        return range.max > -__builtin_inf() ? Real(range.max) * Real(problem.scale) : Real(0);
    }

  private:
    void mark(const Score* scores, int64_t T) {
        const int64_t words = (T + 63) / 64;
        bits.allocate(T * words);
        for (int64_t s = 0; s < T; ++s) mark_present(scores + s * T, T, bits + s * words);
    }
};

}  // namespace
