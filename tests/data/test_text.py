"""Lines into fields and fields into columns: the native core says what plain Python says."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotrows.data import Loader, prepare
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.chunks import chunk_of, chunks_of
from hotrows.data.raw.files import find_files
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.text import cut_line, layout_of, parse
from hotrows.data.raw.values import plain_number
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from tests.reference.rows_of_data import use_plain_python
from tests.support.choice import examples


def test_fields_of_a_line():
    assert cut_line(b"a\t\tb\r", "\t") == ([b"a", b"", b"b"], None)
    assert cut_line(b'"a', "\t") == ([b'"a'], None)
    assert cut_line(b'"a,b","say ""x""",c"d', ",") == ([b"a,b", b'say "x"', b'c"d'], None)
    assert cut_line(b'"a""', ",")[1] is not None
    assert cut_line(b'"a"b', ",")[1] is not None


def test_numbers_of_fields():
    assert plain_number(b"-2") == -2
    assert plain_number(b" 1.5e3 ") == 1500
    assert math.copysign(1, plain_number(b"-0")) == 1
    assert all(math.isnan(plain_number(text)) for text in (b"", b"nan", b"NaN", b" nan "))
    for text in (b"a", b"1_0", b"NAN", b"inf", b"0x1", b"1e", b".", b"1e39", b"1 2", b"\xd9\xa3"):
        assert plain_number(text) is None


def parsed(text: bytes, schema: Schema, threads: int = 1):
    """All that is read of some text, as plain values, or what is wrong with it."""
    chunk = chunk_of("raw", bytearray(text), 1)
    try:
        layout = layout_of(Reading(schema, threads), "raw", text.split(b"\n")[0])
        columns = SchemaColumns(schema).read(parse(chunk, layout, Reading(schema, threads)))
    except ValueError as error:
        return str(error)
    of_ids = [raw for name, raw in columns.values.items() if name.startswith("ids/")]
    ids = [[raw.value(n) for n in range(len(raw))] for raw in of_ids]
    offsets = [None if raw.offsets is None else raw.offsets.tolist() for raw in of_ids]
    times, weights = (
        ((x := columns.get(name)) is not None and x.tolist()) or None for name in ("times", "weights")
    )
    return columns.get("labels").tolist(), columns.get("dense").tobytes(), ids, offsets, times, weights


def both(text: bytes, schema: Schema, threads: int = 1):
    """What the native core reads, which plain Python must read too."""
    native = parsed(text, schema, threads)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_plain_python(monkeypatch)
        assert parsed(text, schema) == native
    return native


def schema_of(delimiter: str) -> Schema:
    return Schema(features=(Dense("x"), Sparse("c")), columns=("label", "x", "c"), delimiter=delimiter)


# Mostly well-formed lines, so that the first problem stands anywhere.
LABELS = st.sampled_from([b"0", b"1", b"1.0", b"2"])
NUMBERS = st.sampled_from([b"", b"1", b"-1.5e3"])
LINES = st.lists(
    st.one_of(
        st.tuples(LABELS, NUMBERS, st.binary(max_size=10)).map(b",".join),
        st.binary(max_size=20),
        st.text('",1a\r ', max_size=12).map(str.encode),
        st.text('"a,', max_size=8).map(lambda text: b"0,1," + text.encode()),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(LINES, st.integers(1, 5), st.sampled_from(",\t"))
@example([b'0,1,"a""b"', b'0,2,"c"\r'], 2, ",")
@example([b"0,1,a", b"0,x,b", b"0,1"], 3, ",")
@example([b'2,x,"'], 1, ",")
@example([b"2,1,a", b"yes,1,a"], 1, ",")
def test_native_cuts_and_parses_as_plain_python(lines, threads, delimiter):
    text = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    both(text.replace(b",", delimiter.encode()), schema_of(delimiter), threads)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.one_of(
        st.floats().map(repr),
        st.integers(-(10**30), 10**30).map(str),
        st.decimals(allow_nan=False, allow_infinity=False).map(str),
        st.text("0123456789.eE+- ", max_size=9),
    )
)
def test_native_numbers_are_those_of_plain_python(text):
    both(f"0,{text},\n".encode(), schema_of(","))


ODD = Schema(
    label=(Label("rating", at_least=4), Label("action", positive=("buy", "cart")), "seen"),
    columns=("rating", "action", "kind", "seen", "when", "price", "words", "weight"),
    delimiter=";",
    weight="weight",
    time=Time("when", format="%Y-%m-%d %H:%M:%S", utc_offset=1.5),
    strip=True,
    missing=("NULL", "?"),
    features=(
        Dense("price", transform="none"),
        Sparse("hour", transform="hour"),
        Sparse("weekday", transform="weekday"),
        Sparse("weekend", transform="weekend"),
        Sparse("day", transform="day"),
        Sparse("tier", column="price", transform="bucket", boundaries=(0.0, 10.0)),
        Sparse("steps", column="price", transform="log"),
        Sparse("kind"),
        Sparse("bag", column="words", many=True),
        Sequence("last", column="words", max_length=2),
    ),
)


def test_every_kind_of_column_of_a_small_file():
    labels, dense, ids, offsets, times, weights = both(
        b"5;buy;buy;1;2024-02-29 22:59:59; 12;a| b|NULL|c;1\n"
        b"3; cart ; cart ;;1970-01-01 00:00:00;?;;0.5\n"
        b"?;pv;pv;0;;-3;x;2\n",
        ODD,
    )
    assert labels == [[1, 0, 255], [1, 1, 0], [1, 255, 0]]
    assert np.frombuffer(dense)[[0, 2]].tolist() == [12, -3]
    assert math.isnan(np.frombuffer(dense)[1])
    hour, weekday, weekend, day, tier, steps, kind, bag, last = ids
    assert hour == [b"0", b"1", b""]
    assert weekday == [b"4", b"3", b""]  # 2024-03-01 was a Friday, 1970-01-01 a Thursday
    assert weekend == [b"0", b"0", b""]
    assert day == [b"1", b"1", b""]
    assert tier == [b"2", b"", b"0"]
    assert steps == [b"6", b"", b"-3"]  # floor(log(12)^2)
    assert kind == [b"buy", b"cart", b"pv"]
    assert (bag, offsets[-2]) == ([b"a", b"b", b"", b"c", b"x"], [0, 4, 4, 5])
    assert (last, offsets[-1]) == ([b"", b"c", b"x"], [0, 2, 2, 3])
    assert times == [1709247599, 0, np.iinfo(np.int64).min]
    assert weights == [1, 0.5, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"x;buy;buy;1;;1;;1", "column 'rating': expected a number, found 'x'"),
        (b"5;buy;buy;2;;1;;1", "column 'seen': expected a label 0 or 1, found '2'"),
        (b"5;buy;buy;1;2024-02-30 00:00:00;1;;1", "column 'when': expected a time %Y-%m-%d"),
        (b"5;buy;buy;1;24-02-01;1;;1", "column 'when': expected a time"),
        (b"5;buy;buy;1;;1;;-1", "column 'weight': expected a weight of at least 0, found '-1'"),
        (b"5;buy;buy;1;;1;;", "column 'weight': expected a weight of at least 0, found nothing"),
    ],
)
def test_what_is_wrong_in_a_line_is_said(line, message):
    assert f"raw line 2, {message}" in both(b"5;buy;buy;1;;1;;1\n" + line + b"\n", ODD)


