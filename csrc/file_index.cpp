// Where a row stands in a log: an index, which the caller creates and destroys.
#include <mutex>

#include "file.h"
#include "memory.h"

namespace hotrows {
namespace {

// row -> place: open addressing with linear probing in parts, 8 bytes an entry, up to 4/5 full. It has
// memory for the rows that are in it; a part grows by a quarter, so little is there twice.
//
//   row, shuffled:    part | rest          entry:    place / 4 | rest          0: free
//
// The entries of a part stand in the order of `rest`, whose upper bits are their homes: a search ends at the
// first entry that is larger, and a part is copied from front to back.
class Index {
 public:
  // rows: of the table, up to 2^48.
  explicit Index(int64_t rows) {
    CHECK(rows >= 0 && rows <= int64_t{1} << 48, rows);
    while (bits_ < 48 && int64_t{1} << bits_ < rows) ++bits_;
    rest_bits_ = bits_ - std::clamp(bits_ - 23, 0, 12);
    mask_ = (uint64_t{1} << rest_bits_) - 1;
    parts_.resize(int64_t{1} << (bits_ - rest_bits_));
    CHECK(int64_t{1} << bits_ >= rows && rest_bits_ >= 1 && rest_bits_ <= bits_, rows, bits_, rest_bits_);
  }

  // places[i] = first + i * stride for rows[i]; false where these are too large.
  bool put(const int64_t* rows, int64_t n, int64_t first, int64_t stride) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CHECK(are_within(rows, n, 0, int64_t{1} << bits_), n, bits_);
    CHECK(first > 0 && first % 4 == 0 && stride % 4 == 0, first, stride);
    if ((first + n * stride) >> std::min(66 - rest_bits_, 62)) return false;
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch_for_write(at_home(shuffled(rows[i + kAhead])));
      const uint64_t row = shuffled(rows[i]), place = static_cast<uint64_t>(first + i * stride) / 4;
      CHECK(place << rest_bits_ >> rest_bits_ == place, rows[i], place);
      put(parts_[row >> rest_bits_], place << rest_bits_ | (row & mask_));
    }
    if (kChecks && is_look_due(num_homes())) check_all();
    return true;
  }

