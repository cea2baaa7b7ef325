// The way back through bias and ReLU in one pass: masks a gradient and sums its columns.
#include "core.h"

namespace {

constexpr int64_t kChunks = 32;  // of samples, each summed by itself, whatever the number of threads

inline bool passes(float activation) { return !(activation <= 0); }
inline bool passes(int16_t activation) { return activation > 0; }  // bfloat16: sign and magnitude
inline float widened(float x) { return x; }
inline float widened(int16_t x) {
  const uint32_t bits = static_cast<uint32_t>(static_cast<uint16_t>(x)) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

template <class T>
void mask_row(const T* grad, const T* activation, int64_t N, T* out, float* sums) {
  for (int64_t n = 0; n < N; ++n) {
    const T kept = passes(activation[n]) ? grad[n] : T(0);
    out[n] = kept;
    sums[n] += widened(kept);
  }
}

template <class T>
void sum_row(const T* grad, int64_t N, float* sums) {
  for (int64_t n = 0; n < N; ++n) sums[n] += widened(grad[n]);
}

template <class T>
void relu_backward(const T* grad, const T* activation, int64_t B, int64_t N, T* out, float* sums) {
  std::vector<float> parts(kChunks * N);
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < kChunks; ++c)
    for (int64_t b = B * c / kChunks; b < B * (c + 1) / kChunks; ++b)
      if (activation)
        mask_row(grad + b * N, activation + b * N, N, out + b * N, &parts[c * N]);
      else
        sum_row(grad + b * N, N, &parts[c * N]);
  std::fill(sums, sums + N, 0.0f);
  for (int64_t c = 0; c < kChunks; ++c) sum_row(&parts[c * N], N, sums);
}

}  // namespace

// grad, activation and out: [B, N] of float32 (itemsize 4) or bfloat16 (2); out may be grad.
// Without an activation nothing is masked or written; sums: [N] float32.
HOTROWS_API void hotrows_relu_backward(const void* grad, const void* activation, int64_t B, int64_t N,
                                       int64_t itemsize, void* out, float* sums) {
  if (itemsize == 4)
    relu_backward((const float*)grad, (const float*)activation, B, N, (float*)out, sums);
  else
    relu_backward((const int16_t*)grad, (const int16_t*)activation, B, N, (int16_t*)out, sums);
}
