// Pointwise attention of HSTU: a query reads elements of its list at distances d < P, by head
//
//   out = sum over elements of silu(s) v / P,    s = q . k + bias[d] (+ time_bias[interval])
//
// The queries are the elements themselves, which read those up to their own place, or others that stand
// behind the list and read all of it; these do not read each other.
//
//   forward    S = Q K^T of a tile of queries, A = silu(S) / P, then A V
//   backward   S again, and G = dO V^T; dS of both; then dQ = dS K, dK += dS^T Q, dV += A^T dO
//
// Elements stand in the lanes. Scores out of a query's reach are computed, and then made zero. A place in
// `relative` is that of a distance: with L elements, d is at L - d, so that a query at place p reads from
// L - p on, element after element.
#include <memory>

#include "chunks.h"
#include "matrix.h"
#include "vector_math.h"

namespace {

using namespace hotrows;

constexpr int64_t kTile = 32;  // queries of a list at once
constexpr int64_t kIntervals = 64;

// Two for each power of two of the seconds between two elements: 1, 1.5, 2, 3, 4, ..
inline int64_t interval_of(int64_t seconds) {
  const float x = static_cast<float>(std::max<int64_t>(seconds, 1));
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return std::min<int64_t>((bits >> 22) - 254, kIntervals - 1);
}

struct Inputs {
  const float *queries, *keys;  // rows apart by their strides; values are `W()` behind keys
  int64_t query_stride, key_stride;
  const int64_t *starts, *offsets;  // starts: null where the elements are the queries
  const float *bias, *time_bias;    // [H, P], [H, kIntervals] or null
  const int64_t *query_times, *times;
  int64_t H, D, P;

  int64_t W() const { return H * D; }
  int64_t E() const { return padded(D); }
  float scale() const { return 1.0f / static_cast<float>(P); }
  // Of a chunk, the gradients of both biases.
  int64_t num_biases() const { return H * P + (time_bias ? H * kIntervals : 0); }
};

// Rows in whole registers, where they are or as a copy.
struct Rows {
  const float* at;
  int64_t stride;
};

Rows whole(const float* from, int64_t stride, int64_t rows, int64_t width, std::vector<float>& copy) {
  const int64_t E = padded(width);
  if (width == E) return {from, stride};
  copy.resize(rows * E);
  copy_rows(from, stride, rows, width, copy.data(), E);
  return {copy.data(), E};
}

struct Scratch {
  std::vector<float> keys, values, turned_keys, turned_values, queries, out, scores, shares, grads, relative;
  std::vector<float> grad_relative, grad_keys, grad_values;
};

// One head of one list: M queries and L elements.
class Head {
 public:
  Head(const Inputs& in, int64_t list, int64_t h, Scratch& scratch)
      : in(in), t(scratch), h(h), key(in.offsets[list]), L(in.offsets[list + 1] - key),
        query(in.starts ? in.starts[list] : key), M(in.starts ? in.starts[list + 1] - query : L) {
    keys = in.keys + key * in.key_stride + h * in.D;
    t.turned_keys.resize(in.D * S());
    transpose(keys, in.key_stride, L, in.D, t.turned_keys.data(), S());
    t.scores.resize(kTile * S());
    t.shares.resize(S());
    t.relative.assign(L + kTile + 2 * kLanes, 0.0f);
    for (int64_t d = 0; d <= std::min(L, in.P - 1); ++d) t.relative[L - d] = in.bias[h * in.P + d];
  }

  void forward(float* out) const {
    const Rows v = whole(keys + in.W(), in.key_stride, L, in.D, t.values);
    for (int64_t first = 0; first < M; first += kTile) {
      const Tile tile = tile_at(first);
      scores(tile);
      for (int64_t r = 0; r < tile.rows; ++r) {
        float* row = t.scores.data() + r * S();
        sigmoid_all(row, tile.columns, t.shares.data());
        for (int64_t n = 0; n < tile.columns; n += kLanes)
          store_full(row + n, load_full(row + n) * load_full(&t.shares[n]) * in.scale());
        keep_reach(tile, r, row);
      }
      product({t.scores.data(), S()}, {v.at + tile.begin * v.stride, v.stride}, tile,
              out + (query + first) * in.W() + h * in.D);
    }
  }

