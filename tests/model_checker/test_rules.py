"""Each rule is needed: without it there is an order in which training goes wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.model_checker.cases import FAMILIES, random_case
from tests.model_checker.explorer import explore, rule_names
from tests.model_checker.rules import RACES, RULES, UNNEEDED, memory
from tests.model_checker.schedule import explained

PAGE = (Path(__file__).parents[2] / "docs" / "evidence" / "reliability.md").read_text()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_without_this_rule_training_goes_wrong(rule):
    right, wrong = explore(rule.case), explore(rule.removed())
    assert right.fault is None and right.is_complete
    assert wrong.fault is not None and wrong.fault.kind == rule.fault
    text = explained(rule.removed(), wrong)
    last_event, verdict = text.splitlines()[-2:]
    assert last_event.split()[0] == str(len(wrong.trace)) and verdict.startswith("WRONG ")


@pytest.mark.parametrize(
    ("side", "case"),
    [
        *(("past_pins", memory((0,), *[()] * (k - 2), (1,), in_flight=k)) for k in (2, 3, 4)),
        ("future_pins", memory((0,), (1,), (2,), (0,), slots=2, in_flight=2)),
        ("future_pins", memory((0,), (1,), (2,), (3,), (), (0,), slots=3, in_flight=3)),
    ],
)
def test_pins_reach_no_farther_than_needed(side, case):
    """k - 1 batches on either side are right, k - 2 are too few."""
    assert explore(case).fault is None
    fewer = replace(case, removed=frozenset({RACES}), **{side: case.in_flight - 2})
    assert explore(fewer).fault.kind == "wrong read"


def test_every_rule_of_the_model_has_a_counter_example():
    in_model = {rule.name for rule in RULES if not rule.planner}
    assert in_model | UNNEEDED.keys() == {*rule_names()} - {RACES}
    assert not in_model & UNNEEDED.keys()


@pytest.mark.parametrize("name", UNNEEDED)
def test_without_an_unneeded_rule_nothing_goes_wrong(name):
    for family in FAMILIES[:3]:
        for seed in range(30 if family != "ranks" else 8):
            case = replace(random_case(family, seed), removed=frozenset({name}))
            assert explore(case).fault is None


def test_the_page_lists_the_rules():
    for rule in RULES:
        assert f"| `{rule.name}` | {rule.text} | {rule.fault} |" in PAGE, rule.name
