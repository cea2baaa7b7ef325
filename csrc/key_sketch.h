// How often keys were read lately, in fixed memory: two count-min sketches, of which the newer one counts;
// after width / 2 reads it stands in for the older one, which is forgotten.
#pragma once

#include <memory>

#include "memory.h"

namespace hotrows {

// What undoes the counts of a batch. turns: how many cells were noted before, and what was forgotten.
struct SketchJournal {
  struct Cell {
    int64_t cell;
    uint8_t was;
  };
  struct Turn {
    size_t num_cells;
    std::shared_ptr<Zeroed> forgotten;
  };
  std::vector<Cell> cells;
  std::vector<Turn> turns;
};

class Sketches {
 public:
  static constexpr int64_t kMost = 255;

  explicit Sketches(int64_t width = 0)
      : width_(width), newer_(std::make_shared<Zeroed>(size())), older_(std::make_shared<Zeroed>(size())) {}

  int64_t size() const { return kRows * width_; }  // bytes of one sketch

  // Adds reads of a key, no counter higher than needed; returns its count in both. place: reads so far in the
  // newer sketch.
  int64_t count(int64_t key, int64_t reads, int64_t* place, SketchJournal* journal) {
    CHECK(width_ > 0 && reads > 0 && *place >= 0, width_, reads, *place);
    if (*place + reads > width_ / 2) {
      journal->turns.push_back({journal->cells.size(), older_});
      older_ = newer_;
      newer_ = std::make_shared<Zeroed>(size());
      *place = 0;
    }
    *place += reads;
    const uint64_t bits = random_bits(static_cast<uint64_t>(key), 1);
    int64_t cells[kRows], least = kMost, older = kMost;
    for (int row = 0; row < kRows; ++row) {
      const uint32_t at = static_cast<uint32_t>(bits) + row * static_cast<uint32_t>(bits >> 32);
      cells[row] = row * width_ + static_cast<int64_t>(uint64_t{at} * width_ >> 32);
      CHECK(cells[row] / width_ == row && cells[row] < size(), row, cells[row], width_);
      least = std::min<int64_t>(least, newer_->as<uint8_t>()[cells[row]]);
      older = std::min<int64_t>(older, older_->as<uint8_t>()[cells[row]]);
    }
    const int64_t count = std::min(least + reads, kMost);
    CHECK(count > least || least == kMost, count, least);
    for (const int64_t cell : cells) {
      uint8_t& counter = newer_->as<uint8_t>()[cell];
      if (counter >= count) continue;
      journal->cells.push_back({cell, counter});
      counter = static_cast<uint8_t>(count);
    }
    for (const int64_t cell : cells) CHECK(newer_->as<uint8_t>()[cell] >= count, cell, count);
    return count + older;
  }

  // counters: [2, 4, width], newer ones first; may be null where there are none.
  void read(uint8_t* counters) const {
    if (width_ == 0) return;
    std::memcpy(counters, newer_->as<uint8_t>(), static_cast<size_t>(size()));
    std::memcpy(counters + size(), older_->as<uint8_t>(), static_cast<size_t>(size()));
  }

  // Makes counters that were read those before a batch.
  void undo(const SketchJournal& journal, uint8_t* counters) const {
    size_t left = journal.cells.size();
    const auto restore = [&](size_t until) {
      CHECK(until <= left, until, left);
      while (left > until) {
        --left;
        CHECK(journal.cells[left].cell < size() && counters[journal.cells[left].cell] > journal.cells[left].was, left);
        counters[journal.cells[left].cell] = journal.cells[left].was;
      }
    };
    for (auto turn = journal.turns.rbegin(); turn != journal.turns.rend(); ++turn) {
      restore(turn->num_cells);
      std::memcpy(counters, counters + size(), static_cast<size_t>(size()));
      std::memcpy(counters + size(), turn->forgotten->as<uint8_t>(), static_cast<size_t>(size()));
    }
    restore(0);
  }

  void load(const uint8_t* counters) {
    if (width_ == 0) return;
    std::memcpy(newer_->as<uint8_t>(), counters, static_cast<size_t>(size()));
    std::memcpy(older_->as<uint8_t>(), counters + size(), static_cast<size_t>(size()));
  }

 private:
  static constexpr int kRows = 4;

  int64_t width_;
  std::shared_ptr<Zeroed> newer_, older_;
};

}  // namespace hotrows
