// The projections of `bregman.h` with positions in the lanes of vectors.
//
// All positions of one parity are projected at once; here that is meant literally. Scores lie by tag
// and, within a tag, by position of one parity: neighbours of consecutive lanes are consecutive lanes
// of the other parity. The pairs of every edge, if they are not shared, lie by block of positions and
// within it by arc, and are gone through in that order. No lane is lost to padding tags, and nothing
// is summed across lanes. The state is not lam but exp(lam), to which a projection gives the value
// sqrt(beta / alpha): no logarithm, no exponential. Where a sentence needs more than the range of
// numbers, this gives up and `bregman.h` does it.
#pragma once
#include "bregman.h"

#include <limits>

namespace {

// How far apart numbers may be, as a logarithm and as a factor; and when some are beyond the range.
template <class Real> constexpr Real widest() { return sizeof(Real) == 4 ? Real(85) : Real(700); }
template <class Real> constexpr Real wide() { return sizeof(Real) == 4 ? Real(8e36) : Real(1e304); }
constexpr double kClose = 8.8e6;
template <class Real> constexpr Real big() { return sizeof(Real) == 4 ? Real(3e38) : Real(1e308); }

template <class In, class Real, bool kShared> class LaneBregman {
  public:
    Chain<In, Real, 0> chain;
    static constexpr bool kHasty = !kShared;

    LaneBregman(const Problem& p, const SharedPairs<In, Real>& shared, const Projections& settings)
        : chain(p, shared, 1), T(p.tags), settings_(settings),
          // An odd number of vectors: rows a power of two apart would compete for the same cache lines.
          stride_(2 * W * (p.n / (4 * W) + 1) + 3 * kMargin) {
        for (int parity = 0; parity < 2; ++parity) {
            Half& half = halves_[parity];
            for (Array<Real>* a : {&half.share, &half.weight, &half.exp_lam, &half.leaving, &half.entering})
                a->allocate(T * stride_);
            // Lanes without a position are worked on too: they must hold numbers.
            std::memset(half.leaving, 0, size_t(T * stride_) * sizeof(Real));
            std::memset(half.entering, 0, size_t(T * stride_) * sizeof(Real));
            for (Array<Real>* a :
                 {&half.peak, &half.spread, &half.leaving_top, &half.entering_top, &half.log_leaving,
                  &half.log_entering, &half.factor})
                a->allocate(stride_);
        }
        for (Array<Real>* a : {&alpha_, &beta_}) a->allocate(T * kBlock);
        duals_.allocate(p.n * chain.P);
        gold_.allocate(padded<Real>(p.n));
        if (kShared) total_.allocate(T * T);
        if (kShared) return;
        const int64_t blocks = (p.n + 1) / 2 / W + 2;
        for (Array<Real>& arcs : arcs_) arcs.allocate(blocks * T * T * W);
        carry_.allocate((settings.iterations + 1) * T * W);
        for (Array<Real>* a : {&x_, &y_}) a->allocate(T * W);
        for (Array<int64_t>* a : {&from_, &to_}) a->allocate(T * T);
        for (int64_t c = 0; c < T * T; ++c) from_[c] = c / T * W, to_[c] = c % T * W;
    }

    // Whether positions fill the lanes of vectors better than tags do.
    static bool suits(const Problem& p, int64_t L) {
        const int64_t half = (L + 1) / 2, T = p.tags;
        return L > 1 && double(half) / double(padded<Real>(half)) > 0.9 * double(T) / double(padded<Real>(T));
    }

    // lam = 0, or as the gauge or the caller has it.
    void start(const In* given) {
        const int64_t L = chain.L, P = chain.P;
        low_ = false;
        scaled_ = settings_.again;
        if (chain.problem.unary)  // otherwise the shares come as such
            for (int64_t k = P; k < (L - 1) * P; ++k) chain.nodes[k] *= Real(0.5);
        for (int parity = 0; parity < 2; ++parity) {
            Half& half = halves_[parity];
            for (int64_t k = 0; k < T * stride_; ++k) half.exp_lam[k] = 1;
            for (int64_t h = 0; h < count(parity); h += W) {
                read_shares(parity, h);
                weigh(half, h);
            }
        }
        if (!given && !settings_.gauge_right) return;
        for (int64_t i = 1; i + 1 < L; ++i)
            for (int64_t t = 0; t < T; ++t) {
                const Real share = chain.nodes[i * P + t];
                Real& lam = halves_[i % 2].exp_lam[t * stride_ + kMargin + i / 2];
                if (share > -infinity<Real>()) lam = given ? Real(given[i * T + t]) : share;
            }
        for (int parity = 0; parity < 2; ++parity)
            for (int64_t h = 0; h < count(parity); h += W) exponentiate(parity, h);
    }

    // Before `sweep` is called for the first time.
    void enter_all() {
        for (int64_t h = 0; chain.L > 1 && h < count(0); h += kBlock) enter(h);
    }

    // Steps k0..k1-1. Step k of a block of odd positions needs step k - 1 of the even ones of its
    // own block and of the next; a block of even positions needs the odd ones of its own and of the
    // block before. So every second step stays a block behind the one before, and few blocks are
    // touched at a time. `enter` and `leave` are told where a block of both parities begins, before
    // its first step, and where it has seen its last and so has the one after it.
    template <class Enter, class Leave>
    void sweep(int64_t k0, int64_t k1, Enter enter, Leave leave) {
        const int64_t blocks = (count(0) + kBlock - 1) / kBlock;
        for (int64_t p = 0, left_behind = 0; left_behind < blocks && !low_; ++p) {
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
            if (q > 0) leave(left_behind++ * kBlock);
        }
    }
    void sweep(int64_t k0, int64_t k1) {
        const auto nothing = [](int64_t) {};
        sweep(k0, k1, nothing, nothing);
    }

    // As `Bregman::solve`; false if the range of Real is too small.
    bool solve(const int64_t* tags, const Wanted<In>& wanted, double& value, double& gap) {
        const int64_t L = chain.L;
        value = gap = 0;
        if (L < 2) return false;
        wanted.clear(chain.problem, L);
        gap_ = Vec<Real>{};
        // Tags of little mass count for more in a geometric mean.
        scaled_ |= wanted.marginals || wanted.best;
        sweep(
            0, settings_.iterations, [&](int64_t h) { enter(h); },
            [&](int64_t h) { leave(h, wanted); });
        if (low_) return false;
        gap = double(hmax(gap_));
        if (tags) read_gold(tags);
        for (int64_t e = 0; e + 1 < L; ++e) {
            const Half &from = halves_[e % 2], &to = halves_[(e + 1) % 2];
            const int64_t at = kMargin + e / 2, next = kMargin + (e + 1) / 2;
            const double log_sum = double(from.log_leaving[at]) + double(from.peak[at]) +
                                   double(to.log_entering[next]) + double(to.peak[next]) +
                                   double(chain.peaks[e]);
            value += tags ? positive(log_sum - gold(e, tags[e], tags[e + 1])) : log_sum;
        }
        if (wanted.gradient.pair && kShared) {
            normalise();
            add_counts(wanted.gradient.pair);
        }
        if (tags) wanted.gradient.subtract(tags, L, T);
        return true;
    }

    void write_dual(In* out) {
        std::memset(out, 0, size_t(chain.problem.n * T) * sizeof(In));
        settle();
        for (int64_t i = 1; i + 1 < chain.L; ++i) {
            const Real* lam = duals(i);
            Real sum = 0;
            int64_t free = 0;
            for (int64_t t = 0; t < T; ++t)
                if (!dead(i, t)) sum += lam[t], ++free;
            for (int64_t t = 0; t < T; ++t)
                if (!dead(i, t)) out[i * T + t] = In(lam[t] - sum / Real(free));
        }
    }
    // Whether the arcs that are best on every edge may join up to a path. In numbers that are not
    // exact: where they seem far from it they are taken not to. (If that is wrong, arcs being equally
    // good, a proof is lost and no more.)
    bool may_join() {
        Real top[2][W], target[2][W];
        int64_t here = -1;  // where the best arc so far leads
        for (int64_t h = 0; 2 * h + 1 < chain.L; h += W) {
            for (int parity = 0; parity < 2; ++parity)
                best_arcs(parity, h, top[parity], target[parity]);
            for (int64_t e = 2 * h; e < 2 * (h + W) && e + 1 < chain.L; ++e) {
                const int parity = int(e % 2);
                const int64_t r = e / 2 - h, next = int64_t(target[parity][r]);
                if (here >= 0 && mass(e, here, next) < top[parity][r] * Real(0.9)) return false;
                here = next;
            }
        }
        return true;
    }

    // For every position, in rows of chain.P numbers: lam as it was when `settle` was called, and the
    // shares of the unary scores, -inf if dead.
    void settle() {
        for (int parity = 0; parity < 2; ++parity)
            for (int64_t h = 0; h < count(parity); h += W) {
                const Real* exp_lam = halves_[parity].exp_lam + kMargin + h;
                for (int64_t t = 0; t < T; ++t)
                    store(alpha_ + t * kBlock, vlog(load(exp_lam + t * stride_)));
                write(alpha_, kBlock, parity, h, +duals_, chain.P);
            }
    }
    const Real* duals(int64_t i) const { return duals_ + i * chain.P; }
    const Real* shares(int64_t i) const { return chain.nodes + i * chain.P; }
    bool dead(int64_t i, int64_t t) const {
        return halves_[i % 2].share[t * stride_ + kMargin + i / 2] == -infinity<Real>();
    }
    bool failed() const { return low_; }

  private:
    static constexpr int64_t W = lanes<Real>();
    static constexpr int64_t kBlock = 2 * W;   // positions that are worked on together
    static constexpr int64_t kMargin = W;      // room for neighbours that do not exist

    // The positions of one parity, by tag: h of position i is i / 2.
    struct Half {
        Array<Real> share;              // of the unary score in the arcs on either side; -inf if dead
        Array<Real> weight, peak;       // exp(share - peak), the largest share
        Array<Real> exp_lam;
        Array<Real> spread;             // how far apart they may be: a factor
        Array<Real> leaving, entering;  // weight / exp_lam, weight exp_lam, both divided by:
        Array<Real> leaving_top, entering_top;  // 1, or if scaled what makes the maximum 1
        Array<Real> factor;             // 1 / the sum over the arcs that leave; 0 where none leaves
        Array<Real> log_leaving, log_entering;  // of that sum times the top, and of the other top
    };

    const int64_t T;
    const Projections& settings_;
    const int64_t stride_;
    Half halves_[2];
    Array<Real> alpha_, beta_;  // [T, kBlock]
    Array<Real> total_;
    Array<Real> duals_;         // lam by position
    Array<Real> gold_;          // [n]: lam of the gold tags
    // Exponentials of the pairs, [positions / W, T * T, W]: edges after even and after odd positions.
    Array<Real> arcs_[2];
    Array<Real> carry_;         // [steps + 1, T, W]: what arrives after the last odd block of a step
    Array<Real> x_, y_;         // [T, W]: the two sides of some edges
    Array<int64_t> from_, to_;  // where the rows of the two tags of an arc are in these
    Vec<Real> gap_;
    bool low_ = false;     // something is too small, or too large, for a number
    bool scaled_ = false;  // what leaves a position and what enters it is at most 1

    int64_t count(int parity) const { return (chain.L + 1 - parity) / 2; }

    // Which lanes from h on are interior positions.
    Mask<Real> interior(int parity, int64_t h) const {
        const Vec<Real> i = lane_index<Real>() * Real(2) + Real(2 * h + parity);
        return (i > Real(0.5)) & (i < Real(chain.L - 1) - Real(0.5));
    }

    // The mass of the best arc on edges 2h + parity, + 2, ..., and where it leads.
    void best_arcs(int parity, int64_t h, Real* top, Real* target) {
        const Real* x = halves_[parity].leaving + kMargin + h;
        const Real* y = halves_[1 - parity].entering + kMargin + h + parity;
        if (kShared)
            lane_product<Real, 1, false, true>(
                chain.shared.rows, chain.P, 1, T, x, stride_, alpha_, kBlock);
        else lane_product<Real, 1, true, true>(arcs(parity, h), T * W, W, T, x, stride_, alpha_, kBlock);
        Vec<Real> most = splat(Real(-1)), best = {};
        for (int64_t t = 0; t < T; ++t) {
            const Vec<Real> q = load(alpha_ + t * kBlock) * load(y + t * stride_);
            best = q > most ? splat(Real(t)) : best;
            most = vmax(most, q);
        }
        store(top, most);
        store(target, best);
    }
    // The mass of an arc.
    Real mass(int64_t e, int64_t s, int64_t t) const {
        const int64_t h = e / 2, parity = e % 2;
        const Real arc = kShared ? chain.shared.rows[s * chain.P + t]
                                 : arcs(int(parity), h / W * W)[(s * T + t) * W + h % W];
        return halves_[parity].leaving[s * stride_ + kMargin + h] * arc *
               halves_[1 - parity].entering[t * stride_ + kMargin + h + parity];
    }

    // out[t] = sum_s arcs[s, t] x[s] for V vectors of positions.
    template <int V>
    BCRF_INLINE_MEMBER void product(
        const Real* arcs, int64_t by_s, int64_t by_t, const Real* x, Real* out) const {
        lane_product<Real, V, !kShared>(arcs, by_s, by_t, T, x, stride_, out, kBlock);
    }

    // What arrives at and departs from the positions h.. of one parity: alpha and beta. The
    // position before 2h + 1 is 2h, the one after it 2(h + 1). `step` is any number that blocks
    // which come one after the other have in common.
    template <int V> void messages(int parity, int64_t h, int64_t step) {
        const Half& other = halves_[1 - parity];
        const int64_t P = chain.P, before = kMargin + h - (1 - parity), after = before + 1;
        if (kShared) {
            product<V>(chain.shared.rows, P, 1, other.leaving + before, alpha_);
            product<V>(chain.shared.columns, P, 1, other.entering + after, beta_);
            return;
        }
        BCRF_UNROLL for (int64_t v = 0; v < V * W; v += W) {
            // Edges lie in the lanes of the position before them.
            const Real *in = other.leaving + kMargin + h + v, *out = other.entering + after + v;
            product<1>(arcs(1 - parity, h + v), T * W, W, in, alpha_ + v);
            product<1>(arcs(parity, h + v), W, T * W, out, beta_ + v);
            if (!parity) delay(h + v == 0, alpha_ + v, carry_ + step * T * W);
        }
    }

    // What arrives at even positions lies a lane behind them, and the last of it belongs to the
    // next block.
    BCRF_INLINE_MEMBER void delay(bool first, Real* alpha, Real* carry) const {
        const int64_t tags = T;
        for (int64_t t = 0; t < tags; ++t) {
            const Vec<Real> now = load(alpha + t * kBlock);
            const Vec<Real> before = first ? Vec<Real>{} : load(carry + t * W);
            store(carry + t * W, now);
            store(alpha + t * kBlock, delayed(before, now));
        }
    }

    Real* arcs(int parity, int64_t h) const { return arcs_[parity] + h * T * T; }

    void enter(int64_t h) {
        for (int64_t v = h; !kShared && v < h + kBlock && v < count(0); v += W) {
            read_arcs(2 * v, arcs(0, v));
            read_arcs(2 * v + 1, arcs(1, v));
        }
        if (chain.hasty() && chain.strayed()) low_ = true;
    }

    // All of the block at h and of its neighbours has the final lam.
    void leave(int64_t h, const Wanted<In>& wanted) {
        for (int parity = 0; parity < 2; ++parity) {
            const int64_t left = count(parity) - h;
            if (left > W) finish<2>(parity, h, wanted);
            else if (left > 0) finish<1>(parity, h, wanted);
        }
        if (kShared || !wanted.gradient.pair) return;
        for (int64_t v = h; v < h + kBlock; v += W)
            for (int parity = 0; parity < 2; ++parity) write_arcs(parity, v, wanted.gradient.pair);
    }

    // Exponentials of the pairs on edges first, first + 2, ...
    void read_arcs(int64_t first, Real* out) {
        const In* raw[W];
        Real peak[W];
        const Real scale = Real(chain.problem.scale);
        for (int64_t r = 0; r < W; ++r) {
            // Where there is no such edge, any other will do.
            const int64_t last = chain.L - 2, e = first + 2 * r, some = e < last ? e : last;
            raw[r] = chain.raw(some);
            peak[r] = chain.peaks[some];
        }
        if (chain.hasty()) {
            Mask<Real> widest = {};
            gather<Real>(raw, T * T, [&](int64_t c, Vec<Real> x) __attribute__((always_inline)) {
                store(out + c * W, hasty_exp(x, scale, widest));
            });
            return chain.remember(widest);
        }
        const Vec<Real> peaks = load<Real>(peak);
        gather<Real>(raw, T * T, [&](int64_t c, Vec<Real> x) __attribute__((always_inline)) {
            store(out + c * W, vexp(x * scale - peaks));
        });
    }

    // q on the same edges: leaving[s] arc[s, t] entering[t], the first being normalised.
    void write_arcs(int parity, int64_t h, In* out) {
        const int64_t size = T * T, edges = (chain.L - 2 * h - parity) / 2;  // from here on
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
            BCRF_UNROLL for (int64_t k = 0; k < W; ++k) block[k] = share_of(arc, c + k);
            transpose(block);
            if (sizeof(In) == sizeof(Real) && within == W) {
                BCRF_UNROLL for (int64_t r = 0; r < W; ++r) write_some(block[r], out + 2 * r * size + c);
            } else {
                for (int64_t r = 0; r < within; ++r) write_some(block[r], out + 2 * r * size + c);
            }
        }
        for (; c < size; ++c) {
            Real lane[W];
            store(lane, share_of(arc, c));
            for (int64_t r = 0; r < within; ++r) out[2 * r * size + c] = In(lane[r]);
        }
    }
    BCRF_INLINE_MEMBER Vec<Real> share_of(const Real* arc, int64_t c) const {
        return load(x_ + from_[c]) * load(arc + c * W) * load(y_ + to_[c]);
    }
    BCRF_INLINE_MEMBER void write_some(Vec<Real> q, In* to) const {
        if constexpr (sizeof(In) == sizeof(Real)) store(to, q);
        else
            for (int64_t k = 0; k < W; ++k) to[k] = In(q[k]);
    }

