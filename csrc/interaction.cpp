// Interactions of a sample's vectors: all pairs of dot products (DLRM) and the second-order term of
// a factorization machine, forward and backward.
//
// One sample is a small dense problem that fits the first-level cache, so a thread takes whole
// samples, copies each into float32 scratch that is padded to full vector registers, and works
// there. With Z = [bottom; vectors], F+1 rows of D, and rows padded to P and D to E:
//
//   forward    G = Z Z^T, four rows at a time, from Z transposed: [D, P] -> the triangle below the
//              diagonal, row after row
//   backward   dZ = (G + G^T) Z, where G is the gradient of the triangle, eight rows at a time
//
// A sum is always made by one thread in one order, so the number of threads changes no bit. The
// instruction set does: where it can, products are added without being rounded first.
#include "vector.h"

namespace {

using namespace hotrows;

inline int64_t below(int64_t row) { return row * (row - 1) / 2; }

// What one sample of a dot interaction looks like.
struct Shape {
  int64_t F, D;
  int64_t vectors_stride;  // elements from a sample's vectors to the next one's
  int64_t rows() const { return F + 1; }
  int64_t P() const { return padded(F + 1); }
  int64_t E() const { return padded(D); }
  int64_t out() const { return D + below(F + 1); }
};

// Copies [bottom; vectors] into z: [F+1, E], zeros behind D.
template <class T, class V>
void gather(const T* bottom, const V* vectors, const Shape& s, float* z) {
  for (int64_t d = 0; d < s.D; d += kLanes) store_full(z + d, load(bottom + d, s.D - d));
  for (int64_t f = 0; f < s.F; ++f)
    for (int64_t d = 0; d < s.D; d += kLanes)
      store_full(z + (f + 1) * s.E() + d, load(vectors + f * s.D + d, s.D - d));
}

void transpose(const float* z, const Shape& s, float* zt) {  // [F+1, E] -> [D, P]
  const int64_t P = s.P(), E = s.E();
  for (int64_t i = 0; i < s.rows(); ++i)
    for (int64_t d = 0; d < s.D; ++d) zt[d * P + i] = z[i * E + d];
}

// Rows i .. i+3 of G at columns j .. j + COLUMNS registers.
template <int COLUMNS>
inline void gram_block(const float* zt, const Shape& s, int64_t i, int64_t j, float* g) {
  const int64_t P = s.P();
  Vec sums[4][COLUMNS] = {};
  for (int64_t d = 0; d < s.D; ++d)
    for (int c = 0; c < COLUMNS; ++c) {
      const Vec z = load_full(zt + d * P + j + c * kLanes);
      for (int r = 0; r < 4; ++r) sums[r][c] = fma(spread(zt[d * P + i + r]), z, sums[r][c]);
    }
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < COLUMNS; ++c) store_full(g + (i + r) * P + j + c * kLanes, sums[r][c]);
}

// G, where it lies below the diagonal; P is a multiple of four, so blocks of rows end within it.
void gram(const float* zt, const Shape& s, float* g) {
  for (int64_t i = 0; i < s.rows(); i += 4) {
    int64_t j = 0;
    for (; j + kLanes < i + 3; j += 2 * kLanes) gram_block<2>(zt, s, i, j, g);
    if (j < i + 3) gram_block<1>(zt, s, i, j, g);
  }
}

// The rows of the triangle end to end. A register may run over the end of its row: the next row
// is written after it.
template <class T>
void write_triangle(const float* g, const Shape& s, T* to) {
  for (int64_t i = 1; i < s.rows(); ++i)
    for (int64_t j = 0; j < i; j += kLanes)
      store(to + below(i) + j, load_full(g + i * s.P() + j), below(s.rows()) - below(i) - j);
}

// The triangle into both halves of g: [F+1, P], zeros on the diagonal.
template <class T>
void read_triangle(const T* from, const Shape& s, float* flat, float* g) {
  const int64_t P = s.P(), size = below(s.rows());
  for (int64_t n = 0; n < size; n += kLanes) store_full(flat + n, load(from + n, size - n));
  for (int64_t i = 0; i < s.rows(); ++i, flat += i - 1) {
    g[i * P + i] = 0;
    for (int64_t j = 0; j < i; ++j) g[i * P + j] = g[j * P + i] = flat[j];
  }
}

// Rows i .. i+7 of G Z at element d, for as many rows as there are.
template <class T, class V>
inline void grad_block(const float* g, const float* z, const Shape& s, int64_t i, int64_t d,
                       const T* grad, T* grad_bottom, V* grad_vectors) {
  const int64_t P = s.P(), E = s.E();
  Vec sums[8] = {};
  if (i == 0) sums[0] = load(grad + d, s.D - d);
  for (int64_t j = 0; j < s.rows(); ++j) {
    const Vec row = load_full(z + j * E + d);
    for (int r = 0; r < 8; ++r) sums[r] = fma(spread(g[(i + r) * P + j]), row, sums[r]);
  }
  if (i == 0) store(grad_bottom + d, sums[0], s.D - d);
  for (int64_t r = i == 0; r < std::min<int64_t>(8, s.rows() - i); ++r)
    store(grad_vectors + (i + r - 1) * s.D + d, sums[r], s.D - d);
}

template <class T, class V>
void dot(const T* bottom, const V* vectors, int64_t B, const Shape& s, T* out) {
#pragma omp parallel
  {
    std::vector<float> z(s.rows() * s.E()), zt(s.D * s.P()), g(s.P() * s.P());
#pragma omp for schedule(static)
    for (int64_t b = 0; b < B; ++b) {
      gather(bottom + b * s.D, vectors + b * s.vectors_stride, s, z.data());
      transpose(z.data(), s, zt.data());
      gram(zt.data(), s, g.data());
      std::memcpy(out + b * s.out(), bottom + b * s.D, s.D * sizeof(T));
      write_triangle(g.data(), s, out + b * s.out() + s.D);
    }
  }
}

