// Which keys are live, and which row each has: the state behind planning/keys.py, in which the rules
// stand; keys_reference.py is the specification.
//
//   rows      key, last use, and reads or next use: 16 B each, found by key in 6.5 to 7.5 B (keyed_records.h)
//   order     the rows that go first (key_order.h)
//   waiting   reads of each key that is not admitted yet, where these are counted exactly
//   sketches  or in fixed memory (key_sketch.h)
//   window    keys of the batches known ahead (key_window.h)
//   journals  what each batch in flight changed, oldest first: the state as of the batches trained is read
//             off with the changes of later ones left out
#include <deque>
#include <numeric>
#include <unordered_map>

#include "codes.h"
#include "key_order.h"
#include "key_sketch.h"
#include "key_window.h"
#include "keyed_records.h"

namespace {

using hotrows::are_within;
using hotrows::EvictionOrder;
using hotrows::is_look_due;
using hotrows::kChecks;
using hotrows::KeyedRecords;
using hotrows::KeyWindow;
using hotrows::Leaving;
using hotrows::mix64;
using hotrows::never_falls;
using hotrows::rises;
using hotrows::SketchJournal;
using hotrows::Sketches;

using hotrows::Admission;
using hotrows::Eviction;

struct Settings {
  HOTROWS_KEY_SETTINGS(HOTROWS_FIELD)
  Admission admits() const { return static_cast<Admission>(admission); }
  Eviction evicts() const { return static_cast<Eviction>(eviction); }
};

struct Totals {
  HOTROWS_KEY_TOTALS(HOTROWS_FIELD)
};

struct Row {
  int64_t key;
  uint32_t last_use;  // the lower half of the number of a batch
  uint32_t extra;     // lfu: reads, in sixteenths; ahead: the next batch that reads it, see KeyWindow; else 0
};

struct Waiting {
  int64_t key;
  uint32_t reads, unused;
};

struct Point {
  int64_t batch, time;
};

constexpr uint32_t kRead = 16, kMostCounted = UINT32_MAX;
constexpr int64_t kNear = 16;
constexpr int64_t kLeastExponent = 1 << 30;

// What undoes a batch. touched: rows as they were before it read them.
struct Journal {
  struct Touched {
    uint32_t row, last_use, extra;
  };
  struct Died {
    uint32_t row;
    Row was;
  };
  struct Count {
    int64_t key;
    uint32_t reads;
  };
  std::vector<Touched> touched;
  std::vector<Died> died;
  std::vector<uint32_t> born;
  std::vector<int64_t> born_keys;
  std::vector<Count> waiting;
  SketchJournal sketch;
  std::deque<Point> clock;
  Totals totals{};
};

// The keys of a batch that are not live, each once.
class NewKeys {
 public:
  void clear(int64_t n) {
    keys.clear(), reads.clear();
    size_t size = 64;
    while (size < 2 * static_cast<size_t>(n)) size *= 2;
    if (size > table_.size()) table_.resize(size);
    mask_ = size - 1;
    std::fill(table_.begin(), table_.begin() + static_cast<int64_t>(size), kNone);
  }

  uint32_t add(int64_t key) {
    CHECK(keys.size() < mask_ + 1, keys.size(), mask_);
    size_t i = mix64(static_cast<uint64_t>(key)) & mask_;
    while (table_[i] != kNone && keys[table_[i]] != key) i = (i + 1) & mask_;
    if (table_[i] == kNone) {
      table_[i] = static_cast<uint32_t>(keys.size());
      keys.push_back(key), reads.push_back(0);
    }
    ++reads[table_[i]];
    return table_[i];
  }

  // Sorts numbers of keys by the hashes of these, which are even and distinct: each goes to the bucket of its
  // upper bits, and buckets of a few are sorted.
  void sort_by_hash(std::vector<uint32_t>& numbers) {
    const size_t n = numbers.size();
    int bits = 1;
    while (bits < 24 && (size_t{4} << bits) < n) ++bits;
    ends_.assign((size_t{1} << bits) + 1, 0);
    for (const uint32_t number : numbers) ++ends_[(hash(number) >> (64 - bits)) + 1];
    for (size_t b = 1; b < ends_.size(); ++b) ends_[b] += ends_[b - 1];
    sorted_.resize(n);
    for (const uint32_t number : numbers) sorted_[ends_[hash(number) >> (64 - bits)]++] = {hash(number), number};
    uint32_t begin = 0;
    for (size_t b = 0; b + 1 < ends_.size(); begin = ends_[b++]) {
      std::sort(sorted_.begin() + begin, sorted_.begin() + ends_[b]);
    }
    CHECK(begin == n && std::is_sorted(sorted_.begin(), sorted_.end()), begin, n);
    for (size_t i = 0; i < n; ++i) numbers[i] = sorted_[i].second;
  }

  std::vector<int64_t> keys, reads;

