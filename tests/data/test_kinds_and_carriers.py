"""Every kind of column from every carrier: the same encoded bytes, or the same refusal in words.

A line of KINDS is a kind: the columns that it reads, as Arrow has them, and what a schema says of them;
`refused`: carriers that cannot hold it, and the words. Add a line for what you wonder about.
"""

import dataclasses
import gzip
import importlib
import json
from contextlib import contextmanager

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.inputs import inputs_of
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.values import hash_values
from hotrows.data.streams.events import message_events
from hotrows.dynamic import Dynamic
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from hotrows.serving.bodies import arrow_tables, json_tables
from hotrows.serving.requests import Names

LISTS = pa.list_(pa.string())
TEXT = "csv", "csv.gz"
NO_VECTORS = dict.fromkeys(TEXT, "column 'x': expected lists of 2 numbers, found text")
AT, KEYS = Time("x", "iso"), Dynamic(capacity=9, evict="lru")
TWO_NUMBERS = pa.list_(pa.float32())


@dataclasses.dataclass(frozen=True)
class Kind:
    """Columns by name, and the schema's fields that read them. refused: by carrier."""

    columns: dict[str, pa.Array]
    fields: dict = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


def of(feature, **columns: pa.Array) -> Kind:
    return Kind(columns, {"features": (feature,)})


KINDS = {
    "number": of(Dense("x"), x=pa.array([1.5, None, -2.0])),
    "number, standard": of(Dense("x", transform="standard"), x=pa.array([7, None, 9], pa.int32())),
    "indicator": of(Dense("x", transform="missing"), x=pa.array([1, None, 0])),
    "vector": Kind(
        {"x": pa.array([[1, 2], None, [3.5, 4]], TWO_NUMBERS)},
        {"features": (Dense("x", width=2),)},
        NO_VECTORS,
    ),
    "id": of(Sparse("x"), x=pa.array(["a", None, "7"])),
    "id, whole number": Kind(
        {"x": pa.array([7, None, 2**53 + 1])},
        {"features": (Sparse("x"),)},
        {"pandas": "double from 2.53 on skips whole numbers: store the column as integers"},
    ),
    "id, flag": of(Sparse("x"), x=pa.array([True, None, False])),
    "id, bucket": of(Sparse("x", transform="bucket", boundaries=(0.0, 5.0)), x=pa.array([7.5, None, -1])),
    "id, log": of(Sparse("x", transform="log"), x=pa.array([100, None, 1])),
    "list": of(Sparse("x", many=True), x=pa.array([["a", "b"], [], ["7"]], LISTS)),
    "list, cut": of(Sparse("x", many=True, max_length=1), x=pa.array([["a", "b"], [], ["7"]], LISTS)),
    "list, weights": of(
        Sparse("x", many=True, weights="w"),
        x=pa.array([["a", "b"], [], ["7"]], LISTS),
        w=pa.array([[0.5, 2.0], [], [1.5]], pa.list_(pa.float64())),
    ),
    "history": of(Sequence("x", max_length=2), x=pa.array([["a", "b", "c"], [], ["7"]], LISTS)),
    "key": of(Sparse("x", dynamic=KEYS), x=pa.array([7, None, -3])),
    "key, text": of(Sparse("x", dynamic=KEYS), x=pa.array(["a", None, "007"])),
    "keys": of(Sequence("x", dynamic=KEYS), x=pa.array([["7", "a"], [], ["7"]], LISTS)),
    "label": Kind({"x": pa.array([1, 0, 1])}, {"label": "x"}),
    "label, word": Kind({"x": pa.array(["yes", "no", "7"])}, {"label": Label("x", positive=("yes",))}),
    "label, at least": Kind({"x": pa.array([1.5, 3, 4])}, {"label": Label("x", at_least=3)}),
    "label, number": Kind({"x": pa.array([1.5, -3, 4])}, {"label": Label("x", loss="squared")}),
    "label, wrong": Kind({"x": pa.array([1, 2, 0])}, {"label": "x"}, {"": "a label 0 or 1, found '2'"}),
    "weight": Kind({"x": pa.array([0.5, 0.0, 2.0])}, {"weight": "x"}),
    "weight, wrong": Kind({"x": pa.array([1.0, -2.5])}, {"weight": "x"}, {"": "0, found '-2.5'"}),
    "group": Kind({"x": pa.array(["u", None, "7"])}, {"group": "x"}),
    "group, whole number": Kind({"x": pa.array([7, None, 8])}, {"group": "x"}),
    "request": Kind({"x": pa.array(["u", "u", "7"])}, {"request": "x", "shared": ("day",)}),
    "time": Kind({"x": pa.array(["2024-03-01T10:00:00", "1999-12-31"])}, {"time": AT}),
    "time, number": Kind({"x": pa.array([1_700_000_000, 5])}, {"time": Time("x")}),
    "hour": Kind(
        {"x": pa.array(["2024-03-01T10:00:00+05:30", "1999-12-31"])},
        {"time": AT, "features": (Sparse("h", transform="hour"),)},
    ),
}  # fmt: skip


