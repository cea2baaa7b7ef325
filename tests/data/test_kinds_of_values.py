"""A value means what its column is declared to be, whatever carries it: a table of kinds x carriers.

A line of KINDS is a column, how CSV spells it, and what is read of it in every carrier; or, where its
type cannot tell the values, the words of the refusal. TEXTS are files of text as people have them.
"""

import dataclasses
import datetime
import gzip
import json
import math
import zoneinfo
from contextlib import closing

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotrows.data import Encoder, describe, draft_schema, prepare
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.inputs import inputs_of
from hotrows.data.raw.reading import Reading
from hotrows.data.rows import RawRows
from hotrows.data.streams.folder import FolderSource
from hotrows.schema import Dense, Label, Schema, Sparse, Time
from hotrows.serving.requests import Names, table_of_rows

BERLIN = "Europe/Berlin"
OF_TEXT = "csv", "json", "list of dicts", "dict of lists"  # carriers without the type
ID, NUMBER = Sparse("x"), Dense("x", transform="none")
HOUR, DAY = Sparse("h", transform="hour"), Sparse("h", transform="day")
SCHEMA = Schema((ID,), label="click", delimiter=",")
AT = Time("x", "iso")
NAN = math.nan


def berlin(*fields: int) -> datetime.datetime:
    return datetime.datetime(*fields, tzinfo=zoneinfo.ZoneInfo(BERLIN))


