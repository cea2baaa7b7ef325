"""Formats of raw data: one table gives the same rows from each, in bounded memory, or one clear line."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pytest
import torch

from hotrows.data import Encoder, draft_schema, prepare
from hotrows.data.raw import chunks, inputs, typed_files
from hotrows.data.raw.tables import as_table
from hotrows.schema import Dense, Schema, Sequence, Sparse
from tests.data.raw import shards

SCHEMA = Schema(
    features=(Dense("price", transform="none"), Sparse("user"), Sequence("seen")),
    label="click",
    delimiter=",",
)
ROWS = 3_000
TABLE = pa.table(
    {
        "click": [n % 3 == 0 for n in range(ROWS)],
        "user": [None if n % 50 == 7 else f"u{n % 91}é" for n in range(ROWS)],
        "price": [None if n % 11 == 3 else n / 8 for n in range(ROWS)],
        "seen": [[str(k) for k in range(n % 4)] for n in range(ROWS)],
    }
)


def csv() -> bytes:
    lines = ["click,user,price,seen"]
    for row in TABLE.to_pylist():
        price = "" if row["price"] is None else row["price"]
        lines.append(f"{int(row['click'])},{row['user'] or ''},{price},{'|'.join(row['seen'])}")
    return ("\n".join(lines) + "\n").encode()


def json_lines() -> bytes:
    lines = []
    for n, row in enumerate(TABLE.to_pylist()):
        kept = {k: v for k, v in row.items() if v is not None or n % 2 or not n}
        lines.append(json.dumps(kept, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()


def zipped(content: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("folder/", "folder/rows.csv", "__MACOSX/rows.csv"):
            archive.writestr(name, b"" if name.endswith("/") else content)
    return file.getvalue()


def arrow_file(new_file, **options) -> bytes:
    sink = pa.BufferOutputStream()
    with new_file(sink, TABLE.schema, **options) as writer:
        writer.write_table(TABLE, max_chunksize=700)
    return sink.getvalue().to_pybytes()


def orc() -> bytes:
    sink = io.BytesIO()
    pa.orc.write_table(TABLE, sink)
    return sink.getvalue()


def feather() -> bytes:
    sink = io.BytesIO()
    pa.feather.write_feather(TABLE, sink, compression="zstd", chunksize=1_000)
    return sink.getvalue()


CONTENTS = {
    "gzip": lambda: gzip.compress(csv()),
    "two gzip files in a row": lambda: gzip.compress(csv()[:999]) + gzip.compress(csv()[999:]),
    "bz2": lambda: bz2.compress(csv()),
    "xz": lambda: lzma.compress(csv()),
    "zip": lambda: zipped(csv()),
    "zstd": lambda: pa.compress(csv(), codec="zstd", asbytes=True),
    "lz4": lambda: pa.compress(csv(), codec="lz4", asbytes=True),
    "UTF-8 with a mark": lambda: b"\xef\xbb\xbf" + csv(),
    "UTF-16": lambda: csv().decode().encode("utf-16"),
    "UTF-16 of the other order": lambda: b"\xfe\xff" + csv().decode().encode("utf-16-be"),
    "UTF-16 in gzip": lambda: gzip.compress(csv().decode().encode("utf-16")),
    "JSON lines": json_lines,
    "JSON lines in xz": lambda: lzma.compress(json_lines()),
    "Arrow IPC": lambda: arrow_file(pa.ipc.new_file),
    "Arrow stream": lambda: arrow_file(pa.ipc.new_stream),
    "Feather": feather,
    "ORC": orc,
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "rows.csv").write_bytes(csv())
    return prepare(folder / "rows.csv", SCHEMA, folder / "enc", split="position:0.8")


@pytest.mark.parametrize("kind", CONTENTS)
def test_every_format_gives_the_rows_of_plain_text(tmp_path, monkeypatch, expected, kind):
    """Prepared, encoded and drafted, in chunks that are smaller than the file."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 20_000)
    (tmp_path / "rows").write_bytes(CONTENTS[kind]())
    data = prepare(tmp_path / "rows", SCHEMA, tmp_path / "enc", split="position:0.8")
    assert shards(data) == shards(expected)
    assert sum(batch.size for batch in Encoder.open(tmp_path / "enc").encode(tmp_path / "rows")) == ROWS
    schema = draft_schema(tmp_path / "rows").schema
    assert {feature.name for feature in schema.features} == {"user", "price", "seen"}
    assert schema.label == "click"


