// The Bregman CRF: block coordinate descent on the dual D(lam), its value, q, and the flow.
//
// The state is lam, and for every position two vectors of weights, scaled to a maximum of 1:
//     leaving[i]  = exp(share[i] - lam[i]),      entering[i] = exp(share[i] + lam[i]).
// A projection is two products with the exponentials of the pairs, of which there is one per arc
// in all. Tags whose mass is beyond the range of numbers are done by logarithms.
#pragma once
#include "crf.h"

namespace {

using bcrf::kPad;
using bcrf::Projections;

// What a sentence's solution is wanted for; null where not.
template <class In> struct Wanted {
    Gradient<In> gradient;
    In* marginals;
    int64_t* best;
    bool outgoing;

    Wanted(const Problem& p, const Outputs& out, int64_t b)
        : gradient(p, out, b),
          marginals(out.marginals ? static_cast<In*>(out.marginals) + b * p.n * p.tags : nullptr),
          best(out.best ? out.best + b * p.n : nullptr), outgoing(out.outgoing) {}

    // What lies beyond the length.
    void clear(const Problem& p, int64_t L) const {
        gradient.clear(p, L);
        if (marginals) std::memset(marginals + L * p.tags, 0, size_t((p.n - L) * p.tags) * sizeof(In));
        for (int64_t i = L; best && i < p.n; ++i) best[i] = kPad;
    }
};

// Below this overlap the geometric mean of two distributions is taken by logarithms.
template <class Real> constexpr Real kOverlap = sizeof(Real) == 4 ? Real(1e-6) : Real(1e-100);
// So are those that come from smaller sums: their roots show what these have lost to underflow.
template <class Real> constexpr Real kSolid = sizeof(Real) == 4 ? Real(1e-10) : Real(1e-70);

template <class In, class Real, int N> class Bregman {
  public:
    Chain<In, Real, N> chain;
    static constexpr bool kHasty = false;

    Bregman(const Problem& p, const SharedPairs<In, Real>& shared, const Projections& settings)
        : chain(p, shared, window(p, settings)), T(chain.T), P(chain.P), settings_(settings),
          lag_(lag(p, settings)) {
        const int64_t rows = (p.n + 1) * P;
        for (Array<Real>* a : {&lam_, &leaving_, &entering_}) a->allocate(rows);
        for (Array<Real>* a : {&leaving_peak_, &entering_peak_}) a->allocate(p.n + 1);
        for (Array<Real>* a : {&alpha_, &beta_}) a->allocate(kTogether * P);
        for (Array<Real>* a : {&x_, &y_}) a->allocate(P);
        q_.allocate(T * P);
        for (Array<double>* a : {&row_, &column_}) a->allocate(P);
        flow_.allocate(4 * P);
        in_ = flow_, out_ = in_ + P, next_ = out_ + P, mean_ = next_ + P;
        if (p.shared) total_.allocate(T * P);
    }

    static bool suits(const Problem&, int64_t) { return true; }

    // Folds the unary scores into the arcs, half to either side, all of it at the two ends.
    void start(const In* given) {
        const int64_t L = chain.L;
        share_ = chain.nodes;
        if (chain.problem.unary)
            for (int64_t k = P; k < (L - 1) * P; ++k) chain.nodes[k] *= Real(0.5);
        std::memset(lam_, 0, size_t(L * P) * sizeof(Real));
        for (int64_t i = 1; i + 1 < L && (given || settings_.gauge_right); ++i)
            for (int64_t t = 0; t < T; ++t) {
                const Real score = share_[i * P + t];
                if (score == -infinity<Real>()) continue;
                lam_[i * P + t] = given ? Real(given[i * T + t]) : score;
            }
        for (int64_t i = 0; i < L; ++i) refresh(i);
    }

    // Steps k0..k1-1, in an order that touches few edges at a time. Step k of position i needs step
    // k - 1 of its neighbours: along i + lag k = constant all of that has happened, if the lag is
    // odd; with a lag of 3 nothing on such a line waits for anything else on it. `enter` and
    // `leave` are told which edge begins and which has seen its last.
    template <class Enter, class Leave>
    void sweep(int64_t k0, int64_t k1, Enter enter, Leave leave) {
        const int64_t m = chain.L - 1, reach = lag_ * (k1 - k0 - 1);
        int64_t entered = 0, left_behind = 0;
        for (int64_t p = (settings_.first + k0) % 2 ? 1 : 2; k0 < k1 && p - reach < m; p += 2) {
            for (; entered <= p && entered < m; ++entered) enter(entered);
            int64_t k = k0, i = p;
            for (; i >= m; i -= lag_) ++k;
            while (k < k1 && i >= 1) {
                int64_t count = 0;
                for (; count < (lag_ > 1 ? kTogether : 1) && k < k1 && i >= 1; ++count, ++k, i -= lag_)
                    positions_[count] = i, omegas_[count] = Real(settings_.omegas[k]);
                project(count);
            }
            for (; left_behind < p - reach && left_behind < m; ++left_behind) leave(left_behind);
        }
        for (; left_behind < m; ++left_behind) {
            for (; entered <= left_behind; ++entered) enter(entered);
            leave(left_behind);
        }
    }

    void sweep(int64_t k0, int64_t k1) {
        const auto nothing = [](int64_t) {};
        sweep(k0, k1, nothing, nothing);
    }
    bool failed() const { return false; }

    // With a tolerance: stop once the residual is within it and the last step had omega = 1.
    void run_to_tolerance() {
        const int64_t m = chain.L - 1;
        Real omega = 1;
        for (int64_t k = 0; k < settings_.iterations; ++k) {
            const bool close = residual() <= settings_.tolerance;
            if (close && omega == 1) return;
            omega = close || k == settings_.iterations - 1 ? Real(1) : Real(settings_.omegas[k]);
            for (int64_t i = (settings_.first + k) % 2 ? 1 : 2; i < m;) {
                int64_t count = 0;
                for (; count < kTogether && i < m; ++count, i += 2)
                    positions_[count] = i, omegas_[count] = omega;
                project(count);
            }
        }
    }

    // Runs everything and writes what is wanted. The value is D(lam), with tags the loss.
    bool solve(const int64_t* tags, const Wanted<In>& wanted, double& value, double& gap) {
        const int64_t L = chain.L, m = L - 1;
        begin(wanted);
        value = gap = 0;
        if (L == 0) return true;
        if (L == 1) return single(tags, wanted, value);
        auto enter = [&](int64_t e) { chain.enter(e); };
        auto leave = [&](int64_t e) { value += finish(e, tags, wanted, gap); };
        if (settings_.tolerance < 0) {
            sweep(0, settings_.iterations, enter, leave);
        } else {
            for (int64_t e = 0; e < m; ++e) enter(e);
            run_to_tolerance();
            for (int64_t e = 0; e < m; ++e) leave(e);
        }
        flush_counts(wanted);
        if (tags) wanted.gradient.subtract(tags, L, T);
        return true;
    }

    // lam, its arbitrary constant per position chosen so that the mean over free tags is 0.
    void write_dual(In* out) const {
        const int64_t L = chain.L;
        std::memset(out, 0, size_t(chain.problem.n * T) * sizeof(In));
        for (int64_t i = 1; i + 1 < L; ++i) {
            Real sum = 0;
            int64_t count = 0;
            for (int64_t t = 0; t < T; ++t)
                if (!dead(i, t)) sum += lam_[i * P + t], ++count;
            for (int64_t t = 0; t < T; ++t)
                if (!dead(i, t)) out[i * T + t] = In(lam_[i * P + t] - sum / Real(count));
        }
    }
    // Before `sweep` is called for the first time.
    void enter_all() {
        for (int64_t e = 0; e + 1 < chain.L; ++e) chain.enter(e);
    }
    // Whether arcs that are best on every edge may join up to a path: not known here.
    static constexpr bool may_join() { return true; }
    // lam and the shares of the unary scores of a position.
    void settle() {}
    const Real* duals(int64_t i) const { return lam_ + i * P; }
    const Real* shares(int64_t i) const { return share_ + i * P; }
    bool dead(int64_t i, int64_t t) const { return chain.nodes[i * P + t] == -infinity<Real>(); }

  private:
    static constexpr int64_t W = lanes<Real>();
    const int64_t T;
    const Padding<Real, N> P;
    const Projections& settings_;
    Real* share_ = nullptr;  // of the unary scores in the arcs on either side
    Array<Real> lam_, leaving_, entering_, leaving_peak_, entering_peak_;
    Array<Real> alpha_, beta_, x_, y_;       // messages of one position or edge
    Array<double> q_, row_, column_;         // mass of the arcs of an edge, see `slow_flow`,
    double sum_ = 1;                         // and the sum of it
    Array<Real> flow_;                       // four rows:
    Real *in_, *out_, *next_, *mean_;        // mass of one position, see `flow`
    bool solid_ = true, solid_before_ = true;  // of the edges after and before that position
    Array<Real> total_;                      // counts of the sentence before the factor of the pairs
    const Real *x4_[4], *y4_[4];             // edges whose counts are not added up yet
    int64_t pending_ = 0;
    static constexpr int64_t kTogether = 8;
    int64_t positions_[kTogether];  // what `project` does together
    Real omegas_[kTogether];
    const int64_t lag_;  // see `sweep`

    // A long lag needs many edges at once; they should stay in the cache of a core.
    static int64_t lag(const Problem& p, const Projections& settings) {
        const int64_t edge = p.tags * padded<Real>(p.tags) * int64_t(sizeof(Real));
        return p.shared || 3 * settings.iterations * edge < (256 << 10) ? 3 : 1;
    }
    // How many edges are needed at a time: all, if they are gone over again and again.
    static int64_t window(const Problem& p, const Projections& settings) {
        if (settings.tolerance >= 0 || settings.again) return p.n;
        return lag(p, settings) * settings.iterations + 2;
    }


    // The weights of position i.
    void refresh(int64_t i) {
        const Real *lam = lam_ + i * P, *share = share_ + i * P;
        Real *leaving = leaving_ + i * P, *entering = entering_ + i * P;
        Vec<Real> leaving_peak = splat(-infinity<Real>()), entering_peak = leaving_peak;
        for (int64_t j = 0; j < P; j += W) {
            leaving_peak = vmax(leaving_peak, load(share + j) - load(lam + j));
            entering_peak = vmax(entering_peak, load(share + j) + load(lam + j));
        }
        const Real a = leaving_peak_[i] = hmax(leaving_peak);
        const Real b = entering_peak_[i] = hmax(entering_peak);
        for (int64_t j = 0; j < P; j += W) {
            store(leaving + j, vexp(load(share + j) - load(lam + j) - a));
            store(entering + j, vexp(load(share + j) + load(lam + j) - b));
        }
    }

    // lam[i] <- lam[i] + omega (new - lam[i]), new = (log beta - log alpha) / 2, at the
    // first `count` of `positions_`. These do not depend on each other, and each is a long
    // chain of operations: taken together, they keep the processor busy.
    void project(int64_t count) {
        for (int64_t c = 0; c < count; ++c) {
            const int64_t i = positions_[c];
            arriving<Real>(chain.edge(i - 1), T, P, leaving_ + (i - 1) * P, alpha_ + c * P);
            departing<Real>(chain.edge(i), T, P, entering_ + (i + 1) * P, beta_ + c * P);
        }
        for (int64_t c = 0; c < count; ++c) {
            const int64_t i = positions_[c];
            if (__builtin_expect(too_low(alpha_ + c * P, beta_ + c * P, share_ + i * P), 0))
                slow_update(i, alpha_ + c * P, beta_ + c * P, omegas_[c]);
        }
        for (int64_t c = 0; c < count; ++c)
            update(positions_[c], alpha_ + c * P, beta_ + c * P, omegas_[c]);
        for (int64_t c = 0; c < count; ++c) refresh(positions_[c]);
    }

    BCRF_INLINE_MEMBER bool too_low(const Real* alpha, const Real* beta, const Real* share) const {
        Mask<Real> low = {};
        for (int64_t j = 0; j < P; j += W)
            low |= (vmin(load(alpha + j), load(beta + j)) < safe<Real>()) &
                   (load(share + j) > -infinity<Real>());
        return any(low);
    }

    // `update` by logarithms; leaves nothing to do for the fast one.
    __attribute__((noinline)) void slow_update(int64_t i, Real* alpha, Real* beta, Real& omega) {
        Real* lam = lam_ + i * P;
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> ratio = log_departing(i, j) - log_arriving(i - 1, j);
            move(i, j, ratio, omega, lam);
            store(alpha + j, splat(Real(1)));
            store(beta + j, splat(Real(1)));
        }
        omega = 0;
    }