 private:
  uint64_t hash(uint32_t number) const { return mix64(static_cast<uint64_t>(keys[number])); }

  static constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> table_, ends_;
  std::vector<std::pair<uint64_t, uint32_t>> sorted_;
  size_t mask_ = 0;
};

class KeyTable {
 public:
  explicit KeyTable(const Settings& settings) : s_(settings), first_id_(2 + settings.num_unknown) {
    CHECK(s_.capacity >= 0 && s_.num_unknown > 0 && s_.limit >= 0, s_.capacity, s_.num_unknown, s_.limit);
    CHECK(s_.admission >= 0 && s_.admission <= static_cast<int64_t>(Admission::frequent), s_.admission);
    CHECK(s_.eviction >= 0 && s_.eviction <= static_cast<int64_t>(Eviction::time), s_.eviction);
    CHECK((s_.admits() == Admission::sketch || contests()) == (s_.sketch_width > 0), s_.admission, s_.sketch_width);
    CHECK(!contests() || s_.evicts() == Eviction::lfu, s_.eviction);
    clear(0);
  }

  // Adds the next batch to the window.
  void feed(const int64_t* keys, int64_t n) {
    const uint32_t batch = static_cast<uint32_t>(windowed_++);
    const std::vector<int64_t>& fresh = window_.feed(batch, keys, n);
    if (s_.evicts() != Eviction::ahead) return;
    rows_.find_all(fresh.data(), static_cast<int64_t>(fresh.size()), [&](int64_t, uint32_t row) {
      if (row == rows_.kNone || rows_[row].extra) return;
      rows_[row].extra = KeyWindow::known(batch);
      --num_unread_;
    });
    look();
  }

  // Returns whether the batch is the one that was fed.
  bool resolve(const int64_t* keys, int64_t n, bool has_time, int64_t time, int64_t* ids) {
    CHECK(resolved_ <= windowed_ || window_.empty(), resolved_, windowed_);
    now_ = static_cast<uint32_t>(resolved_);
    order_.set_now(now_);
    journals_.emplace_back();
    journal().totals = totals_;
    journal().clock = s_.evicts() == Eviction::time ? clock_ : std::deque<Point>();
    if (!window_.empty() && !window_.is_of_reads(n)) return false;
    if (has_time) advance_clock(time);
    read_live(keys, n, ids);
    if (!note_next_uses()) return false;
    admit();
    evict();
    give_birth();
    tend_order();
    for (int64_t i = 0; i < n; ++i) {
      if (ids[i] >= 0) continue;
      CHECK(~ids[i] < static_cast<int64_t>(new_ids_.size()), i, ids[i], new_ids_.size());
      const int64_t id = new_ids_[static_cast<size_t>(~ids[i])];
      ids[i] = id ? id : unknown(keys[i]);
    }
    CHECK(are_within(ids, n, 2, first_id_ + std::max<int64_t>(totals_.rows, rows_.end())), n, first_id_, totals_.rows);
    if (!window_.empty()) window_.close();
    ++resolved_;
    look();
    return true;
  }

  void trained() {
    CHECK(!journals_.empty());
    journals_.pop_front();
  }

  // ids: of live keys as of the batches trained, and unknown ones.
  void find(const int64_t* keys, int64_t n, int64_t* ids) const {
    std::unordered_map<int64_t, int64_t> then;  // keys whose id changed in flight: the id before; 0: none
    for (const Journal& journal : journals_) {
      for (const auto& died : journal.died) then.emplace(died.was.key, died.row + first_id_);
      for (const int64_t key : journal.born_keys) then.emplace(key, 0);
    }
    rows_.find_all(keys, n, [&](int64_t i, uint32_t row) {
      ids[i] = row == rows_.kNone ? 0 : row + first_id_;
      if (!then.empty()) {
        const auto changed = then.find(keys[i]);
        if (changed != then.end()) ids[i] = changed->second;
      }
      if (ids[i] == 0) ids[i] = unknown(keys[i]);
    });
  }

  const Totals& totals() const { return totals_; }
  const std::vector<uint32_t>& born() const { return journals_.back().born; }
  const std::vector<Journal::Died>& died() const { return journals_.back().died; }
  const std::vector<int64_t>& born_keys() const { return journals_.back().born_keys; }
  int64_t first_id() const { return first_id_; }

  // The state as of the batches trained; see KeyTable.state.
  const Totals& trained_totals() const { return journals_.empty() ? totals_ : journals_.front().totals; }
  const std::deque<Point>& trained_clock() const { return journals_.empty() ? clock_ : journals_.front().clock; }