def numpy_file(source):
    """A file of a structured array, as one group: CONTRIBUTING.md says that a format is added so."""
    rows = np.load(source)

    def batches(group, columns, num_rows):
        for first in range(0, len(rows), num_rows):
            some = rows[first : first + num_rows]
            yield pa.RecordBatch.from_pydict({name: pa.array(some[name].copy()) for name in columns})

    schema = pa.schema([(name, pa.null()) for name in rows.dtype.names])
    return typed_files.Groups(schema, 1, lambda: len(rows), batches)


def test_a_format_is_added_in_two_places(tmp_path, monkeypatch):
    rows = np.zeros(300, [("click", "i1"), ("user", "i8"), ("price", "f4")])
    n = np.arange(300)
    rows["click"], rows["user"], rows["price"] = n % 2, n % 7, n / 8
    np.save(tmp_path / "rows.npy", rows)
    table = pa.table({name: rows[name].copy() for name in rows.dtype.names})
    schema = Schema((Dense("price", transform="none"), Sparse("user")), label="click")
    expected = prepare(table, schema, tmp_path / "expected")
    with pytest.raises(ValueError, match="a NumPy array"):
        prepare(tmp_path / "rows.npy", schema, tmp_path / "enc")
    monkeypatch.setitem(inputs.KINDS, b"\x93NUMPY", "NumPy")
    monkeypatch.setitem(typed_files._OPEN, "NumPy", numpy_file)
    assert shards(prepare(tmp_path / "rows.npy", schema, tmp_path / "enc")) == shards(expected)
    drafted = draft_schema(tmp_path / "rows.npy").schema
    assert {feature.name for feature in drafted.features} == {"user", "price"}


@pytest.mark.parametrize(
    "kind", ["bz2", "xz", "zip", "zstd", "UTF-16", "Arrow IPC", "Arrow stream", "ORC"]
)
def test_a_file_that_was_cut_off_is_named_in_a_line(tmp_path, kind):
    (tmp_path / "rows").write_bytes(CONTENTS[kind]()[:-9])
    with pytest.raises(ValueError, match=f"rows (is no whole (file of )?{kind}|is damaged)") as error:
        prepare(tmp_path / "rows", SCHEMA, tmp_path / "enc", split="position:0.8")
    assert "\n" not in str(error.value)


LINE = b'{"click": 1, "user": "a", "price": 1, "seen": []}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" + LINE + b"]", r"rows holds an array of JSON; write one object per line"),
        (LINE * 3 + b'{"click": 1,}\n', r"rows line 4: expected an object of JSON per line"),
        (LINE * 2 + b"\n" + LINE, r"rows line 3: expected an object of JSON, found nothing"),
        (LINE * 2 + LINE.replace(b'"a"', b"7"), r"rows line 3: .*user.* changed from string to number"),
        (LINE * 2 + LINE.strip() + LINE, r"rows: 3 lines from line 1 on hold 4 objects of JSON"),
        (LINE * 2 + LINE.replace(b"1,", b"2,", 1), r"rows line 3, column 'click': expected a label"),
        (b'{"user": "a", "price": 1, "seen": []}\n', r"rows lacks the columns \['click'\]"),
        (zipped(b"a", "a.csv", "b.csv"), r"expected a zip archive of one file, found 2 \(a.csv, b.csv\)"),
        (zipped(b"a", "xl/workbook.xml", "b"), r"rows is an Excel workbook, which is not read"),
        (
            gzip.compress(tarfile.TarInfo("dac/train.txt").tobuf() + bytes(1024), mtime=0),
            r"rows holds a tar archive, which is not read; unpack it",
        ),
        (
            gzip.compress(b"PAR1" + bytes(99), mtime=0),
            r"rows holds Parquet inside a compressed file; unpack it",
        ),
        (b"FEA1" + bytes(99), r"rows holds Feather of version 1, which is not read; write it as Parquet"),
        (b"Obj\x01" + bytes(99), r"rows holds Avro, which is not read"),
        (csv().decode().encode("utf-16-le"), r"rows seems to be UTF-16 without a byte order mark"),
        (csv().decode().encode("utf-16-be"), r"rows seems to be UTF-16 without a byte order mark"),
    ],
)
def test_what_is_not_read_is_said_in_a_line(tmp_path, content, message):
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        prepare(tmp_path / "rows", SCHEMA, tmp_path / "enc")
    assert "\n" not in str(error.value)


class Stream:
    """Has the Arrow protocol and nothing else."""

    def __arrow_c_stream__(self, requested_schema=None):
        return TABLE.__arrow_c_stream__(requested_schema)