  // biases: of the chunk, which is added to.
  void backward(const float* grad, float* grad_queries, float* grad_keys, float* biases) const {
    const int64_t E = in.E(), W = in.W();
    t.turned_values.resize(in.D * S());
    transpose(keys + W, in.key_stride, L, in.D, t.turned_values.data(), S());
    t.grads.resize(kTile * S());
    t.grad_relative.assign(t.relative.size(), 0.0f);
    t.grad_keys.assign(L * E, 0.0f);
    t.grad_values.assign(L * E, 0.0f);
    const Rows k = whole(keys, in.key_stride, L, in.D, t.keys);
    for (int64_t first = 0; first < M; first += kTile) {
      const Tile tile = tile_at(first);
      const float *q = queries_at(first), *g = grad + (query + first) * W + h * in.D;
      scores(tile);
      multiply(g, {W, 1}, t.turned_values.data() + tile.begin, S(), tile.rows, in.D, tile.columns,
               t.grads.data(), S(), false);
      for (int64_t r = 0; r < tile.rows; ++r) slopes(tile, r, biases);
      product({t.grads.data(), S()}, {k.at + tile.begin * k.stride, k.stride}, tile,
              grad_queries + (query + first) * W + h * in.D);
      const Rows of_queries = whole(q, in.query_stride, tile.rows, in.D, t.queries);
      add_turned(t.grads, of_queries, tile, t.grad_keys);
      const Rows of_grad = whole(g, W, tile.rows, in.D, t.queries);
      add_turned(t.scores, of_grad, tile, t.grad_values);
    }
    float* to = grad_keys + key * 2 * W + h * in.D;
    copy_columns(t.grad_keys, to);
    copy_columns(t.grad_values, to + W);
    for (int64_t d = 0; d <= std::min(L, in.P - 1); ++d) biases[h * in.P + d] += t.grad_relative[L - d];
  }

 private:
  // Queries from `first` on, which together read the elements from `begin`, at a register's start, to `end`.
  struct Tile {
    int64_t first, rows, begin, end, columns;
  };

  const Inputs& in;
  Scratch& t;
  const int64_t h, key, L, query, M;
  const float* keys;

  int64_t S() const { return padded(L); }
  int64_t place(int64_t i) const { return in.starts ? L : i; }
  int64_t low(int64_t i) const { return std::max<int64_t>(0, place(i) - in.P + 1); }
  int64_t high(int64_t i) const { return in.starts ? L : i + 1; }
  const float* queries_at(int64_t i) const { return in.queries + (query + i) * in.query_stride + h * in.D; }

  Tile tile_at(int64_t first) const {
    const int64_t rows = std::min(kTile, M - first), begin = low(first) / kLanes * kLanes;
    const int64_t end = high(first + rows - 1);
    CHECK(begin <= end && begin + padded(end - begin) <= S(), begin, end, S());
    return {first, rows, begin, end, padded(end - begin)};
  }

  void scores(const Tile& tile) const {
    multiply(queries_at(tile.first), {in.query_stride, 1}, t.turned_keys.data() + tile.begin, S(), tile.rows,
             in.D, tile.columns, t.scores.data(), S(), false);
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t i = tile.first + r, shift = L - place(i) + tile.begin;
      float* row = t.scores.data() + r * S();
      CHECK(shift + tile.columns <= static_cast<int64_t>(t.relative.size()), shift, tile.columns, L);
      for (int64_t n = 0; n < tile.columns; n += kLanes)
        store_full(row + n, load_full(row + n) + load_full(t.relative.data() + shift + n));
      if (!in.time_bias) continue;
      for (int64_t n = low(i); n < high(i); ++n)
        row[n - tile.begin] += in.time_bias[h * kIntervals + interval(i, n)];
    }
  }

  int64_t interval(int64_t i, int64_t n) const {
    return interval_of(in.query_times[query + i] - in.times[key + n]);
  }

  // Zeros in front of what query r of the tile reads, and behind it.
  void keep_reach(const Tile& tile, int64_t r, float* row) const {
    const int64_t i = tile.first + r;
    std::fill(row, row + low(i) - tile.begin, 0.0f);
    std::fill(row + high(i) - tile.begin, row + tile.columns, 0.0f);
  }

