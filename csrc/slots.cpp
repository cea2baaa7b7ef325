// Which row sits in which slot of a cache that looks forward: the state behind planning/slots.py, in
// which the rules stand; slots_reference.py is the specification.
//
//   table   row -> its slot, or without one its last use to come; open addressing, 3/5 to 3/4 full, 8 B an
//           entry, or 16 where a row's number may need more than 32 bits
//   uses    4 B each: batch after batch, freed in the order in which they came; a use names the next one
//           of its row, and where batches end tells which batch that is. Of a row without a slot the last
//           use names the first
//   slots   row, last use, first and last use to come: 16 B each, or 24
//   lists   the rows that no past batch holds, oldest first: those without a known use in a queue,
//           the others in a bucket for each batch of next use; 8 B each
//   hints   4 B a slot, where it is told with each batch when its rows are used next: rows without a known use
//           are then in a queue for each batch of their next use, and go from the farthest on. A hint may be
//           wrong: it decides on nothing but the order
//
// Lists are never searched: an item that its slot no longer bears out is skipped when it is met. A
// row used by batch j is listed at batch j + past + 1, when the past no longer pins it.
// Table and counts: row_table.h; what stands in them and in the lists: slot_lists.h.
// Everything that a row leads to is prefetched some rows ahead; what is written is random, what is
// read in bulk lies in a row.
#include "codes.h"
#include "row_table.h"
#include "slot_lists.h"

namespace {

using namespace hotrows;
using namespace hotrows::slots;

constexpr int64_t kBlock = 256;  // rows fed at a time
constexpr int kMetBits = 14;

struct Nothing {};

constexpr int32_t kNever = INT32_MAX;  // a hint

using Case = SlotCase;

class AnySlotMap {
 public:
  virtual ~AnySlotMap() = default;
  virtual void feed(const int64_t* rows, int64_t n) = 0;
  virtual Case take(const int64_t* rows, const int32_t* hints, int64_t n, int64_t* slots, int64_t* rows_in,
                    int64_t* slots_in, int64_t* rows_out, int64_t* slots_out, int64_t* num_in, int64_t* num_out) = 0;
  virtual void residents(int64_t* rows) const = 0;
  virtual void hint(const int64_t* rows, const int32_t* hints, int64_t n) = 0;
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
  using Slot = slots::Slot<Row>;

 public:
  // window: how far ahead a next use counts for the order; newest_first: the order of `Newest`.
  // hinted: whether `take` is told of next uses.
  SlotMap(int64_t num_slots, int32_t past, int32_t future, int32_t window, bool newest_first, bool hinted,
          int64_t num_counted)
      : past_(past), future_(future), window_(window), newest_first_(newest_first), slots_(num_slots),
        hints_(hinted ? num_slots : 0), hinted_(8), buckets_(8), used_(past + 1), counts_(num_counted) {
    CHECK(num_slots > 0 && num_slots < INT32_MAX && num_counted >= 0, num_slots, num_counted);
    CHECK(past >= 0 && future >= 0 && window >= 0, past, future, window);
  }

