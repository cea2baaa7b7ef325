"""Columns of vectors: the same numbers from every format to batches, or one clear line."""

import dataclasses
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hotrows import Batch
from hotrows.data import Encoder, Loader, draft_schema, open_parquet, prepare, write_encoded
from hotrows.data.description import describe
from hotrows.data.stored import shards
from hotrows.data.stored.shards import open_shard
from hotrows.schema import Dense, Schema, Sparse
from tests.data.encoded_rows import MISSING_FIXED

ROWS, WIDTH = 200, 5
VALUES = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
MISSING = {3, 150}
LISTS = [None if n in MISSING else VALUES[n].tolist() for n in range(ROWS)]
EXPECTED = np.where(np.isin(np.arange(ROWS), list(MISSING))[:, None], np.float32(0), VALUES)
FIXED = pa.array(LISTS, pa.list_(pa.float32(), WIDTH))
TABLE = pa.table(
    {
        "image": FIXED,
        "user": [n % 7 for n in range(ROWS)],
        "price": [n / 8 for n in range(ROWS)],
        "click": [n % 2 for n in range(ROWS)],
    }
)
IN_PARQUET = TABLE.set_column(
    0, "image", pa.array(LISTS, pa.list_(pa.float32(), WIDTH if MISSING_FIXED else -1))
)
IMAGE = Dense("image", width=WIDTH)
SCHEMA = Schema((IMAGE, Sparse("user"), Dense("price", transform="none")), label="click")


def dense_of(data, part="train", **order):
    return np.concatenate([b.dense.numpy() for b in Loader(data.parts[part], 64, **order).batches(0)])


def prepared(rows, folder, schema=SCHEMA, **options):
    return prepare(rows, schema, folder / "enc", split="position:1,0,0", **options)


@pytest.mark.parametrize(
    "kind", ["parquet", "json lines", "arrow", "large lists", "float64", "pandas", "polars", "dict"]
)
def test_every_format_gives_the_same_vectors_behind_the_numbers(tmp_path, kind):
    rows, lists = TABLE, [None if x is None else list(x) for x in LISTS]
    if kind == "parquet":
        pq.write_table(IN_PARQUET, tmp_path / "rows.parquet")
        rows = tmp_path / "rows.parquet"
    elif kind == "json lines":
        lines = (json.dumps(row) + "\n" for row in TABLE.to_pylist())
        (tmp_path / "rows.jsonl").write_text("".join(lines))
        rows = tmp_path / "rows.jsonl"
    elif kind == "large lists":
        rows = TABLE.set_column(0, "image", pa.array(lists, pa.large_list(pa.float32())))
    elif kind == "float64":
        rows = TABLE.set_column(0, "image", pa.array(lists, pa.list_(pa.float64())))
    elif kind == "pandas":
        rows = pd.DataFrame({**TABLE.drop_columns(["image"]).to_pydict(), "image": lists})
    elif kind == "polars":
        rows = pl.from_arrow(TABLE)
    elif kind == "dict":
        rows = {**TABLE.to_pydict(), "image": np.where(np.isnan(EXPECTED), 0, EXPECTED)}
    data = prepared(rows, tmp_path)
    dense = dense_of(data)
    assert dense.dtype == np.float32 and data.schema.dense_places == {
        "price": slice(0, 1),
        "image": slice(1, 6),
    }
    np.testing.assert_array_equal(dense[:, 0], np.arange(ROWS, dtype=np.float32) / 8)
    np.testing.assert_array_equal(dense[:, 1:], EXPECTED)
    assert data.parts["train"].missing["image"] == (0 if kind == "dict" else 2)
    data.check()


