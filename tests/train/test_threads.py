"""How many threads a step takes: a matter of its batch and its model, and of nothing else."""

import pytest
import torch

from hotrows.batch import Batch, RequestFeatures, samples
from hotrows.train.loop.step_trainer import limited_threads, num_threads

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


@pytest.mark.parametrize("lists", [True, False])
def test_what_requests_share_counts_in_each_of_their_samples(lists):
    """Batches of requests hold a history once, but models compare it with every candidate."""
    ids, offsets = torch.arange(4), None
    if lists:
        ids, offsets = torch.arange(162), torch.tensor([0, 1, 2, 102, 162])  # histories of 100 and 60
    shared = Batch(("user", "history"), ids, torch.empty(2, 0), offsets=offsets)
    starts = torch.tensor([0, 1, 64])
    requests = Batch(
        ("item",), torch.arange(64), torch.zeros(64, 0), requests=RequestFeatures(shared, starts)
    )
    expanded = requests.expanded()
    assert requests.num_ids == expanded.num_ids == len(expanded.ids)
    for weights in (0, 300_000, 3_000_000):
        assert num_threads(requests, weights, 9) == num_threads(expanded, weights, 9)
    assert num_threads(requests, 300_000, 9) == (8 if lists else 1)
    of_a_rank = samples(requests, 64, 64)  # of the last batch; with lists, the count once failed
    assert of_a_rank.num_ids == 0 and num_threads(of_a_rank, 300_000, 9) == 1


def test_other_work_has_all_threads_again(threads):
    threads(2)
    with pytest.raises(RuntimeError, match="in a step"), limited_threads(batch(1), 1):
        assert torch.get_num_threads() == 1
        raise RuntimeError("in a step")
    assert torch.get_num_threads() == 2