  void feed(const int64_t* rows, int64_t n) override {
    const int32_t batch = fed_;
    const uint32_t begin = uses_.end();
    CHECK(are_within(rows, n, 0, std::min<uint64_t>(std::numeric_limits<Row>::max(), INT64_MAX)));
    open_bucket();
    n = drop_repeats(rows, n);
    for (int64_t i = 0; i < std::min(n, kFar); ++i) table_.prefetch(fresh_[i]);
    for (int64_t i0 = 0; i0 < n; i0 += kBlock) {
      table_.reserve(kBlock);
      uses_.reserve(kBlock);
      int32_t with_slot[kBlock];
      std::pair<uint32_t, uint32_t> linked[kBlock];  // a row's last use so far, and its new one
      int num_with_slot = 0, num_linked = 0;
      const auto is_earlier = [&](uint32_t use) {
        return Uses::distance(begin, use) >= Uses::distance(begin, uses_.end());
      };
      const auto append = [&](uint32_t last) {
        prefetch_for_write(&uses_[last]);
        linked[num_linked] = {last, uses_.push()};
        return linked[num_linked++].second;
      };
      for (int64_t i = i0; i < std::min(i0 + kBlock, n); ++i) {
        if (i + kFar < n) table_.prefetch(fresh_[i + kFar]);
        Place& place = table_.put(fresh_[i]);
        if (place.has_slot()) {
          prefetch_for_write(&slots_[place.slot()]);
          with_slot[num_with_slot++] = place.slot();
        } else if (place.is_new()) {
          const uint32_t use = uses_.push();
          uses_[use] = use;
          place = Place::of_use(use);
        } else if (is_earlier(place.last())) {
          place = Place::of_use(append(place.last()));
        }
      }
      for (int s = 0; s < num_with_slot; ++s) {
        Slot& slot = slots_[with_slot[s]];
        if (slot.last == Uses::kNone) {
          learn_first_use(with_slot[s], uses_.push(), batch);
        } else if (is_earlier(slot.last)) {
          slot.last = append(slot.last);
        }
      }
      for (int u = 0; u < num_linked; ++u) {
        const auto [last, use] = linked[u];
        CHECK(is_earlier(last) && !is_earlier(use), begin, last, use);
        uses_[use] = uses_[last];
        uses_[last] = use;
      }
    }
    CHECK(Uses::distance(begin, uses_.end()) <= static_cast<uint64_t>(n), begin, uses_.end(), n);
    bucket(batch).uses_end = uses_.end();
    look();
  }

