// Ranking: counted values into a finished vocabulary, in memory or by sorting in files.
//
//   table ---------------------> Ranked, sorted -----------------+--> counts, ends, text
//   runs (hash, length, bytes)                                   |
//     -> merged, counts summed -> RankSorter (-count, bytes) ----+
//                                                                +--> Placed, sorted by hash -> index
//
// Where everything is still in the table, its slots become Ranked and then Placed in their place, and
// nothing is spilled. Otherwise each sort keeps what `memory` holds, spills it when full, and merges at
// the end. Both ways give the same bytes.
#pragma once

#include "index.h"

namespace hotrows {

constexpr uint64_t kFirstNew = 1ull << 63;  // keys of new values begin here, those of known ones at 0

inline bool before(const Ranked& a, const Ranked& b) {
  if (a.key != b.key) return a.key < b.key;
  if (a.prefix != b.prefix) return a.prefix < b.prefix;
  if (a.ref <= 8 || b.ref <= 8) return a.ref < b.ref;  // zero-padded alike: the shorter comes first
  const Field x = stored_value(a.ref), y = stored_value(b.ref);
  const int order = std::memcmp(x.data, y.data, std::min(x.length, y.length));
  return order != 0 ? order < 0 : x.length < y.length;
}

template <typename T>
void sort(T* first, int64_t n) {
  std::sort(first, first + n, [](const T& a, const T& b) { return before(a, b); });
  for (int64_t i = 1; kChecks && i < n; ++i) CHECK(before(first[i - 1], first[i]), i, n);  // no two are equal
}

// How `memory` bytes are shared out: half to a sort, a quarter to the files that are merged into it.
struct Shares {
  int64_t memory;

  int64_t sort() const { return std::max<int64_t>(memory / 2, 1 << 10); }
  int64_t buffer() const { return std::clamp<int64_t>(memory / 64, 1 << 12, 1 << 18); }
  int64_t fan_in() const { return std::clamp<int64_t>(memory >> 16, 4, 64); }
  int64_t buffer_of(int64_t num_sources) const {
    return std::clamp<int64_t>(memory / 4 / num_sources, 1 << 12, 1 << 20);
  }
};

// Sorted pieces of one file without a name.
class Pieces {
 public:
  Pieces(const std::string& path, Shares shares) : path_(path), shares_(shares) {}

  // A place to write the next piece to, until `end`.
  Writer& begin() {
    if (!to_) to_ = std::make_unique<Writer>(File::scratch(path_), shares_.buffer());
    return *to_;
  }

  void end() {
    CHECK(ends_.empty() || to_->offset() > ends_.back(), to_->offset());
    ends_.push_back(to_->offset());
  }

  template <typename Source, typename Visit>
  void merge(Visit visit) {
    CHECK(to_ && !ends_.empty() && to_->offset() == ends_.back());
    to_->flush();
    std::vector<Source> sources;
    const int64_t num = static_cast<int64_t>(ends_.size());
    for (int64_t i = 0; i < num; ++i) {
      const int64_t begin = i ? ends_[i - 1] : 0;
      sources.emplace_back(Reader(to_->file(), begin, ends_[i], shares_.buffer_of(num)));
    }
    merge_sorted(sources, [](const auto& a, const auto& b) { return before(a, b); }, visit);
  }

  bool empty() const { return ends_.empty(); }

 private:
  std::string path_;
  Shares shares_;
  std::unique_ptr<Writer> to_;
  std::vector<int64_t> ends_;
};

// Sorts values into the order of their ranks.
class RankSorter {
 public:
  RankSorter(const std::string& path, Shares shares) : memory_(shares.sort()), pieces_(path, shares) {}

  void add_known(int64_t rank, int64_t count) {
    CHECK(rank >= 0 && count >= 0, rank, count);
    make_room(sizeof(Ranked));
    ranked()[num_++] = {static_cast<uint64_t>(rank), static_cast<uint64_t>(count), 0};
  }

  void add_new(int64_t count, const Key& key) {
    const int64_t length = key.field.length, need = length > 8 ? length + 4 : 0;
    CHECK(count > 0 && static_cast<uint64_t>(~count) >= kFirstNew && length > 0, count, length);
    make_room(sizeof(Ranked) + need);
    uint64_t ref = length;
    if (length > 8) {
      stored_ += need;
      char* const p = memory_.as<char>() + memory_.size() - stored_;
      std::memcpy(p, &key.field.length, 4);
      std::memcpy(p + 4, key.field.data, length);
      ref = reinterpret_cast<uint64_t>(p);
    }
    CHECK((num_ + 1) * static_cast<int64_t>(sizeof(Ranked)) + stored_ <= memory_.size(), num_, stored_, memory_.size());
    ranked()[num_++] = {~static_cast<uint64_t>(count), __builtin_bswap64(key.word), ref};
  }

