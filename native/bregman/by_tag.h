// Bregman projections for one sentence, with tags in the lanes of vectors: block coordinate descent on the dual
// D(lam), its value, and the edge and tag marginals. Handles scores of any range.
//
// Arrays are [position][tag] with rows of P tags. The state is lam, and two vectors of weights per position,
//     leaving[i]  = exp(share[i] - lam[i]),      entering[i] = exp(share[i] + lam[i]),
// each scaled to a maximum of 1. share[i] is the part of the unary score that is folded into the arcs on either
// side: half of it, at the two ends all of it. A projection is two products with the exponentiated transitions;
// positions whose messages underflow are projected in log space.
#pragma once
#include "sentence_outputs.h"

#include <utility>

namespace {

template <class Score, class Real> class BregmanByTag {
  public:
    Sentence<Score, Real, 0> sentence;
    static constexpr bool kHasBoundedFastPath = false;

    BregmanByTag(const Problem& p, const SharedTransitions<Score, Real>& shared, const Projections& settings)
        : sentence(p, shared, window(p, settings)), T(sentence.T), P(sentence.P), settings_(settings) {
        const int64_t rows = (p.n + 1) * P;
        for (Array<Real>* a : {&lam_, &leaving_, &entering_}) a->allocate(rows);
        for (Array<Real>* a : {&leaving_max_, &entering_max_}) a->allocate(p.n + 1);
        for (Array<Real>* a : {&alpha_, &beta_, &ratio_}) a->allocate(P);
        for (Array<Real>* a : {&x_, &y_}) a->allocate(P);
        q_.allocate(T * P);
        for (Array<double>* a : {&row_, &column_}) a->allocate(P);
        rows_.allocate(4 * P);
        incoming_ = rows_, outgoing_ = incoming_ + P, next_incoming_ = outgoing_ + P, mean_ = next_incoming_ + P;
        if (p.shared) total_.allocate(T * P);
    }

    // Folds the unary scores into the arcs and sets lam. `given`: [n][T] or null.
    void start(const Score* given) {
        const int64_t L = sentence.L;
        share_ = sentence.unary;
        if (sentence.problem.unary)
            for (int64_t k = P; k < (L - 1) * P; ++k) sentence.unary[k] *= Real(0.5);
        std::memset(lam_, 0, size_t(L * P) * sizeof(Real));
        for (int64_t i = 1; i + 1 < L && (given || settings_.gauge_right); ++i)
            for (int64_t t = 0; t < T; ++t) {
                const Real score = share_[i * P + t];
                if (score == -infinity<Real>()) continue;
                lam_[i * P + t] = given ? Real(given[i * T + t]) : score;
            }
        for (int64_t i = 0; i < L; ++i) update_weights(i);
    }

    // Runs the steps k0 .. k1 - 1. Step k of position i needs step k - 1 of its neighbours. Loop order: fronts p, and
    // on a front all pairs (i, k) with i + k = p; the earlier fronts have made the steps that these need. So an edge
    // is read, used by all steps, and finished while it is in the cache.
    // `enter(e)` is called before the first step that reads edge e, and
    // `leave(e)` after the last.
    template <class Enter, class Leave>
    void sweep(int64_t k0, int64_t k1, Enter enter, Leave leave) {
        const int64_t m = sentence.L - 1, reach = k1 - k0 - 1;
        int64_t entered = 0, finished = 0;
        for (int64_t p = (settings_.first + k0) % 2 ? 1 : 2; k0 < k1 && p - reach < m; p += 2) {
            for (; entered <= p && entered < m; ++entered) enter(entered);
            const int64_t skipped = p < m ? 0 : p - m + 1;  // steps whose position is beyond the sentence
            for (int64_t k = k0 + skipped, i = p - skipped; k < k1 && i >= 1; ++k, --i)
                project(i, Real(settings_.omegas[k]));
            for (; finished < p - reach && finished < m; ++finished) leave(finished);
        }
        for (; finished < m; ++finished) {
            for (; entered <= finished; ++entered) enter(entered);
            leave(finished);
        }
    }

    void sweep(int64_t k0, int64_t k1) {
        const auto nothing = [](int64_t) {};
        sweep(k0, k1, nothing, nothing);
    }
    bool out_of_range() const { return false; }

    // Runs step by step until the residual is within the tolerance after a step with omega = 1.
    void run_to_tolerance() {
        const int64_t m = sentence.L - 1;
        Real omega = 1;
        for (int64_t k = 0; k < settings_.iterations; ++k) {
            const bool close = residual() <= settings_.tolerance;
            if (close && omega == 1) return;
            omega = close || k == settings_.iterations - 1 ? Real(1) : Real(settings_.omegas[k]);
            for (int64_t i = (settings_.first + k) % 2 ? 1 : 2; i < m; i += 2) project(i, omega);
        }
    }

    // Runs the projections and writes what is requested. The value is D(lam), with gold tags the loss.
    bool solve(const int64_t* tags, const SentenceOutputs<Score>& outputs, double& value, double& residual) {
        const int64_t L = sentence.L, m = L - 1;
        begin(outputs);
        value = residual = 0;
        if (L == 0) return true;
        if (L == 1) return solve_single_position(tags, outputs, value);
        auto enter = [&](int64_t e) { sentence.exponentiate_edge(e); };
        auto leave = [&](int64_t e) { value += finish_edge(e, tags, outputs, residual); };
        if (settings_.tolerance < 0) {
            sweep(0, settings_.iterations, enter, leave);
        } else {
            for (int64_t e = 0; e < m; ++e) enter(e);
            run_to_tolerance();
            for (int64_t e = 0; e < m; ++e) leave(e);
        }
        flush_counts(outputs);
        if (tags) outputs.gradient.subtract(tags, L, T);
        return true;
    }

    void write_dual(Score* out) const {
        std::memset(out, 0, size_t(sentence.problem.n * T) * sizeof(Score));
        for (int64_t i = 1; i + 1 < sentence.L; ++i)
            write_centred_dual(
                duals(i), T, [&](int64_t t) { return shares(i)[t] == -infinity<Real>(); }, out + i * T);
    }

    // The interface of certified decoding: call `exponentiate_all`, then `sweep` several times.
    void exponentiate_all() {
        for (int64_t e = 0; e + 1 < sentence.L; ++e) sentence.exponentiate_edge(e);
    }
    // A cheap test whether the best arcs of all edges may form a path. This solver has none.
    static constexpr bool may_form_path() { return true; }
    // Makes lam available to `duals`.
    void write_back_dual() {}
    // lam and the unary shares of a position, [P]; a removed tag has the share -inf.
    const Real* duals(int64_t i) const { return lam_ + i * P; }
    const Real* shares(int64_t i) const { return share_ + i * P; }

  private:
    static constexpr int64_t W = lanes<Real>();
    const int64_t T;
    const int64_t P;
    const Projections& settings_;
    Real* share_ = nullptr;                          // [n][P]: in sentence.unary
    Array<Real> lam_, leaving_, entering_;           // [n][P]
    Array<Real> leaving_max_, entering_max_;         // [n]: logs of the scales of leaving and entering
    Array<Real> alpha_, beta_, ratio_, x_, y_;       // [P]: messages of one position or edge
    Array<double> q_, row_, column_;                 // [T][P], [P], [P]: see sum_edge_in_log_space
    double sum_ = 1;                                 // sum of q_
    Array<Real> rows_;                               // [4][P]: holds the following rows
    Real *incoming_, *outgoing_, *next_incoming_, *mean_;  // marginals of one position
    bool precise_ = true, precise_before_ = true;    // sum >= kPreciseSum on the edges after and before it
    Array<Real> total_;                              // [T][P]: sum of outer products, for expected counts
    const Real *x4_[4], *y4_[4];                     // factors of outer products that are not in total_ yet
    int64_t pending_ = 0;

    // How many edges are needed at the same time. Several sweeps need all edges, a single sweep those between the
    // first and the last front.
    static int64_t window(const Problem& p, const Projections& settings) {
        if (settings.tolerance >= 0 || settings.several_sweeps) return p.n;
        return settings.iterations + 2;
    }

    // Recomputes the weights of position i after a change of lam.
    void update_weights(int64_t i) {
        const Real *lam = lam_ + i * P, *share = share_ + i * P;
        Real *leaving = leaving_ + i * P, *entering = entering_ + i * P;
        Vec<Real> leaving_max = splat(-infinity<Real>()), entering_max = leaving_max;
        for (int64_t j = 0; j < P; j += W) {
            leaving_max = vmax(leaving_max, load(share + j) - load(lam + j));
            entering_max = vmax(entering_max, load(share + j) + load(lam + j));
        }
        const Real a = leaving_max_[i] = hmax(leaving_max);
        const Real b = entering_max_[i] = hmax(entering_max);
        for (int64_t j = 0; j < P; j += W) {
            store(leaving + j, vexp(load(share + j) - load(lam + j) - a));
            store(entering + j, vexp(load(share + j) + load(lam + j) - b));
        }
    }

    // lam[i] <- lam[i] + omega (new - lam[i]) with new = (log beta - log alpha) / 2.
    void project(int64_t i, Real omega) {
        forward_product<Real>(sentence.edge_matrix(i - 1), T, P, leaving_ + (i - 1) * P, +alpha_);
        backward_product<Real>(sentence.edge_matrix(i), T, P, entering_ + (i + 1) * P, +beta_);
        if (__builtin_expect(underflows(alpha_, beta_, share_ + i * P), 0)) {
            for (int64_t j = 0; j < P; j += W)
                store(ratio_ + j, log_backward_product(i, j) - log_forward_product(i - 1, j));
        } else {
            for (int64_t j = 0; j < P; j += W) store(ratio_ + j, vlog(load(beta_ + j) / load(alpha_ + j)));
        }
        Real* lam = lam_ + i * P;
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> old = load(lam + j), moved = old + omega * (load(ratio_ + j) * Real(0.5) - old);
            store(lam + j, load(share_ + i * P + j) > -infinity<Real>() ? moved : Vec<Real>{});
        }
        update_weights(i);
    }