  Case take(const int64_t* rows, const int32_t* hints, int64_t n, int64_t* slots, int64_t* rows_in, int64_t* slots_in,
            int64_t* rows_out, int64_t* slots_out, int64_t* num_in, int64_t* num_out) override {
    const int32_t batch = taken_;
    CHECK(batch < fed_, batch, fed_);
    release(batch - past_ - 1);
    const int64_t num_misses = find_rows(rows, n, batch);
    if (num_misses < 0) return Case::mismatch;
    [[maybe_unused]] const int64_t resident_before = num_resident_;

    const Case which = choose_victims(batch, n, num_misses);
    auto& used = used_[batch % (past_ + 1)];
    used.clear();
    size_t v = 0;
    *num_in = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i + kFar < n) prefetch_ahead(found_[i + kFar], rows[i + kFar]);
      if (v + kFar < victims_.size()) prefetch_for_write(&slots_[victims_[v + kFar].slot]);
      Place place = found_[i].was;
      const bool is_miss = !place.has_slot();
      const uint32_t last = is_miss ? place.last() : slots_[place.slot()].last;
      if (last == Uses::kNone) return Case::mismatch;
      const uint32_t first = is_miss ? uses_[last] : slots_[place.slot()].first;
      CHECK(is_miss || slots_[place.slot()].row == static_cast<Row>(rows[i]), i, rows[i]);  // no victim of this batch
      if (Uses::distance(uses_.begin(), first) >= static_cast<uint32_t>(n)) return Case::mismatch;
      const uint32_t next = uses_[first], left = first == last ? Uses::kNone : last;
      if (is_miss && which == Case::passes_through) {
        slots[i] = -1;
        uses_[last] = next;
        if (left == Uses::kNone) *found_[i].place = Place();
        continue;
      }
      if (is_miss) {
        CHECK(num_resident_ < num_slots() || v < victims_.size(), v, victims_.size());
        place = Place::of_slot(num_resident_ < num_slots() ? num_resident_++ : vacate(victims_[v++]));
        *found_[i].place = place;
        slots_[place.slot()].row = static_cast<Row>(rows[i]);
        slots_[place.slot()].wanted = is_wanted(rows[i]);
        rows_in[*num_in] = rows[i];
        slots_in[(*num_in)++] = place.slot();
      }
      Slot& slot = slots_[place.slot()];
      slot.last_use = batch;
      slot.first = next;
      slot.last = left;
      if (!hints_.empty()) hints_[place.slot()] = hints ? hints[i] : kNever;
      slots[i] = place.slot();
      used.push_back(place.slot());
    }
    CHECK(v == victims_.size() && *num_in <= n, v, victims_.size(), *num_in, n);
    CHECK(which == Case::passes_through ? *num_in == 0 : *num_in == num_misses, *num_in, num_misses);
    ++taken_;
    close_bucket(batch, n);
    pass_hints();
    if (which == Case::passes_through) {
      for (int64_t i = 0; i < n; ++i) {
        const auto& entry = *find(rows[i]);
        if (entry.is_new()) table_.erase(entry);
      }
    }
    *num_out = leave(rows_out, slots_out);
    CHECK(num_resident_ == resident_before + *num_in - *num_out, num_resident_, resident_before, *num_in, *num_out);
    CHECK(rises(rows_out, *num_out));
    look();
    return which;
  }

  // Rows ascending and their ages, below 0: into the first slots.
  void warm(const int64_t* rows, const int32_t* ages, int64_t n) override {
    CHECK(num_resident_ == 0 && taken_ == 0 && n <= num_slots(), num_resident_, taken_, n);
    CHECK(rises(rows, n) && are_within(ages, n, INT32_MIN, 0));
    std::vector<Item> items(n);
    table_.reserve(n);
    for (int64_t i = 0; i < n; ++i) {
      Place& place = table_.put(static_cast<Row>(rows[i]));
      const uint32_t last = place.is_new() ? Uses::kNone : place.last();
      slots_[i] = {static_cast<Row>(rows[i]), ages[i], last == Uses::kNone ? 0 : uses_[last], false, last};
      place = Place::of_slot(i);
      items[i] = {static_cast<int32_t>(i), ages[i]};
    }
    num_resident_ = n;
    std::fill(hints_.begin(), hints_.end(), kNever);
    std::sort(items.begin(), items.end(), [](Item a, Item b) { return a.last_use < b.last_use; });
    for (const Item item : items) list(item, next_use(slots_[item.slot]));
    look();
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
    std::vector<bool> wanted(num_resident_);
    for (int64_t i = 0; i < n; ++i) {
      if (i + kFar < n) table_.prefetch(static_cast<Row>(rows[i + kFar]));
      wanted_rows_.put(static_cast<Row>(rows[i]));
      const Place* place = find(rows[i]);
      if (place && place->has_slot()) wanted[place->slot()] = true;
    }
    for (int64_t s = 0; s < num_resident_; ++s) slots_[s].wanted = wanted[s];
    for (Queue& queue : idle_) queue.items.clear(), queue.head = queue.live = 0;
    for (const Item item : idle) {
      idle_[wanted[item.slot]].items.push_back(item);
      ++idle_[wanted[item.slot]].live;
    }
    look();
  }

  void residents(int64_t* rows) const override {
    for (int64_t s = 0; s < num_resident_; ++s) rows[s] = slots_[s].row;
    std::sort(rows, rows + num_resident_);
  }

  // Says when each row that has a slot, ascending, is used next; lists those anew that no known use lists.
  void hint(const int64_t* rows, const int32_t* hints, int64_t n) override {
    CHECK(n == num_resident_ && !hints_.empty() && rises(rows, n), n, num_resident_);
    std::vector<Item> idle;
    for (int64_t i = 0; i < n; ++i) {
      if (i + kFar < n) table_.prefetch(static_cast<Row>(rows[i + kFar]));
      const int32_t s = find(rows[i])->slot();
      hints_[s] = hints[i];
      if (is_listed(slots_[s]) && slots_[s].last == Uses::kNone) idle.push_back({s, slots_[s].last_use});
    }
    for (Queue& queue : idle_) queue = Queue();
    for (Queue& queue : hinted_) queue = Queue();
    num_hinted_ = 0;
    std::stable_sort(idle.begin(), idle.end(), [](Item a, Item b) { return a.last_use < b.last_use; });
    for (const Item item : idle) list(item, kUnknown);
    look();
  }

  void count(const int64_t* rows, int64_t n) override { counts_.count(rows, n); }
  int64_t most_counted(int64_t n, int64_t* rows) const override { return counts_.most(n, rows); }

  int64_t num_resident() const override { return num_resident_; }
  int64_t num_uses() const override { return uses_.size(); }
  int64_t num_known() const override { return static_cast<int64_t>(table_.size()) - num_resident_; }

  void bytes(int64_t* bytes) const override {
    size_t of_slots = slots_.size() * sizeof(Slot) + buckets_.size() * sizeof(Bucket);
    for (const Queue& queue : idle_) of_slots += queue.items.capacity() * sizeof(Item);
    for (const Queue& queue : hinted_) of_slots += queue.items.capacity() * sizeof(Item);
    of_slots += hints_.size() * sizeof(int32_t) + hinted_.size() * sizeof(Queue);
    for (const Bucket& of : buckets_) of_slots += of.items.capacity() * sizeof(Item);
    for (const auto& used : used_) of_slots += used.capacity() * sizeof(int32_t);
    bytes[0] = static_cast<int64_t>(of_slots);
    bytes[1] = static_cast<int64_t>(table_.bytes());
    bytes[2] = static_cast<int64_t>(uses_.bytes());
    bytes[3] = static_cast<int64_t>(wanted_rows_.bytes() + counts_.bytes());
  }

 private:
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  Bucket& bucket(int32_t batch) {
    CHECK(batch >= taken_ - 1 && batch < fed_, batch, taken_, fed_);
    return buckets_[batch & (buckets_.size() - 1)];
  }

  typename RowTable<Row, Place>::Entry* find(int64_t row) { return table_.find(static_cast<Row>(row)); }
  bool is_wanted(int64_t row) const { return wanted_rows_.size() > 0 && wanted_rows_.find(static_cast<Row>(row)); }

  // A row without a known use is idle: in queue 1 where the policy wants it, else in queue 0.
  bool is_idle(Item item, int queue) const {
    const Slot& slot = slots_[item.slot];
    return slot.last_use == item.last_use && slot.last == Uses::kNone && slot.wanted == static_cast<uint64_t>(queue);
  }

  // The queue of the idle rows with a hint.
  Queue& hinted(int32_t batch) {
    CHECK(batch >= taken_ - 1 && batch - taken_ < static_cast<int32_t>(hinted_.size()) - 1, batch, taken_);
    return hinted_[batch & (hinted_.size() - 1)];
  }
  bool has_hint(int32_t slot) const { return !hints_.empty() && hints_[slot] != kNever && hints_[slot] >= taken_; }
  bool is_hinted(Item item, int32_t batch) const {
    const Slot& slot = slots_[item.slot];
    return slot.last_use == item.last_use && slot.last == Uses::kNone && hints_[item.slot] == batch;
  }

  // An idle row goes, or is known to be used.
  void leave_idle(int32_t at) {
    if (!has_hint(at)) {
      --idle_[slots_[at].wanted].live;
      return;
    }
    --hinted(hints_[at]).live;
    --num_hinted_;
  }

  void list_hinted(Item item, int32_t batch) {
    if (batch - taken_ >= static_cast<int32_t>(hinted_.size()) - 1) {
      size_t size = hinted_.size();
      while (batch - taken_ >= static_cast<int32_t>(size) - 1) size *= 2;
      std::vector<Queue> wider(size);
      for (int32_t b = taken_; b - taken_ < static_cast<int32_t>(hinted_.size()) - 1; ++b)
        wider[b & (size - 1)] = std::move(hinted(b));
      hinted_.swap(wider);
    }
    hinted(batch).items.push_back(item);
    ++hinted(batch).live;
    ++num_hinted_;
    farthest_hint_ = std::max(farthest_hint_, batch);
  }

  // Rows whose hint was the batch that is behind, which did not use them, are as rows without a hint.
  void pass_hints() {
    if (hints_.empty()) return;
    const int32_t batch = taken_ - 1;
    Queue passed;
    std::swap(passed, hinted(batch));
    num_hinted_ -= passed.live;
    for (size_t i = passed.head; i < passed.items.size() && passed.live > 0; ++i) {
      if (!is_hinted(passed.items[i], batch)) continue;
      hints_[passed.items[i].slot] = kNever;
      list(passed.items[i], kUnknown);
      --passed.live;
    }
  }

  bool is_listed(const Slot& slot) const { return slot.last_use < std::max(num_released_, 0); }

  void list(Item item, int32_t next_use) {
    CHECK(item.slot < num_resident_ && slots_[item.slot].last_use == item.last_use, item.slot, item.last_use);
    if (next_use >= 0) {
      bucket(next_use).items.push_back(item);
      ++bucket(next_use).live;
      ++num_bucketed_;
      farthest_ = std::max(farthest_, next_use);
      return;
    }
    if (has_hint(item.slot)) {
      list_hinted(item, hints_[item.slot]);
      return;
    }
    const int number = slots_[item.slot].wanted;
    Queue& queue = idle_[number];
    if (queue.items.size() > 2 * static_cast<size_t>(queue.live) + 1024) drop_stale(number);
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
    CHECK(static_cast<int64_t>(kept) == queue.live, number, kept, queue.live);
    queue.items.resize(kept);
    queue.head = 0;
  }

  // Lists the rows last used by a batch that no longer pins them.
  void release(int32_t batch) {
    num_released_ = batch + 1;
    if (batch < 0) return;
    const auto& used = used_[batch % (past_ + 1)];
    for (size_t i = 0; i < used.size(); ++i) {
      if (i + kFar < used.size()) prefetch(&slots_[used[i + kFar]]);
      const Slot& slot = slots_[used[i]];
      if (slot.last_use == batch) list({used[i], batch}, next_use(slot));
    }
  }

  void open_bucket() {
    if (fed_ - taken_ + 1 >= static_cast<int32_t>(buckets_.size())) {
      std::vector<Bucket> wider(buckets_.size() * 2);
      for (int32_t b = taken_; b < fed_; ++b) wider[b & (wider.size() - 1)] = std::move(bucket(b));
      buckets_.swap(wider);
    }
    CHECK(fed_ - taken_ < static_cast<int32_t>(buckets_.size()), fed_, taken_, buckets_.size());
    bucket(fed_++) = Bucket();
  }

  void close_bucket(int32_t batch, int64_t num_rows) {
    num_bucketed_ -= bucket(batch).live;
    CHECK(num_bucketed_ >= 0, num_bucketed_);
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

  // The batch that uses the slot's row next, or kUnknown.
  int32_t next_use(const Slot& slot) { return slot.last == Uses::kNone ? kUnknown : batch_of(slot.first); }

  // The batch of a use to come: batches have about equally many, so it is near where it would be then.
  int32_t batch_of(uint32_t use) {
    const uint32_t begin = uses_.begin(), at = Uses::distance(begin, use);
    CHECK(at < uses_.size(), at, uses_.size());
    const double share = static_cast<double>(at) / uses_.size();
    int32_t batch = taken_ + static_cast<int32_t>(share * (fed_ - taken_));
    while (batch > taken_ && Uses::distance(begin, bucket(batch - 1).uses_end) > at) --batch;
    while (Uses::distance(begin, bucket(batch).uses_end) <= at) ++batch;
    return batch;
  }

  void learn_first_use(int32_t at, uint32_t use, int32_t batch) {
    Slot& slot = slots_[at];
    CHECK(slot.last == Uses::kNone, at, slot.last);
    const bool listed = is_listed(slot);
    if (listed) leave_idle(at);
    slot.first = slot.last = use;
    if (listed) list({at, slot.last_use}, batch);
  }

  // Finds the rows of a batch; returns how many have no slot, or -1 where other rows were fed: then, or where
  // their uses say so, the map is of no further use.
  int64_t find_rows(const int64_t* rows, int64_t n, int32_t batch) {
    if (Uses::distance(uses_.begin(), bucket(batch).uses_end) != static_cast<uint32_t>(n)) return -1;
    found_.resize(n);
    uses_.prefetch(n);
    int64_t num_misses = 0;
    for (int64_t i = 0; i < std::min(n, kFar); ++i) table_.prefetch(static_cast<Row>(rows[i]));
    for (int64_t i = 0; i < n; ++i) {
      if (i + kFar < n) table_.prefetch(static_cast<Row>(rows[i + kFar]));
      Place* const place = find(rows[i]);
      if (!place || (i > 0 && rows[i] <= rows[i - 1])) return -1;
      found_[i] = {place, *place};
      num_misses += !place->has_slot();
    }
    return num_misses;
  }

  void prefetch_ahead(const Found& found, int64_t row) {
    if (found.was.has_slot()) {
      prefetch_for_write(&slots_[found.was.slot()]);
    } else {
      prefetch_for_write(found.place);
      prefetch(&uses_[found.was.last()]);
      if (wanted_rows_.size() > 0) wanted_rows_.prefetch(static_cast<Row>(row));
    }
  }

  Case choose_victims(int32_t batch, int64_t num_rows, int64_t num_misses) {
    victims_.clear();
    if (num_rows > num_slots()) return Case::passes_through;
    const int64_t needed = num_misses - (num_slots() - num_resident_);
    if (needed <= 0) return Case::overlapped;
    int64_t may_go = idle_[0].live + idle_[1].live + num_hinted_ + num_bucketed_;
    for (int32_t b = batch; b < std::min(batch + future_ + 1, fed_); ++b) may_go -= bucket(b).live;
    if (needed > may_go) {
      drain(batch, needed);
      return Case::drained;
    }
    take_idle(0, needed);
    take_hinted(needed);
    take_idle(1, needed);
    take_farthest(needed);
    CHECK(static_cast<int64_t>(victims_.size()) == needed, victims_.size(), needed);
    return Case::overlapped;
  }

  void take_idle(int number, size_t needed) {
    Queue& queue = idle_[number];
    while (victims_.size() < needed && queue.live > 0) {
      CHECK(queue.head < queue.items.size(), number, queue.head, queue.live);
      if (newest_first_) {
        if (is_idle(queue.items.back(), number)) choose(queue.items.back(), queue.live);
        queue.items.pop_back();
      } else {
        const size_t i = queue.head++;
        if (i + kFar < queue.items.size()) prefetch(&slots_[queue.items[i + kFar].slot]);
        if (is_idle(queue.items[i], number)) choose(queue.items[i], queue.live);
      }
    }
  }

  void take_hinted(size_t needed) {
    for (; victims_.size() < needed && num_hinted_ > 0; --farthest_hint_) {
      Queue& queue = hinted(farthest_hint_);
      const int64_t before = queue.live;
      while (victims_.size() < needed && queue.live > 0) {
        const size_t i = queue.head++;
        if (i + kFar < queue.items.size()) prefetch(&slots_[queue.items[i + kFar].slot]);
        if (is_hinted(queue.items[i], farthest_hint_)) choose(queue.items[i], queue.live);
      }
      num_hinted_ -= before - queue.live;
      if (queue.live > 0) return;
      queue = Queue();
    }
  }

  void take_farthest(size_t needed) {
    for (; victims_.size() < needed; --farthest_) {
      CHECK(farthest_ > taken_ + future_, farthest_, taken_, future_);  // nearer rows are pinned
      Bucket& far = bucket(farthest_);
      if (far.live == 0) continue;
      const size_t begin = victims_.size();
      const uint32_t uses_begin = farthest_ == taken_ ? uses_.begin() : bucket(farthest_ - 1).uses_end;
      const uint32_t num_uses = Uses::distance(uses_begin, far.uses_end);
      for (const Item item : far.items) {
        const Slot& slot = slots_[item.slot];
        if (slot.last_use == item.last_use && slot.last != Uses::kNone &&
            Uses::distance(uses_begin, slot.first) < num_uses)
          choose(item, far.live);
      }
      CHECK(far.live == 0, farthest_, far.live);  // all that it had were chosen
      num_bucketed_ -= victims_.size() - begin;
      far.items.clear();
      if (victims_.size() <= needed) {
        std::sort(victims_.begin() + begin, victims_.end(), is_older);
        continue;
      }
      std::nth_element(victims_.begin() + begin, victims_.begin() + needed, victims_.end(), is_older);
      std::sort(victims_.begin() + begin, victims_.begin() + needed, is_older);
      for (size_t v = needed; v < victims_.size(); ++v) list({victims_[v].slot, victims_[v].last_use}, farthest_);
      victims_.resize(needed);
      return;
    }
  }

  void choose(Item item, int64_t& live) {
    victims_.push_back({0, item.last_use, static_cast<int64_t>(slots_[item.slot].row), item.slot, 0, 0});
    --live;
    CHECK(live >= 0, item.slot, live);
    CHECK(is_listed(slots_[item.slot]), item.slot, slots_[item.slot].last_use, num_released_);  // not pinned
  }

  // Where the pins leave too few rows: any may go that the batch itself does not use.
  void drain(int32_t batch, size_t needed) {
    for (int64_t s = 0; s < num_resident_; ++s) {
      const Slot& slot = slots_[s];
      const int32_t next = next_use(slot);
      if (next == batch) continue;
      const bool known = next >= 0 && next - batch <= window_;
      const bool is_hinted = next < 0 && has_hint(static_cast<int32_t>(s));
      const int32_t hinted = is_hinted ? -hints_[s] : INT32_MIN;
      const int32_t rank = slot.wanted ? 1 : (known ? -next : hinted);
      victims_.push_back({rank, slot.last_use, static_cast<int64_t>(slot.row), static_cast<int32_t>(s), 0, 0});
    }
    const auto goes_first = [this](const Victim& a, const Victim& b) {
      return newest_first_ ? is_older(b, a) : is_older(a, b);
    };
    CHECK(victims_.size() >= needed, victims_.size(), needed);
    std::nth_element(victims_.begin(), victims_.begin() + needed, victims_.end(), goes_first);
    victims_.resize(needed);
    std::sort(victims_.begin(), victims_.end(), goes_first);
    for (const Victim& victim : victims_) {
      const Slot& slot = slots_[victim.slot];
      if (!is_listed(slot)) continue;
      const int32_t next = next_use(slot);
      if (next < 0) {
        leave_idle(victim.slot);
      } else {
        --bucket(next).live;
        --num_bucketed_;
      }
    }
  }

  // Keeps the uses of a victim, whose slot is another row's from now on; returns the slot.
  int32_t vacate(Victim& victim) {
    victim.first = slots_[victim.slot].first;
    victim.last = slots_[victim.slot].last;
    return victim.slot;
  }

  // Takes the victims' slots from them; returns how many there were.
  int64_t leave(int64_t* rows_out, int64_t* slots_out) {
    sort_runs(victims_, spare_, [](const Victim& a, const Victim& b) { return a.row < b.row; });
    for (size_t v = 0; v < victims_.size(); ++v) {
      if (v + kFar < victims_.size()) {
        const Victim& ahead = victims_[v + kFar];
        table_.prefetch(static_cast<Row>(ahead.row));
        if (ahead.last != Uses::kNone) prefetch_for_write(&uses_[ahead.last]);
      }
      const Victim& victim = victims_[v];
      rows_out[v] = victim.row;
      slots_out[v] = victim.slot;
      CHECK(find(victim.row) && find(victim.row)->slot() == victim.slot, victim.row, victim.slot);
      CHECK(slots_[victim.slot].last_use == taken_ - 1, victim.slot);  // the batch took it
      auto& entry = *find(victim.row);
      if (victim.last == Uses::kNone) {
        table_.erase(entry);
      } else {
        static_cast<Place&>(entry) = Place::of_use(victim.last);
        uses_[victim.last] = victim.first;
      }
    }
    return static_cast<int64_t>(victims_.size());
  }

  void look() {
    if (kChecks && is_look_due(num_resident_ + static_cast<int64_t>(table_.bytes() / 8) + uses_.size())) check_all();
  }

  // The table, the slots, the uses to come and the lists say the same.
  void check_all() {
    table_.check_all();
    wanted_rows_.check_all();
    CHECK(0 <= taken_ && taken_ <= fed_ && num_resident_ <= num_slots(), taken_, fed_, num_resident_);
    int64_t num_with_slot = 0, num_chained = 0, idle[2] = {}, num_bucketed = 0, num_hinted = 0;
    std::vector<int64_t> live(static_cast<size_t>(fed_ - taken_));
    table_.each([&](const auto& entry) {
      CHECK(!entry.is_new(), entry.row);
      if (!entry.has_slot()) {
        num_chained += length_of(uses_[entry.last()], entry.last());
        return;
      }
      CHECK(entry.slot() < num_resident_ && slots_[entry.slot()].row == entry.row, entry.slot(), entry.row);
      ++num_with_slot;
      const Slot& slot = slots_[entry.slot()];
      CHECK(slot.last_use < taken_, entry.slot(), slot.last_use, taken_);
      CHECK(static_cast<bool>(slot.wanted) == (wanted_rows_.size() > 0 && wanted_rows_.find(entry.row)), entry.row);
      if (slot.last != Uses::kNone) num_chained += length_of(slot.first, slot.last);
      if (!is_listed(slot)) return;
      if (slot.last == Uses::kNone) ++(has_hint(entry.slot()) ? num_hinted : idle[slot.wanted]);
      else ++live[static_cast<size_t>(batch_of(slot.first) - taken_)];
    });
    CHECK(num_with_slot == num_resident_, num_with_slot, num_resident_);
    CHECK(num_hinted == num_hinted_, num_hinted, num_hinted_);
    CHECK(num_chained == uses_.size(), num_chained, uses_.size());
    for (int q = 0; q < 2; ++q) CHECK(idle[q] == idle_[q].live, q, idle[q], idle_[q].live);
    for (int32_t b = taken_; b < fed_; ++b) {
      CHECK(bucket(b).live == live[static_cast<size_t>(b - taken_)], b, bucket(b).live);
      CHECK(b <= farthest_ || bucket(b).live == 0, b, farthest_);
      num_bucketed += bucket(b).live;
    }
    CHECK(num_bucketed == num_bucketed_, num_bucketed, num_bucketed_);
    CHECK(fed_ == taken_ ? uses_.size() == 0 : bucket(fed_ - 1).uses_end == uses_.end());
  }

  // How many uses there are from the first of a row to its last; they rise.
  int64_t length_of(uint32_t first, uint32_t last) {
    int64_t length = 1;
    for (; first != last; ++length) {
      CHECK(Uses::distance(uses_.begin(), first) < Uses::distance(uses_.begin(), uses_[first]), first, uses_[first]);
      first = uses_[first];
    }
    return length;
  }

  const int32_t past_, future_, window_;
  const bool newest_first_;

  RowTable<Row, Place> table_;
  Uses uses_;
  Large<Slot> slots_;
  Large<int32_t> hints_;  // by slot, where there are any
  int64_t num_resident_ = 0;     // slots are never given back: the free ones are the last ones
  int32_t fed_ = 0, taken_ = 0, num_released_ = 0;

  Queue idle_[2];
  std::vector<Queue> hinted_;
  int64_t num_hinted_ = 0;      // live items in all of these
  int32_t farthest_hint_ = 0;   // no queue behind it holds any
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
                                    int32_t newest_first, int32_t hinted, int64_t num_counted, int64_t num_rows) {
  const auto make = [&](auto row) -> AnySlotMap* {
    return new SlotMap<decltype(row)>(num_slots, past, future, window, newest_first != 0, hinted != 0, num_counted);
  };
  return num_rows <= UINT32_MAX ? make(uint32_t{}) : make(uint64_t{});
}

