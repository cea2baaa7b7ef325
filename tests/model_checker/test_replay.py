"""The real runner, caches and stores go through the orders of the model, and have the bits of serial
training; and where a rule is taken out of the code, the counter-example of the model is one of the code."""

import random
from dataclasses import replace

import pytest

from hotrows.engine.cached_tables import CachedTables
from hotrows.pipeline import runner
from hotrows.pipeline.schedule import may_run
from hotrows.storage import cache
from hotrows.storage.cache import Cache
from hotrows.storage.disk_io import Disk
from tests.model_checker.cases import EVALUATE, Case, random_case
from tests.model_checker.explorer import Walk, explore, walk
from tests.model_checker.replay import replay
from tests.model_checker.rules import RULES, memory

WALKS = {"memory": 160, "file": 70, "ranks": 50}
KINDS = [
    *(f"{stage}-{edge}" for stage in ("collect", "insert", "train", "write") for edge in ("begins", "ends")),
    "plan-begins", "merge-row",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def unsynced(monkeypatch):
    """Without waiting for the disk: processes crash here, not machines."""
    monkeypatch.setattr(Disk, "sync", staticmethod(lambda fd: None))


def some_walk(case, seed):
    """A walk in which some stages are fast and others slow."""
    chance = random.Random(seed)
    return walk(case, seed, {"crash": 1, **{kind: chance.choice([1, 4, 16]) for kind in KINDS}})


@pytest.mark.parametrize("family", WALKS)
def test_the_code_does_what_the_model_does(family, tmp_path, unsynced):
    crashes = 0
    for seed in range(WALKS[family]):
        case = random_case(family, seed)
        if family == "ranks":
            case = replace(case, crashes=0, warm=())
        steps = some_walk(case, seed)
        crashes += any(event.kind == "crash" for event in steps.events)
        replay(case, steps, tmp_path / str(seed), seed)
    assert family == "ranks" or crashes > WALKS[family] // 10


# ---- rules taken out of the code


def schedule(allowed):
    """A rule in place of `may_run`."""
    return lambda patch: patch.setattr(runner, "may_run", allowed)


def waits_for_none(stages, s, batch, waits_for, done):
    return may_run(stages, s, batch, -1, done)


def left_once_trained(stages, s, batch, waits_for, done):
    if not stages[s].enters:
        return may_run(stages, s, batch, waits_for, done)
    return may_run(stages, s, batch, -1, done) and done[-2] > waits_for


def write_once_inserted(stages, s, batch, waits_for, done):
    if s < len(stages) - 1:
        return may_run(stages, s, batch, waits_for, done)
    return done[s] == batch and done[s - 2] > batch


def without_flush(patch):
    patch.setattr(CachedTables, "flush", lambda self: None)


REMOVED_FROM_CODE = {
    "past_pins": lambda patch: None,  # a setting of the real slot map, in the case
    "future_pins": lambda patch: None,
    "drained_batch_waits": lambda patch: None,
    "next_batch_waits": lambda patch: None,
    "waits_for": schedule(waits_for_none),
    "left_is_written": schedule(left_once_trained),
    "write_after_training": schedule(write_once_inserted),
    "bypass_reads_slots": lambda patch: patch.setattr(Cache, "_slots_of", lambda self, rows: rows * 0 - 1),
    "training_marks": lambda patch: patch.setattr(Cache, "mark_changed", lambda self, slots: None),
    "pause_ends_transfers": lambda patch: patch.setattr(Cache, "write_back_all", lambda self: None),
    "flushed_is_written_again": lambda patch: patch.setattr(cache, "_FLUSHED", cache._SAME),
}


@pytest.mark.parametrize("name", REMOVED_FROM_CODE)
def test_without_a_rule_the_code_goes_wrong_as_the_model_says(name, tmp_path, unsynced, monkeypatch):
    (rule,) = (rule for rule in RULES if rule.name == name)
    case = rule.removed()
    REMOVED_FROM_CODE[name](monkeypatch)
    with pytest.raises(AssertionError, match="other bits"):
        replay(case, Walk(explore(case).trace, ()), tmp_path)


def test_an_order_that_the_runner_refuses_is_noticed(tmp_path):
    """The model without `waits_for` allows more than the runner does."""
    case = replace(memory((0,), (1,), slots=2), removed=frozenset({"waits_for"}))
    refused = 0
    for seed in range(8):
        try:
            replay(case, some_walk(case, seed), tmp_path)
        except AssertionError as error:
            assert "the runner would begin" in str(error)
            refused += 1
    assert refused == 8


def test_an_order_that_the_model_refuses_is_noticed(tmp_path, monkeypatch):
    """A runner that pauses without stopping its lanes."""
    monkeypatch.setattr(runner.Overlapped, "_paused", property(lambda self: False, lambda self, value: None), False)
    case = memory((0,), (0,), (0,), in_flight=2, pauses=((1, EVALUATE),))
    with pytest.raises(AssertionError, match="the runner would begin"):
        for seed in range(20):
            replay(case, some_walk(case, seed), tmp_path)


def test_a_wrong_plan_is_noticed(tmp_path):
    steps = some_walk(memory((0,), (1,)), 0)
    other = Case((((0,), (0,)),), 1, 1, run_ahead=1)
    with pytest.raises(AssertionError, match=r"plan 1 failed|the runner would begin"):
        replay(other, steps, tmp_path)
