// Forward-backward for one sentence, with tags in the lanes of vectors: A(w), the negative log-likelihood,
// and the marginals.
//
// All arrays are [position][tag] with rows of P tags. Messages are linear weights, not logarithms: each is
// scaled to a maximum near 1, so that one exponential per score suffices. If a message spans more than the
// range of Real, `solve` returns false, and the sentence is solved again: in double precision, then in log space.
//
// Loop order. Shared transitions: forward and backward recursion advance together, from the two ends of the
// sentence, so that each hides the latency of the other; then the marginals. Per-edge transitions: forward over
// the edges, each exponentiated just before its step; then backward, with the marginals of an edge written
// while its matrix is in the cache.
#pragma once
#include "../chain/gradient.h"

namespace {

template <class Score, class Real, int N> class ForwardBackwardByTag {
  public:
    Sentence<Score, Real, N> sentence;
    static constexpr bool kHasBoundedFastPath = true;  // `solve` checks sentence.out_of_bounds()

    ForwardBackwardByTag(const Problem& p, const SharedTransitions<Score, Real>& shared)
        : sentence(p, shared, p.n), T(sentence.T), P(sentence.P) {
        const int64_t rows = (p.n + 1) * P;
        for (Array<Real>* a : {&weight_, &alpha_, &beta_, &after_}) a->allocate(rows);
        for (Array<Real>* a : {&unary_max_, &alpha_max_, &after_max_}) a->allocate(p.n + 1);
        product_.allocate(P);
        terms_.allocate(padded<double>(p.n + 1));
        if (p.shared) total_.allocate(T * P);
    }

    // Computes the value, or with gold tags the loss, and the gradient. Returns false if the range of Real is
    // too small, or a score is outside the bound of the fast path.
    bool solve(const int64_t* tags, Gradient<Score> gradient, double& value) {
        const int64_t L = sentence.L;
        gradient.clear(sentence.problem, L);
        value = 0;
        if (L == 0) return true;
        for (int64_t i = 0; i < L; ++i) exponentiate_unary(i);
        const bool needs_gradient = gradient.unary || gradient.transitions;
        const bool forward = needs_gradient || !tags, backward = needs_gradient || tags;
        Mask<Real> underflow = start();
        if (sentence.problem.shared) {
            for (int64_t j = 0; j + 1 < L; ++j) {
                if (forward) underflow |= forward_step(j);
                if (backward) underflow |= backward_step(L - 2 - j);
            }
            if (!tags) value = log_partition();
            for (int64_t i = 0; needs_gradient && i < L; ++i) finish(i, gradient);
        } else {
            // Exponentials of edge e run between the dependent steps of the recursion. The bound is tested at every
            // 16th edge only, because the test is a reduction.
            for (int64_t e = 0; e < L; ++e) {
                if (e + 1 < L) sentence.exponentiate_edge(e);
                if (forward && e > 0) underflow |= forward_step(e - 1);
                if ((e % 16 == 0 || e + 2 == L) && sentence.out_of_bounds()) return false;
            }
            if (!tags) value = log_partition();
            for (int64_t i = L - 1; backward && i >= 0; --i) {
                if (i > 0) underflow |= backward_step(i - 1);
                if (needs_gradient) finish(i, gradient);
            }
        }
        if (any(underflow)) return false;
        if (tags) value = loss(tags);
        if (gradient.unary) tag_marginals(gradient.unary);
        if (gradient.transitions && !gradient.every_edge) expected_counts(gradient.transitions);
        if (tags) gradient.subtract(tags, L, T);
        return true;
    }

  private:
    static constexpr int64_t W = lanes<Real>();
    const int64_t T;
    const Padding<Real, N> P;
    Array<Real> weight_;  // [n][P]: exp(unary - unary_max)
    Array<Real> alpha_;   // [n][P]: weight of all prefixes that end with a tag; maximum near 1
    Array<Real> beta_;    // [n][P]: weight of all suffixes after a tag, as the product gives it
    Array<Real> after_;   // [n][P]: beta times the weight of the tag itself; maximum near 1
    Array<Real> unary_max_, alpha_max_, after_max_;  // [n]
    Array<Real> product_;   // [P]: forward message before it is weighted
    Array<Real> total_;     // [T][P]: sum of outer products, for expected counts
    Array<double> terms_;   // [n]: factors whose logarithms are summed

    void exponentiate_unary(int64_t i) {
        const Real* u = sentence.unary + i * P;
        const Real max = unary_max_[i] = max_of(u, P);
        for (int64_t j = 0; j < P; j += W) store(weight_ + i * P + j, vexp(load(u + j) - max));
    }

    // Sets the messages at the two ends. Like every step, returns the lanes in which a weight is too small.
    Mask<Real> start() {
        const int64_t last = (sentence.L - 1) * P;
        std::memcpy(alpha_, weight_, size_t(P) * sizeof(Real));
        std::memcpy(after_ + last, weight_ + last, size_t(P) * sizeof(Real));
        alpha_max_[0] = after_max_[sentence.L - 1] = 1;
        return below(weight_, sentence.unary) | below(weight_ + last, sentence.unary + last);
    }

    Mask<Real> below(const Real* x, const Real* u) const {
        Mask<Real> underflow = {};
        for (int64_t j = 0; j < P; j += W)
            underflow |= (load(x + j) < underflow_limit<Real>()) & (load(u + j) > -infinity<Real>());
        return underflow;
    }

    Mask<Real> forward_step(int64_t e) {
        forward_product(sentence.edge_matrix(e), T, P, alpha_ + e * P, +product_);
        return weigh_message(product_, e + 1, alpha_max_[e], alpha_, alpha_max_);
    }

    Mask<Real> backward_step(int64_t e) {
        backward_product(sentence.edge_matrix(e), T, P, after_ + (e + 1) * P, beta_ + e * P);
        return weigh_message(beta_ + e * P, e, after_max_[e + 1], after_, after_max_);
    }

    // out[i] = message * weight[i] / max, where `max` is that of the message before. The maximum of `out` stays
    // near 1, and the recursion does not have to wait for the maximum of this message.
    Mask<Real> weigh_message(const Real* message, int64_t i, Real max, Real* out, Real* maxima) {
        const Real *weight = weight_ + i * P, *u = sentence.unary + i * P;
        const Vec<Real> factor = splat(Real(1) / max);
        Mask<Real> underflow = {};
        Vec<Real> top = {};
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> mass = load(message + j), x = mass * (load(weight + j) * factor);
            store(out + i * P + j, x);
            underflow |= (vmin(mass, x) < underflow_limit<Real>()) & (load(u + j) > -infinity<Real>());
            top = vmax(top, x);
        }
        maxima[i] = hmax(top);
        return underflow;
    }

