// What attention does with the scores of a list: their softmax, and sums of its keys by weight.
#pragma once

#include "vector_math.h"

namespace hotrows {

// out may be scores.
inline void softmax(const float* scores, int64_t n, float* out) {
  float highest = scores[0];
  for (int64_t i = 1; i < n; ++i) highest = std::max(highest, scores[i]);
  Vec total = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    store(out + i, exp(load(scores + i, n - i) - highest), n - i);
    total += load(out + i, n - i);
  }
  const float share = 1.0f / sum(total);
  for (int64_t i = 0; i < n; ++i) out[i] *= share;
}

inline void weighted_sum(const float* weights, const float* values, int64_t L, int64_t D, float* out) {
  for (int64_t d = 0; d < D; d += kLanes) {
    Vec totals[4] = {};  // four chains of sums, or each would wait for the one before
    for (int64_t n = 0; n < L; ++n)
      totals[n % 4] = fma(spread(weights[n]), load(values + n * D + d, D - d), totals[n % 4]);
    store(out + d, (totals[0] + totals[1]) + (totals[2] + totals[3]), D - d);
  }
}

}  // namespace hotrows
