// Values by row, and counts of rows: open addressing, for tables that are read at random.
#pragma once

#include <limits>
#include <utility>

#include "memory.h"

namespace hotrows::slots {

constexpr int64_t kFar = 32;  // rows prefetched ahead

// Values by row, by linear probing; a row stands beside its value, so that one line holds both.
// Multiplying by the golden ratio spreads rows that lie close more evenly than chance would, and a
// row's place rises with its hash: growing copies in order.
// Row: uint32_t where rows are below 2^32 - 1, else uint64_t.
template <class Row, class Value>
class RowTable {
 public:
  struct Entry : Value {
    Row row = kEmpty;
  };

  void prefetch(Row row) const { prefetch_for_write(&entries_[home(row)]); }

  // The entry of a row, until one is put or erased; null where the row has none.
  const Entry* find(Row row) const {
    CHECK(size_ < entries_.size(), size_, entries_.size());  // or a search would not end
    size_t p = home(row);
    while (entries_[p].row != row) {
      if (entries_[p].row == kEmpty) return nullptr;
      p = after(p);
    }
    return &entries_[p];
  }
  Entry* find(Row row) { return const_cast<Entry*>(std::as_const(*this).find(row)); }

  // The entry of a row that may be new; `reserve` has made room: for all of them at once where they
  // come in the order of another table, or they would crowd its first places.
  Entry& put(Row row) {
    CHECK(row != kEmpty);
    size_t p = home(row);
    while (entries_[p].row != row) {
      if (entries_[p].row == kEmpty) {
        entries_[p].row = row;
        ++size_;
        CHECK(size_ * 4 <= entries_.size() * 3, size_, entries_.size());
        break;
      }
      p = after(p);
    }
    return entries_[p];
  }

  void reserve(size_t more) {
    if ((size_ + more) * 4 <= entries_.size() * 3) return;
    Large<Entry> entries(std::max(entries_.size() * 5 / 4, (size_ + more) * 3 / 2));
    entries.swap(entries_);
    [[maybe_unused]] const size_t size_before = std::exchange(size_, 0);
    for (const Entry& entry : entries)
      if (entry.row != kEmpty) put(entry.row) = entry;
    CHECK(size_ == size_before, size_, size_before);
  }

  // Moves back the rows behind it that stand away from home, so that probing needs no tombstones.
  void erase(const Entry& entry) {
    CHECK(&entry >= entries_.data() && &entry < entries_.data() + entries_.size());
    CHECK(entry.row != kEmpty && size_ > 0, entry.row, size_);
    size_t hole = &entry - entries_.data();
    for (size_t p = after(hole); entries_[p].row != kEmpty; p = after(p)) {
      const size_t from = home(entries_[p].row);
      const bool stays = hole < p ? hole < from && from <= p : hole < from || from <= p;
      if (stays) continue;
      entries_[hole] = entries_[p];
      hole = p;
    }
    entries_[hole] = Entry();
    --size_;
  }

  template <class Visit>
  void each(Visit visit) const {
    for (const Entry& entry : entries_)
      if (entry.row != kEmpty) visit(entry);
  }

  void clear() {
    std::fill(entries_.begin(), entries_.end(), Entry());
    size_ = 0;
  }

  size_t size() const { return size_; }
  size_t bytes() const { return entries_.capacity() * sizeof(Entry); }

  // A search from home on finds each entry, and as many as are counted.
  void check_all() const {
    [[maybe_unused]] size_t count = 0;
    each([&](const Entry& entry) {
      ++count;
      CHECK(find(entry.row) == &entry, entry.row);
    });
    CHECK(count == size_, count, size_);
  }

 private:
  static constexpr Row kEmpty = std::numeric_limits<Row>::max();
  static constexpr size_t kLeast = 256;

  size_t home(Row row) const {
    const uint64_t hash = row * kGolden;
    return static_cast<size_t>(static_cast<unsigned __int128>(hash) * entries_.size() >> 64);
  }
  size_t after(size_t p) const { return p + 1 == entries_.size() ? 0 : p + 1; }

