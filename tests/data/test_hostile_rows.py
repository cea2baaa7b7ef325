"""Hostile rows and schemas: each is read as it stands or refused in one line, natively and in Python."""

import gzip
import json
import math
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotrows.data import prepare
from hotrows.data.datasets import schemas
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from tests.reference.rows_of_data import use_plain_python

FEATURES = (Dense("price"), Sparse("user"), Sequence("seen", max_length=2))
SCHEMA = Schema(features=FEATURES, weight="w", time=Time("when"), delimiter=",")
HEADER = b"label,price,user,seen,w,when\n"
ROW = b"1,2.5,ann,a|b,1,1700000000\n"


@pytest.fixture(params=["native", "plain"], autouse=True)
def both(request, monkeypatch):
    if request.param == "plain":
        use_plain_python(monkeypatch)


def zipped(content):
    """The gzip file of a content, alike at any time of day."""
    return gzip.compress(content, mtime=0)


def prepared(tmp_path, content, schema=SCHEMA, split="fraction:1,0,0"):
    (tmp_path / "raw").write_bytes(content)
    return prepare(tmp_path / "raw", schema, tmp_path / "out", split=split, threads=1)


def refused(tmp_path, content, schema=SCHEMA, **how):
    with pytest.raises(ValueError) as error:
        prepared(tmp_path, content, schema, **how)
    message = str(error.value)
    assert type(error.value) is ValueError
    assert message.isprintable() and len(message) < 1000
    assert not (tmp_path / "out").exists()
    return message


@pytest.mark.parametrize(
    ("row", "piece"),
    [
        (b"2,1,a,b,1,0", "column 'label': expected a label 0 or 1, found '2'"),
        (b"-1,1,a,b,1,0", "column 'label': expected a label 0 or 1, found '-1'"),
        (b"nan,1,a,b,1,0", "column 'label': expected a label 0 or 1, found 'nan'"),
        (b"inf,1,a,b,1,0", "column 'label': expected a label 0 or 1, found 'inf'"),
        (b",1,a,b,1,0", "column 'label': expected a label 0 or 1, found nothing"),
        (b"1,NAN,a,b,1,0", "column 'price': expected a number, found 'NAN'"),
        (b"1,inf,a,b,1,0", "column 'price': expected a number, found 'inf'"),
        (b"1,1e39,a,b,1,0", "column 'price': expected a number, found '1e39'"),
        (b"1,1_0,a,b,1,0", "column 'price': expected a number, found '1_0'"),
        (b"1,0x1,a,b,1,0", "column 'price': expected a number, found '0x1'"),
        (b"1,\xd9\xa1,a,b,1,0", "column 'price': expected a number, found '١'"),
        (b"1,1\0,a,b,1,0", "column 'price': expected a number, found '1\\x00'"),
        (b"1,\xff,a,b,1,0", "line 3, byte 3: expected UTF-8, found 0xff"),
        (b"1," + b"9" * 3000 + b",a,b,1,0", "column 'price': expected a number, found '9999"),
        (b"1,1,a,b,-1,0", "column 'w': expected a weight"),
        (b"1,1,a,b,nan,0", "column 'w': expected a"),
        (b"1,1,a,b,inf,0", "column 'w': expected a"),
        (b"1,1,a,b,1,x", "column 'when': expected a time unix"),
        (b"1,1,a,b,1,1700000000000", "milliseconds are 'unix_ms'), found '1700000000000'"),
        (b"1,1,a,b,1,1700000000000000", "milliseconds are 'unix_ms'), found '1700000000000000'"),
        (b"1,1,a,b,1,-1700000000000", "milliseconds are 'unix_ms'), found '-1700000000000'"),
        (b"1,1,a,b,1,1e300", "column 'when': expected a time unix"),
        (b"1,1,a,b,1", "expected 6 columns between ',', found 5"),
        (b"1,1,a,b,1,0,7", "expected 6 columns between ',', found 7"),
        (b"", "expected 6 columns between ',', found 1"),
        (b"\0", "expected 6 columns between ',', found 1"),
        (b'1,1,"a,b,1,0', "column 'user': the quoted field does not end"),
        (b'1,1,"a"x,b,1,0', "column 'user': the quoted field is followed by text"),
        (b'1,1,",b,1,0', "column 'user': the quoted field does not end"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, row, piece):
    message = refused(tmp_path, HEADER + ROW + row + b"\n" + ROW)
    assert piece in message
    assert "raw line 3" in message


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b"\xef\xbb\xbf" + HEADER + ROW, 1),
        ((HEADER + ROW + ROW).replace(b"\n", b"\r\n"), 2),
        (HEADER + ROW.rstrip(b"\n"), 1),
        (HEADER + ROW + b"\n\r\n\n", 1),
        (HEADER + b"1,nan,\0,\xc3\xbf|\x7f,1,0\n" + ROW, 2),
        (HEADER + b"1,2," + b"x" * 100_000 + b"," + b"|" * 100_000 + b",1,0\n", 1),
        (HEADER + b"1,2,a\rb,c,1,0\n", 1),
        (HEADER + b"0,,,,1,\n", 1),
        (zipped(HEADER) + zipped(ROW), 1),
        (zipped(HEADER + ROW) + zipped(b""), 1),
    ],
)
def test_odd_rows_that_are_legal_are_read(tmp_path, content, rows):
    assert prepared(tmp_path, content).parts["train"].rows == rows


