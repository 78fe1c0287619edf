// Bregman projections for one sentence, with positions in the lanes of vectors: the state and the steps.
// by_position.h computes the outputs.
//
// A step projects all positions of one parity; they do not depend on each other. Even and odd positions are
// stored apart, so that the neighbours of consecutive lanes are consecutive lanes of the other parity:
//
//     even half   [tag][lane]   position  0  2  4  6 ...        edge 2h     joins even lane h and odd lane h
//     odd half    [tag][lane]   position  1  3  5  7 ...        edge 2h + 1 joins odd lane h and even lane h + 1
//
// Per-edge transitions lie as [block][from][to][lane], in the order in which they are read. No lane is lost to
// padded tags, and nothing is summed across lanes. The state is exp(lam) instead of lam: a plain projection sets
// it to sqrt(beta / alpha), without logarithm or exponential. If a sentence needs more than the range of Real,
// `out_of_range` is set, and another solver takes it.
#pragma once
#include "sentence_outputs.h"

#include <limits>

namespace {

// The largest ratio of two numbers of one position, as a logarithm and as a number: just inside the range of Real.
template <class Real> constexpr Real max_log_ratio() { return sizeof(Real) == 4 ? Real(85) : Real(700); }
template <class Real> constexpr Real max_ratio() { return sizeof(Real) == 4 ? Real(8e36) : Real(1e304); }
// The largest ratio at a position where weights have underflowed to 0. It is small (e^16), so that exp(lam) cannot
// make such a weight matter.
constexpr double kNarrowRatio = 8.8e6;
template <class Real> constexpr Real largest() { return sizeof(Real) == 4 ? Real(3e38) : Real(1e308); }

template <class Score, class Real, bool kShared> class PositionProjections {
  public:
    Sentence<Score, Real, 0> sentence;
    static constexpr bool kHasBoundedFastPath = !kShared;

    PositionProjections(const Problem& p, const SharedTransitions<Score, Real>& shared, const Projections& settings)
        : sentence(p, shared, 1), T(p.num_tags), settings_(settings),
          // An odd number of vectors: rows that are a power of two apart would compete for the same few cache sets.
          stride_(2 * W * (p.n / (4 * W) + 1) + 3 * kMargin) {
        for (int parity = 0; parity < 2; ++parity) {
            ParityHalf& half = halves_[parity];
            for (Array<Real>* a : {&half.share, &half.weight, &half.exp_lam, &half.leaving, &half.entering})
                a->allocate(T * stride_);
            // Lanes without a position are computed too, and must hold finite numbers.
            std::memset(half.leaving, 0, size_t(T * stride_) * sizeof(Real));
            std::memset(half.entering, 0, size_t(T * stride_) * sizeof(Real));
            for (Array<Real>* a :
                 {&half.peak, &half.spread, &half.leaving_scale, &half.entering_scale, &half.log_leaving,
                  &half.log_entering, &half.factor})
                a->allocate(stride_);
        }
        for (Array<Real>* a : {&alpha_, &beta_}) a->allocate(T * kBlock);
        duals_.allocate(p.n * sentence.P);
        if (kShared) return;
        const int64_t blocks = (p.n + 1) / 2 / W + 2;
        for (Array<Real>& arcs : arcs_) arcs.allocate(blocks * T * T * W);
        carried_.allocate((settings.iterations + 1) * T * W);
    }

    // Folds the unary scores into the arcs and sets lam. `given`: [n][T] or null.
    void start(const Score* given) {
        const int64_t L = sentence.L, P = sentence.P;
        out_of_range_ = false;
        normalized_ = settings_.several_sweeps;
        if (sentence.problem.unary)  // otherwise the scores are folded already
            for (int64_t k = P; k < (L - 1) * P; ++k) sentence.unary[k] *= Real(0.5);
        for (int parity = 0; parity < 2; ++parity) {
            ParityHalf& half = halves_[parity];
            for (int64_t k = 0; k < T * stride_; ++k) half.exp_lam[k] = 1;
            for (int64_t h = 0; h < count(parity); h += W) {
                read_shares(parity, h);
                exponentiate_shares(half, h);
            }
        }
        if (!given && !settings_.gauge_right) return;
        for (int64_t i = 1; i + 1 < L; ++i)
            for (int64_t t = 0; t < T; ++t) {
                const Real share = sentence.unary[i * P + t];
                Real& lam = halves_[i % 2].exp_lam[t * stride_ + kMargin + i / 2];
                if (share > -infinity<Real>()) lam = given ? Real(given[i * T + t]) : share;
            }
        for (int parity = 0; parity < 2; ++parity)
            for (int64_t h = 0; h < count(parity); h += W) exponentiate_dual(parity, h);
    }

    void exponentiate_all() {
        for (int64_t h = 0; sentence.L > 1 && h < count(0); h += kBlock) exponentiate_block(h);
    }

    // Runs the steps k0 .. k1 - 1. Loop order: blocks of positions, and within a block all steps. Step k of a block of
    // odd positions needs step k - 1 of the even positions of its own block and of the next one; a block of even
    // positions needs the odd positions of its own block and of the one before. So every second step stays one
    // block behind, and few blocks are in use at a time. `enter(h)` is called before the first step of the block at
    // lane index h, `leave(h)` when this block and the next have made their last.
    template <class Enter, class Leave>
    void sweep(int64_t k0, int64_t k1, Enter enter, Leave leave) {
        const int64_t blocks = (count(0) + kBlock - 1) / kBlock;
        for (int64_t p = 0, finished = 0; finished < blocks && !out_of_range_; ++p) {
            if (p < blocks) enter(p * kBlock);
            int64_t q = p;
            for (int64_t k = k0; k < k1; ++k) {
                const int parity = int((settings_.first + k) % 2);
                if (parity && k > k0) --q;
                if (q < 0) break;
                const int64_t h = q * kBlock, left = count(parity) - h;
                if (left > W) project<2>(parity, h, k);
                else if (left > 0) project<1>(parity, h, k);
            }
            if (q > 0) leave(finished++ * kBlock);
        }
    }
    void sweep(int64_t k0, int64_t k1) {
        const auto nothing = [](int64_t) {};
        sweep(k0, k1, nothing, nothing);
    }

    bool out_of_range() const { return out_of_range_; }

    // Makes lam available to `duals`: exp(lam), by tag, becomes lam, by position.
    void write_back_dual() {
        for (int parity = 0; parity < 2; ++parity)
            for (int64_t h = 0; h < count(parity); h += W) {
                const Real* exp_lam = halves_[parity].exp_lam + kMargin + h;
                for (int64_t t = 0; t < T; ++t)
                    store(alpha_ + t * kBlock, vlog(load(exp_lam + t * stride_)));
                write_rows(alpha_, kBlock, parity, h, +duals_, sentence.P);
            }
    }
    // lam and the unary shares of a position, [P]; a removed tag has the share -inf.
    const Real* duals(int64_t i) const { return duals_ + i * sentence.P; }
    const Real* shares(int64_t i) const { return sentence.unary + i * sentence.P; }

  protected:
    static constexpr int64_t W = lanes<Real>();
    static constexpr int64_t kBlock = 2 * W;   // positions of one parity in a block: two vectors gain up to 10 % over one
    static constexpr int64_t kMargin = W;      // lanes before the first position, for neighbours that do not exist

    // The positions of one parity. Matrices are [tag][lane index] with rows of stride_ numbers, vectors
    // [lane index]; position i has the lane index kMargin + i / 2.
    struct ParityHalf {
        Array<Real> share;   // matrix: part of the unary score in the arcs on either side; -inf: removed tag
        Array<Real> peak;    // vector: the largest share
        Array<Real> weight;  // matrix: exp(share - peak)
        Array<Real> exp_lam;            // matrix; at first `start` stores lam itself
        Array<Real> spread;             // vector: how far apart the exp_lam of a position may be, as a ratio
        Array<Real> leaving, entering;  // matrices: weight / exp_lam / leaving_scale, weight * exp_lam / entering_scale
        Array<Real> leaving_scale, entering_scale;  // vectors: 1, or if normalized_ the maxima
        Array<Real> factor;      // vector: 1 / sum over the arcs that leave; 0 where none leaves
        Array<Real> log_leaving, log_entering;  // vectors: log of that sum * leaving_scale, log of entering_scale
    };

    const int64_t T;
    const Projections& settings_;
    const int64_t stride_;
    ParityHalf halves_[2];
    Array<Real> alpha_, beta_;  // [tag][kBlock]: messages of the current block
    Array<Real> duals_;         // [position][tag], rows of P: see write_back_dual
    Array<Real> arcs_[2];       // per-edge transitions: [block][from][to][lane], edges after even and odd positions
    Array<Real> carried_;       // [step][tag][lane]: see shift_to_next_position
    bool out_of_range_ = false;  // some number is too small or too large for Real
    bool normalized_ = false;    // leaving and entering are divided by their maxima after every step

    int64_t count(int parity) const { return (sentence.L + 1 - parity) / 2; }

    // Which lanes from h on hold interior positions, the only ones with a dual variable.
    Mask<Real> interior(int parity, int64_t h) const {
        const Vec<Real> i = lane_index<Real>() * Real(2) + Real(2 * h + parity);
        return (i > Real(0.5)) & (i < Real(sentence.L - 1) - Real(0.5));
    }

    // out[t] = sum_s arcs[s][t] x[s] for V vectors of positions.
    template <int V>
    BCRF_INLINE_MEMBER void product(
        const Real* arcs, int64_t by_s, int64_t by_t, const Real* x, Real* out) const {
        product_per_lane<Real, V, !kShared>(arcs, by_s, by_t, T, x, stride_, out, kBlock);
    }

    // Computes alpha and beta of the positions from h on. The position before 2h + 1 is 2h, the one after it
    // 2(h + 1). `step` selects the row of carried_; consecutive blocks of one step must use the same.
    template <int V> void compute_messages(int parity, int64_t h, int64_t step) {
        const ParityHalf& other = halves_[1 - parity];
        const int64_t P = sentence.P, before = kMargin + h - (1 - parity), after = before + 1;
        if (kShared) {
            product<V>(sentence.shared.rows, P, 1, other.leaving + before, alpha_);
            product<V>(sentence.shared.columns, P, 1, other.entering + after, beta_);
            return;
        }
        BCRF_UNROLL for (int64_t v = 0; v < V * W; v += W) {
            // An edge lies in the lane of the position before it.
            const Real *in = other.leaving + kMargin + h + v, *out = other.entering + after + v;
            product<1>(arcs(1 - parity, h + v), T * W, W, in, alpha_ + v);
            product<1>(arcs(parity, h + v), W, T * W, out, beta_ + v);
            if (!parity) shift_to_next_position(h + v == 0, alpha_ + v, carried_ + step * T * W);
        }
    }

    // The messages to even positions are computed in the lanes of the odd positions before them, one lane too low.
    // Shifts them up; the message of the last lane is carried over to the next block.
    BCRF_INLINE_MEMBER void shift_to_next_position(bool first, Real* alpha, Real* carry) const {
        const int64_t tags = T;
        for (int64_t t = 0; t < tags; ++t) {
            const Vec<Real> now = load(alpha + t * kBlock);
            const Vec<Real> before = first ? Vec<Real>{} : load(carry + t * W);
            store(carry + t * W, now);
            store(alpha + t * kBlock, shift_in_last(before, now));
        }
    }

    Real* arcs(int parity, int64_t h) const { return arcs_[parity] + h * T * T; }

    void exponentiate_block(int64_t h) {
        for (int64_t v = h; !kShared && v < h + kBlock && v < count(0); v += W) {
            exponentiate_edges(2 * v, arcs(0, v));
            exponentiate_edges(2 * v + 1, arcs(1, v));
        }
        if (sentence.bounded() && sentence.out_of_bounds()) out_of_range_ = true;
    }

    // Exponentiates the transitions of the edges first, first + 2, ...: out[from][to][lane].
    void exponentiate_edges(int64_t first, Real* out) {
        const Score* transition_scores[W];
        Real peak[W];
        const Real scale = Real(sentence.problem.scale);
        for (int64_t r = 0; r < W; ++r) {
            // Lanes without an edge get the last edge: any finite numbers do.
            const int64_t last = sentence.L - 2, e = first + 2 * r, nearest = e < last ? e : last;
            transition_scores[r] = sentence.transition_scores(nearest);
            peak[r] = sentence.transition_max[nearest];
        }
        if (sentence.bounded()) {
            Mask<Real> widest = {};
            transpose_into_lanes<Real>(transition_scores, T * T, [&](int64_t c, Vec<Real> x) __attribute__((always_inline)) {
                store(out + c * W, bounded_exp(x, scale, widest));
            });
            return sentence.note_magnitude(widest);
        }
        const Vec<Real> transition_max = load<Real>(peak);
        transpose_into_lanes<Real>(transition_scores, T * T, [&](int64_t c, Vec<Real> x) __attribute__((always_inline)) {
            store(out + c * W, vexp(x * scale - transition_max));
        });
    }

    // One step of V vectors of positions.
    template <int V> void project(int parity, int64_t h, int64_t step) {
        compute_messages<V>(parity, h, step);
        const Real omega = Real(settings_.omegas[step]);
        for (int64_t v = 0; v < V * W; v += W)
            if (omega == 1) project_plain(parity, h + v, alpha_ + v, beta_ + v);
            else project_relaxed(parity, h + v, alpha_ + v, beta_ + v, omega);
    }

    struct Extremes {  // the smallest and the largest number of each lane
        Vec<Real> least = splat(Real(1)), most = least;
        BCRF_INLINE_MEMBER void include(Vec<Real> x) { least = vmin(least, x), most = vmax(most, x); }
        bool within(Real low, Real high) const { return !any((least < low) | (most > high)); }
    };

    // What a projection reads and writes of the positions from h on. It holds pointers of its own, because the
    // compiler must assume that a store could change the members of the class.
    struct Block {
        const Real *share, *weight;
        Real *exp_lam, *leaving, *entering;
        const Mask<Real> here;
        Extremes messages, ratios;

        Block(const ParityHalf& half, int64_t at, Mask<Real> interior)
            : share(half.share + at), weight(half.weight + at), exp_lam(half.exp_lam + at),
              leaving(half.leaving + at), entering(half.entering + at), here(interior) {}

        BCRF_INLINE_MEMBER Mask<Real> free(int64_t k) const {
            return (load(share + k) > -infinity<Real>()) & here;
        }
        // Loads a message. Tags that are removed or at the ends of the sentence get 1, so that exp(lam) stays 1.
        BCRF_INLINE_MEMBER Vec<Real> read(int64_t k, const Real* message) {
            const Vec<Real> x = free(k) ? load(message) : splat(Real(1));
            messages.include(x);
            return x;
        }
        BCRF_INLINE_MEMBER void set(int64_t k, Vec<Real> up) const {
            const Vec<Real> w = load(weight + k);
            store(exp_lam + k, up);
            store(leaving + k, w * (1 / up));
            store(entering + k, w * up);
        }
    };

    // exp(lam) <- sqrt(beta / alpha): a step with omega = 1.
    void project_plain(int parity, int64_t h, const Real* alpha, const Real* beta) {
        Block block(halves_[parity], kMargin + h, interior(parity, h));
        const int64_t stride = stride_, tags = T;
        for (int64_t t = 0; t < tags; ++t) {
            const Vec<Real> a = block.read(t * stride, alpha + t * kBlock);
            const Vec<Real> b = block.read(t * stride, beta + t * kBlock);
            block.set(t * stride, vsqrt(b / a));
        }
        finish_step(parity, h, block);
    }

    // exp(lam) <- exp(lam) (sqrt(beta / alpha) / exp(lam))^omega. Two loops, because the dependency chain from alpha
    // to exp(lam) is longer than the window of out-of-order execution.
    void project_relaxed(int parity, int64_t h, const Real* alpha, Real* beta, Real omega) {
        Block block(halves_[parity], kMargin + h, interior(parity, h));
        const int64_t stride = stride_, tags = T;
        for (int64_t t = 0; t < tags; ++t) {
            const Vec<Real> a = block.read(t * stride, alpha + t * kBlock);
            const Vec<Real> b = block.read(t * stride, beta + t * kBlock);
            const Vec<Real> old = load(block.exp_lam + t * stride), square = b / (a * old * old);
            block.ratios.include(square);
            store(beta + t * kBlock, vlog(square));
        }
        for (int64_t t = 0; t < tags; ++t) {
            const Vec<Real> old = load(block.exp_lam + t * stride);
            const Vec<Real> up = old * vexp_in_range(load(beta + t * kBlock), omega / 2);
            block.ratios.include(up);
            block.set(t * stride, up);
        }
        finish_step(parity, h, block);
    }

    void finish_step(int parity, int64_t h, const Block& block) {
        // A certificate holds at any lam, so certified decoding tolerates rounding errors by underflow.
        const Real least = settings_.several_sweeps ? std::numeric_limits<Real>::min() * 10 : underflow_limit<Real>();
        // Within these limits beta / alpha and the messages are finite.
        out_of_range_ |= !block.messages.within(least, largest<Real>() * underflow_limit<Real>());
        out_of_range_ |= !block.ratios.within(least, 1 / least);
        if (normalized_) return normalize(parity, h);
        const Vec<Real> one = splat(Real(1));
        store(halves_[parity].leaving_scale + kMargin + h, one);
        store(halves_[parity].entering_scale + kMargin + h, one);
    }

    // Divides leaving and entering of the positions from h on by their maxima.
    void normalize(int parity, int64_t h) {
        const ParityHalf& half = halves_[parity];
        const int64_t at = kMargin + h, stride = stride_, size = T * stride;
        const Real *weight = half.weight + at, *exp_lam = half.exp_lam + at;
        Real *leaving = half.leaving + at, *entering = half.entering + at;
        Vec<Real> out = {}, in = {}, most = {}, least = splat(largest<Real>());
        for (int64_t k = 0; k < size; k += stride) {
            const Vec<Real> up = load(exp_lam + k);
            out = vmax(out, load(leaving + k)), in = vmax(in, load(entering + k));
            least = vmin(least, up), most = vmax(most, up);
        }
        out_of_range_ |= any((most > least * load(half.spread + at)) | (most > largest<Real>()));
        store(half.leaving_scale + at, out);
        store(half.entering_scale + at, in);
        // A lane without a position has only zeros.
        const Vec<Real> tiny = splat(std::numeric_limits<Real>::min());
        const Vec<Real> by_out = 1 / vmax(out, tiny), by_in = 1 / vmax(in, tiny);
        for (int64_t k = 0; k < size; k += stride) {
            const Vec<Real> w = load(weight + k), up = load(exp_lam + k);
            store(leaving + k, w * (by_out / up));
            store(entering + k, w * (up * by_in));
        }
    }

    // Transposes the shares of the positions from h on: [position][tag] to [tag][lane].
    void read_shares(int parity, int64_t h) {
        const int64_t P = sentence.P, within = count(parity) - h;
        const Real* rows = sentence.unary + (2 * h + parity) * P;
        Real* out = halves_[parity].share + kMargin + h;
        for (int64_t t = 0; t < T; t += W) {
            Vec<Real> block[W];
            BCRF_UNROLL for (int64_t r = 0; r < W; ++r)
                block[r] = r < within ? load(rows + 2 * r * P + t) : splat(-infinity<Real>());
            transpose(block);
            if (t + W <= T) {
                BCRF_UNROLL for (int64_t k = 0; k < W; ++k) store(out + (t + k) * stride_, block[k]);
            } else {
                for (int64_t k = 0; t + k < T; ++k) store(out + (t + k) * stride_, block[k]);
            }
        }
    }

    // Sets weight = exp(share - peak), and leaving and entering as they are for lam = 0.
    void exponentiate_shares(ParityHalf& half, int64_t h) {
        const int64_t at = kMargin + h;
        const Vec<Real> none = splat(-infinity<Real>());
        Vec<Real> peak = none, least = -none;
        for (int64_t t = 0; t < T; ++t) {
            const Vec<Real> share = load(half.share + t * stride_ + at);
            peak = vmax(peak, share);
            least = vmin(least, share > none ? share : -none);
        }
        store(half.peak + at, peak);
        // Where weights underflow to 0, lam must stay narrow: its exp times such a weight is then too small to matter.
        const Mask<Real> underflows = peak - least > max_log_ratio<Real>();
        normalized_ |= any(underflows);
        store(half.spread + at, underflows ? splat(Real(kNarrowRatio)) : splat(max_ratio<Real>()));
        // A lane without a position has the peak -inf; -inf - (-inf) would be NaN.
        const Vec<Real> base = vmax(peak, splat(-largest<Real>())), one = splat(Real(1));
        store(half.leaving_scale + at, one);
        store(half.entering_scale + at, one);
        for (int64_t t = 0; t < T; ++t) {
            const int64_t k = t * stride_ + at;
            const Vec<Real> weight = vexp(load(half.share + k) - base);
            store(half.weight + k, weight);
            store(half.leaving + k, weight);
            store(half.entering + k, weight);
        }
    }

    // Here `exp_lam` still stores lam, defined up to a constant per position: the middle of its range becomes 0.
    void exponentiate_dual(int parity, int64_t h) {
        const Block block(halves_[parity], kMargin + h, interior(parity, h));
        const int64_t stride = stride_, size = T * stride;
        const Vec<Real> none = splat(-infinity<Real>());
        Vec<Real> most = none, least = -none;
        for (int64_t k = 0; k < size; k += stride) {
            const Vec<Real> lam = load(block.exp_lam + k);
            const Mask<Real> free = block.free(k);
            most = vmax(most, free ? lam : none), least = vmin(least, free ? lam : -none);
        }
        out_of_range_ |= any((most - least > max_log_ratio<Real>()) & block.here);
        if (out_of_range_) return;
        const Vec<Real> middle = (most + least) * Real(0.5);
        for (int64_t k = 0; k < size; k += stride)
            block.set(k, vexp_in_range(block.free(k) ? load(block.exp_lam + k) - middle : Vec<Real>{}));
        normalize(parity, h);
    }

    int64_t lanes_within(int parity, int64_t first) const {
        const int64_t left = count(parity) - first;
        return left < W ? left : W;
    }
    // Transposes the positions from lane index `first` on: from[tag][lane], rows of tag_stride, to out[position][tag],
    // rows of row_stride.
    template <class Out>
    void write_rows(
        const Real* from, int64_t tag_stride, int parity, int64_t first, Out* out, int64_t row_stride) const {
        const int64_t within = lanes_within(parity, first);
        out += (2 * first + parity) * row_stride;
        for (int64_t t = 0; t < T; t += W) {
            Vec<Real> block[W];
            BCRF_UNROLL for (int64_t k = 0; k < W; ++k)
                block[k] = load(from + (t + k < T ? t + k : T - 1) * tag_stride);
            transpose(block);
            for (int64_t r = 0; r < within; ++r) {
                Out* row = out + 2 * r * row_stride + t;
                if constexpr (sizeof(Out) == sizeof(Real)) {
                    if (t + W <= row_stride) {
                        store(row, block[r]);
                        continue;
                    }
                }
                for (int64_t k = 0; k < W && t + k < T; ++k) row[k] = Out(block[r][k]);
            }
        }
    }
};

}  // namespace