    BCRF_INLINE_MEMBER bool underflows(const Real* alpha, const Real* beta, const Real* share) const {
        Mask<Real> underflow = {};
        for (int64_t j = 0; j < P; j += W)
            underflow |= (vmin(load(alpha + j), load(beta + j)) < underflow_limit<Real>()) &
                         (load(share + j) > -infinity<Real>());
        return any(underflow);
    }

    // Logs of the messages of edge e for the tags j .. j + W - 1, scaled as the products are.
    Vec<Real> log_forward_product(int64_t e, int64_t j) {
        for (int64_t k = 0; k < P; k += W)
            store(x_ + k, load(share_ + e * P + k) - load(lam_ + e * P + k));
        return sentence.log_forward_product(e, x_, j) - (leaving_max_[e] + sentence.transition_max[e]);
    }
    Vec<Real> log_backward_product(int64_t e, int64_t j) {
        const int64_t next = (e + 1) * P;
        for (int64_t k = 0; k < P; k += W) store(y_ + k, load(share_ + next + k) + load(lam_ + next + k));
        Real lane[W];
        for (int64_t k = 0; k < W; ++k)
            lane[k] = j + k < T ? sentence.log_backward_product(e, y_, j + k) : -infinity<Real>();
        return load<Real>(lane) - (entering_max_[e + 1] + sentence.transition_max[e]);
    }

