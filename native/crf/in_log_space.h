// Forward-backward in log space and double precision, for scores of any range: slow, and never out of range.
// Arrays are [position][tag] with rows of P tags; loop order: backward messages, then marginals forward.
#pragma once
#include "../chain/gradient.h"

namespace {

template <class Score> class ForwardBackwardInLogSpace {
  public:
    Sentence<Score, double, 0> sentence;
    static constexpr bool kHasBoundedFastPath = false;

    ForwardBackwardInLogSpace(const Problem& p, const SharedTransitions<Score, double>& shared)
        : sentence(p, shared, 1), T(sentence.T), P(sentence.P) {
        beta_.allocate((p.n + 1) * P);
        for (Array<double>* a : {&first_, &y_, &here_, &next_, &row_}) a->allocate(P);
    }

    bool solve(const int64_t* tags, Gradient<Score> gradient, double& value) {
        const int64_t L = sentence.L;
        gradient.clear(sentence.problem, L);
        value = 0;
        if (L == 0) return true;
        messages();
        if (tags) {
            value = loss(tags);
        } else {
            std::memcpy(row_, first_, size_t(P) * sizeof(double));
            value = softmax(+row_, P);
        }
        if (gradient.unary || gradient.transitions) marginals(gradient);
        if (tags) gradient.subtract(tags, L, T);
        return true;
    }

  private:
    static constexpr int64_t W = lanes<double>();
    const int64_t T;
    const Padding<double, 0> P;
    Array<double> beta_;   // [n][P]: log weight of all suffixes after a tag
    Array<double> first_;  // [P]: log weight of all paths that begin with a tag
    Array<double> y_, here_, next_, row_;

    void messages() {
        const int64_t L = sentence.L;
        std::memset(beta_ + (L - 1) * P, 0, size_t(P) * sizeof(double));
        for (int64_t e = L - 2; e >= 0; --e) {
            after(e);
            std::memset(beta_ + e * P, 0, size_t(P) * sizeof(double));
            for (int64_t s = 0; s < T; ++s) beta_[e * P + s] = sentence.log_backward_product(e, y_, s);
        }
        for (int64_t j = 0; j < P; j += W) store(first_ + j, load(sentence.unary + j) + load(beta_ + j));
    }
    // Sets y[t] to the log weight of all suffixes that begin with tag t of position e + 1.
    void after(int64_t e) {
        for (int64_t j = 0; j < P; j += W)
            store(y_ + j, load(sentence.unary + (e + 1) * P + j) + load(beta_ + (e + 1) * P + j));
    }

    double loss(const int64_t* tags) {
        std::memcpy(row_, first_, size_t(P) * sizeof(double));
        double total = clamp_rounding(softmax(+row_, P) - first_[tags[0]]);
        for (int64_t e = 0; e + 1 < sentence.L; ++e) {
            after(e);
            const double gold = sentence.arc_score(e, tags[e], tags[e + 1]) + y_[tags[e + 1]];
            total += clamp_rounding(beta_[e * P + tags[e]] - gold);
        }
        return total;
    }

    // From left to right: p(s) p(t | s). The conditional probabilities sum to 1 whatever the rounding errors
    // of the messages are, so the marginals are normalised and consistent at any size of the scores.
    void marginals(const Gradient<Score>& gradient) {
        const int64_t L = sentence.L;
        double *here = here_, *next = next_;
        std::memcpy(here, first_, size_t(P) * sizeof(double));
        softmax(here, P);
        for (int64_t i = 0; i < L; ++i) {
            for (int64_t t = 0; gradient.unary && t < T; ++t) gradient.unary[i * T + t] = Score(here[t]);
            if (i + 1 == L) return;
            after(i);
            std::memset(next, 0, size_t(P) * sizeof(double));
            Score* out = gradient.transitions ? gradient.transitions + (gradient.every_edge ? i * T * T : 0) : nullptr;
            for (int64_t s = 0; s < T; ++s) {
                conditional(i, s, here[s], next);
                for (int64_t t = 0; out && t < T; ++t)
                    out[s * T + t] = gradient.every_edge ? Score(row_[t]) : out[s * T + t] + Score(row_[t]);
            }
            std::swap(here, next);
        }
    }
    // Sets `row_` to the marginals of the arcs from tag s, whose own marginal is p, and adds them to `next`.
    void conditional(int64_t e, int64_t s, double p, double* next) {
        if (p == 0) {  // the tag is removed
            std::memset(row_, 0, size_t(P) * sizeof(double));
            return;
        }
        for (int64_t j = 0; j < P; j += W)
            store(row_ + j, sentence.arc_scores(e, s, j) + load(y_ + j));
        softmax(+row_, P);
        for (int64_t j = 0; j < P; j += W) {
            store(row_ + j, load(row_ + j) * p);
            store(next + j, load(next + j) + load(row_ + j));
        }
    }
};

}  // namespace