  void read_rows(int64_t* keys, int64_t* ids, int64_t* last_use, int64_t* counts) const {
    const std::vector<Then> changed = rows_then();
    auto then = changed.begin();
    const int64_t newest = resolved_ - 1;
    int64_t count = 0;
    for (uint32_t place = 0; place < rows_.end(); ++place) {
      Row row = rows_[place];
      bool is_live = !rows_.is_free(place);
      if (then != changed.end() && then->place == place) {
        row = {then->has_key ? then->row.key : row.key, then->row.last_use, then->row.extra};
        is_live = then++->is_live;
      }
      if (!is_live) continue;
      keys[count] = row.key;
      ids[count] = place + first_id_;
      last_use[count] = newest - static_cast<uint32_t>(static_cast<uint32_t>(newest) - row.last_use);
      counts[count++] = s_.evicts() == Eviction::lfu ? row.extra : 0;
    }
    CHECK(then == changed.end() && count <= s_.capacity && rises(ids, count), count, s_.capacity);
  }

  // Returns how many keys are waiting; with null, an upper bound alone.
  int64_t read_waiting(int64_t* keys, int64_t* counts) const {
    std::unordered_map<int64_t, uint32_t> then;
    for (const Journal& journal : journals_)
      for (const auto& count : journal.waiting) then.emplace(count.key, count.reads);
    if (keys == nullptr) return waiting_.size() + static_cast<int64_t>(then.size());
    int64_t n = 0;
    for (const auto& [key, reads] : then) {
      if (reads) keys[n] = key, counts[n++] = reads;
    }
    for (uint32_t place = 0; place < waiting_.end(); ++place) {
      if (waiting_.is_free(place) || then.count(waiting_[place].key)) continue;
      keys[n] = waiting_[place].key, counts[n++] = waiting_[place].reads;
    }
    return n;
  }

  // sketch: [2, 4, width].
  void read_sketch(uint8_t* sketch) const {
    sketches_.read(sketch);
    for (auto journal = journals_.rbegin(); journal != journals_.rend(); ++journal) {
      sketches_.undo(journal->sketch, sketch);
    }
  }

  void load(int64_t resolved, const Totals& totals, int64_t n, const int64_t* keys, const int64_t* ids,
            const int64_t* last_use, const int64_t* counts) {
    CHECK(n <= s_.capacity && rises(ids, n) && are_within(ids, n, first_id_, first_id_ + s_.capacity), n, s_.capacity);
    CHECK(are_within(last_use, n, INT64_MIN, std::max<int64_t>(resolved, 1)), n, resolved);
    clear(resolved);
    totals_ = totals;
    rows_.reserve(n);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t row = static_cast<uint32_t>(ids[i] - first_id_);
      if (i + kNear < n) rows_.prefetch(keys[i + kNear]);
      rows_.insert_at(keys[i], row);
      rows_[row].last_use = static_cast<uint32_t>(last_use[i]);
      if (s_.evicts() == Eviction::lfu) rows_[row].extra = static_cast<uint32_t>(counts[i]);
    }
    num_unread_ = n;
    look();
  }

  void load_waiting(int64_t n, const int64_t* keys, const int64_t* counts) {
    if (s_.admits() != Admission::after) return;
    waiting_.reserve(n);
    for (int64_t i = 0; i < n; ++i) waiting_[waiting_.insert(keys[i])].reads = static_cast<uint32_t>(counts[i]);
  }

  void load_sketch(const uint8_t* sketch) { sketches_.load(sketch); }

  void load_clock(int64_t n, const int64_t* batches, const int64_t* times) {
    if (s_.evicts() != Eviction::time) return;
    CHECK(never_falls(batches, n) && rises(times, n), n);
    for (int64_t i = 0; i < n; ++i) clock_.push_back({batches[i], times[i]});
  }

  int64_t num_bytes() const {
    int64_t bytes = rows_.num_bytes() + order_.num_bytes() + waiting_.num_bytes() + window_.num_bytes();
    bytes += 2 * sketches_.size() + static_cast<int64_t>(clock_.size() * sizeof(Point));
    for (const Journal& journal : journals_) {
      bytes += static_cast<int64_t>(journal.touched.capacity() * sizeof(Journal::Touched) +
                                    journal.died.capacity() * sizeof(Journal::Died) + journal.born.capacity() * 12 +
                                    journal.waiting.capacity() * sizeof(Journal::Count) +
                                    journal.sketch.cells.capacity() * sizeof(SketchJournal::Cell));
    }
    return bytes;
  }

 private:
  Journal& journal() { return journals_.back(); }
  int64_t unknown(int64_t key) const {
    const uint64_t hash = s_.num_unknown == 1 ? 0 : mix64(static_cast<uint64_t>(key));
    return 2 + static_cast<int64_t>(hash % static_cast<uint64_t>(s_.num_unknown));
  }

  void clear(int64_t resolved) {
    resolved_ = windowed_ = resolved;
    totals_ = Totals();
    rows_ = KeyedRecords<Row>(s_.capacity);
    waiting_ = KeyedRecords<Waiting>();
    window_ = KeyWindow();
    sketches_ = Sketches(s_.sketch_width);
    order_.clear();
    journals_.clear(), clock_.clear();
    num_unread_ = num_unread_now_ = 0;
  }

