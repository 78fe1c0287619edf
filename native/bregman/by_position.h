// Bregman projections with positions in lanes: value, gradient, marginals and dual. Layouts and steps:
// position_projections.h.
#pragma once
#include "position_projections.h"

namespace {

template <class Score, class Real, bool kShared>
class BregmanByPosition : public PositionProjections<Score, Real, kShared> {
    using Base = PositionProjections<Score, Real, kShared>;
    using typename Base::ParityHalf;
    using Base::T;
    using Base::settings_;
    using Base::stride_;
    using Base::halves_;
    using Base::alpha_;
    using Base::beta_;
    using Base::out_of_range_;
    using Base::normalized_;
    using Base::W;
    using Base::kBlock;
    using Base::kMargin;
    using Base::arcs;
    using Base::count;
    using Base::exponentiate_block;
    using Base::lanes_within;

  public:
    using Base::sentence, Base::write_back_dual, Base::duals, Base::shares, Base::sweep;

    BregmanByPosition(
        const Problem& p, const SharedTransitions<Score, Real>& shared, const Projections& settings)
        : Base(p, shared, settings) {
        gold_.allocate(padded<Real>(p.n));
        if (kShared) {
            total_.allocate(T * T);
            return;
        }
        for (Array<Real>* a : {&x_, &y_}) a->allocate(T * W);
        for (Array<int64_t>* a : {&from_, &to_}) a->allocate(T * T);
        for (int64_t c = 0; c < T * T; ++c) from_[c] = c / T * W, to_[c] = c % T * W;
    }

    // Runs the projections and writes what is requested. The value is D(lam), with gold tags the loss. Returns false
    // if the range of Real is too small, or a score is outside the bound of the fast path.
    bool solve(const int64_t* tags, const SentenceOutputs<Score>& outputs, double& value, double& residual) {
        const int64_t L = sentence.L;
        value = residual = 0;
        if (L < 2) return false;
        outputs.clear(sentence.problem, L);
        residual_ = Vec<Real>{};
        // The geometric mean gives more weight to unlikely tags, so they must be precise.
        normalized_ |= outputs.marginals || outputs.best_tags;
        sweep(
            0, settings_.iterations, [&](int64_t h) { exponentiate_block(h); },
            [&](int64_t h) { finish_blocks(h, outputs); });
        if (out_of_range_) return false;
        residual = double(hmax(residual_));
        if (tags) read_gold(tags);
        for (int64_t e = 0; e + 1 < L; ++e) {
            const ParityHalf &from = halves_[e % 2], &to = halves_[(e + 1) % 2];
            const int64_t at = kMargin + e / 2, next = kMargin + (e + 1) / 2;
            const double log_sum = double(from.log_leaving[at]) + double(from.peak[at]) +
                                   double(to.log_entering[next]) + double(to.peak[next]) +
                                   double(sentence.transition_max[e]);
            value += tags ? clamp_rounding(log_sum - gold_score(e, tags[e], tags[e + 1])) : log_sum;
        }
        if (outputs.gradient.transitions && kShared) {
            normalize_leaving();
            expected_counts(outputs.gradient.transitions);
        }
        if (tags) outputs.gradient.subtract(tags, L, T);
        return true;
    }

    void write_dual(Score* out) {
        std::memset(out, 0, size_t(sentence.problem.n * T) * sizeof(Score));
        write_back_dual();
        for (int64_t i = 1; i + 1 < sentence.L; ++i)
            write_centred_dual(
                duals(i), T, [&](int64_t t) { return shares(i)[t] == -infinity<Real>(); }, out + i * T);
    }

    // A cheap test whether the best arcs of all edges may form a path. It uses the linear weights: if the arc that
    // continues the path is below 0.9 of the best arc, the answer is no. A wrong answer (arcs that are equally good)
    // only loses a proof. It gains up to 29 % of certified decoding.
    bool may_form_path() {
        Real top[2][W], target[2][W];
        int64_t here = -1;  // the tag that the best arc of the last edge enters
        for (int64_t h = 0; 2 * h + 1 < sentence.L; h += W) {
            for (int parity = 0; parity < 2; ++parity)
                best_arcs(parity, h, top[parity], target[parity]);
            for (int64_t e = 2 * h; e < 2 * (h + W) && e + 1 < sentence.L; ++e) {
                const int parity = int(e % 2);
                const int64_t r = e / 2 - h, next = int64_t(target[parity][r]);
                if (here >= 0 && arc_weight(e, here, next) < top[parity][r] * Real(0.9)) return false;
                here = next;
            }
        }
        return true;
    }

