// The keys of the batches known ahead: how often the window reads each, and which batch reads it next.
// Uses are in a ring, in the order of batches; each names the next one of its key.
#pragma once

#include <deque>

#include "keyed_records.h"

namespace hotrows {

class KeyWindow {
 public:
  // Of a key that a batch reads: its reads in all batches of the window, and the next batch after this one
  // that reads it, as `known`, or 0.
  struct Reads {
    int64_t reads;
    uint32_t next;
  };

  // A batch by number, distinct from 0: none.
  static uint32_t known(uint32_t batch) { return batch | uint32_t{1} << 31; }

  bool empty() const { return batch_ends_.empty(); }
  size_t num_batches() const { return batch_ends_.size(); }

  // Adds a batch; returns those of its keys that no earlier batch of the window reads.
  const std::vector<int64_t>& feed(uint32_t batch, const int64_t* keys, int64_t n) {
    CHECK(uses_.empty() || uses_.back().batch != batch, batch);
    keys_.reserve(n);
    fresh_.clear();
    keys_.find_all(keys, n, [&](int64_t i, uint32_t place) {
      const bool is_new = place == keys_.kNone;
      if (is_new) place = keys_.insert(keys[i]);
      Ahead& key = keys_[place];
      CHECK(key.key == keys[i] && (is_new ? key.reads == 0 : key.reads > 0), keys[i], key.key, key.reads);
      ++key.reads;
      if (!is_new && key.newest == batch) {
        ++use(key.last).reads;
        return;
      }
      const uint32_t number = uses_begin_ + static_cast<uint32_t>(uses_.size());
      if (is_new) {
        key.first = number;
        fresh_.push_back(keys[i]);
      } else {
        use(key.last).next = number;
      }
      uses_.push_back({place, batch, 0, 1});
      key.last = number, key.newest = batch;
    });
    batch_ends_.push_back(uses_begin_ + static_cast<uint32_t>(uses_.size()));
    reads_fed_.push_back(n);
    look();
    return fresh_;
  }

  // Whether the oldest batch has so many reads, of so many distinct keys.
  bool is_of_reads(int64_t n) const { return reads_fed_.front() == n; }
  bool is_of_keys(int64_t n) const { return batch_ends_.front() - uses_begin_ == static_cast<uint32_t>(n); }

  // Calls visit(i, reads) for distinct keys that `batch`, the oldest, reads; false where one of them is not
  // among those that were fed.
  template <class Visit>
  bool find_all(uint32_t batch, const int64_t* keys, int64_t n, Visit visit) {
    bool is_fed = true;
    keys_.find_all(keys, n, [&](int64_t i, uint32_t place) {
      is_fed = is_fed && place != keys_.kNone && use(keys_[place].first).batch == batch;
      if (!is_fed) return;
      const Ahead& key = keys_[place];
      const bool is_last = key.first == key.last;
      visit(i, Reads{key.reads, is_last ? 0 : known(use(use(key.first).next).batch)});
    });
    return is_fed;
  }

  // Calls visit(key) for the keys that a batch after the oldest reads, and none before it.
  template <class Visit>
  void visit_first_reads(size_t batch, Visit visit) {
    CHECK(batch > 0 && batch < num_batches(), batch, num_batches());
    for (uint32_t number = batch_ends_[batch - 1]; number != batch_ends_[batch]; ++number) {
      const Ahead& key = keys_[use(number).place];
      if (key.first == number) visit(key.key);
    }
  }

  // Forgets the oldest batch.
  void close() {
    for (; uses_begin_ != batch_ends_.front(); ++uses_begin_) {
      const Use& oldest = uses_.front();
      Ahead& key = keys_[oldest.place];
      key.reads -= oldest.reads;
      CHECK(key.first == uses_begin_ && key.reads >= 0, key.key, key.first, uses_begin_, key.reads);
      CHECK((key.first == key.last) == (key.reads == 0), key.key, key.first, key.last, key.reads);
      if (key.first == key.last) {
        keys_.erase(oldest.place);
      } else {
        key.first = oldest.next;
      }
      uses_.pop_front();
    }
    batch_ends_.pop_front();
    reads_fed_.pop_front();
    look();
  }

  int64_t num_bytes() const { return keys_.num_bytes() + static_cast<int64_t>(uses_.size() * sizeof(Use)); }

 private:
  // reads: in all batches. first, last: numbers of uses. newest: batch of the last.
  struct Ahead {
    int64_t key, reads;
    uint32_t first, last, newest, unused;
  };

  struct Use {
    uint32_t place, batch, next, reads;  // place: of the key; next: its next use, if it has one
  };

  Use& use(uint32_t number) {
    CHECK(number - uses_begin_ < uses_.size(), number, uses_begin_, uses_.size());
    return uses_[number - uses_begin_];
  }

  void look() {
    if (kChecks && is_look_due(static_cast<int64_t>(uses_.size()) + keys_.end())) check_all();
  }

  // The uses of each key lead from its first to its last, and have its reads; together they are all.
  void check_all() {
    size_t count = 0;
    for (uint32_t place = 0; place < keys_.end(); ++place) {
      if (keys_.is_free(place)) continue;
      const Ahead& key = keys_[place];
      int64_t reads = 0;
      for (uint32_t number = key.first;; number = use(number).next) {
        CHECK(use(number).place == place && use(number).reads > 0, key.key, number);
        reads += use(number).reads, ++count;
        if (number == key.last) break;
        CHECK(number - uses_begin_ < use(number).next - uses_begin_, number, use(number).next);
      }
      CHECK(reads == key.reads && use(key.last).batch == key.newest, key.key, reads, key.reads);
    }
    CHECK(count == uses_.size(), count, uses_.size());
    CHECK(batch_ends_.size() == reads_fed_.size(), batch_ends_.size(), reads_fed_.size());
    uint32_t begin = uses_begin_;
    for (const uint32_t end : batch_ends_) {
      CHECK(end - begin <= uses_.size(), begin, end);
      for (uint32_t number = begin; number != end; ++number) CHECK(use(number).batch == use(begin).batch, number);
      begin = end;
    }
    CHECK(begin - uses_begin_ == uses_.size(), begin, uses_begin_, uses_.size());
  }

  KeyedRecords<Ahead> keys_;
  std::deque<Use> uses_;
  uint32_t uses_begin_ = 0;          // number of the first use; numbers go round at 2^32
  std::deque<uint32_t> batch_ends_;  // of each batch: number of the use after its last
  std::deque<int64_t> reads_fed_;
  std::vector<int64_t> fresh_;
};

}  // namespace hotrows
