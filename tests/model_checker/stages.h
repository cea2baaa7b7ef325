// The stages of the pipeline. A stage is two events: it reads as it begins, and what it writes is there when it
// ends; two stages that run at once and touch the same slot or row, one of them writing, are a fault in
// themselves. So the order of the copies within a stage does not matter.
// The code that it follows: pipeline/schedule.py, engine/stages.py, engine/read_through.py, storage/cache.py.
#pragma once
#include "store.h"

namespace model {

struct Touched {
  unsigned slots_read = 0, slots_written = 0, rows_read = 0, rows_written = 0;

  bool conflicts(const Touched& other) const {
    return (slots_written & (other.slots_read | other.slots_written)) || (other.slots_written & slots_read) ||
           (rows_written & (other.rows_read | other.rows_written)) || (other.rows_written & rows_read);
  }
};

// What stages do with slots, transfers and rows, on one rank or in step with others.
class Stages {
 public:
  explicit Stages(const Case& c) : case_(c), lockstep_(c.ranks > 1) {
    for (int p = 0; p < c.ranks; ++p)
      for (int row = 0; row < kRows; ++row)
        for (int j = 0, version = 0; j <= c.batches; ++j) {
          expected_[p][j][row] = token(row, version);
          if (j < c.batches && has(c.plan[p][0][j].used, row)) version = j + 1;
        }
  }

  Violation violation{};

  // Whether the runner may begin a stage.
  bool may_begin(const State& s, int p, int stage) const {
    const Pipe& pipe = s.ranks[p].pipe;
    const int j = pipe.done[stage];
    if (s.down || j >= case_.batches || (pipe.running & lane(stage))) return false;
    if (stage == kTrain && (pipe.phase || pause_is_due(pipe))) return false;
    const bool may_plan_in_pause = stage == kPlan && lockstep_ && keeps(kLockstepPause);
    if (pipe.phase && keeps(kPauseStopsLanes) && !may_plan_in_pause) return false;
    if (stage == kPlan) return may_plan(pipe);
    if (pipe.done[before(stage)] <= j) return false;
    if (stage != kCollect || !keeps(kWaitsFor)) return true;
    return pipe.done[keeps(kLeftIsWritten) ? kWrite : kTrain] > plan(s, p, j).waits_for;
  }

 protected:
  bool keeps(Rule rule) const { return !(case_.removed >> rule & 1); }

  const BatchPlan& plan(const State& s, int p, int j) const { return case_.plan[p][s.start][j]; }

  int before(int stage) const {
    if (stage == kTrain && !keeps(kTrainAfterInsert)) return kCollect;
    if (stage == kWrite && !keeps(kWriteAfterTraining)) return kInsert;
    return stage - 1;
  }

  // Bits of the stages that one lane runs in turn.
  unsigned lane(int stage) const {
    const bool moves = stage == kCollect || stage == kInsert;
    return moves && keeps(kOneMoveLane) ? 1u << kCollect | 1u << kInsert : 1u << stage;
  }

  bool may_plan(const Pipe& pipe) const {
    const int ahead_of = lockstep_ && keeps(kLockstepPaces) ? kTrain : kCollect;
    return pipe.done[kPlan] < case_.batches && pipe.done[kPlan] < pipe.done[ahead_of] + case_.run_ahead;
  }

  bool pause_is_due(const Pipe& pipe) const {
    return case_.pause[pipe.done[kTrain]] && pipe.passed <= pipe.done[kTrain];
  }

  void fail(int fault, int p, int number, int row = 0, Token found = 0, Token wanted = 0) {
    if (!violation.fault) violation = {fault, p, number, row, found, wanted};
  }

  Store store(State& s, int p) const { return Store(s.ranks[p].file, case_); }

  Token stored(const State& s, int p, int row) const {
    const State::Rank& rank = s.ranks[p];
    const Token value = case_.in_file ? Store::read(rank.file, row) : rank.pipe.store[row];
    return value ? value : token(row, 0);
  }

