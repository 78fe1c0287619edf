// Vectors of 32 bytes, their exponential and logarithm. The compiler lowers them to what the target
// has (two SSE or NEON registers, one AVX register), so the same source serves every architecture.
#pragma once
#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define BCRF_INLINE static inline __attribute__((always_inline))
#define BCRF_INLINE_MEMBER inline __attribute__((always_inline))
// Small arrays of vectors live in registers only if the loops over them are gone.
#define BCRF_UNROLL _Pragma("GCC unroll 8")

namespace {

constexpr int64_t kVectorBytes = 32;

template <class Real> struct Vector;
template <> struct Vector<float> {
    typedef float type __attribute__((vector_size(32)));
    typedef int32_t mask __attribute__((vector_size(32)));
};
template <> struct Vector<double> {
    typedef double type __attribute__((vector_size(32)));
    typedef int64_t mask __attribute__((vector_size(32)));
};
template <class Real> using Vec = typename Vector<Real>::type;
template <class Real> using Mask = typename Vector<Real>::mask;

template <class Real> constexpr int64_t lanes() { return kVectorBytes / int64_t(sizeof(Real)); }

template <class Real> BCRF_INLINE Vec<Real> splat(Real x) { return x - Vec<Real>{}; }

template <class Real> BCRF_INLINE Vec<Real> load(const Real* p) {
    Vec<Real> x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

template <class Real> BCRF_INLINE void store(Real* p, Vec<Real> x) { std::memcpy(p, &x, sizeof x); }

// The first `count` lanes (at most all of them); the others hold `fill`, and are not read.
template <class Real, class In>
BCRF_INLINE Vec<Real> load_some(const In* p, int64_t count, Real fill) {
    constexpr int64_t W = lanes<Real>();
#ifdef __AVX2__
    if constexpr (sizeof(In) == sizeof(Real)) {
        Mask<Real> lane;
        for (int64_t j = 0; j < W; ++j) lane[j] = decltype(+lane[0])(j);
        const Mask<Real> here = lane < decltype(+lane[0])(count < W ? count : W);
        Vec<Real> x;
        if constexpr (sizeof(Real) == 4) x = Vec<Real>(_mm256_maskload_ps(p, __m256i(here)));
        else x = Vec<Real>(_mm256_maskload_pd(p, __m256i(here)));
        return here ? x : splat(fill);
    }
#endif
    Real lane[W];
    for (int64_t j = 0; j < W; ++j) lane[j] = j < count ? Real(p[j]) : fill;
    return load<Real>(lane);
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

// Lane c of row r goes to lane r of row c.
BCRF_INLINE void transpose(Vec<float>* a) {
    Vec<float> b[8];
    BCRF_UNROLL for (int i = 0; i < 8; i += 2) {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    BCRF_UNROLL for (int i = 0; i < 8; i += 4)
        BCRF_UNROLL for (int k = 0; k < 2; ++k) {
            const Vec<float> x = b[i + k], y = b[i + 2 + k];
            a[i + 2 * k] = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
            a[i + 2 * k + 1] = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    BCRF_UNROLL for (int i = 0; i < 4; ++i) {
        const Vec<float> x = a[i], y = a[i + 4];
        a[i] = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
        a[i + 4] = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
BCRF_INLINE void transpose(Vec<double>* a) {
    Vec<double> b[4];
    BCRF_UNROLL for (int i = 0; i < 4; i += 2) {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 4, 2, 6);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 5, 3, 7);
    }
    BCRF_UNROLL for (int i = 0; i < 2; ++i) {
        a[i] = __builtin_shufflevector(b[i], b[i + 2], 0, 1, 4, 5);
        a[i + 2] = __builtin_shufflevector(b[i], b[i + 2], 2, 3, 6, 7);
    }
}

// exp(x) for x <= 88 (float) or 709 (double); 0 where the result would not be a normal number.
// x = n ln 2 + r, |r| <= ln 2 / 2: a polynomial in r, and n into the exponent bits. (Polynomials are
// evaluated as trees: one multiplication after the other would take longer.)
BCRF_INLINE Vec<float> vexp(Vec<float> x) {
    const Vec<float> lowest = splat(-87.33654f);
    const Mask<float> normal = x > lowest;
    x = vmax(x, lowest);
    const Vec<float> shifter = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec<float> shifted = x * 1.44269504f + shifter;
    const Vec<float> n = shifted - shifter;
    Vec<float> r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    const Vec<float> r2 = r * r;
    const Vec<float> high = r * 1.9875691500e-4f + 1.3981999507e-3f;
    const Vec<float> middle = r * 8.3334519073e-3f + 4.1665795894e-2f;
    const Vec<float> low = r * 1.6666665459e-1f + 5.0000001201e-1f;
    Vec<float> p = (high * r2 + middle) * r2 + low;
    p = p * r2 + (r + 1.0f);
    Mask<float> bits, power;
    std::memcpy(&bits, &p, sizeof bits);
    std::memcpy(&power, &shifted, sizeof power);
    bits = (bits + (power << 23)) & normal;
    std::memcpy(&p, &bits, sizeof p);
    return p;
}
BCRF_INLINE Vec<double> vexp(Vec<double> x) {
    const Vec<double> lowest = splat(-708.39);
    const Mask<double> normal = x > lowest;
    x = vmax(x, lowest);
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
    Mask<double> bits, power;
    std::memcpy(&bits, &p, sizeof bits);
    std::memcpy(&power, &shifted, sizeof power);
    bits = (bits + (power << 52)) & normal;
    std::memcpy(&p, &bits, sizeof p);
    return p;
}

// log(x) of positive normal numbers; anything else gives no meaningful number.
// x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2).
BCRF_INLINE Vec<float> vlog(Vec<float> x) {
    Mask<float> bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits += 0x3f800000 - 0x3f3504f3;
    const Vec<float> k = __builtin_convertvector((bits >> 23) - 127, Vec<float>);
    bits = (bits & 0x007fffff) + 0x3f3504f3;
    Vec<float> f;
    std::memcpy(&f, &bits, sizeof f);
    f = f - 1.0f;
    const Vec<float> f2 = f * f, f4 = f2 * f2, f3 = f * f2;
    const Vec<float> a = f4 * 7.0376836292e-2f + (f * -1.1514610310e-1f + 1.1676998740e-1f) * f2;
    const Vec<float> b = f * -1.2420140846e-1f + 1.4249322787e-1f;
    const Vec<float> c = (f * -1.6668057665e-1f + 2.0000714765e-1f) * f2;
    const Vec<float> d = f * -2.4999993993e-1f + 3.3333331174e-1f;
    const Vec<float> p = (a + b) * f4 + (c + d);
    const Vec<float> rest = k * -2.12194440e-4f - 0.5f * f2;
    return (f + (p * f3 + rest)) + k * 0.693359375f;
}
BCRF_INLINE Vec<double> vlog(Vec<double> x) {
    Mask<double> bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits += 0x3ff0000000000000 - 0x3fe6a09e667f3bcd;
    const Vec<double> k = __builtin_convertvector((bits >> 52) - 1023, Vec<double>);
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
