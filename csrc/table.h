// Table: how often each value was seen, by open addressing with linear probing.
//
// A value of at most eight bytes stands in its slot; a longer one in an arena. The place of a value is
// the upper half of its hash, scaled to the number of slots: a table of any size, which grows without
// another look at the values and lies almost in the order of the hashes. All memory is reserved from
// a budget first, that of growing too.
#pragma once

#include "memory.h"
#include "value.h"

namespace hotrows {

struct Slot {
  uint64_t word;    // the value, or where it stands in the arena
  int64_t count;
  uint32_t length;  // 0: the slot is free
  uint32_t tag;     // the upper half of the hash
};

// A value on its way into rank order. New values come by falling count, equal ones by their bytes;
// known ones before them, by the rank they have.
struct Ranked {
  uint64_t key;     // ~count of a new value, rank of a known one
  uint64_t prefix;  // first eight bytes, big-endian: compares as the bytes do; count of a known value
  uint64_t ref;     // of a new value: its length up to 8, else where it stands: uint32 length, bytes
};

// A value on its way into the index (see index.h).
struct Placed {
  uint64_t hash, word, rank_and_length;
};

// A slot becomes what it is needed for in its place, so that ranking takes no memory of its own.
union Cell {
  Slot slot;
  Ranked ranked;
  Placed placed;
};
static_assert(sizeof(Cell) == 24, "one size for all");

// The bytes of a value that stands somewhere with its length in front.
inline Field stored_value(uint64_t ref) {
  const char* const p = reinterpret_cast<const char*>(ref);
  Field value{p + 4, 0};
  std::memcpy(&value.length, p, 4);
  return value;
}

// Blocks of memory for the bytes of values, each with its length in front. Nothing moves.
class Arena {
 public:
  explicit Arena(Budget& budget) : budget_(budget) {}
  ~Arena() { clear(); }

  // Where the value stands, or 0 where the budget has no room.
  uint64_t put(Field value) {
    const int64_t need = 4 + static_cast<int64_t>(value.length);
    CHECK(value.length > 8 && left_ >= 0 && left_ <= size_, value.length, left_, size_);
    if (need + kSpare > left_ && !extend(need + kSpare)) return 0;
    char* const p = next_;
    std::memcpy(p, &value.length, 4);
    std::memcpy(p + 4, value.data, value.length);
    next_ += need, left_ -= need;
    CHECK(left_ >= kSpare, left_);
    return reinterpret_cast<uint64_t>(p);
  }

  void clear() {
    budget_.release(size_);
    blocks_.clear();
    next_ = nullptr, left_ = size_ = 0;
  }

  int64_t size() const { return size_; }

 private:
  static constexpr int64_t kFirst = 256, kLargest = 1 << 20;
  static constexpr int64_t kSpare = 8;  // the last word of a value may be read whole

  bool extend(int64_t need) {
    const int64_t size = std::max(need, std::min(std::max(size_, kFirst), kLargest));
    if (!budget_.reserve(size)) return false;
    size_ += size;
    blocks_.emplace_back(size);
    next_ = blocks_.back().as<char>(), left_ = size;
    return true;
  }

  Budget& budget_;
  std::vector<Zeroed> blocks_;
  char* next_ = nullptr;
  int64_t left_ = 0, size_ = 0;
};

class Table {
 public:
  explicit Table(Budget& budget) : budget_(budget), arena_(budget) {}
  ~Table() { clear(); }

  void prefetch(const Key& key) const { prefetch_for_write(cells() + home(tag_of(key.hash))); }

  // The count of a value, 0 at first; null where the budget has no room for another value.
  int64_t* at(const Key& key) {
    CHECK(key.field.length > 0);  // 0 marks a free slot
    while (true) {
      Slot* const slot = size_ ? find(key) : nullptr;
      if (slot && slot->length) return &slot->count;
      if (used_ < room_) return insert(*slot, key);
      if (!grow()) return nullptr;
    }
  }

  // Puts the slots in use together, in front of all; nothing can be found or counted from then on.
  Cell* compact() {
    int64_t n = 0;
    for (int64_t i = 0; i < size_; ++i) {
      if (cells()[i].slot.length) cells()[n++] = cells()[i];
    }
    CHECK(n == used_, n, used_);
    return cells();
  }

