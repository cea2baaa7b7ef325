// What the first layer of target attention (DIN) is made of: y_n = W [q, k_n, q - k_n, q * k_n] + bias, without the
// four-fold input. With W = [Wq | Wk | Wd | Wp], all [H, D], a sample's query makes of it one matrix for all of its
// keys:
//
//   y_n = M k_n + c    M = (Wk - Wd) + Wp diag(q),    c = (Wq + Wd) q + bias
//
//   forward    M^T: [D, P] is built in the cache, then applied to the sample's keys
//   backward   dk_n = M^T g_n;  S = K^T G: [D, P] is the gradient of M^T, and gives those of q and of
//              the weights;  the sum of g_n is the gradient of c
//
// Rows are padded to P (of H) and E (of D), whole registers.
#pragma once

#include "chunks.h"
#include "matrix.h"

namespace hotrows {

struct Shape {
  int64_t D, H;
  int64_t E() const { return padded(D); }
  int64_t P() const { return padded(H); }
  int64_t size() const { return D * P(); }
};

// The three matrices that the formula has of the weight, [D, P] and, turned, [H, E].
struct Weights {
  Floats query, key, product;
  Floats turned_query, turned_key, turned_product;

  Weights(const float* weight, const Shape& s, bool backward)
      : query(s.size()), key(s.size()), product(s.size()) {
    if (backward)
      for (auto* turned : {&turned_query, &turned_key, &turned_product}) turned->resize(s.H * s.E());
    for (int64_t h = 0; h < s.H; ++h)
      for (int64_t d = 0; d < s.D; ++d) {
        const float* of = weight + h * 4 * s.D + d;
        const float q = of[0] + of[2 * s.D], k = of[s.D] - of[2 * s.D], p = of[3 * s.D];
        query[d * s.P() + h] = q, key[d * s.P() + h] = k, product[d * s.P() + h] = p;
        if (!backward) continue;
        const int64_t turned = h * s.E() + d;
        turned_query[turned] = q, turned_key[turned] = k, turned_product[turned] = p;
      }
  }
};

// Asks for what the product is about to read: its own reads, row beside row, would wait one by one.
inline void prefetch_rows(const float* from, int64_t count) {
  for (int64_t n = 0; n < count; n += 16) prefetch(from + n);
}

// M^T = key + diag(q) product: [D, P].
inline void matrix_of(const float* q, const Weights& w, const Shape& s, float* matrix) {
  const float *product = w.product.data(), *key = w.key.data();
  const int64_t P = s.P();
  for (int64_t d = 0; d < s.D; ++d) {
    const Vec query = spread(q[d]);
    for (int64_t n = d * P; n < (d + 1) * P; n += kLanes)
      store_full(matrix + n, fma(query, load_full(product + n), load_full(key + n)));
  }
}

// M = turned key + turned product diag(q): [H, E]; q: [E], zeros behind D.
inline void turned_matrix_of(const float* q, const Weights& w, const Shape& s, float* matrix) {
  CHECK(!w.turned_product.empty() && !w.turned_key.empty());  // made for the way back alone
  const float *product = w.turned_product.data(), *key = w.turned_key.data();
  const int64_t E = s.E(), size = s.H * E;
  for (int64_t d = 0; d < E; d += kLanes) {
    const Vec query = load_full(q + d);
    for (int64_t n = d; n < size; n += E)
      store_full(matrix + n, fma(query, load_full(product + n), load_full(key + n)));
  }
}

// What a chunk of samples adds to the gradients of the weights, [D, P] each, and of the bias, [P].
struct Part {
  float *query, *key, *product, *bias;
  static int64_t size(const Shape& s) { return 3 * s.size() + s.P(); }
  Part(float* at, const Shape& s)
      : query(at), key(at + s.size()), product(at + 2 * s.size()), bias(at + 3 * s.size()) {}
};

// What S, [D, P], of a sample adds to the gradients of the weights, and to that of its query through M.
inline void weights_of(const float* query, const float* sums, const Weights& w, const Shape& s, Part part,
                       float* grad_query) {
  const float* product = w.product.data();
  const int64_t P = s.P();
  for (int64_t d = 0; d < s.D; ++d) {
    const Vec q = spread(query[d]);
    Vec total = {};
    for (int64_t n = d * P; n < (d + 1) * P; n += kLanes) {
      const Vec x = load_full(sums + n);
      store_full(part.key + n, load_full(part.key + n) + x);
      store_full(part.product + n, fma(q, x, load_full(part.product + n)));
      total = fma(load_full(product + n), x, total);
    }
    grad_query[d] = sum(total);
  }
}

// The gradients through c of a chunk of samples: terms, [samples, P], are the sums of their g_n. scratch: [samples, E].
inline void terms_of(const float* queries, const float* terms, int64_t samples, const Weights& w, const Shape& s,
                     Part part, float* scratch, float* grad_queries) {
  const int64_t P = s.P(), E = s.E(), D = s.D;
  multiply(queries, {1, D}, terms, P, D, samples, P, part.query, P, false);
  for (int64_t b = 0; b < samples; ++b)
    for (int64_t h = 0; h < P; ++h) part.bias[h] += terms[b * P + h];
  copy_rows(grad_queries, D, samples, D, scratch, E);
  multiply(terms, {P, 1}, w.turned_query.data(), E, samples, s.H, E, scratch, E, true);
  copy_rows(scratch, E, samples, D, grad_queries, D);
}

// Adds row d of the parts, chunk after chunk and `stride` apart, into column d of each quarter of grad_weight: [H, 4D].
inline void write_weights(const float* parts, int64_t stride, int64_t count, const Shape& s, int64_t d,
                          float* grad_weight) {
  Floats rows(3 * s.P());
  for (int64_t c = 0; c < count; ++c)
    for (int64_t m = 0; m < 3; ++m)
      for (int64_t h = 0; h < s.P(); ++h)
        rows[m * s.P() + h] += parts[c * stride + m * s.size() + d * s.P() + h];
  for (int64_t h = 0; h < s.H; ++h) {
    const float query = rows[h], key = rows[s.P() + h], product = rows[2 * s.P() + h];
    float* to = grad_weight + h * 4 * s.D + d;
    to[0] = query, to[s.D] = key, to[2 * s.D] = query - key, to[3 * s.D] = product;
  }
}

}  // namespace hotrows
