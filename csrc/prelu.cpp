// The way back through a PReLU with a slope per feature, in one pass.
#include "chunks.h"
#include "vector.h"

using namespace hotrows;

// grad, x and grad_x: [M, H]; slope and grad_slope: [H].
HOTROWS_API void hotrows_prelu_backward(const float* grad, const float* x, const float* slope, int64_t M,
                                        int64_t H, float* grad_x, float* grad_slope) {
  const int64_t chunks = chunks_of_rows(M), P = padded(H);
  std::vector<float> parts(chunks * P);
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c) {
    float* sums = &parts[c * P];
    for (int64_t m = M * c / chunks; m < M * (c + 1) / chunks; ++m)
      for (int64_t h = 0; h < H; h += kLanes) {
        const int64_t at = m * H + h, left = H - h;
        const Vec g = load(grad + at, left), value = load(x + at, left);
        store(grad_x + at, value > 0.0f ? g : g * load(slope + h, left), left);
        store_full(sums + h, load_full(sums + h) + (value > 0.0f ? Vec{} : g * value));
      }
  }
  std::fill(grad_slope, grad_slope + H, 0.0f);
  for (int64_t c = 0; c < chunks; ++c)
    for (int64_t h = 0; h < H; ++h) grad_slope[h] += parts[c * P + h];
}
