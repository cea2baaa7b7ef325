"""The real runner, caches and stores go through the orders of the model, and have the bits of serial
training; where a rule is taken out of the code, the counter-example of the model is one of the code."""

import random
from dataclasses import replace

import pytest

from hotrows.engine.pipeline import runner
from hotrows.engine.pipeline.schedule import may_run
from hotrows.engine.storage import cache
from hotrows.engine.storage.cache import Cache
from hotrows.engine.storage.disk_io import Disk
from tests.model_checker.cases import Case, random_case
from tests.model_checker.explorer import Walk, explore, walk
from tests.model_checker.replay import replay
from tests.model_checker.rules import RULES, memory
from tests.support.choice import examples

WALKS = {"memory": 150, "file": 50, "ranks": 35, "ranks file": 20}
KINDS = [
    "plan-begins", "collect-begins", "collect-ends", "insert-begins", "insert-ends", "train-begins",
    "train-ends", "write-begins", "write-ends", "merge-row",
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
    num_walks = examples(WALKS[family])
    for seed in range(num_walks):
        case = random_case(family, seed)
        if case.num_ranks > 1:
            case = replace(case, warm=())  # of which a rank has its own ids
        steps = some_walk(case, seed)
        crashes += any(event.kind == "crash" for event in steps.events)
        replay(case, steps, tmp_path / str(seed), seed)
    assert crashes > num_walks // 10


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


REMOVED_FROM_CODE = {
    "past_pins": lambda patch: None,  # a setting of the real slot map, in the case
    "future_pins": lambda patch: None,
    "drained_batch_waits": lambda patch: None,
    "next_batch_waits": lambda patch: None,
    "waits_for": schedule(waits_for_none),
    "left_is_written": schedule(left_once_trained),
    "bypass_reads_slots": lambda patch: patch.setattr(Cache, "_slots_of", lambda _, rows: rows * 0 - 1),
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


def noticed(case, num_walks, folder):
    """How many walks of the model differ from what the runner would begin."""
    count = 0
    for seed in range(num_walks):
        try:
            replay(case, some_walk(case, seed), folder)
        except AssertionError as error:
            assert "the runner would begin" in str(error)
            count += 1
    return count


def test_an_order_that_the_runner_refuses_is_noticed(tmp_path):
    case = memory((0,), (1,), slots=2)
    assert noticed(case, 8, tmp_path) == 0
    assert noticed(replace(case, removed=frozenset({"waits_for"})), 8, tmp_path) > 4


def test_an_order_that_the_model_refuses_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "may_run", waits_for_none)
    assert noticed(memory((0,), (1,), slots=2), 8, tmp_path) > 4


def test_a_plan_that_is_not_that_of_the_model_is_noticed(tmp_path, monkeypatch):
    case = memory((0,), (1,), in_flight=2, past_pins=0)
    replay(replace(case, past_pins=None), some_walk(replace(case, past_pins=None), 0), tmp_path)
    monkeypatch.setattr(Case, "removes_planner_rule", False)
    with pytest.raises(AssertionError, match="plan 1 failed"):
        replay(case, Walk(explore(case).trace, ()), tmp_path)
