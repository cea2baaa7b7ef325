"""Which tests run without `--all`: those not marked `slow`, and of those marked `pairs` a part.

A test with several parameters has as many cases as the product of their values. Marked `pairs`, it runs
the fewest cases, by a greedy choice, in which any two values of two parameters meet.
"""

import itertools
import os
from collections import defaultdict

ALL = "HOTROWS_TEST_ALL"


def everything():
    """Whether all tests run: `pytest --all`, or HOTROWS_TEST_ALL=1 in processes that tests start."""
    return bool(os.environ.get(ALL))


def left_out(items):
    """The tests of a collection that do not run."""
    products = defaultdict(list)
    for item in items:
        if item.get_closest_marker("pairs"):
            products[item.nodeid.partition("[")[0]].append(item)
    slow = [item for item in items if item.get_closest_marker("slow")]
    return slow + [item for cases in products.values() for item in beyond_pairs(cases)]


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
