// The model: from a state, every event that may come next, and the state that it leads to. Beside the stages,
// these are the steps of pauses and checkpoints, of merging in the background, of a crash and of a restart.
// The code that it follows: pipeline/runner.py, checkpoint/writer.py, train/run_checkpoints.py.
#pragma once
#include <cstddef>

#include "stages.h"

namespace model {

class Model : public Stages {
 public:
  using Stages::Stages;

  // Bytes of a state that mean something: the same for all states of a case.
  size_t size() const {
    if (case_.ranks == kRanks) return sizeof(State);
    return case_.in_file ? offsetof(State, ranks[1]) : offsetof(State, ranks[0].file);
  }

  State initial() const {
    State s{};
    s.crashes = static_cast<uint8_t>(case_.crashes);
    for (int p = 0; p < case_.ranks; ++p) {
      File& file = s.ranks[p].file;
      file.open = 1;
      file.logs = file.readers = 1u << 1;
      start(s, p);
    }
    return s;
  }

  bool is_final(const State& s) const {
    for (int p = 0; p < case_.ranks; ++p) {
      const Pipe& pipe = s.ranks[p].pipe;
      const bool is_done = pipe.done[kTrain] == case_.batches && pipe.done[kWrite] == case_.batches;
      if (s.down || !is_done || pipe.phase || pause_is_due(pipe)) return false;
    }
    return true;
  }

  // At the end every row has the value of serial training.
  void check_end(State s) {
    for (int p = 0; p < case_.ranks; ++p) check_present(s, p, case_.batches, kWrongEnd);
  }

  // Calls emit(event, state) for every event that may come next; `violation` says what is wrong with it.
  template <class Emit>
  void successors(const State& s, Emit emit) {
    for (int p = 0; p < case_.ranks; ++p) {
      if (s.down) {
        if (case_.in_file) restart_file(s, p, emit);
        continue;
      }
      for (int stage = 0; stage < kStages; ++stage) stage_events(s, p, stage, emit);
      pause_events(s, p, emit);
      if (case_.in_file) merge_events(s, p, emit);
    }
    if (s.down) start_all(s, emit);
    if (s.crashes) crash(s, emit);
  }

 private:
  // ---- pauses, and checkpoints in them

  bool stands_still(const Pipe& pipe) const {
    if (!keeps(kPauseStopsLanes)) return true;
    const bool plans = lockstep_ && keeps(kLockstepPause) && may_plan(pipe);
    return !pipe.running && !plans;
  }

  // Evaluations are collective.
  bool all_stand_still(const State& s, int step) const {
    for (int p = 0; p < case_.ranks; ++p) {
      const Pipe& pipe = s.ranks[p].pipe;
      const bool is_in_it = pipe.phase && pipe.done[kTrain] == step && stands_still(pipe);
      if (!is_in_it && pipe.passed <= step) return false;
    }
    return true;
  }

  template <class Emit>
  void pause_events(const State& s, int p, Emit& emit) {
    const Pipe& pipe = s.ranks[p].pipe;
    const int step = pipe.done[kTrain], kind = case_.pause[step], phase = pipe.phase;
    if (phase == kNoPause) {
      if (!pause_is_due(pipe) || (pipe.running & 1u << kTrain)) return;
      State t = s;
      t.ranks[p].pipe.phase = kRequested;
      emit(event_of(kPause, p, step), t);
      return;
    }
    const bool still = all_stand_still(s, step), saves = kind & kSaves;
    if (phase == kRequested && still) body(s, p, step, kind & kEvaluates ? kEvaluate : kFlush, emit);
    if (phase == kEvaluated && still && saves) body(s, p, step, kFlush, emit);
    if (phase == kFlushedAll && case_.in_file) body(s, p, step, kCloseLog, emit);
    if (p == 0 && saves && s.published <= step && may_publish(s, step)) publish(s, step, emit);
    const bool is_published = s.published > step, is_closed = phase == kClosed;
    if (is_closed && case_.in_file && (is_published || !keeps(kRetainAfterPublish))) body(s, p, step, kRetain, emit);
    const bool saved = is_published && phase == (case_.in_file ? kRetained : kClosed);
    if (saves ? saved : phase == kEvaluated) body(s, p, step, kResume, emit);
  }

