// Vectors of 32 bytes (8 floats or 4 doubles): loads, stores, reductions and transposes.
//
// They use the vector extension of GCC and Clang. The compiler lowers a vector to the registers of the
// target (two SSE or NEON registers, one AVX register), so one source serves every architecture. AVX2
// intrinsics appear only where the compiler generates worse code.
//
// Names used in all files: W = lanes<Real>() is the number of lanes of a vector, T the number of tags,
// P = padded<Real>(T) the number of tags rounded up to whole vectors, L the length of a sentence.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define BCRF_INLINE static inline __attribute__((always_inline))
#define BCRF_INLINE_MEMBER inline __attribute__((always_inline))
// The compiler keeps a small array of vectors in registers only if the loop over it is unrolled.
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
// The bit patterns are unsigned because arithmetic on the bits of unused lanes may overflow.
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

// Loads the first `count` lanes (all, if count >= W). The other lanes are not read; they get `fill`.
template <class Real, class In>
BCRF_INLINE Vec<Real> load_first(const In* p, int64_t count, Real fill) {
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

// Stores the first `count` lanes (all, if count >= W).
template <class Real> BCRF_INLINE void store_first(Real* p, int64_t count, Vec<Real> x) {
#ifdef __AVX2__
    const Mask<Real> here = first_lanes<Real>(count);
    if constexpr (sizeof(Real) == 4) _mm256_maskstore_ps(p, __m256i(here), __m256(x));
    else _mm256_maskstore_pd(p, __m256i(here), __m256d(x));
#else
    for (int64_t j = 0; j < lanes<Real>() && j < count; ++j) p[j] = x[j];
#endif
}

// Loads W numbers and converts them to Real: float scores may be solved in double precision.
BCRF_INLINE Vec<float> load_as(const float* p, float) { return load<float>(p); }
BCRF_INLINE Vec<double> load_as(const double* p, double) { return load<double>(p); }
BCRF_INLINE Vec<double> load_as(const float* p, double) {
    typedef float half __attribute__((vector_size(16)));
    half x;
    std::memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, Vec<double>);
}

// Loads the lower half of a vector from `low` and its upper half from `high`.
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

// Maximum and minimum of each lane. Compilers emit two instructions for `a > b ? a : b`; the intrinsic
// is one. If a is NaN, the result is b.
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

// The bit patterns as signed integers. Among numbers of one sign, larger magnitudes have larger bit patterns;
// infinity and NaN are the largest.
template <class V> BCRF_INLINE auto bits_of(V x) {
    Mask<std::remove_reference_t<decltype(x[0])>> bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
template <class Real> BCRF_INLINE Mask<Real> sign_bits() { return bits_of(splat(Real(-0.0))); }

// Bit j of the result is set if lane j of the mask is true.
template <class M> BCRF_INLINE uint32_t mask_bits(M mask) {
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
BCRF_INLINE Vec<float> sum_each(const Vec<float>* a) {
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
BCRF_INLINE Vec<double> sum_each(const Vec<double>* a) {
    Vec<double> pair[2];
    BCRF_UNROLL for (int i = 0; i < 2; ++i)
        pair[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 4, 2, 6) +
                  __builtin_shufflevector(a[2 * i], a[2 * i + 1], 1, 5, 3, 7);
    return __builtin_shufflevector(pair[0], pair[1], 0, 1, 4, 5) +
           __builtin_shufflevector(pair[0], pair[1], 2, 3, 6, 7);
}

// Shifts the lanes of b up by one and fills lane 0 with the last lane of a.
BCRF_INLINE Vec<float> shift_in_last(Vec<float> a, Vec<float> b) {
    return __builtin_shufflevector(a, b, 7, 8, 9, 10, 11, 12, 13, 14);
}
BCRF_INLINE Vec<double> shift_in_last(Vec<double> a, Vec<double> b) {
    return __builtin_shufflevector(a, b, 3, 4, 5, 6);
}

// Transposes the lower and the upper halves of W / 2 rows, each half by itself: lane c of row r goes to
// lane r of row c.
BCRF_INLINE void transpose_half_rows(Vec<float>* a) {
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
BCRF_INLINE void transpose_half_rows(Vec<double>* a) {
    const Vec<double> x = a[0], y = a[1];
    a[0] = __builtin_shufflevector(x, y, 0, 4, 2, 6);
    a[1] = __builtin_shufflevector(x, y, 1, 5, 3, 7);
}
// Transposes W rows: lane c of row r goes to lane r of row c.
BCRF_INLINE void transpose(Vec<float>* a) {
    transpose_half_rows(a);
    transpose_half_rows(a + 4);
    BCRF_UNROLL for (int i = 0; i < 4; ++i) {
        const Vec<float> x = a[i], y = a[i + 4];
        a[i] = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
        a[i + 4] = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
BCRF_INLINE void transpose(Vec<double>* a) {
    transpose_half_rows(a);
    transpose_half_rows(a + 2);
    BCRF_UNROLL for (int i = 0; i < 2; ++i) {
        const Vec<double> x = a[i], y = a[i + 2];
        a[i] = __builtin_shufflevector(x, y, 0, 1, 4, 5);
        a[i + 2] = __builtin_shufflevector(x, y, 2, 3, 6, 7);
    }
}

// Whether transposing W rows is cheaper than moving `count` columns one number at a time. It is not for
// the one or two columns that remain with, for example, 9 or 17 tags.
template <class Real> BCRF_INLINE bool worth_transposing(int64_t count) {
    return 4 * count > lanes<Real>();
}

}  // namespace