  // Rows of batches before the first point kept have expired.
  void advance_clock(int64_t time) {
    if (s_.evicts() != Eviction::time || (!clock_.empty() && time <= totals_.time)) return;
    CHECK(clock_.empty() || clock_.back().time < time, clock_.empty() ? 0 : clock_.back().time, time);
    clock_.push_back({clock_.empty() ? 0 : resolved_, time});
    totals_.time = time;
    while (static_cast<__int128>(time) - clock_.front().time >= s_.limit) clock_.pop_front();
    CHECK(!clock_.empty());
  }

  // Finds the keys of a batch and notes live ones as read; ids: of the others, ~number among the new keys.
  void read_live(const int64_t* keys, int64_t n, int64_t* ids) {
    new_.clear(n);
    touched_.resize(std::max(touched_.size(), static_cast<size_t>(n)));
    Journal::Touched* end = touched_.data();
    const bool counts = s_.evicts() == Eviction::lfu;
    rows_.find_all(keys, n, [&](int64_t i, uint32_t place) {
      if (place == rows_.kNone) {
        ids[i] = ~static_cast<int64_t>(new_.add(keys[i]));
        return;
      }
      ids[i] = place + first_id_;
      Row& row = rows_[place];
      *end = {place, row.last_use, row.extra};  // kept where it is the first read, without a branch
      end += row.last_use != now_;
      if (counts) {
        if (row.last_use != now_) row.extra = decayed(row);
        add_read(row, 1);
      }
      row.last_use = now_;
    });
    CHECK(end - touched_.data() <= n && end - touched_.data() <= rows_.size(), end - touched_.data(), n, rows_.size());
    journal().touched.assign(touched_.data(), end);
  }

  static void add_read(Row& row, int64_t reads) {
    row.extra = static_cast<uint32_t>(std::min<int64_t>(int64_t{row.extra} + kRead * reads, kMostCounted));
  }

  // How often reads had halved in weight when a row was last used: batches / limit, rounded down. Keys that a
  // table began with were used before batch 0.
  int64_t epoch(uint32_t last_use) const {
    if (s_.limit == 0) return 0;
    const int64_t batch = resolved_ - static_cast<int64_t>(now_ - last_use);
    if (batch < 0) return -((s_.limit - 1 - batch) / s_.limit);
    return s_.limit == 1 ? batch : static_cast<int64_t>(static_cast<unsigned __int128>(batch) * inverse_ >> 64);
  }

  uint32_t decayed(const Row& row) const {
    const int64_t halvings = epoch(now_) - epoch(row.last_use);
    return halvings < 32 ? row.extra >> halvings : 0;
  }

  // Under `ahead`: what the rows read now are read next by; false where the batch is not the one fed.
  bool note_next_uses() {
    new_ahead_.assign(new_.keys.size(), {});
    num_unread_now_ = 0;
    if (window_.empty()) return true;
    const int64_t num_new = static_cast<int64_t>(new_.keys.size());
    const auto note = [this](int64_t i, KeyWindow::Reads ahead) { new_ahead_[static_cast<size_t>(i)] = ahead; };
    if (!window_.find_all(now_, new_.keys.data(), num_new, note)) return false;
    const auto& touched = journal().touched;
    read_.clear();
    for (const auto& row : touched) read_.push_back(rows_[row.row].key);
    const int64_t num_read = static_cast<int64_t>(read_.size());
    if (!window_.is_of_keys(num_new + num_read)) return false;
    return window_.find_all(now_, read_.data(), num_read, [&](int64_t i, KeyWindow::Reads ahead) {
      if (s_.evicts() != Eviction::ahead) return;
      Row& row = rows_[touched[static_cast<size_t>(i)].row];
      num_unread_ -= row.extra == 0;
      row.extra = ahead.next;
      num_unread_ += row.extra == 0;
      num_unread_now_ += row.extra == 0;
    });
  }

  // Leaves in `admitted_` which of the new keys get a row if there is room, by ascending hash; where keys contest,
  // the most frequent ones first.
  void admit() {
    if (s_.admits() == Admission::after) count_waiting();
    admitted_.resize(new_.keys.size()), recent_reads_.resize(new_.keys.size());
    std::iota(admitted_.begin(), admitted_.end(), 0);
    if (s_.sketch_width > 0) new_.sort_by_hash(admitted_);  // a count depends on those before it
    const auto is_refused = [this](uint32_t number) { return !is_admitted(number); };
    admitted_.erase(std::remove_if(admitted_.begin(), admitted_.end(), is_refused), admitted_.end());
    CHECK(admitted_.size() <= new_.keys.size(), admitted_.size(), new_.keys.size());
    if (s_.sketch_width == 0) new_.sort_by_hash(admitted_);
    if (contests()) std::stable_sort(admitted_.begin(), admitted_.end(), [this](uint32_t a, uint32_t b) {
      return recent_reads_[a] > recent_reads_[b];
    });
  }

