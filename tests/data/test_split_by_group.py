"""A split by group keeps all rows of a value in one part, in every format; a missing value is none."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotrows import Dense, Schema, prepare
from hotrows.data import Loader
from hotrows.data.load.parquet import open_parquet
from hotrows.losses import NO_GROUP

NUM = 1200
USERS = np.where(np.arange(NUM) % 10 == 0, np.nan, np.arange(NUM) * 7 % 200)
FRAME = pd.DataFrame(
    {
        "click": np.arange(NUM) % 3 // 2,
        "row": np.arange(NUM),
        "user": USERS,  # floats, as pandas has whole numbers where some are missing
        "session": np.arange(NUM) // 4,
    }
)
SCHEMA = Schema((Dense("row", transform="none"),), label="click", delimiter=",")
SPLIT = "group:user:0.7,0.2,0.1"


def csv(path):
    FRAME.to_csv(path, index=False)
    return path


def json_lines(path):
    lines = FRAME.astype(object).where(FRAME.notna(), None).to_dict("records")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def parquet(path):
    table = pa.Table.from_pandas(FRAME)
    users = pa.array(FRAME.user, pa.int64(), from_pandas=True)
    pq.write_table(table.set_column(2, "user", users), path, row_group_size=500)
    return path


FORMATS = {
    "pandas": lambda path: FRAME,
    "polars": lambda path: pl.from_pandas(FRAME),
    "csv": csv,
    "json": json_lines,
    "parquet": parquet,
}


def rows_of(data):
    """The numbers of the rows of each part."""
    return {name: rows(part, "dense").ravel().astype(int) for name, part in data.parts.items()}


def rows(part, name):
    return np.concatenate([piece.arrays[name] for piece in part.mapped(0, part.rows)])


def test_all_rows_of_a_user_are_in_one_part_whatever_the_format(tmp_path):
    """With every other split the AUC said nothing of new users."""
    found = {
        name: rows_of(prepare(written(tmp_path / name), SCHEMA, tmp_path / f"{name}.enc", split=SPLIT))
        for name, written in FORMATS.items()
    }
    expected = found["pandas"]
    for name, parts in found.items():
        for part in parts:
            assert np.array_equal(parts[part], expected[part]), (name, part)
    users = [set(USERS[of_part][~np.isnan(USERS[of_part])]) for of_part in expected.values()]
    assert sum(map(len, users)) == len(set.union(*users)) == len(set(USERS[~np.isnan(USERS)]))
    assert np.allclose([len(one) / 180 for one in users], [0.7, 0.2, 0.1], atol=0.08)
    missing = [np.isnan(USERS[of_part]).sum() for of_part in expected.values()]
    assert min(missing) > 0  # each is drawn by itself
    other = rows_of(prepare(FRAME, SCHEMA, tmp_path / "other", split=SPLIT, seed=1))
    assert len(other["test"]) != len(expected["test"]) or (other["test"] != expected["test"]).any()


def test_the_column_is_that_of_the_group_where_none_is_named(tmp_path):
    grouped = Schema(SCHEMA.features, label="click", group="user")
    named = rows_of(prepare(FRAME, SCHEMA, tmp_path / "named", split=SPLIT))
    data = prepare(FRAME, grouped, tmp_path / "grouped", split="group:0.7,0.2,0.1")
    assert all(np.array_equal(of_part, named[name]) for name, of_part in rows_of(data).items())
    for split, schema, said in [
        ("group:0.8,0.1,0.1", SCHEMA, "has no group: name one, such as group:user:"),
        ("group:usr:0.8,0.1,0.1", SCHEMA, "no column 'usr' to split by; .* did you mean 'user'"),
    ]:
        with pytest.raises(ValueError, match=said):
            prepare(FRAME, schema, tmp_path / "refused", split=split)


def test_a_missing_group_is_none_in_every_format(tmp_path):
    schema = Schema((Dense("row", transform="none"),), label="click", group="user", delimiter=",")
    for name, written in FORMATS.items():
        data = prepare(written(tmp_path / name), schema, tmp_path / f"{name}.enc", split="fraction:1,0,0")
        groups = rows(data.parts["train"], "groups")
        assert np.array_equal(groups == NO_GROUP, np.isnan(USERS)), name
        assert len(set(groups)) == 181
    for kind in (pa.int64(), pa.int32(), pa.string(), pa.float64()):
        column = pa.array(FRAME.user, pa.int64(), from_pandas=True).cast(kind)
        table = pa.table({"click": FRAME.click, "row": FRAME.row, "user": column})
        pq.write_table(table, tmp_path / "plain.parquet")
        plain = open_parquet(schema, tmp_path / "plain.parquet").parts["train"]
        groups = np.concatenate([batch.groups.numpy() for batch in Loader(plain, 500).batches(0)])
        assert np.array_equal(groups == NO_GROUP, np.isnan(USERS)), kind