SPRING = [berlin(2024, 3, 30, 23, 30), berlin(2024, 3, 31, 5, 30)]  # before and after summer time begins
NEVER = [datetime.datetime(9999, 12, 31), None]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A column `x` of an Arrow type. spelled: by CSV; read: ids or numbers, or the words of a refusal;
    of_text: what is read then of the carriers `untyped`."""

    kind: pa.DataType
    values: list
    spelled: list[str]
    read: list | str
    of_text: list | None = None
    feature: Sparse | Dense = ID
    more: dict = dataclasses.field(default_factory=dict)
    untyped: tuple[str, ...] = OF_TEXT


KINDS = {
    "id": Kind(pa.int64(), [7, 2**53 + 1], ["7", "9007199254740993"], [b"7", b"9007199254740993"]),
    "id in float64": Kind(pa.float64(), [7.0, None], ["7.0", ""], [b"7", b""]),
    "id in float32": Kind(pa.float32(), [2.0**24 - 1, NAN], ["16777215.0", "NaN"], [b"16777215", b""]),
    "id in float16": Kind(pa.float16(), [2047.0, None], ["2047.0", ""], [b"2047", b""]),
    "far id in float32": Kind(
        pa.float32(), [2.0**24], ["16777216.0"], "float from 2.24 on", [b"16777216"]
    ),
    "far id in float64": Kind(
        pa.float64(),
        [2.0**53],
        ["9007199254740992.0"],
        "double from 2.53 on",
        [b"9007199254740992"],
        untyped=("csv",),
    ),
    "far id in float16": Kind(pa.float16(), [2.0**11], ["2048.0"], "halffloat from 2.11 on", [b"2048"]),
    "id in dictionary": Kind(
        pa.dictionary(pa.int8(), pa.float32()), [7.0, None, 8.0], ["7.0", "", "8.0"], [b"7", b"", b"8"]
    ),
    "time in float32": Kind(
        pa.float32(),
        [1_709_287_168.0],
        ["1709287168"],
        "expected times, found float; float from 2.24 on",
        [b"9"],
        HOUR,
        {"time": Time("x", "unix")},
    ),
    "time in float64": Kind(
        pa.float64(),
        [1_709_287_200.5],
        ["1709287200.5"],
        [b"10"],
        None,
        HOUR,
        {"time": Time("x", "unix")},
    ),
    "flag": Kind(pa.bool_(), [True, False], ["True", "False"], [b"true", b"false"]),
    "hour of a zone": Kind(
        pa.timestamp("us", BERLIN),
        SPRING,
        [str(x) for x in SPRING],
        [b"23", b"5"],
        None,
        HOUR,
        {"time": AT},
    ),
    "hour of a named zone": Kind(
        pa.timestamp("ms", "UTC"),
        SPRING,
        [str(x.astimezone(datetime.timezone.utc)) for x in SPRING],
        [b"23", b"5"],
        None,
        HOUR,
        {"time": Time("x", "iso", zone=BERLIN)},
    ),
    "hour of an offset": Kind(
        pa.timestamp("us", BERLIN),
        SPRING,
        [x.isoformat() for x in SPRING],
        [b"6", b"11"],
        None,
        HOUR,
        {"time": Time("x", "iso", utc_offset=8)},
    ),
    "hour without zone": Kind(
        pa.timestamp("ns"),
        [datetime.datetime(2024, 3, 1, 10)],
        ["2024-03-01 10:00:00"],
        [b"10"],
        None,
        HOUR,
        {"time": AT},
    ),
    "zone as an id": Kind(
        pa.timestamp("us", BERLIN),
        SPRING[:1],
        ["2024-03-30 23:30:00+01:00"],
        "convert",
        [b"2024-03-30 23:30:00+0100"],
        untyped=("csv", "json"),
    ),
    "far date": Kind(
        pa.timestamp("us"), NEVER, ["9999-12-31", ""], [b"31", b""], None, DAY, {"time": AT}
    ),
    "NaN in numbers": Kind(pa.float64(), [NAN, 2.5], ["NaN", "2.5"], [NAN, 2.5], None, NUMBER),
    "nan in text of numbers": Kind(pa.string(), ["nan", "2.5"], ["nan", "2.5"], [NAN, 2.5], None, NUMBER),
    "NaN in text of ids": Kind(pa.string(), ["NaN", "nan", "x"], ["NaN", "nan", "x"], [b"", b"", b"x"]),
    "NaN as a time": Kind(
        pa.string(), ["NaN", "2024-03-05"], ["NaN", "2024-03-05"], [b"", b"5"], None, DAY, {"time": AT}
    ),
    "far numbers": Kind(
        pa.int64(), [20180131, 20180132], ["20180131", "20180132"], [20180131, 20180132], None, NUMBER
    ),
    "marks in numbers": Kind(
        pa.string(),
        ["-1.234,5", "7", ""],
        ['"-1.234,5"', "7", ""],
        [-1234.5, 7, NAN],
        None,
        NUMBER,
        {"decimal": ",", "thousands": "."},
    ),
    "marks elsewhere": Kind(
        pa.string(),
        ["1.23,5"],
        ['"1.23,5"'],
        "expected a number, found '1.23,5'",
        None,
        NUMBER,
        {"decimal": ",", "thousands": "."},
    ),
    "word of this column": Kind(
        pa.string(), ["NA", "a"], ["NA", "a"], [b"", b"a"], more={"missing": {"x": ("NA",)}}
    ),
    "word of another column": Kind(
        pa.string(), ["NA", "a"], ["NA", "a"], [b"NA", b"a"], more={"missing": {"click": ("NA",)}}
    ),
    "word of this column of numbers": Kind(
        pa.string(),
        ["NA", "-1", "3"],
        ["NA", "-1", "3"],
        [NAN, NAN, 3],
        None,
        NUMBER,
        {"missing": {"x": ("NA", "-1")}},
    ),
    "infinity as a word": Kind(
        pa.float64(), [-math.inf, 2.5], ["-inf", "2.5"], [NAN, 2.5], None, NUMBER, {"missing": ("-inf",)}
    ),
    "the greatest number as a word": Kind(
        pa.float64(), [1e308, 2.5], ["1e308", "2.5"], [NAN, 2.5], None, NUMBER, {"missing": ("1e308",)}
    ),
}


def read(source, schema: Schema) -> list:
    (opened,) = inputs_of(source)
    ((_, cells),) = opened.chunks(Reading(schema, 1, for_training=False), 0)
    return read_of(SchemaColumns(schema).read(cells))


def read_of(raw: RawRows) -> list:
    if len(raw.values["dense"]):
        return raw.values["dense"][0].tolist()
    ids = next(values for name, values in raw.values.items() if name.startswith("ids/"))
    return [ids.value(n) for n in range(raw.num_rows)]


def is_zoned(kind: pa.DataType) -> bool:
    """True of a type that INT96 has no room for."""
    return getattr(kind, "tz", None) is not None


def sources(kind: Kind, folder) -> dict:
    """The column in each carrier."""
    table = pa.table({"x": pa.array(kind.values, kind.kind)})
    (folder / "x.csv").write_text("x,y\n" + "".join(f"{value},1\n" for value in kind.spelled))
    rows = table.to_pylist()
    plain = [{"x": str(x) if isinstance(x, datetime.datetime) else x} for x in (row["x"] for row in rows)]
    (folder / "x.jsonl").write_text("".join(json.dumps({**row, "y": 1}) + "\n" for row in plain))
    pq.write_table(table, folder / "x.parquet")
    pq.write_table(table, folder / "x.int96", use_deprecated_int96_timestamps=not is_zoned(kind.kind))
    return {
        "csv": folder / "x.csv",
        "json": folder / "x.jsonl",
        "parquet": folder / "x.parquet",
        "int96": folder / "x.int96",
        "arrow": table,
        "pandas": table.to_pandas(),
        "polars": pl.from_arrow(table),
        "list of dicts": table_of_rows(rows, Names(("x",), ("x",))),
        "dict of lists": {"x": table["x"].to_pylist()},
    }


@pytest.mark.parametrize("name", KINDS)
def test_a_value_means_the_same_in_every_carrier(tmp_path, name):
    kind = KINDS[name]
    schema = dataclasses.replace(SCHEMA, features=(kind.feature,), **kind.more)
    for carrier, source in sources(kind, tmp_path).items():
        expected = kind.of_text if kind.of_text and carrier in kind.untyped else kind.read
        if isinstance(expected, str):
            with pytest.raises(ValueError, match=f"column 'x'.*{expected}"):
                read(source, schema)
        else:
            np.testing.assert_array_equal(read(source, schema), expected, carrier)


HEADER, ROWS = b"click,x\n", b"no,a\nyes,b\n"
MARK = b"\xef\xbb\xbf"
LATIN = "click,x\nno,\u00e4\n".encode("latin-1")
TEXTS = {
    "a mark within": (MARK + HEADER + ROWS + MARK + ROWS, {}, [b"a", b"b"] * 2),
    "a header within": (HEADER + ROWS + HEADER + ROWS, {}, "line 4 names the columns"),
    "a mark and a header": (MARK + HEADER + ROWS + MARK + HEADER + ROWS, {}, "line 4 names the columns"),
    "a quoted header": (HEADER + ROWS + b'"click","x"\r\n' + ROWS, {}, "line 4 names the columns"),
    "columns in another order": (HEADER + ROWS + b"x,click\na,no\n", {}, "line 4 names the columns"),
    "a header although columns are declared": (
        HEADER + ROWS,
        {"columns": ("click", "x")},
        "line 1 names the columns",
    ),
    "a value that is a name": (HEADER + b"no,x\nyes,click\n", {}, [b"x", b"click"]),
    "latin-1": (LATIN, {}, "line 2, byte 4: expected UTF-8, found 0xe4; .*encoding"),
    "latin-1 in the header": (
        "click,x,\u00e4\nno,a,b\n".encode("latin-1"),
        {},
        "line 1, byte 9: expected",
    ),
    "latin-1, declared": (LATIN, {"encoding": "latin-1"}, ["\u00e4".encode()]),
    "cp1252 that is none": (HEADER + b"no,\x81\n", {"encoding": "cp1252"}, "cp1252"),
    "JSON with a mark within": (
        b'{"click":"no","x":"a"}\n' + MARK + b'{"click":"no","x":"b"}\n',
        {"encoding": "latin-1"},
        [b"a", b"b"],
    ),
    "null in place of an object": (b'{"click":"no","x":"a"}\nnull\n', {}, "line 2: .* found null"),
    "JSON in latin-1": (
        b'{"click":"no","x":"\xe4"}\n',
        {},
        "line 1, byte 20: expected UTF-8, found 0xe4",
    ),
}


@pytest.mark.parametrize("carrier", ["file", "gzip", "stream"])
@pytest.mark.parametrize("name", TEXTS)
def test_text_as_people_have_it_is_read_or_refused_in_words(tmp_path, name, carrier):
    content, more, expected = TEXTS[name]
    schema = dataclasses.replace(SCHEMA, label=Label("click", positive=("yes",)), **more)
    (tmp_path / "x.raw").write_bytes(gzip.compress(content) if carrier == "gzip" else content)

    def ids() -> list[bytes]:
        if carrier != "stream":
            return read(tmp_path / "x.raw", dataclasses.replace(schema))
        with closing(FolderSource(tmp_path, schema)) as source:
            return read_of(SchemaColumns(schema).read(source.read(100, 0.0).columns(Reading(schema, 1))))

    if isinstance(expected, list):
        assert ids() == expected
    else:
        with pytest.raises(ValueError, match=rf"x\.raw.*{expected}"):
            ids()


def test_a_mark_is_more_than_what_the_schema_says(tmp_path):
    """A growing file of a stream is not read anew from its start, so it is refused there."""
    schema = dataclasses.replace(SCHEMA, encoding="latin-1")
    (tmp_path / "x.csv").write_bytes(MARK + HEADER + "0,\u00e4\n".encode())
    assert read(tmp_path / "x.csv", schema) == ["\u00e4".encode()]
    with (
        closing(FolderSource(tmp_path, schema)) as source,
        pytest.raises(ValueError, match="x.csv has the"),
    ):
        source.read(100, 0.0).columns(Reading(schema, 1))


@pytest.mark.parametrize("text", ["0,\u00e4\n", "0,a\n0,\u00e9\u20ac\n"])
def test_a_file_of_utf8_under_a_schema_of_another_encoding_is_warned_of(tmp_path, caplog, text):
    """Values were unknown without a word: a server's files are UTF-8, the first export was latin-1."""
    schema = dataclasses.replace(SCHEMA, encoding="latin-1")
    (tmp_path / "stream").mkdir()
    names = ("late.csv", "stream/streamed.csv", "right.csv")
    for name, encoding in zip(names, ("utf-8", "utf-8", "cp1252"), strict=True):
        (tmp_path / name).write_bytes(HEADER + text.encode(encoding))
    read(tmp_path / "late.csv", schema)
    read(tmp_path / "right.csv", schema)
    with closing(FolderSource(tmp_path / "stream", schema)) as source:
        source.read(100, 0.0).columns(Reading(schema, 1))
    for name, message in zip(names[:2], caplog.messages, strict=True):
        assert f"{name} is read as" in message and "seems to be UTF-8" in message


