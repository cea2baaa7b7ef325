"""Several ranks read what one process would: every row once, in the same order, in equal steps."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.data import Loader
from hotrows.data.stored import order
from hotrows.data.stored.order import Share
from tests.data.encoded_rows import EVERYTHING, batch_of, samples, write_rows
from tests.support.choice import examples

ORDER_BEFORE = [13, 0, 9, 14, 6, 7, 10, 15, 12, 2, 5, 1, 11, 4, 3, 8]


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """500 rows in shards of 90, pools of 3 blocks of 32 rows."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        batch = batch_of(EVERYTHING, 500)
        folder = tmp_path_factory.mktemp("ranks") / "out"
        monkeypatch.setattr(order.pools, "__defaults__", (0, 32, 3))
        yield write_rows(folder, EVERYTHING, batch, 90, monkeypatch).parts["train"]


def read(part, batch_size, shuffle, rank=0, num_ranks=1, first=0, epoch=0, shares=()):
    ranked = {"rank": rank, "num_ranks": num_ranks, "seed": 3, "shares": shares}
    return list(Loader(part, batch_size, shuffle=shuffle, **ranked).batches(epoch, first))


@settings(deadline=None, max_examples=examples(60, 6))
@given(
    num_ranks=st.integers(1, 7),
    batch_size=st.sampled_from([1, 3, 7, 64, 100, 499, 500, 900]),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
    weights=st.none() | st.lists(st.integers(1, 9), min_size=7, max_size=7),
)
def test_ranks_together_read_the_batches_of_one(part, num_ranks, batch_size, shuffle, epoch, weights):
    shares = tuple(weights or ())[:num_ranks]
    batches_of_one = read(part, batch_size, shuffle, epoch=epoch)
    ranks = [
        read(part, batch_size, shuffle, r, num_ranks, epoch=epoch, shares=shares)
        for r in range(num_ranks)
    ]
    assert {len(batches) for batches in ranks} == {len(batches_of_one)}
    for number, batch in enumerate(batches_of_one):
        read_by_rank = [batches[number] for batches in ranks]
        assert [sample for shared in read_by_rank for sample in samples(shared)] == samples(batch)
        starts = batch.first_sample + np.cumsum([0, *(shared.size for shared in read_by_rank)])
        assert [shared.first_sample for shared in read_by_rank] == starts[:-1].tolist()
        sizes = [shared.size for shared in read_by_rank]
        parts = weights[:num_ranks] if weights else [1] * num_ranks
        expected = [batch.size * part / sum(parts) for part in parts]
        assert all(abs(size - of) < 1 for size, of in zip(sizes, expected, strict=True))


@settings(deadline=None, max_examples=examples(40))
@given(
    rank=st.integers(0, 4),
    batch_size=st.sampled_from([1, 7, 64, 100]),
    shuffle=st.booleans(),
    first=st.integers(0, 80),
)
def test_a_rank_may_begin_at_any_batch(part, rank, batch_size, shuffle, first):
    batches_of_one = read(part, batch_size, shuffle, rank, 5)
    remaining = read(part, batch_size, shuffle, rank, 5, first)
    assert list(map(samples, remaining)) == list(map(samples, batches_of_one[first:]))


@given(
    rows=st.integers(0, 60),
    batch_size=st.integers(1, 70),
    num_ranks=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 60)),
    weights=st.sampled_from([(), (1, 9, 2, 1, 100, 3, 1, 1, 5)]),
)
def test_places_are_those_of_the_batches(rows, batch_size, num_ranks, cuts, weights):
    bounds = sorted({0, rows, *(cut for cut in cuts if cut <= rows)})
    for rank in range(num_ranks):
        share = Share(rows, batch_size, rank, num_ranks, weights[:num_ranks])
        batches = [share.of_batch(number) for number in range(-(-rows // batch_size))]
        expected = [place for first, end in batches for place in range(first, end)]
        pairs = itertools.pairwise(bounds)
        assert [int(place) for pair in pairs for place in share.among(*pair)] == expected


def test_an_empty_share_is_an_empty_batch(part):
    last = read(part, 498, False, rank=0, num_ranks=5)[-1]
    assert (last.size, last.ids.tolist(), last.offsets.tolist()) == (0, [], [0])
    assert (list(last.labels.shape), list(last.dense.shape)) == ([0, 2], [0, 2])


def test_a_rank_that_is_none_is_refused(part):
    for rank, num_ranks in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="rank must be from 0 to num_ranks - 1"):
            Loader(part, 8, shuffle=False, rank=rank, num_ranks=num_ranks)


def test_orders_of_shards_are_those_of_every_version():
    pools = list(order.pools(1000, 3, 1, block_rows=64, blocks_per_pool=5))
    assert [pool.first for pool in pools] == [0, 320, 616, 936]
    assert [start // 64 for pool in pools for start, _ in pool.blocks] == ORDER_BEFORE
    assert pools[1].seed == (3, 1, 1)


@given(
    sizes=st.lists(st.integers(1, 50), max_size=30),
    pool_rows=st.integers(1, 200),
    first_row=st.integers(0, 500),
)
def test_blocks_of_any_size_fill_pools(sizes, pool_rows, first_row):
    bounds = np.cumsum([0, *sizes]).tolist()
    pools = list(order.pools_of(bounds, 1, 2, pool_rows=pool_rows))
    blocks = [block for pool in pools for block in pool.blocks]
    assert sorted(blocks) == list(itertools.pairwise(bounds))
    for pool in pools[:-1]:
        last = pool.blocks[-1]
        assert pool.rows >= pool_rows > pool.rows - (last[1] - last[0])
    entered = list(order.pools_of(bounds, 1, 2, first_row, pool_rows))
    assert entered == [pool for pool in pools if pool.first + pool.rows > first_row]