def test_shards_hold_float16_where_all_vectors_say_so_and_a_shuffle_moves_whole_rows(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(shards, "_NUMBERS_PER_SHARD", 64 * WIDTH)
    schema = Schema(
        (Dense("image", width=WIDTH, stored="float16"), Sparse("user"), Dense("price", transform="none")),
        label="click",
    )
    data = prepared(TABLE, tmp_path, schema)
    stored = [
        open_shard(data.path / shard.file, data.parts["train"].columns)
        for shard in data.parts["train"].shards
    ]
    assert [len(rows) for rows in stored] == [64, 64, 64, 8]
    assert {rows.arrays["vectors"].dtype for rows in stored} == {np.dtype(np.float16)}
    expected = EXPECTED.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(dense_of(data)[:, 1:], expected)
    shuffled = dense_of(data, shuffle=True, seed=3)
    order = (shuffled[:, 0] * 8).astype(int)
    assert sorted(order) == list(range(ROWS)) and list(order) != sorted(order)
    np.testing.assert_array_equal(shuffled[:, 1:], expected[order])


def test_chunks_of_wide_vectors_have_fewer_rows(tmp_path, monkeypatch):
    whole = prepared(TABLE, tmp_path)
    monkeypatch.setattr("hotrows.data.raw.cells._NUMBERS_PER_CHUNK", 7 * WIDTH)
    (tmp_path / "cut").mkdir()
    np.testing.assert_array_equal(dense_of(whole), dense_of(prepared(TABLE, tmp_path / "cut")))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            [1.0, 2.0],
            r"row 4, column 'image': expected a list of 5 numbers of float32, found '\[1.0, 2.0\]'; it",
        ),
        (
            [1.0, None, 3.0, 4.0, 5.0],
            r"row 4, column 'image': expected a list of 5 numbers of float32, found '\[1.0, None",
        ),
        (
            [1.0, 2.0, 3.0, 4.0, float("nan")],
            "row 4, column 'image': expected a list of 5 numbers of float32",
        ),
        ([1.0, 2.0, 3.0, 4.0, 1e39], "row 4, column 'image': expected a list of 5 numbers of float32"),
    ],
)
def test_a_wrong_vector_is_named_with_file_row_and_column(tmp_path, value, message):
    lists = [*LISTS[:4], value, *LISTS[5:]]
    rows = TABLE.set_column(0, "image", pa.array(lists, pa.list_(pa.float64())))
    pq.write_table(rows, tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="rows.parquet " + message):
        prepared(tmp_path / "rows.parquet", tmp_path)


def test_a_number_beyond_float16_and_columns_of_other_types_are_refused(tmp_path):
    half = Schema((Dense("image", width=1, stored="float16"),), label="click")
    rows = {"image": [[1.0], [70_000.0]], "click": [0, 1]}
    with pytest.raises(
        ValueError, match="row 1, column 'image': expected a list of 1 numbers of float16"
    ):
        prepared(rows, tmp_path, half)
    with pytest.raises(
        ValueError, match="row 0, column 'image': expected a list of 1 numbers of float16, found .*'a'"
    ):
        prepared({"image": [["a"], ["b"]], "click": [0, 1]}, tmp_path, half)
    with pytest.raises(
        ValueError,
        match="row 0, column 'image': expected a list of 1 numbers of float16, found '1.0'; its column",
    ):
        prepared({"image": [1.0, 2.0], "click": [0, 1]}, tmp_path, half)
    with pytest.raises(ValueError, match="expected numbers, found list<.*declare Dense with a width"):
        prepared(rows, tmp_path, Schema((Dense("image"),), label="click"))
    (tmp_path / "rows.csv").write_text("image,click\n1|2,0\n3|4,1\n")
    with pytest.raises(
        ValueError, match="rows.csv, column 'image': expected lists of 1 numbers, found text; write"
    ):
        prepared(tmp_path / "rows.csv", tmp_path, half)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dense("a", width=0), "'a': a vector needs a width of at least 1"),
        (lambda: Dense("a", width=3, transform="standard"), "'a': a vector needs .* transform 'none'"),
        (lambda: Dense("a", stored="float16"), "'a': stored='float16' is of vectors: give a width"),
        (lambda: Dense("a", width=3, stored="int8"), "'a': stored must be 'float32' or 'float16'"),
        (
            lambda: Schema((Dense("a", width=3), Sparse("b")), request="r", shared=("a", "b")),
            r"vectors are stored by sample: leave \['a'\] out of shared",
        ),
    ],
)
def test_declarations_that_contradict_themselves_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_schemas_round_trip_and_those_without_vectors_are_as_they_were():
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    fields = json.loads(Schema((Dense("price"),)).to_json())["features"][0]
    assert fields == {"kind": "dense", "name": "price", "column": None, "transform": "log"}


