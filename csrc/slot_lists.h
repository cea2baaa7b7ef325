// What the slot map (slots.cpp) writes down of rows, uses and slots, and the lists of rows that may go.
#pragma once

#include <tuple>

#include "memory.h"

namespace hotrows::slots {

constexpr int32_t kUnknown = -1;

// Uses of rows to come, numbered as they are fed; each tells the number of the next one of its row: filled
// in when that one comes. In blocks, so that a use takes its 4 bytes and no more.
class Uses {
 public:
  static constexpr uint32_t kNone = 1u << 31;  // numbers go round before it

  static uint32_t distance(uint32_t from, uint32_t to) { return (to - from) & kMask; }
  static uint32_t after(uint32_t number, uint32_t count) { return (number + count) & kMask; }

  uint32_t& operator[](uint32_t number) {
    CHECK(distance(begin_, number) < size(), begin_, number, end_);
    return block(number >> kBits)[number & (kBlock - 1)];
  }
  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  uint32_t size() const { return distance(begin_, end_); }
  size_t bytes() const { return num_blocks_ * kBlock * sizeof(uint32_t); }

  // The first `count`.
  void prefetch(uint32_t count) {
    CHECK(count <= size(), count, size());
    for (uint32_t n = 0; n < count; n += 16) hotrows::prefetch(&(*this)[after(begin_, n)]);
  }

  // `reserve` has made room.
  uint32_t push() {
    const uint32_t number = end_;
    end_ = after(end_, 1);
    CHECK((begin_ & (kBlock - 1)) + size() <= num_blocks_ * kBlock, begin_, size(), num_blocks_);
    return number;
  }

  void reserve(uint32_t more) {
    const uint32_t first = begin_ >> kBits, needed = ((begin_ & (kBlock - 1)) + size() + more + kBlock - 1) >> kBits;
    if (needed > blocks_.size()) {
      std::vector<Block> wider(blocks_.size() * 2);
      for (uint32_t b = first; b < first + num_blocks_; ++b) wider[b & (wider.size() - 1)].swap(block(b));
      blocks_.swap(wider);
    }
    for (; num_blocks_ < needed; ++num_blocks_) {
      block(first + num_blocks_).resize(kBlock);
    }
    CHECK(num_blocks_ <= blocks_.size() && size() + more < kNone / 2, num_blocks_, blocks_.size(), size(), more);
  }

  void pop(uint32_t count) {
    CHECK(count <= size(), count, size());
    const uint32_t end = after(begin_, count);
    for (uint32_t left = (begin_ & (kBlock - 1)) + count; left >= kBlock; left -= kBlock) {
      Block().swap(block(begin_ >> kBits));
      begin_ = after(begin_, kBlock);
      --num_blocks_;
    }
    CHECK(begin_ >> kBits == end >> kBits, begin_, end);
    begin_ = end;
  }

 private:
  static constexpr uint32_t kMask = kNone - 1;
  static constexpr int kBits = 19;  // a block is a large page
  static constexpr uint32_t kBlock = 1u << kBits;
  using Block = Large<uint32_t>;

  Block& block(uint32_t number) { return blocks_[number & (blocks_.size() - 1)]; }

  std::vector<Block> blocks_ = std::vector<Block>(1);
  uint32_t num_blocks_ = 0;
  uint32_t begin_ = kMask - 255, end_ = begin_;  // so that numbers go round in short runs, too
};

// Where more is known of a row: its slot or, without one, its last use to come, which then names the first.
class Place {
 public:
  static Place of_slot(int64_t slot) {
    CHECK(slot >= 0 && slot < kNew, slot);
    return Place(static_cast<uint32_t>(slot));
  }
  static Place of_use(uint32_t last) {
    CHECK(last < Uses::kNone, last);
    return Place(last | Uses::kNone);
  }
  Place() = default;

  bool is_new() const { return number_ == kNew; }
  bool has_slot() const { return number_ < kNew; }
  int32_t slot() const {
    CHECK(has_slot(), number_);
    return static_cast<int32_t>(number_);
  }
  uint32_t last() const {
    CHECK(number_ & Uses::kNone, number_);
    return number_ & (Uses::kNone - 1);
  }

 private:
  static constexpr uint32_t kNew = Uses::kNone - 1;  // more than there are slots
  explicit Place(uint32_t number) : number_(number) {}

  uint32_t number_ = kNew;
};

// A row of the batch that is taken, and where it was known when that began.
struct Found {
  Place* place;
  Place was;
};

// first, last: uses to come of its row; last is kNone without one.
template <class Row>
struct Slot {
  Row row;
  int32_t last_use;
  uint32_t first : 31;
  uint32_t wanted : 1;  // whether the policy wants its row
  uint32_t last;
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
  uint32_t first, last;  // its uses to come, once the slot is another row's
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
    CHECK(begin == items.size(), begin, items.size());
    ends.resize(kept);
    items.swap(spare);
  }
  CHECK(std::is_sorted(items.begin(), items.end(), less));
}

}  // namespace hotrows::slots
