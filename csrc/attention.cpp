// The first layer of target attention (target_projection.h), forward and backward. Where H or D are whole
// registers, what the caller holds is read and written in place; elsewhere through a tile of scratch. Lists of
// one or two keys take the same way: building M costs them about what [Wk - Wd, Wp] [k_n, q * k_n] would.
#include <memory>

#include "target_projection.h"

namespace {

using namespace hotrows;

constexpr int64_t kTile = 128;  // keys of a sample at once

void forward(const float* queries, const float* keys, const SharedLists& lists, const float* weight,
             const float* bias, const Shape& s, float* out) {
  const Weights w(weight, s, false);
  const Chunks chunks{lists.ends, lists.R};
  if (kChecks) chunks.check_all();
  const int64_t P = s.P();
  const bool in_place = s.H == P;
  std::vector<float> padded_bias(P);
  if (bias) std::copy(bias, bias + s.H, padded_bias.data());
#pragma omp parallel
  {
    std::vector<float> matrix(s.size()), tile(in_place ? 0 : kTile * P), terms;
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < chunks.count(); ++c) {
      const int64_t first = lists.first(chunks.first(c)), end = lists.first(chunks.first(c + 1));
      terms.resize((end - first) * P);
      copy_rows(padded_bias.data(), 0, end - first, P, terms.data(), P);
      multiply(queries + first * s.D, {s.D, 1}, w.query.data(), P, end - first, s.D, P, terms.data(), P,
               true);
      for (int64_t r = chunks.first(c); r < chunks.first(c + 1); ++r) {
        lists.check(r);
        for (int64_t b = lists.first(r); b < lists.first(r + 1); ++b) {
          if (lists.size(r) > 0) matrix_of(queries + b * s.D, w, s, matrix.data());
          for (int64_t n = 0; n < lists.size(r); n += kTile) {
            const int64_t rows = std::min(kTile, lists.size(r) - n);
            const float* k = keys + (lists.offsets[r] + n) * s.D;
            float *to = out + (lists.at(r, b) + n) * s.H, *y = in_place ? to : tile.data();
            prefetch_rows(k, rows * s.D);
            copy_rows(&terms[(b - first) * P], 0, rows, P, y, P);
            multiply(k, {s.D, 1}, matrix.data(), P, rows, s.D, P, y, P, true);
            if (!in_place) copy_rows(y, P, rows, s.H, to, s.H);
          }
        }
      }
    }
  }
}

// One thread's scratch on the way back.
struct Scratch {
  std::vector<float> query, matrix, sums, tile, keys_tile, terms, queries_tile;
  explicit Scratch(const Shape& s)
      : query(s.E()), matrix(s.H * s.E()), sums(s.size()),
        tile(s.H == s.P() ? 0 : kTile * s.P()), keys_tile(s.D == s.E() ? 0 : kTile * s.E()) {}
};

struct Backward {
  const float *grad, *queries, *keys;
  const SharedLists& lists;
  const Weights& w;
  const Shape& s;
  float *grad_queries, *grad_keys;

  // The gradients of the keys of sample b of request r; S into t.sums, and the sum of g_n into `term`: [P].
  void keys_of(int64_t r, int64_t b, Scratch& t, float* term) const {
    CHECK(lists.size(r) > 0, r);  // or S would be that of the sample before
    CHECK(term + s.P() <= t.terms.data() + t.terms.size(), b, t.terms.size());
    const int64_t P = s.P(), E = s.E(), first = lists.at(r, b);
    const bool adds = b > lists.first(r);
    copy_rows(queries + b * s.D, s.D, 1, s.D, t.query.data(), E);
    turned_matrix_of(t.query.data(), w, s, t.matrix.data());
    for (int64_t n = 0; n < lists.size(r); n += kTile) {
      const int64_t rows = std::min(kTile, lists.size(r) - n), key = (lists.offsets[r] + n) * s.D;
      const float *from = grad + (first + n) * s.H, *g = s.H == P ? from : t.tile.data();
      prefetch_rows(keys + key, rows * s.D);
      prefetch_rows(from, rows * s.H);
      if (s.H != P) copy_rows(from, s.H, rows, s.H, t.tile.data(), P);
      multiply(keys + key, {1, s.D}, g, P, s.D, rows, P, t.sums.data(), P, n > 0);
      for (int64_t h = 0; h < P; h += kLanes) {
        Vec total = load_full(term + h);
        for (int64_t i = 0; i < rows; ++i) total += load_full(g + i * P + h);
        store_full(term + h, total);
      }
      float *of_keys = grad_keys + key, *to = s.D == E ? of_keys : t.keys_tile.data();
      if (s.D != E && adds) copy_rows(of_keys, s.D, rows, s.D, to, E);
      multiply(g, {P, 1}, t.matrix.data(), E, rows, s.H, E, to, E, adds);
      if (s.D != E) copy_rows(to, E, rows, s.D, of_keys, s.D);
    }
  }

