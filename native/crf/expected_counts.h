// Expected counts of shared transitions for W sentences at a time, one in each lane.
// Layout: x and y are [edge][tag][lane], counts [from][to][lane].
#pragma once
#include "../simd/vector.h"

namespace {

// counts[s][t] += sum of x[e][s] y[e][t] over K edges, for S tags s. The K factors x stay in registers; loop
// order: target tag, then source tag, then edge.
template <class Real, int S, int K>
BCRF_INLINE void add_counts(const Real* x, const Real* y, int64_t T, Real* counts) {
    constexpr int64_t W = lanes<Real>();
    Vec<Real> a[S][K];
    BCRF_UNROLL for (int s = 0; s < S; ++s)
        BCRF_UNROLL for (int k = 0; k < K; ++k) a[s][k] = load(x + (k * T + s) * W);
    for (int64_t t = 0; t < T; ++t) {
        Vec<Real> b[K];
        BCRF_UNROLL for (int k = 0; k < K; ++k) b[k] = load(y + (k * T + t) * W);
        BCRF_UNROLL for (int s = 0; s < S; ++s) {
            Real* at = counts + (s * T + t) * W;
            Vec<Real> sum = load(at);
            BCRF_UNROLL for (int k = 0; k < K; ++k) sum += a[s][k] * b[k];
            store(at, sum);
        }
    }
}
// All source tags, two at a time.
template <class Real, int K>
BCRF_INLINE void add_counts(const Real* x, const Real* y, int64_t T, Real* counts) {
    constexpr int64_t W = lanes<Real>();
    int64_t s = 0;
    for (; s + 2 <= T; s += 2) add_counts<Real, 2, K>(x + s * W, y, T, counts + s * T * W);
    if (s < T) add_counts<Real, 1, K>(x + s * W, y, T, counts + s * T * W);
}

// counts[s][t] = sum of x[e][s] y[e][t] over all edges, four at a time.
template <class Real>
BCRF_INLINE void sum_outer_products(
    const Real* x, const Real* y, int64_t edges, int64_t T, Real* counts) {
    const int64_t stride = T * lanes<Real>();
    std::memset(counts, 0, size_t(T * stride) * sizeof(Real));
    int64_t e = 0;
    for (; e + 4 <= edges; e += 4) add_counts<Real, 4>(x + e * stride, y + e * stride, T, counts);
    for (; e < edges; ++e) add_counts<Real, 1>(x + e * stride, y + e * stride, T, counts);
}

}  // namespace
