"""Requests: what their rows share is stored once, and comes back for each of them."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch

from hotrows.data import EncodedData, Loader, prepare, write_encoded
from hotrows.data.load.parquet import open_parquet
from hotrows.data.stored import part as parts
from hotrows.data.stored import shards
from hotrows.data.stored.order import parts_of_requests
from hotrows.data.stored.request_rows import bounds_between
from hotrows.schema import Schema, Sparse
from tests.support.requests import COLUMNS, NAMES, PLAIN, SCHEMA, file_of, request_batch, rows_of
from tests.support.requests import schema as encoded_schema


@pytest.fixture
def both(tmp_path):
    """Rows prepared with requests, and without."""
    path = file_of(tmp_path, rows_of(300, candidates=0))
    return [prepare(path, one, tmp_path / name) for one, name in ((SCHEMA, "once"), (PLAIN, "plain"))]


def batches(data, **how):
    return list(Loader(data.parts["train"], how.pop("batch_size", 64), **how).batches(0))


def assert_equal(one, other):
    for name in ("ids", "offsets", "dense", "labels"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_batches_expanded_are_those_of_data_without_requests(tmp_path):
    path = file_of(tmp_path, rows_of(60, candidates=0))
    all_train = {"split": "fraction:1,0,0"}
    once = prepare(path, SCHEMA, tmp_path / "once", **all_train)
    plain = prepare(path, PLAIN, tmp_path / "plain", **all_train)
    pairs = list(zip(batches(once), batches(plain), strict=True))
    assert len(pairs) > 2
    for batch, expected in pairs:
        assert batch.requests is not None and batch.all_features != batch.features == ("item",)
        assert_equal(batch.expanded(NAMES), expected)
        starts = batch.requests.starts
        assert all(len(batch.groups[a:b].unique()) == 1 for a, b in pairwise(starts.tolist()))
    mapped = next(once.parts["train"].mapped(7, 40))
    theirs = next(plain.parts["train"].mapped(7, 40))
    for section in set(theirs.arrays) - {"groups"}:  # which are the requests
        assert np.array_equal(mapped.values(section), theirs.values(section)), section
    assert once.parts["train"].values == plain.parts["train"].values  # counts are of rows


def test_shards_are_a_third_with_eight_candidates(tmp_path):
    path = file_of(tmp_path, rows_of(400, candidates=8, history=20))

    def size(schema, name):
        data = prepare(path, schema, tmp_path / name)
        return sum((data.path / s.file).stat().st_size for p in data.parts.values() for s in p.shards)

    assert size(PLAIN, "plain") > 3 * size(SCHEMA, "once")


def test_requests_are_split_whole(both):
    once, plain = both
    seen = [
        {int(n) for batch in Loader(part, 50).batches(0) for n in batch.groups}
        for part in once.parts.values()
    ]
    assert all(seen) and sum(map(len, seen)) == len(set.union(*seen)) == 300
    assert sum(part.rows for part in once.parts.values()) == sum(p.rows for p in plain.parts.values())


@pytest.mark.parametrize("order", ["shuffle", "reuse:2"])
def test_shuffling_moves_requests_whole(both, order, monkeypatch):
    monkeypatch.setattr(parts, "BLOCK_ROWS", 32)
    part = both[0].parts["train"]
    (epoch,) = Loader(part, part.rows, shuffle=True, seed=3, order=order).batches(0)
    groups = epoch.groups.unique_consecutive()
    assert len(groups) == len(groups.unique()) == epoch.requests.shared.size, "a request is torn"
    (in_order,) = Loader(part, part.rows).batches(0)
    assert not torch.equal(in_order.groups, epoch.groups)
    rows = [sorted(zip(b.groups.tolist(), b.ids.tolist(), strict=True)) for b in (in_order, epoch)]
    assert rows[0] == rows[1]
    ids = dict(zip(in_order.groups.tolist(), in_order.expanded().dense.tolist(), strict=True))
    ages = dict(zip(epoch.groups.tolist(), epoch.dense.tolist(), strict=True))
    assert {group: row[0] for group, row in ids.items()} == {group: row[0] for group, row in ages.items()}


def test_parts_of_requests_have_so_many_rows_at_most():
    request = np.array([4, 4, 4, 7, 9, 9])
    assert parts_of_requests(request, 2).tolist() == [1, 1, 2, 3, 4, 4]
    assert parts_of_requests(request, 9).tolist() == [1, 1, 1, 2, 3, 3]
    assert parts_of_requests(request, 1).tolist() == [1, 2, 3, 4, 5, 6]
    assert parts_of_requests(request[:0], 2).tolist() == []


@pytest.mark.parametrize("keep_groups", [False, True])
@pytest.mark.parametrize("batch_size, most", [(256, 8), (300, 8), (128, 4), (64, 2), (16, 1)])
def test_a_shuffled_batch_mixes_32_parts_of_requests(tmp_path, batch_size, most, keep_groups):
    """Of whole requests of eight, a batch of 64 has eight users, too few for batch normalisation.
    Losses that compare the samples of a group need them whole."""
    path = file_of(tmp_path, rows_of(400, candidates=8))
    data = prepare(path, SCHEMA, tmp_path / "once", split="fraction:1,0,0")
    made = batches(data, batch_size=batch_size, shuffle=True, keep_groups=keep_groups)
    whole = most == 8 or keep_groups
    for batch in made[:-1]:
        num_parts, sizes = batch_size // most, batch.requests.starts.diff()
        fewest = batch_size // 8 if whole else 0.8 * num_parts  # parts of one request may meet
        assert fewest <= len(sizes) <= (batch_size // 8 + 2 if whole else num_parts)
    rows = [
        sorted(row for b in some for row in b.expanded().dense.tolist()) for some in (made, batches(data))
    ]
    assert rows[0] == rows[1], "a sample is lost, or there twice"


def test_any_batch_of_a_shuffled_epoch_is_read_alone_and_ranks_share_it(both):
    part = both[0].parts["train"]
    loader = Loader(part, 100, shuffle=True, seed=1)
    epoch = list(loader.batches(2))
    assert epoch[-1].size < 100
    for number, batch in enumerate(epoch):
        assert_equal(next(loader.batches(2, number)).expanded(), batch.expanded())
        ranks = (Loader(part, 100, shuffle=True, seed=1, rank=r, num_ranks=2) for r in range(2))
        shares = [next(rank.batches(2, number)) for rank in ranks]
        assert torch.equal(torch.cat([share.dense for share in shares]), batch.dense)
        histories = [share.expanded(("history",)).ids for share in shares]
        assert torch.equal(torch.cat(histories), batch.expanded(("history",)).ids)


def test_a_request_over_the_end_of_a_shard_is_stored_in_both(tmp_path, monkeypatch):
    monkeypatch.setattr(shards.ShardWriter.__init__, "__defaults__", (7,))
    path = file_of(tmp_path, rows_of(9, candidates=3))
    data = prepare(path, SCHEMA, tmp_path / "once", split="fraction:1,0,0")
    plain = prepare(path, PLAIN, tmp_path / "plain", split="fraction:1,0,0")
    assert len(data.parts["train"].shards) == 4
    for batch, expected in zip(batches(data, batch_size=10), batches(plain, batch_size=10), strict=True):
        assert_equal(batch.expanded(NAMES), expected)


@pytest.mark.parametrize(
    "name, value, row", [("user", "u1000", 5), ("age", "99.5", 8), ("history", "i1|i2|i3|i1000", 5)]
)
def test_rows_of_a_request_that_differ_are_refused_by_line(tmp_path, monkeypatch, name, value, row):
    monkeypatch.setattr("hotrows.data.raw.chunks.CHUNK_BYTES", 300)
    rows = [list(line) for line in rows_of(6, candidates=4)]
    rows[row][COLUMNS.index(name)] = value
    rows[row + 8][COLUMNS.index(name)] = value
    path, expected = file_of(tmp_path, rows), row + 2 if row % 4 == 0 else row + 1
    with pytest.raises(ValueError) as error:
        prepare(path, SCHEMA, tmp_path / "out", split="fraction:1,0,0")
    assert str(error.value).startswith(
        f"{path} line {expected}, feature {name!r}: expected the value of the row"
    )
    assert f"same request 'r{row // 4}', found another; correct the row" in str(error.value)


def test_rows_without_a_request_are_requests_of_their_own(tmp_path):
    rows = [("1", "", f"u{n}", "1", "i1", "i2", "i3", "4") for n in range(5)]
    data = prepare(file_of(tmp_path, rows), SCHEMA, tmp_path / "out", split="fraction:1,0,0")
    (batch,) = batches(data)
    assert batch.requests.shared.size == 5 and len(batch.groups.unique()) == 5


def test_encoded_batches_of_requests_come_back(tmp_path):
    schema = dataclasses.replace(
        encoded_schema(), request="request", shared=("user", "city", "tags", "history")
    )
    written = [request_batch([3, 1, 2], seed, num_dense=1) for seed in range(3)]
    data = write_encoded(tmp_path / "out", schema, {"train": written})
    names = tuple(feature.name for feature in schema.id_features)
    read = list(Loader(data.parts["train"], 6).batches(0))
    for batch, expected in zip(read, written, strict=True):
        assert batch.requests.shared.size == 3
        assert_equal(batch.expanded(names), expected.expanded(names))


def test_a_schema_names_the_request_and_what_is_shared():
    with pytest.raises(ValueError, match="expected request=COLUMN and, beside it, shared="):
        dataclasses.replace(PLAIN, request="request")
    with pytest.raises(ValueError, match=r"not 'request' and \['yser'\]"):
        dataclasses.replace(PLAIN, request="request", shared=("yser",))
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA and SCHEMA.grouping == "request"
    assert "shared" not in PLAIN.to_json(), "fingerprints of other data would change"


def test_what_requests_cannot_have_is_refused(tmp_path):
    path = file_of(tmp_path, rows_of(5))
    with pytest.raises(
        ValueError, match="draws rows by their label, and rows of a request stay together"
    ):
        prepare(path, SCHEMA, tmp_path / "out", split="stratified:0.8,0.1,0.1")
    with pytest.raises(ValueError, match="prepare the data"):
        open_parquet(encoded_schema_with_requests(), tmp_path)


def encoded_schema_with_requests():
    return dataclasses.replace(encoded_schema(), request="request", shared=("user",))


def test_a_shard_whose_starts_are_damaged_is_refused(tmp_path):
    schema = encoded_schema_with_requests()
    data = write_encoded(tmp_path / "out", schema, {"train": [request_batch([3, 1, 2], num_dense=1)]})
    rows = data.parts["train"].stored(0)
    assert EncodedData.open(data.path).parts["train"].stored(0).starts.tolist() == [0, 3, 4, 6]
    assert len(rows) == 6 and len(rows.shared) == 3


def candidates_of(rows):
    """The same rows as a table with a row for each request."""
    import pyarrow as pa

    by_request = {}
    for row in rows:
        by_request.setdefault(row[1], []).append(dict(zip(COLUMNS, row, strict=True)))
    cut = {"history", "tags"}
    columns = {
        name: [
            [row[name] for row in group] if name in ("label", "item", "price")
            else [item for item in group[0][name].split("|") if item] if name in cut
            else group[0][name]
            for group in by_request.values()
        ]
        for name in COLUMNS
    }  # fmt: skip
    return pa.table(columns)


@pytest.mark.parametrize("split", ["position:0.8,0.1,0.1", "fraction:0.8,0.1,0.1"])
def test_parquet_rows_with_lists_of_candidates_are_rows_of_requests(tmp_path, split):
    import pyarrow.parquet as pq

    rows = rows_of(40, candidates=0)
    pq.write_table(candidates_of(rows), tmp_path / "raw.parquet", row_group_size=11)
    schema = dataclasses.replace(SCHEMA, columns=None)
    data = prepare(tmp_path / "raw.parquet", schema, tmp_path / "lists", split=split)
    expected = prepare(file_of(tmp_path, rows), SCHEMA, tmp_path / "rows", split=split)
    assert {n: p.rows for n, p in data.parts.items()} == {n: p.rows for n, p in expected.parts.items()}
    for name in ("train", "test"):
        ours, theirs = (Loader(one.parts[name], 1000).batches(0) for one in (data, expected))
        for batch, twin in zip(ours, theirs, strict=True):
            assert_equal(batch.expanded(NAMES), twin.expanded(NAMES))
            assert batch.requests.shared.size == twin.requests.shared.size


def test_lists_of_candidates_that_differ_in_length_are_refused_by_row(tmp_path):
    import pyarrow as pa

    table = candidates_of(rows_of(6, candidates=3))
    items = table["item"].to_pylist()
    items[4] = items[4][:2]
    table = table.set_column(table.schema.names.index("item"), "item", pa.array(items))
    schema = dataclasses.replace(SCHEMA, columns=None)
    with pytest.raises(
        ValueError, match="row 4, column 'item': expected a list of 3, as many candidates as"
    ):
        prepare(table, schema, tmp_path / "out")


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_rank_without_a_sample_of_a_small_last_batch_has_an_empty_one(tmp_path, shuffle):
    """Three samples in batches of two: of the last one, three of four ranks have none. Nothing could be
    joined into their batch, which was an error of NumPy's."""
    schema = Schema((Sparse("user"), Sparse("item")), request="request", shared=("user",))
    columns = {"request": list("aab"), "user": list("uuv"), "item": list("xyz"), "label": [0, 1, 0]}
    data = prepare(columns, schema, tmp_path / "enc", split="fraction:1,0,0")
    ranks = [
        list(Loader(data.parts["train"], 2, rank=rank, num_ranks=4, shuffle=shuffle).batches(0))
        for rank in range(4)
    ]
    sizes = [[batch.size for batch in batches] for batches in zip(*ranks, strict=True)]
    assert sizes == [[0, 1, 0, 1], [0, 0, 0, 1]]
    assert all(batch.requests.starts.tolist()[0] == 0 for batches in ranks for batch in batches)


