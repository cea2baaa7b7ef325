"""Lines into fields and fields into numbers: the native core says what plain Python says."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotrows.data.layout import cut_line, layout_of
from hotrows.data.reading import Chunk, chunks_of
from hotrows.data.text import parse, plain_number
from hotrows.schema import Dense, Schema, Sparse
from tests.data.raw import use_plain_python


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
    assert math.isnan(plain_number(b""))
    for text in (b"a", b"1_0", b"nan", b"inf", b"0x1", b"1e", b".", b"1e39", b"1 2", b"\xd9\xa3"):
        assert plain_number(text) is None


def parsed(text: bytes, schema: Schema, threads: int = 1):
    """Labels, numbers and id fields of some text, or what is wrong with it."""
    chunk = Chunk("raw", bytearray(text), 1, text.count(b"\n"), len(text))
    try:
        layout = layout_of(schema, "raw", text.split(b"\n")[0], needs_label=True)
        fields, numbers = parse(chunk, layout, threads)
    except ValueError as error:
        return str(error)
    ids = [[fields.value(place, r) for r in range(fields.num_rows)] for place in layout.sparse]
    return numbers.labels.tolist(), numbers.dense.tobytes(), ids


def schema_of(delimiter: str) -> Schema:
    return Schema(
        features=(Dense("x"), Sparse("c")), columns=("label", "x", "c"), delimiter=delimiter
    )


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


@settings(max_examples=300, deadline=None)
@given(LINES, st.integers(1, 5), st.sampled_from(",\t"))
@example([b'0,1,"a""b"', b'0,2,"c"\r'], 2, ",")
@example([b"0,1,a", b"0,x,b", b"0,1"], 3, ",")
@example([b'2,x,"'], 1, ",")
def test_native_cuts_and_parses_as_plain_python(lines, threads, delimiter):
    text = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    text = text.replace(b",", delimiter.encode())
    native = parsed(text, schema_of(delimiter), threads)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_plain_python(monkeypatch)
        assert parsed(text, schema_of(delimiter)) == native


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.floats().map(repr),
        st.integers(-(10**30), 10**30).map(str),
        st.decimals(allow_nan=False, allow_infinity=False).map(str),
        st.text("0123456789.eE+- ", max_size=9),
    )
)
def test_native_numbers_are_those_of_plain_python(text):
    schema = schema_of(",")
    line = f"0,{text},\n".encode()
    native = parsed(line, schema)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_plain_python(monkeypatch)
        assert parsed(line, schema) == native


@settings(max_examples=100, deadline=None)
@given(st.text("ab\r\n", max_size=60).map(str.encode), st.integers(1, 9))
def test_chunks_hold_every_line_once(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("chunks") / "raw"
    path.write_bytes(text)
    chunks = list(chunks_of(path, size))
    assert all(chunk.text.endswith(b"\n") for chunk in chunks)
    whole = b"".join(bytes(chunk.text) for chunk in chunks)
    assert whole.rstrip(b"\r\n") == text.rstrip(b"\r\n")
    assert whole.count(b"\n") == len(text.rstrip(b"\r\n").split(b"\n")) * bool(whole)
    starts = np.cumsum([1, *(chunk.num_lines for chunk in chunks)])[:-1]
    assert [chunk.first_line for chunk in chunks] == starts.tolist()


def test_a_line_may_be_longer_than_a_chunk(tmp_path):
    path = tmp_path / "raw"
    path.write_bytes(b"a" * 10_000 + b"\n" + b"b\n")
    assert b"".join(bytes(chunk.text) for chunk in chunks_of(path, 100)) == path.read_bytes()