    BCRF_INLINE_MEMBER void update(int64_t i, const Real* alpha, const Real* beta, Real omega) {
        Real* lam = lam_ + i * P;
        for (int64_t j = 0; j < P; j += W)
            move(i, j, vlog(load(beta + j) / load(alpha + j)), omega, lam);
    }
    BCRF_INLINE_MEMBER void move(int64_t i, int64_t j, Vec<Real> ratio, Real omega, Real* lam) const {
        const Vec<Real> share = load(share_ + i * P + j), old = load(lam + j);
        const Vec<Real> moved = old + omega * (ratio * Real(0.5) - old);
        store(lam + j, share > -infinity<Real>() ? moved : Vec<Real>{});
    }

    // The messages of edge e by logarithms, for one vector of tags; scaled as the products are.
    Vec<Real> log_arriving(int64_t e, int64_t j) {
        for (int64_t k = 0; k < P; k += W)
            store(x_ + k, load(share_ + e * P + k) - load(lam_ + e * P + k));
        return chain.log_arriving(e, x_, j) - (leaving_peak_[e] + chain.peaks[e]);
    }
    Vec<Real> log_departing(int64_t e, int64_t j) {
        const int64_t next = (e + 1) * P;
        for (int64_t k = 0; k < P; k += W) store(y_ + k, load(share_ + next + k) + load(lam_ + next + k));
        Real lane[W];
        for (int64_t k = 0; k < W; ++k)
            lane[k] = j + k < T ? chain.log_departing(e, y_, j + k) : -infinity<Real>();
        return load<Real>(lane) - (entering_peak_[e + 1] + chain.peaks[e]);
    }

