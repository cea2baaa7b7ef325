"""Writes encoded rows as shards, and counts what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.raw.cells import missing_labels, no_labels
from hotrows.data.stored.requests import id_features, packed
from hotrows.data.stored.rows import OPTIONAL, Rows, id_type, missing_id
from hotrows.data.stored.sections import write_sections
from hotrows.data.stored.shard_reader import check_rows, open_shard
from hotrows.runtime.atomic_files import replaced
from hotrows.schema import FIRST_UNKNOWN, IdFeature, Schema, is_list

ROWS_PER_SHARD = 1 << 19


@dataclass(frozen=True)
class Tally:
    """Counts of rows, int64: [T] per label, [F] per feature that carries ids.

    clicks, labelled: rows whose label is 1, and rows that have one; dense_missing: [num_dense], rows
    whose number is missing; missing, unknown: ids of missing and of unknown values; values: ids in
    all; empty: rows with an empty list.
    """

    clicks: np.ndarray
    labelled: np.ndarray
    dense_missing: np.ndarray
    missing: np.ndarray
    unknown: np.ndarray
    values: np.ndarray
    empty: np.ndarray

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(np.add, vars(self).values(), vars(other).values()))

    def to_json(self) -> dict[str, list[int]]:
        return {name: counts.tolist() for name, counts in vars(self).items()}

    @staticmethod
    def from_json(stored: dict[str, list[int]]) -> Tally:
        return Tally(**{name: np.array(counts, np.int64) for name, counts in stored.items()})


@dataclass(frozen=True)
class Written:
    """The shards of a part as (file, rows), and counts of their contents.

    clicks, labelled: per label, rows whose label is 1, and rows that have the label.
    missing: rows per dense feature, ids per other feature that are missing; unknown: ids
    not in the vocabulary; values: ids in all; empty: of lists alone, rows without an id.
    """

    shards: tuple[tuple[str, int], ...]
    clicks: tuple[int, ...]
    labelled: tuple[int, ...]
    missing: dict[str, int]
    unknown: dict[str, int]
    values: dict[str, int]
    empty: dict[str, int]


class ShardWriter:
    """Collects the rows of one part and writes a shard whenever one is full.

    rows: of a shard; number: of the first shard.
    A shard is written to a temporary file and renamed. A writer that is resumed from `state()` ends
    with the shards and counts of one that was never interrupted.
    """

    def __init__(
        self, folder: Path, part: str, schema: Schema, rows: int = ROWS_PER_SHARD, *, number: int = 0
    ) -> None:
        self._folder = folder
        self._number = number
        self._part = part
        self._schema = schema
        self._rows_per_shard = rows
        self._builder = ShardBuilder(schema, rows)
        self._shards: list[tuple[str, int]] = []
        self._shards_tally = self._builder_tally = no_tally(schema)
        self._to_drop = 0

    @staticmethod
    def resume(
        folder: Path, part: str, schema: Schema, state: dict[str, Any], already: int = 0
    ) -> ShardWriter:
        """Returns a writer that continues behind the shards of `state`.

        already: number of rows at their end that will be appended again, and are dropped then.
        """
        assert 0 <= already <= state["rows"]
        writer = ShardWriter(folder, part, schema, state["rows_per_shard"])
        writer._shards = [(file, rows) for file, rows in state["shards"]]
        writer._shards_tally = Tally.from_json(state["tally"])
        writer._to_drop = already
        for file, rows in writer._shards:
            check_rows(folder / file, len(open_shard(folder / file, schema)), rows)
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

    def append(self, rows: Rows, missing: np.ndarray | None = None) -> None:
        """Adds rows, whose ids may be of any integer type.

        missing: [num_dense, rows] bool, where a number was missing; None: nowhere.
        """
        if missing is None:
            missing = np.broadcast_to(False, (len(self._schema.dense), len(rows)))
        assert missing.shape == (len(self._schema.dense), len(rows)), "[num_dense, rows], not counts"
        done = min(self._to_drop, len(rows))
        self._to_drop -= done
        while done < len(rows):
            end = min(len(rows), done + self._builder.room)
            self._builder.append(rows[done:end])
            self._builder_tally += tally_of(rows[done:end], missing[:, done:end], self._schema)
            done = end
            if self._builder.room == 0:
                self._write()

    def close(self) -> Written:
        """Writes the last shard."""
        if self._builder.size:
            self._write()
        return written_of(self._shards, self._shards_tally, self._schema)

    def _write(self) -> None:
        name = f"{self._part}-{self._number + len(self._shards):05d}.shard"
        header = {"kind": "shard", "rows": self._builder.size}
        with replaced(self._folder / name) as part:
            write_sections(part, header, _arrays(self._builder.rows(), self._schema))
        self._shards.append((name, self._builder.size))
        self._shards_tally += self._builder_tally
        self._builder_tally = no_tally(self._schema)
        self._builder.size = 0


class ShardBuilder:
    """A shard while it is filled; the ids of lists are in arrays that grow."""

    def __init__(self, schema: Schema, rows: int) -> None:
        self.size = 0
        self._capacity = rows
        features = schema.id_features
        sizes = [(0 if is_list(f) else rows, id_type(schema, f)) for f in features]
        self._offsets = [np.zeros(rows + 1, np.int64) if is_list(f) else None for f in features]
        self._ids = [np.empty(size, width) for size, width in sizes]
        self._dense = np.empty((rows, len(schema.dense)), np.float32)
        self._labels = no_labels((rows, len(schema.labels)), schema.has_numbers)
        if len(schema.labels) == 1:
            self._labels = self._labels[:, 0]
        self._weights = None if schema.weight is None else np.empty(rows, np.float32)
        self._groups = None if schema.grouping is None else np.empty(rows, np.int64)
        self._requests = None if schema.request is None else np.empty(rows, np.int64)
        self._times = np.empty(rows, np.int64) if schema.keeps_times else None

    @property
    def room(self) -> int:
        return self._capacity - self.size

    def append(self, rows: Rows) -> None:
        place = slice(self.size, self.size + len(rows))
        for f, offsets in enumerate(rows.offsets):
            if offsets is None:
                self._ids[f][place] = rows.ids[f]
            else:
                self._append_lists(f, rows.values(f), offsets)
        self._dense[place] = rows.dense
        self._labels[place] = rows.labels
        for name in OPTIONAL:
            into = getattr(self, f"_{name}")
            values = getattr(rows, name)
            if into is not None:
                assert values is not None
                into[place] = values
        self.size = place.stop

    def _append_lists(self, f: int, values: np.ndarray, list_offsets: np.ndarray) -> None:
        offsets, first = self._offsets[f], self.size
        assert offsets is not None
        start = int(offsets[first])
        end = start + len(values)
        if end > len(self._ids[f]):
            grown = np.empty(max(end, 2 * len(self._ids[f])), self._ids[f].dtype)
            grown[:start] = self._ids[f][:start]
            self._ids[f] = grown
        self._ids[f][start:end] = values
        lengths = list_offsets[1:].astype(np.int64) - int(list_offsets[0])
        offsets[first + 1 : first + len(list_offsets)] = start + lengths

    def rows(self) -> Rows:
        """The rows appended so far."""
        end = self.size
        pairs = list(zip(self._ids, self._offsets, strict=True))
        return Rows(
            ids=tuple(ids[: end if o is None else int(o[end])] for ids, o in pairs),
            offsets=tuple(None if o is None else o[: end + 1] for o in self._offsets),
            dense=self._dense[:end],
            labels=self._labels[:end],
            **{name: None if (c := getattr(self, f"_{name}")) is None else c[:end] for name in OPTIONAL},
        )


def written_of(shards: Sequence[tuple[str, int]], tally: Tally, schema: Schema) -> Written:
    """The counts of shards by the names of features."""
    dense, ids = schema.dense, schema.id_features
    lists = {f.name for f in ids if is_list(f)}
    return Written(
        shards=tuple(shards),
        clicks=tuple(tally.clicks.tolist()),
        labelled=tuple(tally.labelled.tolist()),
        missing=_by_name(dense, tally.dense_missing) | _by_name(ids, tally.missing),
        unknown=_by_name(ids, tally.unknown),
        values=_by_name(ids, tally.values),
        empty={name: num for name, num in _by_name(ids, tally.empty).items() if name in lists},
    )


def _arrays(rows: Rows, schema: Schema) -> dict[str, np.ndarray]:
    """The sections of a shard."""
    if schema.request is None:
        return _columns(rows, schema.id_features)
    of_requests = packed(rows, schema)
    shared = _columns(of_requests.shared, id_features(schema, True))
    arrays = {
        **{name: column for name, column in shared.items() if "/" in name},
        "requests/dense": of_requests.shared.dense,
        "requests/numbers": shared["requests"],
        "requests/starts": of_requests.starts.astype(np.uint32),
    }
    return _columns(of_requests.samples, id_features(schema, False)) | arrays


def _columns(rows: Rows, features: Sequence[IdFeature]) -> dict[str, np.ndarray]:
    """The columns of rows by name."""
    arrays = {"labels": rows.labels, "dense": rows.dense}
    arrays |= {f"ids/{f.name}": ids for f, ids in zip(features, rows.ids, strict=True)}
    for feature, offsets in zip(features, rows.offsets, strict=True):
        if offsets is not None:
            narrow = int(offsets[-1]) <= np.iinfo(np.uint32).max
            arrays[f"offsets/{feature.name}"] = offsets.astype(np.uint32 if narrow else np.int64)
    optional = {name: getattr(rows, name) for name in OPTIONAL}
    return arrays | {name: array for name, array in optional.items() if array is not None}


def tally_of(rows: Rows, missing: np.ndarray, schema: Schema) -> Tally:
    """Counts rows; missing: [num_dense, rows] bool, where a number was missing."""
    features = schema.id_features
    values = [rows.values(f) for f in range(len(features))]
    labels = rows.labels.reshape(len(rows), len(schema.labels))
    ends = [FIRST_UNKNOWN + f.num_unknown for f in features]
    return Tally(
        clicks=np.count_nonzero(labels == 1, axis=0),
        labelled=np.count_nonzero(~missing_labels(labels), axis=0),
        dense_missing=np.count_nonzero(missing, axis=1),
        missing=_counts(
            np.count_nonzero(ids == missing_id(f)) for ids, f in zip(values, features, strict=True)
        ),
        unknown=_counts(
            np.count_nonzero((ids >= FIRST_UNKNOWN) & (ids < end)) if f.dynamic is None else 0
            for ids, end, f in zip(values, ends, features, strict=True)
        ),
        values=_counts(map(len, values)),
        empty=_counts(0 if o is None else np.sum(o[1:] == o[:-1]) for o in rows.offsets),
    )


def no_tally(schema: Schema) -> Tally:
    """The counts of no rows."""
    labels, features = len(schema.labels), len(schema.id_features)
    sizes = (labels, labels, len(schema.dense), features, features, features, features)
    return Tally(*(np.zeros(size, np.int64) for size in sizes))


def _counts(numbers: Iterable[Any]) -> np.ndarray:
    return np.array([int(number) for number in numbers], np.int64)


def _by_name(features: Sequence, counts: np.ndarray) -> dict[str, int]:
    return dict(zip((f.name for f in features), counts.tolist(), strict=True))
