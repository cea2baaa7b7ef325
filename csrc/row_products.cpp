// The first product of a network, computed from the distinct rows of a batch instead of its vectors.
//
//   y[b, :] = sum over features f, and the ids of sample b in it, of  weight of id * W_f . row of id
//
// with W = [W_0 | W_1 | ..], [H, F D]. A batch reads a frequent row many times: here each row is multiplied
// once, and its product added to the samples that read it. On the way back the gradients of these samples
// are summed first, and the sum is multiplied once for the row and once for W. Neither the matrix [B, F D]
// of all vectors nor its gradient is ever in memory.
//
// Row u of feature f is bounds[f] <= u < bounds[f + 1]; its ids are a run, as in `PackPlan`. Features are
// cut into chunks that follow from the shapes alone, and each y and each sum over a run is added in one
// order, so the number of threads changes no bit.
#include "matrix.h"

namespace {

using namespace hotrows;

constexpr int64_t kTile = 64;    // rows whose products stay in the innermost cache

// The ids of one feature, run after run.
struct Runs {
  const int64_t* bounds;  // [F + 1]
  const int32_t *starts, *order, *bags;  // bags: null, id n is bag n
  const float* weights;  // null: 1
  int64_t F;
};

// The samples and weights of one feature's ids, in the order of its runs.
struct Reads {
  std::vector<int32_t> samples;
  std::vector<float> weights;  // none: 1
  int64_t first = 0;           // its first place in `order`

  void of(const Runs& runs, int64_t f) {
    first = runs.starts[runs.bounds[f]];
    const int64_t count = runs.starts[runs.bounds[f + 1]] - first;
    CHECK(f < runs.F && runs.bounds[f] <= runs.bounds[f + 1] && count >= 0, f, runs.F, count);
    CHECK(never_falls(runs.starts + runs.bounds[f], runs.bounds[f + 1] - runs.bounds[f] + 1), f);
    const int32_t* ids = runs.order + first;
    samples.resize(count);
    // Bag b * F + f is of sample b. The quotient is whole, so that one of doubles is near enough.
    const double share = 1.0 / static_cast<double>(runs.F), middle = 0.5 - static_cast<double>(f) * share;
    if (runs.bags)
      for (int64_t k = 0; k < count; ++k) samples[k] = static_cast<int32_t>(runs.bags[ids[k]] * share + middle);
    else
      for (int64_t k = 0; k < count; ++k) samples[k] = static_cast<int32_t>(ids[k] * share + middle);
    for (int64_t k = 0; kChecks && k < count; ++k) {
      const int64_t bag = runs.bags ? runs.bags[ids[k]] : ids[k];
      CHECK(samples[k] * runs.F + f == bag, f, bag, samples[k]);
    }
    weights.resize(runs.weights ? count : 0);
    for (size_t k = 0; k < weights.size(); ++k) weights[k] = runs.weights[ids[k]];
  }
};

// y[sample] += weight * product, for the ids begin <= k < end, in REGISTERS columns.
template <int64_t REGISTERS>
inline void scatter(const Reads& reads, int64_t begin, int64_t end, const float* product, float* y, int64_t Hp) {
  Vec values[REGISTERS];
  for (int64_t c = 0; c < REGISTERS; ++c) values[c] = load_full(product + c * kLanes);
  for (int64_t k = begin; k < end; ++k) {
    float* sum = y + reads.samples[k] * Hp;
    if (reads.weights.empty()) {
      for (int64_t c = 0; c < REGISTERS; ++c)
        store_full(sum + c * kLanes, load_full(sum + c * kLanes) + values[c]);
    } else {
      const Vec scale = spread(reads.weights[k]);
      for (int64_t c = 0; c < REGISTERS; ++c)
        store_full(sum + c * kLanes, fma(scale, values[c], load_full(sum + c * kLanes)));
    }
  }
}

// sum = the sum of weight * dy[sample] over the ids begin <= k < end, in REGISTERS columns.
template <int64_t REGISTERS>
inline void gather(const Reads& reads, int64_t begin, int64_t end, const float* dy, int64_t Hp, float* sum) {
  Vec sums[REGISTERS] = {};
  for (int64_t k = begin; k < end; ++k) {
    const float* from = dy + reads.samples[k] * Hp;
    if (reads.weights.empty()) {
      for (int64_t c = 0; c < REGISTERS; ++c) sums[c] += load_full(from + c * kLanes);
    } else {
      const Vec scale = spread(reads.weights[k]);
      for (int64_t c = 0; c < REGISTERS; ++c) sums[c] = fma(scale, load_full(from + c * kLanes), sums[c]);
    }
  }
  for (int64_t c = 0; c < REGISTERS; ++c) store_full(sum + c * kLanes, sums[c]);
}

// Calls run(columns as a constant, first column) for all columns of Hp, four registers at a time.
template <class Run>
inline void each_block(int64_t Hp, Run run) {
  int64_t h = 0;
  for (; h + 4 * kLanes <= Hp; h += 4 * kLanes) run(std::integral_constant<int64_t, 4>{}, h);
  for (; h < Hp; h += kLanes) run(std::integral_constant<int64_t, 1>{}, h);
}

// What a thread works in, from the beginning of a cache line on: registers that cross lines take twice as long.
struct Scratch {
  Reads reads;
  std::vector<float> values;

  float* floats(int64_t count) {
    values.resize(count + 16);
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(values.data()) + 63) & ~uintptr_t{63});
  }
};