  bool is_admitted(size_t i) {
    switch (s_.admits()) {
      case Admission::after: return waiting_reads_[i] >= s_.reads;
      case Admission::sketch: return count_in_sketch(i) >= s_.reads;
      case Admission::frequent: return (recent_reads_[i] = count_in_sketch(i)) >= s_.reads;
      case Admission::probability: return hotrows::random_bits(new_.keys[i], 0) >> 11 < static_cast<uint64_t>(s_.probability);
      case Admission::ahead: return new_ahead_[i].reads >= s_.reads;
      default: return true;
    }
  }

  bool contests() const { return s_.admits() == Admission::frequent; }

  // Behind what a row must not come that makes room for a new key: where keys contest, a row as frequent.
  Leaving limit_of(int64_t place) const {
    if (!contests()) return most();
    Row row{0, now_, 0};
    add_read(row, recent_reads_[admitted_[static_cast<size_t>(place)]]);
    return {weight(row), now_ + 1, 0};
  }

  void count_waiting() {
    const int64_t n = static_cast<int64_t>(new_.keys.size());
    waiting_reads_.resize(new_.keys.size()), waiting_places_.resize(new_.keys.size());
    waiting_.reserve(n);
    waiting_.find_all(new_.keys.data(), n, [&](int64_t i, uint32_t place) {
      const bool is_new = place == waiting_.kNone;
      if (is_new) place = waiting_.insert(new_.keys[i]);
      Waiting& key = waiting_[place];
      journal().waiting.push_back({key.key, is_new ? 0 : key.reads});
      key.reads = static_cast<uint32_t>(std::min<int64_t>(int64_t{key.reads} + new_.reads[i], kMostCounted));
      waiting_reads_[i] = key.reads, waiting_places_[i] = place;
    });
  }

  int64_t count_in_sketch(size_t i) {
    return sketches_.count(new_.keys[i], new_.reads[i], &totals_.sketch_place, &journal().sketch);
  }

  // Says what a row weighs, unless it is free, was read by this batch, or is read by one to come.
  bool weigh(uint32_t place, Leaving* leaving) const {
    const Row& row = rows_[place];
    if (row.last_use == now_ || rows_.is_free(place) || (s_.evicts() == Eviction::ahead && row.extra)) return false;
    *leaving = {s_.evicts() == Eviction::lfu ? weight(row) : 0, row.last_use, place};
    return true;
  }

  // reads * 2^epoch: exponent, from 0 up, then mantissa.
  uint64_t weight(const Row& row) const {
    if (row.extra == 0) return 0;
    const int zeros = __builtin_clz(row.extra);
    return static_cast<uint64_t>(epoch(row.last_use) + 32 - zeros + kLeastExponent) << 32 | row.extra << zeros;
  }

  struct Weigher {
    const KeyTable* table;
    bool operator()(uint32_t place, Leaving* leaving) const { return table->weigh(place, leaving); }
    bool is_after(uint32_t place, const Leaving& bound) const {
      return table->s_.evicts() != Eviction::lfu &&
             table->now_ - table->rows_[place].last_use < table->now_ - bound.last_use;
    }
    void prefetch(uint32_t place) const { hotrows::prefetch(&table->rows_[place]); }
  };

  Weigher weigher() const { return {this}; }

  // The row that goes last.
  Leaving most() const {
    if (s_.evicts() == Eviction::lfu) return {UINT64_MAX, now_, UINT32_MAX};
    return {0, now_ - 1, UINT32_MAX};
  }

  // The first batch whose rows have not expired.
  int64_t oldest() const {
    if (s_.evicts() == Eviction::idle) return resolved_ - s_.limit + 1;
    return s_.evicts() == Eviction::time && !clock_.empty() ? clock_.front().batch : 0;
  }

  int64_t room() const { return s_.capacity - static_cast<int64_t>(rows_.size()); }

  void look() {
    if (kChecks && is_look_due(rows_.end())) check_all();
  }

  // Rows, counts and journals say the same.
  void check_all() const {
    CHECK(rows_.size() <= s_.capacity, rows_.size(), s_.capacity);
    int64_t num_unread = 0;
    for (uint32_t place = 0; place < rows_.end(); ++place) {
      if (rows_.is_free(place)) continue;
      CHECK(rows_.find(rows_[place].key) == place, place, rows_[place].key);
      num_unread += rows_[place].extra == 0;
      const bool has_extra = s_.evicts() == Eviction::lfu || s_.evicts() == Eviction::ahead;
      CHECK(has_extra || rows_[place].extra == 0, place, rows_[place].extra);
    }
    CHECK(s_.evicts() != Eviction::ahead || num_unread == num_unread_, num_unread, num_unread_);
    CHECK(s_.admits() == Admission::after || waiting_.size() == 0, waiting_.size());
    CHECK(static_cast<int64_t>(journals_.size()) <= resolved_, journals_.size(), resolved_);
    for (const Journal& journal : journals_) {
      CHECK(journal.born.size() == journal.born_keys.size(), journal.born.size(), journal.born_keys.size());
      CHECK(rises(journal.born.data(), static_cast<int64_t>(journal.born.size())));
      for (const auto& touched : journal.touched) CHECK(touched.row < rows_.end(), touched.row, rows_.end());
    }
  }

