"""Delta: what changed of a served model from one version to the next, in one file.

    FOLDER/delta-0000000012.safetensors      from version 11 to version 12

    "rows.TABLE.ids" [n] int64, ascending    which rows were trained
    "rows.TABLE.rows" [n, _]                 these rows as the bundle stores them: see `table_rows`
    "dense.NAME"                             the parameters and statistics of the dense part, all of them
    "keys.VOCABULARY.keys", ".ids" [n]       keys of dynamic features that have got rows
    "gone.VOCABULARY.keys" [n]               keys that have lost theirs
    "histories.NAME" [n]                     events that users have got: see `UserHistories.since`
    "calibration" [T, 2] float64             scale and shift of each label, in the order of the outputs

The file is one of safetensors, whose metadata say, signed: which chain of versions it is of, its number,
the step and the moment of training, its checksum, and that of the version before. So a delta fits on one
version alone, and what was damaged is refused before it is applied.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.runtime import tensor_file
from hotrows.runtime.atomic_files import replaced
from hotrows.runtime.json_file import JsonFile, build, parse
from hotrows.runtime.tensor_file import Stored

VERSION_FILE = JsonFile("bring it back from a copy, or wait for the next base")
_DTYPES = {"U8": "u1", "F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8", "BOOL": "?", "F64": "<f8"}
_NAMES = {np.dtype(dtype).str: name for name, dtype in _DTYPES.items()}
_MOST_HEADER = 64 << 20  # bytes


@dataclass(frozen=True)
class VersionHead:
    """The identity of a version of a model.

    chain: a random name that all versions of one run's model have; number: 1, 2, ..; step: batches
    trained; time: of training when it had this state, in seconds since 1970. events: of a stream, that
    these batches had; else 0.
    checksum: of the delta that leads to it, of the first version that of its `export.json`;
    previous_checksum: the checksum of the version before, of the first one 0.
    """

    chain: str
    number: int
    step: int
    time: float
    events: int = 0
    checksum: int = 0
    previous_checksum: int = 0


@dataclass(frozen=True)
class Delta:
    """The content of a delta.

    rows: by table, ids [n] ascending and rows [n, _] as stored; dense: by name, the values of the
    dense part; keys: by vocabulary, keys [n] and their ids; gone: by vocabulary, keys without rows now;
    histories: columns of events; calibration: [T, 2].
    """

    head: VersionHead
    rows: Mapping[str, tuple[np.ndarray, np.ndarray]]
    dense: Mapping[str, np.ndarray]
    calibration: np.ndarray
    keys: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    gone: Mapping[str, np.ndarray] = field(default_factory=dict)
    histories: Mapping[str, np.ndarray] = field(default_factory=dict)


def write_delta(path: Path, delta: Delta) -> VersionHead:
    """Writes a delta, durably and whole; returns its head with the checksum."""
    tensors = dict(_tensors(delta))
    entries = tensor_file.entries({n: Stored(_NAMES[t.dtype.str], t.shape) for n, t in tensors.items()})
    parts = [memoryview(tensor.reshape(-1).view(np.uint8).data) for tensor in tensors.values()]
    head = dataclasses.replace(delta.head, checksum=_checksum(entries, parts))
    signed = VERSION_FILE.sign(dataclasses.asdict(head))
    metadata = {"__metadata__": {"version": json.dumps(signed)}}
    with replaced(path) as part, open(part, "wb") as file:
        file.write(tensor_file.header({**metadata, **entries}))
        for content in parts:
            file.write(content)
    return head


def read_head(path: Path) -> VersionHead:
    """The head of a delta, of which nothing else is read."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return _header(path, file.read(min(size, _MOST_HEADER)))[0]


def read_delta(path: Path) -> Delta:
    """A delta, verified; ValueError says what is wrong with it."""
    content = memoryview(path.read_bytes())
    begin = 8 + min(int.from_bytes(content[:8], "little"), _MOST_HEADER)
    head, entries = _header(path, bytes(content[8:begin]))
    with VERSION_FILE.naming(path):
        tensors = dict(_arrays(entries, content[begin:]))
        if _checksum(entries, [content[begin:]]) != head.checksum:
            raise ValueError("its checksum is wrong")
        return _delta(head, tensors)