template <class T, class V>
void dot_backward(const T* grad, const T* bottom, const V* vectors, int64_t B, const Shape& s,
                  T* grad_bottom, V* grad_vectors) {
#pragma omp parallel
  {
    std::vector<float> z(s.rows() * s.E()), g((s.rows() + 7) * s.P());
    std::vector<float> flat(padded(below(s.rows())));
#pragma omp for schedule(static)
    for (int64_t b = 0; b < B; ++b) {
      const T* from = grad + b * s.out();
      gather(bottom + b * s.D, vectors + b * s.vectors_stride, s, z.data());
      read_triangle(from + s.D, s, flat.data(), g.data());
      for (int64_t i = 0; i < s.rows(); i += 8)
        for (int64_t d = 0; d < s.D; d += kLanes)
          grad_block(g.data(), z.data(), s, i, d, from, grad_bottom + b * s.D,
                     grad_vectors + b * s.F * s.D);
    }
  }
}

template <class V>
inline Vec sum_vectors(const V* vectors, int64_t F, int64_t D, int64_t d) {
  Vec total = {};
  for (int64_t f = 0; f < F; ++f) total += load(vectors + f * D + d, D - d);
  return total;
}

template <class V>
void second_order(const V* vectors, int64_t B, int64_t F, int64_t D, int64_t stride, float* out) {
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < B; ++b) {
    Vec twice = {};
    for (int64_t d = 0; d < D; d += kLanes) {
      Vec total = {}, squares = {};
      for (int64_t f = 0; f < F; ++f) {
        const Vec v = load(vectors + b * stride + f * D + d, D - d);
        total += v;
        squares = fma(v, v, squares);
      }
      twice += total * total - squares;
    }
    out[b] = 0.5f * sum(twice);
  }
}

template <class V>
void second_order_backward(const float* grad, const V* vectors, int64_t B, int64_t F, int64_t D,
                           int64_t stride, V* grad_vectors) {
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < B; ++b)
    for (int64_t d = 0; d < D; d += kLanes) {
      const Vec total = sum_vectors(vectors + b * stride, F, D, d);
      for (int64_t f = 0; f < F; ++f) {
        const Vec v = load(vectors + b * stride + f * D + d, D - d);
        store(grad_vectors + (b * F + f) * D + d, grad[b] * (total - v), D - d);
      }
    }
}

// Calls run(T*, V*) with null pointers of the element types that the itemsizes name.
template <class Run>
int with_types(int64_t bottom_itemsize, int64_t vectors_itemsize, Run run) {
  float* const of_float = nullptr;
  bfloat16* const of_bfloat16 = nullptr;
  if (bottom_itemsize == 4 && vectors_itemsize == 4) return run(of_float, of_float), 0;
  if (bottom_itemsize == 2 && vectors_itemsize == 4) return run(of_bfloat16, of_float), 0;
  if (bottom_itemsize == 2 && vectors_itemsize == 2) return run(of_bfloat16, of_bfloat16), 0;
  return 1;
}

}  // namespace

// An itemsize of 4 is float32, 2 is bfloat16; out, grad and grad_bottom are of bottom's. Returns 1
// where bottom is float32 and vectors are bfloat16, which no kernel takes.
HOTROWS_API int hotrows_dot_interaction(const void* bottom, const void* vectors, int64_t B, int64_t F,
                                        int64_t D, int64_t vectors_stride, int64_t bottom_itemsize,
                                        int64_t vectors_itemsize, void* out) {
  return with_types(bottom_itemsize, vectors_itemsize, [&](auto* t, auto* v) {
    using T = std::remove_pointer_t<decltype(t)>;
    using V = std::remove_pointer_t<decltype(v)>;
    dot((const T*)bottom, (const V*)vectors, B, Shape{F, D, vectors_stride}, (T*)out);
  });
}

HOTROWS_API int hotrows_dot_interaction_backward(const void* grad, const void* bottom,
                                                 const void* vectors, int64_t B, int64_t F, int64_t D,
                                                 int64_t vectors_stride, int64_t bottom_itemsize,
                                                 int64_t vectors_itemsize, void* grad_bottom,
                                                 void* grad_vectors) {
  return with_types(bottom_itemsize, vectors_itemsize, [&](auto* t, auto* v) {
    using T = std::remove_pointer_t<decltype(t)>;
    using V = std::remove_pointer_t<decltype(v)>;
    dot_backward((const T*)grad, (const T*)bottom, (const V*)vectors, B, Shape{F, D, vectors_stride},
                 (T*)grad_bottom, (V*)grad_vectors);
  });
}

HOTROWS_API int hotrows_second_order(const void* vectors, int64_t B, int64_t F, int64_t D,
                                     int64_t stride, int64_t itemsize, float* out) {
  return with_types(itemsize, itemsize, [&](auto*, auto* v) {
    using V = std::remove_pointer_t<decltype(v)>;
    second_order((const V*)vectors, B, F, D, stride, out);
  });
}

HOTROWS_API int hotrows_second_order_backward(const float* grad, const void* vectors, int64_t B,
                                              int64_t F, int64_t D, int64_t stride, int64_t itemsize,
                                              void* grad_vectors) {
  return with_types(itemsize, itemsize, [&](auto*, auto* v) {
    using V = std::remove_pointer_t<decltype(v)>;
    second_order_backward(grad, (const V*)vectors, B, F, D, stride, (V*)grad_vectors);
  });
}