  void evict() {
    if (s_.evicts() == Eviction::none) return;
    auto& died = journal().died;
    Leaving leaving;
    if (oldest() > 0) {
      const Leaving expired{0, static_cast<uint32_t>(oldest()), 0};
      const Leaving limit = order_.before(expired, most()) ? expired : most();
      while (order_.next(weigher(), rows_.end(), limit, most(), &leaving)) let_die(leaving.row);
    }
    const int64_t num_expired = static_cast<int64_t>(died.size());
    const int64_t others = static_cast<int64_t>(rows_.size() - journal().touched.size()) - num_expired;
    const int64_t num_more = std::min(static_cast<int64_t>(admitted_.size()) - room() - num_expired, others);
    int64_t left = std::max<int64_t>(num_more, 0);
    const int64_t in_order = s_.evicts() == Eviction::ahead ? std::min(left, num_unread_ - num_unread_now_) : left;
    CHECK(in_order >= 0 && in_order <= left, in_order, left, num_unread_, num_unread_now_);
    left -= in_order;
    const int64_t first = room() + num_expired;  // of those admitted that need the room of another
    for (int64_t i = first; i < first + in_order; ++i) {
      if (!order_.next(weigher(), rows_.end(), limit_of(i), most(), &leaving)) break;
      let_die(leaving.row);
    }
    for (size_t batch = window_.num_batches(); left > 0 && --batch > 0;) left -= evict_read_in(batch, left);
    CHECK(left >= 0, left);
    bury();
  }

  void let_die(uint32_t place) {
    Row& row = rows_[place];
    CHECK(!rows_.is_free(place) && row.last_use != now_, place, row.last_use, now_);  // neither dead, nor read now
    journal().died.push_back({place, row});
    if (s_.evicts() == Eviction::ahead) num_unread_ -= row.extra == 0;
    row.last_use = now_;
  }

  // Evicts up to `most` of the rows that a batch of the window reads next; returns how many.
  int64_t evict_read_in(size_t batch, int64_t most) {
    std::vector<Leaving> rows;
    window_.visit_first_reads(batch, [&](int64_t key) {
      const uint32_t place = rows_.find(key);
      if (place != rows_.kNone) rows.push_back({0, rows_[place].last_use, place});
    });
    most = std::min(most, static_cast<int64_t>(rows.size()));
    std::partial_sort(rows.begin(), rows.begin() + most, rows.end(),
                      [this](const Leaving& a, const Leaving& b) { return order_.before(a, b); });
    for (int64_t i = 0; i < most; ++i) let_die(rows[static_cast<size_t>(i)].row);
    return most;
  }

  void bury() {
    auto& died = journal().died;
    std::sort(died.begin(), died.end(), [](const auto& a, const auto& b) { return a.row < b.row; });
    for (size_t i = 0; i < died.size(); ++i) {
      CHECK(i == 0 || died[i - 1].row < died[i].row, died[i].row);  // each dies once
      if (i + kNear < died.size()) rows_.prefetch(died[i + kNear].was.key);
      rows_.erase(died[i].row);
    }
    totals_.evicted += static_cast<int64_t>(died.size());
  }

