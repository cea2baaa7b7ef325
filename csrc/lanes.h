// Layers of what stands in the lanes, events or samples, a tile of them at a time: the outputs of a layer are rows, so
// that none is padded.
//
//   rows_of   y[o, :] = bias[o] + sum over i of w[i, o] x[i, :]    x: [in, TILE], y: [out, TILE]
//
// The sums over i have one order, that of the inputs.
#pragma once

#include "matrix.h"

namespace hotrows {

#if defined(__AVX512F__)
constexpr int64_t kMostOutputs = 10;  // of 32 registers 20 hold sums
#else
constexpr int64_t kMostOutputs = 5;
#endif

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

// A block of `outputs`, from 1 to kMostOutputs.
template <int REGISTERS, int OUTPUTS = kMostOutputs>
inline void rows_block_of(int64_t outputs, const float* x, int64_t in, const float* w, int64_t w_stride,
                          const float* bias, float* y) {
  if constexpr (OUTPUTS > 1)
    if (outputs < OUTPUTS) return rows_block_of<REGISTERS, OUTPUTS - 1>(outputs, x, in, w, w_stride, bias, y);
  rows_block<REGISTERS, OUTPUTS>(x, in, w, w_stride, bias, y);
}

// In blocks of about equal size.
template <int REGISTERS>
inline void rows_of(const float* x, int64_t in, const float* w, int64_t w_stride, const float* bias, int64_t out,
                    float* y) {
  for (int64_t blocks = (out + kMostOutputs - 1) / kMostOutputs, o = 0; blocks > 0; --blocks) {
    const int64_t outputs = (out - o + blocks - 1) / blocks;
    rows_block_of<REGISTERS>(outputs, x, in, w + o, w_stride, bias + o, y + o * REGISTERS * kLanes);
    o += outputs;
  }
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
