// Which row sits in which slot of a cache that looks forward: the state behind planning/slots.py, in
// which the rules stand; slots_reference.py is the specification.
//
//   table   row -> its slot and its coming uses; open addressing, 3/5 to 3/4 full, 16 B an entry, or 24
//           where a row's number may need more than 32 bits
//   uses    4 B each: batch after batch, freed in the order in which they came; a use names the next one
//           of its row, and where batches end tells which batch that is
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

class AnySlotMap {
 public:
  virtual ~AnySlotMap() = default;
  virtual void feed(const int64_t* rows, int64_t n) = 0;
  virtual Case take(const int64_t* rows, int64_t n, int64_t* slots, int64_t* rows_in, int64_t* slots_in,
                    int64_t* rows_out, int64_t* slots_out, int64_t* num_in, int64_t* num_out) = 0;
  virtual void warm(const int64_t* rows, const int32_t* ages, int64_t n) = 0;
  virtual void want(const int64_t* rows, int64_t n) = 0;
  virtual void count(const int64_t* rows, int64_t n) = 0;
  virtual int64_t most_counted(int64_t n, int64_t* rows) const = 0;
  virtual int64_t num_resident() const = 0;
  virtual int64_t num_uses() const = 0;
  virtual int64_t num_known() const = 0;
  virtual void bytes(int64_t* bytes) const = 0;
};

// Row: of `RowTable`.
template <class Row>
class SlotMap : public AnySlotMap {
 public:
  // window: how far ahead a next use counts for the order; newest_first: the order of `Newest`.
  SlotMap(int64_t num_slots, int32_t past, int32_t future, int32_t window, bool newest_first, int64_t num_counted)
      : past_(past), future_(future), window_(window), newest_first_(newest_first), slots_(num_slots),
        buckets_(8), used_(past + 1), counts_(num_counted) {}

  void feed(const int64_t* rows, int64_t n) override {
    const int32_t batch = fed_;
    const uint32_t begin = uses_.end();
    open_bucket();
    n = drop_repeats(rows, n);
    for (int64_t i = 0; i < std::min(n, kFar); ++i) table_.prefetch(fresh_[i]);
    for (int64_t i0 = 0; i0 < n; i0 += kBlock) {
      table_.reserve(kBlock);
      uses_.reserve(kBlock);
      const uint32_t use = uses_.end();
      Known* known[kBlock];
      uint32_t before[kBlock], count = 0;
      for (int64_t i = i0; i < std::min(i0 + kBlock, n); ++i) {
        if (i + kFar < n) table_.prefetch(fresh_[i + kFar]);
        Known& row = table_.put(fresh_[i]);
        if (row.last != Uses::kNone) {
          if (Uses::distance(begin, row.last) < Uses::distance(begin, uses_.end())) continue;
          prefetch_for_write(&uses_[row.last]);
        } else if (row.slot >= 0) {
          prefetch_for_write(&slots_[row.slot]);
        }
        known[count] = &row;
        before[count++] = row.last;
        row.last = uses_.push();
      }
      for (uint32_t c = 0; c < count; ++c) append(*known[c], before[c], Uses::after(use, c), batch);
    }
    bucket(batch).uses_end = uses_.end();
  }

