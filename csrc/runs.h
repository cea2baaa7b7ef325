// Runs of equal rows in a batch, and the sum of each run's gradients.
#pragma once

#include "core.h"

namespace hotrows {

constexpr int64_t kAhead = 16;  // turns between prefetching a row and using it

// Widths known when compiled keep a row in registers; 0 stands for any other.
#define HOTROWS_FOR_WIDTH(dim, call) \
  switch (dim) {                     \
    case 1: call(1); break;          \
    case 8: call(8); break;          \
    case 16: call(16); break;        \
    case 32: call(32); break;        \
    case 64: call(64); break;        \
    case 128: call(128); break;      \
    default: call(0); break;         \
  }

template <bool kWrite>
inline void prefetch_bytes(const void* start, int64_t size) {
  const uint8_t* from = static_cast<const uint8_t*>(start);
  for (int64_t at = 0; at < size; at += 64) kWrite ? prefetch_for_write(from + at) : prefetch(from + at);
  kWrite ? prefetch_for_write(from + size - 1) : prefetch(from + size - 1);
}

// One pack's runs of equal rows, and the gradients of its vectors; fields as in `PackPlan`.
template <class T>
struct Runs {
  const int32_t* order;
  const int32_t* starts;
  const int32_t* bags;  // null: id n is bag n
  const T* weights;     // null: 1
  const T* grad;
  int64_t num_rows, num_ids;

  // Runs cover all ids, and none is empty; each id is in one.
  void check_all() const {
    CHECK(num_rows == 0 || starts[num_rows] == num_ids, starts[num_rows], num_ids);
    CHECK(rises(starts, num_rows + 1), num_rows);
    std::vector<bool> seen(static_cast<size_t>(num_ids));
    for (int64_t at = num_rows ? starts[0] : 0; num_rows && at < num_ids; ++at) {
      CHECK(order[at] >= 0 && order[at] < num_ids && !seen[order[at]], at, order[at], num_ids);
      seen[order[at]] = true;
      CHECK(!bags || bags[order[at]] >= 0, at);
    }
  }

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
      prefetch_bytes<false>(runs.vector(at + kAhead, width), size);
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
