"""Which tests run without `--all`."""

import itertools

import pytest

from tests.support.choice import beyond_few, beyond_pairs, everything, examples, left_out, values

COLORS, SIZES, SHAPES = range(4), range(3), range(5)


class Case:
    def __init__(self, name, marks, **params):
        self.nodeid, self.marks = f"{name}[{params}]", marks
        self.callspec = type("Spec", (), {"params": params})

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if getattr(mark, "name", mark) == name), None)


def product(*marks):
    for color, size, shape in itertools.product(COLORS, SIZES, SHAPES):
        yield Case("test", marks, color=color, size=size, shape=shape)


def test_any_two_values_meet_in_few_cases():
    cases = list(product("pairs"))
    chosen = [case for case in cases if case not in beyond_pairs(cases)]
    met = {pair for case in chosen for pair in itertools.combinations(values(case), 2)}
    assert len(met) == 4 * 3 + 4 * 5 + 3 * 5
    assert 20 <= len(chosen) <= 26  # the least is 4 * 5


FEW = pytest.mark.few(7).mark


@pytest.mark.parametrize(("number", "places"), [(2, [0, 59]), (4, [0, 20, 39, 59]), (60, [*range(60)])])
def test_few_cases_lie_evenly_among_all(number, places):
    cases = list(product(pytest.mark.few(number).mark))
    assert [cases.index(case) for case in cases if case not in beyond_few(cases)] == places


def test_all_examples_are_drawn_where_all_tests_run():
    assert examples(30) == (30 if everything() else 10)


@pytest.mark.parametrize(
    ("marks", "left"),
    [((), 0), (("slow",), 60), (("pairs",), 35), ((FEW,), 53), ((FEW, "slow"), 60), ((FEW, "pairs"), 53)],
)
def test_what_is_not_marked_runs(marks, left):
    assert left <= len(left_out(list(product(*marks)))) <= left + 5


@pytest.mark.pairs
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1])
def test_two_parameters_meet_always(first, second):
    assert first in (0, 1, 2) and second in (0, 1)
