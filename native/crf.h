// The linear-chain CRF: A(w), the negative log-likelihood, and the marginals, by forward-backward.
//
// Messages are numbers, not logarithms: each is scaled to a maximum of 1, so one exponential per
// score is all it takes. Where a message spans more than the range of numbers, `solve` gives up and
// the sentence is done again: in double precision, then by logarithms.
#pragma once
#include "chain.h"

namespace {

using bcrf::Outputs;

// The gradient of a sentence: where its rows are in the output tensors.
template <class In> struct Gradient {
    In* unary;       // [n, T] or null
    In* pair;        // [T, T] or [n-1, T, T] or null
    bool every_edge; // the latter

    Gradient(const Problem& p, const Outputs& out, int64_t b)
        : every_edge(!p.shared || out.every_edge) {
        const int64_t T = p.tags, m = p.n > 0 ? p.n - 1 : 0;
        unary = out.unary_gradient ? static_cast<In*>(out.unary_gradient) + b * p.n * T : nullptr;
        pair = out.pair_gradient
                   ? static_cast<In*>(out.pair_gradient) + b * (every_edge ? m * T * T : T * T)
                   : nullptr;
    }

    // Zeros beyond the length, and in all that is added up.
    void clear(const Problem& p, int64_t L) const {
        const int64_t T = p.tags, m = p.n > 0 ? p.n - 1 : 0, edges = L > 0 ? L - 1 : 0;
        if (unary) std::memset(unary + L * T, 0, size_t((p.n - L) * T) * sizeof(In));
        if (pair && every_edge)
            std::memset(pair + edges * T * T, 0, size_t((m - edges) * T * T) * sizeof(In));
        if (pair && !every_edge) std::memset(pair, 0, size_t(T * T) * sizeof(In));
    }

    // Takes the gold sequence away from the marginals.
    void subtract(const int64_t* tags, int64_t L, int64_t T) const {
        for (int64_t i = 0; unary && i < L; ++i) unary[i * T + tags[i]] -= In(1);
        for (int64_t e = 0; pair && e + 1 < L; ++e)
            pair[(every_edge ? e * T * T : 0) + tags[e] * T + tags[e + 1]] -= In(1);
    }
};

// out[t] = a x[t] y[t] for T tags, of the P that they are padded to. Nothing beyond is touched: the last
// vector ends where they end, or is stored in part.
template <class Real>
BCRF_INLINE void write_products(
    Vec<Real> a, const Real* x, const Real* y, int64_t T, int64_t P, Real* out) {
    constexpr int64_t W = lanes<Real>();
    if (T < W) return store_some(out, T, a * load(x) * load(y));
    for (int64_t j = 0; j + W < P; j += W) store(out + j, a * load(x + j) * load(y + j));
    store(out + T - W, a * load(x + T - W) * load(y + T - W));
}

// out[s, t] = x[s] m[s, t] y[t], without padding.
template <class Real, class In>
BCRF_INLINE void write_edge(
    Matrix<Real> m, int64_t T, int64_t P, const Real* x, const Real* y, In* out) {
    int64_t s = 0;
    if constexpr (sizeof(In) == sizeof(Real))
        for (; s < T; ++s) write_products<Real>(splat(x[s]), m.rows + s * m.by, y, T, P, out + s * T);
    for (; s < T; ++s)
        for (int64_t t = 0; t < T; ++t) out[s * T + t] = In(x[s] * m.rows[s * m.by + t] * y[t]);
}

BCRF_INLINE double positive(double x) { return x > 0 ? x : 0; }

template <class In, class Real, int N> class ForwardBackward {
  public:
    Chain<In, Real, N> chain;
    static constexpr bool kHasty = true;  // `solve` asks whether the chain has strayed

    ForwardBackward(const Problem& p, const SharedPairs<In, Real>& shared)
        : chain(p, shared, p.n), T(chain.T), P(chain.P) {
        const int64_t rows = (p.n + 1) * P;
        for (Array<Real>* a : {&weight_, &alpha_, &beta_, &after_}) a->allocate(rows);
        for (Array<Real>* a : {&peak_, &before_, &after_scale_}) a->allocate(p.n + 1);
        product_.allocate(P);
        terms_.allocate(padded<double>(p.n + 1));
        if (p.shared) total_.allocate(T * P);
    }

    // The value, or with tags the loss, and the gradient; false if the range of Real is too small.
    bool solve(const int64_t* tags, Gradient<In> gradient, double& value) {
        const int64_t L = chain.L;
        gradient.clear(chain.problem, L);
        value = 0;
        if (L == 0) return true;
        for (int64_t i = 0; i < L; ++i) weigh(i);
        const bool slopes = gradient.unary || gradient.pair;
        const bool forward = slopes || !tags, backward = slopes || tags;
        Mask<Real> low = start();
        if (chain.problem.shared) {
            // From the two ends at the same time: each recursion hides the other's latency.
            for (int64_t j = 0; j + 1 < L; ++j) {
                if (forward) low |= forward_step(j);
                if (backward) low |= backward_step(L - 2 - j);
            }
            if (!tags) value = log_partition();
            for (int64_t i = 0; slopes && i < L; ++i) finish(i, gradient);
        } else {
            // All that is done with an edge at a time, while it is in the nearest cache; what a
            // recursion does not wait for comes between its steps.
            for (int64_t e = 0; e < L; ++e) {
                if (e + 1 < L) chain.enter(e);
                if (forward && e > 0) low |= forward_step(e - 1);
                if ((e % 16 == 0 || e + 2 == L) && chain.strayed()) return false;
            }
            if (!tags) value = log_partition();
            for (int64_t i = L - 1; backward && i >= 0; --i) {
                if (i > 0) low |= backward_step(i - 1);
                if (slopes) finish(i, gradient);
            }
        }
        if (any(low)) return false;
        if (tags) value = loss(tags);
        if (gradient.unary) tag_marginals(gradient.unary);
        if (gradient.pair && !gradient.every_edge) expected_counts(gradient.pair);
        if (tags) gradient.subtract(tags, L, T);
        return true;
    }

  private:
    static constexpr int64_t W = lanes<Real>();
    const int64_t T;
    const Padding<Real, N> P;
    Array<Real> weight_;  // exp(unary - peak)
    Array<Real> alpha_;   // weight of all beginnings up to a tag, it included; maximum near 1
    Array<Real> beta_;    // weight of all ends after a tag, as the matrix product gives it
    Array<Real> after_;   // beta times the tag's own weight, its maximum near 1
    Array<Real> peak_;    // of the unary scores of a position
    Array<Real> before_, after_scale_;  // maxima of alpha and after
    Array<Real> product_, total_;
    Array<double> terms_;

    void weigh(int64_t i) {
        const Real* u = chain.nodes + i * P;
        const Real peak = peak_[i] = peak_of(u, P);
        for (int64_t j = 0; j < P; j += W) store(weight_ + i * P + j, vexp(load(u + j) - peak));
    }

    // The messages at the two ends. Like all that makes one, tells what is too small for a number.
    Mask<Real> start() {
        const int64_t last = (chain.L - 1) * P;
        std::memcpy(alpha_, weight_, size_t(P) * sizeof(Real));
        std::memcpy(after_ + last, weight_ + last, size_t(P) * sizeof(Real));
        before_[0] = after_scale_[chain.L - 1] = 1;
        return below(weight_, chain.nodes) | below(weight_ + last, chain.nodes + last);
    }

    Mask<Real> below(const Real* x, const Real* u) const {
        Mask<Real> low = {};
        for (int64_t j = 0; j < P; j += W)
            low |= (load(x + j) < safe<Real>()) & (load(u + j) > -infinity<Real>());
        return low;
    }

    Mask<Real> forward_step(int64_t e) {
        arriving(chain.edge(e), T, P, alpha_ + e * P, +product_);
        return weigh_message(product_, e + 1, before_[e], alpha_, before_);
    }

    Mask<Real> backward_step(int64_t e) {
        departing(chain.edge(e), T, P, after_ + (e + 1) * P, beta_ + e * P);
        return weigh_message(beta_ + e * P, e, after_scale_[e + 1], after_, after_scale_);
    }

    // out[i] = message * weight[i] / peak, `peak` being that of the message before: the maximum
    // stays near 1, and the recursion does not have to wait for it.
    Mask<Real> weigh_message(const Real* message, int64_t i, Real peak, Real* out, Real* peaks) {
        const Real *weight = weight_ + i * P, *u = chain.nodes + i * P;
        const Vec<Real> factor = splat(Real(1) / peak);
        Mask<Real> low = {};
        Vec<Real> top = {};
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> mass = load(message + j), x = mass * (load(weight + j) * factor);
            store(out + i * P + j, x);
            low |= (vmin(mass, x) < safe<Real>()) & (load(u + j) > -infinity<Real>());
            top = vmax(top, x);
        }
        peaks[i] = hmax(top);
        return low;
    }

