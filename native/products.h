// Products of a T x T matrix with a vector. Rows are read as whole vectors, P >= T numbers; what a
// matrix holds beyond T (its padding, or the next row) does not matter as long as it is finite; the
// padding of a vector is 0.
#pragma once
#include "simd.h"

namespace {

// Zero-cost view of an edge: its matrix, by rows, and by columns too where somebody made them.
template <class Real> struct Matrix {
    const Real* rows;
    const Real* columns;
    int64_t by;  // from one row to the next: P, or T
};

template <class Real, int N>
BCRF_INLINE void product_block(
    const Real* rows, int64_t by, int64_t T, const Real* x, Real* out) {
    constexpr int64_t W = lanes<Real>();
    // Two sets of sums: one chain of multiply-adds per vector would wait for itself.
    Vec<Real> even[N], odd[N];
    BCRF_UNROLL for (int j = 0; j < N; ++j) even[j] = odd[j] = splat(Real(0));
    int64_t s = 0;
    for (; s + 1 < T; s += 2) {
        const Vec<Real> a = splat(x[s]), b = splat(x[s + 1]);
        const Real* row = rows + s * by;
        BCRF_UNROLL for (int j = 0; j < N; ++j) {
            even[j] += a * load(row + j * W);
            odd[j] += b * load(row + by + j * W);
        }
    }
    if (s < T) {
        const Vec<Real> a = splat(x[s]);
        BCRF_UNROLL for (int j = 0; j < N; ++j) even[j] += a * load(rows + s * by + j * W);
    }
    BCRF_UNROLL for (int j = 0; j < N; ++j) store(out + j * W, even[j] + odd[j]);
}

// out[t] = sum_s x[s] rows[s, t]
template <class Real>
BCRF_INLINE void rows_times(
    const Real* rows, int64_t by, int64_t T, int64_t P, const Real* x, Real* out) {
    constexpr int64_t W = lanes<Real>();
    int64_t left = P / W;
    while (left > 4) {
        product_block<Real, 4>(rows, by, T, x, out);
        rows += 4 * W, out += 4 * W, left -= 4;
    }
    if (left == 4) product_block<Real, 4>(rows, by, T, x, out);
    if (left == 3) product_block<Real, 3>(rows, by, T, x, out);
    if (left == 2) product_block<Real, 2>(rows, by, T, x, out);
    if (left == 1) product_block<Real, 1>(rows, by, T, x, out);
}

template <class Real>
BCRF_INLINE Real dot(const Real* a, const Real* b, int64_t P) {
    Vec<Real> sum = {};
    for (int64_t j = 0; j < P; j += lanes<Real>()) sum += load(a + j) * load(b + j);
    return hsum(sum);
}

// out[r] = sum_t rows[r, t] y[t] for as many rows as a vector has lanes; those after `last` are taken for
// that one.
template <class Real>
BCRF_INLINE void row_sums(
    const Real* rows, int64_t by, int64_t P, const Real* y, int64_t last, Real* out) {
    constexpr int64_t W = lanes<Real>();
    Vec<Real> sum[W];
    BCRF_UNROLL for (int64_t r = 0; r < W; ++r) sum[r] = splat(Real(0));
    for (int64_t j = 0; j < P; j += W) {
        const Vec<Real> b = load(y + j);
        BCRF_UNROLL for (int64_t r = 0; r < W; ++r)
            sum[r] += b * load(rows + (r < last ? r : last) * by + j);
    }
    store(out, sums(sum));
}

// out[s] = sum_t rows[s, t] y[t]; padding of `out` is arbitrary.
template <class Real>
BCRF_INLINE void times_columns(
    const Real* rows, int64_t by, int64_t T, int64_t P, const Real* y, Real* out) {
    constexpr int64_t W = lanes<Real>();
    int64_t s = 0;
    for (; s + W <= T; s += W) row_sums(rows + s * by, by, P, y, W - 1, out + s);
    if (worth_transposing<Real>(T - s)) return row_sums(rows + s * by, by, P, y, T - s - 1, out + s);
    // One or two rows more (one, if T is 9 or 17). Not by way of memory: whoever loads the vector
    // would wait until both its parts have arrived there.
    if (s < P) {
        Vec<Real> rest = {};
        for (int64_t r = 0; s + r < T; ++r) {
            const Real sum = dot(rows + (s + r) * by, y, P);
            rest = lane_index<Real>() == Real(r) ? splat(sum) : rest;
        }
        store(out + s, rest);
    }
}

// Mass that arrives at each tag from weights x of the tags before; padding of `out` is arbitrary.
template <class Real>
BCRF_INLINE void arriving(Matrix<Real> m, int64_t T, int64_t P, const Real* x, Real* out) {
    rows_times(m.rows, m.by, T, P, x, out);
}

// Mass that each tag sends to weights y of the tags after.
template <class Real>
BCRF_INLINE void departing(Matrix<Real> m, int64_t T, int64_t P, const Real* y, Real* out) {
    if (m.columns)
        rows_times(m.columns, m.by, T, P, y, out);
    else
        times_columns(m.rows, m.by, T, P, y, out);
}

// sum[s, t] += x[s] y[t] for up to four pairs of vectors at once, which saves loads and stores.
template <class Real>
BCRF_INLINE void add_outer(
    Real* sum, int64_t T, int64_t P, const Real* const* x, const Real* const* y, int64_t count) {
    constexpr int64_t W = lanes<Real>();
    if (count == 4) {
        for (int64_t s = 0; s < T; ++s) {
            const Vec<Real> a = splat(x[0][s]), b = splat(x[1][s]), c = splat(x[2][s]),
                            d = splat(x[3][s]);
            for (int64_t j = 0; j < P; j += W) {
                Real* at = sum + s * P + j;
                const Vec<Real> first = a * load(y[0] + j) + b * load(y[1] + j);
                const Vec<Real> second = c * load(y[2] + j) + d * load(y[3] + j);
                store(at, load(at) + (first + second));
            }
        }
        return;
    }
    for (int64_t k = 0; k < count; ++k)
        for (int64_t s = 0; s < T; ++s)
            for (int64_t j = 0; j < P; j += W) {
                Real* at = sum + s * P + j;
                store(at, load(at) + splat(x[k][s]) * load(y[k] + j));
            }
}

// out[t] = sum_s arcs[s, t] x[s], or (kMost) the largest of these products, for V vectors of lanes: an
// arc is one number for all lanes, or (kOwn) has one in each. `by_s` and `by_t` say how far apart arcs
// are, the others rows of x and of `out`.
template <class Real, int V, bool kOwn, bool kMost, int C>
BCRF_INLINE void lane_product_rows(
    const Real* arcs, int64_t by_s, int64_t by_t, int64_t T, const Real* x, int64_t by_x, Real* out,
    int64_t by_out) {
    constexpr int64_t W = lanes<Real>();
    Vec<Real> sum[C][V];
    BCRF_UNROLL for (int c = 0; c < C; ++c)
        BCRF_UNROLL for (int v = 0; v < V; ++v) sum[c][v] = splat(Real(0));
    for (int64_t s = 0; s < T; ++s, arcs += by_s, x += by_x) {
        Vec<Real> b[V];
        BCRF_UNROLL for (int v = 0; v < V; ++v) b[v] = load(x + v * W);
        BCRF_UNROLL for (int c = 0; c < C; ++c)
            BCRF_UNROLL for (int v = 0; v < V; ++v) {
                const Vec<Real> arc = kOwn ? load(arcs + c * by_t + v * W) : splat(arcs[c * by_t]);
                if (kMost) sum[c][v] = vmax(sum[c][v], arc * b[v]);
                else sum[c][v] += arc * b[v];
            }
    }
    BCRF_UNROLL for (int c = 0; c < C; ++c)
        BCRF_UNROLL for (int v = 0; v < V; ++v) store(out + c * by_out + v * W, sum[c][v]);
}
template <class Real, int V, bool kOwn, bool kMost = false>
BCRF_INLINE void lane_product(
    const Real* arcs, int64_t by_s, int64_t by_t, int64_t T, const Real* x, int64_t by_x, Real* out,
    int64_t by_out) {
    constexpr int C = V == 2 ? 6 : 9;  // sums that fit the registers
    int64_t t = 0;
    for (; t + C <= T; t += C)
        lane_product_rows<Real, V, kOwn, kMost, C>(
            arcs + t * by_t, by_s, by_t, T, x, by_x, out + t * by_out, by_out);
    arcs += t * by_t, out += t * by_out;
    switch (T - t) {
#define BCRF_CASE(rest) \
    case rest: \
        return lane_product_rows<Real, V, kOwn, kMost, rest>( \
            arcs, by_s, by_t, T, x, by_x, out, by_out);
        BCRF_CASE(8) BCRF_CASE(7) BCRF_CASE(6) BCRF_CASE(5)
        BCRF_CASE(4) BCRF_CASE(3) BCRF_CASE(2) BCRF_CASE(1)
#undef BCRF_CASE
    }
}

}  // namespace