    // Computes the marginals of the arcs of edge e, summed by the tag that they leave (`outgoing_`) and by the tag
    // that they enter (`next_incoming_`); returns the log of the sum over all arcs. Linear products suffice unless
    // every arc between likely tags is very unlikely: then `in_log_space` is set.
    double sum_edge(int64_t e, bool& in_log_space) {
        const Real *from = leaving_ + e * P, *to = entering_ + (e + 1) * P;
        const double base =
            double(leaving_max_[e]) + double(entering_max_[e + 1]) + double(sentence.transition_max[e]);
        forward_product<Real>(sentence.edge_matrix(e), T, P, from, alpha_);
        backward_product<Real>(sentence.edge_matrix(e), T, P, to, beta_);
        const Real sum = dot<Real>(from, beta_, P);
        in_log_space = !(sum >= underflow_limit<Real>());
        precise_before_ = precise_;
        precise_ = in_log_space || sum >= kPreciseSum<Real>;
        if (in_log_space) return sum_edge_in_log_space(e);
        const Vec<Real> factor = splat(Real(1) / sum);
        for (int64_t j = 0; j < P; j += W) {
            store(outgoing_ + j, load(from + j) * load(beta_ + j) * factor);
            store(next_incoming_ + j, load(to + j) * load(alpha_ + j) * factor);
        }
        return log_of(double(sum)) + base;
    }
    // The same from the scores of all arcs, in double precision. `q_` receives the arc marginals times `sum_`.
    // Separate log messages would carry rounding errors of the size of the scores and not sum to 1; here every
    // weight is divided by the sum of the very weights that were computed.
    double sum_edge_in_log_space(int64_t e) {
        constexpr int64_t V = lanes<double>();
        const int64_t here = e * P, there = here + P, stride = padded<double>(T);
        for (int64_t j = 0; j < stride; j += V)  // -inf beyond T
            store(column_ + j, load_as(share_ + there + j, 0.0) + load_as(lam_ + there + j, 0.0));
        Vec<double> most = splat(-infinity<double>());
        for (int64_t s = 0; s < T; ++s) {
            const double left = double(share_[here + s]) - double(lam_[here + s]);
            for (int64_t j = 0; j < stride; j += V) {
                const Vec<double> score = left + sentence.arc_scores(e, s, j) + load(column_ + j);
                store(q_ + s * stride + j, score);
                most = vmax(most, score);
            }
        }
        const double max = hmax(most);
        double total = 0;
        for (int64_t j = 0; j < P; j += V) store(column_ + j, Vec<double>{});
        for (int64_t s = 0; s < T; ++s) {
            Vec<double> row = {};
            for (int64_t j = 0; j < stride; j += V) {
                const Vec<double> mass = vexp(load(q_ + s * stride + j) - max);
                store(q_ + s * stride + j, mass);
                store(column_ + j, load(column_ + j) + mass);
                row += mass;
            }
            row_[s] = hsum(row);
            total += row_[s];
        }
        const double factor = 1 / total;
        for (int64_t t = 0; t < P; ++t) {
            outgoing_[t] = t < T ? Real(row_[t] * factor) : Real(0);
            next_incoming_[t] = Real(column_[t] * factor);
        }
        sum_ = total;
        return max + log_of(total);
    }