  Large<Entry> entries_ = Large<Entry>(kLeast);
  size_t size_ = 0;
};

struct Count {
  int32_t count = 0;  // of batches, which are no more
};

// How often rows were met, of as many rows as there is room for.
template <class Row>
class RowCounts {
 public:
  explicit RowCounts(int64_t most_rows) : most_rows_(most_rows) {}

  // Counts each row once, and where there is no room halves all counts until there is.
  void count(const int64_t* rows, int64_t n) {
    for (int64_t i = 0; i < std::min(n, kFar); ++i) table_.prefetch(rows[i]);
    for (int64_t i0 = 0; i0 < n; i0 += kFar) {
      const int64_t i1 = std::min(i0 + kFar, n);
      table_.reserve(std::min<int64_t>(i1 - i0, most_rows_ - table_.size()));
      for (int64_t i = i0; i < i1; ++i) {
        if (i + kFar < n) table_.prefetch(rows[i + kFar]);
        if (table_.size() == static_cast<size_t>(most_rows_) && !table_.find(rows[i])) halve();
        int32_t& count = table_.put(static_cast<Row>(rows[i])).count;
        CHECK(count >= 0 && count < INT32_MAX, count);
        --num_with_[level(count)];
        ++num_with_[level(++count)];
      }
    }
    CHECK(table_.size() <= static_cast<size_t>(most_rows_), table_.size(), most_rows_);
    if (kChecks && is_look_due(table_.bytes())) check_all();
  }

  // The n rows counted most, or as many as there are; ties by row. In no order, but read from the table
  // and so put into another one from its front to its back, twice.
  int64_t most(int64_t n, int64_t* rows) const {
    int64_t lowest = kLevels, num = 0;  // all rows of this level and above are among them
    while (lowest > 1 && num + num_with_[lowest - 1] <= n) num += num_with_[--lowest];
    std::vector<Counted> tied;
    num = 0;
    table_.each([&](const Entry& entry) {
      if (level(entry.count) >= lowest) rows[num++] = entry.row;
      CHECK(num <= n, num, n);
      if (level(entry.count) == lowest - 1) tied.push_back({entry.row, entry.count});
    });
    const int64_t left = std::min<int64_t>(n - num, tied.size());
    if (left == 0) return num;
    std::vector<Counted> ranked = tied;
    std::nth_element(ranked.begin(), ranked.begin() + left - 1, ranked.end(), is_before);
    for (const Counted& row : tied)
      if (!is_before(ranked[left - 1], row)) rows[num++] = row.row;
    CHECK(num == std::min<int64_t>(n, table_.size()), num, n, table_.size());
    return num;
  }

  size_t bytes() const { return table_.bytes(); }

 private:
  using Table = RowTable<Row, Count>;
  using Entry = typename Table::Entry;
  struct Counted {
    Row row;
    int32_t count;
  };
  static constexpr int64_t kLevels = 1024;

  static int64_t level(int32_t count) { return std::min<int64_t>(count, kLevels - 1); }
  static bool is_before(const Counted& a, const Counted& b) {
    return a.count != b.count ? a.count > b.count : a.row < b.row;
  }

  // Each row that is counted is counted at its level.
  void check_all() const {
    table_.check_all();
    std::vector<int64_t> num_with(kLevels);
    table_.each([&](const Entry& entry) {
      CHECK(entry.count > 0, entry.row, entry.count);
      ++num_with[level(entry.count)];
    });
    for (int64_t l = 1; l < kLevels; ++l) CHECK(num_with[l] == num_with_[l], l, num_with[l], num_with_[l]);
  }

  void halve() {
    CHECK(most_rows_ > 0);
    while (table_.size() == static_cast<size_t>(most_rows_)) {
      Table kept;
      kept.reserve(table_.size());
      std::fill(num_with_.begin(), num_with_.end(), 0);
      table_.each([&](const Entry& entry) {
        if (entry.count < 2) return;
        ++num_with_[level(kept.put(entry.row).count = entry.count / 2)];
      });
      CHECK(kept.size() <= table_.size(), kept.size(), table_.size());
      table_ = std::move(kept);
    }
  }

  const int64_t most_rows_;
  Table table_;
  std::vector<int64_t> num_with_ = std::vector<int64_t>(kLevels);  // rows of each count; in the last one, and more
};

}  // namespace hotrows::slots
