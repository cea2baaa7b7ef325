// Products of small matrices that stay in the caches; rows are float32, end to end or apart.
//
//   multiply    y[r, :] (+)= sum over i of x[r, i] * w[i, :]
//   transpose   to[c, r] = from[r, c]
//   copy_rows   to[r, :] = from[r, :]
//
// A block of y stays in registers while i runs, so a sum has one order. Columns come in whole
// registers: `w` and `y` have rows padded to them (`padded`), and what stands there is computed too.
// x[r, i] is x[r * row_step + i * inner_step]: a matrix, or with the steps exchanged its transpose.
#pragma once

#include "vector.h"

namespace hotrows {

struct Steps {
  int64_t row, inner;
};

// Never inlined: within a caller gcc keeps half of the sums in memory, at half of the rate.
template <int ROWS, int COLUMNS>
__attribute__((noinline)) void multiply_block(const float* x, Steps of_x, const float* w, int64_t w_stride, int64_t inner,
                                              float* y, int64_t y_stride, bool add) {
  Vec sums[ROWS][COLUMNS];
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) sums[r][c] = add ? load_full(y + r * y_stride + c * kLanes) : Vec{};
  for (int64_t i = 0; i < inner; ++i, w += w_stride, x += of_x.inner) {
    Vec row[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) row[c] = load_full(w + c * kLanes);
    for (int r = 0; r < ROWS; ++r) {
      const Vec factor = spread(x[r * of_x.row]);
      for (int c = 0; c < COLUMNS; ++c) sums[r][c] = fma(factor, row[c], sums[r][c]);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) store_full(y + r * y_stride + c * kLanes, sums[r][c]);
}

#if defined(__AVX512F__)
constexpr int kRows = 8, kColumns = 3;  // of 32 registers 24 hold sums
constexpr int kWideRows = 6;            // of four columns
#else
constexpr int kRows = 4, kColumns = 2;  // of 16 registers 8
#endif

template <int COLUMNS, int ROWS = kRows>
inline void multiply_columns(const float* x, Steps of_x, const float* w, int64_t w_stride, int64_t rows,
                             int64_t inner, float* y, int64_t y_stride, bool add) {
  int64_t r = 0;
  for (; r + ROWS <= rows; r += ROWS)
    multiply_block<ROWS, COLUMNS>(x + r * of_x.row, of_x, w, w_stride, inner, y + r * y_stride, y_stride, add);
  for (; r + 4 <= rows; r += 4)
    multiply_block<4, COLUMNS>(x + r * of_x.row, of_x, w, w_stride, inner, y + r * y_stride, y_stride, add);
  for (; r < rows; ++r)
    multiply_block<1, COLUMNS>(x + r * of_x.row, of_x, w, w_stride, inner, y + r * y_stride, y_stride, add);
}

// y: [rows, columns], columns a multiple of kLanes; w: [inner, columns]; add: to what y holds.
inline void multiply(const float* x, Steps of_x, const float* w, int64_t w_stride, int64_t rows,
                     int64_t inner, int64_t columns, float* y, int64_t y_stride, bool add) {
  CHECK(columns % kLanes == 0 && w_stride >= columns && y_stride >= columns, columns, w_stride, y_stride);
  int64_t c = 0;
  const auto left = [&] { return (columns - c) / kLanes; };
#if defined(__AVX512F__)
  for (; left() == 4 || left() >= 8; c += 4 * kLanes)
    multiply_columns<4, kWideRows>(x, of_x, w + c, w_stride, rows, inner, y + c, y_stride, add);
#endif
  for (; left() >= kColumns && left() != 4; c += kColumns * kLanes)  // four are two and two, not three and one
    multiply_columns<kColumns>(x, of_x, w + c, w_stride, rows, inner, y + c, y_stride, add);
  for (; left() >= 2; c += 2 * kLanes)
    multiply_columns<2>(x, of_x, w + c, w_stride, rows, inner, y + c, y_stride, add);
  CHECK(left() == 0 || left() == 1, left());
  if (c < columns) multiply_columns<1>(x, of_x, w + c, w_stride, rows, inner, y + c, y_stride, add);
}

// Rows of `count` floats, `to_stride` and `from_stride` apart; what is left of a register is zero.
inline void copy_rows(const float* from, int64_t from_stride, int64_t rows, int64_t count, float* to,
                      int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < count; n += kLanes)
      store(to + r * to_stride + n, load(from + r * from_stride + n, count - n),
            std::min(kLanes, to_stride - n));
}

// One of log2(kLanes) rounds: rows `STEP` apart exchange the lanes that have the other's bit.
template <int64_t STEP>
inline void exchange(Vec (&rows)[kLanes]) {
  Bits low, high;
  for (int64_t l = 0; l < kLanes; ++l) {
    low[l] = l & STEP ? kLanes + l - STEP : l;
    high[l] = l & STEP ? kLanes + l : l + STEP;
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < kLanes; ++r) {
    if (r & STEP) continue;
    const Vec a = rows[r], b = rows[r + STEP];
    rows[r] = shuffle(a, b, low);
    rows[r + STEP] = shuffle(a, b, high);
  }
  if constexpr (2 * STEP < kLanes) exchange<2 * STEP>(rows);
}

// to[c, r] = from[r, c], with zeros where the last register of a row of `to` runs over `rows`.
inline void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                      int64_t to_stride) {
  CHECK(to_stride >= padded(rows) && from_stride >= columns, to_stride, rows, from_stride, columns);
  for (int64_t r = 0; r < rows; r += kLanes)
    for (int64_t c = 0; c < columns; c += kLanes) {
      Vec block[kLanes];
      const int64_t num_rows = rows - r, num_columns = columns - c;
#pragma GCC unroll 16
      for (int64_t k = 0; k < kLanes; ++k)
        block[k] = k < num_rows ? load(from + (r + k) * from_stride + c, num_columns) : Vec{};
      exchange<1>(block);
#pragma GCC unroll 16
      for (int64_t k = 0; k < kLanes; ++k)
        if (k < num_columns) store_full(to + (c + k) * to_stride + r, block[k]);
    }
}

}  // namespace hotrows
