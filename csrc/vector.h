// Vector registers as values: sixteen, eight or four floats, by the instruction set.
//
// Files that include this add products without rounding them first where the processor can, so their
// bits depend on the instruction set (and never on the number of threads).
#pragma once

#include <new>

#include "core.h"

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

namespace hotrows {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Half __attribute__((vector_size(kLanes * 2)));
struct bfloat16 {
  uint16_t bits;
};

// a * b + c, rounded once where the instruction set can.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline Vec spread(float x) { return x - Vec{}; }

// out[l] = x[from[l]], best of a constant; of two registers, b's lanes count from kLanes.
inline Vec shuffle(Vec x, Bits from) {
#if defined(__clang__)
  Vec out;
  for (int64_t l = 0; l < kLanes; ++l) out[l] = x[from[l]];
  return out;
#else
  return __builtin_shuffle(x, from);
#endif
}
inline Vec shuffle(Vec a, Vec b, Bits from) {
#if defined(__clang__)
  Vec out;
  for (int64_t l = 0; l < kLanes; ++l) out[l] = from[l] < kLanes ? a[from[l]] : b[from[l] - kLanes];
  return out;
#else
  return __builtin_shuffle(a, b, from);
#endif
}

// The sum of all lanes: of the two halves' sum, and so on.
template <int64_t LANES = kLanes>
inline float sum(Vec x) {
  if constexpr (LANES == 1) {
    return x[0];
  } else {
    Bits other;
    for (int64_t l = 0; l < kLanes; ++l) other[l] = (l + LANES / 2) % kLanes;
    return sum<LANES / 2>(x + shuffle(x, other));
  }
}

inline Vec load_full(const float* from) {
  Vec x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline Vec load_full(const bfloat16* from) {
  Half half;
  std::memcpy(&half, from, sizeof half);
  return reinterpret_cast<Vec>(__builtin_convertvector(half, Bits) << 16);
}
inline void store_full(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }
inline void store_full(bfloat16* to, Vec x) {  // to the nearest, ties to even
  const Bits bits = reinterpret_cast<Bits>(x);
  const Bits rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const Bits quiet = (bits >> 16) | 0x40;
  const Half half = __builtin_convertvector(x == x ? rounded : quiet, Half);
  std::memcpy(to, &half, sizeof half);
}

// The same for the first `count` elements where fewer than a register are left; the others are 0.
template <class T>
inline Vec load(const T* from, int64_t count) {
  if (count >= kLanes) return load_full(from);
  T part[kLanes] = {};
  for (int64_t l = 0; l < count; ++l) part[l] = from[l];
  return load_full(part);
}
template <class T>
inline void store(T* to, Vec x, int64_t count) {
  if (count >= kLanes) return store_full(to, x);
  T part[kLanes];
  store_full(part, x);
  for (int64_t l = 0; l < count; ++l) to[l] = part[l];
}

#if defined(__AVX512F__)  // of float32 in one instruction
inline __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
inline Vec load(const float* from, int64_t count) {
  return count >= kLanes ? load_full(from) : (Vec)_mm512_maskz_loadu_ps(first(count), from);
}
inline void store(float* to, Vec x, int64_t count) {
  if (count >= kLanes) return store_full(to, x);
  _mm512_mask_storeu_ps(to, first(count), x);
}
#endif

// Floats that begin on a cache line, as whole registers are read best.
template <class T>
struct Lines {
  using value_type = T;
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t(64)); }
  template <class U>
  bool operator==(const Lines<U>&) const { return true; }
  template <class U>
  bool operator!=(const Lines<U>&) const { return false; }
};
using Floats = std::vector<float, Lines<float>>;

// n, rounded up to whole registers.
inline int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

}  // namespace hotrows
