// The output rows of one sentence.
#pragma once
#include "sentence.h"

namespace {

using bcrf::Outputs;

// Where the gradient of one sentence is written.
template <class Score> struct Gradient {
    Score* unary;        // [n][T], or null
    Score* transitions;  // [T][T], or if every_edge [n-1][T][T], or null
    bool every_edge;

    Gradient(const Problem& p, const Outputs& out, int64_t b)
        : every_edge(!p.shared || out.every_edge) {
        const int64_t T = p.num_tags, m = p.n > 0 ? p.n - 1 : 0;
        unary = out.unary_gradient ? static_cast<Score*>(out.unary_gradient) + b * p.n * T : nullptr;
        transitions = out.transition_gradient
                   ? static_cast<Score*>(out.transition_gradient) + b * (every_edge ? m * T * T : T * T)
                   : nullptr;
    }

    // Writes zeros beyond the length, and where expected counts will be summed.
    void clear(const Problem& p, int64_t L) const {
        const int64_t T = p.num_tags, m = p.n > 0 ? p.n - 1 : 0, edges = L > 0 ? L - 1 : 0;
        if (unary) std::memset(unary + L * T, 0, size_t((p.n - L) * T) * sizeof(Score));
        if (transitions && every_edge)
            std::memset(transitions + edges * T * T, 0, size_t((m - edges) * T * T) * sizeof(Score));
        if (transitions && !every_edge) std::memset(transitions, 0, size_t(T * T) * sizeof(Score));
    }

    // Subtracts the indicators of the gold tags and arcs: marginals become the gradient of the loss.
    void subtract(const int64_t* tags, int64_t L, int64_t T) const {
        for (int64_t i = 0; unary && i < L; ++i) unary[i * T + tags[i]] -= Score(1);
        for (int64_t e = 0; transitions && e + 1 < L; ++e)
            transitions[(every_edge ? e * T * T : 0) + tags[e] * T + tags[e + 1]] -= Score(1);
    }
};

// out[t] = a x[t] y[t] for T tags. Nothing is written beyond them: the last vector overlaps the one before it,
// or (T < W) is stored in part.
template <class Real>
BCRF_INLINE void write_products(
    Vec<Real> a, const Real* x, const Real* y, int64_t T, int64_t P, Real* out) {
    constexpr int64_t W = lanes<Real>();
    if (T < W) return store_first(out, T, a * load(x) * load(y));
    for (int64_t j = 0; j + W < P; j += W) store(out + j, a * load(x + j) * load(y + j));
    store(out + T - W, a * load(x + T - W) * load(y + T - W));
}

// out[s][t] = x[s] m[s][t] y[t], rows of T.
template <class Real, class Score>
BCRF_INLINE void write_edge(
    EdgeMatrix<Real> m, int64_t T, int64_t P, const Real* x, const Real* y, Score* out) {
    int64_t s = 0;
    if constexpr (sizeof(Score) == sizeof(Real))
        for (; s < T; ++s) write_products<Real>(splat(x[s]), m.rows + s * m.stride, y, T, P, out + s * T);
    for (; s < T; ++s)
        for (int64_t t = 0; t < T; ++t) out[s * T + t] = Score(x[s] * m.rows[s * m.stride + t] * y[t]);
}

// Clips rounding errors of a quantity that is never negative.
BCRF_INLINE double clamp_rounding(double x) { return x > 0 ? x : 0; }

}  // namespace
