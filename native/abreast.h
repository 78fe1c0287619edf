// The CRF of `crf.h` for several sentences at a time, one in every lane of the vectors. No lane is
// lost to padding tags, nothing is summed across lanes, and all sentences wait for their recursions
// together. For pairs of every edge, similar lengths, and scores of a common range: what is beyond that
// stays for `crf.h`, sentence by sentence.
#pragma once
#include "crf.h"

namespace {

template <class Real> class Abreast {
  public:
    static constexpr int64_t W = lanes<Real>();

    // Enough tags for vectors along a row of scores, not so many that the arcs of an edge, those of
    // all sentences, leave the nearest cache, and a batch that does not need more memory than is kept.
    static bool suits(const Problem& p) {
        const double bytes = double(p.n * p.tags * p.tags) * double(kVectorBytes);
        return !p.shared && !p.follow && p.unary && p.tags >= W && p.tags <= kMostTags && bytes < 6e6;
    }
    // Whether sentences of these lengths, the longest first, fill the lanes.
    static bool suits(const int64_t* lengths, int64_t count) {
        int64_t sum = 0;
        for (int64_t r = 0; r < count; ++r) sum += lengths[r];
        return lengths[0] > 1 && double(sum) >= 0.7 * double(W * lengths[0]);
    }

    Abreast(const Problem& p, const int64_t* tags, const Outputs& out)
        : problem_(p), tags_(tags), out_(out), T(p.tags), size_(p.tags * p.tags),
          scale_(Real(p.scale)), slopes_(out.unary_gradient || out.pair_gradient) {
        for (Array<Real>* a : {&weight_, &alpha_, &beta_, &after_}) a->allocate(p.n * T * W);
        for (Array<Real>* a : {&peak_, &before_, &after_peak_}) a->allocate(p.n * W);
        arcs_.allocate(p.n * size_ * W);
        terms_.allocate(p.n * W);
        blank_.allocate(size_);
        std::memset(blank_, 0, size_t(size_) * sizeof(Real));
    }

    // The sentences to be done, at most W of them.
    void take(const int64_t* sentences, int64_t count) {
        L = 0;
        astray_ = astray_right_ = Mask<Real>{};
        for (int64_t r = 0; r < W; ++r) {
            Lane& lane = lanes_[r] = Lane{};
            if (r < count) enter_lane(lane, sentences[r]);
            ends_[r] = Real(lane.length - 1);
            if (lane.length > L) L = lane.length;
        }
    }

    // All of the work.
    void solve() {
        for (int64_t i = 0; i < L; ++i) {
            astray_ |= enter(i);
            if (forward()) astray_ |= forward_step(i);
        }
        for (int64_t i = L - 1; backward() && i >= 0; --i) {
            astray_ |= backward_step(i);
            finish(i);
        }
    }

    // The same by two threads. One comes from the left and one from the right; they meet in the middle,
    // and each goes on through what the other has prepared. No number depends on who computes it.
    // `meet` returns when both have called it.
    template <class Meet> void solve_half(bool left, Meet& meet) {
        const int64_t middle = L / 2;
        Mask<Real> astray = {};
        for (int64_t i = 0; left && i < middle; ++i) {
            astray |= enter(i);
            if (forward()) astray |= forward_step(i);
        }
        for (int64_t i = L - 1; !left && i >= middle; --i) {
            astray |= enter(i);
            if (backward()) astray |= backward_step(i);
        }
        meet();
        for (int64_t i = middle; left && i < L; ++i) {
            if (forward()) astray |= forward_step(i);
            if (backward()) finish(i);
        }
        for (int64_t i = middle - 1; !left && backward() && i >= 0; --i) {
            astray |= backward_step(i);
            finish(i);
        }
        (left ? astray_ : astray_right_) |= astray;
    }

    // Calls done(sentence, value) for those that were solved: the value, or with tags the loss.
    template <class Done> void report(Done done) const {
        double value[W];
        const Mask<Real> astray = astray_ | astray_right_;
        if (tags_) add_terms(value);
        else log_partition(value);
        for (int64_t r = 0; r < W; ++r)
            if (lanes_[r].sentence >= 0 && !astray[r]) done(lanes_[r].sentence, value[r]);
    }

  private:
    struct Lane {
        int64_t sentence = -1, length = 0;
        const Real *unary = nullptr, *pair = nullptr;
        const int64_t* tags = nullptr;
        Real *unary_gradient = nullptr, *pair_gradient = nullptr;
        Real mass = 1;  // the sum of its last alpha
    };
    static constexpr int64_t kMostTags = 23;
    static constexpr Real kRange = 20;  // of the pairs

    const Problem& problem_;
    const int64_t* tags_;
    const Outputs& out_;
    const int64_t T, size_;
    const Real scale_;
    const bool slopes_;
    int64_t L = 0;  // of the longest sentence
    Lane lanes_[W];
    Vec<Real> ends_;         // the last position of each
    Mask<Real> astray_ = {}, astray_right_ = {};  // those that are for others to solve
    // As in `ForwardBackward`: [position, tag, lane] and [position, lane].
    Array<Real> weight_, alpha_, beta_, after_;
    Array<Real> peak_, before_, after_peak_;
    Array<Real> arcs_;      // [edge, tag, tag, lane]: exponentials of the pairs
    Array<double> terms_;   // [position, lane]: of the loss
    Array<Real> blank_;     // what is read beyond a sentence

    bool forward() const { return slopes_ || !tags_; }
    bool backward() const { return slopes_ || tags_; }
    Real* row(const Array<Real>& a, int64_t i) const { return a + i * T * W; }
    Real* arcs(int64_t e) const { return arcs_ + e * size_ * W; }

    void enter_lane(Lane& lane, int64_t b) const {
        const int64_t length = problem_.lengths[b];
        if (length < 1 || length > problem_.n) return;
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

    // Rows of `count` numbers, one of each lane, as rows of lanes: see(k, vector) for each of these.
    template <class See>
    static BCRF_INLINE_MEMBER void gather(const Real* const* from, int64_t count, See see) {
        int64_t c = 0;
        for (; c + W <= count; c += W) {
            Vec<Real> block[W];
            BCRF_UNROLL for (int64_t r = 0; r < W; ++r) block[r] = load(from[r] + c);
            transpose(block);
            BCRF_UNROLL for (int64_t k = 0; k < W; ++k) see(c + k, block[k]);
        }
        for (; c < count; ++c) {
            Real lane[W];
            for (int64_t r = 0; r < W; ++r) lane[r] = from[r][c];
            see(c, load<Real>(lane));
        }
    }
    // And back.
    static BCRF_INLINE_MEMBER void scatter(const Real* rows, int64_t count, Real* const* to) {
        int64_t c = 0;
        for (; c + W <= count; c += W) {
            Vec<Real> block[W];
            BCRF_UNROLL for (int64_t k = 0; k < W; ++k) block[k] = load(rows + (c + k) * W);
            transpose(block);
            BCRF_UNROLL for (int64_t r = 0; r < W; ++r) store(to[r] + c, block[r]);
        }
        for (; c < count; ++c)
            for (int64_t r = 0; r < W; ++r) to[r][c] = rows[c * W + r];
    }

    // Reads position i and the edge after it. Like all steps, tells which lanes go astray.
    Mask<Real> enter(int64_t i) {
        const Real *nodes[W], *pairs[W];
        for (int64_t r = 0; r < W; ++r) {
            const Lane& lane = lanes_[r];
            nodes[r] = i < lane.length ? lane.unary + i * problem_.node_strides[1] : +blank_;
            pairs[r] = i + 1 < lane.length ? lane.pair + i * problem_.pair_strides[1] : +blank_;
        }
        const Real scale = scale_;
        Real* weight = row(weight_, i);
        Vec<Real> peak = splat(-infinity<Real>()), sum = {};
        gather(nodes, T, [&](int64_t t, Vec<Real> u) __attribute__((always_inline)) {
            store(weight + t * W, u);
            peak = vmax(peak, u);
            sum += u;
        });
        for (int64_t k = 0; k < T * W; k += W)
            store(weight + k, vexp((load(weight + k) - peak) * scale));
        store(peak_ + i * W, peak * scale);
        const Mask<Real> finite = sum - sum == Real(0);
        if (i + 1 == L) return ~finite;
        Mask<Real> widest = {};
        Real* arc = arcs(i);
        gather(pairs, size_, [&](int64_t c, Vec<Real> x) __attribute__((always_inline)) {
            const Mask<Real> width = bits_of(x) & ~sign_bits<Real>();  // of NaN: more than any
            widest = width > widest ? width : widest;
            store(arc + c * W, vexp_within(x * scale));
        });
        return (widest > bits_of(splat(kRange / scale))) | ~finite;
    }

    // alpha of position i.
    Mask<Real> forward_step(int64_t i) {
        Real message[kMostTags * W];
        Vec<Real> peak = splat(Real(1));
        if (i > 0) {
            lane_product<Real, 1, true>(arcs(i - 1), T * W, W, T, row(alpha_, i - 1), W, message, W);
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
            lane_product<Real, 1, true>(arcs(i), W, T * W, T, row(after_, i + 1), W, beta, W);
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
    void finish(int64_t i) {
        if (slopes_) write_marginals(i);
        if (tags_) compare(i);
    }

    void write_marginals(int64_t i) const {
        Real x[kMostTags * W], marginal[kMostTags * kMostTags * W];
        Real sink[kMostTags * kMostTags];  // what is written beyond a sentence
        Real *nodes[W], *pairs[W];
        for (int64_t r = 0; r < W; ++r) {
            const Lane& lane = lanes_[r];
            const bool node = lane.unary_gradient && i < lane.length;
            const bool edge = lane.pair_gradient && i + 1 < lane.length;
            nodes[r] = node ? lane.unary_gradient + i * T : sink;
            pairs[r] = edge ? lane.pair_gradient + i * size_ : sink;
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
        for (int64_t k = 0; k < size; k += W) {
            const Vec<Real> a = load(x + k) * share;
            store(x + k, a);
            store(marginal + k, a * load(beta + k));
        }
        if (out_.unary_gradient) scatter(marginal, T, nodes);
        if (!out_.pair_gradient || i + 1 == L) return;
        const Real *arc = arcs(i), *y = row(after_, i + 1);
        Real* q = marginal;
        for (int64_t s = 0; s < size; s += W) {
            const Vec<Real> a = load(x + s);
            for (int64_t t = 0; t < size; t += W, arc += W, q += W)
                store(q, a * load(arc) * load(y + t));
        }
        scatter(marginal, size_, pairs);
    }

    // The gold tag of position i and the next: taken away from the marginals, and their term of the
    // loss, which is -log p(y_0) - sum_e log p(y_{e+1} | y_e), every term >= 0: nothing cancels.
    void compare(int64_t i) {
        const int64_t tags = T;
        Real over[W], under[W];
        double pair[W];
        if (i == 0) {
            Vec<Real> sum = {};
            for (int64_t k = 0; k < tags * W; k += W) sum += load(after_ + k);
            store(over, sum);
            for (int64_t r = 0; r < W; ++r) {
                pair[r] = 0;
                under[r] = lanes_[r].length ? after_[lanes_[r].tags[0] * W + r] : over[r];
            }
            set_terms(0, over, under, pair);
        }
        for (int64_t r = 0; r < W; ++r) {
            const Lane& lane = lanes_[r];
            over[r] = under[r] = 1, pair[r] = 0;
            if (i >= lane.length) continue;
            const int64_t here = lane.tags[i];
            if (lane.unary_gradient) lane.unary_gradient[i * tags + here] -= Real(1);
            if (i + 1 >= lane.length) continue;
            const int64_t next = lane.tags[i + 1], arc = here * tags + next;
            if (lane.pair_gradient) lane.pair_gradient[i * size_ + arc] -= Real(1);
            over[r] = row(beta_, i)[here * W + r];
            under[r] = row(after_, i + 1)[next * W + r];
            pair[r] = double(lane.pair[i * problem_.pair_strides[1] + arc]) * problem_.scale;
        }
        if (i + 1 < L) set_terms(i + 1, over, under, pair);
    }
    void set_terms(int64_t i, const Real* over, const Real* under, const double* pair) {
        for (int64_t r = 0; r < W; r += lanes<double>()) {
            const Vec<double> ratio = load_as(over + r, 0.0) / load_as(under + r, 0.0);
            store(terms_ + i * W + r, vmax(vlog(ratio) - load(pair + r), Vec<double>{}));
        }
    }
    void add_terms(double* value) const {
        for (int64_t r = 0; r < W; r += lanes<double>()) {
            Vec<double> sum = {};
            for (int64_t i = 0; i < L; ++i) sum += load(terms_ + i * W + r);
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
