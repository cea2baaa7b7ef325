// Where a row stands in a log: an index, which the caller creates and destroys.
#include <mutex>

#include "file.h"

namespace hotrows {
namespace {

// row -> place: open addressing, linear probing, 12 bytes an entry, up to 3/4 full. Stored rows are one
// up, so that zeroed memory, which the system gives page by page as it is used, is an empty table.
class Index {
 public:
  // expected: the rows for which there is room from the start; more of them make the table half as large again.
  explicit Index(int64_t expected) { allot(std::max<int64_t>(expected * 4 / 3 + 1, 1 << 12)); }

  // places[i] = first + i * stride for rows[i].
  void put(const int64_t* rows, int64_t n, int64_t first, int64_t stride) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if ((used_ + n) * 4 > size_ * 3) grow(used_ + n);
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch_for_write(&slots_.get()[home(rows[i + kAhead])]);
      Slot& slot = at(rows[i]);
      used_ += slot.row() == 0;
      slot = Slot(rows[i] + 1, first + i * stride);
    }
  }

  // places[i] = where rows[i] stands, -1 where it is not here.
  void find(const int64_t* rows, int64_t n, int64_t* places) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch(&slots_.get()[home(rows[i + kAhead])]);
      const Slot& slot = at(rows[i]);
      places[i] = slot.row() ? slot.place() : -1;
    }
  }

  int64_t size() const { return used_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(Slot)); }

 private:
  // 48 bits each.
  class Slot {
   public:
    Slot(int64_t row, int64_t place)
        : row_(static_cast<uint32_t>(row)), place_(static_cast<uint32_t>(place)),
          row_high_(static_cast<uint16_t>(row >> 32)), place_high_(static_cast<uint16_t>(place >> 32)) {}
    int64_t row() const { return static_cast<int64_t>(row_high_) << 32 | row_; }
    int64_t place() const { return static_cast<int64_t>(place_high_) << 32 | place_; }

   private:
    uint32_t row_, place_;
    uint16_t row_high_, place_high_;
  };
  static_assert(sizeof(Slot) == 12);
  static constexpr int64_t kAhead = 16;

  int64_t home(int64_t row) const {
    return static_cast<int64_t>(static_cast<unsigned __int128>(mix64(static_cast<uint64_t>(row))) * size_ >> 64);
  }

  Slot& at(int64_t row) {
    int64_t i = home(row);
    while (slots_.get()[i].row() != 0 && slots_.get()[i].row() != row + 1) i = i + 1 == size_ ? 0 : i + 1;
    return slots_.get()[i];
  }

  // Makes an empty table of so many entries; returns the one before.
  std::unique_ptr<Slot, Freed> allot(int64_t size) {
    std::unique_ptr<Slot, Freed> slots(static_cast<Slot*>(std::calloc(size, sizeof(Slot))));
    if (!slots) throw std::bad_alloc();
    slots_.swap(slots);
    size_ = size;
    return slots;
  }

  void grow(int64_t rows) {
    const int64_t size = size_;
    std::unique_ptr<Slot, Freed> old = allot(std::max(size, rows * 4 / 3 + 1) * 3 / 2);
    for (int64_t i = 0; i < size; ++i) {
      if (old.get()[i].row()) at(old.get()[i].row() - 1) = old.get()[i];
    }
  }

  std::mutex mutex_;
  std::unique_ptr<Slot, Freed> slots_;
  int64_t size_ = 0;
  std::atomic<int64_t> used_{0};
};

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// expected: the number of rows that it has room for from the start.
HOTROWS_API void* hotrows_file_index_new(int64_t expected) {
  try {
    return new Index(expected);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

HOTROWS_API void hotrows_file_index_free(void* index) { delete static_cast<Index*>(index); }

HOTROWS_API int64_t hotrows_file_index_size(void* index) { return static_cast<Index*>(index)->size(); }

HOTROWS_API int64_t hotrows_file_index_bytes(void* index) { return static_cast<Index*>(index)->bytes(); }

// Row rows[i] stands at first + i * stride from now on.
HOTROWS_API int64_t hotrows_file_index_put(void* index, const int64_t* rows, int64_t n, int64_t first,
                                           int64_t stride) {
  try {
    static_cast<Index*>(index)->put(rows, n, first, stride);
    return 0;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

// places[i] = where rows[i] stands, -1 where the index does not have it.
HOTROWS_API int64_t hotrows_file_index_find(void* index, const int64_t* rows, int64_t n, int64_t* places) {
  static_cast<Index*>(index)->find(rows, n, places);
  return 0;
}
