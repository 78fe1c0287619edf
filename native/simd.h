// Vectors of 32 bytes, their exponential and logarithm. The compiler lowers them to what the target
// has (two SSE or NEON registers, one AVX register), so the same source serves every architecture.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define BCRF_INLINE static inline __attribute__((always_inline))
#define BCRF_INLINE_MEMBER inline __attribute__((always_inline))
// Small arrays of vectors live in registers only if the loops over them are gone.
#define BCRF_UNROLL _Pragma("GCC unroll 16")

namespace {

constexpr int64_t kVectorBytes = 32;

template <class Real> struct Vector;
template <> struct Vector<float> {
    typedef float type __attribute__((vector_size(32)));
    typedef int32_t mask __attribute__((vector_size(32)));
    typedef uint32_t bits __attribute__((vector_size(32)));
};
template <> struct Vector<double> {
    typedef double type __attribute__((vector_size(32)));
    typedef int64_t mask __attribute__((vector_size(32)));
    typedef uint64_t bits __attribute__((vector_size(32)));
};
template <class Real> using Vec = typename Vector<Real>::type;
template <class Real> using Mask = typename Vector<Real>::mask;
// Unsigned: what is no number, and will not be used, may overflow in it.
template <class Real> using Bits = typename Vector<Real>::bits;

template <class Real> constexpr int64_t lanes() { return kVectorBytes / int64_t(sizeof(Real)); }

template <class Real> BCRF_INLINE Vec<Real> splat(Real x) { return x - Vec<Real>{}; }

template <class Real> BCRF_INLINE Vec<Real> load(const Real* p) {
    Vec<Real> x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

template <class Real> BCRF_INLINE void store(Real* p, Vec<Real> x) { std::memcpy(p, &x, sizeof x); }

template <class Real> BCRF_INLINE Vec<Real> lane_index() {
    Real lane[lanes<Real>()];
    for (int64_t j = 0; j < lanes<Real>(); ++j) lane[j] = Real(j);
    return load<Real>(lane);
}

#ifdef __AVX2__
template <class Real> BCRF_INLINE Mask<Real> first_lanes(int64_t count) {
    constexpr int64_t W = lanes<Real>();
    Mask<Real> lane;
    for (int64_t j = 0; j < W; ++j) lane[j] = decltype(+lane[0])(j);
    return lane < decltype(+lane[0])(count < W ? count : W);
}
#endif

// The first `count` lanes (at most all of them); the others hold `fill`, and are not read.
template <class Real, class In>
BCRF_INLINE Vec<Real> load_some(const In* p, int64_t count, Real fill) {
#ifdef __AVX2__
    const Mask<Real> here = first_lanes<Real>(count);
    Vec<Real> x;
    if constexpr (sizeof(Real) == 4) {
        x = Vec<Real>(_mm256_maskload_ps(p, __m256i(here)));
    } else if constexpr (sizeof(In) == 8) {
        x = Vec<Real>(_mm256_maskload_pd(p, __m256i(here)));
    } else {
        typedef int32_t half __attribute__((vector_size(16)));
        const half narrow = __builtin_convertvector(here, half);
        x = Vec<Real>(_mm256_cvtps_pd(_mm_maskload_ps(p, __m128i(narrow))));
    }
    return here ? x : splat(fill);
#else
    Real lane[lanes<Real>()];
    for (int64_t j = 0; j < lanes<Real>(); ++j) lane[j] = j < count ? Real(p[j]) : fill;
    return load<Real>(lane);
#endif
}

// Only the first `count` lanes, at most all of them.
template <class Real> BCRF_INLINE void store_some(Real* p, int64_t count, Vec<Real> x) {
#ifdef __AVX2__
    const Mask<Real> here = first_lanes<Real>(count);
    if constexpr (sizeof(Real) == 4) _mm256_maskstore_ps(p, __m256i(here), __m256(x));
    else _mm256_maskstore_pd(p, __m256i(here), __m256d(x));
#else
    for (int64_t j = 0; j < lanes<Real>() && j < count; ++j) p[j] = x[j];
#endif
}

// Loads with conversion: scores may be narrower than the arithmetic.
BCRF_INLINE Vec<float> load_as(const float* p, float) { return load<float>(p); }
BCRF_INLINE Vec<double> load_as(const double* p, double) { return load<double>(p); }
BCRF_INLINE Vec<double> load_as(const float* p, double) {
    typedef float half __attribute__((vector_size(16)));
    half x;
    std::memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, Vec<double>);
}

// Half a vector from each place.
template <class In, class Real> BCRF_INLINE Vec<Real> load_halves(const In* low, const In* high, Real) {
    constexpr int64_t H = lanes<Real>() / 2;
#ifdef __AVX2__
    if constexpr (sizeof(In) == 4 && sizeof(Real) == 4)
        return Vec<Real>(_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1));
    if constexpr (sizeof(In) == 8)
        return Vec<Real>(_mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(low)), _mm_loadu_pd(high), 1));