  Case take(const int64_t* rows, int64_t n, int64_t* slots, int64_t* rows_in, int64_t* slots_in, int64_t* rows_out,
            int64_t* slots_out, int64_t* num_in, int64_t* num_out) override {
    const int32_t batch = taken_;
    release(batch - past_ - 1);
    const int64_t num_misses = take_uses(rows, n, batch);
    if (num_misses < 0) return kMismatch;

    const Case which = choose_victims(batch, n, num_misses);
    auto& used = used_[batch % (past_ + 1)];
    used.clear();
    size_t v = 0;
    *num_in = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i + kNear < n) prefetch_ahead(found_[i + kNear], rows[i + kNear]);
      if (v + kNear < victims_.size()) prefetch_for_write(&slots_[victims_[v + kNear].slot]);
      Found& row = found_[i];
      if (row.slot >= 0) {
        slots_[row.slot].last_use = batch;
      } else if (which != kPassesThrough) {
        row.slot = num_resident_ < num_slots() ? static_cast<int32_t>(num_resident_++) : victims_[v++].slot;
        row.known->slot = row.slot;
        slots_[row.slot] = {rows[i], is_wanted(rows[i]), batch, kUnknown};
        rows_in[*num_in] = rows[i];
        slots_in[(*num_in)++] = row.slot;
      }
      slots[i] = row.slot;
      if (row.slot < 0) continue;
      slots_[row.slot].next_use = row.next == Uses::kNone ? kUnknown : batch_of(row.next);
      used.push_back(row.slot);
    }
    ++taken_;
    close_bucket(batch, n);
    if (which == kPassesThrough) {
      for (int64_t i = 0; i < n; ++i) forget_unless_used(*find(rows[i]));
    }
    *num_out = leave(rows_out, slots_out);
    return which;
  }

  // Rows ascending and their ages, below 0: into the first slots.
  void warm(const int64_t* rows, const int32_t* ages, int64_t n) override {
    std::vector<Item> items(n);
    table_.reserve(n);
    for (int64_t i = 0; i < n; ++i) {
      Known& row = table_.put(static_cast<Row>(rows[i]));
      row.slot = static_cast<int32_t>(i);
      slots_[i] = {rows[i], false, ages[i], row.last == Uses::kNone ? kUnknown : batch_of(row.first)};
      items[i] = {row.slot, ages[i]};
    }
    num_resident_ = n;
    std::sort(items.begin(), items.end(), [](Item a, Item b) { return a.last_use < b.last_use; });
    for (const Item item : items) list(item);
  }

  // Chooses the wanted rows anew; rows without a known use go over to the queue that is now theirs.
  void want(const int64_t* rows, int64_t n) override {
    std::vector<Item> idle;
    drop_stale(0);
    drop_stale(1);
    std::merge(idle_[0].items.begin(), idle_[0].items.end(), idle_[1].items.begin(), idle_[1].items.end(),
               std::back_inserter(idle), [this](Item a, Item b) {
                 return a.last_use != b.last_use ? a.last_use < b.last_use : slots_[a.slot].row < slots_[b.slot].row;
               });
    wanted_rows_.clear();
    wanted_rows_.reserve(n);
    for (int64_t i = 0; i < n; ++i) wanted_rows_.put(static_cast<Row>(rows[i]));
    for (int64_t s = 0; s < num_resident_; ++s) {
      if (s + kFar < num_resident_) wanted_rows_.prefetch(static_cast<Row>(slots_[s + kFar].row));
      slots_[s].wanted = is_wanted(slots_[s].row);
    }
    idle_[0] = idle_[1] = Queue();
    for (size_t i = 0; i < idle.size(); ++i) {
      if (i + kFar < idle.size()) prefetch(&slots_[idle[i + kFar].slot]);
      list(idle[i]);
    }
  }

  void count(const int64_t* rows, int64_t n) override { counts_.count(rows, n); }
  int64_t most_counted(int64_t n, int64_t* rows) const override { return counts_.most(n, rows); }

  int64_t num_resident() const override { return num_resident_; }
  int64_t num_uses() const override { return uses_.size(); }
  int64_t num_known() const override { return static_cast<int64_t>(table_.size()) - num_resident_; }

  void bytes(int64_t* bytes) const override {
    size_t of_slots = slots_.size() * sizeof(Slot) + buckets_.size() * sizeof(Bucket);
    for (const Queue& queue : idle_) of_slots += queue.items.capacity() * sizeof(Item);
    for (const Bucket& of : buckets_) of_slots += of.items.capacity() * sizeof(Item);
    for (const auto& used : used_) of_slots += used.capacity() * sizeof(int32_t);
    bytes[0] = static_cast<int64_t>(of_slots);
    bytes[1] = static_cast<int64_t>(table_.bytes());
    bytes[2] = static_cast<int64_t>(uses_.bytes());
    bytes[3] = static_cast<int64_t>(wanted_rows_.bytes() + counts_.bytes());
  }

 private:
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  Bucket& bucket(int32_t batch) { return buckets_[batch & (buckets_.size() - 1)]; }

  typename RowTable<Row, Known>::Entry* find(int64_t row) { return table_.find(static_cast<Row>(row)); }
  bool is_wanted(int64_t row) const { return wanted_rows_.size() > 0 && wanted_rows_.find(static_cast<Row>(row)); }

  // A row without a known use is idle: in queue 1 where the policy wants it, else in queue 0.
  bool is_idle(Item item, int queue) const {
    const Slot& slot = slots_[item.slot];
    return slot.last_use == item.last_use && slot.next_use < 0 && slot.wanted == static_cast<uint64_t>(queue);
  }

  bool is_listed(const Slot& slot) const { return slot.last_use < std::max(num_released_, 0); }

  void list(Item item) {
    const Slot& slot = slots_[item.slot];
    if (slot.next_use >= 0) {
      bucket(slot.next_use).items.push_back(item);
      ++bucket(slot.next_use).live;
      ++num_bucketed_;
      farthest_ = std::max(farthest_, slot.next_use);
      return;
    }
    Queue& queue = idle_[slot.wanted];
    if (queue.items.size() > 2 * static_cast<size_t>(queue.live) + 1024) drop_stale(slot.wanted);
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
    std::fill(met_.begin(), met_.end(), std::numeric_limits<Row>::max());
    fresh_.resize(n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Row row = static_cast<Row>(rows[i]);
      Row& met = met_[row * kGolden >> (64 - kMetBits)];
      fresh_[count] = row;
      count += met != row;
      met = row;
    }
    return count;
  }

  // The batch of a use to come: batches have about equally many, so it is near where it would be then.
  int32_t batch_of(uint32_t use) {
    const uint32_t begin = uses_.begin(), at = Uses::distance(begin, use);
    const double share = static_cast<double>(at) / uses_.size();
    int32_t batch = taken_ + static_cast<int32_t>(share * (fed_ - taken_));
    while (batch > taken_ && Uses::distance(begin, bucket(batch - 1).uses_end) > at) --batch;
    while (Uses::distance(begin, bucket(batch).uses_end) <= at) ++batch;
    return batch;
  }

  // Links a use of a row with the last one before it, or kNone.
  void append(Known& row, uint32_t before, uint32_t use, int32_t batch) {
    if (before != Uses::kNone) {
      uses_[before] = use;
      return;
    }
    row.first = use;
    if (row.slot >= 0) learn_next_use(row.slot, batch);
  }

  void learn_next_use(int32_t at, int32_t batch) {
    Slot& slot = slots_[at];
    const bool listed = is_listed(slot);
    if (listed) --idle_[slot.wanted].live;
    slot.next_use = batch;
    if (listed) list({at, slot.last_use});
  }

  // Finds the rows of a batch and takes its uses of them; returns how many have no slot, or -1 where other
  // rows were fed: then the map is of no further use.
  int64_t take_uses(const int64_t* rows, int64_t n, int32_t batch) {
    const uint32_t begin = uses_.begin(), num_uses = Uses::distance(begin, bucket(batch).uses_end);
    if (num_uses != static_cast<uint32_t>(n)) return -1;
    found_.resize(n);
    uses_.prefetch(n);
    int64_t num_misses = 0;
    for (int64_t i = 0; i < std::min(n, kFar); ++i) table_.prefetch(static_cast<Row>(rows[i]));
    for (int64_t i = 0; i < n; ++i) {
      if (i + kFar < n) table_.prefetch(static_cast<Row>(rows[i + kFar]));
      Known* const row = find(rows[i]);
      if (!row || row->last == Uses::kNone || Uses::distance(begin, row->first) >= num_uses) return -1;
      const bool is_last = row->first == row->last;
      row->first = uses_[row->first];
      if (is_last) row->last = Uses::kNone;
      found_[i] = {row, is_last ? Uses::kNone : row->first, row->slot};
      num_misses += row->slot < 0;
    }
    return num_misses;
  }

  void prefetch_ahead(const Found& found, int64_t row) {
    if (found.slot >= 0) {
      prefetch_for_write(&slots_[found.slot]);
    } else {
      prefetch_for_write(found.known);
      if (wanted_rows_.size() > 0) wanted_rows_.prefetch(static_cast<Row>(row));
    }
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
      const int32_t rank = slot.wanted ? 1 : known ? -slot.next_use : INT32_MIN;
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
        --idle_[slot.wanted].live;
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
      if (v + kNear < victims_.size()) table_.prefetch(static_cast<Row>(victims_[v + kNear].row));
      rows_out[v] = victims_[v].row;
      slots_out[v] = victims_[v].slot;
      auto& row = *find(rows_out[v]);
      row.slot = -1;
      forget_unless_used(row);
    }
    return static_cast<int64_t>(victims_.size());
  }

  void forget_unless_used(const typename RowTable<Row, Known>::Entry& row) {
    if (row.slot < 0 && row.last == Uses::kNone) table_.erase(row);
  }

  const int32_t past_, future_, window_;
  const bool newest_first_;

  RowTable<Row, Known> table_;
  Uses uses_;
  Large<Slot> slots_;
  int64_t num_resident_ = 0;     // slots are never given back: the free ones are the last ones
  int32_t fed_ = 0, taken_ = 0, num_released_ = 0;

  Queue idle_[2];
  std::vector<Bucket> buckets_;
  int64_t num_bucketed_ = 0;  // live items in all buckets
  int32_t farthest_ = 0;      // no bucket behind it holds any
  std::vector<std::vector<int32_t>> used_;  // slots of the batches that still pin theirs

  RowTable<Row, Nothing> wanted_rows_;
  RowCounts<Row> counts_;
  std::vector<Row> met_ = std::vector<Row>(size_t{1} << kMetBits), fresh_;
  std::vector<Found> found_;
  std::vector<Victim> victims_, spare_;
};

AnySlotMap* map_of(void* handle) { return static_cast<AnySlotMap*>(handle); }

}  // namespace

// num_rows: all rows are below it.
HOTROWS_API void* hotrows_slots_new(int64_t num_slots, int32_t past, int32_t future, int32_t window,
                                    int32_t newest_first, int64_t num_counted, int64_t num_rows) {
  const auto make = [&](auto row) -> AnySlotMap* {
    return new SlotMap<decltype(row)>(num_slots, past, future, window, newest_first != 0, num_counted);
  };
  return num_rows <= UINT32_MAX ? make(uint32_t{}) : make(uint64_t{});
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
  const AnySlotMap& map = *map_of(handle);
  sizes[0] = map.num_resident();
  sizes[1] = map.num_uses();
  sizes[2] = map.num_known();
}

// bytes [4]: of slots and their order; of known rows; of uses to come; of rows counted and wanted.
HOTROWS_API void hotrows_slots_bytes(void* handle, int64_t* bytes) { map_of(handle)->bytes(bytes); }