    double sum_of(const Real* x) const {
        Vec<Real> sum = {};
        for (int64_t j = 0; j < P; j += W) sum += load(x + j);
        return double(hsum(sum));
    }

    double log_partition() {
        const int64_t L = chain.L;
        double total = double(peak_[0]) + log_of(sum_of(alpha_ + (L - 1) * P));
        // Every message was divided by the maximum of the one before.
        for (int64_t i = 1; i < L; ++i) {
            total += double(peak_[i]) + double(chain.peaks[i - 1]);
            terms_[i - 1] = double(before_[i - 1]);
        }
        log_terms(L - 1);
        for (int64_t i = 1; i < L; ++i) total += terms_[i - 1];
        return total;
    }
    void log_terms(int64_t count) {
        for (int64_t k = count; k < padded<double>(count); ++k) terms_[k] = 1;
        for (int64_t k = 0; k < count; k += lanes<double>()) store(terms_ + k, vlog(load(terms_ + k)));
    }

    // -log p(y_0) - sum_e log p(y_{e+1} | y_e), every term >= 0: nothing cancels.
    double loss(const int64_t* tags) {
        const int64_t L = chain.L;
        terms_[0] = sum_of(after_) / double(after_[tags[0]]);
        for (int64_t e = 0; e + 1 < L; ++e)
            terms_[e + 1] =
                double(beta_[e * P + tags[e]]) / double(after_[(e + 1) * P + tags[e + 1]]);
        log_terms(L);
        double total = positive(terms_[0]);
        for (int64_t e = 0; e + 1 < L; ++e) {
            const double pair = chain.raw_score(e, tags[e], tags[e + 1]) - double(chain.peaks[e]);
            total += positive(terms_[e + 1] - pair);
        }
        return total;
    }

