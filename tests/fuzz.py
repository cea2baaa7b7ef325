"""A fuzzer of what is read from files: `python -m tests.fuzz --seconds 600 [--target NAME] [--seed N]`.

The claim: whatever bytes stand in a raw file, in a prepared folder, in the state of a preparation that
was interrupted, or in a schema file, the library works or raises one ValueError whose message is one
line and names the file. It never raises anything else, crashes, hangs, or takes memory without bound;
and the native core and plain Python agree, on the rows or on the message.

A case is made of its target and seed alone: valid files, then damaged. Batches run in processes of
their own, so that one that dies names its seed; what was found is made smaller by halves and kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import io
import json
import logging
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hotrows import native
from hotrows.data import EncodedData, Encoder, Loader, describe, prepare, reading, schemas
from hotrows.data import arrow as arrow_reader
from hotrows.data.columns import Columns, RawIds
from hotrows.data.inputs import Reading, inputs_of, stream
from hotrows.data.sections import MAGIC
from hotrows.data.shards import ShardWriter
from hotrows.schema import Dense, Feature, Label, Schema, Sequence, Sparse, Time, is_list

CASE_SECONDS = 20.0
BATCH = 50  # cases of a process
MEMORY = 3 << 30  # bytes of address space that a batch may take beside what it began with
MESSAGE = 2_000  # letters of the longest message

NONSENSE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 64, -64, 0.5, -0.0, 1e300, 1 << 31, 1 << 40, 1 << 63, 1 << 70, "",
    "x", "\0", "a\nb", "é", "<f4", "|O", "../data.json", [], {}, [0], [-1], [[1]], [1 << 40, 1 << 40],
    ["x"], {"x": 1}, "label", "n0", "s0", "unix", "%Y", "dense", math.nan, math.inf,
)  # fmt: skip
NUMBERS = [
    "0", "1", "-0", "+1", "-1", "2", "2.5", ".5", "5.", ".", "1e3", "1e", "1e400", "-1e39", "1e-400",
    "nan", "inf", "0x10", "1_000", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "3.4028235e38", "3.4028236e38", "9" * 400, "0" * 300 + "1", " 7 ", "\t7",
    "١", "1\0", "0.1e-5", "1e99999999999999999999", "123456789012345678", "1234567890123456789",
    "-9223372036854775809", "1e19", "4e18", "-62135596801", "253402300800", "1e38",
]  # fmt: skip
WORDS = [
    "", "a", "b", "abcdefgh", "abcdefghi", "é", " x ", "NULL", "\\N", "x|y", "|", "||x|", "a;b;c", "-0",
    "\0", '"', '""', '"a', 'a"b', "x" * 70, "y" * 5000, "\ufeff", "\u2028", "\r", "yes", "0", "12",
]  # fmt: skip
TIMES = [
    "2024-02-29", "2023-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "2024-01-01 23:59:59",
    "20240131",
    "31/12/69", "2024", "24",
]  # fmt: skip
TOKENS = [
    b'"', b'""', b"\r", b"\r\n", b"\n", b"\n\n", b"\0", b",", b"\t", b"|", b";", b" ", b"\xef\xbb\xbf",
    b"\xff",
    b"\x1f\x8b", b"PAR1", b"\x28\xb5\x2f\xfd", b"-", b"9" * 30, b"e999", b"nan", b"x" * 3000,
    b"\xe2\x80\xa8", b"\x1a", b"\x85",
]  # fmt: skip


class Broken(Exception):
    """The claim does not hold."""


class Hang(BaseException):
    """A case took longer than it may."""


@dataclass(frozen=True)
class Case:
    """files: by name, what stands in the folder; damaged: the one that is, and that messages name."""

    files: dict[str, bytes]
    damaged: str
    how: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """make: a case of random choices; run: raises Broken where the claim does not hold of it."""

    make: Callable[[random.Random], Case]
    run: Callable[[Case], None]


def check(target: str, seed: int, folder: Path) -> None:
    """Runs one case in a folder; raises Broken. The folder is emptied."""
    run_case(target, case_of(target, seed), folder)


def case_of(target: str, seed: int) -> Case:
    return TARGETS[target].make(random.Random(f"{target} {seed}"))


def run_case(target: str, case: Case, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(folder)  # names in messages and identities are the same wherever it runs
    try:
        write_files(case.files)
        with limited(CASE_SECONDS):
            TARGETS[target].run(case)
    except Hang:
        raise Broken(f"took more than {CASE_SECONDS:.0f} seconds") from None
    finally:
        os.chdir(before)


def write_files(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))  # a preparation that goes on knows files by their time


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def late(*_) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(action: Callable[[], Any], *names: str) -> tuple[str, Any]:
    """("worked", what came) or ("refused", the message), which must name one of the names."""
    try:
        return "worked", action()
    except Exception as error:
        message = str(error)
        if type(error) is not ValueError:
            raise Broken(f"{type(error).__name__}: {message[:300]}") from error
        if isinstance(error.__cause__, MemoryError):
            raise Broken(f"MemoryError: {message[:300]}") from error
        if not message.isprintable() or len(message) > MESSAGE:
            raise Broken(f"message is not one short line: {message[:3000]!r}") from error
        if not any(name in message for name in names):
            raise Broken(f"message names none of {names}: {message}") from error
        return "refused", message


@contextmanager
def core(plain: bool) -> Iterator[None]:
    """With the native core, or as where it was not built."""
    load = (lambda: None) if plain else native.load
    with mock.patch.object(native, "load", load):
        yield


# ---- damage


def damaged(content: bytes, choose: random.Random, tokens: list[bytes], most: int = 3) -> bytes:
    """The bytes with up to `most` kinds of damage."""
    found = bytearray(content)
    for _ in range(choose.randint(1, most)):
        at = choose.randrange(len(found) + 1)
        end = min(len(found), at + choose.choice([1, 2, 4, 20, 200]))
        kind = choose.randrange(8)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << choose.randrange(8)
        elif kind == 1:
            found[at:at] = choose.choice(tokens)
        elif kind == 2:
            del found[at:end]
        elif kind == 3:
            found[at:at] = found[at:end] * choose.choice([1, 1, 50])
        elif kind == 4 and choose.random() < 0.3:
            del found[at:]
        elif kind == 5:
            other = choose.randrange(len(found) + 1)
            found[at:at] = found[other : other + choose.choice([4, 40, 400])]
        elif kind == 6:
            found[at:end] = choose.randbytes(end - at)
        elif at < len(found):
            found[at : at + 1] = choose.choice(tokens)
    return bytes(found)


def damaged_json(value: Any, choose: random.Random, most: int = 2) -> Any:
    """The value with up to `most` of its parts replaced, removed, renamed, doubled or swapped."""
    root = [json.loads(json.dumps(value))]
    for _ in range(choose.randint(1, most)):
        places = list(_places(root))
        of, key = choose.choice(places)
        kind = choose.randrange(6)
        if kind <= 1:
            of[key] = choose.choice(NONSENSE)
        elif kind == 2 and of is not root:
            del of[key]
        elif kind == 3:
            other, where = choose.choice(places)
            of[key] = json.loads(json.dumps(other[where]))
        elif kind == 4 and isinstance(of, dict):
            of[choose.choice(["x", "name", *of])] = of.pop(key)
        elif kind == 4 and of is not root:
            of.insert(key, json.loads(json.dumps(of[key])))
        elif isinstance(of[key], bool | int | float):
            of[key] = choose.choice([of[key] + 1, of[key] - 1, -of[key], float(of[key]), 1 << 40])
        else:
            of[key] = choose.choice([[of[key]], {"x": of[key]}, str(of[key])])
    return root[0]


def _places(of: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(of) if isinstance(of, dict) else range(len(of)) if isinstance(of, list) else ()
    for key in keys:
        yield of, key
        yield from _places(of[key])


def as_json(value: Any, choose: random.Random) -> bytes:
    """The text of a value, itself damaged now and then."""
    text = json.dumps(value).encode()
    odd = [b"", b"{}", b"[]", b"null", b"3", b"[" * 100_000, b'"\\ud800"', b"\xff", b"9" * 5000]
    if choose.random() < 0.05:
        return choose.choice(odd)
    return (
        damaged(text, choose, [b"{", b"}", b"1e999", b"\xff"], 1) if choose.random() < 0.1 else text
    )


# ---- schemas and rows


def some_schema(choose: random.Random) -> Schema:
    """A legal schema with a little of everything; columns are named after what they hold."""
    features: list[Feature] = [
        Dense(f"n{i}", transform=choose.choice(("log", "standard", "none", "missing")))
        for i in range(choose.randint(0, 2))
    ]
    time = Time("when", choose.choice(TIME_FORMATS), choose.choice([0, 8, -5.5]))
    has_time = choose.random() < 0.5
    for i in range(choose.randint(0, 4)):
        features.append(_id_feature(choose, f"s{i}", has_time))
    label = choose.choice(
        [
            "label",
            Label("label", positive=("yes", "é")),
            Label("label", at_least=choose.choice([1, 0.5])),
            ("label", Label("other", column="n9", at_least=2)),
        ]
    )
    schema = Schema(
        features=tuple(features),
        label=label,
        delimiter=choose.choice("\t\t,,;| \x01a0\0.-"),
        weight=choose.choice([None, None, "w"]),
        group=choose.choice([None, None, "g"]),
        time=time if has_time else None,
        missing=choose.choice([(), (), ("NULL",), ("\\N", "é", "-1")]),
        strip=choose.random() < 0.3,
    )
    if choose.random() < 0.5:
        names = [*schema.raw_columns, *("u0", "u1")[: choose.randint(0, 2)]]
        choose.shuffle(names)
        schema = dataclasses.replace(schema, columns=tuple(names))
    return schema


TIME_FORMATS = (
    "unix",
    "unix_ms",
    "%Y-%m-%d",
    "%Y%m%d",
    "%d/%m/%y",
    "%Y-%m-%d %H:%M:%S",
    "%Y é%S",
    "%y",
)


def _id_feature(choose: random.Random, name: str, has_time: bool) -> Feature:
    unknown = choose.choice([1, 1, 1, 3, 0])
    rest = {"num_unknown": unknown, "min_count": choose.choice([1, 1, 2]) if unknown else 1}
    kind = choose.randrange(6)
    length, separator = choose.choice([None, 1, 2]), choose.choice("|; ,\0")
    if kind == 0:
        return Sequence(name, max_length=length, separator=separator, **rest)
    if kind == 1:
        return Sparse(name, many=True, max_length=length, separator=separator, **rest)
    if kind == 2:
        return Sparse(name, transform="log", **rest)
    if kind == 3:
        return Sparse(name, transform="bucket", boundaries=(-1.5, 0, 1e30), **rest)
    if kind == 4 and has_time:
        return Sparse(name, transform=choose.choice(["hour", "weekday", "weekend", "day"]), **rest)
    return Sparse(name, **rest)


def some_value(choose: random.Random, schema: Schema, column: str) -> str:
    """A value for a column: mostly right, sometimes odd."""
    if choose.random() < 0.004:
        return choose.choice(NUMBERS + WORDS + TIMES)
    if column == "label":
        return choose.choice(["0", "1", "1.0", "+0"])
    if column == "when" and schema.time is not None:
        return _some_time(choose, schema.time.format)
    numbers = [f.name for f in schema.sparse if f.transform != "none"]
    if column[0] in "nw" or column in numbers:
        odd = choose.choice(NUMBERS) if choose.random() < 0.01 else ""
        return odd or choose.choice(["", "1", "2", "0.25", "17", "3e2", f"{choose.random():.9f}"])
    lists = [f for f in schema.id_features if f.name == column and is_list(f)]
    words = [choose.choice(WORDS) for _ in range(choose.randint(0, 4) if lists else 1)]
    return (lists[0].separator if lists else "").join(words)  # type: ignore[union-attr]


def _some_time(choose: random.Random, format: str) -> str:
    if format.startswith("unix"):
        return choose.choice(["", "0", "1700000000", "1700000000.9", "-1", "1700000000000"])
    made = format
    for name, low, high in (("m", 1, 12), ("d", 1, 28), ("H", 0, 23), ("M", 0, 59), ("S", 0, 59)):
        made = made.replace(f"%{name}", f"{choose.randint(low, high):02d}")
    made = made.replace("%Y", f"{choose.randint(1, 9999):04d}")
    return made.replace("%y", f"{choose.randint(0, 99):02d}")


def some_text(choose: random.Random, schema: Schema) -> bytes:
    """Rows as delimited text, most of which can be read."""
    names = schema.columns or (*schema.raw_columns, "u0")
    rows = [] if schema.columns else [names]
    for _ in range(choose.choice([1, 3, 10, 40])):
        rows.append([some_value(choose, schema, name) for name in names])
    end = choose.choice(["\n", "\n", "\r\n"])
    lines = (schema.delimiter.join(_quoted(value, schema, choose) for value in row) for row in rows)
    text = end.join(lines) + choose.choice([end, end, "", end * 3])
    return text.encode("utf-8", "surrogateescape")


def _quoted(value: str, schema: Schema, choose: random.Random) -> str:
    if schema.delimiter == "\t":
        return value.replace("\t", " ")
    if schema.delimiter in value or '"' in value or choose.random() < 0.05:
        return '"' + value.replace('"', '""') + '"'
    return value


# ---- reading rows


def rows_of(schema: Schema, path: str, threads: int, for_training: bool) -> list:
    """All that is read of a file, as plain values."""
    how = Reading(schema, threads, for_training)
    return [_plain(columns) for _, columns in stream(inputs_of(path), how)]


def _plain(columns: Columns) -> dict[str, Any]:
    arrays = {"labels": columns.labels, "weights": columns.weights, "times": columns.times}
    found: dict[str, Any] = {name: of for name, of in arrays.items() if of is not None}
    found["dense"] = columns.dense
    for i, of in enumerate(columns.ids):
        found[f"ids {i}"] = _listed(of)
    if columns.groups is not None:
        found["groups"] = _listed(columns.groups)
    return found


def _listed(of: RawIds) -> list:
    words = [of.value(n) for n in range(len(of))]
    if of.offsets is None:
        return words
    return [words[a:b] for a, b in zip(of.offsets[:-1], of.offsets[1:], strict=True)]


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of all chunks: how they were cut must not show."""
    joined = {}
    for name in chunks[0]:
        pieces = [chunk[name] for chunk in chunks]
        if isinstance(pieces[0], list):
            joined[name] = [row for piece in pieces for row in piece]
        else:
            joined[name] = np.concatenate(pieces, axis=-1).tobytes()
    return joined