  // Visits all in order; what they refer to stays until the next.
  template <typename Visit>
  void finish(Visit visit) {
    if (!pieces_.empty()) {
      spill();
      memory_ = Zeroed();
      pieces_.merge<Source>(visit);
      return;
    }
    sort(ranked(), num_);
    for (int64_t i = 0; i < num_; ++i) visit(ranked()[i]);
  }

 private:
  static constexpr int64_t kSpare = 8;  // the last word of a value may be read whole
  static constexpr int64_t kHead = 20;

  struct Source {  // records: key, prefix, uint32 length, the bytes of more than eight, zeros
    explicit Source(Reader reader) : from(std::move(reader)) {}

    Reader from;
    Ranked current{};

    bool next() {
      if (from.at_end()) return false;
      const char* p = from.peek(kHead);
      uint32_t length;
      std::memcpy(&length, p + 16, 4);
      const int64_t size = padded(kHead + (length > 8 ? length : 0));
      p = from.peek(size);
      std::memcpy(&current, p, 16);
      current.ref = length > 8 ? reinterpret_cast<uint64_t>(p + 16) : length;
      from.skip(size);
      return true;
    }
  };

  Ranked* ranked() { return memory_.as<Ranked>(); }

  void make_room(int64_t need) {
    const auto fits = [&] {
      return num_ * static_cast<int64_t>(sizeof(Ranked)) + stored_ + need <= memory_.size();
    };
    if (fits()) return;
    if (num_ > 0) spill();
    if (!fits()) memory_ = Zeroed(need + kSpare);
    CHECK(fits(), num_, stored_, need, memory_.size());
  }

  void spill() {
    sort(ranked(), num_);
    Writer& to = pieces_.begin();
    for (int64_t i = 0; i < num_; ++i) write(to, ranked()[i]);
    pieces_.end();
    num_ = 0, stored_ = kSpare;
  }

  static void write(Writer& to, const Ranked& r) {
    const Field bytes = r.ref > 8 ? stored_value(r.ref) : Field{nullptr, 0};
    const int64_t used = kHead + bytes.length, size = padded(used);
    const uint32_t length = r.ref > 8 ? bytes.length : static_cast<uint32_t>(r.ref);
    char* const p = to.room(size);
    std::memcpy(p, &r, 16);
    std::memcpy(p + 16, &length, 4);
    if (bytes.length) std::memcpy(p + kHead, bytes.data, bytes.length);
    std::memset(p + used, 0, size - used);
  }

  Zeroed memory_;  // Ranked from the front, bytes from the back
  Pieces pieces_;
  int64_t num_ = 0, stored_ = kSpare;
};

// Sorts values into the order of their hashes.
class PlaceSorter {
 public:
  PlaceSorter(const std::string& path, Shares shares)
      : memory_(shares.sort()), pieces_(path, shares) {}

  void add(const Placed& value) {
    if ((num_ + 1) * static_cast<int64_t>(sizeof(Placed)) > memory_.size()) spill();
    CHECK((num_ + 1) * static_cast<int64_t>(sizeof(Placed)) <= memory_.size(), num_, memory_.size());
    placed()[num_++] = value;
  }

  template <typename Visit>
  void finish(Visit visit) {
    if (!pieces_.empty()) {
      spill();
      memory_ = Zeroed();
      pieces_.merge<Source>(visit);
      return;
    }
    sort(placed(), num_);
    for (int64_t i = 0; i < num_; ++i) visit(placed()[i]);
  }

 private:
  struct Source {
    explicit Source(Reader reader) : from(std::move(reader)) {}

    Reader from;
    Placed current{};

    bool next() {
      if (from.at_end()) return false;
      std::memcpy(&current, from.peek(sizeof current), sizeof current);
      from.skip(sizeof current);
      return true;
    }
  };

  Placed* placed() { return memory_.as<Placed>(); }

  void spill() {
    sort(placed(), num_);
    Writer& to = pieces_.begin();
    for (int64_t i = 0; i < num_; ++i) to.put(placed()[i]);
    pieces_.end();
    num_ = 0;
  }