    template <int V> void project(int parity, int64_t h, int64_t step) {
        messages<V>(parity, h, step);
        const Real omega = Real(settings_.omegas[step]);
        for (int64_t v = 0; v < V * W; v += W)
            if (omega == 1) move(parity, h + v, alpha_ + v, beta_ + v);
            else relax(parity, h + v, alpha_ + v, beta_ + v, omega);
    }

    struct Range {
        Vec<Real> least = splat(Real(1)), most = least;
        BCRF_INLINE_MEMBER void include(Vec<Real> x) { least = vmin(least, x), most = vmax(most, x); }
        bool within(Real low, Real high) const { return !any((least < low) | (most > high)); }
    };

    // What a projection reads and writes of the positions from h on. (Pointers of its own: the compiler
    // cannot know that nothing which is stored is a member.)
    struct View {
        const Real *share, *weight;
        Real *exp_lam, *leaving, *entering;
        const Mask<Real> here;
        Range messages, ratios;

        View(const Half& half, int64_t at, Mask<Real> interior)
            : share(half.share + at), weight(half.weight + at), exp_lam(half.exp_lam + at),
              leaving(half.leaving + at), entering(half.entering + at), here(interior) {}

        BCRF_INLINE_MEMBER Mask<Real> free(int64_t k) const {
            return (load(share + k) > -infinity<Real>()) & here;
        }
        // What arrives or departs; where nothing is to move 1, so that exp(lam) stays that.
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

