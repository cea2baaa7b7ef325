"""Whatever the order of stages, and wherever a crash comes, training reads what serial training reads."""

import pytest

from tests.model_checker.cases import FAMILIES, Case, distinct, random_case, signature, small_cases
from tests.model_checker.explorer import explore
from tests.model_checker.rules import memory
from tests.model_checker.schedule import explained

CASES = {"memory": 60, "file": 40, "ranks": 15, "ranks file": 4}


def check(case):
    explored = explore(case)
    assert explored.fault is None, explained(case, explored)
    assert explored.is_complete and explored.ends
    return explored


def test_one_batch_has_ten_states():
    """Planned at once; then each of four stages begins and ends, one after the other."""
    explored = check(memory((0,)))
    assert (explored.states, explored.transitions, explored.ends, explored.depth) == (10, 9, 1, 9)


def test_two_batches_that_need_no_slot_of_each_other_interleave():
    """With two in flight the second batch is collected beside the training of the first; with one, it
    waits, and all that may run at once is planning."""
    together, in_turn = (check(memory((0,), (1,), slots=2, in_flight=k)) for k in (2, 1))
    assert together.states > 2 * in_turn.states


@pytest.mark.parametrize(("num_batches", "num_rows"), [(3, 2), (2, 3)])
def test_every_small_training(num_batches, num_rows):
    assert sum(check(case).states for case in distinct(small_cases(num_batches, num_rows))) > 25_000


@pytest.mark.parametrize("family", FAMILIES)
def test_trainings_up_to_the_bounds(family):
    for seed in range(CASES[family]):
        check(random_case(family, seed))


def test_cases_that_differ_by_the_names_of_rows_are_one():
    a, b, c = (Case((batches,), 1, 1) for batches in (((0,), (1,)), ((1,), (0,)), ((0,), (0,))))
    assert signature(a) == signature(b) != signature(c)
    assert [case.batches for case in distinct([a, b, c, a])] == [a.batches, c.batches]
    assert explore(a).states == explore(b).states