def test_utf16_without_a_mark_needs_its_name(tmp_path):
    (tmp_path / "x.csv").write_bytes("click,x\n0,\u00e4\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="UTF-16 without a byte order mark; name its encoding"):
        read(tmp_path / "x.csv", SCHEMA)
    assert read(tmp_path / "x.csv", dataclasses.replace(SCHEMA, encoding="utf-16-le")) == [
        "\u00e4".encode()
    ]


def test_later_rows_are_read_by_the_zone_of_the_data(tmp_path):
    """A run on a column of a zone answered requests in UTC by other hours."""
    table = pa.table({"click": [0, 1], "x": pa.array(SPRING, pa.timestamp("us", BERLIN))})
    schema = Schema((HOUR,), label="click", time=AT)
    data = prepare(table, schema, tmp_path / "enc", split="fraction:1,0,0")
    assert data.schema.time.zone == BERLIN
    utc = [moment.astimezone(datetime.timezone.utc).isoformat() for moment in SPRING]
    (of_zone,) = Encoder.open(tmp_path / "enc").encode(table)
    (of_utc,) = Encoder.open(tmp_path / "enc").encode({"x": utc})
    assert of_utc.ids.tolist() == of_zone.ids.tolist() == [3, 4]
    again = prepare(table, schema, tmp_path / "again", like=tmp_path / "enc", split="fraction:1,0,0")
    assert again.fingerprint == data.fingerprint


@pytest.mark.parametrize(
    ("zones", "words"),
    [
        ((BERLIN, "UTC", BERLIN), f"zones {BERLIN} and UTC: "),
        ((BERLIN, None), f"zones {BERLIN} and none"),
        ((None, BERLIN), f"zones none .* and {BERLIN}: "),
        ((BERLIN, "text"), f"zones {BERLIN} and none"),
    ],
)
def test_files_of_several_zones_are_read_by_one_clock_with_a_word(tmp_path, zones, words):
    """All hours were those of the first file's zone, and nothing said so; nor of files without one."""
    moments = [pa.array(SPRING, pa.timestamp("us", None if zone == "text" else zone)) for zone in zones]
    times = [x.cast(pa.string()) if zone == "text" else x for x, zone in zip(moments, zones, strict=True)]
    tables = [pa.table({"click": [0, 1], "x": x}) for x in times]
    schema, split = Schema((HOUR,), label="click", time=AT), {"split": "fraction:1,0,0"}
    with pytest.warns(UserWarning, match=f"{words}.*hours and days are those of {BERLIN}"):
        data = prepare(tables, schema, tmp_path / "enc", **split)
    assert data.schema.time.zone == BERLIN
    named = dataclasses.replace(schema, time=dataclasses.replace(AT, zone="UTC"))
    prepare(tables, named, tmp_path / "named", **split)  # without a warning


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"encoding": "latin-0"}, "encoding 'latin-0' is not known"),
        ({"decimal": ";"}, "expected decimal"),
        ({"decimal": ",", "thousands": ","}, "expected decimal"),
        ({"time": {"column": "x", "zone": "Mars", "utc_offset": 1}}, "either zone= or utc_offset="),
    ],
)
def test_settings_of_text_that_cannot_be_are_refused(more, words):
    with pytest.raises(ValueError, match=words):
        Schema.from_fields({"features": [{"kind": "sparse", "name": "x"}], **more})