    // exp(lam) <- sqrt(beta / alpha)
    void move(int parity, int64_t h, const Real* alpha, const Real* beta) {
        View view(halves_[parity], kMargin + h, interior(parity, h));
        const int64_t by = stride_, tags = T;
        for (int64_t t = 0; t < tags; ++t) {
            const Vec<Real> a = view.read(t * by, alpha + t * kBlock);
            const Vec<Real> b = view.read(t * by, beta + t * kBlock);
            view.set(t * by, vsqrt(b / a));
        }
        moved(parity, h, view);
    }

    // exp(lam) <- exp(lam) (sqrt(beta / alpha) / exp(lam))^omega. In two loops: the way from alpha to
    // exp(lam) is long, and a processor sees only so far ahead.
    void relax(int parity, int64_t h, const Real* alpha, Real* beta, Real omega) {
        View view(halves_[parity], kMargin + h, interior(parity, h));
        const int64_t by = stride_, tags = T;
        for (int64_t t = 0; t < tags; ++t) {
            const Vec<Real> a = view.read(t * by, alpha + t * kBlock);
            const Vec<Real> b = view.read(t * by, beta + t * kBlock);
            const Vec<Real> old = load(view.exp_lam + t * by), square = b / (a * old * old);
            view.ratios.include(square);
            store(beta + t * kBlock, vlog(square));
        }
        for (int64_t t = 0; t < tags; ++t) {
            const Vec<Real> old = load(view.exp_lam + t * by);
            const Vec<Real> up = old * vexp_within(load(beta + t * kBlock), omega / 2);
            view.ratios.include(up);
            view.set(t * by, up);
        }
        moved(parity, h, view);
    }

