"""A value has one id, from every format and beside any others in its chunk; or it is refused in words.

In JSON lines "2024-03-01T10:00:00Z" lost its zone where all values of a chunk looked like times. A month
of a pandas frame had the id of its number since 1970, a time of day another one than in CSV.
"""

import datetime
import decimal
import io
import json
import string
import uuid
import zoneinfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.inputs import inputs_of
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.tables import as_table
from hotrows.data.streams.events import message_events, table_events
from hotrows.schema import Schema, Sparse
from tests.support.choice import examples

SCHEMA = Schema((Sparse("x"),), label="click", delimiter=",")
HOW = Reading(SCHEMA, 1)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
MOMENTS = st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2100, 1, 1))
WORDS = (
    *("2024-03-01 10:00", "2024-03-01T10:00:00Z", "2024-03-01T10:00:00+01:00", "2024-03-01", "2024-03"),
    *("2024-03-01T10:00:00.500", "10:00:00", "10:00", "P1D", "1 days", "1 day, 0:00:00", "20240301"),
    *("1e5", "1.0", "1", "-0", "True", "true", "0x1f", "1_000", "1,5", "NaN", "nan", "None", "inf"),
    *(
        "007",
        "null",
        "9007199254740993",
        "18446744073709551616",
        "2.50",
        " 7",
        "{}",
        "[1]",
        "\u00e4",
        "2024-W09",
    ),
)
KINDS = {
    "text": st.sampled_from(WORDS) | st.text(string.hexdigits + "-:.+TZ ", max_size=12),
    "whole": st.integers(-(2**63), 2**63 - 1),
    "whole float": st.integers(-(2**53) + 1, 2**53 - 1).map(float),
    "boolean": st.booleans(),
    "moment": MOMENTS,
    "second": MOMENTS.map(lambda x: x.replace(microsecond=0)),
    "midnight": MOMENTS.map(lambda x: x.replace(hour=0, minute=0, second=0, microsecond=0)),
    "moment of a zone": MOMENTS.map(lambda x: x.replace(tzinfo=datetime.timezone.utc)),
    "date": st.dates(datetime.date(1950, 1, 1), datetime.date(2100, 1, 1)),
    "time of day": st.times(),
    "duration": st.timedeltas(datetime.timedelta(0), datetime.timedelta(9)),
    "decimal": st.decimals(-99, 99, places=2),
    "float": st.floats(-1e300, 1e300),
    "nested": st.fixed_dictionaries({"a": st.integers(0, 3)}),
    "list": st.lists(st.integers(0, 3), min_size=1, max_size=2),
}


def texts(chunks, schema=SCHEMA) -> list[bytes]:
    read = (SchemaColumns(schema).read(cells).values["ids/x"] for cells in chunks)
    return [text for ids in read for text in map(ids.value, range(len(ids)))]


def read(source) -> list[bytes]:
    (opened,) = inputs_of(source)
    return texts(cells for _, cells in opened.chunks(HOW, 0))


def of_events(events) -> list[bytes]:
    return texts([events.columns(HOW)])


def json_lines(table: dict) -> bytes:
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    return b"".join(json.dumps(row, default=str).encode() + b"\n" for row in rows)


def arrow_csv(table: pa.Table) -> bytes:
    pyarrow.csv.write_csv(table, sink := io.BytesIO())
    return sink.getvalue()


def in_formats(table: dict, path) -> dict:
    """How the ids of a table are read from each format, by name."""

    def written(content: bytes) -> list[bytes]:
        path.write_bytes(content)
        return read(path)

    def parquet() -> list[bytes]:
        pq.write_table(as_table(table), path, row_group_size=2)
        return read(path)

    def as_pandas() -> pd.DataFrame:
        return pd.DataFrame(table)

    return {
        "dict": lambda: read(table),
        "pandas": lambda: read(as_pandas()),
        "categories": lambda: read(as_pandas().astype({"x": "category"})),
        "polars": lambda: read(pl.DataFrame(table)),
        "parquet": parquet,
        "pandas.csv": lambda: written(as_pandas().to_csv(index=False).encode()),
        "polars.csv": lambda: written(pl.DataFrame(table).write_csv().encode()),
        "arrow.csv": lambda: written(arrow_csv(as_table(table))),
        "json": lambda: written(json_lines(table)),
        "messages": lambda: of_events(
            message_events(json_lines(table).splitlines(), "k", None, [""] * len(table["x"]))
        ),
        "events": lambda: of_events(table_events(table)),
    }