HOTROWS_API void hotrows_slots_free(void* handle) { delete map_of(handle); }

HOTROWS_API void hotrows_slots_feed(void* handle, const int64_t* rows, int64_t n) { map_of(handle)->feed(rows, n); }

// hints [n]: which batch uses each row next, null where nobody knows. slots, rows_in, slots_in, rows_out, slots_out:
// [n] each. Returns a SlotCase: drained where the pipeline must be drained first, -1 where these are not the rows
// that were fed.
HOTROWS_API int64_t hotrows_slots_take(void* handle, const int64_t* rows, const int32_t* hints, int64_t n,
                                       int64_t* slots, int64_t* rows_in, int64_t* slots_in, int64_t* rows_out,
                                       int64_t* slots_out, int64_t* num_in, int64_t* num_out) {
  return static_cast<int64_t>(
      map_of(handle)->take(rows, hints, n, slots, rows_in, slots_in, rows_out, slots_out, num_in, num_out));
}

// rows: of all slots, ascending.
HOTROWS_API void hotrows_slots_residents(void* handle, int64_t* rows) { map_of(handle)->residents(rows); }

HOTROWS_API void hotrows_slots_hint(void* handle, const int64_t* rows, const int32_t* hints, int64_t n) {
  map_of(handle)->hint(rows, hints, n);
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
