// One sentence of a problem in scratch memory: checked, trimmed and padded, its pairs as exponentials.
#pragma once
#include "kernels.h"
#include "memory.h"
#include "products.h"

namespace {

using bcrf::Problem;

template <class Real> constexpr Real infinity() { return Real(__builtin_inf()); }

// Messages are sums of products of numbers that are at most 1 (pairs in haste: exp(20)). Terms
// below the smallest normal number are lost; against a sum of this size they weigh nothing. Smaller
// sums are done again in a form that loses nothing.
template <class Real> constexpr Real safe();
template <> constexpr float safe<float>() { return 1e-28f; }
template <> constexpr double safe<double>() { return 1e-285; }

template <class Real> BCRF_INLINE int64_t padded(int64_t T) {
    return (T + lanes<Real>() - 1) / lanes<Real>() * lanes<Real>();
}

// The padded number of tags: known to the compiler as N vectors, or (N = 0) at run time only.
template <class Real, int N> struct Padding {
    int64_t value;
    explicit Padding(int64_t T) : value(padded<Real>(T)) {}
    BCRF_INLINE_MEMBER operator int64_t() const { return N > 0 ? N * lanes<Real>() : value; }
};

template <class Real> BCRF_INLINE Real peak_of(const Real* x, int64_t P) {
    Vec<Real> peak = load(x);
    for (int64_t j = lanes<Real>(); j < P; j += lanes<Real>()) peak = vmax(peak, load(x + j));
    return hmax(peak);
}

// x <- exp(x) / sum, of P log weights; returns the log of the sum.
template <class Real> BCRF_INLINE double softmax(Real* x, int64_t P) {
    constexpr int64_t W = lanes<Real>();
    const Real peak = peak_of<Real>(x, P);
    Vec<Real> sum = {};
    for (int64_t j = 0; j < P; j += W) {
        store(x + j, vexp(load(x + j) - peak));
        sum += load(x + j);
    }
    const Vec<Real> factor = splat(Real(1) / hsum(sum));
    for (int64_t j = 0; j < P; j += W) store(x + j, load(x + j) * factor);
    return double(peak) + log_of(double(hsum(sum)));
}

// What scores are like, of which more and more may be included.
template <class In> struct Survey {
    Vec<In> low = splat(infinity<In>());
    Mask<In> fine = low == low;

    // Returns the largest one of each lane.
    BCRF_INLINE_MEMBER Vec<In> include(const In* x, int64_t count) {
        constexpr int64_t W = lanes<In>();
        Vec<In> high = splat(-infinity<In>());
        int64_t j = 0;
        for (; j + W <= count; j += W) see(load(x + j), high);
        // The end, once more what comes before it if that fills the vector.
        if (j < count) see(count > W ? load(x + count - W) : load_some<In>(x, count, x[0]), high);
        return high;
    }
    bool removed() const { return hmax(-low) == infinity<In>(); }  // some score is -inf
    bool bad() const { return any(~fine); }                        // some score is NaN or +inf

  private:
    BCRF_INLINE_MEMBER void see(Vec<In> v, Vec<In>& high) {
        high = vmax(high, v), low = vmin(low, v), fine &= v < infinity<In>();
    }
};

// The largest score; adds all of them to `sum`, which stays finite if none is NaN or infinite.
template <class In> BCRF_INLINE In peak_and_sum(const In* x, int64_t count, Vec<In>* sum) {
    constexpr int64_t W = lanes<In>();
    Vec<In> a = splat(-infinity<In>()), b = a, first = sum[0], second = sum[1];
    int64_t j = 0;
    for (; j + 2 * W <= count; j += 2 * W) {
        const Vec<In> u = load(x + j), v = load(x + j + W);
        a = vmax(a, u), b = vmax(b, v);
        first += u, second += v;
    }
    for (; j < count; j += W) {
        const Vec<In> u = load_some<In>(x + j, count - j, x[j]);
        a = vmax(a, u);
        first += u;
    }
    sum[0] = first, sum[1] = second;
    return hmax(vmax(a, b));
}

// The same of x + y, which goes to `out`, where there is room for whole vectors; the sum is of x.
template <class In>
BCRF_INLINE In add_peak_and_sum(const In* x, const In* y, int64_t count, Vec<In>* sum, In* out) {
    constexpr int64_t W = lanes<In>();
    Vec<In> peak = splat(-infinity<In>());
    for (int64_t j = 0; j < count; j += W) {
        const Vec<In> u = j + W <= count ? load(x + j) : load_some<In>(x + j, count - j, x[j]);
        const Vec<In> v = u + load(y + j);
        store(out + j, v);
        peak = vmax(peak, v);
        sum[0] += u;
    }
    return hmax(peak);
}

struct Range {
    double peak = -__builtin_inf();
    bool removed = false, bad = false;
};

template <class In> BCRF_INLINE Range range_of(const In* x, int64_t count) {
    Survey<In> survey;
    const double peak = double(hmax(survey.include(x, count)));
    return {peak, survey.removed(), survey.bad()};
}

// A vector from `at` on in an array of `size`; what lies beyond the array is -inf.
template <class In, class Real>
BCRF_INLINE Vec<Real> load_within(const In* array, int64_t at, int64_t size, Real) {
    if (at + lanes<Real>() <= size) return load_as(array + at, Real(0));
    return load_some<Real>(array + at, size > at ? size - at : 0, -infinity<Real>());
}

// rows[s, t] = exp(raw[s, t] * scale - peak); the padding takes what the next row begins with.
template <class In, class Real>
BCRF_INLINE void exponentials(
    const In* raw, int64_t T, int64_t P, Real scale, Real peak, Real* rows) {
    for (int64_t s = 0; s < T; ++s)
        for (int64_t j = 0; j < P; j += lanes<Real>()) {
            const Vec<Real> x = load_within(raw, s * T + j, T * T, Real(0));
            store(rows + s * P + j, vexp(x * scale - peak));
        }
}

// Which of T scores are there, a bit each.
template <class In> BCRF_INLINE void presence(const In* x, int64_t T, uint64_t* bits) {
    constexpr int64_t W = lanes<In>();
    for (int64_t t = 0; t < T; t += 64) {
        uint64_t word = 0;
        for (int64_t j = t; j < T && j < t + 64; j += W) {
            const Vec<In> v = load_some<In>(x + j, T - j, -infinity<In>());
            word |= uint64_t(lane_bits(v > -infinity<In>())) << (j - t);
        }
        bits[t / 64] = word;
    }
}

// exp(x * scale) of a pair that is taken for a number of a small range. `widest` remembers, as bits, how
// large they were; NaN is larger than anything.
template <class Real>
BCRF_INLINE Vec<Real> hasty_exp(Vec<Real> x, Real scale, Mask<Real>& widest) {
    const Mask<Real> width = bits_of(x) & ~sign_bits<Real>();
    widest = width > widest ? width : widest;
    return vexp_within(x, scale);
}
// Where that range, exponents within 20, was left.
template <class Real> BCRF_INLINE Mask<Real> too_wide(Mask<Real> widest, Real scale) {
    return widest > bits_of(splat(Real(20) / scale));
}

// Rows of `count` numbers, W of them, as rows of W lanes: see(k, vector) for each of these.
template <class Real, class In, class See>
BCRF_INLINE void gather(const In* const* from, int64_t count, See see) {
    constexpr int64_t W = lanes<Real>(), H = W / 2;
    int64_t c = 0;
    for (; c + W <= count; c += W) {
        Vec<Real> block[W];
        // The halves of a transposed block come from other places: loading spares to exchange them.
        BCRF_UNROLL for (int64_t r = 0; r < W; ++r) {
            const int64_t row = r % H, at = c + r / H * H;
            block[r] = load_halves(from[row] + at, from[row + H] + at, Real(0));
        }
        transpose_halves(block);
        transpose_halves(block + H);
        BCRF_UNROLL for (int64_t k = 0; k < W; ++k) see(c + k, block[k]);
    }
    if (worth_transposing<Real>(count - c)) {
        Vec<Real> block[W];
        BCRF_UNROLL for (int64_t r = 0; r < W; ++r) block[r] = load_some<Real>(from[r] + c, count - c, Real(0));
        transpose(block);
        for (int64_t k = 0; c < count; ++c, ++k) see(c, block[k]);
    }
    for (; c < count; ++c) {
        Real lane[W];
        for (int64_t r = 0; r < W; ++r) lane[r] = Real(from[r][c]);
        see(c, load<Real>(lane));
    }
}

// What the pairs of all edges share, prepared once for all sentences and threads.
template <class In, class Real> struct SharedPairs {
    Array<Real> rows, columns;  // exponentials, if the pairs are the same
    Array<In> removal;          // otherwise -inf for pairs that are removed from every edge, and 0
    Array<uint64_t> bits;       // which pairs are not removed
    Range range;

    void prepare(const Problem& problem) {
        const int64_t T = problem.tags, P = padded<Real>(T);
        if (!problem.shared && !problem.follow) return;
        if (!problem.shared) {
            removal.allocate(padded<In>(T * T));
            for (int64_t k = 0; k < padded<In>(T * T); ++k)
                removal[k] = k < T * T && problem.follow[k] ? In(0) : -infinity<In>();
            return mark(removal, T);
        }
        const In* raw = static_cast<const In*>(problem.pair);
        range = range_of(raw, T * T);
        rows.allocate(T * P);
        columns.allocate(T * P);
        const Real scale = Real(problem.scale);
        exponentials(raw, T, P, scale, peak(problem), +rows);
        for (int64_t s = 0; s < T; ++s)
            for (int64_t t = 0; t < P; ++t) columns[s * P + t] = t < T ? rows[t * P + s] : Real(0);
        if (range.removed) mark(raw, T);
    }
    Real peak(const Problem& problem) const {
        return range.peak > -__builtin_inf() ? Real(range.peak) * Real(problem.scale) : Real(0);
    }

  private:
    void mark(const In* raw, int64_t T) {
        const int64_t words = (T + 63) / 64;
        bits.allocate(T * words);
        for (int64_t s = 0; s < T; ++s) presence(raw + s * T, T, bits + s * words);
    }
};

// The scratch of one thread, and the sentence that is in it.
template <class In, class Real, int N> class Chain {
  public:
    const Problem& problem;
    const SharedPairs<In, Real>& shared;
    const int64_t T;
    const Padding<Real, N> P;
    int64_t b = 0, L = 0;  // which sentence, and its length
    Array<Real> nodes;     // [n, P]: unary scores, or shares of them; -inf at dead tags and padding
    Array<Real> peaks;     // [n]: of each edge's pairs

    // `window`: how many edges are needed at once.
    Chain(const Problem& p, const SharedPairs<In, Real>& s, int64_t window)
        : problem(p), shared(s), T(p.tags), P(p.tags), words_((p.tags + 63) / 64),
          scale_(Real(p.scale)) {
        const int64_t n = p.n + 1;
        nodes.allocate(n * P);
        peaks.allocate(n);
        live_.allocate(n * words_);
        if (!p.shared) {
            window_ = window < n ? window : n;
            if (window_ < 1) window_ = 1;
            slot_ = padded<Real>(T * T) + W;  // the last row is read as whole vectors too
            ring_.allocate(window_ * slot_);
            std::memset(ring_, 0, size_t(window_ * slot_) * sizeof(Real));
            bits_.allocate(n * T * words_);
            if (p.follow) constrained_.allocate(n * T * T + lanes<In>());
        }
    }

    // Reads a sentence; false if there is something in it that has no answer. `hasty`: pairs of every
    // edge are taken for numbers of a small range, as they mostly are. These need no peak taken off,
    // and whether they are such costs next to nothing to see while they are entered: `strayed`.
    bool read(int64_t sentence, bool hasty = false) {
        b = sentence;
        hasty_ = hasty && !problem.shared && !problem.follow && T * T >= W;
        removed_ = kNone;
        widest_ = Mask<Real>{};
        L = problem.lengths[b];
        if (L < 0 || L > problem.n) return false;
        if (L == 0) return true;
        bool removed = false;
        if (!(problem.unary ? read_unary(removed) : read_arcs())) return false;
        for (int64_t e = 0; hasty_ && e + 1 < L; ++e) peaks[e] = 0;
        if (L > 1 && !hasty_ && !read_pairs(removed)) return false;
        return removed && problem.unary ? trim() : true;
    }
    bool hasty() const { return hasty_; }
    void remember(Mask<Real> widest) { widest_ = widest > widest_ ? widest : widest_; }
    bool strayed() const { return any(too_wide(widest_, scale_)); }

    const In* raw(int64_t e) const { return constrained_ ? constrained_ + e * T * T : given(e); }
    double raw_score(int64_t e, int64_t s, int64_t t) const {
        return double(raw(e)[s * T + t]) * problem.scale;
    }

    // Scores of the arcs of edge e from tag s to the tags of one vector, in double precision; beyond T what
    // the next row begins with, or -inf.
    BCRF_INLINE_MEMBER Vec<double> scores(int64_t e, int64_t s, int64_t j) const {
        return load_within(raw(e), s * T + j, T * T, 0.0) * problem.scale;
    }

    // Takes the exponentials of edge e; at most `window` edges are kept.
    void enter(int64_t e) {
        if (problem.shared) return;
        const In* scores = raw(e);
        Real* rows = at(e);
        const Real peak = peaks[e], scale = scale_;
        const int64_t size = T * T;
        int64_t j = 0;
        if (hasty_) {
            Mask<Real> widest = {};
            for (; j + W < size; j += W) store(rows + j, hasty_exp(load_as(scores + j, Real(0)), scale, widest));
            // The last vector ends where the scores end.
            j = size - W;
            store(rows + j, hasty_exp(load_as(scores + j, Real(0)), scale, widest));
            remember(widest);
            return;
        }
        for (; j + W <= size; j += W) store(rows + j, vexp(load_as(scores + j, Real(0)) * scale - peak));
        if (j < size) store(rows + j, vexp(load_within(scores, j, size, Real(0)) * scale - peak));
    }
    Matrix<Real> edge(int64_t e) const {
        if (problem.shared) return {shared.rows, shared.columns, P};
        return {at(e), nullptr, T};
    }

    // log sum_s exp(x[s] + pair[s, t]) for the tags of one vector, x holding log weights.
    Vec<Real> log_arriving(int64_t e, const Real* x, int64_t j) const {
        const In* pair = raw(e);
        Vec<Real> peak = splat(-infinity<Real>()), sum = {};
        for (int64_t s = 0; s < T; ++s) peak = vmax(peak, x[s] + some(pair + s * T, j));
        const Vec<Real> base = peak > -infinity<Real>() ? peak : Vec<Real>{};
        for (int64_t s = 0; s < T; ++s) sum += vexp(x[s] + some(pair + s * T, j) - base);
        return sum > Real(0) ? vlog(sum) + base : splat(-infinity<Real>());
    }
    // log sum_t exp(pair[s, t] + y[t]) of one tag, y holding log weights.
    Real log_departing(int64_t e, const Real* y, int64_t s) const {
        const In* row = raw(e) + s * T;
        Vec<Real> peak = splat(-infinity<Real>()), sum = {};
        for (int64_t j = 0; j < P; j += W) peak = vmax(peak, some(row, j) + load(y + j));
        const Real base = hmax(peak);
        if (base == -infinity<Real>()) return base;
        for (int64_t j = 0; j < P; j += W) sum += vexp(some(row, j) + load(y + j) - base);
        return log_of(hsum(sum)) + base;
    }

  private:
    static constexpr int64_t W = lanes<Real>();
    int64_t words_, window_ = 1, slot_ = 0;
    Real scale_;
    bool hasty_ = false;      // pairs are taken for numbers of that range
    Mask<Real> widest_ = {};  // bits of the largest ones, as magnitudes, that were entered so
    Array<Real> ring_;
    Array<uint64_t> live_, bits_;  // tags that lie on a path; pairs of every edge
    Array<In> constrained_;  // [n-1, T, T]: pairs of every edge, -inf where they may not follow
    enum { kNone, kSame, kEach } removed_ = kNone;  // pairs: none, the same on all edges, any

    // (Mostly there is room for all edges, and the division is spared.)
    Real* at(int64_t e) const { return ring_ + (e < window_ ? e : e % window_) * slot_; }

    const In* given(int64_t e) const {
        return static_cast<const In*>(problem.pair) + b * problem.pair_strides[0] +
               e * problem.pair_strides[1];
    }

    Vec<Real> some(const In* row, int64_t j) const {
        return load_some<Real>(row + j, T - j, -infinity<Real>()) * scale_;
    }

    void read_row(const In* from, Real* to) const {
        for (int64_t j = 0; j < P; j += W) {
            const Vec<Real> x = j + W <= T ? load_as(from + j, Real(0))
                                           : load_some<Real>(from + j, T - j, -infinity<Real>());
            store(to + j, x * scale_);
        }
    }

    bool read_unary(bool& removed) {
        const In* base = static_cast<const In*>(problem.unary) + b * problem.node_strides[0];
        Survey<In> survey;
        for (int64_t i = 0; i < L; ++i) {
            const In* row = base + i * problem.node_strides[1];
            survey.include(row, T);
            read_row(row, nodes + i * P);
        }
        removed |= survey.removed();
        return !survey.bad();
    }

    bool read_arcs() {
        const int64_t start = b * problem.node_strides[0], by = problem.node_strides[1];
        const In* left = static_cast<const In*>(problem.left) + start;
        const In* right = static_cast<const In*>(problem.right) + start;
        Survey<In> survey;
        for (int64_t i = 0; L > 1 && i < L; ++i) {
            const In* row = i + 1 < L ? left + i * by : right + (i - 1) * by;
            survey.include(row, T);
            read_row(row, nodes + i * P);
        }
        return !survey.bad();
    }

    bool read_pairs(bool& removed) {
        if (problem.shared) {
            removed |= shared.range.removed;
            const Real peak = shared.peak(problem);
            for (int64_t e = 0; e + 1 < L; ++e) peaks[e] = peak;
            return !shared.range.bad;
        }
        const int64_t size = T * T, m = L - 1;
        const Real scale = scale_;
        Vec<In> sum[2] = {};
        for (int64_t e = 0; e < m; ++e) {
            const In peak = constrained_ ? add_peak_and_sum(
                                               given(e), +shared.removal, size, sum, constrained_ + e * size)
                                         : peak_and_sum(given(e), size, sum);
            peaks[e] = peak > -infinity<In>() ? Real(peak) * scale : Real(0);
        }
        if (constrained_) removed_ = kSame, removed = true;
        const Vec<In> total = sum[0] + sum[1];
        if (!any(~(total - total == In(0)))) return true;
        // It takes more to know which of these it was, if any.
        Survey<In> survey;
        for (int64_t e = 0; e < m; ++e) {
            survey.include(raw(e), size);
            for (int64_t s = 0; s < T; ++s) presence(raw(e) + s * T, T, bits_ + (e * T + s) * words_);
        }
        if (survey.removed()) removed_ = kEach, removed = true;
        return !survey.bad();
    }

    // Which tags may follow which on edge e, as bits; null if all may.
    const uint64_t* allowed(int64_t e) const {
        if (problem.shared) return shared.range.removed ? +shared.bits : nullptr;
        if (removed_ == kSame) return shared.bits;
        return removed_ == kEach ? bits_ + e * T * words_ : nullptr;
    }

    // Sets the scores of tags that lie on no path to -inf; false if no path is left.
    bool trim() {
        uint64_t* live = live_;
        for (int64_t i = 0; i < L; ++i) presence(nodes + i * P, T, live + i * words_);
        for (int64_t e = 0; e + 1 < L; ++e) {
            const uint64_t *follow = allowed(e), *here = live + e * words_;
            uint64_t* next = live + (e + 1) * words_;
            for (int64_t w = 0; follow && w < words_; ++w) {
                uint64_t reached = 0;
                for (int64_t s = 0; s < T; ++s)
                    if (here[s / 64] >> (s % 64) & 1) reached |= follow[s * words_ + w];
                next[w] &= reached;
            }
            if (!any_bit(next)) return false;
        }
        if (!any_bit(live)) return false;
        for (int64_t e = L - 2; e >= 0; --e) {
            const uint64_t *follow = allowed(e), *next = live + (e + 1) * words_;
            uint64_t* here = live + e * words_;
            if (!follow) continue;
            for (int64_t s = 0; s < T; ++s) {
                uint64_t reaches = 0;
                for (int64_t w = 0; w < words_; ++w) reaches |= follow[s * words_ + w] & next[w];
                if (!reaches) here[s / 64] &= ~(uint64_t(1) << (s % 64));
            }
            if (!any_bit(here)) return false;
        }
        for (int64_t i = 0; i < L; ++i)
            for (int64_t t = 0; t < T; ++t)
                if (!(live[i * words_ + t / 64] >> (t % 64) & 1))
                    nodes[i * P + t] = -infinity<Real>();
        return true;
    }

    bool any_bit(const uint64_t* bits) const {
        uint64_t found = 0;
        for (int64_t w = 0; w < words_; ++w) found |= bits[w];
        return found != 0;
    }
};

}  // namespace
