// Rows of tables under a dense optimizer: where they are, how far each has come, and how work on them is split.
#pragma once

#include "codes.h"
#include "dense_rules.h"
#include "runs.h"

namespace hotrows {

// One line of the caller's array; strides in bytes. States are null where there are fewer; `steps` begins with
// step `first`.
struct Target {
  HOTROWS_DEFERRED_TARGET(HOTROWS_TYPED_FIELD)

  template <class T>
  T* weight(int64_t row) const {
    return reinterpret_cast<T*>(weights + row * weights_stride);
  }
  template <class T>
  T* state(int which, int64_t row) const {
    uint8_t* const states = which == 0 ? first_state : second_state;
    return states ? reinterpret_cast<T*>(states + row * states_stride) : nullptr;
  }
  int32_t& last(int64_t row) const {
    CHECK(row >= 0 && row < num_rows, row, num_rows);
    return *reinterpret_cast<int32_t*>(lasts + row * lasts_stride);
  }
  // The first step that a row has yet to make; `now` where it is up to date.
  int64_t start(int64_t row) const {
    const int64_t been = last(row);
    return std::min(now, std::max(first, been < 0 ? first_decay : been));
  }

  void check_all(int64_t row_size) const {
    CHECK(num_rows >= 0 && weights_stride >= row_size, num_rows, weights_stride, row_size);
    CHECK(!first_state || states_stride >= row_size, states_stride, row_size);
    CHECK(first_state || !second_state);
    CHECK(lasts_stride >= 4 && lasts_stride % 4 == 0, lasts_stride);
    CHECK(0 <= first && first <= now && now < INT32_MAX && first_decay >= 0, first, now, first_decay);
  }
};
static_assert(sizeof(Target) == 12 * sizeof(int64_t), "passed as rows of int64");

// Rows of a call, by target: those of target t are slots[bounds[t]] .. slots[bounds[t + 1] - 1].
struct Rows {
  const Target* targets;
  int64_t num_targets;
  const int64_t* slots;
  const int64_t* bounds;

  int64_t begin() const { return bounds[0]; }
  int64_t end() const { return bounds[num_targets]; }

  // The rows of each target are some of its own, each once.
  void check_all(int64_t row_size) const {
    CHECK(begin() >= 0 && never_falls(bounds, num_targets + 1), num_targets);
    for (int64_t t = 0; t < num_targets; ++t) {
      targets[t].check_all(row_size);
      CHECK(are_within(slots + bounds[t], bounds[t + 1] - bounds[t], 0, targets[t].num_rows), t, targets[t].num_rows);
      std::vector<int64_t> sorted(slots + bounds[t], slots + bounds[t + 1]);
      std::sort(sorted.begin(), sorted.end());
      CHECK(rises(sorted.data(), static_cast<int64_t>(sorted.size())), t);
    }
  }

  // After a call, none of the rows is behind.
  void check_steps() const {
    for (int64_t t = 0; t < num_targets; ++t)
      for (int64_t u = bounds[t]; u < bounds[t + 1]; ++u)
        CHECK(targets[t].start(slots[u]) == targets[t].now, t, slots[u], targets[t].last(slots[u]), targets[t].now);
  }
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
    CHECK(begin <= static_cast<int64_t>(end), t, begin, end);
    for (int64_t at = begin; at < end; at += size) blocks.push_back({t, at, std::min(end, at + size)});
  }
  return blocks;
}

// The sum of one[d] * other[d], in float64.
template <class T>
double sum_of_products(const T* one, const T* other, int64_t dim) {
  typedef T Eight __attribute__((vector_size(8 * sizeof(T))));
  typedef double Sums __attribute__((vector_size(64)));
  Sums sums = {};
  for (int64_t d = 0; d < dim; d += 8) {
    Eight parts[2] = {};
    const T* from[2] = {one + d, other + d};
    for (int k = 0; k < 2; ++k) {
      if (d + 8 <= dim)
        std::memcpy(&parts[k], from[k], sizeof parts[k]);
      else
        for (int64_t i = 0; d + i < dim; ++i) parts[k][i] = from[k][i];
    }
    sums += __builtin_convertvector(parts[0], Sums) * __builtin_convertvector(parts[1], Sums);
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

template <class T>
double sum_of_squares(const T* w, int64_t dim) {
  return sum_of_products(w, w, dim);
}

inline void add_changes(const std::vector<Block>& blocks, const std::vector<double>& changes, double* squares) {
  if (!squares) return;
  CHECK(blocks.size() == changes.size(), blocks.size(), changes.size());
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
