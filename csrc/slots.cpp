// Which row sits in which slot of a cache that looks forward: the state behind planning/slots.py, in
// which the rules stand; slots_reference.py is the specification.
//
//   table   row -> its slot and its coming uses; open addressing, 24 B an entry, up to 3/4 full
//   uses    a ring of 4 B each: batch after batch, freed in the order in which they came; a use names
//           the next one of its row, and where batches end tells which batch that is
//   slots   row, last use, next use: 16 B each
//   lists   the rows that no past batch holds, oldest first: those without a known use in a queue,
//           the others in a bucket for each batch of next use; 8 B each
//
// Lists are never searched: an item that its slot no longer bears out is skipped when it is met. A
// row used by batch j is listed at batch j + past + 1, when the past no longer pins it.
// Table and counts: row_table.h; what stands in them and in the lists: slot_lists.h.
// Everything that a row leads to is prefetched some rows ahead; what is written is random, what is
// read in bulk lies in a row.
#include "row_table.h"
#include "slot_lists.h"

namespace {

using namespace hotrows;
using namespace hotrows::slots;

constexpr int64_t kBlock = 64, kNear = 16;  // rows prefetched ahead
constexpr int kMetBits = 14;

struct Nothing {};

enum Case : int64_t { kMismatch = -1, kOverlapped = 0, kDrained = 1, kPassesThrough = 2 };

class SlotMap {
 public:
  // window: how far ahead a next use counts for the order; newest_first: the order of `Newest`.
  SlotMap(int64_t num_slots, int32_t past, int32_t future, int32_t window, bool newest_first, int64_t num_counted)
      : past_(past), future_(future), window_(window), newest_first_(newest_first), slots_(num_slots),
        wanted_(num_slots), buckets_(8), used_(past + 1), counts_(num_counted) {}

  void feed(const int64_t* rows, int64_t n) {
    const int32_t batch = fed_;
    open_bucket();
    n = drop_repeats(rows, n);
    rows = fresh_.data();
    Known* known[kBlock];
    bool is_first[kBlock];
    for (int64_t i = 0; i < std::min(n, kFar); ++i) table_.prefetch(rows[i]);
    for (int64_t i0 = 0; i0 < n; i0 += kBlock) {
      table_.reserve(kBlock);
      uses_.reserve(kBlock);
      int64_t count = 0;
      for (int64_t i = i0; i < std::min(i0 + kBlock, n); ++i) {
        if (i + kFar < n) table_.prefetch(rows[i + kFar]);
        Known& row = table_[table_.put(rows[i])];
        if (row.newest == batch) continue;
        is_first[count] = row.newest < taken_;
        if (!is_first[count]) {
          prefetch_for_write(&uses_[row.last]);
        } else if (row.slot >= 0) {
          prefetch_for_write(&slots_[row.slot]);
        }
        known[count++] = &row;
        row.newest = batch;
      }
      for (int64_t c = 0; c < count; ++c) append(*known[c], batch, is_first[c]);
    }
    bucket(batch).uses_end = uses_.end();
  }