@settings(max_examples=examples(60, 8), deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_has_one_id_in_every_format(tmp_path_factory, kind, data):
    values = data.draw(st.lists(KINDS[kind], min_size=1, max_size=6))
    if kind == "text":  # what CSV has no way to say
        values = [value or "empty" for value in values]
    table = {"click": [1] * len(values), "x": values}
    path = tmp_path_factory.getbasetemp() / "rows"
    try:
        expected = [read({"click": [1], "x": [value]})[0] for value in values]
    except ValueError as error:
        assert "column 'x'" in str(error)
        for name in ("dict", "pandas", "polars", "parquet", "events"):
            with pytest.raises(ValueError, match="column 'x'"):
                in_formats(table, path)[name]()
        return
    for name, ids_of in in_formats(table, path).items():
        assert ids_of() == expected, name


@settings(max_examples=examples(200, 30), deadline=None)
@given(values=st.lists(KINDS["text"], min_size=1, max_size=8))
def test_text_in_json_stays_text_whatever_is_beside_it(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "lists"
    schema = Schema((Sparse("x", many=True, separator="\x01"),), label="click")
    path.write_bytes(json_lines({"click": [1, 1], "x": [values, ["2024-03-01"]]}))
    (opened,) = inputs_of(path)
    lists = texts((cells for _, cells in opened.chunks(Reading(schema, 1), 0)), schema)
    assert lists == [*read({"click": [1] * len(values), "x": values}), b"2024-03-01"]


REFUSED = {
    "month": pd.DataFrame({"x": pd.period_range("2024-01", periods=2, freq="M")}),
    "day": pd.DataFrame({"x": pd.Categorical(pd.period_range("2024-01", periods=2, freq="D"))}),
    "interval": pd.DataFrame({"x": pd.interval_range(0, 2)}),
    "bins": pd.DataFrame({"x": pd.cut([1, 2], 2)}),
    "clock": pd.DataFrame({"x": pd.Categorical([datetime.time(1, 2), datetime.time(3)])}),
    "uuid": pa.table({"x": pa.array([uuid.UUID(int=5).bytes] * 2, pa.uuid())}),
    "bool8": pa.table({"x": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8()))}),
    "objects": pl.DataFrame({"x": pl.Series([object(), object()], dtype=pl.Object)}),
    "date, time": {"x": [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 5)]},
    "naive, aware": {"x": [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=BERLIN)]},
    "zones": pd.DataFrame(
        {"x": pd.Series([pd.Timestamp("2024-01-01", tz=zone) for zone in ("UTC", BERLIN)], dtype=object)}
    ),
    "decimals": {"x": [decimal.Decimal("1.0"), decimal.Decimal("2.50")]},
    "bool and number": {"x": [True, 1]},
    "text and number": {"x": ["1", 1]},
    "months of numpy": {"x": np.array(["2024-01", "2024-02"], "datetime64[M]")},
}


@pytest.mark.parametrize("what", REFUSED)
def test_types_without_one_text_are_refused(what):
    with pytest.raises(ValueError, match=r"column 'x'.*(convert|correct|is no column of values)"):
        (opened,) = inputs_of(REFUSED[what])
        texts(cells for _, cells in opened.chunks(Reading(SCHEMA, 1, for_training=False), 0))


def test_equal_moments_of_objects_are_read():
    frame = pd.DataFrame({"x": pd.Series([pd.Timestamp("2024-01-01 05:00"), pd.NaT], dtype=object)})
    frame["click"] = 1
    assert read(frame) == [b"2024-01-01 05:00:00", b""]
    assert read({"click": [1], "x": pa.array([3723], pa.time32("s"))}) == [b"01:02:03"]