  // places[i] = where rows[i] stands, -1 where it is not here.
  void find(const int64_t* rows, int64_t n, int64_t* places) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CHECK(are_within(rows, n, 0, int64_t{1} << bits_), n, bits_);
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch(at_home(shuffled(rows[i + kAhead])));
      const uint64_t row = shuffled(rows[i]), rest = row & mask_;
      const Part& part = parts_[row >> rest_bits_];
      const uint64_t entry = part.homes ? *from(part, rest) : 0;
      places[i] = entry && (entry & mask_) == rest ? static_cast<int64_t>(entry >> rest_bits_) * 4 : -1;
    }
  }

  int64_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t size = 0;
    for (const Part& part : parts_) size += part.used;
    return size;
  }

  int64_t bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t bytes = 0;
    for (const Part& part : parts_) bytes += part.memory.size();
    return bytes;
  }

 private:
  struct Part {
    Zeroed memory;
    int64_t homes = 0, used = 0;

    uint64_t* entries() const { return memory.as<uint64_t>(); }
    uint64_t* end() const { return entries() + homes + kTail; }
  };
  static constexpr int64_t kAhead = 16;
  static constexpr int64_t kFirst = 64;  // homes of a part that has an entry
  static constexpr int64_t kTail = 256;  // entries beyond the last home; the last one stays free

  // A bijection of the numbers of so many bits, the upper ones of which look random.
  uint64_t shuffled(int64_t row) const {
    const uint64_t all = (uint64_t{1} << bits_) - 1;
    uint64_t x = static_cast<uint64_t>(row);
    for (const uint64_t odd : {kGolden, 0xBF58476D1CE4E5B9ul, 0x94D049BB133111EBul}) {
      x = ((x ^ x >> (bits_ + 1) / 2) * odd) & all;
    }
    CHECK(x <= all, row, x);
    return x;
  }

  uint64_t* at_home(uint64_t row) const {
    const Part& part = parts_[row >> rest_bits_];
    return part.entries() + home(part, row & mask_);
  }

  int64_t home(const Part& part, uint64_t rest) const {
    CHECK(rest <= mask_, rest, mask_);
    return static_cast<int64_t>(rest * static_cast<uint64_t>(part.homes) >> rest_bits_);
  }

  // The entry of a row, or where it belongs: the first that is free, or of a larger one.
  uint64_t* from(const Part& part, uint64_t rest) const {
    uint64_t* entry = part.entries() + home(part, rest);
    while (*entry && (*entry & mask_) < rest) ++entry;
    CHECK(entry < part.end(), rest, part.homes);
    return entry;
  }

  void put(Part& part, uint64_t entry) {
    if (part.used * 5 >= part.homes * 4) grow(part);
    CHECK(part.homes > 0 && part.end()[-1] == 0, part.homes);  // a search ends
    while (true) {
      uint64_t* at = from(part, entry & mask_);
      if (*at && (*at & mask_) == (entry & mask_)) {
        *at = entry;
        return;
      }
      uint64_t* free = at;
      while (*free) ++free;
      if (free + 1 < part.end()) {
        std::memmove(at + 1, at, (free - at) * sizeof(*at));
        *at = entry;
        ++part.used;
        CHECK(at[1] == 0 || (at[1] & mask_) > (entry & mask_), at[1], entry);
        CHECK(part.used <= part.homes, part.used, part.homes);
        return;
      }
      grow(part);
    }
  }

  void grow(Part& part) const {
    Part larger;
    larger.homes = part.homes;
    do {
      larger.homes = std::max(kFirst, larger.homes + larger.homes / 4);
      larger.memory = Zeroed((larger.homes + kTail) * static_cast<int64_t>(sizeof(uint64_t)));
    } while (!copy(part, larger));
    CHECK(larger.homes > part.homes, larger.homes, part.homes);
    larger.used = part.used;
    part = std::move(larger);
  }

  // False where the entries do not fit.
  bool copy(const Part& part, const Part& to) const {
    uint64_t* next = to.entries();
    for (const uint64_t* entry = part.entries(); part.homes && entry != part.end(); ++entry) {
      if (!*entry) continue;
      CHECK(next == to.entries() || (next[-1] & mask_) < (*entry & mask_), *entry);
      next = std::max(next, to.entries() + home(to, *entry & mask_));
      if (next + 1 >= to.end()) return false;
      *next++ = *entry;
    }
    return true;
  }

  int64_t num_homes() const {
    int64_t homes = 0;
    for (const Part& part : parts_) homes += part.homes;
    return homes;
  }

  // The entries of a part rise, none stands before its home or behind a gap, and as many are counted.
  void check_all() const {
    for (const Part& part : parts_) {
      int64_t used = 0;
      uint64_t last = 0, free_from = 0;
      for (uint64_t* entry = part.entries(); part.homes && entry != part.end(); ++entry) {
        const uint64_t place = static_cast<uint64_t>(entry - part.entries()), rest = *entry & mask_;
        if (!*entry) {
          free_from = place + 1;
          continue;
        }
        CHECK(used == 0 || rest > last, rest, last);
        CHECK(static_cast<uint64_t>(home(part, rest)) >= free_from, rest, free_from);
        CHECK(static_cast<uint64_t>(home(part, rest)) <= place, rest, place);
        last = rest, ++used;
      }
      CHECK(used == part.used, used, part.used);
    }
  }

  std::mutex mutex_;
  int bits_ = 1, rest_bits_ = 1;
  uint64_t mask_ = 1;
  std::vector<Part> parts_;
};

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// rows: of the table; an index has none of them yet.
HOTROWS_API void* hotrows_file_index_new(int64_t rows) {
  try {
    return new Index(rows);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

HOTROWS_API void hotrows_file_index_free(void* index) { delete static_cast<Index*>(index); }

HOTROWS_API int64_t hotrows_file_index_size(void* index) { return static_cast<Index*>(index)->size(); }

HOTROWS_API int64_t hotrows_file_index_bytes(void* index) { return static_cast<Index*>(index)->bytes(); }

// Row rows[i] stands at first + i * stride from now on; places are multiples of 4, and not 0.
HOTROWS_API int64_t hotrows_file_index_put(void* index, const int64_t* rows, int64_t n, int64_t first,
                                           int64_t stride) {
  try {
    return static_cast<Index*>(index)->put(rows, n, first, stride) ? 0 : -EFBIG;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

// places[i] = where rows[i] stands, -1 where the index does not have it.
HOTROWS_API int64_t hotrows_file_index_find(void* index, const int64_t* rows, int64_t n, int64_t* places) {
  static_cast<Index*>(index)->find(rows, n, places);
  return 0;
}
