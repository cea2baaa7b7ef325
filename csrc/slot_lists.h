// What the slot map (slots.cpp) writes down of rows, uses and slots, and the lists of rows that may go.
#pragma once

#include <tuple>

#include "memory.h"

namespace hotrows::slots {

constexpr int32_t kUnknown = -1;

// A row that has a slot or uses to come: first, last: numbers of uses; newest: the last one's batch.
struct Known {
  int32_t slot = -1;
  uint32_t first = 0, last = 0;
  int32_t newest = -1;
};

// A row of the batch that is taken, with what it leads to: its place in the table has left the cache by
// the time that it is read again.
struct Found {
  Known* known;
  uint32_t first;
  int32_t slot;
};

// A ring of uses, each of which tells the number of the next one of its row: filled in when that one comes.
class Uses {
 public:
  uint32_t& operator[](uint32_t number) { return ring_[number & (ring_.size() - 1)]; }
  uint32_t push() { return end_++; }
  void pop(uint32_t count) { begin_ += count; }
  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  size_t bytes() const { return ring_.capacity() * sizeof(uint32_t); }

  void reserve(uint32_t more) {
    if (end_ - begin_ + more <= ring_.size()) return;
    Large<uint32_t> old(ring_.size() * 2);
    old.swap(ring_);
    for (uint32_t n = begin_; n != end_; ++n) (*this)[n] = old[n & (old.size() - 1)];
  }

 private:
  Large<uint32_t> ring_ = Large<uint32_t>(1024);
  uint32_t begin_ = 0, end_ = 0;  // numbers go round at 2^32
};

struct Slot {
  int64_t row = -1;
  int32_t last_use = 0, next_use = kUnknown;
};

struct Item {
  int32_t slot, last_use;
};

struct Queue {
  std::vector<Item> items;
  size_t head = 0;
  int64_t live = 0;  // items that their slots bear out
};

// What belongs to a batch fed and not taken.
struct Bucket {
  std::vector<Item> items;  // the slots whose row it uses next
  int64_t live = 0;
  uint32_t uses_end = 0;
};

// A row that may go; those of the lowest rank first, then the oldest.
struct Victim {
  int32_t rank, last_use;
  int64_t row;
  int32_t slot;
};

inline bool is_older(const Victim& a, const Victim& b) {
  return std::tie(a.rank, a.last_use, a.row) < std::tie(b.rank, b.last_use, b.row);
}

// Sorts by merging what already rises: rows that were last used together leave in order.
template <class Item, class Less>
void sort_runs(std::vector<Item>& items, std::vector<Item>& spare, Less less) {
  std::vector<size_t> ends;
  for (size_t i = 1; i < items.size(); ++i)
    if (less(items[i], items[i - 1])) ends.push_back(i);
  ends.push_back(items.size());
  spare.resize(items.size());
  while (ends.size() > 1) {
    size_t begin = 0, kept = 0;
    for (size_t r = 0; r < ends.size(); r += 2) {
      const size_t middle = ends[r], end = ends[std::min(r + 1, ends.size() - 1)];
      const auto at = items.begin();
      std::merge(at + begin, at + middle, at + middle, at + end, spare.begin() + begin, less);
      begin = ends[kept++] = end;
    }
    ends.resize(kept);
    items.swap(spare);
  }
}

}  // namespace hotrows::slots