    void moved(int parity, int64_t h, const View& view) {
        // Any lam will do for a certificate, rounded as it may be.
        const Real least = settings_.again ? std::numeric_limits<Real>::min() * 10 : safe<Real>();
        // As long as these hold, beta / alpha is a number, and so is the sum of what arrives at others.
        low_ |= !view.messages.within(least, big<Real>() * safe<Real>());
        low_ |= !view.ratios.within(least, 1 / least);
        if (scaled_) return scale(parity, h);
        const Vec<Real> one = splat(Real(1));
        store(halves_[parity].leaving_top + kMargin + h, one);
        store(halves_[parity].entering_top + kMargin + h, one);
    }

    // Divides what leaves the positions from h on, and what enters them, by its maximum.
    void scale(int parity, int64_t h) {
        const Half& half = halves_[parity];
        const int64_t at = kMargin + h, by = stride_, size = T * by;
        const Real *weight = half.weight + at, *exp_lam = half.exp_lam + at;
        Real *leaving = half.leaving + at, *entering = half.entering + at;
        Vec<Real> out = {}, in = {}, most = {}, least = splat(big<Real>());
        for (int64_t k = 0; k < size; k += by) {
            const Vec<Real> up = load(exp_lam + k);
            out = vmax(out, load(leaving + k)), in = vmax(in, load(entering + k));
            least = vmin(least, up), most = vmax(most, up);
        }
        low_ |= any((most > least * load(half.spread + at)) | (most > big<Real>()));
        store(half.leaving_top + at, out);
        store(half.entering_top + at, in);
        // A lane without a position has no weights.
        const Vec<Real> tiny = splat(std::numeric_limits<Real>::min());
        const Vec<Real> by_out = 1 / vmax(out, tiny), by_in = 1 / vmax(in, tiny);
        for (int64_t k = 0; k < size; k += by) {
            const Vec<Real> w = load(weight + k), up = load(exp_lam + k);
            store(leaving + k, w * (by_out / up));
            store(entering + k, w * (up * by_in));
        }
    }

