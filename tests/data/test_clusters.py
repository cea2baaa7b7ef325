"""Clusters: the native division equals its reference, and batches drawn from it read fewer rows."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from hotrows.batch import Batch
from hotrows.data import Loader, write_encoded
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.rows import Rows
from hotrows.data.stored import order
from hotrows.data.stored import order as module
from hotrows.data.stored.order import clusters
from hotrows.engine.planning.policy import BELADY
from hotrows.engine.planning.slots import SlotMap
from hotrows.schema import Schema, Sequence, Sparse
from hotrows.train.config import TrainConfig
from tests.reference.rows_of_data import dealt

ONE = Schema((Sparse("user", rows=100), Sparse("item", rows=100)))
LISTS = Schema(
    (
        Sparse("item", rows=200),
        Sequence("history", vocabulary="item", rows=200),
        Sparse("tags", rows=1 << 40, many=True),
    )
)


def rows_of(*columns, lengths=()) -> Rows:
    """Rows of these ids; lengths: of the lists of the last columns."""
    names = [feature.name for feature in (LISTS if lengths else ONE).id_features]
    bounds = [np.cumsum([0, *sizes]).astype(np.uint32) for sizes in lengths]
    arrays = {f"ids/{name}": ids for name, ids in zip(names, columns, strict=True)}
    lists = names[len(names) - len(lengths) :]
    return Rows(len(columns[0]), arrays, dict(zip(lists, bounds, strict=True)))


def random_rows(num: int, longest: int) -> Rows:
    random = np.random.default_rng(num)
    lengths = [random.integers(0, longest + 1, num) for _ in range(2)]
    ids = [random.integers(0, 200, int(sizes.sum())) for sizes in lengths]
    tags = ids[1].astype(np.int64) << 30
    tags[::5] = -1  # a key may be any number
    return rows_of(
        random.integers(0, 200, num).astype(np.uint8), ids[0].astype(np.uint16), tags, lengths=lengths
    )


def by_reference(monkeypatch, pieces, schema, num) -> np.ndarray:
    with monkeypatch.context() as patched:
        patched.setattr(module, "_dealt", dealt)
        return clusters(pieces, SchemaColumns(schema), num)


@pytest.mark.parametrize("num_clusters", [1, 2, 8, 9, 32, 64])
@pytest.mark.parametrize(("num", "longest"), [(0, 0), (1, 3), (63, 0), (300, 4), (20, 400)])
def test_the_native_division_equals_the_reference(monkeypatch, num, longest, num_clusters):
    rows = random_rows(num, longest)
    found = clusters([rows], SchemaColumns(LISTS), num_clusters)
    assert found.tolist() == by_reference(monkeypatch, [rows], LISTS, num_clusters).tolist()
    assert len(found) == num
    assert np.bincount(found, minlength=num_clusters).max(initial=0) <= -(-num // num_clusters)


def test_pieces_of_a_pool_are_divided_as_one(monkeypatch):
    rows = random_rows(300, 4)
    pieces = [rows[:7], rows[7:7], rows[7:263], rows[263:]]
    found = clusters(pieces, SchemaColumns(LISTS), 8)
    assert found.tolist() == clusters([rows], SchemaColumns(LISTS), 8).tolist()
    assert found.tolist() == by_reference(monkeypatch, pieces, LISTS, 8).tolist()
    assert clusters([], SchemaColumns(LISTS), 8).tolist() == []


def test_samples_that_read_equal_rows_come_together():
    user = np.array([0, 1, 0, 1, 0, 1, 0, 1], np.uint8)
    item = np.arange(8, dtype=np.uint8)
    assert clusters([rows_of(user, item)], SchemaColumns(ONE), 2).tolist() == user.tolist()


def test_equal_samples_fill_clusters_evenly():
    same = np.zeros(10, np.uint8)
    assert np.bincount(clusters([rows_of(same, same)], SchemaColumns(ONE), 4)).tolist() == [3, 3, 2, 2]


def test_a_row_of_a_shared_vocabulary_counts_in_all_its_columns():
    """Samples of one item each, with the other samples' item in their history."""
    item = np.array([1, 50, 2, 51], np.uint8)
    history = np.array([2, 51, 1, 50], np.uint8)
    rows = rows_of(item, history, np.empty(0, np.int64), lengths=([1] * 4, [0] * 4))
    assert clusters([rows], SchemaColumns(LISTS), 2).tolist() == [0, 1, 0, 1]


