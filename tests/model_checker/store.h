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
    return f.base[row];
  }

  void write(int row, Token value, bool keeps_row) {
    if (!keeps(kWritesToLog)) {
      f_.base[row] = value;
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
    const unsigned needed = generations ? ~up_to(lowest(generations)) : 0;
    drop_journals(f_.named & ~needed);
  }

  bool is_restorable(int g) const {
    const int last = f_.retained ? highest(f_.retained) : f_.merged;
    return has(f_.retained, g) || (has(f_.closed, g) && g > last);
  }

  // A row as `view(generation)` shows it; 0: initial. whole: whether all files that it needs are there.
  Token view(int generation, int row, bool& whole) const {
    for (int g = generation; g > 0; --g) {
      if (!has(f_.closed, g)) continue;
      if (!has(f_.logs, g)) whole = false;
      if (f_.log[g][row]) return f_.log[g][row];
    }
    for (int i = 1; i < kGenerations; ++i) {  // of several journals, the oldest
      const int g = keeps(kViewOldestFirst) ? i : kGenerations - i;
      if (has(f_.named, g) && g > generation && f_.undo[g][row])
        return f_.undo[g][row] == kBare ? Token{0} : f_.undo[g][row];
    }
    return f_.base[row];
  }

  // A row once the store went back to a generation.
  Token gone_back(int generation, int row) const {
    for (int g = generation; g > 0; --g)
      if (has(f_.closed, g) && f_.log[g][row]) return f_.log[g][row];
    Token value = f_.base[row];
    for (unsigned left = f_.named & ~up_to(generation); left;) {
      const int g = next_journal(left);
      left &= ~(1u << g);
      if (f_.undo[g][row]) value = f_.undo[g][row] == kBare ? Token{0} : f_.undo[g][row];
    }
    return value;
  }

  // ---- merging, one step at a time; 0: none is due. Returns whether the step is the one asked about.

  int next_log() const {
    const unsigned due = keeps(kMergesPublished) ? up_to(highest(f_.retained)) : ~0u;
    const int oldest = lowest(f_.closed & f_.readers);
    return has(due, oldest) ? oldest : 0;
  }

  bool needs_undo(int g) const {
    return keeps(kUndoBeforeBase) && (f_.retained & (up_to(g) >> 1)) != 0 && !has(f_.named, g);
  }

  // Writes the journal of the log that is merged next: what `base` has of its rows, except for rows that an
  // earlier journal has as the same checkpoint needs them.
  void write_undo() {
    const int g = f_.target, before = highest(f_.retained & (up_to(g) >> 1));
    for (int row = 0; row < case_.rows; ++row) {
      bool earlier = false;
      for (int h = before + 1; h < g; ++h) earlier |= has(f_.named, h) && f_.undo[h][row];
      if (f_.log[g][row] && !earlier) f_.undo[g][row] = f_.base[row] ? f_.base[row] : kBare;
    }
  }

  unsigned rows_of(int g) const {
    unsigned rows = 0;
    for (int row = 0; row < case_.rows; ++row) rows |= unsigned{f_.log[g][row] != 0} << row;
    return rows;
  }

  // store.json says that `base` holds the generation; its log goes, and nobody reads it any more.
  void save_merged() {
    const int g = f_.target;
    f_.merged = static_cast<uint8_t>(g);
    f_.closed &= ~(1u << g);
    drop_logs(1u << g);
    f_.readers &= ~(1u << g);
    std::memset(f_.index[g], 0, kRows);
    f_.merging = f_.target = f_.left = 0;
  }

  // ---- a crash, and the way back

  void crash() {
    std::memset(f_.index, 0, sizeof f_.index);
    for (int g = 1; g < kGenerations; ++g) {  // a journal that store.json does not name means nothing
      if (!has(f_.named, g)) std::memset(f_.undo[g], 0, kRows);
      if (!has(f_.closed, g) && keeps(kGoBack)) std::memset(f_.log[g], 0, kRows);
    }
    f_.readers = f_.merging = f_.target = f_.left = f_.taken = 0;
    f_.restart = kIsDown;
  }

  // Names no later generation in store.json any more; 0: none at all. False: there are no more numbers.
  bool save_back_to(int generation) {
    if (f_.open + 1 >= kGenerations) return false;
    const unsigned kept = generation ? up_to(generation) : 0;
    drop_logs(~(f_.closed & kept) & 0xff);
    f_.closed &= kept;
    f_.retained &= kept;
    if (f_.merged > generation) f_.merged = static_cast<uint8_t>(generation);
    if (!generation) drop_journals(0xff);
    ++f_.open;
    return true;
  }

  int next_journal(unsigned journals) const {
    return keeps(kUndoNewestFirst) ? highest(journals) : lowest(journals);
  }

  void apply_undo(int g) {
    for (int row = 0; row < case_.rows; ++row)
      if (f_.undo[g][row]) f_.base[row] = f_.undo[g][row] == kBare ? Token{0} : f_.undo[g][row];
  }

  void drop_journals(unsigned journals) {
    f_.named &= ~journals;
    for (int g = 1; g < kGenerations; ++g)
      if (has(journals, g)) std::memset(f_.undo[g], 0, kRows);
  }

  void drop_logs(unsigned logs) {
    f_.logs &= ~logs;
    for (int g = 1; g < kGenerations; ++g)
      if (has(logs, g)) std::memset(f_.log[g], 0, kRows);
  }

  // Opens what store.json names; an index then has the newest record of each row.
  void open_logs() {
    f_.logs |= 1u << f_.open;
    f_.readers = f_.closed | 1u << f_.open;
    for (int g = 1; g < kGenerations; ++g)
      if (has(f_.readers, g)) std::memcpy(f_.index[g], f_.log[g], kRows);
  }

 private:
  void begin_log() {
    ++f_.open;
    f_.logs |= 1u << f_.open;
    f_.readers |= 1u << f_.open;
  }

  File& f_;
  const Case& case_;
};

}  // namespace model
