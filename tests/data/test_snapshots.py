"""Tables of Iceberg and Delta Lake: read at a snapshot, with what was deleted left out."""

import importlib
import json
import sys

import numpy as np
import pyarrow as pa
import pytest

from hotrows.data import draft_schema, prepare
from hotrows.data.raw.inputs import inputs_of, zones_of
from hotrows.schema import Dense, Schema, Sparse, Time
from tests.data.raw import shards

SCHEMA = Schema((Sparse("user"), Dense("price")), label="click")
ROWS = 4000


def rows(first=0, num=ROWS):
    row = np.arange(first, first + num)
    return pa.table(
        {
            "user": pa.array([f"u{x}" for x in row * 7 % 97]),
            "price": row / 8,
            "day": pa.array(row // 1000, pa.int32()),
            "click": row // 3 % 2,
        }
    )


def delta(folder):
    """Three versions: rows, more rows, and without those of some users."""
    deltalake = pytest.importorskip("deltalake")
    path = str(folder / "table")
    deltalake.write_deltalake(path, rows(), partition_by=["day"])
    deltalake.write_deltalake(path, rows(ROWS, 1000), mode="append")
    deltalake.DeltaTable(path).delete("\"user\" = 'u7' or \"user\" = 'u14'")  # a word of SQL, too
    return f"delta:{path}", [0, 1, 2]


def iceberg(folder, monkeypatch):
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    where = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    for name, value in where.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which was read on import
    catalog = load_catalog("lake")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.clicks", rows().schema)
    table.append(rows())
    table.append(rows(ROWS, 1000))
    table.delete("user == 'u7' or user == 'u14'")
    return "iceberg:lake/shop.clicks", [snapshot.snapshot_id for snapshot in table.snapshots()]


@pytest.fixture(params=["delta", "iceberg"])
def table(request, tmp_path, monkeypatch):
    """The name of a table, and its snapshots: the first has 4,000 rows, the last lacks two users."""
    return delta(tmp_path) if request.param == "delta" else iceberg(tmp_path, monkeypatch)


def remaining():
    every = pa.concat_tables([rows(), rows(ROWS, 1000)])
    return every.filter(~np.isin(every["user"].to_numpy(), ["u7", "u14"]))


def in_order(table):
    return table.select(["user", "price", "day", "click"]).sort_by("price").to_pydict()


def test_a_table_is_read_at_its_snapshot_without_deleted_rows(table, tmp_path):
    name, snapshots = table
    first = prepare(f"{name}@{snapshots[0]}", SCHEMA, tmp_path / "first", split="position:0.8")
    assert sum(part.rows for part in first.parts.values()) == ROWS
    newest = prepare(name, SCHEMA, tmp_path / "newest", split="position:0.8")
    assert sum(part.rows for part in newest.parts.values()) == remaining().num_rows
    for data, snapshot in ((first, snapshots[0]), (newest, snapshots[-1])):
        assert json.loads((data.path / "data.json").read_text())["snapshots"] == [f"{name}@{snapshot}"]


def test_columns_are_those_that_a_table_has_now(tmp_path, monkeypatch):
    """They were those of the newest snapshot: one that was renamed since was absent, without a word."""
    name, snapshots = iceberg(tmp_path, monkeypatch)
    table = importlib.import_module("pyiceberg.catalog").load_catalog("lake").load_table("shop.clicks")
    with table.update_schema() as update:
        update.rename_column("price", "cost")
        update.update_column("day", importlib.import_module("pyiceberg.types").LongType())
        update.add_column("shop", importlib.import_module("pyiceberg.types").StringType())
        update.delete_column("click")
        update.move_first("price")
    table.append(pa.table({"cost": [1e9], "user": ["u"], "day": [1 << 40], "shop": ["s"]}))
    found, _ = inputs_of(name)[0].sample_rows(lambda columns: 100_000)
    older = remaining().sort_by("price")
    assert found.sort_by("cost").to_pydict() == {
        "cost": [*older["price"].to_pylist(), 1e9],
        "user": [*older["user"].to_pylist(), "u"],
        "day": [*older["day"].to_pylist(), 1 << 40],
        "shop": [None] * older.num_rows + ["s"],
    }
    with table.update_schema() as update:
        update.add_column("at", importlib.import_module("pyiceberg.types").TimestamptzType())
    assert zones_of(inputs_of(name), Time("at")) == ["UTC"]
    then, _ = inputs_of(f"{name}@{snapshots[-1]}")[0].sample_rows(lambda columns: 100_000)
    assert in_order(then) == in_order(older)


def test_columns_that_a_delta_table_has_got_are_null_before_and_mapped_ones_are_refused(tmp_path):
    """deltalake gives nulls for all values of mapped columns, where only the names are mapped."""
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"user": ["a"]}))
    more = pa.table({"shop": ["s"], "user": ["b"]})
    deltalake.write_deltalake(path, more, mode="append", schema_mode="merge")
    moments = pa.array([0], pa.timestamp("us", "UTC"))
    deltalake.write_deltalake(str(tmp_path / "timed"), pa.table({"at": moments}))
    assert zones_of(inputs_of(f"delta:{tmp_path}/timed"), Time("at")) == ["UTC"]
    found, _ = inputs_of(f"delta:{path}")[0].sample_rows(lambda columns: 10)
    assert found.sort_by("user").to_pydict() == {"user": ["a", "b"], "shop": [None, "s"]}
    log = tmp_path / "table" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('"configuration":{}', f'"configuration":{MAPPED}'))
    with pytest.raises(ValueError, match="cannot be opened: it has delta.columnMapping.mode=name"):
        inputs_of(f"delta:{path}@0")


MAPPED = json.dumps({"delta.columnMapping.mode": "name"})


def test_the_rows_are_those_of_the_table_in_one_order(table, tmp_path):
    """Position splits, and every pass, need the same order each time."""
    name, _ = table
    (source,) = inputs_of(name)
    found, is_all = source.sample_rows(lambda columns: 100_000)
    assert is_all and source.size == found.num_rows
    expected = remaining()
    assert in_order(found) == in_order(expected)
    again = prepare(found, SCHEMA, tmp_path / "memory", split="position:0.8")
    data = prepare([name], SCHEMA, tmp_path / "enc", split="position:0.8")
    assert shards(data) == shards(again)


def test_a_draft_of_a_table_sees_all_of_it(table):
    """Its files are sorted by day."""
    name, _ = table
    found, is_all = inputs_of(name)[0].sample_rows(lambda columns: 600)
    assert not is_all and 300 < found.num_rows <= 600
    assert set(found["day"].to_pylist()) == {0, 1, 2, 3, 4}
    draft = draft_schema(name, label="click")
    assert [feature.name for feature in draft.schema.features] == ["user", "price", "day"]


def test_a_snapshot_that_is_not_there_is_an_error_in_one_line(table):
    name, _ = table
    with pytest.raises(ValueError, match=f"{name}@77 cannot be opened: ") as error:
        inputs_of(f"{name}@77")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=f"{name}x cannot be opened: "):
        inputs_of(f"{name}x")


@pytest.mark.parametrize("name, package", [("iceberg:a.b", "pyiceberg"), ("delta:a", "deltalake")])
def test_a_missing_package_is_named(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog", raising=False)
    with pytest.raises(ImportError, match=f"{name} cannot be opened: .*; pip install {package}$"):
        inputs_of(name)