#endif
    In both[2 * H];
    std::memcpy(both, low, sizeof both / 2);
    std::memcpy(both + H, high, sizeof both / 2);
    return load_as(both, Real(0));
}

// Compilers make two instructions of `a > b ? a : b`; these make one. NaN in a: b.
template <class V> BCRF_INLINE V vmax(V a, V b) {
#ifdef __AVX2__
    if constexpr (sizeof a[0] == 4) return V(_mm256_max_ps(__m256(a), __m256(b)));
    else return V(_mm256_max_pd(__m256d(a), __m256d(b)));
#else
    return a > b ? a : b;
#endif
}
template <class V> BCRF_INLINE V vmin(V a, V b) {
#ifdef __AVX2__
    if constexpr (sizeof a[0] == 4) return V(_mm256_min_ps(__m256(a), __m256(b)));
    else return V(_mm256_min_pd(__m256d(a), __m256d(b)));
#else
    return a < b ? a : b;
#endif
}

// a + b by the units that multiply, for where maxima are taken: some processors take sums and maxima in
// the same units.
BCRF_INLINE Vec<double> add_apart(Vec<double> a, Vec<double> b) {
#ifdef __AVX2__
    Vec<double> one = splat(1.0);
    asm("" : "+x"(one));  // or the compiler would know better
    return Vec<double>(_mm256_fmadd_pd(__m256d(a), __m256d(one), __m256d(b)));
#else
    return a + b;
#endif
}

template <class V> BCRF_INLINE V vsqrt(V x) {
#ifdef __AVX2__
    if constexpr (sizeof x[0] == 4) return V(_mm256_sqrt_ps(__m256(x)));
    else return V(_mm256_sqrt_pd(__m256d(x)));
#else
    for (unsigned j = 0; j < sizeof x / sizeof x[0]; ++j)
        x[j] = sizeof x[0] == 4 ? __builtin_sqrtf(float(x[j])) : __builtin_sqrt(x[j]);
    return x;
#endif
}

template <class M> BCRF_INLINE bool any(M mask) {
#ifdef __AVX2__
    return !_mm256_testz_si256(__m256i(mask), __m256i(mask));
#endif
    int64_t word[4];
    std::memcpy(word, &mask, sizeof word);
    return (word[0] | word[1] | word[2] | word[3]) != 0;
}

// Numbers as integers: of those with the same sign, NaN included, the larger has the larger one.
template <class V> BCRF_INLINE auto bits_of(V x) {
    Mask<std::remove_reference_t<decltype(x[0])>> bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
template <class Real> BCRF_INLINE Mask<Real> sign_bits() { return bits_of(splat(Real(-0.0))); }

// Bit j tells whether lane j is true.
template <class M> BCRF_INLINE uint32_t lane_bits(M mask) {
#ifdef __AVX2__
    if constexpr (sizeof mask[0] == 4) return uint32_t(_mm256_movemask_ps(__m256(mask)));
    else return uint32_t(_mm256_movemask_pd(__m256d(mask)));
#endif
    uint32_t bits = 0;
    for (unsigned j = 0; j < sizeof mask / sizeof mask[0]; ++j) bits |= uint32_t(mask[j] != 0) << j;
    return bits;
}

BCRF_INLINE float hsum(Vec<float> x) {
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
    return x[0] + x[1];
}
BCRF_INLINE double hsum(Vec<double> x) {
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1);
    return x[0] + x[1];
}
BCRF_INLINE float hmax(Vec<float> x) {
    x = vmax(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3));
    x = vmax(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5));
    return x[0] > x[1] ? x[0] : x[1];
}
BCRF_INLINE double hmax(Vec<double> x) {
    x = vmax(x, __builtin_shufflevector(x, x, 2, 3, 0, 1));
    return x[0] > x[1] ? x[0] : x[1];
}