    double sum_of(const Real* x) const {
        Vec<Real> sum = {};
        for (int64_t j = 0; j < P; j += W) sum += load(x + j);
        return double(hsum(sum));
    }

    double log_partition() {
        const int64_t L = sentence.L;
        double total = double(unary_max_[0]) + log_of(sum_of(alpha_ + (L - 1) * P));
        // Undo the scaling: every message was divided by the maximum of the message before.
        for (int64_t i = 1; i < L; ++i) {
            total += double(unary_max_[i]) + double(sentence.transition_max[i - 1]);
            terms_[i - 1] = double(alpha_max_[i - 1]);
        }
        log_terms(L - 1);
        for (int64_t i = 1; i < L; ++i) total += terms_[i - 1];
        return total;
    }
    void log_terms(int64_t count) {
        for (int64_t k = count; k < padded<double>(count); ++k) terms_[k] = 1;
        for (int64_t k = 0; k < count; k += lanes<double>()) store(terms_ + k, vlog(load(terms_ + k)));
    }

    // -log p(y_0) - sum_e log p(y_{e+1} | y_e). Every term is >= 0, so nothing cancels.
    double loss(const int64_t* tags) {
        const int64_t L = sentence.L;
        terms_[0] = sum_of(after_) / double(after_[tags[0]]);
        for (int64_t e = 0; e + 1 < L; ++e)
            terms_[e + 1] =
                double(beta_[e * P + tags[e]]) / double(after_[(e + 1) * P + tags[e + 1]]);
        log_terms(L);
        double total = clamp_rounding(terms_[0]);
        for (int64_t e = 0; e + 1 < L; ++e) {
            const double score = sentence.arc_score(e, tags[e], tags[e + 1]) - double(sentence.transition_max[e]);
            total += clamp_rounding(terms_[e + 1] - score);
        }
        return total;
    }

    // Scales alpha of position i so that alpha * beta is the marginal of a tag, and writes the marginals of the
    // edge after it if they are asked for edge by edge. `log_partition` must run before: it reads alpha.
    void finish(int64_t i, const Gradient<Score>& gradient) {
        const int64_t L = sentence.L, tags = T;
        Real *alpha = alpha_ + i * P, *beta = beta_ + i * P;
        const Vec<Real> factor = splat(Real(1) / alpha_max_[i]);  // or alpha * beta could underflow
        Vec<Real> sum = {};
        for (int64_t j = 0; j < P; j += W) {
            if (i + 1 == L) store(beta + j, splat(Real(1)));  // the last position has no suffix
            const Vec<Real> x = load(alpha + j) * factor;
            store(alpha + j, x);
            sum += x * load(beta + j);
        }
        const Vec<Real> share = splat(Real(1) / hsum(sum));
        for (int64_t j = 0; j < P; j += W) store(alpha + j, load(alpha + j) * share);
        if (gradient.transitions && gradient.every_edge && i + 1 < L)
            write_edge<Real>(
                sentence.edge_matrix(i), T, P, alpha, after_ + (i + 1) * P, gradient.transitions + i * tags * tags);
    }

    void tag_marginals(Score* out) const {
        const int64_t L = sentence.L, tags = T;
        for (int64_t i = 0; i < L; ++i) {
            const Real *a = alpha_ + i * P, *b = beta_ + i * P;
            int64_t t = 0;
            if constexpr (sizeof(Score) == sizeof(Real))
                write_products<Real>(splat(Real(1)), a, b, t = tags, P, out + i * tags);
            for (; t < tags; ++t) out[i * tags + t] = Score(a[t] * b[t]);
        }
    }

    // The edge marginals, summed over the sentence: (sum_e alpha_e after_{e+1}^T) * exp(transitions), four edges
    // at a time.
    void expected_counts(Score* out) {
        const int64_t m = sentence.L - 1;
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
        const Real* rows = sentence.edge_matrix(0).rows;
        for (int64_t s = 0; m > 0 && s < T; ++s)
            for (int64_t t = 0; t < T; ++t) out[s * T + t] = Score(total_[s * P + t] * rows[s * P + t]);
    }
};

}  // namespace
