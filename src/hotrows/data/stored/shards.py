"""Shards: files that hold the rows of a part column by column; mapped, and never read whole.

Sections of a shard: `labels` uint8, or float32 where one of them is a number, [rows] or of several
labels [rows, T]; `dense` [rows, num_dense] float32, of single numbers; `ids/NAME` for every feature that
carries ids, in the narrowest of uint8, uint16, uint32 and int64 that holds them; `offsets/NAME`
[rows + 1] for those that are lists, in uint32 or int64; and where the schema has them `weights/NAME`
float32, one per id, `vectors` [rows, numbers of all vectors] float32 or float16, `weights` [rows]
float32, `groups` and `times` [rows] int64. Lists are stored end to end:

    row 0: 7 8 9   row 1: (none)   row 2: 4          ids 7 8 9 4    offsets 0 3 3 4

Where rows of a request share features, `ids/NAME` and `offsets/NAME` of these have R requests in place of
rows, and so have `requests/dense`, the dense values that are shared (`dense` has the others), and
`requests/numbers`, int64, the requests by which rows are grouped where the schema names no group;
`requests/starts` [R + 1] uint32 has the first row of each request. Of histories by reference see
`histories`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.stored.histories import StoredHistories
from hotrows.data.stored.request_rows import RequestRows, division_of, id_features, no_labels_of, packed
from hotrows.data.stored.rows import OPTIONAL, Rows, Tally, empty_rows, no_tally, tally_of, vector_type
from hotrows.data.stored.sections import Sections, header_checksum, open_sections, write_sections
from hotrows.runtime.atomic_files import replaced
from hotrows.schema import IdFeature, Schema, is_list

_ROWS_PER_SHARD = 1 << 19
_LISTS_AT_ONCE = 1 << 10  # rows whose histories are counted together: these may be long
_NUMBERS_PER_SHARD = 1 << 26  # of vectors


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


def open_shard(path: Path, schema: Schema, header_crc32: int | None = None) -> Rows | RequestRows:
    """Maps the rows of a shard; an error if they do not fit the schema, or the header has another
    checksum."""
    # 1. Read the samples' own sections.
    sections = open_sections(path, header_crc32)
    stored = {
        "vectors": bool(schema.vectors),
        "weights": schema.weight is not None,
        "groups": schema.group is not None,
        "times": schema.keeps_times,
    }
    optional: dict[str, Any] = {name: sections[name] for name, is_stored in stored.items() if is_stored}
    samples = Rows(
        **_ids(sections, id_features(schema, False)),
        dense=sections["dense"],
        labels=sections["labels"],
        **optional,
    )
    division = division_of(schema)
    wrong = _wrong(samples, id_features(schema, False), len(division.sample_dense), schema)
    rows: Rows | RequestRows = samples
    # 2. Read what the samples of a request share.
    if schema.request is not None:
        dense, starts = sections["requests/dense"], sections["requests/starts"]
        shared = Rows(
            **_ids(sections, id_features(schema, True)),
            dense=dense,
            labels=no_labels_of(len(dense)),
            requests=sections["requests/numbers"],
        )
        wrong += _wrong(shared, id_features(schema, True), len(division.shared_dense), None)
        wrong += [] if _are_starts(starts, len(dense), len(samples)) else ["requests/starts"]
        rows = RequestRows(schema, samples, shared, starts)
    # 3. Refuse sections that are not as the schema says.
    if wrong:
        raise ValueError(
            f"{sections.path}: sections {wrong} do not have the rows and types that the schema "
            f"asks for; prepare the data again"
        )
    return rows


def _ids(sections: Sections, features: Sequence[IdFeature]) -> dict[str, Any]:
    weighted = _weighted(features)
    return {
        "ids": tuple(sections[f"ids/{f.name}"] for f in features)
        + tuple(sections[f"weights/{f.name}"] for f in weighted),
        "offsets": tuple(
            sections[f"offsets/{f.name}"] if is_list(f) else None for f in (*features, *weighted)
        ),
    }


def _weighted(features: Sequence[IdFeature]) -> list[IdFeature]:
    return [feature for feature in features if getattr(feature, "weights", None) is not None]


def check_rows(path: Path, num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise ValueError(
            f"{path} has {num_rows:,} rows, data.json says {expected:,}; prepare the data again"
        )


def _wrong(rows: Rows, features: Sequence[IdFeature], num_dense: int, schema: Schema | None) -> list[str]:
    """The sections that do not fit each other or the schema. schema: None of requests, without labels."""
    num = len(rows.dense)
    expected = {
        "dense": ("f4", (num, num_dense)),
        "weights": ("f4", (num,)),
        "groups": ("i8", (num,)),
        "times": ("i8", (num,)),
        "requests": ("i8", (num,)),
    }
    if schema is not None:
        vectors = schema.num_dense - len(schema.dense)
        expected["vectors"] = (vector_type(schema).str[1:], (num, vectors))
        labels = len(schema.labels)
        shape = (num,) if labels == 1 else (num, labels)
        expected["labels"] = ("f4" if schema.has_numbers else "u1", shape)
    wrong = [
        name
        for name, (dtype, shape) in expected.items()
        if (array := getattr(rows, name)) is not None
        and (array.shape != shape or array.dtype != np.dtype(dtype))
    ]
    for feature, weights in zip(_weighted(features), rows.ids[len(features) :], strict=True):
        if weights.dtype != np.float32 or weights.shape != rows.ids[features.index(feature)].shape:
            wrong.append(f"weights/{feature.name}")
    for feature, ids, offsets in zip(features, rows.ids, rows.offsets, strict=False):
        if ids.ndim != 1 or ids.dtype.str[1:] not in ("u1", "u2", "u4", "i8"):
            wrong.append(f"ids/{feature.name}")
        elif not (len(ids) == num if offsets is None else _fits(offsets, num, len(ids))):
            wrong.append(f"{'ids' if offsets is None else 'offsets'}/{feature.name}")
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


def rows_per_shard(schema: Schema) -> int:
    """Rows of a full shard: fewer of wide vectors."""
    width = max(1, schema.num_dense - len(schema.dense))
    return min(_ROWS_PER_SHARD, max(1, _NUMBERS_PER_SHARD // width))


class ShardWriter:
    """Collects the rows of one part and writes a shard whenever one is full.

    rows: of a shard (default: `rows_per_shard`); number: of the first shard.
    histories: the events that rows refer to; the schema is then theirs, and rows are of the
        `stored_schema`.
    A shard is written to a temporary file and renamed. A writer that is resumed from `state()` ends
    with the shards and counts of one that was never interrupted.
    """

    def __init__(
        self,
        folder: Path,
        part: str,
        schema: Schema,
        rows: int | None = None,
        *,
        number: int = 0,
        histories: StoredHistories | None = None,
    ) -> None:
        self._folder = folder
        self._number = number
        self._part = part
        self._histories = histories
        self._all_features = schema
        self._schema = schema = schema if histories is None else histories.stored_schema
        self._rows_per_shard = rows or rows_per_shard(schema)
        self._builder = ShardBuilder(schema, self._rows_per_shard)
        self._shards: list[tuple[str, int]] = []
        self._shards_tally = self._builder_tally = no_tally(self._all_features)
        self._to_drop = 0

    @staticmethod
    def resume(
        folder: Path,
        part: str,
        schema: Schema,
        state: dict[str, Any],
        already: int = 0,
        histories: StoredHistories | None = None,
    ) -> ShardWriter:
        """Returns a writer that continues behind the shards of `state`.

        already: number of rows at their end that will be appended again, and are dropped then.
        """
        assert 0 <= already <= state["rows"]
        writer = ShardWriter(folder, part, schema, state["rows_per_shard"], histories=histories)
        writer._shards = [(file, rows) for file, rows in state["shards"]]
        writer._shards_tally = Tally.from_json(state["tally"])
        writer._to_drop = already
        for file, rows in writer._shards:
            check_rows(folder / file, len(open_shard(folder / file, writer._schema)), rows)
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

        missing: [numbers and vectors, rows] bool, where one was missing; None: nowhere.
        """
        shape = (len(self._schema.dense_places), len(rows))
        if missing is None:
            missing = np.broadcast_to(False, shape)
        assert missing.shape == shape, "[numbers and vectors, rows], not counts"
        done = min(self._to_drop, len(rows))
        self._to_drop -= done
        while done < len(rows):
            end = min(len(rows), done + self._builder.room)
            self._builder.append(rows[done:end])
            self._builder_tally += self._counted(rows[done:end], missing[:, done:end])
            done = end
            if self._builder.room == 0:
                self._write()

    def _counted(self, rows: Rows, missing: np.ndarray) -> Tally:
        if self._histories is None:
            return tally_of(rows, missing, self._schema)
        tally = no_tally(self._all_features)
        for first in range(0, len(rows), _LISTS_AT_ONCE):
            end = first + _LISTS_AT_ONCE
            some = self._histories.rows_of(rows[first:end])
            tally += tally_of(some, missing[:, first:end], self._all_features)
        return tally

    def close(self) -> Written:
        """Writes the last shard."""
        if self._builder.size:
            self._write()
        return written_of(self._shards, self._shards_tally, self._all_features, self._folder)

    def _write(self) -> None:
        name = f"{self._part}-{self._number + len(self._shards):05d}.shard"
        header = {"kind": "shard", "rows": self._builder.size}
        with replaced(self._folder / name) as part:
            write_sections(part, header, _arrays(self._builder.rows(), self._schema))
        self._shards.append((name, self._builder.size))
        self._shards_tally += self._builder_tally
        self._builder_tally = no_tally(self._all_features)
        self._builder.size = 0