  template <class Emit>
  void body(const State& s, int p, int step, Kind kind, Emit& emit) {
    State t = s;
    Pipe& pipe = t.ranks[p].pipe;
    if (kind == kEvaluate || kind == kFlush) {
      Touched all;
      all.slots_written = all.rows_written = ~0u;
      check_races(t, p, all, 0);
    }
    if (kind == kEvaluate) {
      check_present(t, p, step, kWrongEvaluation);
      pipe.phase = kEvaluated;
    } else if (kind == kFlush) {
      if (keeps(kFlushFirst)) flush(t, p);
      for (int row = 0; row < case_.rows && !case_.in_file; ++row)
        check_value(p, kWrongCheckpoint, step, row, stored(t, p, row));
      pipe.phase = case_.in_file ? kFlushedAll : kClosed;
    } else if (kind == kCloseLog) {
      if (!store(t, p).close_log()) fail(kTooManyGenerations, p, step);
      pipe.phase = kClosed;
    } else if (kind == kRetain) {
      store(t, p).retain(generations(s.published > step ? t : with_published(t, step), p));
      pipe.phase = kRetained;
    } else {
      pipe.phase = kNoPause;
      pipe.passed = static_cast<uint8_t>(step + 1);
    }
    emit_checked(event_of(kind, p, step), t, emit);
  }

  void flush(State& t, int p) {
    Pipe& pipe = t.ranks[p].pipe;
    end_transfers(t, p);
    for (int slot = 0; slot < case_.slots; ++slot) {
      if (pipe.mark[slot] != kChanged || !pipe.row_of[slot]) continue;
      write_row(t, p, pipe.row_of[slot] - 1, pipe.slot[slot], true);
      pipe.mark[slot] = keeps(kFlushedIsWrittenAgain) ? kFlushed : kSame;
    }
  }

  bool may_publish(const State& s, int step) const {
    const int num = keeps(kPublishAfterAll) ? case_.ranks : 1;
    for (int p = 0; p < num; ++p) {
      const Pipe& pipe = s.ranks[p].pipe;
      const int needed = keeps(kPublishAfterClose) ? kClosed : kFlushedAll;
      if (pipe.phase < needed || pipe.done[kTrain] != step) return false;
    }
    return true;
  }

  template <class Emit>
  void publish(const State& s, int step, Emit& emit) {
    State t = with_published(s, step);
    t.published = static_cast<uint8_t>(step + 1);
    emit_checked(event_of(kPublish, 0, step), t, emit);
  }

  State with_published(State t, int step) const {
    const bool is_best = (case_.pause[step] & kIsBest) || !t.num_kept;
    Kept kept[kKept] = {};
    int num = 0, best = 0;
    for (int i = 0; i < t.num_kept; ++i) {
      if (i < t.num_kept - (case_.keep_last - 1) && (is_best || i != t.best)) continue;
      if (i == t.best) best = num;
      kept[num++] = t.kept[i];
    }
    if (is_best) best = num;
    kept[num].trained = static_cast<uint8_t>(step);
    kept[num].step = keeps(kSavesTrained) ? static_cast<uint8_t>(step) : t.ranks[0].pipe.done[kPlan];
    for (int p = 0; p < case_.ranks; ++p) {
      const File& file = t.ranks[p].file;
      kept[num].generation[p] = t.ranks[p].pipe.phase >= kClosed ? file.taken : file.open;
    }
    std::memcpy(t.kept, kept, sizeof kept);
    t.num_kept = static_cast<uint8_t>(num + 1);
    t.best = static_cast<uint8_t>(best);
    return t;
  }

  unsigned generations(const State& s, int p) const {
    unsigned all = 0;
    for (int i = 0; i < s.num_kept; ++i) all |= 1u << s.kept[i].generation[p];
    return all;
  }

  // Emits a state in which files have changed: a crash that comes now loses no checkpoint.
  template <class Emit>
  void emit_checked(Event event, State& t, Emit& emit) {
    for (int p = 0; p < case_.ranks && case_.in_file; ++p)
      for (int i = 0; i < t.num_kept; ++i) {
        const int g = t.kept[i].generation[p], step = t.kept[i].trained;
        const Store files = store(t, p);
        bool whole = files.is_restorable(g);
        for (int row = 0; row < case_.rows; ++row) {
          const Token seen = files.view(g, row, whole), wanted = expected_[p][step][row];
          if ((seen ? seen : token(row, 0)) != wanted) fail(kLostCheckpoint, p, step, row, seen, wanted);
        }
        if (!whole) fail(kLostCheckpoint, p, step);
      }
    emit(event, t);
  }

  // ---- merging

