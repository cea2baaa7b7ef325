// Attention's sums over lists of uneven length: the softmax of scores, and the three gradients of
// sum over n of w_n (q_b . k_n), b the sample of n: of the weights, of the queries, of the keys.
#include "chunks.h"
#include "vector_math.h"

namespace {

using namespace hotrows;

void softmax(const float* scores, int64_t L, float* out) {
  float highest = scores[0];
  for (int64_t n = 1; n < L; ++n) highest = std::max(highest, scores[n]);
  Vec total = {};
  for (int64_t n = 0; n < L; n += kLanes) {
    store(out + n, exp(load(scores + n, L - n) - highest), L - n);
    total += load(out + n, L - n);
  }
  const float share = 1.0f / sum(total);
  for (int64_t n = 0; n < L; ++n) out[n] *= share;
}

void softmax_backward(const float* grad, const float* weights, int64_t L, float* out) {
  Vec total = {};
  for (int64_t n = 0; n < L; n += kLanes)
    total = fma(load(grad + n, L - n), load(weights + n, L - n), total);
  const float mean = sum(total);
  for (int64_t n = 0; n < L; ++n) out[n] = weights[n] * (grad[n] - mean);
}

// Columns d .. d + REGISTERS registers of the sum of w_n v_n.
template <int REGISTERS>
inline void sum_columns(const float* weights, const float* values, int64_t L, int64_t D, int64_t d,
                        float* out) {
  Vec totals[REGISTERS] = {};
  for (int64_t n = 0; n < L; ++n)
    for (int64_t r = 0; r < REGISTERS; ++r) {
      const int64_t at = d + r * kLanes;
      totals[r] = fma(spread(weights[n]), load(values + n * D + at, D - at), totals[r]);
    }
  for (int64_t r = 0; r < REGISTERS; ++r)
    store(out + d + r * kLanes, totals[r], D - d - r * kLanes);
}

void weighted_sum(const float* weights, const float* values, int64_t L, int64_t D, float* out) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= D; d += 4 * kLanes) sum_columns<4>(weights, values, L, D, d, out);
  for (; d < D; d += kLanes) sum_columns<1>(weights, values, L, D, d, out);
}

inline float dot(const float* a, const float* b, int64_t D) {
  Vec total = {};
  for (int64_t d = 0; d < D; d += kLanes) total = fma(load(a + d, D - d), load(b + d, D - d), total);
  return sum(total);
}

}  // namespace

HOTROWS_API void hotrows_softmax_jagged(const float* scores, const int64_t* offsets, int64_t B,
                                        float* out) {
  each_sample(offsets, B, [&](int64_t b) {
    const int64_t first = offsets[b], L = offsets[b + 1] - first;
    if (L) softmax(scores + first, L, out + first);
  });
}

HOTROWS_API void hotrows_softmax_jagged_backward(const float* grad, const float* weights,
                                                 const int64_t* offsets, int64_t B, float* out) {
  each_sample(offsets, B, [&](int64_t b) {
    const int64_t first = offsets[b];
    softmax_backward(grad + first, weights + first, offsets[b + 1] - first, out + first);
  });
}

// out[b] = sum of weights[n] values[n] over the sample's n: [B, D].
HOTROWS_API void hotrows_weighted_sum(const float* weights, const float* values, const int64_t* offsets,
                                      int64_t B, int64_t D, float* out) {
  each_sample(offsets, B, [&](int64_t b) {
    const int64_t first = offsets[b];
    weighted_sum(weights + first, values + first * D, offsets[b + 1] - first, D, out + b * D);
  });
}

// out[n] = queries[b] . keys[n]: [N].
HOTROWS_API void hotrows_jagged_dot(const float* queries, const float* keys, const int64_t* offsets,
                                    int64_t B, int64_t D, float* out) {
  each_sample(offsets, B, [&](int64_t b) {
    for (int64_t n = offsets[b]; n < offsets[b + 1]; ++n) out[n] = dot(queries + b * D, keys + n * D, D);
  });
}

// out[n] = weights[n] queries[b]: [N, D].
HOTROWS_API void hotrows_weighted_copies(const float* weights, const float* queries,
                                         const int64_t* offsets, int64_t B, int64_t D, float* out) {
  each_sample(offsets, B, [&](int64_t b) {
    for (int64_t n = offsets[b]; n < offsets[b + 1]; ++n)
      for (int64_t d = 0; d < D; ++d) out[n * D + d] = weights[n] * queries[b * D + d];
  });
}

// Each request's list of values, once for each of its samples: sample s of request r has a copy of
// values[offsets[r]] .. values[offsets[r + 1] - 1]; those of request r begin at out[ends[r]].
HOTROWS_API void hotrows_repeat_lists(const float* values, const int64_t* offsets, const int64_t* starts,
                                      const int64_t* ends, int64_t R, int64_t D, float* out) {
  each_sample(ends, R, [&](int64_t r) {
    const int64_t size = (offsets[r + 1] - offsets[r]) * D;
    CHECK(size >= 0 && starts[r] <= starts[r + 1], r, size, starts[r], starts[r + 1]);
    CHECK((starts[r + 1] - starts[r]) * size == (ends[r + 1] - ends[r]) * D, r, size, ends[r], ends[r + 1]);
    float* to = out + ends[r] * D;
    for (int64_t s = starts[r]; s < starts[r + 1]; ++s, to += size)
      std::copy_n(values + offsets[r] * D, size, to);
  });
}

// The way back: of each request, the sum over its samples, one after the other.
HOTROWS_API void hotrows_sum_lists(const float* grad, const int64_t* offsets, const int64_t* starts,
                                   const int64_t* ends, int64_t R, int64_t D, float* out) {
  each_sample(ends, R, [&](int64_t r) {
    const int64_t size = (offsets[r + 1] - offsets[r]) * D;
    CHECK(size >= 0 && starts[r] <= starts[r + 1], r, size, starts[r], starts[r + 1]);
    CHECK((starts[r + 1] - starts[r]) * size == (ends[r + 1] - ends[r]) * D, r, size, ends[r], ends[r + 1]);
    const float* from = grad + ends[r] * D;
    float* to = out + offsets[r] * D;
    std::fill_n(to, size, 0.0f);
    for (int64_t s = starts[r]; s < starts[r + 1]; ++s, from += size)
      for (int64_t n = 0; n < size; n += kLanes)
        store(to + n, load(to + n, size - n) + load(from + n, size - n), size - n);
  });
}
