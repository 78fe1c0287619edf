// Products of a T x T matrix with a vector, in two layouts.
//
// Tags in lanes: row s of the matrix is read as P / W vectors of target tags,
//     rows[s][t]          (`stride` numbers from one row to the next: P or T).
// A row is read as whole vectors. The numbers beyond column T (padding, or the next row) must be finite;
// they only reach the padding of the result. The padding of the vector x must be 0.
//
// One problem per lane (`product_per_lane`): every lane holds another position or another sentence,
//     x[tag][lane], out[tag][lane], and arcs[s][t] (one number for all lanes) or arcs[s][t][lane].
#pragma once
#include "vector.h"

namespace {

// The exponentiated transitions of one edge. `columns` is the transposed matrix, or null if there is none.
template <class Real> struct EdgeMatrix {
    const Real* rows;
    const Real* columns;
    int64_t stride;  // from one row to the next: P or T
};

// N vectors of target tags; loop order: source tag, then vector.
template <class Real, int N>
BCRF_INLINE void vector_times_block(
    const Real* rows, int64_t stride, int64_t T, const Real* x, Real* out) {
    constexpr int64_t W = lanes<Real>();
    // Two accumulators per vector: with one, every multiply-add would wait for the one before.
    Vec<Real> even[N], odd[N];
    BCRF_UNROLL for (int j = 0; j < N; ++j) even[j] = odd[j] = splat(Real(0));
    int64_t s = 0;
    for (; s + 1 < T; s += 2) {
        const Vec<Real> a = splat(x[s]), b = splat(x[s + 1]);
        const Real* row = rows + s * stride;
        BCRF_UNROLL for (int j = 0; j < N; ++j) {
            even[j] += a * load(row + j * W);
            odd[j] += b * load(row + stride + j * W);
        }
    }
    if (s < T) {
        const Vec<Real> a = splat(x[s]);
        BCRF_UNROLL for (int j = 0; j < N; ++j) even[j] += a * load(rows + s * stride + j * W);
    }
    BCRF_UNROLL for (int j = 0; j < N; ++j) store(out + j * W, even[j] + odd[j]);
}

// out[t] = sum_s x[s] rows[s][t]. A block has four vectors, that is eight accumulators; more would not fit into the
// 16 registers.
template <class Real>
BCRF_INLINE void vector_times_rows(
    const Real* rows, int64_t stride, int64_t T, int64_t P, const Real* x, Real* out) {
    constexpr int64_t W = lanes<Real>();
    int64_t vectors_left = P / W;
    while (vectors_left > 4) {
        vector_times_block<Real, 4>(rows, stride, T, x, out);
        rows += 4 * W, out += 4 * W, vectors_left -= 4;
    }
    if (vectors_left == 4) vector_times_block<Real, 4>(rows, stride, T, x, out);
    if (vectors_left == 3) vector_times_block<Real, 3>(rows, stride, T, x, out);
    if (vectors_left == 2) vector_times_block<Real, 2>(rows, stride, T, x, out);
    if (vectors_left == 1) vector_times_block<Real, 1>(rows, stride, T, x, out);
}

template <class Real>
BCRF_INLINE Real dot(const Real* a, const Real* b, int64_t P) {
    Vec<Real> sum = {};
    for (int64_t j = 0; j < P; j += lanes<Real>()) sum += load(a + j) * load(b + j);
    return hsum(sum);
}

// out[r] = sum_t rows[r][t] y[t] for W rows. Rows after `last` are replaced by row `last`.
template <class Real>
BCRF_INLINE void dot_w_rows(
    const Real* rows, int64_t stride, int64_t P, const Real* y, int64_t last, Real* out) {
    constexpr int64_t W = lanes<Real>();
    Vec<Real> sum[W];
    BCRF_UNROLL for (int64_t r = 0; r < W; ++r) sum[r] = splat(Real(0));
    for (int64_t j = 0; j < P; j += W) {
        const Vec<Real> b = load(y + j);
        BCRF_UNROLL for (int64_t r = 0; r < W; ++r)
            sum[r] += b * load(rows + (r < last ? r : last) * stride + j);
    }
    store(out, sum_each(sum));
}

// out[s] = sum_t rows[s][t] y[t]. The padding of `out` is arbitrary.
template <class Real>
BCRF_INLINE void rows_dot_vector(
    const Real* rows, int64_t stride, int64_t T, int64_t P, const Real* y, Real* out) {
    constexpr int64_t W = lanes<Real>();
    int64_t s = 0;
    for (; s + W <= T; s += W) dot_w_rows(rows + s * stride, stride, P, y, W - 1, out + s);
    if (worth_transposing<Real>(T - s)) return dot_w_rows(rows + s * stride, stride, P, y, T - s - 1, out + s);
    // One or two rows remain (one, if T is 9 or 17). The vector is built in a register: loading a vector
    // from single numbers that were just stored would stall until the stores have completed.
    if (s < P) {
        Vec<Real> rest = {};
        for (int64_t r = 0; s + r < T; ++r) {
            const Real sum = dot(rows + (s + r) * stride, y, P);
            rest = lane_index<Real>() == Real(r) ? splat(sum) : rest;
        }
        store(out + s, rest);
    }
}

// The message that arrives at each target tag from weights x of the source tags. The padding of `out` is
// arbitrary.
template <class Real>
BCRF_INLINE void forward_product(EdgeMatrix<Real> m, int64_t T, int64_t P, const Real* x, Real* out) {
    vector_times_rows(m.rows, m.stride, T, P, x, out);
}

// The message that arrives at each source tag from weights y of the target tags.
template <class Real>
BCRF_INLINE void backward_product(EdgeMatrix<Real> m, int64_t T, int64_t P, const Real* y, Real* out) {
    if (m.columns)
        vector_times_rows(m.columns, m.stride, T, P, y, out);
    else
        rows_dot_vector(m.rows, m.stride, T, P, y, out);
}

// sum[s][t] += x[s] y[t] for up to four pairs of vectors. Four at once load and store `sum` only once.
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

// C target tags and V vectors of lanes; loop order: source tag, then target tag, then vector. The C x V
// sums stay in registers.
template <class Real, int V, bool kArcPerLane, bool kMax, int C>
BCRF_INLINE void product_per_lane_block(
    const Real* arcs, int64_t stride_s, int64_t stride_t, int64_t T, const Real* x, int64_t stride_x, Real* out,
    int64_t stride_out) {
    constexpr int64_t W = lanes<Real>();
    Vec<Real> sum[C][V];
    BCRF_UNROLL for (int c = 0; c < C; ++c)
        BCRF_UNROLL for (int v = 0; v < V; ++v) sum[c][v] = splat(Real(0));
    for (int64_t s = 0; s < T; ++s, arcs += stride_s, x += stride_x) {
        Vec<Real> b[V];
        BCRF_UNROLL for (int v = 0; v < V; ++v) b[v] = load(x + v * W);
        BCRF_UNROLL for (int c = 0; c < C; ++c)
            BCRF_UNROLL for (int v = 0; v < V; ++v) {
                const Vec<Real> arc = kArcPerLane ? load(arcs + c * stride_t + v * W) : splat(arcs[c * stride_t]);
                if (kMax) sum[c][v] = vmax(sum[c][v], arc * b[v]);
                else sum[c][v] += arc * b[v];
            }
    }
    BCRF_UNROLL for (int c = 0; c < C; ++c)
        BCRF_UNROLL for (int v = 0; v < V; ++v) store(out + c * stride_out + v * W, sum[c][v]);
}

// out[t][lane] = sum_s arc(s, t) x[s][lane], or with kMax the largest of these products, for V vectors of
// lanes. An arc is one number for all lanes, arcs[s * stride_s + t * stride_t], or with kArcPerLane the
// vector that begins there. Exchanging stride_s and stride_t multiplies by the transposed matrix.
template <class Real, int V, bool kArcPerLane, bool kMax = false>
BCRF_INLINE void product_per_lane(
    const Real* arcs, int64_t stride_s, int64_t stride_t, int64_t T, const Real* x, int64_t stride_x, Real* out,
    int64_t stride_out) {
    constexpr int C = V == 2 ? 6 : 9;  // as many sums as fit into 16 registers beside x and an arc
    int64_t t = 0;
    for (; t + C <= T; t += C)
        product_per_lane_block<Real, V, kArcPerLane, kMax, C>(
            arcs + t * stride_t, stride_s, stride_t, T, x, stride_x, out + t * stride_out, stride_out);
    arcs += t * stride_t, out += t * stride_out;
    switch (T - t) {
#define BCRF_CASE(rest) \
    case rest: \
        return product_per_lane_block<Real, V, kArcPerLane, kMax, rest>( \
            arcs, stride_s, stride_t, T, x, stride_x, out, stride_out);
        BCRF_CASE(8) BCRF_CASE(7) BCRF_CASE(6) BCRF_CASE(5)
        BCRF_CASE(4) BCRF_CASE(3) BCRF_CASE(2) BCRF_CASE(1)
#undef BCRF_CASE
    }
}

}  // namespace
