"""Which tests run without `--all`."""

import itertools

import pytest

from tests import times
from tests.support import tiers
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


@pytest.fixture
def measured(monkeypatch):
    """Of which `long` took two seconds, and `test_choice.py` alone has changed."""
    tests = {"tests/test_choice.py::long": [2.0, 2.0], "tests/test_docs.py::long": [2.0, 1.5]}
    tests |= {"tests/test_docs.py::many": [9.0, 0.1]}
    monkeypatch.setattr(
        tiers, "long_tests", lambda: {test for test, (_, one) in tests.items() if one > 1}
    )
    monkeypatch.setattr(tiers, "touched", lambda: {"tests/test_choice.py"})
    return [Case(test, ()) for test in (*tests, "tests/test_docs.py::new")]


def names(cases):
    return [case.nodeid.partition("[")[0].removeprefix("tests/") for case in cases]


def test_long_tests_wait_for_a_change_near_to_them(measured, monkeypatch):
    monkeypatch.delenv(tiers.WITH_LONG, raising=False)
    monkeypatch.setattr(tiers, "only_touched", False)
    assert names(left_out(measured)) == ["test_choice.py::long", "test_docs.py::long"]
    monkeypatch.setattr(tiers, "only_touched", True)
    assert names(left_out(measured)) == ["test_docs.py::long", "test_docs.py::many", "test_docs.py::new"]


@pytest.mark.parametrize(
    ("changed", "near"),
    [
        ("src/hotrows/engine/storage/log.py", "tests/storage/test_file.py"),
        ("csrc/text.cpp", "tests/data/test_text.py"),
        ("tests/support/file_stores.py", "tests/storage/test_crash.py"),
        ("tests/test_words.py", "tests/test_words.py"),
        ("docs/index.md", None),
    ],
)
def test_tests_near_to_a_change_are_found_by_imports_and_names(changed, near, monkeypatch):
    monkeypatch.setattr(tiers, "_git", lambda *command: changed)
    files = tiers.touched.__wrapped__()
    assert near in files if near else files == set()


@pytest.mark.parametrize("printed", [None, "pyproject.toml"])
def test_all_long_tests_run_where_nobody_can_say_what_changed(printed, monkeypatch):
    monkeypatch.setattr(tiers, "_git", lambda *command: printed)
    assert tiers.touched.__wrapped__() is None


def test_times_are_medians_over_reports_of_the_slowest_case(tmp_path):
    for number, time in enumerate((0.5, 3.0, 0.7)):
        cases = "".join(
            f'<testcase classname="tests.test_choice.Class" name="test_a[{case}]" time="{seconds}"/>'
            for case, seconds in (("x", time), ("y", 0.2))
        )
        skipped = '<testcase classname="tests.test_choice" name="test_b" time="9"><skipped/></testcase>'
        (tmp_path / f"{number}.xml").write_text(f"<testsuite>{cases}{skipped}</testsuite>")
    reports = [times.of_report(path) for path in sorted(tmp_path.glob("*.xml"))]
    assert times.merged(reports) == {"tests/test_choice.py::test_a": [0.9, 0.7]}
