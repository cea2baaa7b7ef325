// Layers of what stands in the lanes, events or samples, a tile of them at a time: the outputs of a layer are rows, so
// that none is padded.
//
//   rows_of   y[o, :] = bias[o] + sum over i of w[i, o] x[i, :]    x: [in, TILE], y: [out, TILE]
//
// The sums over i have one order, that of the inputs.
#pragma once

#include <type_traits>

#include "matrix.h"

namespace hotrows {

#if defined(__AVX512F__)
constexpr int64_t kMostOutputs = 10;  // of 32 registers 20 hold sums
#else
constexpr int64_t kMostOutputs = 5;
#endif

// run(n) with n, from 1 to MOST, as a constant.
template <int MOST, class Run>
inline void with_constant(int64_t n, Run run) {
  if constexpr (MOST > 1)
    if (n < MOST) return with_constant<MOST - 1>(n, run);
  run(std::integral_constant<int, MOST>());
}

// Cuts the outputs from `o` to `end` into blocks of about equal size: run(first output, outputs, a constant).
template <class Run>
inline void each_block(int64_t o, int64_t end, Run run) {
  for (int64_t blocks = (end - o + kMostOutputs - 1) / kMostOutputs, n; blocks > 0; --blocks, o += n) {
    n = (end - o + blocks - 1) / blocks;
    with_constant<kMostOutputs>(n, [&](auto outputs) { run(o, outputs); });
  }
}

template <int REGISTERS, int OUTPUTS>
__attribute__((noinline)) void rows_block(const float* x, int64_t in, const float* w, int64_t w_stride,
                                          const float* bias, float* y) {
  constexpr int64_t TILE = REGISTERS * kLanes;
  Vec sums[OUTPUTS][REGISTERS];
#pragma GCC unroll 16  // all loops over sums, or they begin and end in memory
  for (int o = 0; o < OUTPUTS; ++o)
#pragma GCC unroll 2
    for (int r = 0; r < REGISTERS; ++r) sums[o][r] = spread(bias[o]);
  for (int64_t i = 0; i < in; ++i, x += TILE, w += w_stride) {
    Vec events[REGISTERS];
    for (int r = 0; r < REGISTERS; ++r) events[r] = load_full(x + r * kLanes);
#pragma GCC unroll 16
    for (int o = 0; o < OUTPUTS; ++o) {
      const Vec weight = spread(w[o]);
#pragma GCC unroll 2
      for (int r = 0; r < REGISTERS; ++r) sums[o][r] = fma(events[r], weight, sums[o][r]);
    }
  }
#pragma GCC unroll 16
  for (int o = 0; o < OUTPUTS; ++o)
#pragma GCC unroll 2
    for (int r = 0; r < REGISTERS; ++r) store_full(y + o * TILE + r * kLanes, sums[o][r]);
}

template <int REGISTERS>
inline void rows_of(const float* x, int64_t in, const float* w, int64_t w_stride, const float* bias, int64_t out,
                    float* y) {
  each_block(0, out, [&](int64_t o, auto outputs) {
    rows_block<REGISTERS, outputs>(x, in, w + o, w_stride, bias + o, y + o * REGISTERS * kLanes);
  });
}

// [L, D] keys as [D, TILE] of each tile of two registers, end to end, the last one of one register where that is
// enough; zeros behind the list.
inline void lay_in_lanes(const float* keys, int64_t L, int64_t D, Floats& out) {
  constexpr int64_t TILE = 2 * kLanes;
  out.resize(D * padded(L));
  for (int64_t n = 0; n < L; n += TILE) {
    const int64_t size = std::min(TILE, padded(L - n));
    transpose(keys + n * D, D, std::min(TILE, L - n), D, out.data() + n * D, size);
  }
}

}  // namespace hotrows