class Dataset:
    """As a data set of Hugging Face: it gives rows as Arrow when it is asked for that format."""

    column_names = TABLE.column_names

    def __init__(self, format=None):
        self.format = format

    def __len__(self):
        return ROWS

    def with_format(self, format):
        return Dataset(format)

    def __getitem__(self, rows):
        assert self.format == "arrow" and rows == slice(None)
        return TABLE


def columns_as_arrays():
    return {
        "click": torch.tensor(TABLE["click"].to_pylist()),
        "user": pd.Series(TABLE["user"].to_pylist()),
        "price": np.array(TABLE["price"].to_pylist(), float),
        "seen": pl.Series(TABLE["seen"].to_pylist()),
    }


FRAMES = {
    "Arrow protocol": Stream,
    "Hugging Face": Dataset,
    "lazy frame": lambda: pl.from_arrow(TABLE).lazy(),
    "dict of lists": lambda: TABLE.to_pydict(),
    "dict of arrays": columns_as_arrays,
    "dict of Arrow columns": lambda: {name: TABLE[name] for name in TABLE.column_names},
}


@pytest.mark.parametrize("kind", FRAMES)
def test_what_holds_columns_in_memory_gives_the_rows_of_plain_text(tmp_path, expected, kind):
    data = prepare(FRAMES[kind](), SCHEMA, tmp_path / "enc", split="position:0.8")
    assert shards(data) == shards(expected)


def test_a_data_set_of_hugging_face(tmp_path, expected):
    datasets = pytest.importorskip("datasets")
    data = prepare(datasets.Dataset(TABLE), SCHEMA, tmp_path / "enc", split="position:0.8")
    assert shards(data) == shards(expected)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": "a"}, r"expected a dict of columns, found str for 'user'; .*\{'user': \[...\]\}"),
        ({"user": 3}, "expected a dict of columns, found int for 'user'"),
        ({"user": ["a"], "price": [1, 2]}, r"must have equal lengths, not \{'user': 1, 'price': 2\}"),
        ({"user": [[3], 3]}, "column 'user' is no column of values: "),
        ({"user": np.array([1j, 2])}, "column 'user' is no column of values: .*, found complex128"),
        ({"user": ["a", 3]}, "column 'user' mixes text and numbers; convert it to text"),
        ({"user": [2**63, -5]}, "column 'user' has whole numbers beyond int64; convert it to text"),
        ({"user": [2**70, 5]}, "column 'user' has whole numbers beyond int64; convert it to text"),
        ({"train": TABLE, "test": TABLE}, r"found one of data sets \(train, test\): .* and test="),
        (object(), "expected paths, an Arrow table, .*, not object"),
    ],
)
def test_a_dict_of_other_things_is_refused_in_a_line(columns, message):
    with pytest.raises(ValueError, match=message):
        draft_schema(columns)


def test_hashes_of_64_bits_are_read_from_lists_as_from_arrays():
    """Requests in JSON were refused, whose rows trained as uint64."""
    columns = {"user": [2**64 - 1, 5, None], "seen": [[5, 2**63], [], None]}
    assert as_table(columns).to_pydict() == columns


def test_sparse_columns_of_pandas_are_those_that_they_stand_for():
    """A frame of get_dummies(sparse=True) was refused: 'Did not pass numpy.dtype object'."""
    frame = pd.DataFrame({"user": ["a", "b", "a"], "price": [1.5, 2.0, 2.5]})
    dummies = [pd.get_dummies(frame, columns=["user"], sparse=is_sparse) for is_sparse in (True, False)]
    assert as_table(dummies[0]).to_pydict() == as_table(dummies[1]).to_pydict()


def test_a_time_that_is_missing_in_a_list_is_so_as_in_a_frame():
    times = [pd.Timestamp("2024-03-01"), pd.NaT]
    assert as_table({"at": times}) == as_table({"at": [times[0], None]})


@pytest.mark.parametrize(
    ("values", "why"),
    [(["a", 5, None], "mixes text and numbers"), ([2**70, 5, 6], "has whole numbers beyond int64")],
)
def test_a_column_that_is_refused_is_read_as_text(values, why):
    """Of the first the error said to make a frame, of one; the other was an OverflowError."""
    frame = pd.DataFrame({"user": values, "click": [0, 1, 1]})
    with pytest.raises(ValueError, match=f"^column 'user' {why}; convert it to text .*") as refused:
        draft_schema(frame)
    assert "frame['user'].astype('string')" in str(refused.value) and "\n" not in str(refused.value)
    table = as_table(frame.assign(user=frame["user"].astype("string")))
    assert table["user"].to_pylist() == [value if value is None else str(value) for value in values]