  Zeroed memory_;
  Pieces pieces_;
  int64_t num_ = 0;
};

// A run: a file that has a name, or one that has none and is open.
struct Run {
  std::string path;
  FilePtr file;

  FilePtr open() const { return file ? file : File::open(path); }
};

// The runs of one vocabulary, each value once, in the order of (hash, length, bytes).
class RunMerger {
 public:
  RunMerger(const std::string& path, Shares shares, std::vector<Run> runs)
      : path_(path), shares_(shares), runs_(std::move(runs)) {}

  // Calls visit(key, count, rank) for each value; rank is -1 for one that is not known.
  template <typename Visit>
  void merge(Visit visit) {
    const size_t most = shares_.fan_in();
    while (runs_.size() > most) {
      const std::vector<Run> first(runs_.begin(), runs_.begin() + most);
      runs_.erase(runs_.begin(), runs_.begin() + most);
      runs_.push_back(merged(first));
    }
    CHECK(runs_.size() <= most && most > 1, runs_.size(), most);
    sum(runs_, visit);
  }

 private:
  Run merged(const std::vector<Run>& runs) {
    const FilePtr file = File::scratch(path_);
    RunWriter to(file, shares_.buffer());
    sum(runs, [&](const Key& key, int64_t count, int64_t rank) {
      if (count > 0) to.put({key.hash, count, key.field});
      if (rank >= 0) to.put({key.hash, -1 - rank, key.field});
    });
    to.close();
    return {path_, file};
  }

  template <typename Visit>
  void sum(const std::vector<Run>& runs, Visit visit) {
    std::vector<RunReader> sources;
    const int64_t buffer = shares_.buffer_of(std::max<int64_t>(1, runs.size()));
    sources.reserve(runs.size());
    for (const Run& run : runs) sources.emplace_back(run.open(), buffer);
    std::vector<char> bytes;
    Counted sum{};
    int64_t rank = -1;
    const auto emit = [&] {
      if (sum.value.length == 0) return;
      const Key key{sum.value, sum.hash, first_word(sum.value, bytes.data() + bytes.size())};
      visit(key, sum.count, rank);
    };
    const auto less = [](const Counted& a, const Counted& b) { return before(a, b); };
    merge_sorted(sources, less, [&](const Counted& next) {
      if (next.hash != sum.hash || !same(next.value, sum.value)) {
        emit();
        bytes.resize(std::max<size_t>(bytes.size(), next.value.length + 8));
        std::memcpy(bytes.data(), next.value.data, next.value.length);
        sum = {next.hash, 0, {bytes.data(), next.value.length}};
        rank = -1;
      }
      if (next.count < 0) rank = -1 - next.count;
      else sum.count += next.count;
    });
    emit();
  }

  std::string path_;
  Shares shares_;
  std::vector<Run> runs_;
};

// Runs of the values of a stored vocabulary, with their ranks.
inline void add_known_runs(const StoredValues& known, const std::string& path, Shares shares,
                           std::vector<Run>& runs) {
  struct Known {
    uint64_t hash;
    int64_t rank;
  };
  const int64_t most = std::max<int64_t>(1, shares.sort() / sizeof(Known));
  const int64_t num = static_cast<int64_t>(known.num_values);
  std::vector<Known> batch;
  batch.reserve(std::min(most, num));
  for (int64_t first = 0; first < num; first += most) {
    const int64_t end = std::min(first + most, num);
    batch.clear();
    for (int64_t rank = first; rank < end; ++rank) {
      batch.push_back({key_of(known.value(rank), known.text_end()).hash, rank});
    }
    const auto counted = [&](const Known& k) {
      return Counted{k.hash, -1 - k.rank, known.value(k.rank)};
    };
    std::sort(batch.begin(), batch.end(),
              [&](const Known& a, const Known& b) { return before(counted(a), counted(b)); });
    const FilePtr file = File::scratch(path);
    RunWriter to(file, shares.buffer());
    CHECK(static_cast<int64_t>(batch.size()) == end - first && end > first, batch.size(), first, end);
    for (const Known& k : batch) to.put(counted(k));
    to.close();
    runs.push_back({path, file});
  }
}

// The columns of a finished vocabulary, as raw files: PATH.counts, .ends, .text and .index.
class Output {
 public:
  Output(const std::string& path, Shares shares, const StoredValues& known)
      : path_(path),
        shares_(shares),
        known_(known),
        counts_(File::create(path + ".counts"), shares.buffer()),
        ends_(File::create(path + ".ends"), shares.buffer()),
        text_(File::create(path + ".text"), shares.buffer()) {}

