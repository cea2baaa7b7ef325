"""Loader: batches are a pure function of seed, epoch and position."""

import pickle
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from hotrows.batch import Batch
from hotrows.data import EncodedData, Loader, open_parquet, write_encoded
from hotrows.data.stored import order, shards
from hotrows.schema import Dense, Schema, Sparse
from tests.reference.rows_of_data import permutation, use_plain_python

ROWS = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows that tell their number in every column, in shards of 300."""
    schema = Schema(
        features=(Dense("x"), Sparse("narrow", rows=200), Sparse("middle", rows=ROWS),
                  Sparse("wide", rows=100_000), Sparse("widest", rows=1 << 40)),
    )  # fmt: skip
    number = torch.arange(ROWS)
    batch = Batch(
        features=tuple(f.name for f in schema.sparse),
        ids=torch.cat([number % 200, number, number * 97, number * (1 << 30)]),
        dense=number.float()[:, None],
        labels=(number % 3 == 0).float(),
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(shards.ShardWriter.__init__, "__defaults__", (300,))
        return write_encoded(tmp_path_factory.mktemp("loader") / "out", schema, {"train": [batch]})


@pytest.fixture(autouse=True)
def small_pools(monkeypatch):
    monkeypatch.setattr(order.pools, "__defaults__", (0, 64, 3))


def test_data_that_is_opened_again_is_not_mapped_again(data):
    again = EncodedData.open(data.path)
    assert again.parts["train"].stored(0) is EncodedData.open(data.path).parts["train"].stored(0)


@pytest.fixture(params=["native", "plain"])
def both(request, monkeypatch):
    if request.param == "plain":
        use_plain_python(monkeypatch)


def same(one: Batch, other: Batch) -> bool:
    pairs = ((one.ids, other.ids), (one.dense, other.dense), (one.labels, other.labels))
    return one.first_sample == other.first_sample and all(torch.equal(*pair) for pair in pairs)


def numbers(batches) -> list[int]:
    return torch.cat([batch.dense[:, 0] for batch in batches]).int().tolist()


def test_unshuffled_batches_are_in_order(data):
    batches = list(Loader(data.parts["train"], 128, shuffle=False).batches(0))
    assert [batch.size for batch in batches] == [128] * 7 + [ROWS - 7 * 128]
    assert [batch.first_sample for batch in batches] == list(range(0, ROWS, 128))
    assert numbers(batches) == list(range(ROWS))


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_columns_of_a_row_stay_together(data, both, shuffle):
    for batch in Loader(data.parts["train"], 77, shuffle=shuffle).batches(0):
        number = batch.dense[:, 0].long()
        expected = [number % 200, number, number * 97, number * (1 << 30)]
        assert torch.equal(batch.ids, torch.cat(expected))
        assert torch.equal(batch.labels, (number % 3 == 0).float())
        assert batch.offsets is None


@pytest.mark.parametrize("batch_size", [1, 64, 77, 1000, 5000])
def test_shuffling_reads_every_row_once(data, batch_size):
    loader = Loader(data.parts["train"], batch_size, shuffle=True, seed=5)
    batches = list(loader.batches(0))
    assert len(batches) == len(loader)
    assert sorted(numbers(batches)) == list(range(ROWS))
    assert numbers(batches) != list(range(ROWS))


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_can_be_entered_at_any_batch(data, shuffle):
    loader = Loader(data.parts["train"], 77, shuffle=shuffle)
    all_batches = list(loader.batches(2))
    for first in (0, 1, 5, len(loader) - 1, len(loader), 99):
        remaining = list(loader.batches(2, first))
        assert len(remaining) == max(0, len(loader) - first)
        assert all(same(*pair) for pair in zip(all_batches[first:], remaining, strict=True))


@pytest.mark.parametrize("num_workers", [1, 2, 3, 20])
def test_workers_of_a_data_loader_share_the_batches(data, num_workers, monkeypatch):
    """Each once yielded all batches. A state of one leads it to its next batch."""
    loader = Loader(data.parts["train"], 77, shuffle=True)
    expected, of_workers = list(loader.batches(1, 2)), {}

    def within(worker):
        state = SimpleNamespace(id=worker, num_workers=num_workers)
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: state)

    for worker in range(num_workers):
        within(worker)
        of_workers |= {batch.first_sample // 77: batch for batch in loader.batches(1, 2)}
        stream = loader.stream(epochs=2, position={**loader.identity, "epoch": 0, "batch": 12})
        seen = [batch.first_sample // 77 for batch in stream]
        assert seen == [n for n in (12, *range(13)) if n % num_workers == worker]
        stream.load_state_dict({**loader.identity, "epoch": 0, "batch": 0})
        for number in range(12):
            if number % num_workers == worker:
                assert next(stream).first_sample // 77 == number
                stream.load_state_dict(stream.state_dict())
    assert all(same(of_workers[n], batch) for n, batch in enumerate(expected, 2))
    assert len(of_workers) == len(expected)


def test_a_worker_that_is_not_forked_gets_the_loader_and_no_file(data, tmp_path):
    """It could not be pickled: a lock, and of Parquet its open files."""
    parquet.write_table(pa.table({"a": np.arange(900) % 9, "click": np.arange(900) % 2}), tmp_path / "p")
    straight = open_parquet(Schema((Sparse("a", rows=9),), label="click"), tmp_path / "p")
    for part in (data.parts["train"], straight.parts["train"]):
        loader = Loader(part, 77, shuffle=True, seed=3)
        expected = list(loader.batches(1))
        pickled = pickle.dumps(loader)
        assert len(pickled) < 10_000
        copied = list(pickle.loads(pickled).batches(1))
        assert all(same(*pair) for pair in zip(copied, expected, strict=True))


def test_seed_and_epoch_decide_the_order(data):
    def order_of(seed, epoch):
        return numbers(Loader(data.parts["train"], 50, shuffle=True, seed=seed).batches(epoch))

    assert order_of(1, 0) == order_of(1, 0)
    orders = [order_of(1, 0), order_of(1, 1), order_of(2, 0), order_of(-1, 0)]
    assert len({tuple(order_drawn) for order_drawn in orders}) == 4


def test_pools_mix_blocks_from_everywhere():
    (first, *others) = order.pools(10_000, 0, 0, block_rows=100, blocks_per_pool=20)
    assert [pool.rows for pool in (first, *others)] == [2000] * 5
    starts = [start for start, _ in first.blocks]
    assert min(starts) < 2000
    assert max(starts) > 8000


def test_a_short_last_block_may_stand_anywhere():
    pools = list(order.pools(950, 0, 0, block_rows=100, blocks_per_pool=3))
    assert [pool.first for pool in pools] == np.cumsum([0, *(p.rows for p in pools[:-1])]).tolist()
    blocks = sorted(block for pool in pools for block in pool.blocks)
    assert blocks == [(first, min(first + 100, 950)) for first in range(0, 950, 100)]


def test_permutations_are_those_of_every_version():
    assert order.permutation(8, 0, 1).tolist() == [7, 0, 6, 2, 1, 4, 3, 5]
    assert order.permutation(1, 3).tolist() == [0]
    assert order.permutation(0, 3).tolist() == []
    counts = np.zeros((4, 4))
    for seed in range(2000):
        counts[range(4), order.permutation(4, seed)] += 1
    assert np.abs(counts / 2000 - 0.25).max() < 0.05


@pytest.mark.parametrize("n", [0, 1, 2, 7, 100, 4095, 4096, 5000, 65_536, 65_537, 262_144])
def test_permutations_of_the_native_core_are_those_of_numpy(n):
    orders_drawn = [order.permutation(n, seed, 7) for seed in range(3)]
    assert (np.sort(orders_drawn[0]) == np.arange(n)).all()
    plain = [permutation(n, seed, 7) for seed in range(3)]
    assert all(map(np.array_equal, orders_drawn, plain))


def test_an_empty_part_has_no_batch(data):
    loader = Loader(data.parts["test"], 10, shuffle=True)
    assert len(loader) == 0
    assert list(loader.batches(0)) == []


def test_a_batch_size_of_zero_is_refused(data):
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        Loader(data.parts["train"], 0, shuffle=False)


@pytest.mark.parametrize("pool_blocks", [3, 100])
def test_a_shuffle_that_keeps_groups_permutes_groups_and_the_rows_within(
    tmp_path, monkeypatch, pool_blocks
):
    """In every pool of 64-row blocks a group's rows are neighbours; all rows come, in another order each
    epoch, and ranks share them as ever."""
    monkeypatch.setattr(order.pools, "__defaults__", (0, 64, pool_blocks))
    number = torch.arange(ROWS)
    user = number * 7919 % 50
    batch = Batch(("user",), user, number.float()[:, None], (number % 2).float(), groups=user)
    schema = Schema((Dense("x"), Sparse("user", rows=50)), group="user")
    part = write_encoded(tmp_path / "grouped", schema, {"train": [batch]}).parts["train"]
    loader = Loader(part, 128, shuffle=True, seed=3, keep_groups=True)
    first, second = (numbers(loader.batches(epoch)) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(ROWS)) and first != second
    groups = user[torch.tensor(first)]
    most = -(-ROWS // (64 * pool_blocks)) * 50
    assert len(groups.unique_consecutive()) <= most < len(user.unique_consecutive())
    assert (torch.tensor(first)[groups == 4].diff() < 0).any()  # not as they stand in the data
    assert groups.unique_consecutive()[:50].tolist() != sorted(groups.unique_consecutive()[:50].tolist())
    ranks = [
        Loader(part, 128, shuffle=True, seed=3, keep_groups=True, rank=rank, num_ranks=2).batches(0, 2)
        for rank in (0, 1)
    ]
    together = [numbers(pair) for pair in zip(*ranks, strict=True)]
    assert [n for pair in together for n in pair] == first[256:]