def test_rows_of_a_request_that_do_not_share_a_shared_feature_are_named(tmp_path):
    schema = Schema((Sparse("user"), Sparse("item")), request="request", shared=("user",))
    columns = {"request": list("aabb"), "user": list("uuvw"), "item": list("xyzz"), "label": [0, 1, 0, 1]}
    with pytest.raises(ValueError, match="row 3, feature 'user': expected the value of the row before"):
        prepare(columns, schema, tmp_path / "enc")


def test_blocks_of_an_epoch_cut_no_request():
    starts = np.array([0, 3, 9, 10, 21, 30])
    assert bounds_between(iter([starts, starts[:2], np.zeros(1, int)]), 8) == [0, 9, 21, 30, 33]


@pytest.mark.parametrize("damaged", [0, 1, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_byte_that_is_damaged_in_a_shard_ends_an_epoch(tmp_path, monkeypatch, shuffle, damaged):
    """A shuffled epoch checks a share of the shards before each of its pools."""
    monkeypatch.setattr(shards.ShardWriter.__init__, "__defaults__", (40,))  # rows of a shard
    columns = {"label": [0, 1] * 50, "user": list(range(100))}
    prepare(columns, Schema((Sparse("user"),)), tmp_path / "enc", split="fraction:1,0,0")
    shard = sorted((tmp_path / "enc").glob("train*.shard"))[damaged]
    content = bytearray(shard.read_bytes())
    content[max(place for place, byte in enumerate(content) if byte)] ^= 1  # what follows is padding
    shard.write_bytes(content)
    data = EncodedData.open(tmp_path / "enc")
    with pytest.raises(ValueError, match="damaged|checksum"):
        list(Loader(data.parts["train"], 10, shuffle=shuffle).batches(0))