  private:
    Array<Real> total_;         // [T][T]: sums of expected_counts
    Array<Real> gold_;          // [n]: lam of the gold tags
    Array<Real> x_, y_;         // [tag][lane]: the two factors of arc marginals
    Array<int64_t> from_, to_;  // [T * T]: where the rows of the tags of an arc begin in x_ and y_
    Vec<Real> residual_;             // largest |incoming - outgoing| of each lane
    // The weight of the best arc of the edges 2h + parity, 2h + parity + 2, ..., and the tag that it enters.
    void best_arcs(int parity, int64_t h, Real* top, Real* target) {
        const Real* x = halves_[parity].leaving + kMargin + h;
        const Real* y = halves_[1 - parity].entering + kMargin + h + parity;
        if (kShared)
            product_per_lane<Real, 1, false, true>(
                sentence.shared.rows, sentence.P, 1, T, x, stride_, alpha_, kBlock);
        else product_per_lane<Real, 1, true, true>(arcs(parity, h), T * W, W, T, x, stride_, alpha_, kBlock);
        Vec<Real> most = splat(Real(-1)), best = {};
        for (int64_t t = 0; t < T; ++t) {
            const Vec<Real> q = load(alpha_ + t * kBlock) * load(y + t * stride_);
            best = q > most ? splat(Real(t)) : best;
            most = vmax(most, q);
        }
        store(top, most);
        store(target, best);
    }
    // The weight of an arc.
    Real arc_weight(int64_t e, int64_t s, int64_t t) const {
        const int64_t h = e / 2, parity = e % 2;
        const Real arc = kShared ? sentence.shared.rows[s * sentence.P + t]
                                 : arcs(int(parity), h / W * W)[(s * T + t) * W + h % W];
        return halves_[parity].leaving[s * stride_ + kMargin + h] * arc *
               halves_[1 - parity].entering[t * stride_ + kMargin + h + parity];
    }

    // Writes the outputs of the block at h; lam of this block and of its neighbours is final.
    void finish_blocks(int64_t h, const SentenceOutputs<Score>& outputs) {
        for (int parity = 0; parity < 2; ++parity) {
            const int64_t left = count(parity) - h;
            if (left > W) finish_block<2>(parity, h, outputs);
            else if (left > 0) finish_block<1>(parity, h, outputs);
        }
        if (kShared || !outputs.gradient.transitions) return;
        for (int64_t v = h; v < h + kBlock; v += W)
            for (int parity = 0; parity < 2; ++parity) write_arcs(parity, v, outputs.gradient.transitions);
    }

    // Writes the arc marginals leaving[s] factor arc[s][t] entering[t] of the edges 2h + parity, 2h + parity + 2, ...
    void write_arcs(int parity, int64_t h, Score* out) {
        const int64_t size = T * T, edges = (sentence.L - 2 * h - parity) / 2;  // from lane index h on
        const int64_t within = edges < W ? edges : W;
        if (within <= 0) return;
        const int64_t at = kMargin + h;
        const Vec<Real> factor = load(halves_[parity].factor + at);
        for (int64_t t = 0; t < T; ++t) {
            store(x_ + t * W, load(halves_[parity].leaving + t * stride_ + at) * factor);
            store(y_ + t * W, load(halves_[1 - parity].entering + t * stride_ + at + parity));
        }
        const Real* arc = arcs(parity, h);
        out += (2 * h + parity) * size;
        int64_t c = 0;
        for (; c + W <= size; c += W) {
            Vec<Real> block[W];
            BCRF_UNROLL for (int64_t k = 0; k < W; ++k) block[k] = arc_marginal(arc, c + k);
            transpose(block);
            if (sizeof(Score) == sizeof(Real) && within == W) {
                BCRF_UNROLL for (int64_t r = 0; r < W; ++r) store_marginal(block[r], out + 2 * r * size + c);
            } else {
                for (int64_t r = 0; r < within; ++r) store_marginal(block[r], out + 2 * r * size + c);
            }
        }
        for (; c < size; ++c) {
            Real lane[W];
            store(lane, arc_marginal(arc, c));
            for (int64_t r = 0; r < within; ++r) out[2 * r * size + c] = Score(lane[r]);
        }
    }
    BCRF_INLINE_MEMBER Vec<Real> arc_marginal(const Real* arc, int64_t c) const {
        return load(x_ + from_[c]) * load(arc + c * W) * load(y_ + to_[c]);
    }
    BCRF_INLINE_MEMBER void store_marginal(Vec<Real> q, Score* to) const {
        if constexpr (sizeof(Score) == sizeof(Real)) store(to, q);
        else
            for (int64_t k = 0; k < W; ++k) to[k] = Score(q[k]);
    }