@pytest.mark.parametrize(
    ("content", "piece"),
    [
        (b"", "raw is empty"),
        (b"\n", "raw file"),
        (HEADER, "has no lines after its header"),
        (HEADER.rstrip(b"\n"), "has no lines after its header"),
        (ROW, "raw line 1: the header lacks the columns"),
        (HEADER.replace(b",", b";") + ROW, "raw line 2, expected 6 columns between ';', found 1"),
        (HEADER.replace(b",", b"\t") + ROW, "raw line 2, expected 6 columns between '\\t', found 1"),
        (HEADER.replace(b"price", b"user") + ROW, "lacks the columns ['price']"),
        (HEADER.replace(b"\n", b",user\n") + ROW, "names the columns ['user'] twice"),
        (b"\0" * 1000, "raw line 1: the header lacks"),
        (b'"' + HEADER + ROW, "raw line 1: a quoted column name does not end"),
        (b"PAR1" + bytes(100), "raw is no whole Parquet file"),
        (b"PAR1" + bytes(100) + b"PAR1", "raw is no whole Parquet file"),
        (b"\x1f\x8b" + bytes(100), "raw is no whole gzip file"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "raw is no whole zstd file"),
        (zipped(HEADER + ROW * 999)[:-9], "raw is no whole gzip file"),
        (zipped(HEADER + ROW) + b"more", "raw is no whole gzip file"),
    ],
)
def test_a_file_of_no_rows_or_of_another_kind_is_named(tmp_path, content, piece):
    assert piece in refused(tmp_path, content)


@pytest.mark.parametrize(
    ("unit", "ticks", "format"),
    [
        ("ms", 1700000000000, "unix"),
        ("us", 1700000000000000, "unix"),
        ("us", 1700000000000000, "unix_ms"),
    ],
)
def test_numbers_of_another_unit_in_parquet_are_refused(tmp_path, unit, ticks, format):
    """Milliseconds declared as seconds gave hours and weekdays of the year 55840, without a word."""
    table = pa.table({"label": [0, 1], "when": [ticks, ticks + 1]})
    pq.write_table(table, tmp_path / "raw")
    schema = Schema(features=(Sparse("hour", transform="hour"),), time=Time("when", format))
    content = (tmp_path / "raw").read_bytes()
    assert (
        f"since 1970 until the year 9999; {'milli' if format == 'unix' else 'micro'}seconds are"
        in refused(tmp_path, content, schema)
    )
    right = Schema(features=schema.features, time=Time("when", f"unix_{unit}"))
    assert prepared(tmp_path, content, right).parts["train"].rows == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", ["price", "label", "w"])
def test_numbers_in_parquet_that_are_none(tmp_path, column, value):
    columns = {"label": [0.0, 1.0], "price": [1.0, 2.0], "w": [1.0, 1.0]}
    columns[column][1] = value
    pq.write_table(pa.table(columns), tmp_path / "raw")
    schema = Schema(features=(Dense("price"),), weight="w")
    content = (tmp_path / "raw").read_bytes()
    if math.isnan(value) and column == "price":  # a missing value, as pandas writes it
        assert prepared(tmp_path, content, schema).parts["train"].rows == 2
    else:
        assert f"raw row 1, column '{column}': expected a" in refused(tmp_path, content, schema)


def test_64_mib_of_line_breaks_take_seconds(tmp_path):
    """They took minutes: each block of 8 MiB went through all before it, byte by byte."""
    columns = ("label", "price", "user", "seen", "w", "when")
    schema = Schema(features=FEATURES, columns=columns, weight="w", time=Time("when"), delimiter=",")
    breaks = b"\n" * (64 << 20)
    begin = time.monotonic()
    assert prepared(tmp_path, ROW + breaks, schema).parts["train"].rows == 1
    assert time.monotonic() - begin < 30


