// Reading scores: maxima, removed (-inf) and invalid (NaN, +inf) scores, and which scores are present.
#pragma once
#include "../kernels.h"
#include "../runtime/memory.h"
#include "../simd/math.h"

namespace {

using bcrf::Problem;

// Rounds a count up to whole vectors.
template <class Real> BCRF_INLINE int64_t padded(int64_t count) {
    return (count + lanes<Real>() - 1) / lanes<Real>() * lanes<Real>();
}

// The largest of P numbers, P being a multiple of W.
template <class Real> BCRF_INLINE Real max_of(const Real* x, int64_t P) {
    Vec<Real> most = load(x);
    for (int64_t j = lanes<Real>(); j < P; j += lanes<Real>()) most = vmax(most, load(x + j));
    return hmax(most);
}

// Accumulates the minimum and the validity of scores. `add` may be called any number of times.
template <class Score> class ScoreScan {
  public:
    // Adds `count` scores and returns the largest of each lane.
    BCRF_INLINE_MEMBER Vec<Score> add(const Score* x, int64_t count) {
        constexpr int64_t W = lanes<Score>();
        Vec<Score> high = splat(-infinity<Score>());
        int64_t j = 0;
        for (; j + W <= count; j += W) add_vector(load(x + j), high);
        // The last vector overlaps the one before it, if there is one.
        if (j < count) add_vector(count > W ? load(x + count - W) : load_first<Score>(x, count, x[0]), high);
        return high;
    }
    bool has_removed() const { return hmax(-low_) == infinity<Score>(); }  // some score is -inf
    bool has_invalid() const { return any(~valid_); }                      // some score is NaN or +inf

  private:
    Vec<Score> low_ = splat(infinity<Score>());
    Mask<Score> valid_ = low_ == low_;

    BCRF_INLINE_MEMBER void add_vector(Vec<Score> v, Vec<Score>& high) {
        high = vmax(high, v), low_ = vmin(low_, v), valid_ &= v < infinity<Score>();
    }
};

// The result of one scan.
struct ScoreRange {
    double max = -__builtin_inf();
    bool has_removed = false, has_invalid = false;
};

template <class Score> BCRF_INLINE ScoreRange scan_scores(const Score* x, int64_t count) {
    ScoreScan<Score> scan;
    const double max = double(hmax(scan.add(x, count)));
    return {max, scan.has_removed(), scan.has_invalid()};
}

// Returns the largest score and adds all scores to `sum` (two accumulators). The sum stays finite if no score
// is NaN or infinite, so one test of the sum replaces a test of every score.
template <class Score> BCRF_INLINE Score max_and_sum(const Score* x, int64_t count, Vec<Score>* sum) {
    constexpr int64_t W = lanes<Score>();
    Vec<Score> a = splat(-infinity<Score>()), b = a, first = sum[0], second = sum[1];
    int64_t j = 0;
    for (; j + 2 * W <= count; j += 2 * W) {
        const Vec<Score> u = load(x + j), v = load(x + j + W);
        a = vmax(a, u), b = vmax(b, v);
        first += u, second += v;
    }
    for (; j < count; j += W) {
        const Vec<Score> u = load_first<Score>(x + j, count - j, x[j]);
        a = vmax(a, u);
        first += u;
    }
    sum[0] = first, sum[1] = second;
    return hmax(vmax(a, b));
}

// The same for out = x + removal, where `out` and `removal` have room for whole vectors. The sum is that of x.
template <class Score>
BCRF_INLINE Score add_max_and_sum(
    const Score* x, const Score* removal, int64_t count, Vec<Score>* sum, Score* out) {
    constexpr int64_t W = lanes<Score>();
    Vec<Score> most = splat(-infinity<Score>());
    for (int64_t j = 0; j < count; j += W) {
        const Vec<Score> u = j + W <= count ? load(x + j) : load_first<Score>(x + j, count - j, x[j]);
        const Vec<Score> v = u + load(removal + j);
        store(out + j, v);
        most = vmax(most, v);
        sum[0] += u;
    }
    return hmax(most);
}

// Loads the vector that begins at index `at` of an array of `size` numbers. Lanes beyond the array are -inf.
template <class Score, class Real>
BCRF_INLINE Vec<Real> load_or_removed(const Score* array, int64_t at, int64_t size, Real) {
    if (at + lanes<Real>() <= size) return load_as(array + at, Real(0));
    return load_first<Real>(array + at, size > at ? size - at : 0, -infinity<Real>());
}

// Bit t of `bits` (64 bits per word) is set if score t of T is not removed.
template <class Score> BCRF_INLINE void mark_present(const Score* x, int64_t T, uint64_t* bits) {
    constexpr int64_t W = lanes<Score>();
    for (int64_t t = 0; t < T; t += 64) {
        uint64_t word = 0;
        for (int64_t j = t; j < T && j < t + 64; j += W) {
            const Vec<Score> v = load_first<Score>(x + j, T - j, -infinity<Score>());
            word |= uint64_t(mask_bits(v > -infinity<Score>())) << (j - t);
        }
        bits[t / 64] = word;
    }
}

}  // namespace