    // Computes incoming and outgoing marginals of the positions from h on, and writes what is requested of them.
    template <int V> void finish_block(int parity, int64_t h, const SentenceOutputs<Score>& outputs) {
        ParityHalf& half = halves_[parity];
        this->template compute_messages<V>(parity, h, settings_.iterations);
        for (int v = 0; v < V; ++v) {
            const int64_t first = h + v * W, at = kMargin + first, stride = stride_, tags = T;
            const Real *entering = half.entering + at, *leaving = half.leaving + at;
            Real *alpha = alpha_ + v * W, *beta = beta_ + v * W;
            Vec<Real> in_sum = {}, out_sum = {}, residual = residual_;
            for (int64_t t = 0; t < tags; ++t) {
                in_sum += load(entering + t * stride) * load(alpha + t * kBlock);
                out_sum += load(leaving + t * stride) * load(beta + t * kBlock);
            }
            const Vec<Real> i = lane_index<Real>() * Real(2) + Real(2 * first + parity);
            const Mask<Real> has_in = (i > Real(0.5)) & (i < Real(sentence.L) - Real(0.5));
            const Mask<Real> has_out = i < Real(sentence.L) - Real(1.5);
            out_of_range_ |= any(((in_sum < underflow_limit<Real>()) & has_in) | ((out_sum < underflow_limit<Real>()) & has_out));
            out_of_range_ |= any((in_sum > 1 / underflow_limit<Real>()) | (out_sum > 1 / underflow_limit<Real>()));
            store(half.log_leaving + at, vlog(out_sum) + vlog(load(half.leaving_scale + at)));
            store(half.log_entering + at, vlog(load(half.entering_scale + at)));
            const Vec<Real> one = splat(Real(1));
            const Vec<Real> in_factor = has_in ? one / in_sum : Vec<Real>{};
            const Vec<Real> out_factor = has_out ? one / out_sum : Vec<Real>{};
            store(half.factor + at, out_factor);
            const Mask<Real> both = has_in & has_out;
            Vec<Real> overlap = {};
            const bool means = outputs.marginals || outputs.best_tags, outgoing_only = outputs.outgoing_marginals;
            for (int64_t t = 0; t < tags; ++t) {
                Real *in = alpha + t * kBlock, *out = beta + t * kBlock;
                const Vec<Real> p = load(entering + t * stride) * load(in) * in_factor;
                const Vec<Real> q = load(leaving + t * stride) * load(out) * out_factor;
                residual = vmax(residual, both ? vmax(p - q, q - p) : Vec<Real>{});
                // The two ends of a sentence have one side only, which stands for both.
                const Vec<Real> incoming = has_in ? p : q, outgoing = has_out ? q : p;
                store(in, (incoming + outgoing) * Real(0.5));
                if (!means) continue;
                const Vec<Real> mean = outgoing_only ? outgoing : vsqrt(incoming) * vsqrt(outgoing);
                store(out, mean);
                overlap += mean;
            }
            residual_ = residual;
            if (outputs.gradient.unary) this->write_rows(alpha, kBlock, parity, first, outputs.gradient.unary, T);
            if (!means) continue;
            if (!outputs.outgoing_marginals)
                out_of_range_ |= any(((overlap < kSmallOverlap<Real>) | (vmin(in_sum, out_sum) < kPreciseSum<Real>)) & both);
            for (int64_t t = 0; t < T; ++t) {
                Real* mean = beta_ + t * kBlock + v * W;
                store(mean, load(mean) / overlap);
            }
            if (outputs.marginals) this->write_rows(beta_ + v * W, kBlock, parity, first, outputs.marginals, T);
            if (outputs.best_tags) write_best(beta_ + v * W, parity, first, outputs.best_tags);
        }
    }

