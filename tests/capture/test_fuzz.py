"""A few cases of the fuzzer, and those in which it once found something."""

import pytest

from tests.capture.fuzz import case_of, check

FOUND = (500174,)  # a compiler that described a table brought its rows up to date, in float32


@pytest.mark.parametrize("seed", [*range(40), *FOUND])
def test_accelerated_loops_show_what_plain_ones_do(seed):
    check(case_of(seed))