  template <class Emit>
  void merge_events(const State& s, int p, Emit& emit) {
    State t = s;
    File& file = t.ranks[p].file;
    Store files = store(t, p);
    if (file.merging) {
      merge_step(s, p, emit);
    } else if (const int g = files.next_log()) {
      files.begin_merging(g);
      if (keeps(kBaseWholeFirst)) {
        merge_step(t, p, emit);
        return;
      }
      file.bases |= 1u << g;
      emit_checked(event_of(kNameBase, p, g), t, emit);
    }
  }

  // Rows of the new base may reach the disk in any order.
  template <class Emit>
  void merge_step(const State& s, int p, Emit& emit) {
    const File& before = s.ranks[p].file;
    const int g = before.target;
    for (int row = 0; row < case_.rows; ++row) {
      if (!has(before.left, row)) continue;
      State t = s;
      File& file = t.ranks[p].file;
      file.base[g][row] = store(t, p).merged_row(row);
      file.left &= ~(1u << row);
      emit_checked(event_of(kMergeRow, p, g, row), t, emit);
    }
    if (before.left) return;
    State t = s;
    File& file = t.ranks[p].file;
    if (file.merging == kSaved) {
      store(t, p).switch_base();
      emit_checked(event_of(kSwitch, p, g), t, emit);
      return;
    }
    if (!keeps(kLogUntilSaved) && file.merging != kLogDeleted) {
      file.logs &= ~(1u << g);
      file.merging = kLogDeleted;
      emit_checked(event_of(kDeleteLog, p, g), t, emit);
      return;
    }
    store(t, p).save_merged();
    emit_checked(event_of(kMerged, p, g), t, emit);
  }

  // ---- crashes and restarts

  template <class Emit>
  void crash(const State& s, Emit& emit) {
    State t = s;
    --t.crashes;
    t.down = 1;
    t.start = t.published = 0;
    for (int p = 0; p < case_.ranks; ++p) {
      t.ranks[p].pipe = Pipe{};
      if (case_.in_file) store(t, p).crash();
    }
    emit_checked(event_of(kCrash, 0), t, emit);
  }

  template <class Emit>
  void restart_file(const State& s, int p, Emit& emit) {
    State t = s;
    File& file = t.ranks[p].file;
    Store files = store(t, p);
    const int g = s.num_kept ? s.kept[s.num_kept - 1].generation[p] : 0;
    int kind = kRestore;
    if (file.restart == kIsDown && !keeps(kGoBack)) {
      files.open_logs();
      file.restart = kIsReady;
      kind = kOpenLogs;
    } else if (file.restart == kIsDown) {
      if (!files.save_back_to(g)) fail(kTooManyGenerations, p, g);
      file.restart = kWentBack;
    } else if (file.restart == kWentBack) {
      files.open_logs();
      file.restart = kOpened;
      kind = kOpenLogs;
    } else if (file.restart == kOpened) {
      files.retain(generations(s, p));
      file.restart = kIsReady;
      kind = kRetain;
    } else {
      return;
    }
    emit_checked(event_of(kind, p, g), t, emit);
  }

  template <class Emit>
  void start_all(const State& s, Emit& emit) {
    for (int p = 0; p < case_.ranks && case_.in_file; ++p)
      if (s.ranks[p].file.restart != kIsReady) return;
    State t = s;
    t.down = 0;
    t.start = s.num_kept ? s.kept[s.num_kept - 1].step : 0;
    for (int p = 0; p < case_.ranks; ++p) {
      t.ranks[p].file.restart = kIsUp;
      start(t, p);
    }
    emit(event_of(kStart, 0, t.start), t);
  }

  // The pipeline of a rank before its first batch; the cache may be warm.
  void start(State& t, int p) const {
    Pipe& pipe = t.ranks[p].pipe;
    pipe = Pipe{};
    std::memset(pipe.done, t.start, kStages);
    pipe.passed = static_cast<uint8_t>(t.start + 1);
    const int trained = t.num_kept ? t.kept[t.num_kept - 1].trained : 0;
    for (int row = 0; row < case_.rows && !case_.in_file; ++row) pipe.store[row] = expected_[p][trained][row];
    for (int slot = 0; slot < case_.slots; ++slot) {
      const int row = case_.warm[p][slot];
      if (row < 0) continue;
      pipe.slot[slot] = stored(t, p, row);
      pipe.row_of[slot] = static_cast<uint8_t>(row + 1);
    }
  }
};

}  // namespace model