    // Scales `leaving` so that leaving * arc * entering is the arc marginal.
    void normalize_leaving() {
        for (int parity = 0; parity < 2; ++parity) {
            const ParityHalf& half = halves_[parity];
            for (int64_t t = 0; t < T; ++t)
                for (int64_t h = kMargin; h < kMargin + count(parity); h += W) {
                    Real* x = half.leaving + t * stride_ + h;
                    store(x, load(x) * load(half.factor + h));
                }
        }
    }

    void write_best(const Real* from, int parity, int64_t first, int64_t* best) const {
        for (int64_t j = 0; j < lanes_within(parity, first); ++j) {
            int64_t top = 0;
            for (int64_t t = 1; t < T; ++t)
                if (from[t * kBlock + j] > from[top * kBlock + j]) top = t;
            best[2 * (first + j) + parity] = top;
        }
    }

    // Stores lam of the gold tags.
    void read_gold(const int64_t* tags) {
        for (int64_t i = 0; i < sentence.L; ++i)
            gold_[i] = halves_[i % 2].exp_lam[tags[i] * stride_ + kMargin + i / 2];
        for (int64_t i = 0; i < sentence.L; i += W) store(gold_ + i, vlog(load(gold_ + i)));
    }
    // The reduced score of a gold arc, after `read_gold`.
    double gold_score(int64_t e, int64_t s, int64_t t) const {
        return share(e, s) - double(gold_[e]) + sentence.arc_score(e, s, t) + share(e + 1, t) +
               double(gold_[e + 1]);
    }
    double share(int64_t i, int64_t t) const {
        return double(halves_[i % 2].share[t * stride_ + kMargin + i / 2]);
    }

    // Sums the arc marginals of shared transitions over all edges: a product of two matrices, in blocks of 4 x 2
    // sums that stay in registers.
    void expected_counts(Score* out) {
        const int64_t P = sentence.P;
        for (int64_t s = 0; s < T; s += 4)
            for (int64_t t = 0; t < T; t += 2) {
                const int64_t rows = T - s < 4 ? T - s : 4, columns = T - t < 2 ? T - t : 2;
                if (rows == 4 && columns == 2) count_block<4, 2>(s, t);
                else
                    for (int64_t r = 0; r < rows; ++r)
                        for (int64_t c = 0; c < columns; ++c) count_block<1, 1>(s + r, t + c);
            }
        for (int64_t s = 0; s < T; ++s)
            for (int64_t t = 0; t < T; ++t)
                out[s * T + t] = Score(total_[s * T + t] * sentence.shared.rows[s * P + t]);
    }
    template <int R, int C> BCRF_INLINE_MEMBER void count_block(int64_t s, int64_t t) {
        Vec<Real> sum[R][C];
        BCRF_UNROLL for (int r = 0; r < R; ++r)
            BCRF_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = splat(Real(0));
        for (int parity = 0; parity < 2; ++parity) {
            const ParityHalf &from = halves_[parity], &to = halves_[1 - parity];
            const Real* x = from.leaving + s * stride_ + kMargin;
            const Real* y = to.entering + t * stride_ + kMargin + parity;
            for (int64_t h = 0; h < count(parity); h += W)
                BCRF_UNROLL for (int r = 0; r < R; ++r)
                    BCRF_UNROLL for (int c = 0; c < C; ++c)
                        sum[r][c] += load(x + r * stride_ + h) * load(y + c * stride_ + h);
        }
        BCRF_UNROLL for (int r = 0; r < R; ++r)
            BCRF_UNROLL for (int c = 0; c < C; ++c) total_[(s + r) * T + t + c] = hsum(sum[r][c]);
    }
};

}  // namespace
