"""How many threads a step takes: a matter of its batch and its model, and of nothing else."""

import pytest
import torch

from hotrows.batch import Batch
from hotrows.train.step_trainer import limited_threads, num_threads

WEIGHTS = 492_000  # of DeepFM's matrices, 26 features of dim 16


def batch(size, features=26, length=1):
    ids = torch.zeros(size * features * length, dtype=torch.int64)
    offsets = None if length == 1 else torch.arange(size * features + 1) * length
    names = tuple(f"f{f}" for f in range(features))
    return Batch(names, ids, torch.zeros(size, 0), offsets=offsets)


@pytest.mark.parametrize(
    ("size", "features", "length", "weights", "num"),
    [
        (128, 26, 1, WEIGHTS, 1),
        (1024, 26, 1, WEIGHTS, 3),
        (2048, 26, 1, WEIGHTS, 4),  # all that there are
        (128, 39, 1, 13, 1),  # logistic regression
        (8192, 39, 1, 13, 2),
        (0, 26, 1, WEIGHTS, 1),
        (64, 2, 100, 40_000, 3),  # each element of a history goes through matrices
    ],
)
def test_a_short_step_takes_one_thread(size, features, length, weights, num):
    assert num_threads(batch(size, features, length), weights, 4) == num


def test_other_work_has_all_threads_again(threads):
    threads(2)
    with pytest.raises(RuntimeError, match="in a step"), limited_threads(batch(1), 1):
        assert torch.get_num_threads() == 1
        raise RuntimeError("in a step")
    assert torch.get_num_threads() == 2