  Case take(const int64_t* rows, int64_t n, int64_t* slots, int64_t* rows_in, int64_t* slots_in, int64_t* rows_out,
            int64_t* slots_out, int64_t* num_in, int64_t* num_out) {
    const int32_t batch = taken_;
    release(batch - past_ - 1);
    const int64_t num_misses = find_all(rows, n, batch);
    if (num_misses < 0) return kMismatch;

    const Case which = choose_victims(batch, n, num_misses);
    auto& used = used_[batch % (past_ + 1)];
    used.clear();
    size_t v = 0;
    *num_in = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i + kNear < n) prefetch_ahead(found_[i + kNear]);
      if (v + kNear < victims_.size()) prefetch_for_write(&slots_[victims_[v + kNear].slot]);
      Known& row = *found_[i].known;
      row.first = uses_[row.first];
      if (row.slot < 0 && which != kPassesThrough) {
        row.slot = num_resident_ < num_slots() ? static_cast<int32_t>(num_resident_++) : victims_[v++].slot;
        rows_in[*num_in] = rows[i];
        slots_in[(*num_in)++] = row.slot;
        wanted_[row.slot] = is_wanted(rows[i]);
      }
      slots[i] = row.slot;
      if (row.slot < 0) continue;
      slots_[row.slot] = {rows[i], batch, row.newest > batch ? batch_of(row.first) : kUnknown};
      used.push_back(row.slot);
    }
    ++taken_;
    close_bucket(batch, n);
    if (which == kPassesThrough) {
      for (int64_t i = 0; i < n; ++i) forget_unless_used(table_.find(rows[i]));
    }
    *num_out = leave(rows_out, slots_out);
    return which;
  }

  // Rows ascending and their ages, below 0: into the first slots.
  void warm(const int64_t* rows, const int32_t* ages, int64_t n) {
    std::vector<Item> items(n);
    table_.reserve(n);
    for (int64_t i = 0; i < n; ++i) {
      Known& row = table_[table_.put(rows[i])];
      row.slot = static_cast<int32_t>(i);
      slots_[i] = {rows[i], ages[i], row.newest < taken_ ? kUnknown : batch_of(row.first)};
      items[i] = {row.slot, ages[i]};
    }
    num_resident_ = n;
    std::sort(items.begin(), items.end(), [](Item a, Item b) { return a.last_use < b.last_use; });
    for (const Item item : items) list(item);
  }

  // Chooses the wanted rows anew; rows without a known use go over to the queue that is now theirs.
  void want(const int64_t* rows, int64_t n) {
    std::vector<Item> idle;
    drop_stale(0);
    drop_stale(1);
    std::merge(idle_[0].items.begin(), idle_[0].items.end(), idle_[1].items.begin(), idle_[1].items.end(),
               std::back_inserter(idle), [this](Item a, Item b) {
                 return a.last_use != b.last_use ? a.last_use < b.last_use : slots_[a.slot].row < slots_[b.slot].row;
               });
    wanted_rows_.clear();
    wanted_rows_.reserve(n);
    for (int64_t i = 0; i < n; ++i) wanted_rows_.put(rows[i]);
    for (int64_t s = 0; s < num_resident_; ++s) {
      if (s + kFar < num_resident_) wanted_rows_.prefetch(slots_[s + kFar].row);
      wanted_[s] = is_wanted(slots_[s].row);
    }
    idle_[0] = idle_[1] = Queue();
    for (const Item item : idle) list(item);
  }

  void count(const int64_t* rows, int64_t n) { counts_.count(rows, n); }
  int64_t most_counted(int64_t n, int64_t* rows) const { return counts_.most(n, rows); }

  int64_t num_resident() const { return num_resident_; }
  int64_t num_uses() const { return uses_.end() - uses_.begin(); }
  int64_t num_known() const { return static_cast<int64_t>(table_.size()) - num_resident_; }

  int64_t num_bytes() const {
    size_t bytes = table_.bytes() + wanted_rows_.bytes() + counts_.bytes() + uses_.bytes();
    bytes += slots_.size() * sizeof(Slot) + wanted_.size() + buckets_.size() * sizeof(Bucket);
    for (const Queue& queue : idle_) bytes += queue.items.capacity() * sizeof(Item);
    for (const Bucket& of : buckets_) bytes += of.items.capacity() * sizeof(Item);
    for (const auto& used : used_) bytes += used.capacity() * sizeof(int32_t);
    return static_cast<int64_t>(bytes);
  }

 private:
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  Bucket& bucket(int32_t batch) { return buckets_[batch & (buckets_.size() - 1)]; }

  bool is_wanted(int64_t row) const { return wanted_rows_.size() > 0 && wanted_rows_.find(row) != wanted_rows_.kNone; }

  // A row without a known use is idle: in queue 1 where the policy wants it, else in queue 0.
  bool is_idle(Item item, int queue) const {
    const Slot& slot = slots_[item.slot];
    return slot.last_use == item.last_use && slot.next_use < 0 && wanted_[item.slot] == queue;
  }

  bool is_listed(const Slot& slot) const { return slot.last_use < std::max(num_released_, 0); }

  void list(Item item) {
    const int32_t next_use = slots_[item.slot].next_use;
    if (next_use >= 0) {
      bucket(next_use).items.push_back(item);
      ++bucket(next_use).live;
      ++num_bucketed_;
      farthest_ = std::max(farthest_, next_use);
      return;
    }
    Queue& queue = idle_[wanted_[item.slot]];
    if (queue.items.size() > 2 * static_cast<size_t>(queue.live) + 1024) drop_stale(wanted_[item.slot]);
    queue.items.push_back(item);
    ++queue.live;
  }

  void drop_stale(int number) {
    Queue& queue = idle_[number];
    size_t kept = 0;
    for (size_t i = queue.head; i < queue.items.size(); ++i) {
      if (i + kFar < queue.items.size()) prefetch(&slots_[queue.items[i + kFar].slot]);
      if (is_idle(queue.items[i], number)) queue.items[kept++] = queue.items[i];
    }
    queue.items.resize(kept);
    queue.head = 0;
  }

  // Lists the rows last used by a batch that no longer pins them.
  void release(int32_t batch) {
    num_released_ = batch + 1;
    if (batch < 0) return;
    const auto& used = used_[batch % (past_ + 1)];
    for (size_t i = 0; i < used.size(); ++i) {
      if (i + kNear < used.size()) prefetch(&slots_[used[i + kNear]]);
      if (slots_[used[i]].last_use == batch) list({used[i], batch});
    }
  }

  void open_bucket() {
    if (fed_ - taken_ + 1 >= static_cast<int32_t>(buckets_.size())) {
      std::vector<Bucket> wider(buckets_.size() * 2);
      for (int32_t b = taken_; b < fed_; ++b) wider[b & (wider.size() - 1)] = std::move(bucket(b));
      buckets_.swap(wider);
    }
    bucket(fed_++) = Bucket();
  }

  void close_bucket(int32_t batch, int64_t num_rows) {
    num_bucketed_ -= bucket(batch).live;
    bucket(batch) = Bucket();
    uses_.pop(static_cast<uint32_t>(num_rows));
  }

  // Leaves in `fresh_` the rows that a small memory of the last ones met does not know: most repeats
  // are of few rows.
  int64_t drop_repeats(const int64_t* rows, int64_t n) {
    std::fill(met_.begin(), met_.end(), -1);
    fresh_.resize(n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      int64_t& met = met_[static_cast<uint64_t>(rows[i]) * kGolden >> (64 - kMetBits)];
      fresh_[count] = rows[i];
      count += met != rows[i];
      met = rows[i];
    }
    return count;
  }

  // The batch of a use to come: batches have about equally many, so it is near where it would be then.
  int32_t batch_of(uint32_t use) {
    const uint32_t begin = uses_.begin(), at = use - begin;
    const double share = static_cast<double>(at) / (uses_.end() - begin);
    int32_t batch = taken_ + static_cast<int32_t>(share * (fed_ - taken_));
    while (batch > taken_ && bucket(batch - 1).uses_end - begin > at) --batch;
    while (bucket(batch).uses_end - begin <= at) ++batch;
    return batch;
  }

  void append(Known& row, int32_t batch, bool is_first) {
    const uint32_t use = uses_.push();
    if (is_first) {
      row.first = use;
      if (row.slot >= 0) learn_next_use(row.slot, batch);
    } else {
      uses_[row.last] = use;
    }
    row.last = use;
  }

  void learn_next_use(int32_t at, int32_t batch) {
    Slot& slot = slots_[at];
    const bool listed = is_listed(slot);
    if (listed) --idle_[wanted_[at]].live;
    slot.next_use = batch;
    if (listed) list({at, slot.last_use});
  }

  // Finds the rows of a batch; returns how many have no slot, or -1 where other rows were fed.
  int64_t find_all(const int64_t* rows, int64_t n, int32_t batch) {
    const uint32_t begin = uses_.begin();
    if (bucket(batch).uses_end - begin != static_cast<uint32_t>(n)) return -1;
    found_.resize(n);
    int64_t num_misses = 0;
    for (int64_t i = 0; i < std::min(n, kFar); ++i) table_.prefetch(rows[i]);
    for (int64_t i = 0; i < n; ++i) {
      if (i + kFar < n) table_.prefetch(rows[i + kFar]);
      const size_t at = table_.find(rows[i]);
      if (at == table_.kNone) return -1;
      Known& row = table_[at];
      found_[i] = {&row, row.first, row.slot};
      if (row.newest < batch || row.first - begin >= static_cast<uint32_t>(n)) return -1;
      num_misses += row.slot < 0;
    }
    return num_misses;
  }

  void prefetch_ahead(const Found& row) {
    prefetch_for_write(row.known);
    prefetch(&uses_[row.first]);
    if (row.slot >= 0) prefetch_for_write(&slots_[row.slot]);
  }

  Case choose_victims(int32_t batch, int64_t num_rows, int64_t num_misses) {
    victims_.clear();
    if (num_rows > num_slots()) return kPassesThrough;
    const int64_t needed = num_misses - (num_slots() - num_resident_);
    if (needed <= 0) return kOverlapped;
    int64_t may_go = idle_[0].live + idle_[1].live + num_bucketed_;
    for (int32_t b = batch; b < std::min(batch + future_ + 1, fed_); ++b) may_go -= bucket(b).live;
    if (needed > may_go) {
      drain(batch, needed);
      return kDrained;
    }
    take_idle(0, needed);
    take_idle(1, needed);
    take_farthest(needed);
    return kOverlapped;
  }

  void take_idle(int number, size_t needed) {
    Queue& queue = idle_[number];
    while (victims_.size() < needed && queue.live > 0) {
      if (newest_first_) {
        if (is_idle(queue.items.back(), number)) choose(queue.items.back(), queue.live);
        queue.items.pop_back();
      } else {
        const size_t i = queue.head++;
        if (i + kNear < queue.items.size()) prefetch(&slots_[queue.items[i + kNear].slot]);
        if (is_idle(queue.items[i], number)) choose(queue.items[i], queue.live);
      }
    }
  }

  void take_farthest(size_t needed) {
    for (; victims_.size() < needed; --farthest_) {
      Bucket& far = bucket(farthest_);
      if (far.live == 0) continue;
      const size_t begin = victims_.size();
      for (const Item item : far.items) {
        const Slot& slot = slots_[item.slot];
        if (slot.last_use == item.last_use && slot.next_use == farthest_) choose(item, far.live);
      }
      num_bucketed_ -= victims_.size() - begin;
      far.items.clear();
      if (victims_.size() <= needed) {
        std::sort(victims_.begin() + begin, victims_.end(), is_older);
        continue;
      }
      std::nth_element(victims_.begin() + begin, victims_.begin() + needed, victims_.end(), is_older);
      std::sort(victims_.begin() + begin, victims_.begin() + needed, is_older);
      for (size_t v = needed; v < victims_.size(); ++v) list({victims_[v].slot, victims_[v].last_use});
      victims_.resize(needed);
      return;
    }
  }

  void choose(Item item, int64_t& live) {
    victims_.push_back({0, item.last_use, slots_[item.slot].row, item.slot});
    --live;
  }

  // Where the pins leave too few rows: any may go that the batch itself does not use.
  void drain(int32_t batch, size_t needed) {
    for (int64_t s = 0; s < num_resident_; ++s) {
      const Slot& slot = slots_[s];
      if (slot.next_use == batch) continue;
      const bool known = slot.next_use >= 0 && slot.next_use - batch <= window_;
      const int32_t rank = wanted_[s] ? 1 : known ? -slot.next_use : INT32_MIN;
      victims_.push_back({rank, slot.last_use, slot.row, static_cast<int32_t>(s)});
    }
    const auto goes_first = [this](const Victim& a, const Victim& b) {
      return newest_first_ ? is_older(b, a) : is_older(a, b);
    };
    std::nth_element(victims_.begin(), victims_.begin() + needed, victims_.end(), goes_first);
    victims_.resize(needed);
    std::sort(victims_.begin(), victims_.end(), goes_first);
    for (const Victim& victim : victims_) {
      const Slot& slot = slots_[victim.slot];
      if (!is_listed(slot)) continue;
      if (slot.next_use < 0) {
        --idle_[wanted_[victim.slot]].live;
      } else {
        --bucket(slot.next_use).live;
        --num_bucketed_;
      }
    }
  }

  // Takes the victims' slots from them; returns how many there were.
  int64_t leave(int64_t* rows_out, int64_t* slots_out) {
    sort_runs(victims_, spare_, [](const Victim& a, const Victim& b) { return a.row < b.row; });
    for (size_t v = 0; v < victims_.size(); ++v) {
      if (v + kNear < victims_.size()) table_.prefetch(victims_[v + kNear].row);
      rows_out[v] = victims_[v].row;
      slots_out[v] = victims_[v].slot;
      const size_t at = table_.find(rows_out[v]);
      table_[at].slot = -1;
      forget_unless_used(at);
    }
    return static_cast<int64_t>(victims_.size());
  }

  void forget_unless_used(size_t at) {
    if (table_[at].slot < 0 && table_[at].newest < taken_) table_.erase(at);
  }

  const int32_t past_, future_, window_;
  const bool newest_first_;

  RowTable<Known> table_;
  Uses uses_;
  Large<Slot> slots_;
  std::vector<uint8_t> wanted_;  // by slot: whether the policy wants its row
  int64_t num_resident_ = 0;     // slots are never given back: the free ones are the last ones
  int32_t fed_ = 0, taken_ = 0, num_released_ = 0;

  Queue idle_[2];
  std::vector<Bucket> buckets_;
  int64_t num_bucketed_ = 0;  // live items in all buckets
  int32_t farthest_ = 0;      // no bucket behind it holds any
  std::vector<std::vector<int32_t>> used_;  // slots of the batches that still pin theirs

  RowTable<Nothing> wanted_rows_;
  RowCounts counts_;
  std::vector<int64_t> met_ = std::vector<int64_t>(size_t{1} << kMetBits), fresh_;
  std::vector<Found> found_;
  std::vector<Victim> victims_, spare_;
};