  // All samples of the requests [begin, last), terms and queries' gradients in one product each.
  void chunk(int64_t begin, int64_t last, Scratch& t, Part part) const {
    const int64_t first = lists.first(begin), end = lists.first(last), samples = end - first;
    const int64_t P = s.P(), E = s.E(), D = s.D;
    std::fill(part.query, part.query + Part::size(s), 0.0f);
    t.terms.assign(samples * P, 0.0f);
    std::fill(grad_queries + first * D, grad_queries + end * D, 0.0f);
    for (int64_t r = begin; r < last; ++r) {
      lists.check(r);
      if (lists.size(r) == 0) continue;
      for (int64_t b = lists.first(r); b < lists.first(r + 1); ++b) {
        keys_of(r, b, t, &t.terms[(b - first) * P]);
        weights_of(queries + b * D, t.sums.data(), w, s, part, grad_queries + b * D);
      }
    }
    t.queries_tile.resize(samples * E);
    terms_of(queries + first * D, t.terms.data(), samples, w, s, part, t.queries_tile.data(),
             grad_queries + first * D);
  }
};

void backward(const Backward& run, float* grad_weight, float* grad_bias) {
  const Shape& s = run.s;
  const Chunks chunks{run.lists.ends, run.lists.R};
  if (kChecks) chunks.check_all();
  const int64_t count = chunks.count();
  const std::unique_ptr<float[]> parts(new float[count * Part::size(s)]);
#pragma omp parallel
  {
    Scratch scratch(s);
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < count; ++c)
      run.chunk(chunks.first(c), chunks.first(c + 1), scratch, Part(&parts[c * Part::size(s)], s));
#pragma omp for schedule(static)
    for (int64_t d = 0; d < s.D; ++d) write_weights(parts.get(), Part::size(s), count, s, d, grad_weight);
  }
  std::fill(grad_bias, grad_bias + s.H, 0.0f);
  for (int64_t c = 0; c < count; ++c) {
    const Part part(&parts[c * Part::size(s)], s);
    for (int64_t h = 0; h < s.H; ++h) grad_bias[h] += part.bias[h];
  }
}

}  // namespace

// queries: [B, D], keys: [N, D] of `SharedLists`, weight: [H, 4D], bias: [H] or null; out: [N', H], of every
// sample's list.
HOTROWS_API void hotrows_target_projection(const float* queries, const float* keys, const int64_t* ends,
                                           const int64_t* offsets, const int64_t* starts,
                                           const float* weight, const float* bias, int64_t R, int64_t D,
                                           int64_t H, float* out) {
  forward(queries, keys, {ends, offsets, starts, R}, weight, bias, Shape{D, H}, out);
}

HOTROWS_API void hotrows_target_projection_backward(const float* grad, const float* queries,
                                                    const float* keys, const int64_t* ends,
                                                    const int64_t* offsets, const int64_t* starts,
                                                    const float* weight, int64_t R, int64_t D, int64_t H,
                                                    float* grad_queries, float* grad_keys,
                                                    float* grad_weight, float* grad_bias) {
  const Shape s{D, H};
  const Weights w(weight, s, true);
  const SharedLists lists{ends, offsets, starts, R};
  backward(Backward{grad, queries, keys, lists, w, s, grad_queries, grad_keys}, grad_weight, grad_bias);
}
