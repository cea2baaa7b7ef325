// Dice (DIN): y = x (p + alpha (1 - p)), p = sigmoid((x - mean) / std) of each feature, in two passes
// over the rows each way. p is computed again on the way back: cheaper than keeping it.
//
// Rows are cut into a fixed number of chunks, and these into blocks that stay in the first-level
// cache. A block's mean and variance are made by two passes over it, the second of which corrects the
// first; blocks and chunks are then combined in double (Chan, Golub, LeVeque 1979). No sum of squares
// ever cancels.
#include "chunks.h"
#include "vector_math.h"

namespace {

using namespace hotrows;

constexpr int64_t kBlock = 64;  // rows

// Of some rows, their count and by feature the mean and the sum of squared differences from it.
struct Moments {
  double count = 0;
  std::vector<double> mean, squares;
  explicit Moments(int64_t H) : mean(H), squares(H) {}

  template <class T>
  void add(double other_count, const T* other_mean, const T* other_squares) {
    if (other_count == 0) return;
    const double share = other_count / (count + other_count), weight = count * share;
    for (size_t h = 0; h < mean.size(); ++h) {
      const double difference = other_mean[h] - mean[h];
      mean[h] += difference * share;
      squares[h] += other_squares[h] + difference * difference * weight;
    }
    count += other_count;
  }
};

void moments_of_block(const float* x, int64_t rows, int64_t H, float* mean, float* squares) {
  for (int64_t h = 0; h < H; h += kLanes) {
    const Vec origin = load(x + h, H - h);
    Vec total = {}, rest = {}, squared = {};
    for (int64_t r = 1; r < rows; ++r) total += load(x + r * H + h, H - h) - origin;
    const float share = 1.0f / static_cast<float>(rows);
    const Vec middle = origin + total * share;
    for (int64_t r = 0; r < rows; ++r) {
      const Vec difference = load(x + r * H + h, H - h) - middle;
      rest += difference;
      squared = fma(difference, difference, squared);
    }
    store(mean + h, middle + rest * share, H - h);
    store(squares + h, squared - rest * rest * share, H - h);
  }
}

Moments moments_of_rows(const float* x, int64_t rows, int64_t H) {
  Moments all(H);
  std::vector<float> mean(H), squares(H);
  for (int64_t r = 0; r < rows; r += kBlock) {
    const int64_t count = std::min(kBlock, rows - r);
    moments_of_block(x + r * H, count, H, mean.data(), squares.data());
    all.add(static_cast<double>(count), mean.data(), squares.data());
  }
  return all;
}

// The derivative of the loss by z, and what it is made of.
struct Slope {
  Vec x, z, p, alpha, by_z;
  Slope(const float* g, const float* from, const float* mean, const float* rstd, const float* of_alpha,
        int64_t left)
      : x(load(from, left)),
        z((x - load(mean, left)) * load(rstd, left)),
        p(sigmoid(z)),
        alpha(load(of_alpha, left)),
        by_z(load(g, left) * x * (1.0f - alpha) * p * (1.0f - p)) {}
};

}  // namespace

// mean and var: [H], var biased; M >= 1.
HOTROWS_API void hotrows_moments(const float* x, int64_t M, int64_t H, float* mean, float* var) {
  const int64_t chunks = chunks_of_rows(M);
  std::vector<Moments> parts(chunks, Moments(H));
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t first = M * c / chunks, end = M * (c + 1) / chunks;
    parts[c] = moments_of_rows(x + first * H, end - first, H);
  }
  Moments all(H);
  for (const Moments& part : parts) all.add(part.count, part.mean.data(), part.squares.data());
  for (int64_t h = 0; h < H; ++h) {
    mean[h] = static_cast<float>(all.mean[h]);
    var[h] = static_cast<float>(all.squares[h] / static_cast<double>(M));
  }
}

HOTROWS_API void hotrows_dice(const float* x, const float* mean, const float* rstd, const float* alpha,
                              int64_t M, int64_t H, float* out) {
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; ++m)
    for (int64_t h = 0; h < H; h += kLanes) {
      const int64_t left = H - h;
      const Vec value = load(x + m * H + h, left), a = load(alpha + h, left);
      const Vec p = sigmoid((value - load(mean + h, left)) * load(rstd + h, left));
      store(out + m * H + h, value * fma(1.0f - a, p, a), left);
    }
}

// sums: [3, H]: of dz, of dz z, and of the gradient of alpha, over the rows.
HOTROWS_API void hotrows_dice_sums(const float* grad, const float* x, const float* mean, const float* rstd,
                                   const float* alpha, int64_t M, int64_t H, float* sums) {
  const int64_t chunks = chunks_of_rows(M), P = padded(H);
  std::vector<float> parts(chunks * 3 * P);
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c) {
    float* part = &parts[c * 3 * P];
    for (int64_t m = M * c / chunks; m < M * (c + 1) / chunks; ++m)
      for (int64_t h = 0; h < H; h += kLanes) {
        const float* g = grad + m * H + h;
        const Slope s(g, x + m * H + h, mean + h, rstd + h, alpha + h, H - h);
        store_full(part + h, load_full(part + h) + s.by_z);
        store_full(part + P + h, fma(s.by_z, s.z, load_full(part + P + h)));
        store_full(part + 2 * P + h,
                   fma(load(g, H - h) * s.x, 1.0f - s.p, load_full(part + 2 * P + h)));
      }
  }
  std::vector<float> totals(3 * P);
  for (int64_t c = 0; c < chunks; ++c)
    for (int64_t n = 0; n < 3 * P; ++n) totals[n] += parts[c * 3 * P + n];
  for (int64_t n = 0; n < 3; ++n) std::copy_n(&totals[n * P], H, sums + n * H);
}

// The gradient of x. sums: [2, H], of dz and of dz z over the num_rows rows whose statistics mean and
// rstd are, these M and maybe others; num_rows = 0: they are none of theirs, and nothing flows through.
HOTROWS_API void hotrows_dice_to_x(const float* grad, const float* x, const float* mean, const float* rstd,
                                   const float* alpha, const float* sums, int64_t M, int64_t H,
                                   int64_t num_rows, float* grad_x) {
  const float share = num_rows > 0 ? 1.0f / static_cast<float>(num_rows) : 0.0f;
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; ++m)
    for (int64_t h = 0; h < H; h += kLanes) {
      const int64_t left = H - h;
      const float* g = grad + m * H + h;
      const Slope s(g, x + m * H + h, mean + h, rstd + h, alpha + h, left);
      const Vec through = share * fma(s.z, load(sums + H + h, left), load(sums + h, left));
      const Vec direct = load(g, left) * fma(1.0f - s.alpha, s.p, s.alpha);
      store(grad_x + m * H + h, fma(load(rstd + h, left), s.by_z - through, direct), left);
    }
}