def spelled(value) -> str:
    if isinstance(value, list):
        return "|".join(map(str, value))
    return "" if value is None else str(value)


def text_of(table: pa.Table) -> bytes:
    rows = [table.column_names, *([spelled(x) for x in row.values()] for row in table.to_pylist())]
    return "".join(",".join(row) + "\n" for row in rows).encode()


def sources(table: pa.Table, folder) -> dict:
    """The columns in each carrier; those of lake houses where they are installed, and hold the types."""
    rows, names = table.to_pylist(), Names(tuple(table.column_names), tuple(table.column_names))
    lines = [json.dumps(row) for row in rows]
    (folder / "x.csv").write_bytes(text_of(table))
    (folder / "x.csv.gz").write_bytes(gzip.compress(text_of(table)))
    (folder / "x.jsonl").write_text("".join(line + "\n" for line in lines))
    pq.write_table(table, folder / "x.parquet")
    pyarrow.feather.write_feather(table, folder / "x.feather")
    with pa.ipc.new_stream(sink := pa.BufferOutputStream(), table.schema) as stream:
        stream.write_table(table)
    carriers = {
        **{name: folder / f"x.{name}" for name in ("csv", "csv.gz", "jsonl", "parquet", "feather")},
        "pandas": table.to_pandas(),
        "polars": pl.from_arrow(table),
        "arrow": table,
        "dict of lists": table.to_pydict(),
        "http json": json_tables(json.dumps(rows).encode(), 9, names)[0],
        "http arrow": arrow_tables(sink.getvalue().to_pybytes(), 1 << 20, 9, names)[0],
        "kafka": message_events((line.encode() for line in lines), "kafka", None, ["p 0"] * len(lines)),
    }
    try:
        importlib.import_module("deltalake").write_deltalake(str(folder / "delta"), table)
        carriers["delta"] = f"delta:{folder / 'delta'}"
    except ImportError:
        pass
    return carriers


@pytest.fixture
def iceberg(tmp_path, monkeypatch):
    """Writes a table of Iceberg, and names it."""
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    config = importlib.import_module("pyiceberg.utils.config")
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    for name, value in where.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", config.Config())
    catalog = importlib.import_module("pyiceberg.catalog").load_catalog("lake")
    catalog.create_namespace("shop")

    def written(table: pa.Table) -> str:
        catalog.create_table("shop.x", table.schema).append(table)
        return "iceberg:lake/shop.x"

    return written


@contextmanager
def refusal(words: str | None):
    if words is None:
        yield
    else:
        with pytest.raises(ValueError, match=words):
            yield


def encoded(source, schema: Schema) -> dict[str, bytes]:
    """The sections of rows by name; the id of a value is its hash."""
    how, columns = Reading(schema, 1), SchemaColumns(schema)
    if hasattr(source, "texts"):
        cells = source.columns(how)
    else:
        (opened,) = inputs_of(source)
        ((_, cells),) = opened.chunks(how, 0)
    raw = columns.read(cells)
    rows = columns.encode(raw, lambda words: [hash_values(x).view(np.int64) for x in words], 1)
    times = {n: raw.values[n].tobytes() for n in ("times", "clocks") if n in raw.values}
    lists = {f"bounds of {name}": bounds.tobytes() for name, bounds in rows.bounds.items()}
    return {**{n: np.ascontiguousarray(a).tobytes() for n, a in rows.arrays.items()}, **lists, **times}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_the_same_bytes_from_every_carrier(tmp_path, iceberg, name):
    kind = KINDS[name]
    size = len(next(iter(kind.columns.values())))
    others = {} if "label" in kind.fields else {"label": pa.array([0, 1, 0][:size])}
    table = pa.table({**kind.columns, **others, "day": pa.array(["d"] * size)})
    fields = {"features": (Sparse("day"),), "label": "label", "delimiter": ",", **kind.fields}
    schema, carriers = Schema(**fields), sources(table, tmp_path)
    carriers["iceberg"] = iceberg(table)
    everywhere, expected = kind.refused.get(""), None
    for carrier, source in carriers.items():
        words = kind.refused.get(carrier, everywhere)
        with refusal(words):
            found = encoded(source, schema)
            expected = found if expected is None else expected
            assert found == expected, carrier