SlotMap* map_of(void* handle) { return static_cast<SlotMap*>(handle); }

}  // namespace

HOTROWS_API void* hotrows_slots_new(int64_t num_slots, int32_t past, int32_t future, int32_t window,
                                    int32_t newest_first, int64_t num_counted) {
  return new SlotMap(num_slots, past, future, window, newest_first != 0, num_counted);
}

HOTROWS_API void hotrows_slots_free(void* handle) { delete map_of(handle); }

HOTROWS_API void hotrows_slots_feed(void* handle, const int64_t* rows, int64_t n) { map_of(handle)->feed(rows, n); }

// slots, rows_in, slots_in, rows_out, slots_out: [n] each. Returns 0, 1 where the pipeline must be
// drained first, 2 where the batch passes through, -1 where these are not the rows that were fed.
HOTROWS_API int64_t hotrows_slots_take(void* handle, const int64_t* rows, int64_t n, int64_t* slots, int64_t* rows_in,
                                       int64_t* slots_in, int64_t* rows_out, int64_t* slots_out, int64_t* num_in,
                                       int64_t* num_out) {
  return map_of(handle)->take(rows, n, slots, rows_in, slots_in, rows_out, slots_out, num_in, num_out);
}

HOTROWS_API void hotrows_slots_warm(void* handle, const int64_t* rows, const int32_t* ages, int64_t n) {
  map_of(handle)->warm(rows, ages, n);
}

HOTROWS_API void hotrows_slots_want(void* handle, const int64_t* rows, int64_t n) { map_of(handle)->want(rows, n); }

HOTROWS_API void hotrows_slots_count(void* handle, const int64_t* rows, int64_t n) { map_of(handle)->count(rows, n); }

// Fills rows [n]; returns how many there are.
HOTROWS_API int64_t hotrows_slots_most_counted(void* handle, int64_t n, int64_t* rows) {
  return map_of(handle)->most_counted(n, rows);
}

// sizes [3]: rows with a slot; uses to come; rows known for these alone.
HOTROWS_API void hotrows_slots_sizes(void* handle, int64_t* sizes) {
  const SlotMap& map = *map_of(handle);
  sizes[0] = map.num_resident();
  sizes[1] = map.num_uses();
  sizes[2] = map.num_known();
}

HOTROWS_API int64_t hotrows_slots_num_bytes(void* handle) { return map_of(handle)->num_bytes(); }