def _same(a: tuple[str, Any], b: tuple[str, Any], what: str) -> None:
    if a == b:
        return
    if isinstance(a[1], dict) and isinstance(b[1], dict):
        differ = [name for name in {**a[1], **b[1]} if a[1].get(name) != b[1].get(name)]
        raise Broken(
            f"{what} differ in {differ}: {_brief(a[1], differ)} and {_brief(b[1], differ)}"
        )
    raise Broken(f"{what} differ: {str(a)[:600]} and {str(b)[:600]}")


def _brief(of: dict[str, Any], names: list[str]) -> str:
    return str(of.get(names[0]))[:300]


def read_both(case: Case, may_differ: bool = False) -> None:
    """Reads natively and in plain Python, cut in other places; both must come to the same."""
    how = case.how
    schema = Schema.from_json(how["schema"])
    found = []
    for plain in (False, True):
        size = how["chunk_bytes"][0 if may_differ else plain]

        def read() -> dict[str, Any]:
            chunks = rows_of(schema, how["path"], how["threads"], how["for_training"])
            return _joined(chunks)

        with (
            core(plain),
            mock.patch.object(reading, "CHUNK_BYTES", size),
            mock.patch.object(arrow_reader, "ROWS_PER_CHUNK", max(1, size)),
        ):
            found.append(outcome(read, Path(case.damaged).name))
    _same(found[0], found[1], "native core and plain Python")
    if how["prepare"] is not None:
        prepare_both(case, schema)