    // Moves to the next position: its incoming marginals are known.
    void advance() {
        std::swap(incoming_, next_incoming_);
    }

    // max |incoming - outgoing| over all positions and tags.
    double residual() {
        double residual = 0;
        bool in_log_space;
        for (int64_t e = 0; e + 1 < sentence.L; ++e) {
            sum_edge(e, in_log_space);
            if (e > 0) residual = max_residual(residual);
            advance();
        }
        return residual;
    }
    // The larger of `residual` and that of the current position.
    double max_residual(double residual) const {
        Vec<Real> most = {};
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> difference = load(incoming_ + j) - load(outgoing_ + j);
            most = vmax(most, vmax(difference, -difference));
        }
        const double found = double(hmax(most));
        return found > residual ? found : residual;
    }

    void begin(const SentenceOutputs<Score>& outputs) {
        outputs.clear(sentence.problem, sentence.L);
        pending_ = 0;
        if (outputs.gradient.transitions && !outputs.gradient.every_edge)
            std::memset(total_, 0, size_t(T * P) * sizeof(Real));
    }

    bool solve_single_position(const int64_t* tags, const SentenceOutputs<Score>& outputs, double& value) {
        std::memcpy(outgoing_, sentence.unary, size_t(P) * sizeof(Real));
        value = softmax(outgoing_, P);
        if (tags) value = clamp_rounding(value - double(sentence.unary[tags[0]]));
        write_position(0, outgoing_, outgoing_, outputs);
        if (tags) outputs.gradient.subtract(tags, 1, T);
        return true;
    }

    // Writes what is requested of edge e and of position e (and e + 1, if that is the last one); lam is final there.
    // Returns what the edge contributes to the value.
    double finish_edge(int64_t e, const int64_t* tags, const SentenceOutputs<Score>& outputs, double& residual) {
        bool in_log_space;
        const double log_sum = sum_edge(e, in_log_space);
        const double value = tags ? clamp_rounding(log_sum - gold(e, tags[e], tags[e + 1])) : log_sum;
        if (e > 0) residual = max_residual(residual);
        write_position(e, e > 0 ? incoming_ : outgoing_, outgoing_, outputs);
        if (outputs.gradient.transitions) write_arcs(e, in_log_space, outputs.gradient);
        advance();
        if (e + 2 == sentence.L) write_position(e + 1, incoming_, incoming_, outputs);
        return value;
    }

    // The reduced score of a gold arc.
    double gold(int64_t e, int64_t s, int64_t t) const {
        const int64_t from = e * P + s, to = (e + 1) * P + t;
        return (double(share_[from]) - double(lam_[from])) + sentence.arc_score(e, s, t) +
               (double(share_[to]) + double(lam_[to]));
    }

    void write_position(int64_t i, const Real* in, const Real* out, const SentenceOutputs<Score>& outputs) {
        if (outputs.gradient.unary)
            for (int64_t t = 0; t < T; ++t)
                outputs.gradient.unary[i * T + t] = Score((in[t] + out[t]) * Real(0.5));
        if (!outputs.marginals && !outputs.best_tags) return;
        const Real* p = out;
        if (in != out && !outputs.outgoing_marginals) p = mean(i, in, out);
        if (outputs.marginals)
            for (int64_t t = 0; t < T; ++t) outputs.marginals[i * T + t] = Score(p[t]);
        if (outputs.best_tags) {
            int64_t top = 0;
            for (int64_t t = 1; t < T; ++t)
                if (p[t] > p[top]) top = t;
            outputs.best_tags[i] = top;
        }
    }

    // The normalised geometric mean of incoming and outgoing marginals.
    const Real* mean(int64_t i, const Real* in, const Real* out) {
        Vec<Real> sum = {};
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> root = vsqrt(load(in + j)) * vsqrt(load(out + j));
            store(mean_ + j, root);
            sum += root;
        }
        const Real total = hsum(sum);
        if (total > kSmallOverlap<Real> && precise_before_ && precise_) {
            for (int64_t j = 0; j < P; j += W) store(mean_ + j, load(mean_ + j) * (Real(1) / total));
            return mean_;
        }
        // The two distributions hardly overlap, and what is left may have underflowed: compute it in log space.
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> both = log_forward_product(i - 1, j) + log_backward_product(i, j);
            store(mean_ + j, both * Real(0.5) + load(share_ + i * P + j));
        }
        softmax(mean_, P);
        return mean_;
    }

    // Writes the arc marginals of an edge, or adds them to the expected counts.
    void write_arcs(int64_t e, bool in_log_space, const Gradient<Score>& gradient) {
        Score* target = gradient.transitions + (gradient.every_edge ? e * T * T : 0);
        if (in_log_space) {
            const int64_t stride = padded<double>(T);
            for (int64_t s = 0; s < T; ++s)
                for (int64_t t = 0; t < T; ++t) {
                    const Score q = Score(q_[s * stride + t] / sum_);
                    target[s * T + t] = gradient.every_edge ? q : target[s * T + t] + q;
                }
            return;
        }
        Real* x = leaving_ + e * P;  // not needed after this edge
        const Real sum = dot<Real>(x, beta_, P);
        for (int64_t j = 0; j < P; j += W) store(x + j, load(x + j) * (Real(1) / sum));
        if (gradient.every_edge) {
            write_edge<Real>(sentence.edge_matrix(e), T, P, x, entering_ + (e + 1) * P, target);
            return;
        }
        x4_[pending_] = x;
        y4_[pending_] = entering_ + (e + 1) * P;
        if (++pending_ == 4) add_pending();
    }
    void add_pending() {
        add_outer<Real>(total_, T, P, x4_, y4_, pending_);
        pending_ = 0;
    }
    void flush_counts(const SentenceOutputs<Score>& outputs) {
        Score* target = outputs.gradient.transitions;
        if (!target || outputs.gradient.every_edge) return;
        add_pending();
        const Real* rows = sentence.edge_matrix(0).rows;
        for (int64_t s = 0; s < T; ++s)
            for (int64_t t = 0; t < T; ++t) target[s * T + t] += Score(total_[s * P + t] * rows[s * P + t]);
    }
};

}  // namespace
