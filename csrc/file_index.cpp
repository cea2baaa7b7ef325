// Where a row stands in a log: an index, which the caller creates and destroys.
#include <mutex>

#include "file.h"

namespace hotrows {
namespace {

// row -> place: open addressing, linear probing. Stored rows are one up, so that zeroed memory, which
// the system gives page by page as it is used, is an empty table.
class Index {
 public:
  Index() { allot(1 << 12); }

  // places[i] = first + i * stride for rows[i].
  void put(const int64_t* rows, int64_t n, int64_t first, int64_t stride) {
    const std::lock_guard<std::mutex> lock(mutex_);
    while ((used_ + n) * 4 > static_cast<int64_t>(mask_ + 1) * 3) grow();
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch_for_write(&slots_.get()[home(rows[i + kAhead])]);
      Slot& slot = at(rows[i]);
      used_ += slot.row == 0;
      slot = {rows[i] + 1, first + i * stride};
    }
  }

  // places[i] = where rows[i] stands, -1 where it is not here.
  void find(const int64_t* rows, int64_t n, int64_t* places) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch(&slots_.get()[home(rows[i + kAhead])]);
      const Slot& slot = at(rows[i]);
      places[i] = slot.row ? slot.place : -1;
    }
  }

  int64_t size() const { return used_; }

 private:
  struct Slot {
    int64_t row, place;
  };
  static constexpr int64_t kAhead = 16;

  uint64_t home(int64_t row) const { return mix64(static_cast<uint64_t>(row)) & mask_; }

  Slot& at(int64_t row) {
    uint64_t i = home(row);
    while (slots_.get()[i].row != 0 && slots_.get()[i].row != row + 1) i = (i + 1) & mask_;
    return slots_.get()[i];
  }

  void allot(uint64_t size) {
    Slot* const slots = static_cast<Slot*>(std::calloc(size, sizeof(Slot)));
    if (!slots) throw std::bad_alloc();
    slots_.reset(slots);
    mask_ = size - 1;
  }

  void grow() {
    const std::unique_ptr<Slot, Freed> old = std::move(slots_);
    const uint64_t size = mask_ + 1;
    allot(2 * size);
    for (uint64_t i = 0; i < size; ++i) {
      if (old.get()[i].row) at(old.get()[i].row - 1) = old.get()[i];
    }
  }

  std::mutex mutex_;
  std::unique_ptr<Slot, Freed> slots_;
  uint64_t mask_ = 0;
  std::atomic<int64_t> used_{0};
};

}  // namespace
}  // namespace hotrows

using namespace hotrows;

HOTROWS_API void* hotrows_file_index_new() {
  try {
    return new Index();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

HOTROWS_API void hotrows_file_index_free(void* index) { delete static_cast<Index*>(index); }

HOTROWS_API int64_t hotrows_file_index_size(void* index) { return static_cast<Index*>(index)->size(); }

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
