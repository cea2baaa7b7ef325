// exp, sigmoid and tanh of vector registers.
//
// Relative errors stay below 3e-7 (tanh also near 0). NaN stays NaN.
#pragma once

#include "vector.h"

namespace hotrows {

// e^x = power * (1 + rest), with power = 2^n and 1 + rest = e^r, |r| <= ln(2) / 2.
struct Exponential {
  Vec power, rest;
};

// e^r by the polynomial of Cephes' expf (Moshier). x is held within `lowest` and `highest`, between
// which 2^n must be a normal number: -87 to 88.
inline Exponential exponential(Vec x, float lowest, float highest) {
  x = x < lowest ? spread(lowest) : x;
  x = x > highest ? spread(highest) : x;
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
  const Bits power = (reinterpret_cast<Bits>(shifted) << 23) + 0x3F800000;
  return {reinterpret_cast<Vec>(power), fma(p, r * r, r)};
}

// Below -87 it stays at e^-87, above 88 at e^88.
inline Vec exp(Vec x) {
  const Exponential e = exponential(x, -87.0f, 88.0f);
  return fma(e.power, e.rest, e.power);
}

inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

// With m = e^2x - 1, made without cancellation where e^2x is near 1: m / (m + 2).
inline Vec tanh(Vec x) {
  const Exponential e = exponential(x + x, -20.0f, 20.0f);
  const Vec m = fma(e.power, e.rest, e.power - 1.0f);
  return m / (m + 2.0f);
}

}  // namespace hotrows