class ShardBuilder:
    """A shard while it is filled; the ids of lists are in arrays that grow."""

    def __init__(self, schema: Schema, rows: int) -> None:
        self.size, self._capacity = 0, rows
        self._into = empty_rows(schema, rows)
        self._ids = list(self._into.ids)

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
        for name in ("dense", "labels", *OPTIONAL):
            into, values = getattr(self._into, name), getattr(rows, name)
            if into is not None:
                assert values is not None
                into[place] = values
        self.size = place.stop

    def _append_lists(self, f: int, values: np.ndarray, list_offsets: np.ndarray) -> None:
        offsets, first = self._into.offsets[f], self.size
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
        end, offsets = self.size, self._into.offsets
        pairs = zip(self._ids, offsets, strict=True)
        ids = tuple(ids[: end if bounds is None else int(bounds[end])] for ids, bounds in pairs)
        return replace(self._into[:end], ids=ids)


def written_of(
    shards: Sequence[tuple[str, int]], tally: Tally, schema: Schema, folder: Path = Path()
) -> Written:
    """Shards (file, rows) in a folder, and their counts by the names of features."""
    ids = schema.id_features
    missing = dict(zip(schema.dense_places, tally.dense_missing.tolist(), strict=True))
    lists = {f.name for f in ids if is_list(f)}
    return Written(
        shards=tuple(Shard(file, rows, header_checksum(folder / file)) for file, rows in shards),
        clicks=tuple(tally.clicks.tolist()),
        labelled=tuple(tally.labelled.tolist()),
        missing=missing | _by_name(ids, tally.missing),
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
    names = [f"ids/{f.name}" for f in features] + [f"weights/{f.name}" for f in _weighted(features)]
    arrays |= dict(zip(names, rows.ids, strict=True))
    for feature, offsets in zip(features, rows.offsets, strict=False):
        if offsets is not None:
            narrow = int(offsets[-1]) <= np.iinfo(np.uint32).max
            arrays[f"offsets/{feature.name}"] = offsets.astype(np.uint32 if narrow else np.int64)
    optional = {name: getattr(rows, name) for name in OPTIONAL}
    return arrays | {name: array for name, array in optional.items() if array is not None}


def _by_name(features: Sequence, counts: np.ndarray) -> dict[str, int]:
    return dict(zip((f.name for f in features), counts.tolist(), strict=True))
