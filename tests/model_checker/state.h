// What the model knows of a training: a case with its plans, and a state with the values in slots, transfers
// and stores. A value is a token: of which row, and of which version of it, the number of the last batch that
// updated it, plus one. model.h says how a state becomes another.
#pragma once
#include <cstdint>

namespace model {

constexpr int kRows = 5, kSlots = 4, kBatches = 6, kRanks = 2, kGenerations = 8, kKept = 3;

// Rules of the pipeline, the runner, the cache and the file store; a case may remove some. The names in
// kRuleNames are those of tests/model_checker/rules.py.
enum Rule {
  kWaitsFor, kLeftIsWritten, kWriteAfterTraining, kTrainAfterInsert, kOneMoveLane, kPauseStopsLanes,
  kPauseEndsTransfers, kTrainingMarks, kFlushedIsWrittenAgain, kBypassReadsSlots, kSavesTrained, kFlushFirst,
  kWritesToLog, kMergesPublished, kBaseWholeFirst, kMergedFilesStay, kSwitchAtOnce, kLogUntilSaved,
  kPublishAfterClose, kPublishAfterAll, kRetainAfterPublish, kGoBack, kLockstepPaces, kLockstepPause,
  kRacesAreFaults,  // no rule: without it, a race is no fault, only what is read because of it
  kNumRules
};
constexpr const char* kRuleNames =
    "waits_for left_is_written write_after_training train_after_insert one_move_lane pause_stops_lanes "
    "pause_ends_transfers training_marks flushed_is_written_again bypass_reads_slots saves_trained flush_first "
    "writes_to_log merges_published base_whole_first merged_files_stay switch_at_once log_until_saved "
    "publish_after_close publish_after_all retain_after_publish go_back lockstep_paces lockstep_pause "
    "races_are_faults";

enum Stage { kPlan, kCollect, kInsert, kTrain, kWrite, kStages };

// Begin and end of each stage, then the steps of pauses, of merging, of crashes and restarts.
enum Kind {
  kBegin = 0, kEnd = kStages, kExchange = 2 * kStages, kPause, kEvaluate, kFlush, kCloseLog, kPublish, kRetain,
  kResume, kNameBase, kMergeRow, kMerged, kSwitch, kDeleteLog, kCrash, kRestore, kOpenLogs, kStart
};
constexpr const char* kEventNames =
    "plan-begins collect-begins insert-begins train-begins write-begins plan-ends collect-ends insert-ends "
    "train-ends write-ends exchange pause evaluate flush close-log publish retain resume name-base merge-row "
    "merged switch delete-log crash restore open-logs start";

using Event = uint16_t;  // kind << 7 | rank << 6 | number of a batch, step or generation << 3 | row
constexpr Event event_of(int kind, int rank, int number = 0, int row = 0) {
  return static_cast<Event>(kind << 7 | rank << 6 | number << 3 | row);
}

enum Fault { kNone, kWrongRead, kRace, kWrongEvaluation, kWrongCheckpoint, kLostCheckpoint, kDeadlock, kWrongEnd,
             kTooManyGenerations };

struct Violation {
  int32_t fault, rank, number, row, found, expected;
};

// The plan of a batch on a rank. used, in, out: bits of rows. slot, slot_out: by row, -1 where it has none.
struct BatchPlan {
  uint8_t used, in, out, bypasses;
  int8_t waits_for;  // number of a batch, -1: none
  int8_t slot[kRows], slot_out[kRows];
};

// pause: what happens once that many batches are trained, see PauseBits. warm: by slot, the row that is in it
// before the first batch, -1: none. plan: by rank, by the batch that planning began with, by batch.
struct Case {
  int32_t batches, rows, slots, ranks, in_file, run_ahead, crashes, keep_last;
  uint64_t removed;  // a bit for each rule
  uint8_t pause[kBatches + 1];
  int8_t warm[kRanks][kSlots];
  BatchPlan plan[kRanks][kBatches + 1][kBatches];
};
enum PauseBits { kEvaluates = 1, kSaves = 2, kIsBest = 4 };

// 0: nothing. Of a log it means that the row is not in it, of a base that it was never written.
using Token = uint8_t;
constexpr Token token(int row, int version) { return static_cast<Token>(1 + (row << 3 | version)); }

enum Mark : uint8_t { kSame, kChanged, kFlushed };

// Where a pause is: requested, then everything stands still and was evaluated, and so on.
enum Phase : uint8_t { kNoPause, kRequested, kEvaluated, kFlushedAll, kClosed, kRetained };

// The pipeline of a rank, its cache, and its store where that is memory.
struct Pipe {
  uint8_t done[kStages], running, exchanged, phase;  // running: bits of stages
  uint8_t passed;                                    // pauses before this step are behind
  Token slot[kSlots];
  uint8_t row_of[kSlots];  // as the cache knows it: row + 1; 0: none
  uint8_t mark[kSlots];
  Token staged[kBatches][kSlots], leaving[kBatches][kSlots];  // of the batches in flight
  Token store[kRows];
};

// Progress of the restart of a rank's file store, and of merging.
enum Restart : uint8_t { kIsUp, kIsDown, kWentBack, kOpened, kIsReady };
enum Merging : uint8_t { kNotMerging, kWriting, kLogDeleted, kSaved };

// The file store of a rank; sets of generations are bits. open, bases, closed, retained: store.json. index: what
// reads find, which leaves out rows that were flushed while they stay in their slots.
struct File {
  Token base[kGenerations][kRows], log[kGenerations][kRows], index[kGenerations][kRows];
  uint8_t open, bases, closed, retained;
  uint8_t logs;     // files that are there
  uint8_t readers;  // logs that reads look through
  uint8_t reads;    // the generation of the base that they look into; 0: none
  uint8_t taken;    // the generation of the last checkpoint
  uint8_t merging, target, left;  // left: rows still to be written
  uint8_t restart;
};

// A checkpoint: the batches that it says were trained, those that its rows were trained on, and its
// generation in the file store of each rank.
struct Kept {
  uint8_t step, trained, generation[kRanks];
};

// Everything. kept: the checkpoints that the run's pointer names, the last one last.
struct State {
  uint8_t start, down, crashes, num_kept, best;
  uint8_t published;  // the last step of which a checkpoint was, plus one
  Kept kept[kKept];
  struct Rank {
    Pipe pipe;
    File file;
  } ranks[kRanks];
};

}  // namespace model