void products_of(const Runs& runs, int64_t f, const float* rows, int64_t D, const float* W, int64_t w_stride,
                 int64_t H, Scratch& scratch, float* y) {
  const int64_t Hp = padded(H);
  Reads& reads = scratch.reads;
  reads.of(runs, f);
  float *turned = scratch.floats((padded(D) + kTile) * Hp), *products = turned + padded(D) * Hp;
  transpose(W + f * D, w_stride, H, D, turned, Hp);  // [D, H]
  for (int64_t u = runs.bounds[f]; u < runs.bounds[f + 1]; u += kTile) {
    const int64_t count = std::min(kTile, runs.bounds[f + 1] - u);
    multiply(rows + u * D, {D, 1}, turned, Hp, count, D, Hp, products, Hp, false);
    each_block(Hp, [&](auto registers, int64_t h) {
      for (int64_t k = 0; k < count; ++k)
        scatter<registers>(reads, runs.starts[u + k] - reads.first, runs.starts[u + k + 1] - reads.first,
                           products + k * Hp + h, y + h, Hp);
    });
  }
}

// dy: [B, padded(H)].
void gradients_of(const Runs& runs, int64_t f, const float* rows, int64_t D, const float* W, int64_t w_stride,
                  int64_t H, const float* dy, Scratch& scratch, float* grad_rows, float* grad_W) {
  const int64_t Hp = padded(H), Dp = padded(D);
  Reads& reads = scratch.reads;
  reads.of(runs, f);
  float *block = scratch.floats(3 * Hp * Dp + kTile * (Hp + Dp)), *grad_block = block + Hp * Dp;
  float *turned = grad_block + Hp * Dp, *sums = turned + Hp * Dp, *grads = sums + kTile * Hp;
  std::fill(block, turned, 0.0f);
  for (int64_t h = 0; h < H; ++h) std::copy_n(W + h * w_stride + f * D, D, block + h * Dp);  // [H, D]
  for (int64_t u = runs.bounds[f]; u < runs.bounds[f + 1]; u += kTile) {
    const int64_t count = std::min(kTile, runs.bounds[f + 1] - u);
    each_block(Hp, [&](auto registers, int64_t h) {
      for (int64_t k = 0; k < count; ++k)
        gather<registers>(reads, runs.starts[u + k] - reads.first, runs.starts[u + k + 1] - reads.first, dy + h, Hp,
                          sums + k * Hp + h);
    });
    float* to = Dp == D ? grad_rows + u * D : grads;
    multiply(sums, {Hp, 1}, block, Dp, count, H, Dp, to, Dp, false);
    for (int64_t k = 0; k < count && Dp != D; ++k) std::copy_n(grads + k * Dp, D, grad_rows + (u + k) * D);
    multiply(rows + u * D, {1, D}, sums, Hp, D, count, Hp, grad_block, Hp, true);  // [D, H]
  }
  transpose(grad_block, Hp, D, H, turned, Dp);
  for (int64_t h = 0; h < H; ++h) std::copy_n(turned + h * Dp, D, grad_W + h * w_stride + f * D);
}

}  // namespace

// rows: [U, D]; W: [H, w_stride] from the pack's first column on; parts: [chunks, B, padded(H)] of scratch;
// y: [B, H] gets the products added.
HOTROWS_API void hotrows_row_products(const float* rows, int64_t D, const int64_t* bounds, const int32_t* starts,
                                      const int32_t* order, const int32_t* bags, const float* weights, int64_t F,
                                      int64_t B, const float* W, int64_t w_stride, int64_t H,
                                      int64_t chunks, float* parts, float* y) {
  const Runs runs{bounds, starts, order, bags, weights, F};
  const int64_t Hp = padded(H);
  CHECK(chunks > 0 && w_stride >= F * D, chunks, w_stride, F, D);
#pragma omp parallel
  {
    Scratch scratch;
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < chunks; ++c) {
      float* part = parts + c * B * Hp;
      std::fill(part, part + B * Hp, 0.0f);
      for (int64_t f = F * c / chunks; f < F * (c + 1) / chunks; ++f)
        products_of(runs, f, rows, D, W, w_stride, H, scratch, part);
    }
#pragma omp for schedule(static)
    for (int64_t b = 0; b < B; ++b)
      for (int64_t c = 0; c < chunks; ++c)
        for (int64_t h = 0; h < H; ++h) y[b * H + h] += parts[(c * B + b) * Hp + h];
  }
}

// dy: [B, H], the gradient of y; grad_rows: [U, D], each row's sum over the batch; grad_W: as W.
HOTROWS_API void hotrows_row_products_backward(const float* rows, int64_t D, const int64_t* bounds,
                                               const int32_t* starts, const int32_t* order, const int32_t* bags,
                                               const float* weights, int64_t F, int64_t B, const float* W,
                                               int64_t w_stride, int64_t H, const float* dy, float* grad_rows,
                                               float* grad_W) {
  const Runs runs{bounds, starts, order, bags, weights, F};
  const int64_t Hp = padded(H);
  std::vector<float> copy(Hp == H ? 0 : B * Hp);
  for (int64_t b = 0; b < B && Hp != H; ++b) std::copy_n(dy + b * H, H, copy.data() + b * Hp);
  const float* wide = Hp == H ? dy : copy.data();
#pragma omp parallel
  {
    Scratch scratch;
#pragma omp for schedule(dynamic)
    for (int64_t f = 0; f < F; ++f)
      gradients_of(runs, f, rows, D, W, w_stride, H, wide, scratch, grad_rows, grad_W);
  }
}