  static Field value(const Slot& slot) {
    if (slot.length > 8) return stored_value(slot.word);
    return {reinterpret_cast<const char*>(&slot.word), slot.length};
  }

  void clear_arena() { arena_.clear(); }

  // Each value is found from its home on, and as many as are counted.
  void check_all() const {
    int64_t used = 0;
    for (int64_t i = 0; i < size_; ++i) {
      const Slot& slot = cells()[i].slot;
      if (slot.length == 0) continue;
      ++used;
      const Field field = value(slot);
      const Key key = key_of(field, field.data + std::max(field.length + 8, 8u));
      CHECK(field.length == slot.length && tag_of(key.hash) == slot.tag && slot.count >= 0, i, slot.length, slot.count);
      CHECK(find(key) == &slot, i);
    }
    CHECK(used == used_ && used_ <= room_ && room_ <= size_, used, used_, room_, size_);
  }

  void clear() {
    arena_.clear();
    budget_.release(memory_.size());
    memory_ = Zeroed();
    size_ = used_ = room_ = 0;
  }

  int64_t used() const { return used_; }
  int64_t num_bytes() const { return memory_.size() + arena_.size(); }

 private:
  static constexpr int64_t kFirst = 64;
  static constexpr int64_t kMost = int64_t{1} << 31;  // slots that a tag can tell apart

  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  Cell* cells() const { return memory_.as<Cell>(); }

  int64_t home(uint32_t tag) const {
    return static_cast<int64_t>(static_cast<uint64_t>(tag) * static_cast<uint64_t>(size_) >> 32);
  }

  Slot* find(const Key& key) const {
    CHECK(used_ < size_, used_, size_);  // or a search would not end
    int64_t i = home(tag_of(key.hash));
    while (cells()[i].slot.length != 0 && !holds(cells()[i].slot, key)) i = i + 1 == size_ ? 0 : i + 1;
    return &cells()[i].slot;
  }

  static bool holds(const Slot& slot, const Key& key) {
    if (slot.length != key.field.length || slot.tag != tag_of(key.hash)) return false;
    return slot.length <= 8 ? slot.word == key.word : same(stored_value(slot.word), key.field);
  }

  int64_t* insert(Slot& slot, const Key& key) {
    CHECK(slot.length == 0 && used_ < room_, slot.length, used_, room_);
    const uint64_t word = key.field.length <= 8 ? key.word : arena_.put(key.field);
    if (key.field.length > 8 && word == 0) return nullptr;
    slot = {word, 0, key.field.length, tag_of(key.hash)};
    ++used_;
    return &slot.count;
  }

  // More slots; where the budget has none to give, fuller ones. False where they are full already.
  bool grow() {
    for (const int64_t eighths : {16, 12, 10}) {
      if (resize(size_ ? size_ * eighths / 8 : kFirst)) return true;
    }
    if (room_ >= size_ * 3 / 4) return false;
    room_ = size_ * 3 / 4;
    CHECK(used_ < room_, used_, room_);
    return true;
  }

  bool resize(int64_t size) {
    const int64_t num_bytes = size * static_cast<int64_t>(sizeof(Cell));
    if (size > kMost || !budget_.reserve(num_bytes)) return false;
    Zeroed old(num_bytes);
    std::swap(old, memory_);
    const int64_t old_size = std::exchange(size_, size);
    for (int64_t i = 0; i < old_size; ++i) {
      const Slot& slot = old.as<Cell>()[i].slot;
      if (slot.length) *free_slot(slot.tag) = slot;
    }
    budget_.release(old.size());
    room_ = size * 5 / 8;
    CHECK(used_ <= room_ && room_ < size_, used_, room_, size_);
    if (kChecks) check_all();
    return true;
  }

  Slot* free_slot(uint32_t tag) {
    int64_t i = home(tag);
    while (cells()[i].slot.length != 0) i = i + 1 == size_ ? 0 : i + 1;
    return &cells()[i].slot;
  }

  Budget& budget_;
  Arena arena_;
  Zeroed memory_;
  int64_t size_ = 0, used_ = 0, room_ = 0;
};

}  // namespace hotrows
