"""Whatever the order of stages, and wherever a crash comes, training reads what serial training reads."""

import json

import pytest

from tests.model_checker.__main__ import Count, record
from tests.model_checker.cases import FAMILIES, Case, distinct, random_case, signature, small_cases
from tests.model_checker.explorer import explore
from tests.model_checker.rules import memory
from tests.model_checker.schedule import explained
from tests.support.choice import everything, examples

CASES = {"memory": 500, "file": 200, "ranks": 80, "ranks file": 20}


def check(case):
    explored = explore(case)
    assert explored.fault is None, explained(case, explored)
    assert explored.is_complete and explored.ends
    return explored


def test_one_batch_has_ten_states():
    """Planned at once; then each of four stages begins and ends, one after the other."""
    explored = check(memory((0,)))
    assert (explored.states, explored.transitions, explored.ends, explored.depth) == (10, 9, 1, 9)


def test_batches_interleave_where_two_are_in_flight():
    """The second is collected beside the training of the first; with one in flight it waits for it."""
    assert check(memory((0,), (1,), slots=2, in_flight=2)).states == 48
    assert check(memory((0,), (1,), slots=2, in_flight=1)).states == 25


@pytest.mark.parametrize(
    ("num_batches", "num_rows", "num_cases"),
    [(3, 2, 380), pytest.param(2, 3, 214, marks=pytest.mark.slow)],
)
def test_every_small_training(num_batches, num_rows, num_cases):
    cases = list(distinct(small_cases(num_batches, num_rows)))
    assert len(cases) == num_cases
    for case in cases[:: 1 if everything() else 3]:
        check(case)


@pytest.mark.parametrize("family", FAMILIES)
def test_trainings_up_to_the_bounds(family):
    for seed in range(examples(CASES[family])):
        check(random_case(family, seed))


def test_a_record_sums_its_runs_up_by_family(tmp_path):
    file, ran = tmp_path / "model_checker.json", Count(cases=2, states=30, longest=9, seconds=1.5)
    record(file, {"seed": 0}, {"memory": ran, "file": Count(1, states=5)}, {"go_back": 4})
    record(file, {"seed": 1}, {"memory": Count(1, states=10, longest=12)}, {"go_back": 4})
    recorded = json.loads(file.read_text())
    assert recorded["runs"] == [{"seed": 0, "states": 35}, {"seed": 1, "states": 10}]
    summed = Count(cases=3, states=40, longest=12, seconds=1.5)
    assert recorded["families"] == {"memory": vars(summed), "file": vars(Count(1, states=5))}
    assert recorded["states"] == 45
    record(file, {"seed": 1}, {"memory": Count(1, states=10)}, {"go_back": 4})
    again = json.loads(file.read_text())
    assert (again["states"], again["runs"]) == (10, [{"seed": 1, "states": 10}])


def test_cases_that_differ_by_the_names_of_rows_are_one():
    a, b, c = (Case((batches,), 1, 1) for batches in (((0,), (1,)), ((1,), (0,)), ((0,), (0,))))
    assert signature(a) == signature(b) != signature(c)
    assert [case.batches for case in distinct([a, b, c, a])] == [a.batches, c.batches]
    assert explore(a).states == explore(b).states