    // The shares of positions h.. of one parity, from rows of tags to rows of positions.
    void read_shares(int parity, int64_t h) {
        const int64_t P = chain.P, within = count(parity) - h;
        const Real* rows = chain.nodes + (2 * h + parity) * P;
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

    // exp(share - peak), which is all as long as lam = 0.
    void weigh(Half& half, int64_t h) {
        const int64_t at = kMargin + h;
        const Vec<Real> none = splat(-infinity<Real>());
        Vec<Real> peak = none, least = -none;
        for (int64_t t = 0; t < T; ++t) {
            const Vec<Real> share = load(half.share + t * stride_ + at);
            peak = vmax(peak, share);
            least = vmin(least, share > none ? share : -none);
        }
        store(half.peak + at, peak);
        // Weights may be too small for numbers, as long as lam cannot make up for it.
        const Mask<Real> thin = peak - least > widest<Real>();
        scaled_ |= any(thin);
        store(half.spread + at, thin ? splat(Real(kClose)) : splat(wide<Real>()));
        // A lane without a position has no peak: whatever its weights, -inf - (-inf) must not be.
        const Vec<Real> base = vmax(peak, splat(-big<Real>())), one = splat(Real(1));
        store(half.leaving_top + at, one);
        store(half.entering_top + at, one);
        for (int64_t t = 0; t < T; ++t) {
            const int64_t k = t * stride_ + at;
            const Vec<Real> weight = vexp(load(half.share + k) - base);
            store(half.weight + k, weight);
            store(half.leaving + k, weight);
            store(half.entering + k, weight);
        }
    }

    // Where `exp_lam` holds lam yet. Its middle can be any number.
    void exponentiate(int parity, int64_t h) {
        const View view(halves_[parity], kMargin + h, interior(parity, h));
        const int64_t by = stride_, size = T * by;
        const Vec<Real> none = splat(-infinity<Real>());
        Vec<Real> most = none, least = -none;
        for (int64_t k = 0; k < size; k += by) {
            const Vec<Real> lam = load(view.exp_lam + k);
            const Mask<Real> free = view.free(k);
            most = vmax(most, free ? lam : none), least = vmin(least, free ? lam : -none);
        }
        low_ |= any((most - least > widest<Real>()) & view.here);
        if (low_) return;
        const Vec<Real> middle = (most + least) * Real(0.5);
        for (int64_t k = 0; k < size; k += by)
            view.set(k, vexp_within(view.free(k) ? load(view.exp_lam + k) - middle : Vec<Real>{}));
        scale(parity, h);
    }

    // The final lam is there: mass on both sides of the positions h.., and what is wanted of it.
    template <int V> void finish(int parity, int64_t h, const Wanted<In>& wanted) {
        Half& half = halves_[parity];
        messages<V>(parity, h, settings_.iterations);
        for (int v = 0; v < V; ++v) {
            const int64_t first = h + v * W, at = kMargin + first, by = stride_, tags = T;
            const Real *entering = half.entering + at, *leaving = half.leaving + at;
            Real *alpha = alpha_ + v * W, *beta = beta_ + v * W;
            Vec<Real> in_sum = {}, out_sum = {}, gap = gap_;
            for (int64_t t = 0; t < tags; ++t) {
                in_sum += load(entering + t * by) * load(alpha + t * kBlock);
                out_sum += load(leaving + t * by) * load(beta + t * kBlock);
            }
            const Vec<Real> i = lane_index<Real>() * Real(2) + Real(2 * first + parity);
            const Mask<Real> has_in = (i > Real(0.5)) & (i < Real(chain.L) - Real(0.5));
            const Mask<Real> has_out = i < Real(chain.L) - Real(1.5);
            low_ |= any(((in_sum < safe<Real>()) & has_in) | ((out_sum < safe<Real>()) & has_out));
            low_ |= any((in_sum > 1 / safe<Real>()) | (out_sum > 1 / safe<Real>()));
            store(half.log_leaving + at, vlog(out_sum) + vlog(load(half.leaving_top + at)));
            store(half.log_entering + at, vlog(load(half.entering_top + at)));
            const Vec<Real> one = splat(Real(1));
            const Vec<Real> in_factor = has_in ? one / in_sum : Vec<Real>{};
            const Vec<Real> out_factor = has_out ? one / out_sum : Vec<Real>{};
            store(half.factor + at, out_factor);
            const Mask<Real> both = has_in & has_out;
            Vec<Real> overlap = {};
            const bool means = wanted.marginals || wanted.best, outgoing_only = wanted.outgoing;
            for (int64_t t = 0; t < tags; ++t) {
                Real *in = alpha + t * kBlock, *out = beta + t * kBlock;
                const Vec<Real> p = load(entering + t * by) * load(in) * in_factor;
                const Vec<Real> q = load(leaving + t * by) * load(out) * out_factor;
                gap = vmax(gap, both ? vmax(p - q, q - p) : Vec<Real>{});
                // One side is missing at the two ends: the other stands for both.
                const Vec<Real> incoming = has_in ? p : q, outgoing = has_out ? q : p;
                store(in, (incoming + outgoing) * Real(0.5));
                if (!means) continue;
                const Vec<Real> mean = outgoing_only ? outgoing : vsqrt(incoming) * vsqrt(outgoing);
                store(out, mean);
                overlap += mean;
            }
            gap_ = gap;
            if (wanted.gradient.unary) write(alpha, kBlock, parity, first, wanted.gradient.unary, T);
            if (!means) continue;
            if (!wanted.outgoing)
                low_ |= any(((overlap < kOverlap<Real>) | (vmin(in_sum, out_sum) < kSolid<Real>)) & both);
            for (int64_t t = 0; t < T; ++t) {
                Real* mean = beta_ + t * kBlock + v * W;
                store(mean, load(mean) / overlap);
            }
            if (wanted.marginals) write(beta_ + v * W, kBlock, parity, first, wanted.marginals, T);
            if (wanted.best) write_best(beta_ + v * W, parity, first, wanted.best);
        }
    }

    // Scales what leaves so that leaving arc entering is q.
    void normalise() {
        for (int parity = 0; parity < 2; ++parity) {
            const Half& half = halves_[parity];
            for (int64_t t = 0; t < T; ++t)
                for (int64_t h = kMargin; h < kMargin + count(parity); h += W) {
                    Real* x = half.leaving + t * stride_ + h;
                    store(x, load(x) * load(half.factor + h));
                }
        }
    }

    int64_t lanes_within(int parity, int64_t first) const {
        const int64_t left = count(parity) - first;
        return left < W ? left : W;
    }
    // Positions first.. of one parity as rows of tags, `by_row` apart, from rows of positions.
    template <class Out>
    void write(
        const Real* from, int64_t by_tag, int parity, int64_t first, Out* out, int64_t by_row) const {
        const int64_t within = lanes_within(parity, first);
        out += (2 * first + parity) * by_row;
        for (int64_t t = 0; t < T; t += W) {
            Vec<Real> block[W];
            BCRF_UNROLL for (int64_t k = 0; k < W; ++k)
                block[k] = load(from + (t + k < T ? t + k : T - 1) * by_tag);
            transpose(block);
            for (int64_t r = 0; r < within; ++r) {
                Out* row = out + 2 * r * by_row + t;
                if constexpr (sizeof(Out) == sizeof(Real)) {
                    if (t + W <= by_row) {
                        store(row, block[r]);
                        continue;
                    }
                }
                for (int64_t k = 0; k < W && t + k < T; ++k) row[k] = Out(block[r][k]);
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

    void read_gold(const int64_t* tags) {
        for (int64_t i = 0; i < chain.L; ++i)
            gold_[i] = halves_[i % 2].exp_lam[tags[i] * stride_ + kMargin + i / 2];
        for (int64_t i = 0; i < chain.L; i += W) store(gold_ + i, vlog(load(gold_ + i)));
    }
    // The score of a gold arc, after `read_gold`.
    double gold(int64_t e, int64_t s, int64_t t) const {
        return share(e, s) - double(gold_[e]) + chain.raw_score(e, s, t) + share(e + 1, t) +
               double(gold_[e + 1]);
    }
    double share(int64_t i, int64_t t) const {
        return double(halves_[i % 2].share[t * stride_ + kMargin + i / 2]);
    }

    // Adds up leaving[s] pair[s, t] entering[t] over all edges: a product of matrices.
    void add_counts(In* out) {
        const int64_t P = chain.P;
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
                out[s * T + t] = In(total_[s * T + t] * chain.shared.rows[s * P + t]);
    }
    template <int R, int C> BCRF_INLINE_MEMBER void count_block(int64_t s, int64_t t) {
        Vec<Real> sum[R][C];
        BCRF_UNROLL for (int r = 0; r < R; ++r)
            BCRF_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = splat(Real(0));
        for (int parity = 0; parity < 2; ++parity) {
            const Half &from = halves_[parity], &to = halves_[1 - parity];
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