  // Appends the value of the next rank.
  Placed put(const Ranked& r) {
    const bool is_known = r.key < kFirstNew;
    CHECK(!is_known || num_values_ < static_cast<int64_t>(known_.num_values), r.key, num_values_, known_.num_values);
    const uint64_t word = __builtin_bswap64(r.prefix);
    Field value{reinterpret_cast<const char*>(&word), static_cast<uint32_t>(r.ref)};
    if (is_known) value = known_.value(num_values_);
    else if (r.ref > 8) value = stored_value(r.ref);
    text_.put(value);
    counts_.put(is_known ? static_cast<int64_t>(r.prefix) : static_cast<int64_t>(~r.key));
    ends_.put(text_.offset());
    const char* const end = is_known ? known_.text_end() : value.data + value.length + 8;
    return placed(key_of(value, r.ref > 8 || is_known ? end : value.data + 8), num_values_++);
  }

  IndexWriter index() {
    counts_.flush(), ends_.flush(), text_.flush();
    return IndexWriter(File::create(path_ + ".index"), shares_.buffer(), num_values_);
  }

  int64_t num_values() const { return num_values_; }

 private:
  std::string path_;
  Shares shares_;
  StoredValues known_;
  Writer counts_, ends_, text_;
  int64_t num_values_ = 0;
};

struct Written {
  int64_t num_values, num_distinct;
};

// What the table counted, ranked in its place. The table is empty afterwards.
inline Written write_table(Table& table, int64_t min_count, const std::string& path, Shares shares) {
  Output out(path, shares, StoredValues{});
  if (kChecks) table.check_all();
  Cell* const cells = table.compact();
  const int64_t num_distinct = table.used();
  int64_t n = 0;
  for (int64_t i = 0; i < num_distinct; ++i) {
    const Slot slot = cells[i].slot;
    if (slot.count < min_count) continue;
    const Field value = Table::value(slot);
    const uint64_t ref = slot.length <= 8 ? slot.length : slot.word;
    const uint64_t prefix = __builtin_bswap64(first_word(value, value.data + 8));
    cells[n++].ranked = {~static_cast<uint64_t>(slot.count), prefix, ref};
  }
  if (n > 0) sort(&cells[0].ranked, n);  // an empty table has no cells
  for (int64_t i = 0; i < n; ++i) cells[i].placed = out.put(Ranked(cells[i].ranked));
  table.clear_arena();
  if (n > 0) sort(&cells[0].placed, n);
  IndexWriter index = out.index();
  CHECK(out.num_values() == n && n <= num_distinct, out.num_values(), n, num_distinct);
  for (int64_t i = 0; i < n; ++i) index.put(cells[i].placed);
  index.close();
  table.clear();
  return {n, num_distinct};
}

// What runs hold and what is known, ranked by sorting in files.
inline Written write_runs(std::vector<Run> runs, const StoredValues& known, int64_t min_count,
                          const std::string& path, Shares shares) {
  add_known_runs(known, path + ".known", shares, runs);
  int64_t size = 0;
  for (const Run& run : runs) size += run.open()->size();
  shares.memory = std::min(shares.memory, 4 * size + (64 << 10));  // no more than ever is needed
  Output out(path, shares, known);
  PlaceSorter places(path + ".places", shares);
  int64_t num_distinct = 0;
  {
    RankSorter ranks(path + ".ranks", shares);
    RunMerger(path + ".merge", shares, std::move(runs))
        .merge([&](const Key& key, int64_t count, int64_t rank) {
          num_distinct += count > 0;
          if (rank >= 0) ranks.add_known(rank, count);
          else if (count >= min_count) ranks.add_new(count, key);
        });
    ranks.finish([&](const Ranked& r) { places.add(out.put(r)); });
  }
  IndexWriter index = out.index();
  Placed last{};
  int64_t num_put = 0;
  places.finish([&](const Placed& p) {
    CHECK(num_put == 0 || before(last, p), num_put, last.hash, p.hash);
    if (kChecks) last = p, ++num_put;
    index.put(p);
  });
  CHECK(num_put == out.num_values(), num_put, out.num_values());
  index.close();
  return {out.num_values(), num_distinct};
}

}  // namespace hotrows