def prepare_both(case: Case, schema: Schema) -> None:
    found = []
    for plain in (False, True):

        def run() -> dict[str, bytes]:
            prepare(
                case.how["path"], schema, "out", split=case.how["prepare"], seed=3,
                threads=case.how["threads"], memory=256 << 20,
            )  # fmt: skip
            return {path.name: path.read_bytes() for path in sorted(Path("out").iterdir())}

        with core(plain), small_shards():
            found.append(outcome(run, Path(case.damaged).name))
        _check_clean()
    _same(found[0], found[1], "what the native core and plain Python prepare")


def _check_clean() -> None:
    if Path("out.part").exists():
        raise Broken("out.part was left")
    shutil.rmtree("out", ignore_errors=True)


@contextmanager
def small_shards() -> Iterator[None]:
    with mock.patch.object(ShardWriter.__init__, "__defaults__", (16,)):
        yield


def _how(choose: random.Random, schema: Schema, path: str) -> dict[str, Any]:
    size = [10, 40, 200, 1000, 1 << 20]
    splits = ["fraction:1,0,0", "position:0.5", "stratified:0.5,0.2,0.3"]
    splits += ["time:0.5,0.2,0.3"] if schema.time else []
    return {
        "schema": schema.to_json(),
        "path": path,
        "threads": choose.choice([1, 1, 1, 2, 3]),
        "chunk_bytes": [choose.choice(size), choose.choice(size)],
        "for_training": choose.random() < 0.8,
        "prepare": choose.choice(splits) if choose.random() < 0.25 else None,
    }


