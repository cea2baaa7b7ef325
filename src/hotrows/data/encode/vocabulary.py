"""Vocabularies: the values of id columns, counted, ranked, stored, and turned into ids.

`Counts` counts the training part, in memory that does not grow with it, and writes a file per
vocabulary. `Vocabularies` maps such files and looks values up in them, in memory where they fit:
csrc/index.h draws the index that finds them. Opening maps the file and, unless it is to be checked,
reads none of it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hotrows.data.raw.values import RawIds
from hotrows.data.stored.sections import check_once, open_sections, write_sections
from hotrows.runtime import native
from hotrows.runtime.atomic_files import replaced, sync
from hotrows.runtime.native import call

_IN_MEMORY = 1 << 30  # vocabularies of at most this many bytes are copied into memory
_DAMAGED, _TOO_LONG, _NO_MEMORY = -100000, -100001, -12
_Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # index, ends and text of a vocabulary
# Temporary files of the columns of a vocabulary, which the core writes.
_WRITTEN = {"counts": np.int64, "ends": np.int64, "text": np.uint8, "index": np.uint64}
_SPILLED = re.compile(r"run-\d{5}-\d+|write-\d{5}\.[a-z]+")


@dataclass(frozen=True)
class Values:
    """The values of a vocabulary by falling count, equal counts by their bytes.

    counts: [V] int64; ends: [V] int64, where each value ends in `text`; text: uint8.
    num_distinct: number of distinct values seen, those below min_count too.
    index: [S, 2] uint64, which finds values; None where data was written with ids.
    """

    counts: np.ndarray
    ends: np.ndarray
    text: np.ndarray
    num_distinct: int
    index: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.counts)

    def value(self, rank: int) -> bytes:
        start = int(self.ends[rank - 1]) if rank else 0
        return self.text[start : int(self.ends[rank])].tobytes()


def open_values(path: Path, header_crc32: int | None = None, checked: bool = False) -> Values:
    """Maps the vocabulary of a file.

    header_crc32: the checksum that its header must have; None: any. checked: compare every byte with
    its checksum.
    """
    sections = open_sections(path, header_crc32)
    if checked:
        check_once(path)
    names = {section["name"] for section in sections.header["sections"]}
    values = Values(
        counts=sections["counts"],
        ends=sections["ends"],
        text=sections["text"],
        num_distinct=sections.header.get("num_distinct", len(sections["counts"])),
        index=sections["index"] if "index" in names else None,
    )
    if not _is_legal(values):
        raise ValueError(f"{path}: the sections make no vocabulary; prepare the data again")
    return values


def write_values(path: Path, name: str, values: Values) -> None:
    """Writes a vocabulary, complete or not at all."""
    size = {"values": len(values), "num_distinct": values.num_distinct}
    arrays = {"counts": values.counts, "ends": values.ends, "text": values.text}
    if values.index is not None:
        arrays["index"] = values.index
    with replaced(path) as part:
        write_sections(part, {"kind": "vocabulary", "name": name, **size}, arrays)


class Counts:
    """Counts the values of the training part in bounded memory; feature f reads vocabulary owners[f].

    When the tables are full, the largest are written to run files in `folder`. A vocabulary's runs are
    removed once it is written; runs that no state names, when the next counts begin in the folder.
    After a failure (a full disk) counting can only be resumed from a state.

    folder: for spilled counts; memory: bytes that all hash tables may take, also while they grow;
    state: of counts that were begun in this folder, to resume.
    """

    def __init__(
        self,
        owners: Sequence[int],
        folder: Path,
        memory: int,
        threads: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._owners = np.array(owners, np.int64)
        self._num_vocabularies = max(owners, default=-1) + 1
        self._folder, self._memory, self._threads = folder, memory, threads
        self._resumed = state is not None
        self._settling, self._settled = Lock(), False
        self._core = native.Object("counts", self._num_vocabularies, memory, os.fsencode(folder))
        # Open the runs that the state names, and remove other files of earlier counts.
        known: dict[str, Any] = state or {"runs": [], "num_runs": 0}
        named = {run for names in known["runs"] for run in names}
        for path in list(folder.iterdir()):
            if _SPILLED.fullmatch(path.name) and path.name not in named:
                path.unlink()
        for v, names in enumerate(known["runs"]):
            numbers = np.array([int(run.rsplit("-", 1)[1]) for run in names], np.int64)
            self._core.call("resume", v, numbers, len(names), known["num_runs"])

    def add(self, columns: Sequence[RawIds], times: np.ndarray) -> None:
        """Counts the values of each row times[row] times, [rows] bool or integers; all of a list."""
        packed = _Packed(columns, self._owners)
        times = np.ascontiguousarray(times, np.int64)
        self._call("add", *packed.arguments, times, len(times), self._threads)

    def spill(self) -> None:
        """Writes all counts to run files, and frees the memory."""
        self._call("spill", self._threads)

    def state(self) -> dict[str, Any]:
        """The state to resume from, of runs that are durable; call `spill` before."""
        in_use, _, num_runs = self._sizes()
        if in_use:
            raise RuntimeError("state() comes after spill()")
        runs = [self.runs(v) for v in range(self._num_vocabularies)]
        for run in itertools.chain(*runs):
            if run.exists():  # those of vocabularies that are written are deleted
                sync(run)
        names = [[run.name for run in of_one] for of_one in runs]
        return {"runs": names, "num_runs": num_runs}

    def write(self, v: int, path: Path, name: str, min_count: int, known: Values | None = None) -> int:
        """Writes vocabulary v to `path`; returns how many distinct values were seen.

        Its values are those seen at least min_count times, by falling count, equal ones by their
        bytes. Values of `known` come first, in their order, whatever their count. Several threads
        may write different vocabularies at once. After resuming, a file that exists was finished
        before, from equal counts, and is left unchanged.
        """
        if self._resumed and path.exists():
            return open_values(path).num_distinct
        self._settle()
        for run in self.runs(v) if self._resumed else ():
            if not run.exists():
                raise _failure(_DAMAGED, str(run), self._memory)
        raw = [self._folder / f"write-{v:05d}.{part}" for part in _WRITTEN]
        try:
            results = np.zeros(2, np.int64)
            first = _Stored([] if known is None else [_arrays_of(known)], [0])
            self._call("write", v, min_count, first.rows, self._threads, results)
            counts, ends, text, index = map(_mapped, raw, _WRITTEN.values())
            num_distinct = int(results[1])
            write_values(path, name, Values(counts, ends, text, num_distinct, index.reshape(-1, 2)))
        finally:
            for part in raw:
                part.unlink(missing_ok=True)
        for run in self.runs(v):
            run.unlink(missing_ok=True)
        return num_distinct

    @property
    def peak(self) -> int:
        """The largest number of bytes that the tables have used."""
        return self._sizes()[1]

    def _settle(self) -> None:
        """Spills all vocabularies if one was spilled, before the first is written.

        This frees the memory of the tables for sorting.
        """
        with self._settling:
            if not self._settled and self._sizes()[2] > 0:
                self.spill()
            self._settled = True

    def runs(self, v: int) -> list[Path]:
        """The run files of vocabulary v so far."""
        numbers = np.zeros(self._core.call("runs", v, None, 0), np.int64)
        self._core.call("runs", v, numbers, len(numbers))
        return [self._folder / f"run-{v:05d}-{number}" for number in numbers.tolist()]

    def _sizes(self) -> tuple[int, int, int]:
        """Bytes that the tables use, the largest number so far, and the number of runs written."""
        sizes = np.zeros(3, np.int64)
        self._core.call("sizes", sizes)
        return int(sizes[0]), int(sizes[1]), int(sizes[2])

    def _call(self, name: str, *arguments: Any) -> None:
        problem = np.zeros(4096, np.uint8)
        code = self._core.call(name, *arguments, problem)
        if code != 0:
            raise _failure(code, os.fsdecode(problem.tobytes().split(b"\0", 1)[0]), self._memory)


class Vocabularies:
    """Turns values into ids by stored vocabularies; feature f reads values[owners[f]].

    memory: bytes up to which they are copied into memory (default: 1 GiB).
    """

    def __init__(
        self,
        values: Sequence[Values],
        owners: Sequence[int],
        num_unknown: Sequence[int],
        threads: int,
        memory: int | None = None,
    ) -> None:
        self._owners = np.array(owners, np.int64)
        self._threads = threads
        self._stored = _Stored([_arrays_of(vocabulary) for vocabulary in values], num_unknown)
        self._in_files = self._stored.num_bytes > (_IN_MEMORY if memory is None else memory)
        if not self._in_files:
            self._stored = self._stored.in_memory()
        else:
            self._stored.read_at_random()

    def encode(self, columns: Sequence[RawIds]) -> list[np.ndarray]:
        """Returns the ids of each column's values, int64: 1 for a missing value; 2 + num_unknown +
        rank for one of the vocabulary; else 2 + hash % num_unknown, or -1 if num_unknown is 0."""
        packed = _Packed(columns, self._owners)
        all_ids = np.empty(sum(map(len, columns)), np.int64)
        ids = np.split(all_ids, np.cumsum([len(column) for column in columns])[:-1])
        places = np.array([column_ids.ctypes.data for column_ids in ids[: len(columns)]], np.int64)
        how = (self._threads, int(self._in_files))
        call("vocabularies_encode", self._stored.rows, *packed.arguments, places, *how)
        return ids[: len(columns)]


class _Packed:
    """Columns in the form of the core: rows [F, 6] of addresses and sizes, owners, and F."""

    def __init__(self, columns: Sequence[RawIds], owners: np.ndarray) -> None:
        if len(columns) != len(owners):
            raise ValueError(f"expected {len(owners):,} columns of values, not {len(columns):,}")
        self._arrays, rows = [], []
        for column in columns:
            text = np.ascontiguousarray(column.text, np.uint8)
            spans = [np.ascontiguousarray(x, np.uint32) for x in (column.starts, column.lengths)]
            offsets = None if column.offsets is None else np.ascontiguousarray(column.offsets, np.int64)
            self._arrays.append((text, spans, offsets))  # they live as long as their addresses
            places = *(x.ctypes.data for x in spans), 0 if offsets is None else offsets.ctypes.data
            rows.append((text.ctypes.data, len(text), *places, len(column)))
        self.arguments = np.array(rows, np.int64), owners, len(columns)


class _Stored:
    """Vocabularies in the form of the core: rows [V, 7] of addresses and sizes."""

    def __init__(self, arrays: Sequence[_Arrays], num_unknown: Sequence[int]) -> None:
        self._num_unknown = list(num_unknown)
        self._arrays = list(arrays)
        rows = [
            (index.ctypes.data, len(index), len(ends), ends.ctypes.data, text.ctypes.data, len(text), num)
            for (index, ends, text), num in zip(self._arrays, num_unknown, strict=False)
        ]
        self.rows = np.array(rows or [(0,) * 7], np.int64)

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for arrays in self._arrays for array in arrays)

    def in_memory(self) -> _Stored:
        """A copy; large arrays in huge pages, where the system has them."""
        copied = [(np.array(index), np.array(ends), np.array(text)) for index, ends, text in self._arrays]
        return _Stored(copied, self._num_unknown)

    def read_at_random(self) -> None:
        """Advises the system against reading ahead."""
        for arrays in self._arrays:
            for array in arrays:
                call("read_at_random", array, array.nbytes)


def _arrays_of(values: Values) -> _Arrays:
    if values.index is None:
        raise ValueError(
            "expected a vocabulary with an index, found one without: its values are ids already; "
            "prepare the data again"
        )
    return values.index, values.ends, values.text


def _mapped(path: Path, dtype) -> np.ndarray:
    """Maps a raw file; an empty one, which cannot be mapped, is an empty array."""
    empty = path.stat().st_size == 0
    return np.zeros(0, dtype) if empty else np.memmap(path, dtype, "r").view(np.ndarray)


def _failure(code: int, path: str, memory: int) -> Exception:
    if code == _DAMAGED:
        return ValueError(
            f"{path} is damaged or cut off: expected the counts that an interrupted preparation left "
            f"there; remove the folder and prepare again"
        )
    if code == _TOO_LONG:
        return ValueError(
            f"the vocabularies may take {memory:,} bytes of memory, which is less than a single value "
            f"needs; give more memory"
        )
    if code == _NO_MEMORY:
        return MemoryError(
            f"the vocabularies may take {memory:,} bytes of memory, and the system has less to give; "
            f"give less memory"
        )
    return OSError(-code, os.strerror(-code), path)


def _is_legal(values: Values) -> bool:
    """True if sizes and types of the arrays ensure that nothing beyond them is read."""
    dtypes = [str(array.dtype) for array in (values.counts, values.ends, values.text)]
    if dtypes != ["int64", "int64", "uint8"] or values.counts.ndim != 1 or values.text.ndim != 1:
        return False
    if type(values.num_distinct) is not int or values.num_distinct < 0:
        return False
    if values.index is None:
        return values.ends.ndim == 1
    index = values.index
    legal = index.dtype == np.uint64 and index.ndim == 2 and index.shape[1:] == (2,)
    return legal and len(index) > len(values) * 8 // 5 and values.ends.shape == values.counts.shape


class IdCounts:
    """Counts ids, in memory that grows with the number of distinct ids."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    def add(self, ids: np.ndarray) -> None:
        self._pending.append(ids.copy())
        self._num_pending += len(ids)
        if self._num_pending > max(1 << 20, len(self._ids)):
            self.merged()

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the distinct ids, ascending, and their counts."""
        self.join(*np.unique(np.concatenate([self._ids[:0], *self._pending]), return_counts=True))
        self._pending, self._num_pending = [], 0
        return self._ids, self._counts

    def join(self, ids: np.ndarray, num: np.ndarray) -> None:
        """Counts distinct ids, each of which was seen `num` times."""
        self._ids, place = np.unique(np.concatenate([self._ids, ids]), return_inverse=True)
        counts = np.zeros(len(self._ids), np.int64)
        counts[place[: len(self._counts)]] = self._counts
        counts[place[len(self._counts) :]] += num
        self._counts = counts
