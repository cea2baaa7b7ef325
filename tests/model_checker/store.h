// The file store in the model: what reads find, what checkpoints are, merging, and the way back after a crash.
// The code that it follows: storage/file_store.py, storage/merging.py, storage/store_state.py.
#pragma once
#include <cstring>

#include "state.h"

namespace model {

constexpr bool has(unsigned bits, int n) { return bits >> n & 1; }
constexpr unsigned up_to(int generation) { return (2u << generation) - 1; }
inline int highest(unsigned bits) { return bits ? 31 - __builtin_clz(bits) : 0; }
inline int lowest(unsigned bits) { return bits ? __builtin_ctz(bits) : 0; }

// A store under the rules that a case does not remove.
class Store {
 public:
  Store(File& file, const Case& c) : f_(file), case_(c) {}

  bool keeps(Rule rule) const { return !(case_.removed >> rule & 1); }

  static Token read(const File& f, int row) {
    for (int g = highest(f.readers); g > 0; --g)
      if (has(f.readers, g) && f.index[g][row]) return f.index[g][row];
    return f.base[f.reads][row];
  }

  void write(int row, Token value, bool keeps_row) {
    if (!keeps(kWritesToLog)) {
      f_.base[f_.reads][row] = value;
      return;
    }
    f_.log[f_.open][row] = value;
    if (!keeps_row) f_.index[f_.open][row] = value;
  }

  // Syncs the open log and names it in store.json; false: there are no more numbers.
  bool close_log() {
    if (f_.open + 1 >= kGenerations) return false;
    f_.taken = f_.open;
    f_.closed |= 1u << f_.open;
    begin_log();
    return true;
  }

  void retain(unsigned generations) {
    f_.retained = static_cast<uint8_t>(generations);
    drop_unneeded();
  }

  int merged() const { return highest(f_.bases); }
  int base_of(int generation) const { return highest(f_.bases & up_to(generation)); }
  unsigned logs_of(int generation) const { return f_.closed & up_to(generation) & ~up_to(base_of(generation)); }

  bool is_restorable(int g) const {
    const int last = f_.retained ? highest(f_.retained) : merged();
    return has(f_.retained, g) || (has(f_.closed, g) && g > last);
  }

  // A row of a generation, in a view and once the store went back to it; 0: initial. whole: whether all files that
  // it needs are there.
  Token view(int generation, int row, bool& whole) const {
    const unsigned logs = logs_of(generation);
    for (int g = generation; g > 0; --g) {
      if (!has(logs, g)) continue;
      if (!has(f_.logs, g)) whole = false;
      if (f_.log[g][row]) return f_.log[g][row];
    }
    return f_.base[base_of(generation)][row];
  }

  // ---- merging, one step at a time

  // The newest log that is merged next, with all before it; 0: none is due.
  int next_log() const {
    const unsigned due = keeps(kMergesPublished) ? up_to(highest(f_.retained)) : ~0u;
    return highest(f_.closed & f_.readers & due);
  }

  void begin_merging(int g) {
    f_.merging = kWriting;
    f_.target = static_cast<uint8_t>(g);
    std::memset(f_.base[g], 0, kRows);
    f_.left = 0;
    for (int row = 0; row < case_.rows; ++row) f_.left |= (merged_row(row) != 0) << row;
  }

  // What the new base has of a row: the newest of its logs, or what the base has that reads look into.
  Token merged_row(int row) const {
    for (int g = f_.target; g > f_.reads; --g)
      if (has(f_.closed & f_.readers, g) && f_.log[g][row]) return f_.log[g][row];
    return f_.base[f_.reads][row];
  }

  // store.json names the new base; files that nobody needs go.
  void save_merged() {
    f_.bases |= 1u << f_.target;
    drop_unneeded();
    leave_logs();
    if (keeps(kSwitchAtOnce)) {
      switch_base();
    } else {
      f_.merging = kSaved;
    }
  }

  void switch_base() {
    if (!has(f_.bases, f_.reads)) std::memset(f_.base[f_.reads], 0, kRows);
    f_.reads = f_.target;
    f_.merging = f_.target = f_.left = 0;
  }

  // ---- a crash, and the way back

  void crash() {
    std::memset(f_.index, 0, sizeof f_.index);
    for (int g = 1; g < kGenerations; ++g) {  // a file that store.json does not name means nothing
      if (!has(f_.bases, g)) std::memset(f_.base[g], 0, kRows);
      if (!has(f_.closed, g) && keeps(kGoBack)) std::memset(f_.log[g], 0, kRows);
    }
    f_.readers = f_.reads = f_.merging = f_.target = f_.left = f_.taken = 0;
    f_.restart = kIsDown;
  }

  // Names no later generation in store.json any more; 0: none at all. False: there are no more numbers.
  bool save_back_to(int generation) {
    if (f_.open + 1 >= kGenerations) return false;
    const unsigned kept = generation ? up_to(generation) : 0;
    drop_logs(~(f_.closed & kept) & 0xff);
    f_.closed &= kept;
    f_.retained &= kept;
    drop_bases(~kept);
    ++f_.open;
    drop_unneeded();
    return true;
  }

  void drop_logs(unsigned logs) {
    f_.logs &= ~logs;
    for (int g = 1; g < kGenerations; ++g)
      if (has(logs, g)) std::memset(f_.log[g], 0, kRows);
  }

  // Opens what store.json names; an index then has the newest record of each row.
  void open_logs() {
    f_.logs |= 1u << f_.open;
    f_.reads = static_cast<uint8_t>(base_of(f_.open));
    f_.readers = logs_of(f_.open) | 1u << f_.open;
    for (int g = 1; g < kGenerations; ++g)
      if (has(f_.readers, g)) std::memcpy(f_.index[g], f_.log[g], kRows);
  }

 private:
  // Deletes what neither a retained generation is read from nor the present. An open file is read on, once deleted.
  void drop_unneeded() {
    unsigned bases = 0, logs = 0;
    const unsigned generations = (keeps(kMergedFilesStay) ? f_.retained : 0) | 1u << f_.open;
    for (int g = 0; g < kGenerations; ++g) {
      if (!has(generations, g)) continue;
      bases |= 1u << base_of(g);
      logs |= logs_of(g);
    }
    drop_bases(~bases);
    drop_logs(f_.closed & ~logs);
    f_.closed &= logs;
  }

  void drop_bases(unsigned bases) {
    for (int g = 1; g < kGenerations; ++g)
      if (has(f_.bases & bases, g) && g != f_.reads) std::memset(f_.base[g], 0, kRows);
    f_.bases &= ~bases;
  }

  void leave_logs() {
    const unsigned merged = f_.readers & up_to(f_.target);
    f_.readers &= ~merged;
    for (int g = 1; g < kGenerations; ++g)
      if (has(merged, g)) std::memset(f_.index[g], 0, kRows);
  }

  void begin_log() {
    ++f_.open;
    f_.logs |= 1u << f_.open;
    f_.readers |= 1u << f_.open;
  }

  File& f_;
  const Case& case_;
};

}  // namespace model