def make_text(choose: random.Random) -> Case:
    schema = some_schema(choose)
    text = some_text(choose, schema)
    if choose.random() < 0.7:
        tokens = [*TOKENS, schema.delimiter.encode()]
        text = damaged(text, choose, tokens + [word.encode() for word in NUMBERS])
    return Case({"rows.raw": text}, "rows.raw", _how(choose, schema, "rows.raw"))


def make_compressed(choose: random.Random) -> Case:
    schema = some_schema(choose)
    text = some_text(choose, schema)
    pack = choose.choice([lambda of: gzip.compress(of, mtime=0), pa.Codec("zstd").compress])
    content = b"".join(
        _packed(pack, part) for part in choose.choice([[text], [text[:9], text[9:]]])
    )
    content = damaged(content, choose, [content[:4], content[:20], b"\0" * 9, b"\xff" * 4])
    name = "rows.gz"
    return Case({name: content}, name, _how(choose, schema, name))


def _packed(pack: Callable, text: bytes) -> bytes:
    return bytes(pack(text))


def run_text(case: Case) -> None:
    read_both(case)


def run_compressed(case: Case) -> None:
    read_both(case, may_differ=True)


# ---- Parquet


def make_parquet(choose: random.Random) -> Case:
    schema = dataclasses.replace(some_schema(choose), columns=None)
    names = list(schema.raw_columns)
    in_path = choose.choice([[], [], names[:1], names[-1:]])
    folder = "/".join(
        f"{name}={choose.choice(['1', 'a%2Fb', '', '__HIVE_DEFAULT_PARTITION__'])}"
        for name in in_path
    )
    rows = choose.choice([0, 1, 5, 40])
    columns = {}
    for name in names:
        if name not in in_path or choose.random() < 0.3:
            columns[name] = _some_column(choose, schema, name, rows)
    sink = io.BytesIO()
    table = pa.table(columns) if columns else pa.table({"u0": pa.nulls(rows, pa.int8())})
    how = {"compression": choose.choice(["none", "snappy", "zstd", "gzip"])}
    pq.write_table(table, sink, row_group_size=choose.choice([3, 1000]), **how)
    content = sink.getvalue()
    if choose.random() < 0.6:
        content = damaged(content, choose, [b"\0", b"\xff" * 4, b"PAR1"])
    name = "/".join(filter(None, ["lake", folder, "rows.parquet"]))
    return Case({name: content}, name, _how(choose, schema, "lake"))


