// Counts: how often each value of each vocabulary was seen, in memory that does not grow.
//
// A vocabulary is a table (table.h). Threads work on different vocabularies, each in the order of the
// rows. Where the budget of all tables is used up, they stop where they are; the largest tables are
// written to run files (spill.h) until half of the budget is free, and counting goes on. A vocabulary
// is ranked from its table, or from its runs (ranking.h); nothing depends on what was spilled when.
//
// The counts are a handle that the caller creates and destroys. A failure is a negative errno, or
// -kDamaged or -kTooLong; `problem`, 4,096 bytes, then holds the path of the file.
#include "ranking.h"

#include <atomic>
#include <cstdio>
#include <exception>

namespace hotrows {
namespace {

constexpr int64_t kBlock = 64;     // values hashed and prefetched together, before the first is counted
constexpr int64_t kProblem = 4096;
constexpr int kTooLong = 100001;   // one value takes more memory than there is: no errno says it

// The values that are not missing, of rows that count at least once, from value `first` on.
class Chosen {
 public:
  Chosen(const Column& column, const int64_t* times, int64_t num_rows, int64_t first)
      : lengths_(column.lengths),
        offsets_(column.offsets),
        times_(times),
        next_(first),
        end_(num_rows) {
    if (!offsets_) return;
    CHECK(offsets_[0] >= 0 && never_falls(offsets_, num_rows + 1), offsets_[0], num_rows);
    next_ = std::max(first, offsets_[0]), end_ = offsets_[num_rows];
    row_ = std::upper_bound(offsets_, offsets_ + num_rows + 1, next_) - offsets_ - 1;
  }

  // Fills `block` with the numbers of the next values, `times` with how often each counts; returns how
  // many, 0 at the end.
  int64_t next(int64_t* block, int64_t* times) {
    return offsets_ ? next_of_lists(block, times) : next_of_rows(block, times);
  }

 private:
  int64_t next_of_rows(int64_t* block, int64_t* times) {
    int64_t n = 0;
    for (; n < kBlock && next_ < end_; ++next_) {
      block[n] = next_;
      times[n] = times_[next_];
      n += times_[next_] > 0 && lengths_[next_] > 0;
    }
    return n;
  }

  int64_t next_of_lists(int64_t* block, int64_t* times) {
    int64_t n = 0;
    while (n < kBlock && next_ < end_) {
      while (next_ >= offsets_[row_ + 1]) ++row_;
      if (times_[row_] <= 0) {
        next_ = offsets_[row_ + 1];
        continue;
      }
      CHECK(offsets_[row_] <= next_ && next_ < offsets_[row_ + 1], row_, next_);
      block[n] = next_;
      times[n] = times_[row_];
      n += lengths_[next_++] > 0;
    }
    return n;
  }

  const uint32_t* lengths_;
  const int64_t* offsets_;
  const int64_t* times_;
  int64_t next_, end_, row_ = 0;
};

struct Vocabulary {
  explicit Vocabulary(Budget& budget) : table(budget) {}