def test_a_draft_declares_lists_of_one_length_as_vectors():
    lists = pa.array([x or [0.0] * WIDTH for x in LISTS], pa.list_(pa.float32()))
    for table in (TABLE, TABLE.set_column(0, "image", lists)):
        draft = draft_schema(table, label="click")
        assert Dense("image", width=WIDTH) in draft.schema.features
        assert Schema.from_json(draft.to_json()) == draft.schema


def test_raw_rows_are_encoded_as_the_stored_ones_and_missing_columns_are_zeros(tmp_path):
    data = prepared(TABLE, tmp_path)
    encoder = Encoder.open(data.path)
    (batch,) = encoder.encode(TABLE)
    np.testing.assert_array_equal(batch.dense.numpy(), dense_of(data))
    with pytest.warns(UserWarning, match="'image' 100.0% missing"):
        (batch,) = encoder.encode(TABLE.drop_columns(["image"]))
    assert not batch.dense[:, 1:].any()


def test_a_draft_leaves_out_fractions_in_lists_of_other_lengths(tmp_path):
    """Weights of ids were drafted as ids, and `prepare` refused the drafted schema."""
    tags = [["a", "b"][: n % 3] for n in range(40)]
    whole = [[float(n % 5)] * (n % 4) for n in range(40)]
    rows = {"tags": tags, "w": [[0.5] * len(x) for x in tags], "whole": whole, "click": [0, 1] * 20}
    draft = draft_schema(rows)
    assert [feature.name for feature in draft.schema.features] == ["tags", "whole"]
    assert any(note.startswith("'w' is left out: ") and "`weights`" in note for note in draft.notes)
    assert prepare(rows, draft.schema, tmp_path / "data").schema.rows_of("whole") > 4


def test_batches_that_are_written_and_parquet_read_directly_have_the_same_vectors(tmp_path):
    data = prepared(TABLE, tmp_path)
    batches = Loader(data.parts["train"], 64).batches(0)
    again = write_encoded(tmp_path / "again", data.schema, {"train": batches})
    np.testing.assert_array_equal(dense_of(again), dense_of(data))
    half = dataclasses.replace(data.schema, features=(Dense("image", width=5, stored="float16"),))
    wide = Batch((), torch.zeros(0, dtype=torch.int64), torch.tensor([[7e4] * 5]), torch.ones(1))
    with pytest.raises(ValueError, match="row 0: expected vectors of float16, found a number"):
        write_encoded(tmp_path / "half", half, {"train": [wide]})
    pq.write_table(IN_PARQUET, tmp_path / "rows.parquet")
    schema = Schema((IMAGE, Sparse("user", rows=9), Dense("price", transform="none")), label="click")
    direct = open_parquet(schema, tmp_path / "rows.parquet")
    np.testing.assert_array_equal(dense_of(direct), dense_of(data))
    pq.write_table(TABLE.set_column(0, "image", pa.array([[1.0]] * ROWS)), tmp_path / "rows.parquet")
    with pytest.raises(
        ValueError,
        match="row group 0 row 0, column 'image': expected a list of 5 numbers of float32, found",
    ):
        dense_of(open_parquet(schema, tmp_path / "rows.parquet"))


def test_candidates_of_a_request_have_vectors_of_their_own_or_one_in_common(tmp_path):
    rows = pa.table(
        {
            "r": ["a", "b"],
            "user": [1, 2],
            "query": pa.array([[1.0, 2.0], [3.0, 4.0]]),
            "image": pa.array([[[0.5], [1.5]], [[2.5]]]),
            "click": pa.array([[0, 1], [1]]),
        }
    )
    features = (Sparse("user"), Dense("query", width=2), Dense("image", width=1))
    data = prepared(rows, tmp_path, Schema(features, label="click", request="r", shared=("user",)))
    assert dense_of(data).tolist() == [[1.0, 2.0, 0.5], [1.0, 2.0, 1.5], [3.0, 4.0, 2.5]]


def test_a_description_counts_vectors_and_their_missing_ones(tmp_path):
    description = describe(prepared(TABLE, tmp_path))
    (image,) = [field for field in description.fields if field.name == "image"]
    assert image.missing["train"] == 2 / ROWS
    assert [used.name for used in description.dense] == ["price"]
    assert "1 vector: image" in repr(SCHEMA)