def _some_column(choose: random.Random, schema: Schema, name: str, rows: int) -> pa.Array:
    """A column as text, as what it means, or of any type."""
    text = [some_value(choose, schema, name).replace("\0", "") for _ in range(rows)]
    words = pa.array([word if choose.random() < 0.95 else None for word in text], pa.string())
    if choose.random() < 0.6:
        return words
    if choose.random() < 0.3:
        return words.dictionary_encode()
    kind = choose.choice(ARROW_TYPES)
    try:
        whole = pa.array([choose.choice([0, 1, 1, 5, 100, None]) for _ in range(rows)])
        found = _typed(choose, kind, rows, whole)
        pq.write_table(pa.table({"x": found}), io.BytesIO())
        return found
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError):
        return words


ARROW_TYPES = (
    pa.int8(), pa.uint64(), pa.int64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(),
    pa.decimal128(9, 2), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.null(),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ms"),
    pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.duration("ms"), pa.list_(pa.int32()),
    pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.int64(), 2),
    pa.list_(pa.list_(pa.int8())), pa.list_(pa.dictionary(pa.int32(), pa.string())),
    pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.string_view(), pa.binary_view(),
    pa.list_(pa.float64()), pa.list_(pa.bool_()), pa.list_(pa.timestamp("ms")), pa.list_(pa.null()),
    pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int16(), pa.float64()),
    pa.list_view(pa.int32()), pa.decimal256(50, 3), pa.month_day_nano_interval(),
)  # fmt: skip


