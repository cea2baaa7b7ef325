"""A few cases of the fuzzer, and those in which it once found something."""

import pytest

from tests.acceleration.fuzz import case_of, check

FOUND = (
    500174,  # a compiler that described a table brought its rows up to date, in float32
    21,  # catching up was taken for a write of a tensor that backward needs
    600016,  # a lookup was made before one that cuts rows of its table to max_norm
    600277,  # a table whose vectors have no gradient got one of zeros
    421434,  # dynamo's checkpoint runs lookups again that cut rows, or count them
    450065,  # a row that one number takes was a copy, not a view
    511679,  # dynamo read the data of a table whose rows were behind
    56230232,  # rows that were caught up while a graph was captured began with a count in float32
    7001,  # backward(inputs=) ran checkpointed parts again with tables as plain tensors
)


@pytest.mark.few(10)
@pytest.mark.parametrize("seed", [*range(20), *FOUND])
def test_accelerated_loops_show_what_plain_ones_do(seed):
    check(case_of(seed))
