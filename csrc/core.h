// What every file of the native core shares: the export mark, hashing, and the split of work.
//
// The core is plain C symbols over plain pointers. It allocates nothing that outlives a call and keeps
// no state, but for handles that their caller frees: slot maps (slots.cpp), key tables (keys.cpp), counts
// of ids (counts.cpp), and indices and fetchers of record files (file_index.cpp, file_fetch.cpp).
// It reports a failure by its return value. Floating-point results do not depend on the number of
// threads or on the instruction set: loops are split by rows, never inside a sum, and contraction is
// off.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>

#include "check.h"

#define HOTROWS_API extern "C" __attribute__((visibility("default")))

namespace hotrows {

// Values of a column up to which one thread is faster than waking others.
constexpr int64_t kFew = 8192;

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection that looks random.
inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The random bits of element `index` of the stream `key`; any element in any order.
inline uint64_t random_bits(uint64_t key, uint64_t index) { return mix64(key + (index + 1) * kGolden); }

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
inline void prefetch_for_write(const void* p) { __builtin_prefetch(p, 1, 3); }

}  // namespace hotrows
