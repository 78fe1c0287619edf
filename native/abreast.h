// The CRF of `crf.h` for several sentences at a time, one in every lane of the vectors. No lane is
// lost to padding tags, nothing is summed across lanes, and all sentences wait for their recursions
// together. For similar lengths, and scores of a common range: what is beyond that stays for `crf.h`,
// sentence by sentence.
#pragma once
#include "counts.h"
#include "crf.h"

#include <algorithm>

namespace {

// The number of tags: known to the compiler (N > 0), or at run time only.
template <int N> struct Tags {
    int64_t value;
    BCRF_INLINE_MEMBER operator int64_t() const { return N > 0 ? N : value; }
};

template <class Real, int N, bool kShared> class Abreast {
  public:
    static constexpr int64_t W = lanes<Real>();

    // Not so many tags that the arcs of an edge, those of all sentences, leave the nearest cache, and a
    // batch that does not need more memory than is kept. Pairs that are shared have to be in range, others
    // enough for vectors along a row of scores.
    static bool suits(const Problem& p, const Outputs& out) {
        const double bytes = double(p.n * p.tags * (kShared ? 4 : p.tags)) * double(kVectorBytes);
        if (!p.unary || p.tags > kMostTags || bytes > 6e6) return false;
        if (kShared) return !(out.pair_gradient && out.every_edge) && narrow(p);
        return !p.follow && 2 * p.tags > W;
    }
    // Whether sentences of these lengths, the longest first, fill the lanes.
    static bool suits(const int64_t* lengths, int64_t count) {
        int64_t sum = 0;
        for (int64_t r = 0; r < count; ++r) sum += lengths[r];
        return lengths[0] > 1 && double(sum) >= 0.7 * double(W * lengths[0]);
    }

    Abreast(const Problem& p, const int64_t* tags, const Outputs& out)
        : problem_(p), tags_(tags), out_(out), T{p.tags}, size_{p.tags * p.tags},
          scale_(Real(p.scale)), slopes_(out.unary_gradient || out.pair_gradient) {
        for (Array<Real>* a : {&weight_, &alpha_, &beta_, &after_}) a->allocate(p.n * T * W);
        for (Array<Real>* a : {&peak_, &before_, &after_peak_}) a->allocate(p.n * W);
        arcs_.allocate(kShared ? size_ : p.n * size_ * W);
        if (kShared) arcs_of(p, arcs_);
        if (kShared && out.pair_gradient)
            for (Array<Real>& counts : counts_) counts.allocate(size_ * W);
        for (Array<Real>* a : {&whole_, &part_}) a->allocate((p.n + 1) * W);
        gold_.allocate((p.n + 1) * W);
        blank_.allocate(size_);
        std::memset(blank_, 0, size_t(size_) * sizeof(Real));
    }

    // The sentences to be done, at most W of them.
    void take(const int64_t* sentences, int64_t count) {
        L = 0;
        astray_right_ = Mask<Real>{};
        for (int64_t r = 0; r < W; ++r) {
            Lane& lane = lanes_[r] = Lane{};
            if (r < count) enter_lane(lane, sentences[r]);
            ends_[r] = Real(lane.length - 1);
            if (lane.length > L) L = lane.length;
        }
        astray_ = ends_ < Real(0);
        for (int64_t i = 0; tags_ && i <= L; ++i)
            for (int64_t r = 0; r < W; ++r)
                gold_[i * W + r] = i < lanes_[r].length ? lanes_[r].tags[i] : -1;
    }

    // All of the work.
    void solve() {
        for (int64_t i = 0; i < L && any(~astray_); ++i) {
            astray_ |= enter(i, 1);
            if (forward()) astray_ |= forward_step(i);
        }
        for (int64_t i = L - 1; backward() && i >= 0 && any(~astray_); --i) {
            astray_ |= backward_step(i);
            finish(i, -1);
        }
        count(true, astray_);
        count(false, astray_);
    }

    // The same by two threads, to each of which belongs a half of every sentence: they work towards the
    // middle, meet there, and go back again. What they tell each other is the message in the middle; no
    // number depends on who computes it. `meet` returns when both have called it.
    template <class Meet> void solve_half(bool left, Meet& meet) {
        const int64_t middle = L / 2;
        Mask<Real> astray = astray_;
        for (int64_t i = 0; left && i < middle && any(~astray); ++i) {
            astray |= enter(i, 1);
            if (forward()) astray |= forward_step(i);
        }
        for (int64_t i = L - 1; !left && i >= middle && any(~astray); --i) {
            astray |= enter(i, -1);
            if (backward()) astray |= backward_step(i);
        }
        meet();
        for (int64_t i = middle - 1; left && backward() && i >= 0 && any(~astray); --i) {
            astray |= backward_step(i);
            finish(i, -1);
        }
        for (int64_t i = middle; !left && i < L && any(~astray); ++i) {
            if (forward()) astray |= forward_step(i);
            if (backward()) finish(i, 1);
        }
        count(left, astray);
        (left ? astray_ : astray_right_) |= astray;
    }

    // Calls done(sentence, value) for those that were solved: the value, or with tags the loss.
    template <class Done> void report(Done done) {
        double value[W];
        const Mask<Real> astray = astray_ | astray_right_;
        if (kShared && out_.pair_gradient) write_counts();
        if (tags_) add_terms(value);
        else log_partition(value);
        for (int64_t r = 0; r < W; ++r)
            if (!astray[r]) done(lanes_[r].sentence, value[r]);
    }

  private:
    struct Lane {
        int64_t sentence = -1, length = 0;
        const Real *unary = nullptr, *pair = nullptr;
        const int64_t* tags = nullptr;
        Real *unary_gradient = nullptr, *pair_gradient = nullptr;
        Real mass = 1;  // the sum of its last alpha
    };
    static constexpr int64_t kMostTags = 18;

    const Problem& problem_;
    const int64_t* tags_;
    const Outputs& out_;
    const Tags<N> T;
    const Tags<N * N> size_;
    const Real scale_;
    const bool slopes_;
    int64_t L = 0;  // of the longest sentence
    Lane lanes_[W];
    Vec<Real> ends_;  // the last position of each
    Mask<Real> astray_ = {}, astray_right_ = {};  // without a sentence, or for others to solve
    // As in `ForwardBackward`: [position, tag, lane] and [position, lane].
    Array<Real> weight_, alpha_, beta_, after_;
    Array<Real> peak_, before_, after_peak_;
    // Exponentials of the pairs: [edge, tag, tag, lane], or if they are shared [tag, tag].
    Array<Real> arcs_;
    Array<Real> counts_[2];     // of shared pairs, [tag, tag, lane]: what each half expects
    Array<int64_t> gold_;       // [position, lane]: tags, or -1
    Array<Real> whole_, part_;  // [position, lane]: what makes the loss
    Array<Real> blank_;         // what is read beyond a sentence

    bool forward() const { return slopes_ || !tags_; }
    bool backward() const { return slopes_ || tags_; }
    Real* row(const Array<Real>& a, int64_t i) const { return a + i * T * W; }
    Real* arcs(int64_t e) const { return kShared ? +arcs_ : arcs_ + e * size_ * W; }
    // How far apart the arcs of one tag, and of the next, are.
    int64_t by_arc() const { return kShared ? 1 : W; }

    // Exponentials of shared pairs; where these are too wide for that.
    static Mask<Real> arcs_of(const Problem& p, Real* out) {
        const Real *raw = static_cast<const Real*>(p.pair), scale = Real(p.scale);
        const int64_t size = p.tags * p.tags;
        Mask<Real> widest = {};
        for (int64_t k = 0; k < size; k += W) {
            const Vec<Real> x = load_some<Real>(raw + k, size - k, Real(0));
            store_some(out + k, size - k, hasty_exp(x, scale, widest));
        }
        return too_wide(widest, scale);
    }
    static bool narrow(const Problem& p) {
        Real arcs[kMostTags * kMostTags];
        return !any(arcs_of(p, arcs));
    }

    void enter_lane(Lane& lane, int64_t b) const {
        const int64_t length = problem_.lengths[b];
        // (One tag alone has no pairs: nothing would tell here whether some are removed, and its last
        // digit would depend on how that was said.)
        if (length < 2 || length > problem_.n) return;
        const int64_t* tags = tags_ ? tags_ + b * problem_.n : nullptr;
        for (int64_t i = 0; tags && i < length; ++i)
            if (tags[i] < 0 || tags[i] >= T) return;
        const Gradient<Real> gradient(problem_, out_, b);
        gradient.clear(problem_, length);
        lane.sentence = b, lane.length = length, lane.tags = tags;
        lane.unary = static_cast<const Real*>(problem_.unary) + b * problem_.node_strides[0];
        lane.pair = static_cast<const Real*>(problem_.pair) + b * problem_.pair_strides[0];
        lane.unary_gradient = gradient.unary, lane.pair_gradient = gradient.pair;
    }

    // Rows of lanes as rows of `count` numbers, one of each lane: what `gather` does, and back.
    static BCRF_INLINE_MEMBER void scatter(const Real* rows, int64_t count, Real* const* to) {
        int64_t c = 0;
        for (; c + W <= count; c += W) {
            Vec<Real> block[W];
            BCRF_UNROLL for (int64_t k = 0; k < W; ++k) block[k] = load(rows + (c + k) * W);
            transpose(block);
            BCRF_UNROLL for (int64_t r = 0; r < W; ++r) store(to[r] + c, block[r]);
        }
        if (worth_transposing<Real>(count - c)) {
            const int64_t last = count - 1;
            Vec<Real> block[W];
            BCRF_UNROLL for (int64_t k = 0; k < W; ++k) block[k] = load(rows + std::min(c + k, last) * W);
            transpose(block);
            BCRF_UNROLL for (int64_t r = 0; r < W; ++r) store_some(to[r] + c, count - c, block[r]);
            return;
        }
        for (; c < count; ++c)
            for (int64_t r = 0; r < W; ++r) to[r][c] = rows[c * W + r];
    }

    // Asks for the pairs of an edge, to be read (0) or written (1) soon. The processor foresees where a
    // row goes on; but where it begins, with a place in every sentence, is more than it can follow.
    template <int kWrite> BCRF_INLINE_MEMBER void fetch(const Real* row) const {
        constexpr int64_t kLine = 64 / int64_t(sizeof(Real));
        for (int64_t c = 0; c < std::min(int64_t(size_), 4 * kLine); c += kLine)
            __builtin_prefetch(row + c, kWrite);
    }
    static bool has_edge(const Lane& lane, int64_t e) { return e >= 0 && e + 1 < lane.length; }

    // Reads position i and the edge after it. Like all steps, tells which lanes go astray.
    // `step`: from here to the position that comes next.
    Mask<Real> enter(int64_t i, int64_t step) {
        const Real *nodes[W], *pairs[W];
        for (int64_t r = 0; r < W; ++r) {
            const Lane& lane = lanes_[r];
            const int64_t by = problem_.pair_strides[1];
            nodes[r] = i < lane.length ? lane.unary + i * problem_.node_strides[1] : +blank_;
            if (kShared) continue;
            pairs[r] = has_edge(lane, i) ? lane.pair + i * by : +blank_;
            if (has_edge(lane, i + step)) fetch<0>(lane.pair + (i + step) * by);
        }
        const Real scale = scale_;
        Real* weight = row(weight_, i);
        Vec<Real> peak = splat(-infinity<Real>()), sum = {};
        gather<Real>(nodes, T, [&](int64_t t, Vec<Real> u) __attribute__((always_inline)) {
            store(weight + t * W, u);
            peak = vmax(peak, u);
            sum += u;
        });
        for (int64_t k = 0; k < T * W; k += W)
            store(weight + k, vexp((load(weight + k) - peak) * scale));
        store(peak_ + i * W, peak * scale);
        const Mask<Real> finite = sum - sum == Real(0);
        if (kShared || i + 1 == L) return ~finite;
        Mask<Real> widest = {};
        Real* arc = arcs(i);
        gather<Real>(pairs, size_, [&](int64_t c, Vec<Real> x) __attribute__((always_inline)) {
            store(arc + c * W, hasty_exp(x, scale, widest));
        });
        return too_wide(widest, scale) | ~finite;
    }

    // out[t] = sum_s arcs[s, t] x[s]
    BCRF_INLINE_MEMBER void product(
        const Real* arcs, int64_t by_s, int64_t by_t, const Real* x, Real* out) const {
        lane_product<Real, 1, !kShared>(arcs, by_s, by_t, T, x, W, out, W);
    }

    // alpha of position i.
    Mask<Real> forward_step(int64_t i) {
        Real message[kMostTags * W];
        Vec<Real> peak = splat(Real(1));
        if (i > 0) {
            product(arcs(i - 1), T * by_arc(), by_arc(), row(alpha_, i - 1), message);
            peak = load(before_ + (i - 1) * W);
        } else {
            for (int64_t k = 0; k < T * W; k += W) store(message + k, peak);
        }
        const Mask<Real> low = weigh_message(message, i, peak, row(alpha_, i), before_);
        if (!any(ends_ == Real(i))) return low;
        Vec<Real> sum = {};
        for (int64_t k = 0; k < T * W; k += W) sum += load(row(alpha_, i) + k);
        for (int64_t r = 0; r < W; ++r)
            if (lanes_[r].length == i + 1) lanes_[r].mass = sum[r];
        return low;
    }

    // beta and `after` of position i.
    Mask<Real> backward_step(int64_t i) {
        Real* beta = row(beta_, i);
        Vec<Real> peak = splat(Real(1));
        if (i + 1 < L) {
            product(arcs(i), by_arc(), T * by_arc(), row(after_, i + 1), beta);
            peak = load(after_peak_ + (i + 1) * W);
        }
        const Mask<Real> over = ends_ <= Real(i);  // nothing comes after
        if (any(over)) {
            const Vec<Real> one = splat(Real(1));
            for (int64_t k = 0; k < T * W; k += W) store(beta + k, over ? one : load(beta + k));
            peak = over ? one : peak;
        }
        return weigh_message(beta, i, peak, row(after_, i), after_peak_);
    }

    Mask<Real> weigh_message(
        const Real* message, int64_t i, Vec<Real> peak, Real* out, Real* peaks) const {
        const Real* weight = row(weight_, i);
        const int64_t size = T * W;
        const Vec<Real> factor = Real(1) / peak;
        Vec<Real> top = {}, least = splat(infinity<Real>());
        for (int64_t k = 0; k < size; k += W) {
            const Vec<Real> mass = load(message + k), x = mass * (load(weight + k) * factor);
            store(out + k, x);
            least = vmin(vmin(mass, x), least);
            top = vmax(top, x);
        }
        store(peaks + i * W, top);
        return least < safe<Real>();
    }

    // All messages are there: what is wanted of position i and of the edge after it.
    void finish(int64_t i, int64_t step) {
        if (slopes_) write_marginals(i, step);
        if (tags_) compare(i);
    }

    void write_marginals(int64_t i, int64_t step) const {
        Real scratch[kMostTags * W], marginal[kMostTags * W];
        // Shared pairs are counted later; nobody needs the weights any more.
        Real* x = kShared ? row(weight_, i) : scratch;
        Real sink[kMostTags * kMostTags];  // what is written beyond a sentence
        Real *nodes[W], *pairs[W];
        for (int64_t r = 0; r < W; ++r) {
            const Lane& lane = lanes_[r];
            nodes[r] = lane.unary_gradient && i < lane.length ? lane.unary_gradient + i * T : sink;
            if (kShared) continue;
            pairs[r] = lane.pair_gradient && has_edge(lane, i) ? lane.pair_gradient + i * size_ : sink;
            if (lane.pair_gradient && has_edge(lane, i + step))
                fetch<1>(lane.pair_gradient + (i + step) * size_);
        }
        const int64_t size = T * W;
        const Real *alpha = row(alpha_, i), *beta = row(beta_, i);
        const Vec<Real> factor = Real(1) / load(before_ + i * W);  // or alpha beta could underflow
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
        if (out_.unary_gradient) scatter(marginal, T, nodes);
        if (kShared || !out_.pair_gradient || i + 1 == L) return;
        write_edge_marginals(arcs(i), x, row(after_, i + 1), pairs);
    }

    // x[s] arc[s, t] y[t]
    void write_edge_marginals(const Real* arc, const Real* x, const Real* y, Real* const* to) const {
        if constexpr (N > 0) {
            // Everything that depends on the tags of an arc is known to the compiler.
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
        scatter(marginal, size_, to);
    }

    // The gold tags of position i and of the next: taken away from the marginals, and what they bring
    // to the loss, -log p(y_0) - sum_e log p(y_{e+1} | y_e), as p = part / whole.
    void compare(int64_t i) {
        if (i == 0) {
            Vec<Real> sum = {};
            for (int64_t k = 0; k < T * W; k += W) sum += load(after_ + k);
            store(+whole_, sum);
            for (int64_t r = 0; r < W; ++r)
                part_[r] = gold_[r] >= 0 ? after_[gold_[r] * W + r] : sum[r];
        }
        const Real *beta = row(beta_, i), *after = row(after_, i + 1), *arcs = this->arcs(i);
        const int64_t *here = gold_ + i * W, *next = here + W;
        Real *whole = whole_ + (i + 1) * W, *part = part_ + (i + 1) * W;
        const int64_t tags = T;
        for (int64_t r = 0; r < W; ++r) {
            const bool edge = next[r] >= 0;
            const int64_t s = edge ? here[r] : 0, t = edge ? next[r] : 0;
            whole[r] = edge ? beta[s * W + r] : Real(1);
            const Real arc = arcs[(s * tags + t) * by_arc() + (kShared ? 0 : r)];
            part[r] = edge ? arc * after[t * W + r] : Real(1);
        }
        if (out_.unary_gradient)
            for (int64_t r = 0; r < W; ++r)
                if (here[r] >= 0) lanes_[r].unary_gradient[i * tags + here[r]] -= Real(1);
        if (out_.pair_gradient && !kShared)
            for (int64_t r = 0; r < W; ++r)
                if (next[r] >= 0)
                    lanes_[r].pair_gradient[i * size_ + here[r] * tags + next[r]] -= Real(1);
    }

    // What the left or the right half of the sentences expects of shared pairs. By halves always, so that
    // it does not matter who counts.
    void count(bool left, Mask<Real> astray) {
        if (!kShared || !out_.pair_gradient || !any(~astray)) return;
        const int64_t middle = L / 2, from = left ? 0 : middle, to = left ? middle : L - 1;
        count_pairs<Real>(row(weight_, from), row(after_, from + 1), to - from, T, counts_[left]);
    }
    void write_counts() {
        Real sink[kMostTags * kMostTags], *pairs[W];
        for (int64_t r = 0; r < W; ++r) pairs[r] = lanes_[r].length ? lanes_[r].pair_gradient : sink;
        for (int64_t c = 0; c < size_; ++c) {
            const Vec<Real> both = load(counts_[0] + c * W) + load(counts_[1] + c * W);
            store(counts_[0] + c * W, both * arcs_[c]);
        }
        scatter(counts_[0], size_, pairs);
        for (const Lane& lane : lanes_) {
            if (!tags_ || !lane.length) continue;
            Gradient<Real> gradient(problem_, out_, lane.sentence);
            gradient.unary = nullptr;  // that is done already
            gradient.subtract(lane.tags, lane.length, T);
        }
    }

    // Adds up the loss, every term >= 0: nothing cancels. In double precision the numbers of a few
    // positions can be multiplied, and take one logarithm together.
    void add_terms(double* value) const {
        constexpr int64_t kTogether = sizeof(Real) == 4 ? 4 : 1;
        for (int64_t r = 0; r < W; r += lanes<double>()) {
            Vec<double> sum = {};
            for (int64_t i = 0; i < L; i += kTogether) {
                Vec<double> whole = splat(1.0), part = whole;
                for (int64_t k = i; k < std::min(i + kTogether, L); ++k) {
                    whole *= load_as(whole_ + k * W + r, 0.0);
                    part *= load_as(part_ + k * W + r, 0.0);
                }
                sum += vmax(vlog(whole / part), Vec<double>{});
            }
            store(value + r, sum);
        }
    }

    // Every message was divided by the maximum of the one before.
    void log_partition(double* value) const {
        for (int64_t r = 0; r < W; r += lanes<double>()) {
            Vec<double> sum = {};
            for (int64_t i = 0; i < L; ++i) {
                Vec<double> within;
                for (int64_t k = 0; k < lanes<double>(); ++k) within[k] = i < lanes_[r + k].length;
                const Vec<double> last = i > 0 ? load_as(before_ + (i - 1) * W + r, 0.0) : splat(1.0);
                const Vec<double> term = load_as(peak_ + i * W + r, 0.0) + vlog(last);
                sum += within > 0.0 ? term : Vec<double>{};
            }
            store(value + r, sum);
        }
        for (int64_t r = 0; r < W; ++r) value[r] += log_of(double(lanes_[r].mass));
    }
};

}  // namespace