ROWS = 3000


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """Users with their own items, mixed; the first column tells the row."""
    random = np.random.default_rng(0)
    user = torch.from_numpy(random.integers(0, 300, ROWS))
    item = user * 4 + torch.from_numpy(random.integers(0, 4, ROWS))
    schema = Schema(
        (Sparse("row", rows=ROWS), Sparse("user", rows=300), Sparse("item", rows=1200)), group="g"
    )
    ids = torch.cat([torch.arange(ROWS), user, item])
    batch = Batch(("row", "user", "item"), ids, torch.zeros(ROWS, 0), user % 2.0, groups=user % 7)
    return write_encoded(tmp_path_factory.mktemp("clusters") / "enc", schema, {"train": [batch]}).parts[
        "train"
    ]


@pytest.fixture(autouse=True)
def small_pools(monkeypatch):
    monkeypatch.setattr(order.pools, "__defaults__", (0, 100, 10))


def numbers(batches) -> list[int]:
    return [n for batch in batches for n in batch.ids[: batch.size].tolist()]


def test_every_epoch_has_all_rows_in_an_order_of_its_own(part):
    loader = Loader(part, 64, shuffle=True, seed=3, order="reuse:4")
    first, again, second = (numbers(loader.batches(epoch)) for epoch in (0, 0, 1))
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first == again != second
    assert first != numbers(Loader(part, 64, shuffle=True, seed=4, order="reuse:4").batches(0))
    assert repr(loader).endswith("47 batches of 64, shuffled by seed 3 in 4 clusters)")


def test_batches_from_the_middle_and_of_ranks_are_those_of_one_process(part):
    def load(first, **ranks):
        return Loader(part, 64, shuffle=True, seed=3, order="reuse:4", **ranks).batches(0, first)

    every = numbers(load(0))
    assert numbers(load(20)) == every[20 * 64 :]
    pairs = zip(*(load(20, rank=rank, num_ranks=3) for rank in range(3)), strict=True)
    assert [n for batches in pairs for n in numbers(batches)] == every[20 * 64 :]


def test_a_second_reader_divides_no_pool_again(part, monkeypatch):
    divided = []
    monkeypatch.setattr(module, "clusters", lambda *given: divided.append(0) or clusters(*given))
    monkeypatch.setattr(module, "_MOST_RECENT", 2)
    loader = Loader(part, 64, shuffle=True, order="reuse:4")
    pairs = zip(loader.batches(0), loader.batches(0), strict=True)
    assert all(torch.equal(one.ids, other.ids) for one, other in pairs)
    assert len(divided) == 3
    list(loader.batches(0))  # the first of three is forgotten, and so on
    assert len(divided) == 6


def test_rows_of_a_group_stay_together_in_clusters(part):
    loader = Loader(part, 64, shuffle=True, order="reuse:4", keep_groups=True)
    batches = list(loader.batches(0))
    assert sorted(numbers(batches)) == list(range(ROWS))
    groups = torch.cat([batch.groups for batch in batches])[:1000]
    assert len(groups.unique_consecutive()) == 7


def test_fewer_rows_are_fetched_than_by_the_optimum_of_a_random_order(part):
    def fetched(order) -> int:
        batches = list(Loader(part, 8, shuffle=True, order=order).batches(0))
        users = [batch.ids.view(3, -1)[1].unique() for batch in batches]
        slots = SlotMap(15, BELADY, in_flight=1)  # a twentieth of the users
        for rows in users:
            slots.feed(rows)
        slots.end()
        for rows in users:
            slots.allocate(rows)
        return slots.misses

    assert 1.5 * fetched("reuse:16") < fetched("shuffle")


def test_a_position_is_of_its_order(part):
    orders = ("shuffle", "reuse:4", "shards:1")
    loaders = {order: Loader(part, 64, shuffle=True, order=order) for order in orders}
    for then, now in itertools.permutations(orders, 2):
        position = loaders[then].stream().state_dict()
        with pytest.raises(ValueError, match="num_clusters|window"):
            loaders[now].stream(position=position)


@pytest.mark.parametrize(
    "text", ["", "random", "reuse:", "reuse:1", "reuse:65", "reuse:²", "shuffle:2", "shards:0"]
)
def test_an_unknown_order_is_refused(part, text):
    words = "order must be shuffle, shards:.* or reuse:CLUSTERS with 2 to 64 clusters in 262,144 samples"
    for refuse in (lambda: TrainConfig(order=text), lambda: Loader(part, 64, shuffle=True, order=text)):
        with pytest.raises(ValueError, match=words):
            refuse()


def test_an_order_of_samples_that_are_not_shuffled_is_refused(part):
    with pytest.raises(ValueError, match="leave shuffle on"):
        TrainConfig(order="reuse", shuffle=False)
    with pytest.raises(ValueError, match="give shuffle=True"):
        Loader(part, 64, order="reuse")
    config = TrainConfig(order="reuse:16")
    assert TrainConfig.from_json(config.to_json()) == config != dataclasses.replace(config, order="reuse")