    // After `log_partition`: scales alpha of position i so that alpha beta is the marginal of a tag.
    // Writes the marginals of the edge after it, if every edge has some.
    void finish(int64_t i, const Gradient<In>& gradient) {
        const int64_t L = chain.L, tags = T;
        Real *alpha = alpha_ + i * P, *beta = beta_ + i * P;
        const Vec<Real> factor = splat(Real(1) / before_[i]);  // or alpha beta could underflow
        Vec<Real> sum = {};
        for (int64_t j = 0; j < P; j += W) {
            if (i + 1 == L) store(beta + j, splat(Real(1)));  // nothing comes after
            const Vec<Real> x = load(alpha + j) * factor;
            store(alpha + j, x);
            sum += x * load(beta + j);
        }
        const Vec<Real> share = splat(Real(1) / hsum(sum));
        for (int64_t j = 0; j < P; j += W) store(alpha + j, load(alpha + j) * share);
        if (gradient.pair && gradient.every_edge && i + 1 < L)
            write_edge<Real>(
                chain.edge(i), T, P, alpha, after_ + (i + 1) * P, gradient.pair + i * tags * tags);
    }

    void tag_marginals(In* out) const {
        const int64_t L = chain.L, tags = T;
        for (int64_t i = 0; i < L; ++i) {
            const Real *a = alpha_ + i * P, *b = beta_ + i * P;
            int64_t t = 0;
            if constexpr (sizeof(In) == sizeof(Real))
                write_products<Real>(splat(Real(1)), a, b, t = tags, P, out + i * tags);
            for (; t < tags; ++t) out[i * tags + t] = In(a[t] * b[t]);
        }
    }

    // The edge marginals, added up over the sentence.
    void expected_counts(In* out) {
        const int64_t m = chain.L - 1;
        std::memset(total_, 0, size_t(T * P) * sizeof(Real));
        const Real *x[4], *y[4];
        for (int64_t e = 0; e < m; e += 4) {
            const int64_t count = m - e < 4 ? m - e : 4;
            for (int64_t k = 0; k < count; ++k) {
                x[k] = alpha_ + (e + k) * P;
                y[k] = after_ + (e + k + 1) * P;
            }
            add_outer<Real>(total_, T, P, x, y, count);
        }
        const Real* rows = chain.edge(0).rows;
        for (int64_t s = 0; m > 0 && s < T; ++s)
            for (int64_t t = 0; t < T; ++t) out[s * T + t] = In(total_[s * P + t] * rows[s * P + t]);
    }
};

