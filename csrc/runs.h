// Runs of equal rows in a batch, and the sum of each run's gradients.
#pragma once

#include "core.h"

namespace hotrows {

constexpr int64_t kAhead = 16;  // turns between prefetching a row and using it

// One pack's runs of equal rows, and the gradients of its vectors; fields as in `PackPlan`.
template <class T>
struct Runs {
  const int32_t* order;
  const int32_t* starts;
  const int32_t* bags;  // null: id n is bag n
  const T* weights;     // null: 1
  const T* grad;
  int64_t num_rows, num_ids;

  const T* vector(int64_t at, int64_t dim) const {
    const int64_t n = order[at];
    return grad + (bags ? bags[n] : n) * dim;
  }
};

// out = the sum over run u of weight * gradient, in the order of the batch. A kDim known when compiled
// keeps it in registers; 0 stands for any `dim`.
template <int kDim, class T>
inline void sum_run(const Runs<T>& runs, int64_t u, int64_t dim, T* __restrict out) {
  const int64_t width = kDim ? kDim : dim, num_ids = runs.num_ids;
  const int64_t size = width * static_cast<int64_t>(sizeof(T));
  for (int64_t d = 0; d < width; ++d) out[d] = T(0);
  for (int64_t at = runs.starts[u]; at < runs.starts[u + 1]; ++at) {
    if (at + kAhead < num_ids) {
      const uint8_t* next = reinterpret_cast<const uint8_t*>(runs.vector(at + kAhead, width));
      for (int64_t byte = 0; byte < size; byte += 64) prefetch(next + byte);
      prefetch(next + size - 1);
    }
    const T* vector = runs.vector(at, width);
    if (runs.weights) {
      const T scale = runs.weights[runs.order[at]];
      for (int64_t d = 0; d < width; ++d) out[d] += scale * vector[d];
    } else {
      for (int64_t d = 0; d < width; ++d) out[d] += vector[d];
    }
  }
}

}  // namespace hotrows
