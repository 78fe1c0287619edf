// Forward-backward for W sentences at a time, one in each lane of the vectors.
//
// No lane is lost to padded tags, nothing is summed across lanes, and the recursions of W sentences share their
// latency. The sentences of a group must have similar lengths, and scores within the bound of the fast path
// (transitions.h). A lane that is out of bounds, has a removed tag or underflows "needs the fallback": its
// sentence stays pending for by_tag.h. solver_selection.h says which problems come here and what it gains.
//
// Layouts:
//     weight, alpha, beta, after    [position][tag][lane]      (defined in by_tag.h)
//     unary_max, alpha_max, ...     [position][lane]
//     arcs                          [edge][from][to][lane], or [from][to] for shared transitions
//
// Loop order: forward over the positions (read, exponentiate, alpha), then backward (beta, marginals).
#pragma once
#include "../chain/gradient.h"
#include "../solver_selection.h"
#include "expected_counts.h"

namespace {

// The number of tags: known to the compiler (N > 0), or known at run time only. A known number gains 10 to 17 %
// (docs/kernels.md).
template <int N> struct Tags {
    int64_t value;
    BCRF_INLINE_MEMBER operator int64_t() const { return N > 0 ? N : value; }
};

template <class Real, int N, bool kShared> class ForwardBackwardBySentence {
  public:
    static constexpr int64_t W = lanes<Real>();

    ForwardBackwardBySentence(const Problem& p, const int64_t* tags, const Outputs& out)
        : problem_(p), tags_(tags), out_(out), T{p.num_tags}, size_{p.num_tags * p.num_tags},
          scale_(Real(p.scale)), needs_gradient_(out.unary_gradient || out.transition_gradient) {
        for (Array<Real>* a : {&weight_, &alpha_, &beta_, &after_}) a->allocate(p.n * T * W);
        for (Array<Real>* a : {&unary_max_, &alpha_max_, &after_max_}) a->allocate(p.n * W);
        arcs_.allocate(kShared ? size_ : p.n * size_ * W);
        if (kShared) exponentiate_shared(p, arcs_);
        if (kShared && out.transition_gradient)
            for (Array<Real>& counts : counts_) counts.allocate(size_ * W);
        for (Array<Real>* a : {&denominator_, &numerator_}) a->allocate((p.n + 1) * W);
        gold_.allocate((p.n + 1) * W);
        zeros_.allocate(size_);
        std::memset(zeros_, 0, size_t(size_) * sizeof(Real));
    }

    // Loads the sentences of a group, at most W.
    void load_group(const int64_t* sentences, int64_t count) {
        L = 0;
        for (Mask<Real>& half : half_needs_fallback_) half = Mask<Real>{};
        for (int64_t r = 0; r < W; ++r) {
            Lane& lane = lanes_[r] = Lane{};
            if (r < count) enter_lane(lane, sentences[r]);
            ends_[r] = Real(lane.length - 1);
            if (lane.length > L) L = lane.length;
        }
        needs_fallback_ = ends_ < Real(0);
        for (int64_t i = 0; tags_ && i <= L; ++i)
            for (int64_t r = 0; r < W; ++r)
                gold_[i * W + r] = i < lanes_[r].length ? lanes_[r].tags[i] : -1;
    }

    // Solves the group.
    void solve() {
        for (int64_t i = 0; i < L && any(~needs_fallback_); ++i) {
            needs_fallback_ |= enter(i);
            if (forward()) needs_fallback_ |= forward_step(i);
        }
        for (int64_t i = L - 1; backward() && i >= 0 && any(~needs_fallback_); --i) {
            needs_fallback_ |= backward_step(i);
            finish(i);
        }
        sum_counts(true, needs_fallback_);
        sum_counts(false, needs_fallback_);
    }

    // The same in four parts, for two threads: each half of the positions is first solved towards the middle, then,
    // when the messages of the other half have arrived there, back to its end. Every number is computed by the same
    // operations as in `solve`.
    void solve_inward(bool left) {
        const int64_t middle = L / 2;
        Mask<Real>& needs_fallback = half_needs_fallback_[left] = needs_fallback_;
        for (int64_t i = 0; left && i < middle && any(~needs_fallback); ++i) {
            needs_fallback |= enter(i);
            if (forward()) needs_fallback |= forward_step(i);
        }
        for (int64_t i = L - 1; !left && i >= middle && any(~needs_fallback); --i) {
            needs_fallback |= enter(i);
            if (backward()) needs_fallback |= backward_step(i);
        }
    }
    void solve_outward(bool left) {
        const int64_t middle = L / 2;
        Mask<Real>& needs_fallback = half_needs_fallback_[left];
        for (int64_t i = middle - 1; left && backward() && i >= 0 && any(~needs_fallback); --i) {
            needs_fallback |= backward_step(i);
            finish(i);
        }
        for (int64_t i = middle; !left && i < L && any(~needs_fallback); ++i) {
            if (forward()) needs_fallback |= forward_step(i);
            if (backward()) finish(i);
        }
        sum_counts(left, needs_fallback);
    }

    // Calls done(sentence, value) for every sentence that was solved. The value is the loss if there are gold tags.
    template <class Done> void report(Done done) {
        double value[W];
        const Mask<Real> needs_fallback = needs_fallback_ | half_needs_fallback_[0] | half_needs_fallback_[1];
        if (kShared && out_.transition_gradient) write_counts();
        if (tags_) add_terms(value);
        else log_partition(value);
        for (int64_t r = 0; r < W; ++r)
            if (!needs_fallback[r]) done(lanes_[r].sentence, value[r]);
    }

  private:
    struct Lane {
        int64_t sentence = -1, length = 0;
        const Real *unary = nullptr, *transitions = nullptr;
        const int64_t* tags = nullptr;
        Real *unary_gradient = nullptr, *transition_gradient = nullptr;
        Real mass = 1;  // sum of alpha at its last position
    };
    static constexpr int64_t kMostTags = kMostTagsBySentence;

    const Problem& problem_;
    const int64_t* tags_;
    const Outputs& out_;
    const Tags<N> T;
    const Tags<N * N> size_;
    const Real scale_;
    const bool needs_gradient_;
    int64_t L = 0;  // length of the longest sentence of the group
    Lane lanes_[W];
    Vec<Real> ends_;  // [lane]: the last position of each sentence, -1 for none
    Mask<Real> needs_fallback_ = {}, half_needs_fallback_[2] = {};  // lanes without a sentence, or unsolved ones
    Array<Real> weight_, alpha_, beta_, after_;
    Array<Real> unary_max_, alpha_max_, after_max_;
    Array<Real> arcs_;
    Array<Real> counts_[2];     // shared transitions: [from][to][lane], the expected counts of each half
    Array<int64_t> gold_;       // [position][lane]: gold tags, or -1
    Array<Real> denominator_, numerator_;  // [position][lane]: p = numerator / denominator
    Array<Real> zeros_;         // read in place of positions beyond a sentence

    bool forward() const { return needs_gradient_ || !tags_; }
    bool backward() const { return needs_gradient_ || tags_; }
    Real* row(const Array<Real>& a, int64_t i) const { return a + i * T * W; }
    Real* arcs(int64_t e) const { return kShared ? +arcs_ : arcs_ + e * size_ * W; }
    // The distance of neighbouring arcs in memory.
    int64_t arc_stride() const { return kShared ? 1 : W; }

    // Exponentiates shared transitions, which solver_selection.h has found to be in bounds.
    static void exponentiate_shared(const Problem& p, Real* out) {
        const Real *scores = static_cast<const Real*>(p.transitions), scale = Real(p.scale);
        const int64_t size = p.num_tags * p.num_tags;
        Mask<Real> largest = {};
        for (int64_t k = 0; k < size; k += W) {
            const Vec<Real> x = load_first<Real>(scores + k, size - k, Real(0));
            store_first(out + k, size - k, bounded_exp(x, scale, largest));
        }
    }
    void enter_lane(Lane& lane, int64_t b) const {
        const int64_t length = problem_.lengths[b];
        // A sentence of one position has no edge. It goes to the fallback, so that its rounding does not depend on
        // whether transitions are removed.
        if (length < 2 || length > problem_.n) return;
        const int64_t* tags = tags_ ? tags_ + b * problem_.n : nullptr;
        for (int64_t i = 0; tags && i < length; ++i)
            if (tags[i] < 0 || tags[i] >= T) return;
        const Gradient<Real> gradient(problem_, out_, b);
        gradient.clear(problem_, length);
        lane.sentence = b, lane.length = length, lane.tags = tags;
        lane.unary = static_cast<const Real*>(problem_.unary) + b * problem_.unary_strides[0];
        lane.transitions = static_cast<const Real*>(problem_.transitions) + b * problem_.transition_strides[0];
        lane.unary_gradient = gradient.unary, lane.transition_gradient = gradient.transitions;
    }

    static bool has_edge(const Lane& lane, int64_t e) { return e >= 0 && e + 1 < lane.length; }

    // Reads position i and the edge after it. Like every step, returns the lanes that need the fallback.
    Mask<Real> enter(int64_t i) {
        const Real *unary[W], *transitions[W];
        for (int64_t r = 0; r < W; ++r) {
            const Lane& lane = lanes_[r];
            unary[r] = i < lane.length ? lane.unary + i * problem_.unary_strides[1] : +zeros_;
            if (kShared) continue;
            transitions[r] = has_edge(lane, i) ? lane.transitions + i * problem_.transition_strides[1] : +zeros_;
        }
        const Real scale = scale_;
        Real* weight = row(weight_, i);
        Vec<Real> max = splat(-infinity<Real>()), sum = {};
        transpose_into_lanes<Real>(unary, T, [&](int64_t t, Vec<Real> u) __attribute__((always_inline)) {
            store(weight + t * W, u);
            max = vmax(max, u);
            sum += u;
        });
        for (int64_t k = 0; k < T * W; k += W)
            store(weight + k, vexp((load(weight + k) - max) * scale));
        store(unary_max_ + i * W, max * scale);
        const Mask<Real> finite = sum - sum == Real(0);
        if (kShared || i + 1 == L) return ~finite;
        Mask<Real> largest = {};
        Real* arc = arcs(i);
        transpose_into_lanes<Real>(transitions, size_, [&](int64_t c, Vec<Real> x) __attribute__((always_inline)) {
            store(arc + c * W, bounded_exp(x, scale, largest));
        });
        return out_of_bounds(largest, scale) | ~finite;
    }

    // out[t] = sum_s arcs[s, t] x[s]
    BCRF_INLINE_MEMBER void product(
        const Real* arcs, int64_t by_s, int64_t by_t, const Real* x, Real* out) const {
        product_per_lane<Real, 1, !kShared>(arcs, by_s, by_t, T, x, W, out, W);
    }

    // Computes alpha of position i.
    Mask<Real> forward_step(int64_t i) {
        Real message[kMostTags * W];
        Vec<Real> max = splat(Real(1));
        if (i > 0) {
            product(arcs(i - 1), T * arc_stride(), arc_stride(), row(alpha_, i - 1), message);
            max = load(alpha_max_ + (i - 1) * W);
        } else {
            for (int64_t k = 0; k < T * W; k += W) store(message + k, max);
        }
        const Mask<Real> underflow = weigh_message(message, i, max, row(alpha_, i), alpha_max_);
        if (!any(ends_ == Real(i))) return underflow;
        Vec<Real> sum = {};
        for (int64_t k = 0; k < T * W; k += W) sum += load(row(alpha_, i) + k);
        for (int64_t r = 0; r < W; ++r)
            if (lanes_[r].length == i + 1) lanes_[r].mass = sum[r];
        return underflow;
    }

    // Computes beta and `after` of position i.
    Mask<Real> backward_step(int64_t i) {
        Real* beta = row(beta_, i);
        Vec<Real> max = splat(Real(1));
        if (i + 1 < L) {
            product(arcs(i), arc_stride(), T * arc_stride(), row(after_, i + 1), beta);
            max = load(after_max_ + (i + 1) * W);
        }
        const Mask<Real> has_ended = ends_ <= Real(i);
        if (any(has_ended)) {
            const Vec<Real> one = splat(Real(1));
            for (int64_t k = 0; k < T * W; k += W) store(beta + k, has_ended ? one : load(beta + k));
            max = has_ended ? one : max;
        }
        return weigh_message(beta, i, max, row(after_, i), after_max_);
    }

    // As in by_tag.h: out[i] = message * weight[i] / max of the message before.
    Mask<Real> weigh_message(
        const Real* message, int64_t i, Vec<Real> max, Real* out, Real* maxima) const {
        const Real* weight = row(weight_, i);
        const int64_t size = T * W;
        const Vec<Real> factor = Real(1) / max;
        Vec<Real> top = {}, least = splat(infinity<Real>());
        for (int64_t k = 0; k < size; k += W) {
            const Vec<Real> mass = load(message + k), x = mass * (load(weight + k) * factor);
            store(out + k, x);
            least = vmin(vmin(mass, x), least);
            top = vmax(top, x);
        }
        store(maxima + i * W, top);
        return least < underflow_limit<Real>();
    }

    // Writes the outputs of position i and of the edge after it; all their messages are final.
    void finish(int64_t i) {
        if (needs_gradient_) write_marginals(i);
        if (tags_) add_gold(i);
    }

    void write_marginals(int64_t i) const {
        Real scratch[kMostTags * W], marginal[kMostTags * W];
        // For shared transitions, `x` is kept for the expected counts in the place of the weights.
        Real* x = kShared ? row(weight_, i) : scratch;
        Real sink[kMostTags * kMostTags];  // written in place of positions beyond a sentence
        Real *unary[W], *transitions[W];
        for (int64_t r = 0; r < W; ++r) {
            const Lane& lane = lanes_[r];
            unary[r] = lane.unary_gradient && i < lane.length ? lane.unary_gradient + i * T : sink;
            if (kShared) continue;
            transitions[r] = lane.transition_gradient && has_edge(lane, i) ? lane.transition_gradient + i * size_ : sink;
        }
        const int64_t size = T * W;
        const Real *alpha = row(alpha_, i), *beta = row(beta_, i);
        const Vec<Real> factor = Real(1) / load(alpha_max_ + i * W);  // or alpha * beta could underflow
        Vec<Real> sum = {};
        for (int64_t k = 0; k < size; k += W) {
            const Vec<Real> a = load(alpha + k) * factor;
            store(x + k, a);
            sum += a * load(beta + k);
        }
        const Vec<Real> share = Real(1) / sum;
        const Mask<Real> edge = ends_ > Real(i);
        for (int64_t k = 0; k < size; k += W) {
            const Vec<Real> a = load(x + k) * share;
            store(x + k, kShared ? (edge ? a : Vec<Real>{}) : a);
            store(marginal + k, a * load(beta + k));
        }
        if (out_.unary_gradient) transpose_from_lanes<Real>(marginal, T, unary);
        if (kShared || !out_.transition_gradient || i + 1 == L) return;
        write_edge_marginals(arcs(i), x, row(after_, i + 1), transitions);
    }

    // Writes x[s] arc[s][t] y[t] of all lanes.
    void write_edge_marginals(const Real* arc, const Real* x, const Real* y, Real* const* to) const {
        if constexpr (N > 0) {
            // All offsets are known to the compiler.
            constexpr int64_t kBlocks = N * N / W;
            _Pragma("GCC unroll 80") for (int64_t k = 0; k < kBlocks; ++k) {
                Vec<Real> block[W];
                BCRF_UNROLL for (int64_t j = 0; j < W; ++j) {
                    const int64_t c = k * W + j;
                    block[j] = load(x + c / N * W) * load(arc + c * W) * load(y + c % N * W);
                }
                transpose(block);
                BCRF_UNROLL for (int64_t r = 0; r < W; ++r) store(to[r] + k * W, block[r]);
            }
            for (int64_t c = kBlocks * W; c < N * N; ++c) {
                const Vec<Real> q = load(x + c / N * W) * load(arc + c * W) * load(y + c % N * W);
                for (int64_t r = 0; r < W; ++r) to[r][c] = q[r];
            }
            return;
        }
        Real marginal[kMostTags * kMostTags * W];
        Real* q = marginal;
        const int64_t size = T * W;
        for (int64_t s = 0; s < size; s += W) {
            const Vec<Real> a = load(x + s);
            for (int64_t t = 0; t < size; t += W, arc += W, q += W)
                store(q, a * load(arc) * load(y + t));
        }
        transpose_from_lanes<Real>(marginal, size_, to);
    }

    // Handles the gold tags of position i and of the arc after it: subtracts 1 from their marginals, and records
    // p(y_0) or p(y_{i+1} | y_i) as numerator and denominator. The loss is -log p(y_0) - sum_e log p(y_{e+1} | y_e).
    void add_gold(int64_t i) {
        if (i == 0) {
            Vec<Real> sum = {};
            for (int64_t k = 0; k < T * W; k += W) sum += load(after_ + k);
            store(+denominator_, sum);
            for (int64_t r = 0; r < W; ++r)
                numerator_[r] = gold_[r] >= 0 ? after_[gold_[r] * W + r] : sum[r];
        }
        const Real *beta = row(beta_, i), *after = row(after_, i + 1), *arcs = this->arcs(i);
        const int64_t *here = gold_ + i * W, *next = here + W;
        Real *denominator = denominator_ + (i + 1) * W, *numerator = numerator_ + (i + 1) * W;
        const int64_t tags = T;
        for (int64_t r = 0; r < W; ++r) {
            const bool edge = next[r] >= 0;
            const int64_t s = edge ? here[r] : 0, t = edge ? next[r] : 0;
            denominator[r] = edge ? beta[s * W + r] : Real(1);
            const Real arc = arcs[(s * tags + t) * arc_stride() + (kShared ? 0 : r)];
            numerator[r] = edge ? arc * after[t * W + r] : Real(1);
        }
        if (out_.unary_gradient)
            for (int64_t r = 0; r < W; ++r)
                if (here[r] >= 0) lanes_[r].unary_gradient[i * tags + here[r]] -= Real(1);
        if (out_.transition_gradient && !kShared)
            for (int64_t r = 0; r < W; ++r)
                if (next[r] >= 0)
                    lanes_[r].transition_gradient[i * size_ + here[r] * tags + next[r]] -= Real(1);
    }

    // Expected counts of shared transitions, over the left or the right half of the edges. The sum is always made
    // by halves, so that it does not depend on the number of threads.
    void sum_counts(bool left, Mask<Real> needs_fallback) {
        if (!kShared || !out_.transition_gradient || !any(~needs_fallback)) return;
        const int64_t middle = L / 2, from = left ? 0 : middle, to = left ? middle : L - 1;
        sum_outer_products<Real>(row(weight_, from), row(after_, from + 1), to - from, T, counts_[left]);
    }
    void write_counts() {
        Real sink[kMostTags * kMostTags], *transitions[W];
        for (int64_t r = 0; r < W; ++r) transitions[r] = lanes_[r].length ? lanes_[r].transition_gradient : sink;
        for (int64_t c = 0; c < size_; ++c) {
            const Vec<Real> both = load(counts_[0] + c * W) + load(counts_[1] + c * W);
            store(counts_[0] + c * W, both * arcs_[c]);
        }
        transpose_from_lanes<Real>(counts_[0], size_, transitions);
        for (const Lane& lane : lanes_) {
            if (!tags_ || !lane.length) continue;
            Gradient<Real> gradient(problem_, out_, lane.sentence);
            gradient.unary = nullptr;  // `add_gold` has done that
            gradient.subtract(lane.tags, lane.length, T);
        }
    }

    // Sums the loss. Every term is >= 0, so nothing cancels.
    void add_terms(double* value) const {
        for (int64_t r = 0; r < W; r += lanes<double>()) {
            Vec<double> sum = {};
            for (int64_t i = 0; i < L; ++i) {
                const Vec<double> denominator = load_as(denominator_ + i * W + r, 0.0);
                const Vec<double> numerator = load_as(numerator_ + i * W + r, 0.0);
                sum += vmax(vlog(denominator / numerator), Vec<double>{});
            }
            store(value + r, sum);
        }
    }

    // Computes A(w), the log-partition. Every message was divided by the maximum of the message before.
    void log_partition(double* value) const {
        for (int64_t r = 0; r < W; r += lanes<double>()) {
            Vec<double> sum = {};
            for (int64_t i = 0; i < L; ++i) {
                Vec<double> within;
                for (int64_t k = 0; k < lanes<double>(); ++k) within[k] = i < lanes_[r + k].length;
                const Vec<double> last = i > 0 ? load_as(alpha_max_ + (i - 1) * W + r, 0.0) : splat(1.0);
                const Vec<double> term = load_as(unary_max_ + i * W + r, 0.0) + vlog(last);
                sum += within > 0.0 ? term : Vec<double>{};
            }
            store(value + r, sum);
        }
        for (int64_t r = 0; r < W; ++r) value[r] += log_of(double(lanes_[r].mass));
    }
};

}  // namespace