  // Scores become A, and gradients of A those of the scores.
  void slopes(const Tile& tile, int64_t r, float* biases) const {
    const int64_t i = tile.first + r, shift = L - place(i) + tile.begin;
    float *row = t.scores.data() + r * S(), *grads = t.grads.data() + r * S();
    sigmoid_all(row, tile.columns, t.shares.data());
    for (int64_t n = 0; n < tile.columns; n += kLanes) {
      const Vec s = load_full(row + n), share = load_full(&t.shares[n]);
      store_full(row + n, s * share * in.scale());
      store_full(grads + n, load_full(grads + n) * in.scale() * share * (1.0f + s * (1.0f - share)));
    }
    keep_reach(tile, r, row);
    keep_reach(tile, r, grads);
    for (int64_t n = 0; n < tile.columns; n += kLanes) {
      float* to = t.grad_relative.data() + shift + n;
      store_full(to, load_full(to) + load_full(grads + n));
    }
    if (!in.time_bias) return;
    float* of_intervals = biases + in.H * in.P + h * kIntervals;
    for (int64_t n = low(i); n < high(i); ++n) of_intervals[interval(i, n)] += grads[n - tile.begin];
  }

  // to[r, :] = the sum over the tile's elements of x[r, n] rows[n, :], W() apart.
  void product(Rows x, Rows rows, const Tile& tile, float* to) const {
    const int64_t E = in.E(), inner = tile.end - tile.begin;
    if (in.D == E) return multiply(x.at, {x.stride, 1}, rows.at, rows.stride, tile.rows, inner, E, to, in.W(), false);
    t.out.resize(kTile * E);
    multiply(x.at, {x.stride, 1}, rows.at, rows.stride, tile.rows, inner, E, t.out.data(), E, false);
    for (int64_t r = 0; r < tile.rows; ++r) std::copy_n(t.out.data() + r * E, in.D, to + r * in.W());
  }

  // to[n, :] += the sum over the tile's queries of x[r, n] rows[r, :].
  void add_turned(const std::vector<float>& x, Rows rows, const Tile& tile, std::vector<float>& to) const {
    multiply(x.data(), {1, S()}, rows.at, rows.stride, tile.end - tile.begin, tile.rows, in.E(),
             to.data() + tile.begin * in.E(), in.E(), true);
  }

  void copy_columns(const std::vector<float>& from, float* to) const {
    for (int64_t n = 0; n < L; ++n) std::copy_n(from.data() + n * in.E(), in.D, to + n * 2 * in.W());
  }
};

}  // namespace

// queries: [M, H D], keys: [N, 2 H D], keys and values; starts, offsets: [R + 1]; out: [M, H D].
HOTROWS_API void hotrows_pointwise_attention(const float* queries, int64_t query_stride, const float* keys,
                                             int64_t key_stride, const int64_t* starts,
                                             const int64_t* offsets, const float* bias,
                                             const int64_t* query_times, const int64_t* times,
                                             const float* time_bias, int64_t R, int64_t H, int64_t D,
                                             int64_t P, float* out) {
  const Inputs in{queries, keys, query_stride, key_stride, starts, offsets, bias, time_bias,
                  query_times, times, H, D, P};
  const Chunks chunks{offsets, R};
  if (kChecks) chunks.check_all();
#pragma omp parallel
  {
    Scratch scratch;
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < chunks.count(); ++c)
      for (int64_t r = chunks.first(c); r < chunks.first(c + 1); ++r)
        for (int64_t h = 0; h < H; ++h) Head(in, r, h, scratch).forward(out);
  }
}

// grad_queries: [M, H D], grad_keys: [N, 2 H D], grad_bias: [H, P], grad_time_bias: [H, 64] or null.
HOTROWS_API void hotrows_pointwise_attention_backward(
    const float* grad, const float* queries, int64_t query_stride, const float* keys, int64_t key_stride,
    const int64_t* starts, const int64_t* offsets, const float* bias, const int64_t* query_times,
    const int64_t* times, const float* time_bias, int64_t R, int64_t H, int64_t D, int64_t P,
    float* grad_queries, float* grad_keys, float* grad_bias, float* grad_time_bias) {
  const Inputs in{queries, keys, query_stride, key_stride, starts, offsets, bias, time_bias,
                  query_times, times, H, D, P};
  const Chunks chunks{offsets, R};
  if (kChecks) chunks.check_all();
  const int64_t size = in.num_biases();
  std::vector<float> parts(chunks.count() * size);
#pragma omp parallel
  {
    Scratch scratch;
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < chunks.count(); ++c)
      for (int64_t r = chunks.first(c); r < chunks.first(c + 1); ++r)
        for (int64_t h = 0; h < H; ++h)
          Head(in, r, h, scratch).backward(grad, grad_queries, grad_keys, &parts[c * size]);
  }
  for (int64_t c = 0; c < chunks.count(); ++c)
    for (int64_t n = 0; n < size; ++n)
      (n < H * P ? grad_bias[n] : grad_time_bias[n - H * P]) += parts[c * size + n];
}