  void give_birth() {
    const size_t n = static_cast<size_t>(std::clamp<int64_t>(room(), 0, static_cast<int64_t>(admitted_.size())));
    new_ids_.assign(new_.keys.size(), 0);
    rows_.reserve(static_cast<int64_t>(n));
    auto& born = journal().born;
    auto& born_keys = journal().born_keys;
    born.reserve(n), born_keys.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      if (i + kNear < n) rows_.prefetch(new_.keys[admitted_[i + kNear]]);
      const uint32_t number = admitted_[i];
      const int64_t key = new_.keys[number];
      const uint32_t place = rows_.insert(key);
      Row& row = rows_[place];
      row.last_use = now_;
      if (s_.evicts() == Eviction::lfu) add_read(row, contests() ? recent_reads_[number] : new_.reads[number]);
      if (s_.evicts() == Eviction::ahead) {
        row.extra = new_ahead_[number].next;
        num_unread_ += row.extra == 0;
      }
      if (s_.admits() == Admission::after) waiting_.erase(waiting_places_[number]);
      new_ids_[number] = place + first_id_;
      CHECK(place < s_.capacity && (born.empty() || place > born.back()), place, s_.capacity);
      born.push_back(place), born_keys.push_back(key);
    }
    if (n) totals_.rows = std::max(totals_.rows, int64_t{born.back()} + 1);  // the lowest free ones, ascending
    totals_.admitted += static_cast<int64_t>(n);
    totals_.refused += static_cast<int64_t>(admitted_.size() - n);
  }

  // Collects the rows that go next ahead of need, and those read now that come before them.
  void tend_order() {
    if (s_.evicts() == Eviction::none) return;
    const bool is_full = room() < s_.capacity / 32;
    const int64_t num_going = static_cast<int64_t>(journal().died.size() + (is_full ? journal().born.size() : 0));
    const int64_t ahead = std::max<int64_t>((resolved_ - oldest()) / 8, 1);
    const bool expires = (s_.evicts() == Eviction::idle || s_.evicts() == Eviction::time) && oldest() + ahead > 0;
    Leaving needed = order_.lowest(), least = needed;
    if (expires) {
      needed.last_use = static_cast<uint32_t>(std::min(oldest() + ahead / 2, resolved_));
      least.last_use = static_cast<uint32_t>(std::min(oldest() + ahead, resolved_));
    }
    const int64_t stale = num_stale();
    order_.note_stale(stale);
    if (num_going == 0) order_.forget_stale();
    const int64_t num_used = num_going + (num_going ? stale : 0);
    const int64_t pace = num_used * EvictionOrder::kRowsPerLeaving + EvictionOrder::kFew +
                         (expires ? rows_.end() / std::max<int64_t>(ahead / 2, 1) : 0);
    order_.prepare(weigher(), rows_.end(), pace, is_full, needed, least, most());
    if (s_.evicts() != Eviction::lfu) return;
    std::vector<Leaving> run;
    const auto add = [&](uint32_t place) {
      const Leaving row{weight(rows_[place]), now_, place};
      if (order_.collects(row)) run.push_back(row);
    };
    for (const auto& touched : journal().touched) add(touched.row);
    for (const uint32_t place : journal().born) add(place);
    order_.push(std::move(run));
  }

  // About how many of the rows read now had been collected: by one in eight.
  int64_t num_stale() const {
    constexpr size_t kStride = 8;
    int64_t num = 0;
    const auto& touched = journals_.back().touched;
    for (size_t i = 0; i < touched.size(); i += kStride) {
      if (s_.evicts() == Eviction::ahead && touched[i].extra) continue;
      const Row was{0, touched[i].last_use, touched[i].extra};
      num += order_.had_collected({s_.evicts() == Eviction::lfu ? weight(was) : 0, was.last_use, touched[i].row});
    }
    return num * static_cast<int64_t>(kStride);
  }

  struct Then {
    uint32_t place;
    Row row;
    bool has_key, is_live;
  };

  // Rows that batches in flight changed, ascending, as they were before the first of these.
  std::vector<Then> rows_then() const {
    std::vector<Then> rows;
    for (const Journal& journal : journals_) {
      for (const auto& old : journal.touched) rows.push_back({old.row, {0, old.last_use, old.extra}, false, true});
      for (const auto& old : journal.died) rows.push_back({old.row, old.was, true, true});
      for (const uint32_t place : journal.born) rows.push_back({place, {}, true, false});
    }
    std::stable_sort(rows.begin(), rows.end(), [](const Then& a, const Then& b) { return a.place < b.place; });
    size_t count = 0;
    for (const Then& row : rows) {
      if (count == 0 || rows[count - 1].place != row.place) {
        rows[count++] = row;
      } else if (!rows[count - 1].has_key && row.has_key && row.is_live) {
        rows[count - 1].row.key = row.row.key, rows[count - 1].has_key = true;  // it has gone since
      }
    }
    rows.resize(count);
    for (const Then& row : rows) CHECK(row.place < rows_.end(), row.place, rows_.end());
    return rows;
  }

  const Settings s_;
  const uint64_t inverse_ = s_.limit > 1 ? UINT64_MAX / static_cast<uint64_t>(s_.limit) + 1 : 0;  // of 2^64
  const int64_t first_id_;
  int64_t resolved_ = 0, windowed_ = 0;  // numbers of the next batches
  uint32_t now_ = 0;
  Totals totals_{};
  KeyedRecords<Row> rows_;
  EvictionOrder order_;
  int64_t num_unread_ = 0, num_unread_now_ = 0;  // ahead: rows that no batch to come reads; read by this one

  KeyedRecords<Waiting> waiting_;
  Sketches sketches_;
  std::deque<Point> clock_;
  KeyWindow window_;

  std::deque<Journal> journals_;
  NewKeys new_;
  std::vector<KeyWindow::Reads> new_ahead_;
  std::vector<uint32_t> admitted_;
  std::vector<int64_t> waiting_reads_, recent_reads_, new_ids_, read_;
  std::vector<uint32_t> waiting_places_;
  std::vector<Journal::Touched> touched_;
};