    // Mass that leaves the tags of position e (`out_`) and enters those of e + 1 (`next_`); returns
    // the log of the sum over the arcs of edge e. Products do, unless the best tags of the two ends
    // do not go together: then `slow`.
    double flow(int64_t e, bool& slow) {
        const Real *from = leaving_ + e * P, *to = entering_ + (e + 1) * P;
        const double base = double(leaving_peak_[e]) + double(entering_peak_[e + 1]) + double(chain.peaks[e]);
        arriving<Real>(chain.edge(e), T, P, from, alpha_);
        departing<Real>(chain.edge(e), T, P, to, beta_);
        const Real sum = dot<Real>(from, beta_, P);
        slow = !(sum >= safe<Real>());
        solid_before_ = solid_;
        solid_ = slow || sum >= kSolid<Real>;
        if (slow) return slow_flow(e);
        const Vec<Real> factor = splat(Real(1) / sum);
        for (int64_t j = 0; j < P; j += W) {
            store(out_ + j, load(from + j) * load(beta_ + j) * factor);
            store(next_ + j, load(to + j) * load(alpha_ + j) * factor);
        }
        return log_of(double(sum)) + base;
    }
    // The same from the scores of all arcs, in double precision; leaves q times `sum_` in `q_`. Messages
    // that were computed one by one, rounded at the size of the scores, would not add up to the same sum:
    // here every mass is divided by the sum of what it is a part of.
    double slow_flow(int64_t e) {
        constexpr int64_t V = lanes<double>();
        const int64_t here = e * P, there = here + P, by = padded<double>(T);
        for (int64_t j = 0; j < by; j += V)  // -inf beyond T
            store(column_ + j, load_as(share_ + there + j, 0.0) + load_as(lam_ + there + j, 0.0));
        Vec<double> most = splat(-infinity<double>());
        for (int64_t s = 0; s < T; ++s) {
            const double left = double(share_[here + s]) - double(lam_[here + s]);
            for (int64_t j = 0; j < by; j += V) {
                const Vec<double> score = left + chain.scores(e, s, j) + load(column_ + j);
                store(q_ + s * by + j, score);
                most = vmax(most, score);
            }
        }
        const double peak = hmax(most);
        double total = 0;
        for (int64_t j = 0; j < P; j += V) store(column_ + j, Vec<double>{});
        for (int64_t s = 0; s < T; ++s) {
            Vec<double> row = {};
            for (int64_t j = 0; j < by; j += V) {
                const Vec<double> mass = vexp(load(q_ + s * by + j) - peak);
                store(q_ + s * by + j, mass);
                store(column_ + j, load(column_ + j) + mass);
                row += mass;
            }
            row_[s] = hsum(row);
            total += row_[s];
        }
        const double factor = 1 / total;
        for (int64_t t = 0; t < P; ++t) {
            out_[t] = t < T ? Real(row_[t] * factor) : Real(0);
            next_[t] = Real(column_[t] * factor);
        }
        sum_ = total;
        return peak + log_of(total);
    }

