// Rows of tables under a dense optimizer: where they are, how far each has come, and how work on them is split.
#pragma once

#include "dense_rules.h"
#include "runs.h"

namespace hotrows {

// One line of the caller's array; strides in bytes.
struct Target {
  uint8_t* weights;
  int64_t weights_stride;
  uint8_t* states[2];  // null where there are fewer
  int64_t states_stride;
  uint8_t* lasts;
  int64_t lasts_stride, num_rows;
  Numbers steps;  // the first is of step `first`
  int64_t first, now, first_decay;

  template <class T>
  T* weight(int64_t row) const {
    return reinterpret_cast<T*>(weights + row * weights_stride);
  }
  template <class T>
  T* state(int which, int64_t row) const {
    return states[which] ? reinterpret_cast<T*>(states[which] + row * states_stride) : nullptr;
  }
  int32_t& last(int64_t row) const { return *reinterpret_cast<int32_t*>(lasts + row * lasts_stride); }
  // The first step that a row has yet to make; `now` where it is up to date.
  int64_t start(int64_t row) const {
    const int64_t been = last(row);
    return std::min(now, std::max(first, been < 0 ? first_decay : been));
  }
};
static_assert(sizeof(Target) == 12 * sizeof(int64_t), "as in ops/deferred.py");

// Rows of a call, by target: those of target t are slots[bounds[t]] .. slots[bounds[t + 1] - 1].
struct Rows {
  const Target* targets;
  int64_t num_targets;
  const int64_t* slots;
  const int64_t* bounds;

  int64_t begin() const { return bounds[0]; }
  int64_t end() const { return bounds[num_targets]; }
};

struct Block {
  int64_t target, begin, end;
};

// Each target's range cut into blocks of at most `size`.
template <class Range>
std::vector<Block> blocks_of(int64_t num_targets, int64_t size, Range range) {
  std::vector<Block> blocks;
  for (int64_t t = 0; t < num_targets; ++t) {
    const auto [begin, end] = range(t);
    for (int64_t at = begin; at < end; at += size) blocks.push_back({t, at, std::min(end, at + size)});
  }
  return blocks;
}

template <class T>
double sum_of_squares(const T* w, int64_t dim) {
  typedef T Eight __attribute__((vector_size(8 * sizeof(T))));
  typedef double Sums __attribute__((vector_size(64)));
  Sums sums = {};
  for (int64_t d = 0; d < dim; d += 8) {
    Eight part = {};
    if (d + 8 <= dim)
      std::memcpy(&part, w + d, sizeof part);
    else
      for (int64_t k = 0; d + k < dim; ++k) part[k] = w[d + k];
    const Sums wide = __builtin_convertvector(part, Sums);
    sums += wide * wide;
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

inline void add_changes(const std::vector<Block>& blocks, const std::vector<double>& changes, double* squares) {
  if (!squares) return;
  for (size_t b = 0; b < blocks.size(); ++b) squares[blocks[b].target] += changes[b];
}

template <class T>
void prefetch_row(const Target& target, int64_t row, int64_t dim) {
  const int64_t size = dim * static_cast<int64_t>(sizeof(T));
  prefetch_bytes<true>(target.weight<T>(row), size);
  for (int s = 0; s < 2; ++s)
    if (const T* state = target.state<T>(s, row)) prefetch_bytes<true>(state, size);
  prefetch_for_write(&target.last(row));
}

}  // namespace hotrows