KeyTable* table_of(void* handle) { return static_cast<KeyTable*>(handle); }

}  // namespace

// settings [8]: capacity, num_unknown, admission, reads, probability of 2^53, sketch width, eviction, limit.
HOTROWS_API void* hotrows_keys_new(const int64_t* settings) {
  Settings values;
  static_assert(sizeof(values) == 8 * sizeof(int64_t), "all of them");
  std::memcpy(&values, settings, sizeof(values));
  return new KeyTable(values);
}

HOTROWS_API void hotrows_keys_free(void* handle) { delete table_of(handle); }

HOTROWS_API void hotrows_keys_feed(void* handle, const int64_t* keys, int64_t n) { table_of(handle)->feed(keys, n); }

// ids [n]; time: null where there is no new one; counts [8]: births and deaths, and totals as of this batch, see
// below. Returns 0, or -1 where this is not the batch that was fed.
HOTROWS_API int64_t hotrows_keys_resolve(void* handle, const int64_t* keys, int64_t n, const int64_t* time,
                                         int64_t* ids, int64_t* counts) {
  KeyTable& table = *table_of(handle);
  if (!table.resolve(keys, n, time != nullptr, time ? *time : 0, ids)) return -1;
  counts[0] = static_cast<int64_t>(table.born().size());
  counts[1] = static_cast<int64_t>(table.died().size());
  std::memcpy(counts + 2, &table.totals(), sizeof(Totals));
  return 0;
}

// The births [b] and deaths [d] of the batch resolved last.
HOTROWS_API void hotrows_keys_changes(void* handle, int64_t* born, int64_t* born_keys, int64_t* died,
                                      int64_t* died_keys) {
  const KeyTable& table = *table_of(handle);
  for (const uint32_t row : table.born()) *born++ = row + table.first_id();
  for (const int64_t key : table.born_keys()) *born_keys++ = key;
  for (const auto& row : table.died()) *died++ = row.row + table.first_id(), *died_keys++ = row.was.key;
}

HOTROWS_API void hotrows_keys_find(void* handle, const int64_t* keys, int64_t n, int64_t* ids) {
  table_of(handle)->find(keys, n, ids);
}

HOTROWS_API void hotrows_keys_trained(void* handle) { table_of(handle)->trained(); }

// totals [6], as of the batches resolved, or those trained: rows, admitted, evicted, refused, place in the
// sketch, time.
HOTROWS_API void hotrows_keys_totals(void* handle, int64_t trained, int64_t* totals) {
  const KeyTable& table = *table_of(handle);
  std::memcpy(totals, trained ? &table.trained_totals() : &table.totals(), sizeof(Totals));
}

// All as of the batches trained. Each [number of live keys], by ascending id.
HOTROWS_API void hotrows_keys_read_rows(void* handle, int64_t* keys, int64_t* ids, int64_t* last_use,
                                        int64_t* counts) {
  table_of(handle)->read_rows(keys, ids, last_use, counts);
}

// Returns how many there are, in no order; with null pointers, an upper bound of it.
HOTROWS_API int64_t hotrows_keys_read_waiting(void* handle, int64_t* keys, int64_t* counts) {
  return table_of(handle)->read_waiting(keys, counts);
}

HOTROWS_API void hotrows_keys_read_sketch(void* handle, uint8_t* sketch) { table_of(handle)->read_sketch(sketch); }

// Returns the number of points; with null pointers nothing else.
HOTROWS_API int64_t hotrows_keys_read_clock(void* handle, int64_t* batches, int64_t* times) {
  const auto& clock = table_of(handle)->trained_clock();
  for (const Point& point : clock) {
    if (batches) *batches++ = point.batch, *times++ = point.time;
  }
  return static_cast<int64_t>(clock.size());
}

// Replaces all; the rest of the state comes with the functions below.
HOTROWS_API void hotrows_keys_load(void* handle, int64_t num_batches, const int64_t* totals, int64_t n,
                                   const int64_t* keys, const int64_t* ids, const int64_t* last_use,
                                   const int64_t* counts) {
  const Totals values{totals[0], totals[1], totals[2], totals[3], totals[4], totals[5]};
  table_of(handle)->load(num_batches, values, n, keys, ids, last_use, counts);
}

HOTROWS_API void hotrows_keys_load_waiting(void* handle, int64_t n, const int64_t* keys, const int64_t* counts) {
  table_of(handle)->load_waiting(n, keys, counts);
}

HOTROWS_API void hotrows_keys_load_sketch(void* handle, const uint8_t* sketch) {
  table_of(handle)->load_sketch(sketch);
}

HOTROWS_API void hotrows_keys_load_clock(void* handle, int64_t n, const int64_t* batches, const int64_t* times) {
  table_of(handle)->load_clock(n, batches, times);
}

HOTROWS_API int64_t hotrows_keys_num_bytes(void* handle) { return table_of(handle)->num_bytes(); }
