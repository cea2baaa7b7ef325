// exp and sigmoid of a vector register, to about 1e-7 relative.
#pragma once

#include "vector.h"

namespace hotrows {

// e^x = 2^n e^r with n whole and |r| <= ln(2) / 2; e^r by the polynomial of Cephes' expf (Moshier).
// Below -87 it stays at e^-87, above 88 at e^88; NaN stays NaN.
inline Vec exp(Vec x) {
  x = x < -87.0f ? spread(-87.0f) : x;
  x = x > 88.0f ? spread(88.0f) : x;
  const Vec rounder = spread(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec shifted = fma(x, spread(1.44269504088896341f), rounder);
  const Vec n = shifted - rounder;
  Vec r = fma(n, spread(-0.693359375f), x);
  r = fma(n, spread(2.12194440e-4f), r);
  Vec p = spread(1.9875691500e-4f);
  p = fma(p, r, spread(1.3981999507e-3f));
  p = fma(p, r, spread(8.3334519073e-3f));
  p = fma(p, r, spread(4.1665795894e-2f));
  p = fma(p, r, spread(1.6666665459e-1f));
  p = fma(p, r, spread(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
  const Bits power = (reinterpret_cast<Bits>(shifted) - reinterpret_cast<Bits>(rounder)) << 23;
  return x == x ? reinterpret_cast<Vec>(reinterpret_cast<Bits>(p) + power) : x;
}

inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace hotrows