def _tensors(delta: Delta) -> Iterator[tuple[str, np.ndarray]]:
    for table, (ids, rows) in delta.rows.items():
        yield f"rows.{table}.ids", np.ascontiguousarray(ids, "<i8")
        yield f"rows.{table}.rows", np.ascontiguousarray(rows)
    for name, values in delta.dense.items():
        yield f"dense.{name}", np.ascontiguousarray(values).reshape(values.shape)
    for vocabulary, (keys, ids) in delta.keys.items():
        yield f"keys.{vocabulary}.keys", np.ascontiguousarray(keys, "<i8")
        yield f"keys.{vocabulary}.ids", np.ascontiguousarray(ids, "<i8")
    for vocabulary, keys in delta.gone.items():
        yield f"gone.{vocabulary}.keys", np.ascontiguousarray(keys, "<i8")
    for name, values in delta.histories.items():
        yield f"histories.{name}", np.ascontiguousarray(values, "<i8")
    yield "calibration", np.ascontiguousarray(delta.calibration, "<f8")


def _delta(head: VersionHead, tensors: dict[str, np.ndarray]) -> Delta:
    def pairs(kind: str, first: str, second: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        begin, end = f"{kind}.", f".{first}"
        names = [n[len(begin) : -len(end)] for n in tensors if n.startswith(begin) and n.endswith(end)]
        return {n: (tensors[begin + n + end], tensors[f"{begin}{n}.{second}"]) for n in names}

    try:
        delta = Delta(
            head,
            rows=pairs("rows", "ids", "rows"),
            dense={n[len("dense.") :]: t for n, t in tensors.items() if n.startswith("dense.")},
            keys=pairs("keys", "keys", "ids"),
            gone={n[5:-5]: t for n, t in tensors.items() if n.startswith("gone.")},
            histories={n[10:]: t for n, t in tensors.items() if n.startswith("histories.")},
            calibration=tensors["calibration"],
        )
    except KeyError as error:
        raise ValueError(f"it has no tensor {error}") from None
    for table, (ids, rows) in delta.rows.items():
        rises = ids.ndim == 1 and ids.dtype.kind == "i" and (np.diff(ids) > 0).all()
        if not rises or rows.ndim != 2 or len(rows) != len(ids) or (len(ids) and ids[0] < 0):
            raise ValueError(f"its ids and rows of table {table!r} do not fit one another")
    scales = delta.calibration
    if scales.shape[1:] != (2,) or not np.isfinite(scales).all():
        raise ValueError("its calibration is not two finite numbers for each label")
    return delta


def _header(path: Path, text: bytes) -> tuple[VersionHead, dict[str, Any]]:
    """The head, and the entries of the tensors, checked in so far as they can be without these."""
    with VERSION_FILE.naming(path):
        fields = parse(text)
        metadata = fields.pop("__metadata__", None) if isinstance(fields, dict) else None
        signed = metadata.get("version") if isinstance(metadata, dict) else None
        if not isinstance(signed, str):
            raise ValueError("expected the metadata of a delta")
    head = VERSION_FILE.check(path, signed.encode())
    with VERSION_FILE.naming(path):
        return build(VersionHead, head), fields


def _arrays(entries: Mapping[str, Any], content: memoryview) -> Iterator[tuple[str, np.ndarray]]:
    done = 0
    for name, entry in entries.items():
        try:
            dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
            begin, end = entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"tensor {name!r} is described in another way") from None
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise ValueError(f"tensor {name!r} has an impossible shape")
        if begin != done or end - begin != dtype.itemsize * math.prod(shape) or end > len(content):
            raise ValueError(f"tensor {name!r} is not where it should be")
        yield name, np.frombuffer(content[begin:end], dtype).reshape(shape)
        done = end
    if done != len(content):
        raise ValueError(f"its tensors are {done:,} of {len(content):,} bytes")


def _checksum(entries: Mapping[str, Any], parts: list[memoryview]) -> int:
    checksum = zlib.crc32(json.dumps(entries, sort_keys=True).encode())
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