// Lane r of the result is the sum of the lanes of a[r].
BCRF_INLINE Vec<float> sums(const Vec<float>* a) {
    Vec<float> pair[4], quad[2];
    BCRF_UNROLL for (int i = 0; i < 4; ++i)
        pair[i] =
            __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
            __builtin_shufflevector(a[2 * i], a[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    BCRF_UNROLL for (int i = 0; i < 2; ++i)
        quad[i] =
            __builtin_shufflevector(pair[2 * i], pair[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
            __builtin_shufflevector(pair[2 * i], pair[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(quad[0], quad[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(quad[0], quad[1], 4, 5, 6, 7, 12, 13, 14, 15);
}
BCRF_INLINE Vec<double> sums(const Vec<double>* a) {
    Vec<double> pair[2];
    BCRF_UNROLL for (int i = 0; i < 2; ++i)
        pair[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 4, 2, 6) +
                  __builtin_shufflevector(a[2 * i], a[2 * i + 1], 1, 5, 3, 7);
    return __builtin_shufflevector(pair[0], pair[1], 0, 1, 4, 5) +
           __builtin_shufflevector(pair[0], pair[1], 2, 3, 6, 7);
}

// The last lane of a, then all lanes of b but the last.
BCRF_INLINE Vec<float> delayed(Vec<float> a, Vec<float> b) {
    return __builtin_shufflevector(a, b, 7, 8, 9, 10, 11, 12, 13, 14);
}
BCRF_INLINE Vec<double> delayed(Vec<double> a, Vec<double> b) {
    return __builtin_shufflevector(a, b, 3, 4, 5, 6);
}

// Half as many rows as lanes, two halves of a row apart: lane c of row r goes to lane r of row c.
BCRF_INLINE void transpose_halves(Vec<float>* a) {
    Vec<float> b[4];
    BCRF_UNROLL for (int i = 0; i < 4; i += 2) {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    BCRF_UNROLL for (int k = 0; k < 2; ++k) {
        a[2 * k] = __builtin_shufflevector(b[k], b[2 + k], 0, 1, 8, 9, 4, 5, 12, 13);
        a[2 * k + 1] = __builtin_shufflevector(b[k], b[2 + k], 2, 3, 10, 11, 6, 7, 14, 15);
    }
}
BCRF_INLINE void transpose_halves(Vec<double>* a) {
    const Vec<double> x = a[0], y = a[1];
    a[0] = __builtin_shufflevector(x, y, 0, 4, 2, 6);
    a[1] = __builtin_shufflevector(x, y, 1, 5, 3, 7);
}
// As many rows as lanes: the same for whole rows.
BCRF_INLINE void transpose(Vec<float>* a) {
    transpose_halves(a);
    transpose_halves(a + 4);
    BCRF_UNROLL for (int i = 0; i < 4; ++i) {
        const Vec<float> x = a[i], y = a[i + 4];
        a[i] = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
        a[i + 4] = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
BCRF_INLINE void transpose(Vec<double>* a) {
    transpose_halves(a);
    transpose_halves(a + 2);
    BCRF_UNROLL for (int i = 0; i < 2; ++i) {
        const Vec<double> x = a[i], y = a[i + 2];
        a[i] = __builtin_shufflevector(x, y, 0, 1, 4, 5);
        a[i + 2] = __builtin_shufflevector(x, y, 2, 3, 6, 7);
    }
}

// Whether to transpose for `count` lanes pays: not for the one that an odd number of tags leaves.
template <class Real> BCRF_INLINE bool worth_transposing(int64_t count) {
    return 4 * count > lanes<Real>();
}

// exp(x scale) where that is a normal number: for |x scale| <= 87 (float) or 708 (double).
// x scale = (n + f) ln 2, |f| <= 1/2: a polynomial in f, and n into the exponent bits. (Polynomials are
// evaluated as trees: one multiplication after the other would take longer.)
BCRF_INLINE Vec<float> vexp_within(Vec<float> x, float scale = 1) {
    const float c = scale * 1.44269504f;
#ifdef __AVX2__
    // Here x scale = (k / 8 + f) ln 2, |f| <= 1/16: what a table of eight numbers, one register, gives for
    // k % 8 saves half of the polynomial. The sum of its entry's bits and of k, shifted, is 2^(k / 8).
    const Vec<float> shifter = splat(1572864.0f);  // 1.5 * 2^20: adding it rounds to an eighth
    constexpr uint32_t step = 1u << 20;            // an eighth, in bits of the exponent
    const Bits<float> eighths = {
        0x3f800000,            0x3f8b95c2 - step,     0x3f9837f0 - 2 * step, 0x3fa5fed7 - 3 * step,
        0x3fb504f3 - 4 * step, 0x3fc5672a - 5 * step, 0x3fd744fd - 6 * step, 0x3feac0c7 - 7 * step};
    const Vec<float> shifted = x * c + shifter;
    // Rounded once. What the constant lacks is 1.3e-8 x: less than the rounding of x itself.
    const Vec<float> f = x * c - (shifted - shifter);
    const Vec<float> q = (f * 5.54962203e-2f + 2.40257637e-1f) * f + 6.93147214e-1f;
    Bits<float> k;
    std::memcpy(&k, &shifted, sizeof k);
    const Bits<float> bits =
        Bits<float>(_mm256_permutevar8x32_epi32(__m256i(eighths), __m256i(k))) + (k << 20);
    Vec<float> power;
    std::memcpy(&power, &bits, sizeof power);
    return power * f * q + power;
#else
    const Vec<float> shifter = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec<float> shifted = x * c + shifter;
    const Vec<float> n = shifted - shifter;
    const Vec<float> f = x * c - n, f2 = f * f;
    const Vec<float> high = f * 1.33989002e-3f + 9.61843761e-3f;
    const Vec<float> middle = f * 5.55033241e-2f + 2.40226479e-1f;
    const Vec<float> low = f * 6.93147203e-1f + 1.0f;
    const Vec<float> p = ((f2 * 1.53533411e-4f + high) * f2 + middle) * f2 + low;
    Bits<float> bits, power;
    std::memcpy(&bits, &p, sizeof bits);
    std::memcpy(&power, &shifted, sizeof power);
    bits += power << 23;
    Vec<float> y;
    std::memcpy(&y, &bits, sizeof y);
    return y;
#endif
}
// Here x = n ln 2 + r, |r| <= ln 2 / 2.
BCRF_INLINE Vec<double> vexp_within(Vec<double> x, double scale = 1) {
    x = x * scale;
    const Vec<double> shifter = splat(6755399441055744.0);  // 1.5 * 2^52
    const Vec<double> shifted = x * 1.4426950408889634 + shifter;
    const Vec<double> n = shifted - shifter;
    Vec<double> r = x - n * 6.93147180369123816490e-01;
    r = r - n * 1.90821492927058770002e-10;
    // Taylor up to r^13 / 13!: the rest is below 5e-18.
    const Vec<double> r2 = r * r, r4 = r2 * r2;
    const Vec<double> a = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
    const Vec<double> b = r * (1.0 / 39916800.0) + 1.0 / 3628800.0;
    const Vec<double> c = r * (1.0 / 362880.0) + 1.0 / 40320.0;
    const Vec<double> d = r * (1.0 / 5040.0) + 1.0 / 720.0;
    const Vec<double> e = r * (1.0 / 120.0) + 1.0 / 24.0;
    const Vec<double> f = r * (1.0 / 6.0) + 0.5;
    Vec<double> p = ((a * r2 + b) * r4 + (c * r2 + d)) * r4 + (e * r2 + f);
    p = p * r2 + (r + 1.0);
    Bits<double> bits, power;
    std::memcpy(&bits, &p, sizeof bits);
    std::memcpy(&power, &shifted, sizeof power);
    bits += power << 52;
    std::memcpy(&p, &bits, sizeof p);
    return p;
}

// exp(x) for x <= 88 (float) or 709 (double); 0 where the result would not be a normal number.
template <class V> BCRF_INLINE V vexp(V x) {
    using Real = std::remove_reference_t<decltype(x[0])>;
    const V lowest = splat(sizeof x[0] == 4 ? Real(-87.33654f) : Real(-708.39));
    const Mask<Real> normal = x > lowest;
    return normal ? vexp_within(vmax(x, lowest)) : V{};
}

// log(x) of positive normal numbers; anything else gives no meaningful number.
// x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2).
BCRF_INLINE Vec<float> vlog(Vec<float> x) {
    Bits<float> bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits -= 0x3f3504f3;
    const Vec<float> k = __builtin_convertvector(Mask<float>(bits) >> 23, Vec<float>);
    bits = (bits & 0x007fffff) + 0x3f3504f3;
    Vec<float> f;
    std::memcpy(&f, &bits, sizeof f);
    f = f - 1.0f;
    // log(1 + f) = 2 artanh(s), s = f / (2 + f). Divisions are done apart from the multiplications,
    // of which there would be twice as many without this one.
    const Vec<float> s = f / (f + 2.0f), z = s * s;
    const Vec<float> p = ((z * 0.29871072f + 0.39977569f) * z + 0.66666776f) * z + 2.0f;
    return k * 0.69314718f + s * p;
}
BCRF_INLINE Vec<double> vlog(Vec<double> x) {
    Bits<double> bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits += 0x3ff0000000000000 - 0x3fe6a09e667f3bcd;
    const Vec<double> k = __builtin_convertvector((Mask<double>(bits) >> 52) - 1023, Vec<double>);
    bits = (bits & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd;
    Vec<double> f;
    std::memcpy(&f, &bits, sizeof f);
    f = f - 1.0;
    // log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), s = f / (2 + f).
    const Vec<double> s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    Vec<double> p = splat(1.479819860511658591e-01);
    p = p * z + 1.531383769920937332e-01;
    p = p * z + 1.818357216161805012e-01;
    p = p * z + 2.222219843214978396e-01;
    p = p * z + 2.857142874366239149e-01;
    p = p * z + 3.999999999940941908e-01;
    p = p * z + 6.666666666666735130e-01;
    p = p * z;
    return k * 6.93147180369123816490e-01 -
           ((half - (s * (half + p) + k * 1.90821492927058770002e-10)) - f);
}

template <class Real> BCRF_INLINE Real log_of(Real x) { return vlog(splat(x))[0]; }

}  // namespace
