"""Shards: files that hold the rows of a part column by column; mapped, and never read whole.

Their sections are in docs/reference/formats.md. Lists are stored end to end:

    row 0: 7 8 9   row 1: (none)   row 2: 4          ids 7 8 9 4    offsets 0 3 3 4

Where rows of a request share features, `ids/NAME` and `offsets/NAME` of these have R requests in place of
rows, and so have `requests/dense`, the dense values that are shared (`dense` has the others), and
`requests/numbers`, the requests by which rows are grouped where the schema names no group;
`requests/starts` [R + 1] has the first row of each request. Of histories by reference see `histories`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.columns.label import missing_labels
from hotrows.data.columns.of_schema import SchemaColumns, missing_of
from hotrows.data.rows import Rows, Section, empty_rows
from hotrows.data.stored.histories import StoredHistories
from hotrows.data.stored.request_rows import Division, RequestRows, packed, places_of
from hotrows.data.stored.sections import Sections, header_checksum, open_sections, write_sections
from hotrows.runtime.atomic_files import replaced
from hotrows.runtime.sums import Summed

_ROWS_PER_SHARD = 1 << 19
_LISTS_AT_ONCE = 1 << 10  # rows whose histories are counted together: these may be long
_NUMBERS_PER_SHARD = 1 << 26  # of vectors
_OF_REQUESTS = {"dense": "requests/dense", "requests": "requests/numbers"}  # names of sections in files
_LAST = ("vectors", "weights", "groups", "times")  # in a file


@dataclass(frozen=True)
class Shard:
    """A file of rows. header: the checksum of its header, which has those of its sections."""

    file: str
    rows: int
    header: int


@dataclass(frozen=True)
class Written:
    """A part as data.json has it: its shards, and counts of their contents.

    clicks, labelled: per label, rows whose label is 1, and rows that have the label at all.
    missing: rows per dense feature, ids per other feature that are missing; unknown: ids of values not in
    the vocabulary; values: ids in all; empty: of lists alone, rows without an id.
    """

    clicks: tuple[int, ...] = ()
    labelled: tuple[int, ...] = ()
    missing: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, **asdict(self)}


@dataclass(frozen=True)
class Tally(Summed):
    """Counts of rows, int64: [T] per label, [F] per feature that carries ids.

    clicks, labelled: rows whose label is 1, and rows that have one; dense_missing: by number and vector,
        rows that lack it; missing, unknown: ids of missing and of unknown values; values: ids in all;
        empty: rows with an empty list.
    """

    clicks: np.ndarray
    labelled: np.ndarray
    dense_missing: np.ndarray
    missing: np.ndarray
    unknown: np.ndarray
    values: np.ndarray
    empty: np.ndarray

    def to_json(self) -> dict[str, list[int]]:
        return {name: counts.tolist() for name, counts in vars(self).items()}

    @staticmethod
    def from_json(stored: dict[str, list[int]]) -> Tally:
        return Tally(**{name: np.array(counts, np.int64) for name, counts in stored.items()})


def tally_of(rows: Rows, columns: SchemaColumns) -> Tally:
    values = [rows.values(f"ids/{column.name}") for column in columns.ids]
    pairs = list(zip(columns.ids, values, strict=True))
    bounds = [rows.bounds.get(column.name) for column in columns.ids]
    labels = rows.arrays["labels"].reshape(len(rows), len(columns.schema.labels))
    missing = missing_of(rows, columns)
    return Tally(
        clicks=np.count_nonzero(labels == 1, axis=0),
        labelled=np.count_nonzero(~missing_labels(labels), axis=0),
        dense_missing=_counts(map(np.count_nonzero, np.ascontiguousarray(missing.T))),
        missing=_counts(np.count_nonzero(ids == c.lookup.missing) for c, ids in pairs),
        unknown=_counts(np.count_nonzero(c.is_unknown(ids)) for c, ids in pairs),
        values=_counts(map(len, values)),
        empty=_counts(0 if o is None else np.sum(o[1:] == o[:-1]) for o in bounds),
    )


def no_tally(columns: SchemaColumns) -> Tally:
    labels, features = len(columns.schema.labels), len(columns.ids)
    sizes = (labels, labels, len(columns.schema.dense_places), features, features, features, features)
    return Tally(*(np.zeros(size, np.int64) for size in sizes))


def _counts(numbers: Iterable[Any]) -> np.ndarray:
    return np.array([int(number) for number in numbers], np.int64)


def open_shard(path: Path, columns: SchemaColumns, header_crc32: int | None = None) -> Rows | RequestRows:
    """Maps the rows of a shard; an error if they do not fit the columns, or the header has another
    checksum."""
    stored, division = open_sections(path, header_crc32), Division(columns.sections)
    of_samples = [s for s in division.sections if not s.shared]
    samples = _mapped(stored, of_samples, {})
    wrong = _wrong(samples, of_samples, False)
    rows: Rows | RequestRows = samples
    if columns.schema.request:
        of_requests = [s for s in division.sections if s.shared or s.names is not None]
        shared = _mapped(stored, of_requests, _OF_REQUESTS)
        starts = stored["requests/starts"]
        wrong += _wrong(shared, of_requests, True)
        wrong += [] if _are_starts(starts, len(shared), len(samples)) else ["requests/starts"]
        rows = RequestRows(division, samples, shared, starts)
    # Refuse sections that are not as the schema says.
    if wrong:
        raise ValueError(
            f"{stored.path}: sections {wrong} do not have the rows and types that the schema "
            f"asks for; prepare the data again"
        )
    return rows


def _mapped(stored: Sections, sections: Sequence[Section], names: Mapping[str, str]) -> Rows:
    """names: of sections in files, where these are others."""
    arrays = {s.name: stored[names.get(s.name, s.name)] for s in sections}
    bounds = {s.owner: stored[f"offsets/{s.owner}"] for s in sections if s.is_list}
    return Rows(len(arrays["dense"]), arrays, bounds)


def check_rows(path: Path, num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise ValueError(
            f"{path} has {num_rows:,} rows, data.json says {expected:,}; prepare the data again"
        )


def _wrong(rows: Rows, sections: Sequence[Section], shared: bool) -> list[str]:
    """The sections that do not fit each other or the columns. shared: of requests."""
    num, wrong = len(rows), []
    for section in sections:
        array, bounds = rows.arrays[section.name], rows.bounds_of(section.name)
        legal = section.legal or (section.dtype.str[1:],)
        shape = section.shape(num) if "/" not in section.name else array.shape[:1]
        if section.names is not None:
            shape = (num, len(places_of(section, shared)))
        fits = len(array) == num if bounds is None else _fits(bounds, num, len(array))
        if array.shape != shape or array.dtype.str[1:] not in legal or (bounds is None and not fits):
            wrong.append(section.name)
        elif not fits:
            wrong.append(section.name.replace("ids/", "offsets/", 1))
    return wrong


def _are_starts(starts: np.ndarray, num_requests: int, num_rows: int) -> bool:
    """True if these are the first rows of requests that have one at least."""
    return (
        starts.shape == (num_requests + 1,)
        and starts.dtype.str[1:] == "u4"
        and (int(starts[0]), int(starts[-1])) == (0, num_rows)
        and bool((starts[1:] > starts[:-1]).all())
    )


def _fits(offsets: np.ndarray, num_rows: int, num_ids: int) -> bool:
    """True if offsets have the right form and ends; a loader checks those between."""
    return (
        offsets.shape == (num_rows + 1,)
        and offsets.dtype.str[1:] in ("u4", "i8")
        and (int(offsets[0]), int(offsets[-1])) == (0, num_ids)
    )


def rows_per_shard(columns: SchemaColumns) -> int:
    """Rows of a full shard: fewer of wide vectors."""
    return min(_ROWS_PER_SHARD, max(1, _NUMBERS_PER_SHARD // max(1, columns.vectors.width)))


class ShardWriter:
    """Collects the rows of one part and writes a shard whenever one is full.

    rows: of a shard (default: `rows_per_shard`); number: of the first shard.
    histories: the events that rows refer to.
    A shard is written to a temporary file and renamed. A writer that is resumed from `state()` ends
    with the shards and counts of one that was never interrupted.
    """

    def __init__(
        self,
        folder: Path,
        part: str,
        columns: SchemaColumns,
        rows: int | None = None,
        *,
        number: int = 0,
        histories: StoredHistories | None = None,
    ) -> None:
        self._folder = folder
        self._number = number
        self._part = part
        self._histories = histories
        self._columns = columns
        self._rows_per_shard = rows or rows_per_shard(columns)
        # The shard while it is filled; the values of lists are in arrays that grow.
        empty = empty_rows(columns.sections, self._rows_per_shard)
        self._arrays, self._bounds, self._size = dict(empty.arrays), empty.bounds, 0
        self._shards: list[tuple[str, int]] = []
        self._shards_tally = self._tally = no_tally(columns)
        self._to_drop = 0

    @staticmethod
    def resume(
        folder: Path,
        part: str,
        columns: SchemaColumns,
        state: dict[str, Any],
        already: int = 0,
        histories: StoredHistories | None = None,
    ) -> ShardWriter:
        """Returns a writer that continues behind the shards of `state`.

        already: number of rows at their end that will be appended again, and are dropped then.
        """
        assert 0 <= already <= state["rows"]
        writer = ShardWriter(folder, part, columns, state["rows_per_shard"], histories=histories)
        writer._shards = [(file, rows) for file, rows in state["shards"]]
        writer._shards_tally = Tally.from_json(state["tally"])
        writer._to_drop = already
        for file, rows in writer._shards:
            check_rows(folder / file, len(open_shard(folder / file, columns)), rows)
        return writer

    @property
    def rows_in_shards(self) -> int:
        return sum(rows for _, rows in self._shards)

    def state(self) -> dict[str, Any]:
        """The shards written so far, their rows and counts; JSON-able."""
        return {
            "rows": self.rows_in_shards,
            "rows_per_shard": self._rows_per_shard,
            "shards": [list(shard) for shard in self._shards],
            "tally": self._shards_tally.to_json(),
        }

    def append(self, rows: Rows) -> None:
        """Adds rows, whose ids may be of any integer type; `missing` among their sections, [rows, numbers
        and vectors] bool, is counted, and not stored."""
        done = min(self._to_drop, len(rows))
        self._to_drop -= done
        while done < len(rows):
            end = min(len(rows), done + self._rows_per_shard - self._size)
            self._tally += self._counted(rows[done:end])
            self._fill(rows[done:end])
            done = end
            if self._size == self._rows_per_shard:
                self._write()

    def _fill(self, rows: Rows) -> None:
        place = slice(self._size, self._size + len(rows))
        for name in self._arrays:
            if (bounds := rows.bounds_of(name)) is None:
                self._arrays[name][place] = rows.arrays[name]
            else:
                self._fill_lists(name, rows.values(name), bounds)
        self._size = place.stop

    def _fill_lists(self, name: str, values: np.ndarray, of_lists: np.ndarray) -> None:
        bounds, first, array = self._bounds[name.partition("/")[2]], self._size, self._arrays[name]
        start = int(bounds[first])
        end = start + len(values)
        if end > len(array):
            grown = self._arrays[name] = np.empty(max(end, 2 * len(array)), array.dtype)
            grown[:start] = array[:start]
        self._arrays[name][start:end] = values
        lengths = of_lists[1:].astype(np.int64) - int(of_lists[0])
        bounds[first + 1 : first + len(of_lists)] = start + lengths

    def _counted(self, rows: Rows) -> Tally:
        if self._histories is None:
            return tally_of(rows, self._columns)
        tally = no_tally(self._columns)
        for first in range(0, len(rows), _LISTS_AT_ONCE):
            some = self._histories.rows_of(rows[first : first + _LISTS_AT_ONCE])
            tally += tally_of(some, self._columns)
        return tally

    def close(self) -> Written:
        if self._size:
            self._write()
        return written_of(self._shards, self._shards_tally, self._columns, self._folder)

    def _write(self) -> None:
        name = f"{self._part}-{self._number + len(self._shards):05d}.shard"
        rows = Rows(self._rows_per_shard, self._arrays, self._bounds)[: self._size]
        rows = rows.with_arrays({name: rows.values(name) for name in rows.arrays}, {})
        with replaced(self._folder / name) as part:
            header = {"kind": "shard", "rows": self._size}
            write_sections(part, header, _arrays(rows, self._columns))
        self._shards.append((name, self._size))
        self._shards_tally += self._tally
        self._tally, self._size = no_tally(self._columns), 0


def written_of(
    shards: Sequence[tuple[str, int]], tally: Tally, columns: SchemaColumns, folder: Path = Path()
) -> Written:
    """Shards (file, rows) in a folder, and their counts by the names of features."""
    names = [column.name for column in columns.ids]
    missing, unknown, values, empty = (
        dict(zip(names, counts.tolist(), strict=True))
        for counts in (tally.missing, tally.unknown, tally.values, tally.empty)
    )
    numbers = dict(zip(columns.schema.dense_places, tally.dense_missing.tolist(), strict=True))
    return Written(
        shards=tuple(Shard(file, rows, header_checksum(folder / file)) for file, rows in shards),
        clicks=tuple(tally.clicks.tolist()),
        labelled=tuple(tally.labelled.tolist()),
        missing=numbers | missing,
        unknown=unknown,
        values=values,
        empty={column.name: empty[column.name] for column in columns.ids if column.is_list},
    )


def _arrays(rows: Rows, columns: SchemaColumns) -> dict[str, np.ndarray]:
    if not columns.schema.request:
        return _in_order(rows)
    of_requests = packed(rows, Division(columns.sections))
    shared = _in_order(of_requests.shared)
    arrays = {name: column for name, column in shared.items() if "/" in name}
    arrays |= {name: shared[section] for section, name in _OF_REQUESTS.items()}
    starts = {"requests/starts": of_requests.starts.astype(np.uint32)}
    return _in_order(of_requests.samples) | arrays | starts


def _in_order(rows: Rows) -> dict[str, np.ndarray]:
    """The sections of rows, with the offsets of lists behind those of features."""
    arrays = dict(rows.arrays)
    last = {name: arrays.pop(name) for name in _LAST if name in arrays}
    for owner, bounds in rows.bounds.items():
        narrow = int(bounds[-1]) <= np.iinfo(np.uint32).max
        arrays[f"offsets/{owner}"] = bounds.astype(np.uint32 if narrow else np.int64)
    return arrays | last