  void write_row(State& s, int p, int row, Token value, bool keeps_row = false) {
    if (case_.in_file)
      store(s, p).write(row, value, keeps_row);
    else
      s.ranks[p].pipe.store[row] = value;
  }

  // ---- stages

  template <class Emit>
  void stage_events(const State& s, int p, int stage, Emit& emit) {
    const Pipe& pipe = s.ranks[p].pipe;
    const int j = pipe.done[stage];
    if (pipe.running & 1u << stage) {
      if (stage == kPlan && !planned_by_all(s, j)) return;
      if (stage == kTrain && lockstep_ && !pipe.exchanged) {
        if (p == 0 && looked_up_by_all(s)) exchange(s, emit);
        return;
      }
      State t = s;
      end(t, p, stage, j);
      emit(event_of(kEnd + stage, p, j), t);
    } else if (may_begin(s, p, stage)) {
      State t = s;
      begin(t, p, stage, j);
      emit(event_of(kBegin + stage, p, j), t);
    }
  }

  // A batch is planned by all ranks together.
  bool planned_by_all(const State& s, int j) const {
    for (int p = 0; p < case_.ranks; ++p) {
      const Pipe& pipe = s.ranks[p].pipe;
      if (pipe.done[kPlan] < j || (pipe.done[kPlan] == j && !(pipe.running & 1u << kPlan))) return false;
    }
    return true;
  }

  bool looked_up_by_all(const State& s) const {
    for (int p = 0; p < case_.ranks; ++p) {
      const Pipe& pipe = s.ranks[p].pipe;
      if (!(pipe.running & 1u << kTrain) || pipe.exchanged || pipe.done[kTrain] != s.ranks[0].pipe.done[kTrain])
        return false;
    }
    return true;
  }

  // Rows and, after the backward pass, gradients.
  template <class Emit>
  void exchange(const State& s, Emit& emit) {
    State t = s;
    for (int p = 0; p < case_.ranks; ++p) t.ranks[p].pipe.exchanged = 1;
    emit(event_of(kExchange, 0, s.ranks[0].pipe.done[kTrain]), t);
  }

  Touched touched(const State& s, int p, int stage, int j) const {
    const BatchPlan& batch = plan(s, p, j);
    const Pipe& pipe = s.ranks[p].pipe;
    Touched t;
    for (int row = 0; row < case_.rows; ++row) {
      if (stage == kCollect && has(batch.in, row)) t.rows_read |= 1u << row;
      if (stage == kCollect && has(batch.out, row)) t.slots_written |= 1u << batch.slot_out[row];
      if (stage == kInsert && has(batch.in, row)) t.slots_written |= 1u << batch.slot[row];
      if (stage == kTrain && has(batch.used, row) && !batch.bypasses) t.slots_written |= 1u << batch.slot[row];
      if (stage == kWrite && has(batch.out, row) && pipe.leaving[j][batch.slot_out[row]])
        t.rows_written |= 1u << row;
    }
    if (stage == kTrain && batch.bypasses) t.slots_written = t.rows_written = ~0u;
    return t;
  }

  void check_races(const State& s, int p, const Touched& mine, unsigned except) {
    const Pipe& pipe = s.ranks[p].pipe;
    if (!keeps(kRacesAreFaults)) return;
    for (int other = 0; other < kStages; ++other)
      if ((pipe.running & ~except) >> other & 1)
        if (mine.conflicts(touched(s, p, other, pipe.done[other]))) fail(kRace, p, other << 3 | pipe.done[other]);
  }

  void begin(State& t, int p, int stage, int j) {
    Pipe& pipe = t.ranks[p].pipe;
    const BatchPlan& batch = plan(t, p, j);
    check_races(t, p, touched(t, p, stage, j), lane(stage));
    pipe.running |= 1u << stage;
    if (stage == kCollect) collect(t, p, j);
    if (stage == kTrain) {
      if (batch.bypasses) end_transfers(t, p);
      for (int row = 0; row < case_.rows; ++row)
        if (has(batch.used, row)) check_value(p, kWrongRead, j, row, looked_up(t, p, batch, row));
    }
    if (stage == kPlan && !lockstep_) end(t, p, stage, j);  // touches nothing that others see
  }