def _typed(choose: random.Random, kind: pa.DataType, rows: int, whole: pa.Array) -> pa.Array:
    if pa.types.is_nested(kind):
        return pa.array([_nested(choose, kind) for _ in range(rows)], kind)
    if pa.types.is_floating(kind):
        odd = [1.0, 0.0, 2.5, math.nan, math.inf, -0.0, 1e18, 1e300, -1e19, None]
        return pa.array([choose.choice(odd) for _ in range(rows)], pa.float64()).cast(
            kind, safe=False
        )
    if pa.types.is_dictionary(kind):
        return whole.cast(kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_integer(kind) and choose.random() < 0.3 and kind.bit_width == 64:
        ends = [
            (1 << 63) - 1,
            0,
            1,
            None,
            2**64 - 1 if pa.types.is_unsigned_integer(kind) else -(2**63),
        ]
        return pa.array([choose.choice(ends) for _ in range(rows)], kind)
    if pa.types.is_temporal(kind):
        wide = kind.bit_width == 64
        ends = [0, 1, -1, 1000, None] + (
            [2**62, -(2**63), 10**15] if wide else [2**31 - 1, -(2**31)]
        )
        ticks = pa.array(
            [choose.choice(ends) for _ in range(rows)], pa.int64() if wide else pa.int32()
        )
        return ticks.view(kind)
    if kind == pa.binary(3):
        return pa.array([choose.choice([b"abc", b"\xff\0x", None]) for _ in range(rows)], kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([choose.choice([b"\xff", b"", b"1", None]) for _ in range(rows)], kind)
    return (
        whole.cast(kind) if kind.id != pa.string_view().id else whole.cast(pa.string()).cast(kind)
    )


def _nested(choose: random.Random, kind: pa.DataType) -> Any:
    if choose.random() < 0.2:
        return None
    if pa.types.is_map(kind):
        return [("a", 1)]
    if pa.types.is_struct(kind):
        return {"a": 1}
    inner = kind.value_type
    size = 2 if pa.types.is_fixed_size_list(kind) else choose.randint(0, 3)
    if pa.types.is_nested(inner):
        return [_nested(choose, inner) for _ in range(size)]
    values: list[Any] = [None, "a", "", "x|y"]
    if pa.types.is_integer(inner) or pa.types.is_temporal(inner):
        values = [0, 1, None, 77]
    elif pa.types.is_floating(inner):
        values = [0.0, 1.0, 2.5, math.nan, None]
    elif pa.types.is_boolean(inner):
        values = [True, None]
    elif pa.types.is_null(inner):
        values = [None]
    return [choose.choice(values) for _ in range(size)]


# ---- prepared folders

PREPARED = Schema(
    features=(
        Dense("n0", transform="standard"),
        Sparse("s0", num_unknown=2, min_count=2),
        Sparse("s1", many=True),
        Sequence("s2", vocabulary="s0", num_unknown=2, min_count=2),
    ),
    label=("label", Label("other", column="n1", at_least=2)),
    weight="w",
    group="g",
    delimiter=",",
)


@cache
def raw_rows() -> bytes:
    choose = random.Random(0)
    lines = ["label,n0,n1,s0,s1,s2,w,g"]
    for row in range(60):
        word = f"word{choose.randrange(20)}" * choose.choice([1, 1, 3])
        many = "|".join(f"m{choose.randrange(9)}" for _ in range(choose.randrange(4)))
        lines.append(
            f"{row % 2},{choose.random():.3f},{row % 5},{word},{many},{word}|new{row},1,g{row % 7}"
        )
    return ("\n".join(lines) + "\n").encode()


@cache
def prepared_files() -> dict[str, bytes]:
    """A prepared folder of three parts with several shards."""
    with tempfile.TemporaryDirectory() as folder, small_shards():
        (Path(folder) / "raw.csv").write_bytes(raw_rows())
        out = Path(folder) / "enc"
        prepare(
            Path(folder) / "raw.csv", PREPARED, out, split="position:0.7,0.1,0.2", memory=256 << 20
        )
        return {f"enc/{path.name}": path.read_bytes() for path in sorted(out.iterdir())}


def make_stored(choose: random.Random) -> Case:
    files = {**prepared_files(), "raw.csv": raw_rows()}
    name = choose.choice([name for name in files if name.endswith((".shard", ".values"))])
    kind = choose.randrange(4)
    if kind == 0:
        files[name] = damaged(files[name], choose, [MAGIC, b"\0" * 64, b"\xff" * 8])
    elif kind == 1:
        header, data = opened(files[name])
        files[name] = closed(damaged_json(header, choose), data)
    elif kind == 2:
        header, data = opened(files[name])
        files[name] = _closed_text(as_json(header, choose), data)
    else:
        files[name] = _other_values(files[name], choose)
    return Case(files, name, {"threads": choose.randint(1, 2)})


def opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<I", content[12:16])
    return json.loads(content[20 : 20 + length]), content[_aligned(20 + length) :]


def closed(header: Any, data: bytes) -> bytes:
    return _closed_text(json.dumps(header).encode(), data)


def _closed_text(text: bytes, data: bytes) -> bytes:
    """The file with this header, rightly signed and padded, before the data."""
    front = MAGIC + struct.pack("<III", 1, len(text), zlib.crc32(text)) + text
    return front + b"\0" * (_aligned(len(front)) - len(front)) + data


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64


def _other_values(content: bytes, choose: random.Random) -> bytes:
    """Other numbers in one section, rightly signed: nothing but their meaning is wrong."""
    header, data = opened(content)
    section = choose.choice(header["sections"])
    size = math.prod(section["shape"]) * int(section["dtype"][2:])
    values = bytearray(data[section["offset"] : section["offset"] + size])
    width = int(section["dtype"][2:])
    for _ in range(choose.choice([1, 1, 3, 100])):
        if not size:
            break
        at = choose.randrange(size // width) * width
        number = choose.choice([0, 1, 255, 1 << 31, 1 << 62, (1 << 64) - 1, choose.getrandbits(64)])
        values[at : at + width] = number.to_bytes(8, "little")[:width]
    section["crc32"] = zlib.crc32(values)
    whole = bytearray(data)
    whole[section["offset"] : section["offset"] + size] = values
    return closed(header, bytes(whole))


def make_manifest(choose: random.Random) -> Case:
    files = {**prepared_files(), "raw.csv": raw_rows()}
    manifest = json.loads(files["enc/data.json"])
    files["enc/data.json"] = as_json(damaged_json(manifest, choose), choose)
    return Case(files, "enc/data.json", {"threads": 1})


def run_stored(case: Case) -> None:
    """Opens, checks, describes, loads, encodes and prepares with a folder; each step by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # damaged floats may be no numbers
        _run_stored(case)


def _run_stored(case: Case) -> None:
    threads = case.how["threads"]
    names: tuple[str, ...] = (Path(case.damaged).name, CHECK_SAYS)
    if case.damaged.endswith("data.json"):
        names = ("enc", "raw.csv", "schema")  # its schema may be another one that is legal
    kind, data = outcome(lambda: EncodedData.open("enc"), *names)
    if kind == "refused":
        return
    outcome(data.check, *names)
    outcome(lambda: describe(data), *names)
    for plain in (False, True):
        with core(plain):
            for part in data.parts.values():
                for shuffle in (False, True):
                    outcome(lambda part=part, how=shuffle: _load(part, how), *names)
            outcome(lambda: list(Encoder.open("enc", threads).encode("raw.csv")), *names)
            for how in ({"like": "enc"}, {"extend": "enc"}):
                with small_shards():
                    outcome(lambda how=how: _prepare_again(how, threads), *names)
                _check_clean()


CHECK_SAYS = "EncodedData.check() says which"  # what is said of offsets that a loader stumbles over


def _load(part: Any, shuffle: bool) -> None:
    for batch in Loader(part, 7, shuffle=shuffle).batches(0):
        batch.ids.sum()


def _prepare_again(how: dict[str, str], threads: int) -> None:
    prepare("raw.csv", None, "out", **how, threads=threads, memory=256 << 20)  # type: ignore[arg-type]


# ---- preparations that were interrupted


class Interrupted(BaseException):
    """As Ctrl-C."""


@cache
def interrupted_files(stage: str) -> dict[str, bytes]:
    """What a preparation leaves that is stopped while it counts or encodes."""
    seen = []

    def stop(now: str, done: int, total: int) -> None:
        seen.append(now)
        if seen.count(stage) == 5:
            raise Interrupted

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_files({"raw.csv": raw_rows()})
            _prepare_slowly(stop)
        except Interrupted:
            return {f"{path}": path.read_bytes() for path in sorted(Path("out.part").iterdir())}
        finally:
            os.chdir(before)
    raise AssertionError("was not interrupted")


def _prepare_slowly(progress: Callable | None = None) -> EncodedData:
    """Notes its place after every chunk, of which there are many."""
    slowly = mock.patch.object(sys.modules[prepare.__module__], "SAVE_SECONDS", -1.0)
    cut = mock.patch.object(reading, "CHUNK_BYTES", 300)
    with slowly, cut, small_shards():
        return prepare(
            "raw.csv", PREPARED, "out", split="stratified:0.6,0.2,0.2", memory=256 << 20, threads=1,
            progress=progress,
        )  # fmt: skip


def make_state(choose: random.Random) -> Case:
    files = {**interrupted_files(choose.choice(["count", "encode"])), "raw.csv": raw_rows()}
    name = choose.choice(
        [name for name in files if name.startswith("out.part/") and "lock" not in name]
    )
    if choose.random() < 0.5:
        name = "out.part/state.json"
    if name.endswith(".json") and choose.random() < 0.9:
        files[name] = as_json(damaged_json(json.loads(files[name]), choose), choose)
    elif choose.random() < 0.1:
        del files[name]
    elif name.endswith((".shard", ".values")) and choose.random() < 0.5:
        files[name] = _other_values(files[name], choose)
    else:
        files[name] = damaged(files[name], choose, [b"\0" * 8, b"\xff" * 8])
    return Case(files, name)


def run_state(case: Case) -> None:
    outcome(_prepare_slowly, "out.part", "raw.csv")


# ---- schema files


def make_schema(choose: random.Random) -> Case:
    schema = json.loads(choose.choice([PREPARED, some_schema(choose)]).to_json())
    text = as_json(damaged_json(schema, choose, 3), choose)
    return Case({"schema.json": text, "raw.csv": raw_rows()}, "schema.json")


def run_schema(case: Case) -> None:
    kind, schema = outcome(lambda: schemas.load("schema.json"), "schema.json")
    if kind == "worked":
        outcome(lambda: schema.to_json(), "schema.json")
        names = ("raw.csv", "schema", "feature", "label", "format", "time")
        outcome(lambda: rows_of(schema, "raw.csv", 1, True), *names)


TARGETS = {
    "text": Target(make_text, run_text),
    "compressed": Target(make_compressed, run_compressed),
    "parquet": Target(make_parquet, run_compressed),
    "stored": Target(make_stored, run_stored),
    "manifest": Target(make_manifest, run_stored),
    "state": Target(make_state, run_state),
    "schema": Target(make_schema, run_schema),
}


# ---- the command


@dataclass(frozen=True)
class Finding:
    target: str
    seed: int
    why: str


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seconds", type=float, default=60)
    asked.add_argument("--target", choices=TARGETS, action="append")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--go-on", action="store_true", help="names every new finding, to the end")
    given = asked.parse_args()
    end, seeds = time.monotonic() + given.seconds, given.seed
    kinds: set[str] = set()
    while time.monotonic() < end:
        for target in given.target or TARGETS:
            finding = run_batch(target, range(seeds, seeds + BATCH))
            while finding is not None and given.go_on:
                if (kind := f"{target} {finding.why[:70]}") not in kinds:
                    kinds.add(kind)
                    print(f"{target} {finding.seed}: {finding.why}", flush=True)
                finding = run_batch(target, range(finding.seed + 1, seeds + BATCH))
            if finding is not None:
                keep(finding)
                return 1
        seeds += BATCH
        print(f"{seeds - given.seed:,} cases of each target", flush=True)
    return 1 if kinds else 0


def run_batch(target: str, seeds: range) -> Finding | None:
    """Runs the cases of some seeds in a process of their own; the first finding, if any."""
    return run_cases(target, ((seed, partial_case(target, seed)) for seed in seeds), len(seeds))


def partial_case(target: str, seed: int) -> Callable[[], Case]:
    return lambda: case_of(target, seed)


def run_cases(
    target: str, cases: Iterator[tuple[int, Callable[[], Case]]], num: int
) -> Finding | None:
    """The first finding; a process that dies or says nothing for long is one too."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    process = fork.Process(target=_work, args=(target, cases, there))
    process.start()
    there.close()
    seed, found = -1, None
    try:
        while here.poll(CASE_SECONDS * 3):
            kind, what = here.recv()
            if kind == "begins":
                seed = what
            elif kind == "broken":
                found = Finding(target, seed, what)
        else:
            found = Finding(target, seed, "hangs, and no signal gets through")
    except EOFError:
        process.join()
        if process.exitcode != 0:
            found = Finding(target, seed, f"the process died with {process.exitcode}")
    process.kill()
    process.join()
    return found


def _work(target: str, cases: Iterator[tuple[int, Callable[[], Case]]], to: Any) -> None:
    logging.getLogger("hotrows").setLevel(logging.ERROR)
    warnings.simplefilter("error")
    (pages,) = Path("/proc/self/statm").read_text().split()[:1]
    most = int(pages) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        for seed, make in cases:
            to.send(("begins", seed))
            try:
                run_case(target, make(), Path(folder) / "case")
            except Broken as broken:
                to.send(("broken", str(broken)))
                break


def keep(finding: Finding) -> None:
    """Makes the input of a finding smaller, and writes it beside its seed."""
    case = smallest(finding, case_of(finding.target, finding.seed))
    folder = Path(tempfile.gettempdir()) / f"fuzz-{finding.target}-{finding.seed}"
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "how.json").write_text(json.dumps({**case.how, "damaged": case.damaged}, indent=1))
    print(f"{finding.target}, seed {finding.seed}: {finding.why}")
    size = len(case.files.get(case.damaged, b""))
    print(f"the smallest input found has {size:,} bytes and is in {folder}")


def smallest(finding: Finding, case: Case, seconds: float = 60.0) -> Case:
    """The case with as much left out of its damaged file, by halves, as still shows the same."""
    content = case.files.get(case.damaged, b"")
    end = time.monotonic() + seconds
    step = len(content) // 2
    while step and time.monotonic() < end:
        at = 0
        while at < len(content) and time.monotonic() < end:
            fewer = content[:at] + content[at + step :]
            smaller = dataclasses.replace(case, files={**case.files, case.damaged: fewer})
            found = run_cases(finding.target, iter([(0, lambda of=smaller: of)]), 1)  # type: ignore[misc]
            if found is not None and found.why[:30] == finding.why[:30]:
                content, case = fewer, smaller
            else:
                at += step
        step //= 2
    return case


if __name__ == "__main__":
    sys.exit(main())
