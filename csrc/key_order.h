// Which rows go first, without an order of all rows: the lowest ones are collected now and then.
//
//   bound     all rows that come before it have been handed out, or are collected, or were read since
//   runs      collected rows, each run in order; the least head of all runs is next
//
// Collecting scans the rows once for those before a next bound, so chosen from a sample that about one row
// in 32 comes before it. The scan goes on by some rows a batch, ahead of need. A collected row that was
// read since, that is, whose weight and last use are others now, is skipped when it is met; one that was
// read and still comes before the bound must be pushed anew. How many there are is estimated, so that rows
// are collected in time, or all anew where most of them were read. Which row is next is a function of the
// rows alone, whenever they were collected.
#pragma once

#include "memory.h"

namespace hotrows {

// A row on its way out: the one of the least weight first, then the one read longest ago, then the lowest.
struct Leaving {
  uint64_t weight;
  uint32_t last_use, row;  // last_use: the lower half of the number of a batch
};

class EvictionOrder {
 public:
  // The batch that is resolved now; ages are counted from it.
  void set_now(uint32_t now) { now_ = now; }

  bool before(const Leaving& a, const Leaving& b) const {
    if (a.weight != b.weight) return a.weight < b.weight;
    if (a.last_use != b.last_use) return now_ - a.last_use > now_ - b.last_use;
    return a.row < b.row;
  }

  // Takes the row that goes first, if it comes before `limit`. weigh(row, &leaving) says what a row weighs, or
  // false where it may not go; weigh.is_after(row, bound): that it does not come before `bound`, where that is
  // quick to say; weigh.prefetch(row). most: no row that may go comes after it.
  template <class Weigh>
  bool next(Weigh weigh, uint32_t num_rows, const Leaving& limit, const Leaving& most, Leaving* leaving) {
    while (true) {
      if (skip_stale(weigh) && (!is_scanning_ || is_below(heads_[0].item, bound_))) {
        if (!before(heads_[0].item, limit)) return false;
        *leaving = heads_[0].item;
        CHECK(leaving->row < num_rows && !before(most, *leaving), leaving->row, num_rows, leaving->last_use);
        pop_head(weigh);
        return true;
      }
      if (has_bound_ && !before(bound_, limit)) return false;
      if (!is_scanning_) start(weigh, num_rows, before(limit, most) ? limit : lowest(), most);
      scan(weigh, num_rows);
    }
  }

  // Collects ahead of need: starts a scan where the bound comes before `needed`, up to `least` at least, or
  // where too few rows are left that were collected (keeps_some), and scans `pace` rows.
  template <class Weigh>
  void prepare(Weigh weigh, uint32_t num_rows, int64_t pace, bool keeps_some, const Leaving& needed,
               const Leaving& least, const Leaving& most) {
    const int64_t share = share_of(num_rows);
    if (num_pushed_ > num_rows / 4 + kFew) clear();
    const bool lacks =
        (keeps_some && num_items_ - num_stale_ < share * 3 / 4) || (before(lowest(), needed) && !is_below(needed, bound_));
    if (!is_scanning_ && lacks) start(weigh, num_rows, least, most);
    if (is_scanning_) scan(weigh, pace);
  }

  // No row comes before it.
  Leaving lowest() const { return {0, now_ + 1, 0}; }

  // Rows to scan for each row that goes, so that the next ones are collected in time.
  static constexpr int64_t kRowsPerLeaving = 56;
  static constexpr int64_t kFew = 4096;

  // Whether a row that is read or new must be pushed.
  bool collects(const Leaving& row) const { return is_scanning_ ? is_below(row, next_) : is_below(row, bound_); }

  // Whether a row that was as `was`, and has been read, had been collected.
  bool had_collected(const Leaving& was) const { return is_below(was, bound_); }

  // Notes that about so many collected rows have been read.
  void note_stale(int64_t count) {
    CHECK(count >= 0, count);
    num_stale_ += count;
  }

  // Begins anew where most of what was collected has been read since, which would be skipped all at once.
  void forget_stale() {
    if (2 * num_stale_ > num_items_ + kFew) clear();
  }

  void push(std::vector<Leaving> run) {
    for (const Leaving& row : run) CHECK(collects(row), row.row, row.last_use);
    num_pushed_ += static_cast<int64_t>(run.size());
    add(std::move(run));
  }

  void clear() {
    heads_.clear();
    has_bound_ = is_scanning_ = false;
    num_items_ = num_stale_ = num_pushed_ = 0;
  }

  int64_t num_bytes() const {
    size_t bytes = heads_.capacity() * sizeof(Head);
    for (const Head& head : heads_) bytes += head.run.capacity() * sizeof(Leaving);
    return static_cast<int64_t>(bytes);
  }

 private:
  static constexpr int64_t kSample = 1024;
  static constexpr uint32_t kShare = 32;
  static constexpr size_t kAhead = 4;      // rows of a run that are prefetched
  static constexpr int64_t kShortest = 8;  // rows scanned for each one that is collected, at least

  struct Head {
    Leaving item;  // the least of the run that is left
    std::vector<Leaving> run;
    size_t after;
  };

  struct Later {
    const EvictionOrder* order;
    bool operator()(const Head& a, const Head& b) const { return order->before(b.item, a.item); }
  };

