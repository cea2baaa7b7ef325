"""Which tests run without `--all`: short ones not marked `slow`; of those marked `pairs` or `few` a part.

A test with several parameters has as many cases as the product of their values. Marked `pairs`, it runs
the fewest cases, by a greedy choice, in which any two values of two parameters meet. Marked `few(n)`, it
runs n cases that lie evenly among these, the first and the last with them.
"""

import itertools
import os
from collections import defaultdict

from tests.support import tiers

ALL = "HOTROWS_TEST_ALL"


def everything():
    """Whether all tests run: `pytest --all`, or HOTROWS_TEST_ALL=1 in processes that tests start."""
    return bool(os.environ.get(ALL))


def examples(number, part=3):
    """How many random examples are drawn of the number that `--all` draws: one of `part`."""
    return number if everything() else max(number // part, 3)


def left_out(items):
    """The tests of a collection that do not run."""
    out = {item for item in items if item.get_closest_marker("slow")}
    if tiers.only_touched:
        out.update(item for item in items if not (tiers.is_long(item) and tiers.is_touched(item)))
    elif tiers.WITH_LONG not in os.environ:
        out.update(item for item in items if tiers.is_long(item))
    for mark, beyond in (("pairs", beyond_pairs), ("few", beyond_few)):
        for cases in cases_of([item for item in items if item not in out], mark):
            out.update(beyond(cases))
    return [item for item in items if item in out]


def cases_of(items, mark):
    """The cases of each test that has a mark."""
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker(mark):
            tests[item.nodeid.partition("[")[0]].append(item)
    return tests.values()


def beyond_few(cases):
    """The cases that are not among the n of the mark; those of a GPU all are."""
    cases = [case for case in cases if not case.get_closest_marker("gpu")] or cases
    (number,) = cases[0].get_closest_marker("few").args
    places = {round(place * (len(cases) - 1) / (number - 1)) for place in range(number)}
    return [case for place, case in enumerate(cases) if place not in places]


def beyond_pairs(cases):
    """The cases that show no pair of values that the others do not."""
    pairs = {case: set(itertools.combinations(values(case), 2)) for case in cases}
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))  # the first of equals
        chosen.add(best)
        missing -= pairs[best]
    return [case for case in cases if case not in chosen]


def values(case):
    """The values of a case, each with the parameters that it was given for."""
    return sorted((name, repr(value)) for name, value in case.callspec.params.items())