  void collect(State& t, int p, int j) {
    Pipe& pipe = t.ranks[p].pipe;
    const BatchPlan& batch = plan(t, p, j);
    for (int row = 0; row < case_.rows; ++row) {
      if (has(batch.in, row)) pipe.staged[j][batch.slot[row]] = stored(t, p, row);
      if (has(batch.out, row)) {
        const int slot = batch.slot_out[row];
        if (pipe.mark[slot] != kSame) pipe.leaving[j][slot] = pipe.slot[slot];
      }
    }
  }

  void end(State& t, int p, int stage, int j) {
    Pipe& pipe = t.ranks[p].pipe;
    const BatchPlan& batch = plan(t, p, j);
    pipe.running &= ~(1u << stage);
    ++pipe.done[stage];
    if (stage == kWrite) write_back(t, p, j);
    if (stage == kTrain) pipe.exchanged = 0;
    for (int row = 0; row < case_.rows; ++row) {
      if (stage == kCollect && has(batch.out, row)) {
        pipe.row_of[batch.slot_out[row]] = 0;
        pipe.mark[batch.slot_out[row]] = kSame;
      }
      if (stage == kInsert && has(batch.in, row)) {
        Token& staged = pipe.staged[j][batch.slot[row]];
        pipe.slot[batch.slot[row]] = staged;
        pipe.row_of[batch.slot[row]] = static_cast<uint8_t>(row + 1);
        staged = 0;
      }
      if (stage == kTrain && has(batch.used, row)) update(t, p, batch, row, token(row, j + 1));
    }
  }

  // The slot that the cache has a row in, -1 where it has none.
  int slot_of(const Pipe& pipe, int row) const {
    for (int slot = 0; slot < case_.slots; ++slot)
      if (pipe.row_of[slot] == row + 1) return slot;
    return -1;
  }

  Token looked_up(const State& t, int p, const BatchPlan& batch, int row) const {
    const Pipe& pipe = t.ranks[p].pipe;
    if (!batch.bypasses) return pipe.slot[batch.slot[row]];
    const int slot = keeps(kBypassReadsSlots) ? slot_of(pipe, row) : -1;
    return slot < 0 ? stored(t, p, row) : pipe.slot[slot];
  }

  void update(State& t, int p, const BatchPlan& batch, int row, Token value) {
    Pipe& pipe = t.ranks[p].pipe;
    const int slot = batch.bypasses ? slot_of(pipe, row) : batch.slot[row];
    if (slot < 0) {
      write_row(t, p, row, value);
      return;
    }
    pipe.slot[slot] = value;
    if (keeps(kTrainingMarks)) pipe.mark[slot] = kChanged;
  }

  void write_back(State& t, int p, int j) {
    const BatchPlan& batch = plan(t, p, j);
    for (int row = 0; row < case_.rows; ++row) {
      if (!has(batch.out, row)) continue;
      Token& leaving = t.ranks[p].pipe.leaving[j][batch.slot_out[row]];
      if (leaving) write_row(t, p, row, leaving);
      leaving = 0;
    }
  }

  void end_transfers(State& t, int p) {
    for (int j = t.start; j < case_.batches; ++j) write_back(t, p, j);
  }

  void check_value(int p, int fault, int number, int row, Token found) {
    const Token wanted = expected_[p][number][row];
    if (found != wanted) fail(fault, p, number, row, found, wanted);
  }

  // What reads through the cache see of every row, as evaluations do.
  void check_present(State& t, int p, int step, int fault) {
    if (keeps(kPauseEndsTransfers) || fault == kWrongEnd) end_transfers(t, p);
    for (int row = 0; row < case_.rows; ++row) {
      const int slot = slot_of(t.ranks[p].pipe, row);
      check_value(p, fault, step, row, slot < 0 ? stored(t, p, row) : t.ranks[p].pipe.slot[slot]);
    }
  }

  const Case& case_;
  const bool lockstep_;
  Token expected_[kRanks][kBatches + 1][kRows];
};

}  // namespace model
