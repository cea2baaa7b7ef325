// Attention's sums over lists of uneven length: the softmax of scores, and the three gradients of
// sum over n of w_n (q_b . k_n), b the sample of n: of the weights, of the queries, of the keys.
#include "chunks.h"
#include "weighted_sums.h"

namespace {

using namespace hotrows;

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

// In one chain of sums, unlike `hotrows::weighted_sum`.
void sum_by_weight(const float* weights, const float* values, int64_t L, int64_t D, float* out) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= D; d += 4 * kLanes) sum_columns<4>(weights, values, L, D, d, out);
  for (; d < D; d += kLanes) sum_columns<1>(weights, values, L, D, d, out);
}

inline float dot(const float* a, const float* b, int64_t D) {
  Vec total = {};
  for (int64_t d = 0; d < D; d += kLanes) total = fma(load(a + d, D - d), load(b + d, D - d), total);
  return sum(total);
}

// Calls run(place of what is computed, element, length, sample, is it the first of its list?) for every
// sample, those of a list one after the other.
template <class Run>
void each_list(const SharedLists& lists, Run run) {
  each_sample(lists.ends, lists.R, [&](int64_t r) {
    lists.check(r);
    for (int64_t s = lists.first(r); s < lists.first(r + 1); ++s)
      run(lists.at(r, s), lists.offsets[r], lists.size(r), s, s == lists.first(r));
  });
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

// out[s] = sum of weights[n] values[n] over the sample's n: [B, D].
HOTROWS_API void hotrows_weighted_sum(const float* weights, const float* values, const int64_t* ends,
                                      const int64_t* offsets, const int64_t* starts, int64_t R, int64_t D,
                                      float* out) {
  each_list({ends, offsets, starts, R}, [&](int64_t at, int64_t key, int64_t L, int64_t s, bool) {
    sum_by_weight(weights + at, values + key * D, L, D, out + s * D);
  });
}

// out[n] = queries[s] . keys[n]: of every sample's list.
HOTROWS_API void hotrows_jagged_dot(const float* queries, const float* keys, const int64_t* ends,
                                    const int64_t* offsets, const int64_t* starts, int64_t R, int64_t D,
                                    float* out) {
  each_list({ends, offsets, starts, R}, [&](int64_t at, int64_t key, int64_t L, int64_t s, bool) {
    for (int64_t n = 0; n < L; ++n) out[at + n] = dot(queries + s * D, keys + (key + n) * D, D);
  });
}

// out[n] = weights[n] queries[s]: [N, D], of lists that samples share their sum.
HOTROWS_API void hotrows_weighted_copies(const float* weights, const float* queries, const int64_t* ends,
                                         const int64_t* offsets, const int64_t* starts, int64_t R,
                                         int64_t D, float* out) {
  each_list({ends, offsets, starts, R}, [&](int64_t at, int64_t key, int64_t L, int64_t s, bool is_first) {
    for (int64_t n = 0; n < L; ++n) {
      float* to = out + (key + n) * D;
      for (int64_t d = 0; d < D; d += kLanes) {
        const Vec x = spread(weights[at + n]) * load(queries + s * D + d, D - d);
        store(to + d, is_first ? x : load(to + d, D - d) + x, D - d);
      }
    }
  });
}

// Each request's list of values, once for each of its samples.
HOTROWS_API void hotrows_repeat_lists(const float* values, const int64_t* offsets, const int64_t* starts,
                                      const int64_t* ends, int64_t R, int64_t D, float* out) {
  each_list({ends, offsets, starts, R}, [&](int64_t at, int64_t key, int64_t L, int64_t, bool) {
    std::copy_n(values + key * D, L * D, out + at * D);
  });
}

// The way back: of each request, the sum over its samples, one after the other.
HOTROWS_API void hotrows_sum_lists(const float* grad, const int64_t* offsets, const int64_t* starts,
                                   const int64_t* ends, int64_t R, int64_t D, float* out) {
  each_list({ends, offsets, starts, R}, [&](int64_t at, int64_t key, int64_t L, int64_t, bool is_first) {
    const float* from = grad + at * D;
    float* to = out + key * D;
    if (is_first) std::fill_n(to, L * D, 0.0f);
    for (int64_t n = 0; n < L * D; n += kLanes)
      store(to + n, load(to + n, L * D - n) + load(from + n, L * D - n), L * D - n);
  });
}