def test_a_zone_that_is_none_is_named():
    schema = Schema((HOUR,), label="click", time=Time("x", "iso", zone="Mars"))
    with pytest.raises(ValueError, match="the zone 'Mars' of a time is not known"):
        read({"x": ["2024-03-01"]}, schema)


@pytest.mark.parametrize(("transform", "low"), [("none", 0), ("log", 1 << 24), ("standard", 0)])
def test_numbers_of_which_neighbours_become_equal_are_warned_of(tmp_path, transform, low):
    table = {"click": [0, 1], "x": [low, (1 << 24) + 1]}
    schema = Schema((Dense("x", transform=transform),), label="click")
    if transform == "standard":
        data = prepare(table, schema, tmp_path / "enc", split="fraction:1,0,0")
        assert data.extremes.ranges == {}
        return
    with pytest.warns(UserWarning, match=r"'x' has numbers beyond 2\^24 \(up to 16777217\)"):
        prepare(table, schema, tmp_path / "enc", split="fraction:1,0,0")


def test_a_draft_keeps_the_words_of_a_column_and_reads_marks(tmp_path):
    lines = ["click;country;price"]
    for i in range(400):
        price = "NA" if i % 10 == 3 else f"{1000 + i % 50 * 25:,}".replace(",", ".") + f",{i % 4}"
        lines.append(f"{i % 2};{('NA', 'DE', 'FR')[i % 3]};{price}")
    (tmp_path / "x.csv").write_text("\n".join([*lines, ""]))
    assert draft_schema(tmp_path / "x.csv").schema.dense == ()
    schema = draft_schema(tmp_path / "x.csv", decimal=",", thousands=".").schema
    assert (schema.missing, schema.decimal, schema.thousands) == ({"price": ("NA",)}, ",", ".")
    assert Schema.from_json(schema.to_json()) == schema and len({schema, schema}) == 1
    data = prepare(tmp_path / "x.csv", schema, tmp_path / "enc", split="fraction:1,0,0")
    assert data.parts["train"].missing == {"price": 40, "country": 0}


@pytest.mark.parametrize("transform", ["none", "standard", "log"])
@pytest.mark.parametrize("most", [5, 60, 1000])
def test_bins_of_whole_numbers_have_equally_many_or_ever_more(tmp_path, most, transform):
    """Bins of 1.7 numbers had one or two of them: a comb."""
    table = {"click": [0, 1] * most, "x": [*range(most)] * 2}
    schema = Schema((Dense("x", transform=transform),), label="click")
    data = prepare(table, schema, tmp_path / "enc", split="fraction:1,0,0")
    (used,) = describe(data).dense
    _, shares = used.histogram
    middle = shares[1:-1]  # the ends count what is beyond the quantiles
    assert math.isclose(sum(shares), 1) and len(middle) >= 3
    assert list(middle[:-1]) == sorted(middle[:-1])
    if transform != "log":
        assert max(middle[:-1]) - min(middle[:-1]) < 1e-9