// The same by logarithms, for scores of any range: slow, and always right.
template <class In> class LogForwardBackward {
  public:
    Chain<In, double, 0> chain;
    static constexpr bool kHasty = false;

    LogForwardBackward(const Problem& p, const SharedPairs<In, double>& shared)
        : chain(p, shared, 1), T(chain.T), P(chain.P) {
        beta_.allocate((p.n + 1) * P);
        for (Array<double>* a : {&first_, &y_, &here_, &next_, &row_}) a->allocate(P);
    }

    bool solve(const int64_t* tags, Gradient<In> gradient, double& value) {
        const int64_t L = chain.L;
        gradient.clear(chain.problem, L);
        value = 0;
        if (L == 0) return true;
        messages();
        if (tags) {
            value = loss(tags);
        } else {
            std::memcpy(row_, first_, size_t(P) * sizeof(double));
            value = softmax(+row_, P);
        }
        if (gradient.unary || gradient.pair) marginals(gradient);
        if (tags) gradient.subtract(tags, L, T);
        return true;
    }

  private:
    static constexpr int64_t W = lanes<double>();
    const int64_t T;
    const Padding<double, 0> P;
    Array<double> beta_;   // log weight of all ends after a tag
    Array<double> first_;  // log weight of all paths that begin with a tag
    Array<double> y_, here_, next_, row_;

    void messages() {
        const int64_t L = chain.L;
        std::memset(beta_ + (L - 1) * P, 0, size_t(P) * sizeof(double));
        for (int64_t e = L - 2; e >= 0; --e) {
            after(e);
            std::memset(beta_ + e * P, 0, size_t(P) * sizeof(double));
            for (int64_t s = 0; s < T; ++s) beta_[e * P + s] = chain.log_departing(e, y_, s);
        }
        for (int64_t j = 0; j < P; j += W) store(first_ + j, load(chain.nodes + j) + load(beta_ + j));
    }
    // y = log weight of what follows edge e, by the tag where it arrives.
    void after(int64_t e) {
        for (int64_t j = 0; j < P; j += W)
            store(y_ + j, load(chain.nodes + (e + 1) * P + j) + load(beta_ + (e + 1) * P + j));
    }

    double loss(const int64_t* tags) {
        std::memcpy(row_, first_, size_t(P) * sizeof(double));
        double total = positive(softmax(+row_, P) - first_[tags[0]]);
        for (int64_t e = 0; e + 1 < chain.L; ++e) {
            after(e);
            const double gold = chain.raw_score(e, tags[e], tags[e + 1]) + y_[tags[e + 1]];
            total += positive(beta_[e * P + tags[e]] - gold);
        }
        return total;
    }

    // From left to right: the probability of a tag times those of the next one given that tag, which sum
    // to 1 whatever rounding has done to the messages. So mass and flow are right at any size of them.
    void marginals(const Gradient<In>& gradient) {
        const int64_t L = chain.L;
        double *here = here_, *next = next_;
        std::memcpy(here, first_, size_t(P) * sizeof(double));
        softmax(here, P);
        for (int64_t i = 0; i < L; ++i) {
            for (int64_t t = 0; gradient.unary && t < T; ++t) gradient.unary[i * T + t] = In(here[t]);
            if (i + 1 == L) return;
            after(i);
            std::memset(next, 0, size_t(P) * sizeof(double));
            In* pair = gradient.pair ? gradient.pair + (gradient.every_edge ? i * T * T : 0) : nullptr;
            for (int64_t s = 0; s < T; ++s) {
                conditional(i, s, here[s], next);
                for (int64_t t = 0; pair && t < T; ++t)
                    pair[s * T + t] = gradient.every_edge ? In(row_[t]) : pair[s * T + t] + In(row_[t]);
            }
            std::swap(here, next);
        }
    }
    // The probabilities of the arcs from tag s, which has probability p; adds them to `next`.
    void conditional(int64_t e, int64_t s, double p, double* next) {
        if (p == 0) {  // a dead tag has nowhere to go
            std::memset(row_, 0, size_t(P) * sizeof(double));
            return;
        }
        for (int64_t j = 0; j < P; j += W)
            store(row_ + j, chain.scores(e, s, j) + load(y_ + j));
        softmax(+row_, P);
        for (int64_t j = 0; j < P; j += W) {
            store(row_ + j, load(row_ + j) * p);
            store(next + j, load(next + j) + load(row_ + j));
        }
    }
};

}  // namespace
