// exp, sigmoid and tanh of vector registers.
//
// Relative errors stay below 3e-7 (tanh also near 0). NaN stays NaN.
#pragma once

#include <type_traits>

#include "vector.h"

namespace hotrows {

// The higher and the lower one, b where one of both is NaN.
inline Vec higher(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xFFFF, a, b);
#else
  return a > b ? a : b;
#endif
}
inline Vec lower(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xFFFF, a, b);
#else
  return a < b ? a : b;
#endif
}

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, whose low bits stand last

// e^x = power * (1 + rest), with power = 2^n and 1 + rest = e^r, |r| <= ln(2) / 2.
struct Exponential {
  Vec power, rest;
};

inline Vec within(float lowest, Vec x, float highest) { return lower(spread(highest), higher(spread(lowest), x)); }

// e^r by the polynomial of Cephes' expf (Moshier). 2^n must be a normal number: x from -87 to 88.
inline Exponential exponential(Vec x) {
  const Vec shifted = fma(x, spread(1.44269504088896341f), spread(kRounder));
  const Vec n = shifted - kRounder;
  Vec r = fma(n, spread(-0.693359375f), x);
  r = fma(n, spread(2.12194440e-4f), r);
  Vec p = spread(1.9875691500e-4f);
  p = fma(p, r, spread(1.3981999507e-3f));
  p = fma(p, r, spread(8.3334519073e-3f));
  p = fma(p, r, spread(4.1665795894e-2f));
  p = fma(p, r, spread(1.6666665459e-1f));
  p = fma(p, r, spread(5.0000001201e-1f));
  const Bits power = (reinterpret_cast<Bits>(shifted) << 23) + 0x3F800000;
  return {reinterpret_cast<Vec>(power), fma(p, r * r, r)};
}

// Below -87 it stays at e^-87, above 88 at e^88.
inline Vec exp(Vec x) {
  const Exponential e = exponential(within(-87.0f, x, 88.0f));
  return fma(e.power, e.rest, e.power);
}

inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

// 1 / x, of normal numbers: by an estimate of 14 bits and one step of Newton's, where there is one.
inline Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  const Vec y = _mm512_maskz_rcp14_ps(0xFFFF, x);
  return fma(y, fma(-x, y, spread(1.0f)), y);
#else
  return 1.0f / x;
#endif
}

// The sigmoid of n values, whole registers; four at a time, as one alone would wait for each of its steps. Within two
// units in the last place from -87 up: of 1 + e^-x the small terms are added first.
inline void sigmoid_all(const float* x, int64_t n, float* out) {
  const auto run = [&](int64_t i, auto registers) {
    Vec d[registers];
    for (int k = 0; k < registers; ++k) {
      const Exponential e = exponential(-within(-87.0f, load_full(x + i + k * kLanes), 87.0f));
      const Vec low = fma(e.power, e.rest, 1.0f + e.power);
      const Vec high = fma(e.power, e.rest, spread(1.0f)) + e.power;
      d[k] = e.power > 1.0f ? high : low;
    }
    for (int k = 0; k < registers; ++k) store_full(out + i + k * kLanes, reciprocal(d[k]));
  };
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) run(i, std::integral_constant<int, 4>());
  for (; i < n; i += kLanes) run(i, std::integral_constant<int, 1>());
}

// With m = e^2x - 1, made without cancellation where e^2x is near 1: m / (m + 2).
inline Vec tanh(Vec x) {
  const Exponential e = exponential(within(-20.0f, x + x, 20.0f));
  const Vec m = fma(e.power, e.rest, e.power - 1.0f);
  return m / (m + 2.0f);
}

}  // namespace hotrows