def test_a_row_behind_many_line_breaks_is_refused_at_the_first(tmp_path):
    columns = ("label", "price", "user", "seen", "w", "when")
    schema = Schema(features=FEATURES, columns=columns, weight="w", time=Time("when"), delimiter=",")
    begin = time.monotonic()
    message = refused(tmp_path, ROW + b"\r\n" * (8 << 20) + ROW, schema)
    assert "raw line 2, expected 6 columns between ',', found 1" in message
    assert time.monotonic() - begin < 30


FIELDS = {"features": [{"kind": "dense", "name": "price"}], "label": "label"}
DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("null", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ("3", "expected a JSON object"),
        ('"x"', "expected a JSON object"),
        ("{}", "expected a JSON object with a list of `features`"),
        ("[" * DEEP, "nested too deeply"),
        ('{"a":' * DEEP, "nested too deeply"),
        ('{"features":' * DEEP + "[]" + "}" * DEEP, "nested too deeply"),
        ("9" * 5000, "cannot be read"),
        ("\ufeff{}", "cannot be read"),
        ({"features": {}}, "a list of `features`"),
        ({"features": [3]}, "feature kind must be one of"),
        ({"features": [[]]}, "feature kind must be one of"),
        ({"features": [{}]}, "feature kind must be one of"),
        ({"features": [{"kind": []}]}, "feature kind must be one of"),
        ({"features": [{"kind": "x"}]}, "feature kind must be one of"),
        ({"features": [{"kind": "dense"}]}, "a dense lacks the fields ['name']"),
        ({"features": [{"kind": "dense", "name": "x", "size": 3}]}, "a dense has no field 'size'"),
        ({"features": [{"kind": "dense", "name": None}]}, "name of a dense must be of type str"),
        ({"features": [{"kind": "sparse", "name": "x", "rows": 2**70}]}, "expected numbers of 64 bits"),
        ({"features": [{"kind": "sparse", "name": "x", "rows": 1e9}]}, "rows of a sparse must be"),
        (
            {"features": [{"kind": "sparse", "name": "x", "min_count": True}]},
            "min_count of a sparse must be",
        ),
        ({"features": FIELDS["features"] * 2}, "feature names must be unique, twice: ['price']"),
        ({"label": []}, "needs at least one label"),
        ({"label": 3}, "label of a schema must be of type str"),
        ({"label": ["a", "a"]}, "label names must be unique"),
        (
            {"label": {"name": "a", "positive": ["1"], "at_least": 1}},
            "give either positive= or at_least=",
        ),
        ({"time": "when"}, "time of a schema must be of type hotrows.schema.Time"),
        ({"time": {}}, "a time lacks the fields ['column']"),
        ({"columns": ["label"]}, "columns ['price'] are used, and do not stand"),
        ({"columns": "label"}, "columns of a schema must be"),
        ({"delimiter": None}, "delimiter of a schema must be of type str"),
        ({"strip": "yes"}, "strip of a schema must be of type bool"),
        ({"colour": "red"}, "a schema has no field 'colour'"),
        ({"name": "\ud800"}, "name of a schema must be of type str"),
    ],
)
def test_a_schema_file_that_makes_no_sense(tmp_path, text, piece):
    if isinstance(text, dict):
        text = json.dumps({**FIELDS, **text})
    (tmp_path / "schema.json").write_text(text)
    with pytest.raises(ValueError) as error:
        schemas.load(tmp_path / "schema.json")
    message = str(error.value)
    assert piece in message
    assert "schema.json cannot be read" in message
    assert message.isprintable() and len(message) < 1000


@pytest.mark.parametrize(
    ("schema", "piece"),
    [
        ({"delimiter": "::"}, "the delimiter must be one character"),
        ({"delimiter": '"'}, "the delimiter must be one character"),
        ({"time": Time("when", "%Y-%Q")}, "the format of a time must be"),
        ({"time": Time("when", "")}, "the format of a time must be"),
        ({"label": Label("label", at_least=1), "weight": "nothing"}, "lacks the columns ['nothing']"),
        ({"features": (Dense("nobody"),)}, "lacks the columns ['nobody']"),
        ({"columns": ("label", "price", "price", "user", "seen", "w")}, "['price'] twice"),
    ],
)
def test_a_schema_that_does_not_fit_the_file(tmp_path, schema, piece):
    fields = {"features": FEATURES, "delimiter": ",", **schema}
    assert piece in refused(tmp_path, HEADER + ROW, Schema(**fields))