    // What enters position e + 1 is next to be compared.
    void advance() {
        Real* spare = in_;
        in_ = next_, next_ = spare;
    }

    double residual() {
        double gap = 0;
        bool slow;
        for (int64_t e = 0; e + 1 < chain.L; ++e) {
            flow(e, slow);
            if (e > 0) gap = wider(gap);
            advance();
        }
        return gap;
    }
    double wider(double gap) const {
        Vec<Real> widest = {};
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> difference = load(in_ + j) - load(out_ + j);
            widest = vmax(widest, vmax(difference, -difference));
        }
        const double found = double(hmax(widest));
        return found > gap ? found : gap;
    }

    void begin(const Wanted<In>& wanted) {
        wanted.clear(chain.problem, chain.L);
        pending_ = 0;
        if (wanted.gradient.pair && !wanted.gradient.every_edge)
            std::memset(total_, 0, size_t(T * P) * sizeof(Real));
    }

    bool single(const int64_t* tags, const Wanted<In>& wanted, double& value) {
        std::memcpy(out_, chain.nodes, size_t(P) * sizeof(Real));
        value = softmax(out_, P);
        if (tags) value = positive(value - double(chain.nodes[tags[0]]));
        write_position(0, out_, out_, wanted);
        if (tags) wanted.gradient.subtract(tags, 1, T);
        return true;
    }

    // Edge e has its last lam: writes what is wanted of it and of position e (of the last one too).
    double finish(int64_t e, const int64_t* tags, const Wanted<In>& wanted, double& gap) {
        bool slow;
        const double log_sum = flow(e, slow);
        const double value = tags ? positive(log_sum - gold(e, tags[e], tags[e + 1])) : log_sum;
        if (e > 0) gap = wider(gap);
        write_position(e, e > 0 ? in_ : out_, out_, wanted);
        if (wanted.gradient.pair) write_arcs(e, slow, wanted.gradient);
        advance();
        if (e + 2 == chain.L) write_position(e + 1, in_, in_, wanted);
        return value;
    }

    double gold(int64_t e, int64_t s, int64_t t) const {
        const int64_t from = e * P + s, to = (e + 1) * P + t;
        return (double(share_[from]) - double(lam_[from])) + chain.raw_score(e, s, t) +
               (double(share_[to]) + double(lam_[to]));
    }

    void write_position(int64_t i, const Real* in, const Real* out, const Wanted<In>& wanted) {
        if (wanted.gradient.unary)
            for (int64_t t = 0; t < T; ++t)
                wanted.gradient.unary[i * T + t] = In((in[t] + out[t]) * Real(0.5));
        if (!wanted.marginals && !wanted.best) return;
        const Real* p = out;
        if (in != out && !wanted.outgoing) p = mean(i, in, out);
        if (wanted.marginals)
            for (int64_t t = 0; t < T; ++t) wanted.marginals[i * T + t] = In(p[t]);
        if (wanted.best) {
            int64_t best = 0;
            for (int64_t t = 1; t < T; ++t)
                if (p[t] > p[best]) best = t;
            wanted.best[i] = best;
        }
    }

    // The normalised geometric mean of the mass on both sides.
    const Real* mean(int64_t i, const Real* in, const Real* out) {
        Vec<Real> sum = {};
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> root = vsqrt(load(in + j)) * vsqrt(load(out + j));
            store(mean_ + j, root);
            sum += root;
        }
        const Real total = hsum(sum);
        if (total > kOverlap<Real> && solid_before_ && solid_) {
            for (int64_t j = 0; j < P; j += W) store(mean_ + j, load(mean_ + j) * (Real(1) / total));
            return mean_;
        }
        // Two sides that all but exclude each other: what is left of them may have underflowed.
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> both = log_arriving(i - 1, j) + log_departing(i, j);
            store(mean_ + j, both * Real(0.5) + load(share_ + i * P + j));
        }
        softmax(mean_, P);
        return mean_;
    }

    void write_arcs(int64_t e, bool slow, const Gradient<In>& gradient) {
        In* pair = gradient.pair + (gradient.every_edge ? e * T * T : 0);
        if (slow) {
            const int64_t by = padded<double>(T);
            for (int64_t s = 0; s < T; ++s)
                for (int64_t t = 0; t < T; ++t) {
                    const In q = In(q_[s * by + t] / sum_);
                    pair[s * T + t] = gradient.every_edge ? q : pair[s * T + t] + q;
                }
            return;
        }
        Real* x = leaving_ + e * P;  // nobody needs it after this
        const Real sum = dot<Real>(x, beta_, P);
        for (int64_t j = 0; j < P; j += W) store(x + j, load(x + j) * (Real(1) / sum));
        if (gradient.every_edge) {
            write_edge<Real>(chain.edge(e), T, P, x, entering_ + (e + 1) * P, pair);
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
    void flush_counts(const Wanted<In>& wanted) {
        In* pair = wanted.gradient.pair;
        if (!pair || wanted.gradient.every_edge) return;
        add_pending();
        const Real* rows = chain.edge(0).rows;
        for (int64_t s = 0; s < T; ++s)
            for (int64_t t = 0; t < T; ++t) pair[s * T + t] += In(total_[s * P + t] * rows[s * P + t]);
    }
};

}  // namespace
