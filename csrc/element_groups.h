// Groups of elements that stay in registers over many steps, side by side.
#pragma once

#include <limits>

#include "vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace hotrows {

template <class T>
struct Register {
  typedef T Type __attribute__((vector_size(sizeof(Vec))));
};
template <class T>
using Reg = typename Register<T>::Type;

constexpr int64_t kVectors = 6;  // side by side, so that one is worked on while another waits for its quotient
template <class T>
constexpr int64_t kWidth = sizeof(Vec) / sizeof(T);
template <class T>
constexpr int64_t kGroup = kVectors * kWidth<T>;

template <class T>
struct Elements {  // kGroup of each
  T *w, *first, *second;
};

template <class T>
inline Reg<T> read(const T* from) {
  Reg<T> x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class T>
inline void write(T* to, Reg<T> x) {
  std::memcpy(to, &x, sizeof x);
}

#if defined(__AVX512F__)
inline Reg<float> root(Reg<float> x) { return _mm512_maskz_sqrt_ps(0xFFFF, x); }
inline Reg<double> root(Reg<double> x) { return _mm512_maskz_sqrt_pd(0xFF, x); }
#elif defined(__AVX__)
inline Reg<float> root(Reg<float> x) { return _mm256_sqrt_ps(x); }
inline Reg<double> root(Reg<double> x) { return _mm256_sqrt_pd(x); }
#elif defined(__SSE2__)
inline Reg<float> root(Reg<float> x) { return _mm_sqrt_ps(x); }
inline Reg<double> root(Reg<double> x) { return _mm_sqrt_pd(x); }
#else
template <class V>
inline V root(V x) {
  for (size_t l = 0; l < sizeof(V) / sizeof(x[0]); ++l) x[l] = std::sqrt(x[l]);
  return x;
}
#endif

#if defined(__AVX512F__)
// To about an ulp, in half the time of the rounded ones: from the 14 bits that the processor estimates, by one step of
// Newton's method. x >= 0 and finite; of a number too small to be a normal one the root is only as small. |d| between
// 1e-30 and 1e30.
inline Vec near_root(Vec x) {
  const Vec smallest = spread(std::numeric_limits<float>::min());  // no division by 0 where x = 0
  const Vec y = _mm512_maskz_rsqrt14_ps(0xFFFF, _mm512_maskz_max_ps(0xFFFF, x, smallest));
  const Vec half = reinterpret_cast<Vec>(reinterpret_cast<Bits>(y) - 0x00800000);  // y / 2, beside the multipliers
  const Vec estimate = x * y;
  return fma(_mm512_fnmadd_ps(estimate, estimate, x), half, estimate);
}
inline Vec near_quotient(Vec n, Vec d) {
  const Vec inverse = _mm512_maskz_rcp14_ps(0xFFFF, d), estimate = n * inverse;
  return fma(_mm512_fnmadd_ps(d, estimate, n), inverse, estimate);
}
#endif

// move(t, w, first, second) for each step and register.
template <class T, class Move>
inline void in_registers(const Elements<T>& e, int64_t from, int64_t to, Move move) {
  Reg<T> w[kVectors], a[kVectors], b[kVectors];
  for (int64_t i = 0; i < kVectors; ++i) {
    w[i] = read(e.w + i * kWidth<T>);
    a[i] = read(e.first + i * kWidth<T>);
    b[i] = read(e.second + i * kWidth<T>);
  }
  for (int64_t t = from; t < to; ++t) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kVectors; ++i) move(t, w[i], a[i], b[i]);
  }
  for (int64_t i = 0; i < kVectors; ++i) {
    write(e.w + i * kWidth<T>, w[i]);
    write(e.first + i * kWidth<T>, a[i]);
    write(e.second + i * kWidth<T>, b[i]);
  }
}

template <class T>
inline Reg<T> absolute(Reg<T> x) {
  return x < 0 ? -x : x;
}

// Whether test(i), a comparison of registers number i, holds in all of their lanes.
template <class T, class Test>
inline bool all(Test test) {
  auto holds = test(0);
  for (int64_t i = 1; i < kVectors; ++i) holds &= test(i);
  int64_t words[sizeof holds / 8], together = -1;
  std::memcpy(words, &holds, sizeof holds);
  for (const int64_t word : words) together &= word;
  return together == -1;
}

// One rounding, whatever the factor.
template <class T>
inline void multiply(T* x, double by, int64_t count = kGroup<T>) {
  if (by == 1) return;
  for (int64_t l = 0; l < count; ++l) x[l] = static_cast<T>(x[l] * by);
}

}  // namespace hotrows
