// Rows of encoded columns in any order. One thread: a loader runs beside training.
#include "core.h"

namespace hotrows {
namespace {

template <typename Value>
void take(const void* column, const int64_t* order, int64_t n, void* out) {
  const Value* const values = static_cast<const Value*>(column);
  Value* const taken = static_cast<Value*>(out);
  for (int64_t i = 0; i < n; ++i) taken[i] = values[order[i]];
}

// Rows of `bytes` bytes, the lines at both ends fetched ahead.
void take_rows(const void* column, int64_t bytes, const int64_t* order, int64_t n, void* out) {
  constexpr int64_t kAhead = 32;
  const char* const rows = static_cast<const char*>(column);
  char* const taken = static_cast<char*>(out);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const char* const next = rows + order[i + kAhead] * bytes;
      prefetch(next);
      prefetch(next + bytes - 1);
    }
    std::memcpy(taken + i * bytes, rows + order[i] * bytes, bytes);
  }
}

// lengths[i] of the lists order[i]; false where the offsets fall, or leave the `size` ids there are.
template <typename Offset>
bool measure(const void* column, int64_t size, const int64_t* order, int64_t n, int64_t* lengths) {
  const Offset* const offsets = static_cast<const Offset*>(column);
  bool legal = true;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t start = static_cast<int64_t>(offsets[order[i]]);
    const int64_t end = static_cast<int64_t>(offsets[order[i] + 1]);
    CHECK(order[i] >= 0, i, order[i]);
    legal &= 0 <= start && start <= end && end <= size;
    lengths[i] = end - start;
  }
  return legal;
}

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// out[i] = column[order[i]] for i < n, rows of `bytes` bytes.
HOTROWS_API int64_t hotrows_take(const void* column, int64_t bytes, const int64_t* order, int64_t n,
                                 void* out) {
  CHECK(bytes >= 0 && are_within(order, n, 0, INT64_MAX / std::max<int64_t>(bytes, 1)), bytes, n);
  switch (bytes) {
    case 1: take<uint8_t>(column, order, n, out); break;
    case 2: take<uint16_t>(column, order, n, out); break;
    case 4: take<uint32_t>(column, order, n, out); break;
    case 8: take<uint64_t>(column, order, n, out); break;
    default: take_rows(column, bytes, order, n, out);
  }
  return 0;
}

// lengths[i] = how many ids the list order[i] has, for i < n. width: bytes per offset, 4 (unsigned) or
// 8; size: how many ids the column has. Returns -1 where an offset is none of the column.
HOTROWS_API int64_t hotrows_measure_lists(const void* offsets, int64_t width, int64_t size,
                                          const int64_t* order, int64_t n, int64_t* lengths) {
  CHECK(width == 4 || width == 8, width);
  const bool legal = width == 4 ? measure<uint32_t>(offsets, size, order, n, lengths)
                                : measure<int64_t>(offsets, size, order, n, lengths);
  return legal ? 0 : -1;
}

// out[starts[i] + k] = column[offsets[order[i]] + k] for k < starts[i + 1] - starts[i] and i < n, ids of
// `bytes` bytes; the lists were measured before.
HOTROWS_API int64_t hotrows_take_lists(const uint8_t* column, int64_t bytes, const void* offsets,
                                       int64_t width, const int64_t* order, int64_t n,
                                       const int64_t* starts, uint8_t* out) {
  CHECK((width == 4 || width == 8) && bytes > 0 && starts[0] >= 0 && never_falls(starts, n + 1), width, bytes, n);
  const uint32_t* const narrow = static_cast<const uint32_t*>(offsets);
  const int64_t* const wide = static_cast<const int64_t*>(offsets);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t from = width == 4 ? narrow[order[i]] : wide[order[i]];
    CHECK(starts[i + 1] - starts[i] == (width == 4 ? narrow[order[i] + 1] : wide[order[i] + 1]) - from, i, order[i]);
    std::memcpy(out + starts[i] * bytes, column + from * bytes, (starts[i + 1] - starts[i]) * bytes);
  }
  return 0;
}

// out[i * num_columns + c] = columns[c][i] for i < n: float32 columns side by side.
HOTROWS_API int64_t hotrows_interleave(const int64_t* columns, int64_t num_columns, int64_t n,
                                       float* out) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < num_columns; ++c) {
      out[i * num_columns + c] = reinterpret_cast<const float*>(columns[c])[i];
    }
  }
  return 0;
}

// Puts the numbers below n into `raw`, sorted by key: number i has key raw[i] << bits | i, n <= 1 << bits.
// Keys go to buckets by their high bits, four to a bucket as a mean, and each bucket is sorted by
// insertion. keys: room for n.
HOTROWS_API int64_t hotrows_permutation(uint64_t* raw, int64_t bits, int64_t n, uint64_t* keys) {
  int64_t high = 1;
  while ((int64_t{4} << high) < n) ++high;
  const int64_t shift = 64 - high;
  CHECK(bits > 0 && bits < 64 && n <= int64_t{1} << bits && n <= UINT32_MAX, bits, n);
  std::vector<uint32_t> ends((size_t{1} << high) + 1, 0);
  for (int64_t i = 0; i < n; ++i) ++ends[((raw[i] << bits) >> shift) + 1];
  for (size_t b = 1; b < ends.size(); ++b) ends[b] += ends[b - 1];
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t key = raw[i] << bits | static_cast<uint64_t>(i);
    keys[ends[key >> shift]++] = key;
  }
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  int64_t first = 0;
  for (size_t b = 0; b + 1 < ends.size(); ++b) {  // ends[b] is now the end of bucket b
    const int64_t end = ends[b];
    for (int64_t i = first + 1; i < end; ++i) {
      const uint64_t key = keys[i];
      int64_t at = i;
      for (; at > first && keys[at - 1] > key; --at) keys[at] = keys[at - 1];
      keys[at] = key;
    }
    for (int64_t i = first; i < end; ++i) raw[i] = keys[i] & mask;
    first = end;
  }
  CHECK(first == n && rises(keys, n), first, n);
  return 0;
}
