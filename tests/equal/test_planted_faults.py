"""The machine finds faults that are planted for it, so its silence means something."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from hotrows.data.load.loader import Stream
from hotrows.engine.changed_rows import ChangedRows
from hotrows.engine.read_through import InSlots
from hotrows.engine.storage.cache import Cache
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.store import HostStore
from hotrows.train import Trainer
from hotrows.train.loop import step
from hotrows.train.run.checkpoints import RunCheckpoints
from tests.equal import arms
from tests.equal.machine import Equalities

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


def but_the_last(function):
    """Rows and records but the last ones."""

    def fewer(self, rows, records, *rest, **options):
        few = max(len(rows) - 1, 1)
        return function(self, rows[:few], records[:few], *rest, **options)

    return fewer


def a_batch_later(function):
    def resumed(self, state):
        function(self, {**state, "batch": state["batch"] + 1})

    return resumed


def with_a_new_generator(function):
    def resumed(self):
        function(self)
        self._steps.recommender.random.begin_at(3)

    return resumed


def of_the_store(function):
    def read(self, rows):
        records = torch.empty(rows.numel(), self.store.stride, dtype=torch.uint8)
        self.store.read(rows, records)
        return records

    return read


def drawing(function):
    def evaluated(self, *arguments):
        torch.rand(1)
        return function(self, *arguments)

    return evaluated


FAULTS = {
    "the last row that leaves a cache is not written to memory": (HostStore, "write", but_the_last),
    "the last row that leaves a cache is not written to its file": (FileStore, "write", but_the_last),
    "an increment lacks the last row that a step changed": (
        ChangedRows, "add", lambda function: lambda self, g, rows: function(self, g, rows[:-1]),
    ),
    "a run that goes on leaves out a batch": (Stream, "load_state_dict", a_batch_later),
    "a run that goes on has forgotten what its dense optimizer knew": (
        step, "load_optimizer", lambda function: lambda optimizer, tensors: None,
    ),
    "a run that goes on draws numbers anew": (RunCheckpoints, "resume", with_a_new_generator),
    "a key that comes has the row of the key before it": (
        InSlots, "begin", lambda function: lambda self, plan, g, records: None,
    ),
    "a row with dense steps misses those of other batches": (
        InSlots, "catch_up", lambda function: lambda self, plan, g, p, dense_rows: True,
    ),
    "a cache is read for what its rows were before": (Cache, "read", of_the_store),
    "an evaluation draws numbers": (Trainer, "evaluate", drawing),
}  # fmt: skip


TASKS = arms.Task(), arms.Task(data="keys"), arms.Task(optimizer="dense adam")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(tmp_path, monkeypatch, fault):
    where, name, change = FAULTS[fault]
    Equalities.folder = tmp_path
    for task in TASKS:
        arms.plain(task, tmp_path)
    monkeypatch.setattr(Equalities, "tasks", st.sampled_from(TASKS))
    monkeypatch.setattr(where, name, change(getattr(where, name)))
    how = settings(
        max_examples=60,
        stateful_step_count=4,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError, match="has other weights|ends with"):
        run_state_machine_as_test(Equalities, settings=how)
