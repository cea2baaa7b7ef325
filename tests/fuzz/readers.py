"""Raw files, damaged: text, compressed text and Parquet, read by both cores."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import json
import lzma
import math
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from hotrows.data import prepare
from hotrows.data.columns.stream import stream
from hotrows.data.raw import cells as arrow_reader
from hotrows.data.raw import chunks
from hotrows.data.raw.inputs import inputs_of
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.values import RawIds
from hotrows.data.rows import RawRows
from hotrows.data.stored.shards import ShardWriter
from hotrows.schema import Schema
from tests.fuzz.case import Broken, Case, core, outcome
from tests.fuzz.damage import TOKENS, damaged
from tests.fuzz.rows import NUMBERS, some_schema, some_text, some_value


def rows_of(schema: Schema, path: str, threads: int, for_training: bool) -> list:
    """All that is read of a file, as plain values."""
    how = Reading(schema, threads, for_training)
    return [_plain(columns) for _, columns in stream(inputs_of(path), how)]


def _plain(raw: RawRows) -> dict[str, Any]:
    values = {name: array for name, array in raw.values.items() if name not in ("clocks", "vectors")}
    return {n: _listed(array) if isinstance(array, RawIds) else array for n, array in values.items()}


def _listed(ids: RawIds) -> list:
    words = [ids.value(n) for n in range(len(ids))]
    if ids.offsets is None:
        return words
    return [words[a:b] for a, b in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)]


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
        raise Broken(f"{what} differ in {differ}: {_brief(a[1], differ)} and {_brief(b[1], differ)}")
    raise Broken(f"{what} differ: {str(a)[:600]} and {str(b)[:600]}")


def _brief(arrays: dict[str, Any], names: list[str]) -> str:
    return str(arrays.get(names[0]))[:300]


def read_both(case: Case, may_differ: bool = False) -> None:
    """Reads natively and in plain Python, cut in other places; both must come to the same."""
    how = case.how
    schema: Schema = how["schema"]
    outcomes = []
    for plain in (False, True):
        size = how["chunk_bytes"][0 if may_differ else plain]

        def read() -> dict[str, Any]:
            pieces = rows_of(schema, how["path"], how["threads"], how["for_training"])
            return _joined(pieces)

        with (
            core(plain),
            mock.patch.object(chunks, "CHUNK_BYTES", size),
            mock.patch.object(arrow_reader, "ROWS_PER_CHUNK", max(1, size)),
        ):
            outcomes.append(outcome(read, Path(case.damaged).name))
    _same(outcomes[0], outcomes[1], "native core and plain Python")
    if how["prepare"] is not None:
        prepare_both(case, schema)


def prepare_both(case: Case, schema: Schema) -> None:
    outcomes = []
    for plain in (False, True):

        def run() -> dict[str, bytes]:
            prepare(
                case.how["path"], schema, "out", split=case.how["prepare"], seed=3,
                threads=case.how["threads"], memory=256 << 20,
            )  # fmt: skip
            return {path.name: path.read_bytes() for path in sorted(Path("out").iterdir())}

        with core(plain), small_shards():
            outcomes.append(outcome(run, Path(case.damaged).name))
        check_clean()
    _same(outcomes[0], outcomes[1], "what the native core and plain Python prepare")


def check_clean() -> None:
    if Path("out.part").exists():
        raise Broken("out.part was left")
    shutil.rmtree("out", ignore_errors=True)


@contextmanager
def small_shards() -> Iterator[None]:
    with mock.patch.object(ShardWriter.__init__, "__defaults__", (16,)):
        yield


def _how(choose: random.Random, schema: Schema, path: str) -> dict[str, Any]:
    size = [10, 60, 200, 1000, 1 << 20]
    splits = ["fraction:1,0,0", "position:0.5", "stratified:0.5,0.2,0.3"]
    splits += ["time:0.5,0.2,0.3"] if schema.time else []
    return {
        "schema": schema,
        "path": path,
        "threads": choose.choice([1] * 8 + [2, 3]),
        "ahead": choose.random() < 0.1,
        "chunk_bytes": [choose.choice(size), choose.choice(size)],
        "for_training": choose.random() < 0.8,
        "prepare": choose.choice(splits) if choose.random() < 0.01 else None,
    }


def make_text(choose: random.Random) -> Case:
    schema = some_schema(choose)
    text = some_text(choose, schema)
    if choose.random() < 0.7:
        tokens = [*TOKENS, schema.delimiter.encode()]
        text = damaged(text, choose, tokens + [word.encode() for word in NUMBERS])
    return Case({"rows.raw": text}, "rows.raw", _how(choose, schema, "rows.raw"))


def _zipped(text: bytes) -> bytes:
    with zipfile.ZipFile(sink := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("rows.csv"), text)
    return sink.getvalue()


_PACKS: list[Callable[[bytes], bytes]] = [
    lambda text: gzip.compress(text, mtime=0), pa.Codec("zstd").compress, pa.Codec("lz4").compress,
    bz2.compress, lzma.compress, _zipped,
]  # fmt: skip


def make_compressed(choose: random.Random) -> Case:
    schema = some_schema(choose)
    text = some_text(choose, schema)
    pack = choose.choice(_PACKS)
    content = b"".join(_packed(pack, part) for part in choose.choice([[text], [text[:9], text[9:]]]))
    content = damaged(content, choose, [content[:4], content[:20], b"\0" * 9, b"\xff" * 4])
    name = "rows.gz"
    return Case({name: content}, name, _how(choose, schema, name))


def _packed(pack: Callable, text: bytes) -> bytes:
    return bytes(pack(text))


def run_text(case: Case) -> None:
    read_both(case)


def run_compressed(case: Case) -> None:
    read_both(case, may_differ=True)


def make_parquet(choose: random.Random) -> Case:
    return _make_typed(choose, "rows.parquet", _as_parquet, [b"PAR1"])


def make_arrow(choose: random.Random) -> Case:
    writes = choose.choice([_as_ipc_file, _as_ipc_stream])
    return _make_typed(choose, "rows.arrow", writes, [b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"])


def make_orc(choose: random.Random) -> Case:
    return _make_typed(choose, "rows.orc", _as_orc, [b"ORC"])


def make_json_lines(choose: random.Random) -> Case:
    schema = dataclasses.replace(some_schema(choose), columns=None)
    names = [*schema.raw_columns, *["u0"][: choose.randint(0, 1)]]
    lines = []
    for _ in range(choose.choice([1, 3, 5, 40])):
        row = {name: _json_value(choose, schema, name) for name in names if choose.random() < 0.95}
        lines.append(json.dumps(row, ensure_ascii=choose.random() < 0.5))
    text = "\n".join(lines).encode("utf-8", "replace") + choose.choice([b"\n", b"\n", b"", b"\n\n"])
    if choose.random() < 0.7:
        text = damaged(
            text, choose, [*TOKENS, b"{", b"}", b"[", b"]", b":", b"null", b"[" * 3000, b"1e999"]
        )
    return Case({"rows.jsonl": text}, "rows.jsonl", _how(choose, schema, "rows.jsonl"))


def _json_value(choose: random.Random, schema: Schema, name: str) -> Any:
    """A value of a column as text, as the number that it may be, or of any type."""
    text = some_value(choose, schema, name)
    kind = choose.randrange(20)
    if kind < 8:
        with suppress(ValueError):
            number = json.loads(text)
            return number if isinstance(number, int | float) else text
    odd = [None, True, 0.0, -0.0, 1 << 62, 1 << 70, 1e300, [1, None], ["a"], [[1]], {"a": 1}, [], {}]
    return choose.choice(odd) if kind == 19 and choose.random() < 0.2 else text


def _as_parquet(choose: random.Random, table: pa.Table, sink: io.BytesIO) -> None:
    how: dict[str, Any] = {"compression": choose.choice(["none", "snappy", "zstd", "gzip"])}
    how["use_deprecated_int96_timestamps"] = choose.random() < 0.2
    pq.write_table(table, sink, row_group_size=choose.choice([3, 1000, 1000]), **how)


def _as_ipc_file(choose: random.Random, table: pa.Table, sink: io.BytesIO) -> None:
    _write_ipc(choose, table, sink, pa.ipc.new_file)


def _as_ipc_stream(choose: random.Random, table: pa.Table, sink: io.BytesIO) -> None:
    _write_ipc(choose, table, sink, pa.ipc.new_stream)


def _write_ipc(
    choose: random.Random, table: pa.Table, sink: io.BytesIO, opened: Callable[..., Any]
) -> None:
    options = pa.ipc.IpcWriteOptions(
        compression=choose.choice([None, None, "zstd", "lz4"]), unify_dictionaries=True
    )
    with opened(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=choose.choice([3, 1000]))


def _as_orc(choose: random.Random, table: pa.Table, sink: io.BytesIO) -> None:
    readable = [name for name in table.column_names if _is_of_orc(table.select([name]))]
    how = {"compression": choose.choice(["uncompressed", "zstd", "zlib", "snappy"])}
    rows = table.select(readable) if readable else pa.table({"u0": pa.nulls(table.num_rows, pa.int8())})
    orc.write_table(rows, sink, **how)


def _is_of_orc(table: pa.Table) -> bool:
    try:
        orc.write_table(table, io.BytesIO())
    except (pa.ArrowException, NotImplementedError):
        return False
    return True


def _make_typed(
    choose: random.Random,
    file: str,
    write: Callable[[random.Random, pa.Table, io.BytesIO], None],
    tokens: list[bytes],
) -> Case:
    schema = dataclasses.replace(some_schema(choose), columns=None)
    names = list(schema.raw_columns)
    in_path = choose.choice([[], [], names[:1], names[-1:]])
    folder = "/".join(
        f"{name}={choose.choice(['1', 'a%2Fb', '', '__HIVE_DEFAULT_PARTITION__'])}" for name in in_path
    )
    rows = choose.choice([0, 1, 5, 5, 20])
    columns = {}
    for name in names:
        if name not in in_path or choose.random() < 0.3:
            columns[name] = _some_column(choose, schema, name, rows)
    sink = io.BytesIO()
    table = pa.table(columns) if columns else pa.table({"u0": pa.nulls(rows, pa.int8())})
    write(choose, table, sink)
    content = sink.getvalue()
    if choose.random() < 0.6:
        content = damaged(content, choose, [b"\0", b"\xff" * 4, *tokens])
    name = "/".join(filter(None, ["lake", folder, file]))
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
        numbers = pa.array([choose.choice([0, 1, 1, 5, 100, None]) for _ in range(rows)])
        column = _typed(choose, kind, rows, numbers)
        pq.write_table(pa.table({"x": column}), io.BytesIO())
        return column
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError):
        return words


ARROW_TYPES = (
    pa.int8(), pa.uint64(), pa.int64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(),
    pa.decimal128(9, 2), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.null(),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ms"),
    pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin"),
    pa.timestamp("ns"), pa.duration("ms"), pa.list_(pa.int32()),
    pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.int64(), 2),
    pa.list_(pa.list_(pa.int8())), pa.list_(pa.dictionary(pa.int32(), pa.string())),
    pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.string_view(), pa.binary_view(),
    pa.list_(pa.float64()), pa.list_(pa.bool_()), pa.list_(pa.timestamp("ms")), pa.list_(pa.null()),
    pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int16(), pa.float64()),
    pa.list_view(pa.int32()), pa.decimal256(50, 3), pa.month_day_nano_interval(),
)  # fmt: skip


def _typed(choose: random.Random, kind: pa.DataType, rows: int, numbers: pa.Array) -> pa.Array:
    if pa.types.is_nested(kind):
        return pa.array([_nested(choose, kind) for _ in range(rows)], kind)
    if pa.types.is_floating(kind):
        odd = [1.0, 0.0, 2.5, math.nan, math.inf, -0.0, 1e18, 1e300, -1e19, None]
        return pa.array([choose.choice(odd) for _ in range(rows)], pa.float64()).cast(kind, safe=False)
    if pa.types.is_dictionary(kind):
        return numbers.cast(kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_integer(kind) and choose.random() < 0.3 and kind.bit_width == 64:
        ends = [(1 << 63) - 1, 0, 1, None, 2**64 - 1 if pa.types.is_unsigned_integer(kind) else -(2**63)]
        return pa.array([choose.choice(ends) for _ in range(rows)], kind)
    if pa.types.is_temporal(kind):
        wide = kind.bit_width == 64
        ends = [0, 1, -1, 1000, None] + ([2**62, -(2**63), 10**15] if wide else [2**31 - 1, -(2**31)])
        ticks = pa.array([choose.choice(ends) for _ in range(rows)], pa.int64() if wide else pa.int32())
        return ticks.view(kind)
    if kind == pa.binary(3):
        return pa.array([choose.choice([b"abc", b"\xff\0x", None]) for _ in range(rows)], kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([choose.choice([b"\xff", b"", b"1", None]) for _ in range(rows)], kind)
    if kind == pa.string_view():  # a cast makes views that crash pyarrow 22 when it compresses
        return pa.array(numbers.cast(pa.string()).to_pylist(), kind)
    return numbers.cast(kind)


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