  Table table;
  std::vector<int64_t> runs;          // numbers of its run files
  int64_t feature = 0, value = 0;     // where counting stopped, as the budget was used up
};

struct Batch {
  const Column* columns;
  const int64_t* owners;
  int64_t num_features;
  const int64_t* times;  // how often the values of each row count
  int64_t num_rows;
};

// Counts a column from value `first` on; returns the value that found no room, or -1.
int64_t count_column(Table& table, const Column& column, const Batch& batch, int64_t first) {
  Chosen values(column, batch.times, batch.num_rows, first);
  int64_t block[kBlock], times[kBlock];
  Key keys[kBlock];
  while (const int64_t n = values.next(block, times)) {
    for (int64_t i = 0; i < n; ++i) {
      CHECK(block[i] >= first && block[i] < column.num_values, block[i], first, column.num_values);
      CHECK(i == 0 || block[i - 1] < block[i], block[i]);
      keys[i] = key_of(column.at(block[i]), column.end());
      table.prefetch(keys[i]);
    }
    for (int64_t i = 0; i < n; ++i) {
      int64_t* const count = table.at(keys[i]);
      if (!count) return block[i];
      CHECK(*count >= 0 && *count <= INT64_MAX - times[i], *count, times[i]);
      *count += times[i];
    }
  }
  return -1;
}

// Runs work(i) for i < n on several threads; throws the first failure, by the order of i.
template <typename Work>
void in_parallel(int64_t n, int64_t threads, Work work) {
  std::vector<std::exception_ptr> failures(n);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < n; ++i) {
    try {
      work(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

class Counts {
 public:
  Counts(int64_t num_vocabularies, int64_t memory, const char* folder)
      : budget_(memory), folder_(folder) {
    for (int64_t v = 0; v < num_vocabularies; ++v) {
      vocabularies_.push_back(std::make_unique<Vocabulary>(budget_));
    }
  }

  void add(const Batch& batch, int64_t threads) {
    for (auto& vocabulary : vocabularies_) vocabulary->feature = vocabulary->value = 0;
    const std::vector<int64_t> order = by_falling_size();
    int64_t at_once = threads;
    while (true) {
      in_parallel(num(), at_once, [&](int64_t i) { count(order[i], batch); });
      const bool done = std::all_of(order.begin(), order.end(), [&](int64_t v) {
        return of(v).feature == batch.num_features;
      });
      if (done) return;
      if (!all_empty()) {
        spill_until(budget_.limit() / 2, threads);
        at_once = threads;
      } else if (at_once > 1) {
        at_once = 1;  // each may have kept the others from its first value
      } else {
        throw FileError{kTooLong, ""};
      }
    }
  }

  // Writes tables to run files, the largest first and at least one, until at most `most` bytes are in
  // use.
  void spill_until(int64_t most, int64_t threads) {
    const std::vector<int64_t> order = by_falling_size();
    int64_t left = budget_.used(), n = 0;
    while (n < num() && (n == 0 || left > most)) left -= of(order[n++]).table.num_bytes();
    CHECK(left >= 0, left);
    in_parallel(n, threads, [&](int64_t i) { spill(order[i]); });
  }

  void spill(int64_t v) {
    Table& table = of(v).table;
    if (table.used() > 0) {
      const int64_t number = num_runs_++;
      write_run(table, run_path(v, number));
      CHECK(of(v).runs.empty() || of(v).runs.back() < number, v, number);
      of(v).runs.push_back(number);
    }
    table.clear();
    CHECK(table.used() == 0 && table.num_bytes() == 0, v, table.num_bytes());
  }

  Written write(int64_t v, int64_t min_count, const StoredValues& known, int64_t threads) {
    if (known.num_values > 0) spill(v);
    const Shares shares{std::max((budget_.limit() - budget_.used()) / threads, budget_.limit() / 16)};
    const std::string path = path_of("write", v);
    if (of(v).runs.empty() && known.num_values == 0) {
      return write_table(of(v).table, min_count, path, shares);
    }
    spill(v);
    std::vector<Run> runs;
    for (const int64_t number : of(v).runs) runs.push_back({run_path(v, number), nullptr});
    return write_runs(std::move(runs), known, min_count, path, shares);
  }

  void resume(int64_t v, const int64_t* runs, int64_t n, int64_t num_runs) {
    CHECK(are_within(runs, n, 0, num_runs), n, num_runs);
    of(v).runs.assign(runs, runs + n);
    num_runs_ = num_runs;
  }

  Vocabulary& of(int64_t v) {
    CHECK(v >= 0 && v < num(), v, num());
    return *vocabularies_[v];
  }
  int64_t num() const { return static_cast<int64_t>(vocabularies_.size()); }
  const Budget& budget() const { return budget_; }
  int64_t num_runs() const { return num_runs_; }

 private:
  // Goes on where the vocabulary stopped; stops where it finds no room.
  void count(int64_t v, const Batch& batch) {
    Vocabulary& vocabulary = of(v);
    for (; vocabulary.feature < batch.num_features; ++vocabulary.feature, vocabulary.value = 0) {
      const int64_t f = vocabulary.feature;
      if (batch.owners[f] != v) continue;
      CHECK(vocabulary.value >= 0 && vocabulary.value <= batch.columns[f].num_values, v, f, vocabulary.value);
      const int64_t stopped = count_column(vocabulary.table, batch.columns[f], batch, vocabulary.value);
      if (stopped < 0) continue;
      vocabulary.value = stopped;
      if (vocabulary.table.used() == 0) vocabulary.table.clear();
      return;
    }
  }

  void write_run(Table& table, const std::string& path) {
    if (kChecks) table.check_all();
    Cell* const cells = table.compact();
    std::sort(cells, cells + table.used(), [](const Cell& a, const Cell& b) {
      if (a.slot.tag != b.slot.tag) return a.slot.tag < b.slot.tag;
      return before(counted(a.slot), counted(b.slot));
    });
    for (int64_t i = 1; kChecks && i < table.used(); ++i)
      CHECK(before(counted(cells[i - 1].slot), counted(cells[i].slot)), i);  // as merging has them, by the whole hash
    RunWriter to(File::create(path), Shares{budget_.limit()}.buffer());
    for (int64_t i = 0; i < table.used(); ++i) to.put(counted(cells[i].slot));
    to.close();
  }

  static Counted counted(const Slot& slot) {
    const Field value = Table::value(slot);
    return {key_of(value, value.data + std::max(value.length + 8, 8u)).hash, slot.count, value};
  }

  bool all_empty() const {
    return std::all_of(vocabularies_.begin(), vocabularies_.end(),
                       [](const auto& vocabulary) { return vocabulary->table.used() == 0; });
  }

  std::vector<int64_t> by_falling_size() {
    std::vector<int64_t> order(num());
    for (int64_t v = 0; v < num(); ++v) order[v] = v;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return of(a).table.num_bytes() > of(b).table.num_bytes();
    });
    return order;
  }

  std::string path_of(const char* what, int64_t v) const {
    char name[64];
    std::snprintf(name, sizeof name, "/%s-%05lld", what, static_cast<long long>(v));
    return folder_ + name;
  }

  std::string run_path(int64_t v, int64_t number) const {
    return path_of("run", v) + "-" + std::to_string(number);
  }

  Budget budget_;
  std::string folder_;
  std::vector<std::unique_ptr<Vocabulary>> vocabularies_;
  std::atomic<int64_t> num_runs_{0};
};

Counts& counts(void* handle) { return *static_cast<Counts*>(handle); }

// Does the work; what it throws becomes the value returned, and the path of the file.
template <typename Work>
int64_t reported(char* problem, Work work) {
  try {
    work();
    return 0;
  } catch (const FileError& failure) {
    std::snprintf(problem, kProblem, "%s", failure.path.c_str());
    return -failure.error;
  } catch (const std::exception&) {  // bad_alloc, or the length of a vector
    return -ENOMEM;
  }
}

}  // namespace
}  // namespace hotrows

using namespace hotrows;

HOTROWS_API void* hotrows_counts_new(int64_t num_vocabularies, int64_t memory, const char* folder) {
  return new Counts(num_vocabularies, memory, folder);
}

HOTROWS_API void hotrows_counts_free(void* handle) { delete &counts(handle); }

// Counts the values of row r times[r] times: those of columns[f] into vocabulary owners[f].
HOTROWS_API int64_t hotrows_counts_add(void* handle, const Column* columns, const int64_t* owners,
                                       int64_t num_features, const int64_t* times, int64_t num_rows,
                                       int64_t threads, char* problem) {
  const Batch batch{columns, owners, num_features, times, num_rows};
  return reported(problem, [&] { counts(handle).add(batch, threads); });
}

// Writes all tables to run files.
HOTROWS_API int64_t hotrows_counts_spill(void* handle, int64_t threads, char* problem) {
  return reported(problem, [&] { counts(handle).spill_until(0, threads); });
}

// Writes the columns of vocabulary v to raw files: FOLDER/write-VVVVV.counts, .ends, .text and .index.
// results = {values, distinct values}. Several threads may write, each another vocabulary.
HOTROWS_API int64_t hotrows_counts_write(void* handle, int64_t v, int64_t min_count,
                                         const StoredValues* known, int64_t threads, int64_t* results,
                                         char* problem) {
  return reported(problem, [&] {
    const Written written = counts(handle).write(v, min_count, *known, threads);
    results[0] = written.num_values;
    results[1] = written.num_distinct;
  });
}

// sizes = {bytes in use by tables, the most that ever were, number of the next run}.
HOTROWS_API int64_t hotrows_counts_sizes(void* handle, int64_t* sizes) {
  const Counts& all = counts(handle);
  sizes[0] = all.budget().used();
  sizes[1] = all.budget().peak();
  sizes[2] = all.num_runs();
  return 0;
}

// Copies the numbers of the runs of vocabulary v, of the first `room` at most; returns how many there
// are.
HOTROWS_API int64_t hotrows_counts_runs(void* handle, int64_t v, int64_t* runs, int64_t room) {
  const std::vector<int64_t>& found = counts(handle).of(v).runs;
  const int64_t num = static_cast<int64_t>(found.size());
  std::copy_n(found.begin(), std::min(num, room), runs);
  return num;
}

// Takes over n runs of vocabulary v, which stand in the folder; num_runs is the number of the next.
HOTROWS_API int64_t hotrows_counts_resume(void* handle, int64_t v, const int64_t* runs, int64_t n,
                                          int64_t num_runs) {
  counts(handle).resume(v, runs, n, num_runs);
  return 0;
}
