// Exponential, logarithm and related constants for vectors.
#pragma once
#include "vector.h"

namespace {

template <class Real> constexpr Real infinity() { return Real(__builtin_inf()); }

// exp(x * scale) for |x * scale| <= 87 (float) or 708 (double), where the result is a normal number.
// With x * scale = (n + f) ln 2 and |f| <= 1/2, exp(f ln 2) is a polynomial in f, and n is added to the
// exponent bits. The polynomials are evaluated as trees, which have shorter dependency chains than Horner's
// scheme.
BCRF_INLINE Vec<float> vexp_in_range(Vec<float> x, float scale = 1) {
    const float c = scale * 1.44269504f;
#ifdef __AVX2__
    // Here x * scale = (k / 8 + f) ln 2 with |f| <= 1/16. A table of the eight powers 2^(j / 8), held in one
    // register, halves the degree of the polynomial. The bits of entry k % 8 plus k << 20 are 2^(k / 8). The table
    // gains 10 to 13 % of decoding by Bregman marginals with per-edge transitions.
    const Vec<float> shifter = splat(1572864.0f);  // 1.5 * 2^20: adding it rounds to an eighth
    constexpr uint32_t step = 1u << 20;            // an eighth, in bits of the exponent
    const Bits<float> eighths = {
        0x3f800000,            0x3f8b95c2 - step,     0x3f9837f0 - 2 * step, 0x3fa5fed7 - 3 * step,
        0x3fb504f3 - 4 * step, 0x3fc5672a - 5 * step, 0x3fd744fd - 6 * step, 0x3feac0c7 - 7 * step};
    const Vec<float> shifted = x * c + shifter;
    // The fused multiply-add rounds once. The error of the constant c contributes 1.3e-8 x, which is less
    // than the rounding error of x itself.
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
// With x = n ln 2 + r and |r| <= ln 2 / 2. ln 2 is split into two constants so that n ln 2 is exact.
BCRF_INLINE Vec<double> vexp_in_range(Vec<double> x, double scale = 1) {
    x = x * scale;
    const Vec<double> shifter = splat(6755399441055744.0);  // 1.5 * 2^52
    const Vec<double> shifted = x * 1.4426950408889634 + shifter;
    const Vec<double> n = shifted - shifter;
    Vec<double> r = x - n * 6.93147180369123816490e-01;
    r = r - n * 1.90821492927058770002e-10;
    // Taylor up to r^13 / 13!: the remainder is below 5e-18.
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

// exp(x) for any x <= 88 (float) or 709 (double). The result is 0 where it would be subnormal.
template <class V> BCRF_INLINE V vexp(V x) {
    using Real = std::remove_reference_t<decltype(x[0])>;
    const V lowest = splat(sizeof x[0] == 4 ? Real(-87.33654f) : Real(-708.39));
    const Mask<Real> normal = x > lowest;
    return normal ? vexp_in_range(vmax(x, lowest)) : V{};
}

// log(x) of positive normal numbers; the result for any other x is meaningless.
// With x = 2^k (1 + f) and sqrt(1/2) <= 1 + f < sqrt(2), log(x) = k ln 2 + log(1 + f).
BCRF_INLINE Vec<float> vlog(Vec<float> x) {
    Bits<float> bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits -= 0x3f3504f3;
    const Vec<float> k = __builtin_convertvector(Mask<float>(bits) >> 23, Vec<float>);
    bits = (bits & 0x007fffff) + 0x3f3504f3;
    Vec<float> f;
    std::memcpy(&f, &bits, sizeof f);
    f = f - 1.0f;
    // log(1 + f) = 2 artanh(s) with s = f / (2 + f). The division runs beside the multiplications, and a
    // polynomial without it would need twice as many of them.
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