FIELDS = st.lists(st.text("a|? NUL0129:-.", max_size=6), min_size=8, max_size=8)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=6), st.integers(1, 3))
def test_native_reads_odd_columns_as_plain_python(rows, threads):
    schema = dataclasses.replace(ODD, weight=None)
    text = "".join(";".join(["5", *row[1:]]) + "\n" for row in rows)
    both(text.encode(), schema, threads)


TIMES = st.one_of(
    st.datetimes(timezones=st.none() | st.timezones()).map(str),
    st.from_regex(
        r"2024-0[1-3]-(3[0-2]|28)([T ]1[0-9]:59(:5[0-9](\.\d{1,9})?)?( ?([+-]0\d(:?30)?|Z|UTC))?)?.?",
        fullmatch=True,
    ),
    st.datetimes().map(lambda t: t.strftime("%Y-%m-%d %H:%M:%S")),
    st.text("0123456789-: ", min_size=1, max_size=20),
)


@settings(max_examples=examples(200), deadline=None)
@given(
    TIMES,
    st.sampled_from(["%Y-%m-%d %H:%M:%S", "%y%m%d%H", "%d.%m.%Y", "unix", "unix_ms", "unix_us", "iso"]),
)
def test_native_times_are_those_of_plain_python(text, format):
    schema = Schema(
        features=(Sparse("hour", transform="hour"),), columns=("label", "t"), delimiter=";",
        time=Time("t", format),
    )  # fmt: skip
    both(f"0;{text}\n".encode(), schema)


@settings(max_examples=examples(100), deadline=None)
@given(st.text("ab\r\n", min_size=1, max_size=60).map(str.encode), st.integers(1, 9))
def test_chunks_hold_every_line_once(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("chunks") / "raw"
    path.write_bytes(text)
    chunks = list(chunks_of(*find_files(path), size))
    assert all(chunk.text.endswith(b"\n") for chunk in chunks)
    joined = b"".join(bytes(chunk.text) for chunk in chunks)
    assert joined.rstrip(b"\r\n") == text.rstrip(b"\r\n")
    assert joined.count(b"\n") == len(text.rstrip(b"\r\n").split(b"\n")) * bool(joined)
    starts = np.cumsum([1, *(chunk.num_lines for chunk in chunks)])[:-1]
    assert [chunk.first_line for chunk in chunks] == starts.tolist()


def test_a_line_may_be_longer_than_a_chunk(tmp_path):
    path = tmp_path / "raw"
    path.write_bytes(b"a" * 10_000 + b"\n" + b"b\n")
    chunks = chunks_of(*find_files(path), 100)
    assert b"".join(bytes(chunk.text) for chunk in chunks) == path.read_bytes()


def test_saturday_and_sunday_are_the_weekend(tmp_path):
    days = [f"2026-11-{day}" for day in (26, 27, 28, 29, 30)]  # from a Thursday on
    schema = Schema(
        (Sparse("weekend", transform="weekend"),), time=Time("day", "%Y-%m-%d"), delimiter=","
    )
    data = prepare(
        {"label": [0, 1, 0, 1, 0], "day": days}, schema, tmp_path / "enc", split="fraction:1,0,0"
    )
    (batch,) = Loader(data.parts["train"], 5).batches(0)
    of_days = batch.ids.tolist()
    assert of_days == [of_days[0]] * 2 + [of_days[2]] * 2 + [of_days[0]] and of_days[0] != of_days[2]
