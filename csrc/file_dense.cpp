// The base file of a file store: where a row stands among those ever written, and how new ones come among them.
//
//   bits     a bit for each row that was ever written
//   counts   for each 64 bytes of bits, how many are set before them: a row's place is its rank
#include "file.h"

namespace hotrows {
namespace {

constexpr int64_t kAhead = 16;
constexpr int64_t kBlock = 64;  // bytes of bits that share a count: a line of memory

uint64_t word(const uint8_t* bits, int64_t byte) {
  uint64_t w;
  std::memcpy(&w, bits + byte, sizeof(w));
  return w;
}

int64_t num_set(const uint8_t* bits, int64_t begin, int64_t end) {
  int64_t count = 0;
  for (int64_t b = begin; b < end; b += 8) count += __builtin_popcountll(word(bits, b));
  return count;
}

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// counts [size / 64 + 1]: bits that are set before each 64 bytes, and all of them. size: a multiple of 64.
HOTROWS_API int64_t hotrows_file_count(const uint8_t* bits, int64_t size, int64_t* counts) {
  CHECK(size >= 0 && size % kBlock == 0, size);
  counts[0] = 0;
  for (int64_t b = 0; b < size / kBlock; ++b)
    counts[b + 1] = counts[b] + num_set(bits, b * kBlock, (b + 1) * kBlock);
  return 0;
}

// ranks[i] = how many rows below rows[i] are set, -1 where it is not.
HOTROWS_API int64_t hotrows_file_rank(const uint8_t* bits, const int64_t* counts, const int64_t* rows, int64_t n,
                                      int64_t* ranks) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      prefetch(bits + (rows[i + kAhead] >> 3));
      prefetch(counts + (rows[i + kAhead] >> 9));
    }
    const int64_t in = rows[i] >> 6 << 3, block = rows[i] >> 9;
    const uint64_t last = word(bits, in), bit = uint64_t{1} << (rows[i] & 63);
    ranks[i] = -1;
    if (last & bit)
      ranks[i] = counts[block] + num_set(bits, block * kBlock, in) + __builtin_popcountll(last & (bit - 1));
  }
  return 0;
}

// Merges the records of `rows`, ascending, among those of the rows that are set in `size` bytes of bits, the first
// of which is row `first`; of a row that has both, the new one stays. Returns how many there are in `out`.
HOTROWS_API int64_t hotrows_file_merge(const uint8_t* bits, int64_t size, int64_t first, const char* old,
                                       const int64_t* rows, int64_t n, const char* records, int64_t stride,
                                       uint8_t* merged, char* out) {
  CHECK(size % 8 == 0 && rises(rows, n) && are_within(rows, n, first, first + 8 * size), size, first, n);
  const char* const begin = out;
  const auto copy = [&](const char* from, int64_t count) {
    std::memcpy(out, from, count * stride);
    out += count * stride;
  };
  for (int64_t b = 0, i = 0; b < size; b += 8) {
    const uint64_t was = word(bits, b);
    uint64_t is_new = 0;
    for (int64_t k = i; k < n && rows[k] < first + 8 * b + 64; ++k) {
      CHECK(rows[k] >= first + 8 * b, rows[k], b);
      is_new |= uint64_t{1} << (rows[k] - first - 8 * b);
    }
    if (!is_new) {
      const int64_t count = __builtin_popcountll(was);
      if (count) copy(old, count);
      old += count * stride;
    }
    for (uint64_t left = is_new ? was | is_new : 0; left; left &= left - 1) {
      const uint64_t bit = left & -left;
      copy(is_new & bit ? records + i++ * stride : old, 1);
      if (was & bit) old += stride;
    }
    const uint64_t all = was | is_new;
    std::memcpy(merged + b, &all, sizeof(all));
  }
  return (out - begin) / stride;
}
