"""The rules that keep training right, each with the smallest training that goes wrong without it.

A rule of the planner is removed from the real slot map, through its options; any other from the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hotrows.engine.planning.policy import Lookahead
from tests.model_checker.cases import BEST, EVALUATE, SAVE, Case

RACES = "races_are_faults"  # a switch of the model, not a rule


@dataclass(frozen=True)
class Rule:
    """A rule. where: the code that keeps it. case: a training that is right with it. planner: the fields
    of a case that remove it from the planner; none: a rule of the model. fault: what is wrong without."""

    name: str
    text: str
    where: str
    case: Case
    fault: str
    planner: dict[str, Any] = field(default_factory=dict)

    def removed(self) -> Case:
        """The case without the rule. Where a wrong value is read, that is shown, and not the race that
        comes before it: two stages at one slot or row, one of them writing."""
        removed = set() if self.fault == "race" else {RACES}
        if not self.planner:
            removed.add(self.name)
        return replace(self.case, removed=frozenset(removed), **self.planner)


def memory(*batches: tuple[int, ...], slots: int = 1, in_flight: int = 1, **options: Any) -> Case:
    return Case((batches,), slots, in_flight, **{"run_ahead": 1, **options})


def file(*pauses: int, crashes: int = 0, keep_last: int = 1) -> Case:
    """As many batches that read one row as there are pauses, in a file store."""
    steps = tuple(enumerate(pauses, 1))
    batches = ((0,),) * len(pauses)
    return Case(
        (batches,), 1, 1, run_ahead=1, in_file=True, pauses=steps, crashes=crashes, keep_last=keep_last
    )


def ranks(*pauses: tuple[int, int]) -> Case:
    """Four batches on two ranks, of which the first rank has to move rows, and the second hardly any."""
    batches = (((0,), (1,), (0,), (1,)), ((0,), (0,), (0,), (0,)))
    return Case(batches, 1, 1, run_ahead=1, pauses=pauses)


SWAP = (0,), (1,)
BACK = (0,), (1,), (0,)

RULES = (
    Rule(
        "past_pins",
        "planning a batch evicts no row of the k - 1 batches before it: they may not be trained yet",
        "planning.slots", memory(*SWAP, in_flight=2), "wrong read", {"past_pins": 0},
    ),
    Rule(
        "future_pins",
        "planning a batch evicts no row of the k - 1 batches after it: they would read it from the store "
        "before it was written back",
        "planning.slots", memory((0,), (1,), (2,), (0,), slots=2, in_flight=2), "wrong read",
        {"future_pins": 0},
    ),
    Rule(
        "drained_batch_waits",
        "a batch for which pins leave too few slots waits until all before it have left",
        "planning.slots", memory(*SWAP, in_flight=2), "wrong read", {"drains": "before"},
    ),
    Rule(
        "next_batch_waits",
        "the batch after a drained one waits until that one has left",
        "planning.slots",
        memory((0, 1), (2,), (), (0,), slots=2, in_flight=3, policy=Lookahead(1)), "wrong read",
        {"drains": "after"},
    ),
    Rule(
        "waits_for",
        "the first move of a batch waits until the batch that its plan names has left",
        "pipeline.schedule", memory(*SWAP), "wrong read",
    ),
    Rule(
        "left_is_written",
        "a batch has left once its evicted rows are written back, not once it is trained",
        "pipeline.schedule", memory(*BACK), "wrong read",
    ),
    Rule(
        "write_after_training",
        "a batch is written back, and so has left, after it was trained",
        "engine.stages", memory(*SWAP, in_flight=2), "wrong read",
    ),
    Rule(
        "train_after_insert",
        "a batch is trained once its rows are in their slots",
        "pipeline.runner", memory((0,)), "wrong read",
    ),
    Rule(
        "bypass_reads_slots",
        "a batch that bypasses the cache reads a row from its slot where it has one",
        "engine.read_through", memory((0,), (0, 1)), "wrong read",
    ),
    Rule(
        "training_marks",
        "training marks the slots that it writes, and only marked ones are written back",
        "engine.packed_tables", memory(*BACK), "wrong read",
    ),
    Rule(
        "pause_stops_lanes",
        "while the pipeline is paused no stage runs",
        "pipeline.runner", memory(*SWAP, pauses=((1, EVALUATE),)), "race",
    ),
    Rule(
        "pause_ends_transfers",
        "what reads in a pause first writes back every row that has left its slot",
        "storage.cache", memory(*SWAP, pauses=((1, EVALUATE),)), "wrong evaluation",
    ),
    Rule(
        "flushed_is_written_again",
        "a row that was flushed and is evicted later is written once more: reads did not see the flush",
        "storage.cache",
        Case((BACK,), 1, 1, run_ahead=1, in_file=True, pauses=((1, SAVE),)), "wrong read",
    ),
    Rule(
        "flush_first",
        "a checkpoint flushes all trained rows before it closes the log",
        "engine.cached_tables", file(SAVE), "lost checkpoint",
    ),
    Rule(
        "saves_trained",
        "a checkpoint says how many batches were trained, not how many were planned",
        "train.run_state", memory((0,), (0,), (0,), pauses=((1, SAVE),), crashes=1), "wrong end",
    ),
    Rule(
        "writes_to_log",
        "rows are appended to a log, and leave the files of the last checkpoint as they were",
        "storage.file_store", file(SAVE, SAVE), "lost checkpoint",
    ),
    Rule(
        "publish_after_close",
        "the run points at a checkpoint once the store has made it durable",
        "checkpoint.write", file(SAVE), "lost checkpoint",
    ),
    Rule(
        "publish_after_all",
        "the run points at a checkpoint once the stores of all ranks have made it durable",
        "checkpoint.write",
        Case((((0,),), ((0,),)), 1, 1, run_ahead=1, in_file=True, pauses=((1, SAVE),)), "lost checkpoint",
    ),
    Rule(
        "retain_after_publish",
        "a store lets go of earlier checkpoints once the run points at the new one",
        "checkpoint.writer", file(SAVE, SAVE | BEST), "lost checkpoint",
    ),
    Rule(
        "merges_published",
        "a log is merged once the run points at its checkpoint, or at a later one",
        "storage.file_store", file(SAVE), "lost checkpoint",
    ),
    Rule(
        "base_whole_first",
        "store.json names a new base file once all of its rows are written",
        "storage.merging", file(SAVE), "lost checkpoint",
    ),
    Rule(
        "merged_files_stay",
        "a base file and a merged log stay as long as a retained checkpoint is read from them",
        "storage.store_state", file(SAVE, SAVE, keep_last=2), "lost checkpoint",
    ),
    Rule(
        "switch_at_once",
        "reads change over to a new base file and leave its logs at once",
        "storage.file_store",
        Case((BACK,), 1, 1, run_ahead=1, in_file=True, pauses=((2, SAVE),)), "wrong read",
    ),
    Rule(
        "log_until_saved",
        "a merged log is deleted once store.json names the base file that has its rows",
        "storage.merging", file(SAVE), "lost checkpoint",
    ),
    Rule(
        "go_back",
        "a restart brings the store back to the checkpoint that the run points at",
        "storage.file_store", file(SAVE, crashes=1), "wrong read",
    ),
    Rule(
        "lockstep_paces",
        "between ranks, planning runs ahead of training, which all are at, not of moves",
        "pipeline.runner", ranks((1, EVALUATE)), "deadlock",
    ),
    Rule(
        "lockstep_pause",
        "between ranks, a pause waits until all that may be planned is planned",
        "pipeline.runner", ranks((1, EVALUATE)), "deadlock",
    ),
)  # fmt: skip

# Kept by the code, and not needed for the bits: nothing goes wrong without them.
UNNEEDED = {"one_move_lane": "collect and insert share a lane"}
