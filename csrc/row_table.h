// Values by row, and counts of rows: open addressing, for tables that are read at random.
#pragma once

#include "memory.h"

namespace hotrows::slots {

constexpr int64_t kFar = 32;  // rows prefetched ahead

// Values by row, by linear probing; rows and values stand apart, so that probing stays in one line.
// Multiplying by the golden ratio spreads rows that lie close more evenly than chance would, and a
// row's place rises with its hash: growing copies in order.
template <class Value>
class RowTable {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  void prefetch(int64_t row) const {
    const size_t p = home(row);
    hotrows::prefetch(&rows_[p]);
    prefetch_for_write(&values_[p]);
  }

  // Where a row stands, until one is put or erased.
  size_t find(int64_t row) const {
    size_t p = home(row);
    while (rows_[p] != row) {
      if (rows_[p] < 0) return kNone;
      p = after(p);
    }
    return p;
  }

  // The same, for a row that may be new; `reserve` has made room: for all of them at once where they
  // come in the order of another table, or they would crowd its first places.
  size_t put(int64_t row) {
    size_t p = home(row);
    while (rows_[p] != row) {
      if (rows_[p] < 0) {
        rows_[p] = row;
        values_[p] = Value();
        ++size_;
        break;
      }
      p = after(p);
    }
    return p;
  }

  Value& operator[](size_t p) { return values_[p]; }

  void reserve(size_t more) {
    if ((size_ + more) * 4 <= rows_.size() * 3) return;
    const size_t wider = std::max(rows_.size(), size_ + more) * 3 / 2;
    Large<int64_t> rows(wider, kEmpty);
    Large<Value> values(wider);
    rows.swap(rows_);
    values.swap(values_);
    size_ = 0;
    for (size_t p = 0; p < rows.size(); ++p)
      if (rows[p] >= 0) values_[put(rows[p])] = values[p];
  }

  // Moves back the rows behind it that stand away from home, so that probing needs no tombstones.
  void erase(size_t hole) {
    for (size_t p = after(hole); rows_[p] >= 0; p = after(p)) {
      const size_t from = home(rows_[p]);
      const bool stays = hole < p ? hole < from && from <= p : hole < from || from <= p;
      if (stays) continue;
      rows_[hole] = rows_[p];
      values_[hole] = values_[p];
      hole = p;
    }
    rows_[hole] = kEmpty;
    --size_;
  }

  template <class Visit>
  void each(Visit visit) const {
    for (size_t p = 0; p < rows_.size(); ++p)
      if (rows_[p] >= 0) visit(rows_[p], values_[p]);
  }

  void clear() {
    std::fill(rows_.begin(), rows_.end(), kEmpty);
    size_ = 0;
  }

  size_t size() const { return size_; }
  size_t bytes() const { return rows_.capacity() * sizeof(int64_t) + values_.capacity() * sizeof(Value); }

 private:
  static constexpr int64_t kEmpty = -1;
  static constexpr size_t kLeast = 256;

  size_t home(int64_t row) const {
    const uint64_t hash = static_cast<uint64_t>(row) * kGolden;
    return static_cast<size_t>(static_cast<unsigned __int128>(hash) * rows_.size() >> 64);
  }
  size_t after(size_t p) const { return p + 1 == rows_.size() ? 0 : p + 1; }

  Large<int64_t> rows_ = Large<int64_t>(kLeast, kEmpty);
  Large<Value> values_ = Large<Value>(kLeast);
  size_t size_ = 0;
};

struct Counted {
  int64_t row, count;
};

// How often rows were met, of as many rows as there is room for.
class RowCounts {
 public:
  explicit RowCounts(int64_t most_rows) : most_rows_(most_rows) {}

  // Counts each row once, and where there is no room halves all counts until there is.
  void count(const int64_t* rows, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      if (i + kFar < n) table_.prefetch(rows[i + kFar]);
      if (table_.size() == static_cast<size_t>(most_rows_) && table_.find(rows[i]) == table_.kNone) halve();
      table_.reserve(1);
      ++table_[table_.put(rows[i])];
    }
  }

  // The n rows counted most, or as many as there are; ties by row.
  int64_t most(int64_t n, int64_t* rows) const {
    std::vector<Counted> all;
    all.reserve(table_.size());
    table_.each([&](int64_t row, int64_t count) { all.push_back({row, count}); });
    n = std::min<int64_t>(n, all.size());
    std::nth_element(all.begin(), all.begin() + n, all.end(), [](const Counted& a, const Counted& b) {
      return a.count != b.count ? a.count > b.count : a.row < b.row;
    });
    for (int64_t i = 0; i < n; ++i) rows[i] = all[i].row;
    return n;
  }

  size_t bytes() const { return table_.bytes(); }

 private:
  void halve() {
    while (table_.size() == static_cast<size_t>(most_rows_)) {
      RowTable<int64_t> kept;
      kept.reserve(table_.size());
      table_.each([&](int64_t row, int64_t count) {
        if (count > 1) kept[kept.put(row)] = count / 2;
      });
      table_ = std::move(kept);
    }
  }

  const int64_t most_rows_;
  RowTable<int64_t> table_;
};

}  // namespace hotrows::slots