  static int64_t share_of(uint32_t num_rows) { return std::max<int64_t>(num_rows / kShare, kFew); }

  bool is_below(const Leaving& row, const Leaving& bound) const {
    return (&bound != &bound_ || has_bound_) && before(row, bound);
  }

  void add(std::vector<Leaving> run) {
    if (run.empty()) return;
    const auto is_before = [this](const Leaving& a, const Leaving& b) { return before(a, b); };
    if (!std::is_sorted(run.begin(), run.end(), is_before)) std::sort(run.begin(), run.end(), is_before);
    run.shrink_to_fit();
    num_items_ += static_cast<int64_t>(run.size());
    CHECK(std::is_sorted(run.begin(), run.end(), is_before));
    heads_.push_back({run.front(), std::move(run), 1});
    std::push_heap(heads_.begin(), heads_.end(), Later{this});
    if (kChecks && is_look_due(num_items_)) check_all();
  }

  // The least head comes first, and as many items are left as are counted.
  void check_all() const {
    CHECK(std::is_heap(heads_.begin(), heads_.end(), Later{this}));
    size_t left = 0;
    for (const Head& head : heads_) {
      CHECK(head.after > 0 && head.after <= head.run.size(), head.after, head.run.size());
      const Leaving& item = head.run[head.after - 1];
      CHECK(item.row == head.item.row && item.last_use == head.item.last_use, item.row, head.item.row);
      left += head.run.size() - head.after + 1;
    }
    CHECK(static_cast<int64_t>(left) == num_items_, left, num_items_);
  }

  template <class Weigh>
  bool skip_stale(Weigh weigh) {
    while (!heads_.empty()) {
      const Leaving& item = heads_[0].item;
      Leaving now;
      if (weigh(item.row, &now) && now.weight == item.weight && now.last_use == item.last_use) return true;
      num_stale_ = std::max<int64_t>(num_stale_ - 1, 0);
      pop_head(weigh);
    }
    return false;
  }

  template <class Weigh>
  void pop_head(Weigh weigh) {
    CHECK(num_items_ > 0, num_items_);
    --num_items_;
    std::pop_heap(heads_.begin(), heads_.end(), Later{this});
    Head& head = heads_.back();
    if (head.after == head.run.size()) {
      heads_.pop_back();
      return;
    }
    CHECK(!before(head.run[head.after], head.item), head.item.row, head.run[head.after].row);
    head.item = head.run[head.after++];
    if (head.after + kAhead < head.run.size()) weigh.prefetch(head.run[head.after + kAhead].row);
    std::push_heap(heads_.begin(), heads_.end(), Later{this});
  }

  // Chooses the next bound, `least` or after it.
  template <class Weigh>
  void start(Weigh weigh, uint32_t num_rows, const Leaving& least, const Leaving& most) {
    CHECK(!is_scanning_, cursor_, end_);
    std::vector<Leaving> sample;
    const uint32_t stride = static_cast<uint32_t>(num_rows / kSample + 1);
    for (uint32_t row = sampled_++ % stride; row < num_rows; row += stride) {
      Leaving leaving;
      if (weigh(row, &leaving) && !is_below(leaving, bound_)) sample.push_back(leaving);
    }
    next_ = most;
    if (num_rows > kFew && sample.size() > kShare) {
      const auto place = sample.begin() + static_cast<int64_t>(std::min<size_t>(sample.size() - 1, kSample / kShare));
      std::nth_element(sample.begin(), place, sample.end(),
                       [this](const Leaving& a, const Leaving& b) { return before(a, b); });
      next_ = *place;
    }
    if (before(next_, least)) next_ = least;
    CHECK(!has_bound_ || !before(next_, bound_), next_.row, next_.last_use, bound_.row, bound_.last_use);
    is_scanning_ = true;
    cursor_ = 0;
    end_ = num_rows;
  }

  template <class Weigh>
  void scan(Weigh weigh, int64_t count) {
    std::vector<Leaving> run;
    const uint32_t end = static_cast<uint32_t>(std::min<int64_t>(int64_t{cursor_} + count, end_));
    const size_t most = static_cast<size_t>(count / kShortest);
    for (; cursor_ < end && run.size() <= most; ++cursor_) {
      Leaving leaving;
      if (weigh.is_after(cursor_, next_) || !weigh(cursor_, &leaving)) continue;
      if (before(leaving, next_) && !is_below(leaving, bound_)) run.push_back(leaving);
    }
    CHECK(is_scanning_ && cursor_ <= end_, cursor_, end_);
    add(std::move(run));
    if (cursor_ < end_) return;
    bound_ = next_;
    has_bound_ = true;
    is_scanning_ = false;
  }

  uint32_t now_ = 0;
  std::vector<Head> heads_;  // a heap, the least one first
  int64_t num_items_ = 0, num_stale_ = 0;  // collected; of these, read since
  int64_t num_pushed_ = 0;                 // since all was cleared
  Leaving bound_{}, next_{};  // next_: of the scan that is under way, up to row end_
  bool has_bound_ = false, is_scanning_ = false;
  uint32_t cursor_ = 0, end_ = 0, sampled_ = 0;
};

}  // namespace hotrows
