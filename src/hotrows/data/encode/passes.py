"""Passes over the rows of a job: `count` and `encode`, which an `Executor` runs over all of them.

Both save their state, so that a preparation that was killed can be resumed:

    count    every two minutes: counts (in files), statistics, and position in the stream
    encode   after every shard: the shards, and the position of the oldest row that is in none yet
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.columns.number import ColumnMoments
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.columns.stream import InputPosition, stream
from hotrows.data.encode.encoder import Encoder, owners_of
from hotrows.data.encode.events import EventFiles, EventIndex
from hotrows.data.encode.split import SharedChecks, Sharing, Split
from hotrows.data.encode.vocabulary import Counts, IdCounts
from hotrows.data.raw.inputs import Input
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.tables import RayInput
from hotrows.data.rows import RawRows, Rows
from hotrows.data.stored.encoded import VERSION, EncodedData, Extremes
from hotrows.data.stored.histories import StoredHistories
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.shards import ShardWriter, Written
from hotrows.runtime.atomic_files import write_text
from hotrows.runtime.json_file import JsonFile, build
from hotrows.runtime.terminal import silent
from hotrows.schema import Schema
from hotrows.schema_checks import reading_less

Progress = Callable[[str, int, int], None]
StageProgress = Callable[[int, int], None]
_BESIDE = 768 << 20  # bytes of memory for libraries, chunks and shards, beside counts
STATE_FILE = "state.json"
_STATE = JsonFile(
    "prepare again",
    "prepare again",
    editable=False,
    problem="is damaged, so the preparation that was interrupted cannot go on and its files are removed",
)
SAVE_SECONDS = 120.0  # between two saved states of the count


@dataclass(frozen=True)
class Job:
    """Inputs and settings of a preparation.

    declared_parts: per input the number of the part its rows belong to, None where the split decides.
    events: inputs of the events that are histories.
    """

    inputs: tuple[Input, ...]
    declared_parts: tuple[int | None, ...]
    schema: Schema
    split_text: str
    split: Split
    seed: int
    stored: EncodedData | None
    extends: bool
    memory: int
    threads: int
    progress: Progress = silent
    events: tuple[Input, ...] = ()

    @property
    def on_ray(self) -> bool:
        """True if the rows are in datasets of Ray."""
        on_ray = [isinstance(source, RayInput) for source in self.inputs]
        if any(on_ray) and not all(on_ray):
            raise ValueError(
                "expected all rows in Ray datasets or none, found both; read the files with ray.data, too"
            )
        return all(on_ray)

    @property
    def reading(self) -> Reading:
        return Reading(self.schema, self.threads, by=self.split.by, histories="references")

    @property
    def shared(self) -> tuple[Input, ...]:
        """The inputs whose rows the split distributes over the parts."""
        return tuple(self.inputs[i] for i, part in enumerate(self.declared_parts) if part is None)

    @property
    def counts_memory(self) -> int:
        """Bytes that counts and indexes of vocabularies may take."""
        return max(self.memory - _BESIDE, self.memory // 4)

    def progress_of(self, stage: str) -> StageProgress:
        return partial(self.progress, stage)

    def identity(self) -> dict[str, Any] | None:
        """Inputs and settings that an interrupted preparation must share with this one to be resumed."""
        stamps = [source.stamp for source in (*self.inputs, *self.events)]
        if None in stamps:
            return None
        return {
            "prepare": VERSION,
            "inputs": stamps,
            "given": self.declared_parts,
            "schema": json.loads(self.schema.to_json()),
            "split": self.split_text,
            "seed": self.seed,
            "stored": self.stored and [self.stored.fingerprint, self.extends],
        }


@dataclass(frozen=True)
class CountedRows:
    """Counts of some rows, beside those of their values.

    numbers: [standard features, training rows] float64, in the order of the rows. references: see
    `EventIndex.references`; None without events.
    """

    rows: int
    numbers: np.ndarray
    references: np.ndarray | None = None


def count(
    columns: SchemaColumns,
    raw: RawRows,
    parts: np.ndarray,
    counts: Counts,
    events: EventIndex | None = None,
) -> CountedRows:
    """Adds the values of the training part to the counts. parts: of each row, [rows] uint8."""
    training = parts == 0
    references = None if events is None else events.references(raw, training)
    counts.add(columns.words(raw), training)
    numbers = raw.values["dense"][columns.numbers.standard][:, training]
    return CountedRows(raw.num_rows, numbers, references)


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows: those of each part, None where it has none of them, and the raw ones' extremes."""

    pieces: tuple[Rows | None, ...]
    extremes: Extremes


def encode(
    encoder: Encoder, columns: SchemaColumns, raw: RawRows, parts: np.ndarray, shared: SharedChecks
) -> EncodedRows:
    """Encodes rows. parts: of each row, [rows] uint8; shared: checks of the rows so far."""
    rows = encoder.encode_rows(raw, columns)
    shared.check(rows, raw)
    pieces: list[Rows | None] = []
    for part in range(len(NAMES)):
        chosen = np.flatnonzero(parts == part)
        if len(chosen) == len(rows):
            pieces.append(rows)
        else:
            pieces.append(rows.take(chosen) if len(chosen) else None)
    return EncodedRows(tuple(pieces), Extremes.of_rows(columns.numbers.features, raw))


@dataclass
class Totals:
    """The counts so far: rows, and the moments of `standard` numbers."""

    moments: ColumnMoments
    rows: int = 0
    training_rows: int = 0

    def add(self, counted: CountedRows, threads: int) -> None:
        self.moments.add(counted.numbers, threads)
        self.rows += counted.rows
        self.training_rows += counted.numbers.shape[1]


@dataclass(frozen=True)
class _StreamState:
    """The state before a chunk: position in the stream, rows per part, and state of the split."""

    position: InputPosition = field(default_factory=InputPosition)
    rows: tuple[int, ...] = (0,) * len(NAMES)
    sharing: dict[str, int] = field(default_factory=dict)


class PartWriters:
    """The shards of all parts while they are written; after each the state is saved from which a stopped
    preparation goes on: that before the oldest row that is in no shard.

    start: where it begins; sharing: the split, as it was there. state: of the preparation.
    """

    def __init__(
        self,
        job: Job,
        columns: SchemaColumns,
        folder: Path,
        state: dict[str, Any],
        histories: StoredHistories | None,
    ) -> None:
        encoding = state.get("encoding", {"start": {}, "writers": [None] * len(NAMES)})
        self.start = start = build(_StreamState, encoding["start"])
        self.sharing = Sharing(job.split, job.seed, state["total"], state["before"], start.sharing)
        self._writers = [
            ShardWriter(folder, name, columns, histories=histories)
            if saved is None
            else ShardWriter.resume(folder, name, columns, saved, saved["rows"] - rows, histories)
            for name, saved, rows in zip(NAMES, encoding["writers"], start.rows, strict=True)
        ]
        self._extremes = build(Extremes, encoding.get("extremes", {}))
        self._folder, self._state = folder, state
        self._rows, self._drawn = list(start.rows), self.sharing.state
        self._oldest = [start] * len(NAMES)  # per part, before the first row that is in no shard

    @property
    def num_rows(self) -> int:
        """The number of rows so far, those before the start included."""
        return self.start.position.rows + sum(self._rows) - sum(self.start.rows)

    def append(self, position: InputPosition, encoded: EncodedRows) -> None:
        """Adds the rows of a chunk, whose parts were drawn by `sharing`."""
        before = _StreamState(position, tuple(self._rows), self._drawn)
        in_shards = [writer.rows_in_shards for writer in self._writers]
        self._extremes = self._extremes.joined(encoded.extremes)
        for part, (writer, piece) in enumerate(zip(self._writers, encoded.pieces, strict=True)):
            if piece is not None:
                writer.append(piece)
            if in_shards[part] == self._rows[part] or writer.rows_in_shards > in_shards[part]:
                self._oldest[part] = before
            self._rows[part] += 0 if piece is None else len(piece)
        self._drawn = self.sharing.state
        if [writer.rows_in_shards for writer in self._writers] != in_shards:
            self._save()

    def _save(self) -> None:
        start = min(self._oldest, key=lambda before: before.position.rows)
        encoding = {
            "start": asdict(start),
            "writers": [writer.state() for writer in self._writers],
            "extremes": asdict(self._extremes),
        }
        write_state(self._folder, self._state | {"encoding": encoding})

    def close(self) -> tuple[dict[str, Written], Extremes]:
        return dict(zip(NAMES, (w.close() for w in self._writers), strict=True)), self._extremes


class Executor:
    """Runs both functions over all rows: on this machine, chunk after chunk.

    events: those that are histories, once they are sorted; None if the schema has no histories.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.events: EventFiles | None = None

    def num_rows(self) -> int:
        """The number of rows that the split shares out."""
        job, progress = self.job, self.job.progress_of("lines")
        sizes = [source.size for source in job.shared]
        total = 0
        for i, source in enumerate(job.shared):
            if job.schema.request is None:
                total += source.count_rows(job.schema)
            else:  # whose rows may have lists of candidates
                total += sum(columns.num_rows for _, columns in stream([source], job.reading))
            progress(sum(sizes[: i + 1]), sum(sizes))
        return total

    def times(self) -> IdCounts:
        """How many of these rows have each time."""
        schema, seen = without_features(self.job.schema), IdCounts()
        how = Reading(schema, self.job.threads, for_training=False)
        for _, columns in stream(self.job.shared, how, self.job.progress_of("times")):
            seen.add(columns.values["times"])
        return seen

    def count(self, folder: Path, sharing: Sharing, state: Mapping[str, Any]) -> tuple[Totals, Any]:
        """Counts all rows; the second has `write` as `vocabulary.Counts` has."""
        job, start = self.job, InputPosition()
        read = SchemaColumns(job.schema, histories="references")
        totals = Totals(ColumnMoments(len(read.numbers.standard)))
        if state.get("stage") == "count":
            totals = Totals(totals.moments, state["rows"], state["training_rows"])
            totals.moments.restore(state["moments"])
            start = InputPosition(*state["place"])
        counts = Counts(
            owners_of(job.schema), folder, job.counts_memory, job.threads, state=state.get("counts")
        )
        saved = time.monotonic()
        for position, columns in stream(job.inputs, job.reading, job.progress_of("count"), start):
            if time.monotonic() - saved > SAVE_SECONDS and self.events is None:  # else begins again
                write_state(folder, _count_state(totals, position, counts, sharing))
                saved = time.monotonic()
            parts = sharing.parts(columns, job.declared_parts[position.input])
            counted = count(read, columns, parts, counts, self.events)
            totals.add(counted, job.threads)
            if self.events is not None and counted.references is not None:
                self.events.refer(counted.references)
        if self.events is not None:
            self.events.count(counts, job.progress_of("count"))
        return totals, counts

    def encode(
        self, encoder: Encoder, folder: Path, state: dict[str, Any]
    ) -> tuple[dict[str, Written], Extremes]:
        """Encodes every row into the shards of its part: the way of a row.

        raw rows --stream--> columns --encode--> sections --append--> shards
        """
        job, progress = self.job, self.job.progress_of("encode")
        histories = None if self.events is None else self.events.write(encoder, progress)
        columns = encoder.columns_with("references", self.events)
        writers, shared = PartWriters(job, columns, folder, state, histories), SharedChecks(columns)
        for position, raw in stream(job.inputs, job.reading, progress, writers.start.position):
            parts = writers.sharing.parts(raw, job.declared_parts[position.input])
            writers.append(position, encode(encoder, columns, raw, parts, shared))
        # The second pass must have seen the rows of the first.
        if state["rows"] not in (None, writers.num_rows):
            raise ValueError(
                f"the raw files changed while they were prepared: {state['rows']:,} rows in the first "
                f"pass, {writers.num_rows:,} in the second; prepare again"
            )
        return writers.close()


def _count_state(
    totals: Totals, position: InputPosition, counts: Counts, sharing: Sharing
) -> dict[str, Any]:
    counts.spill()
    return {
        "stage": "count",
        "place": astuple(position),
        "rows": totals.rows,
        "training_rows": totals.training_rows,
        "moments": totals.moments.state(),
        "counts": counts.state(),
        "sharing": sharing.state,
        **sharing.settled,
    }


def without_features(schema: Schema) -> Schema:
    """A schema of the same rows, of which fewer columns are read."""
    kept = tuple(f for f in schema.features if f.name in schema.shared and f.name not in schema.histories)
    shared = tuple(f.name for f in kept)
    nothing: dict[str, Any] = {"user": None, "histories": (), "weight": None, "group": None}
    return reading_less(schema, features=kept, shared=shared, **nothing)


def read_state(folder: Path) -> dict[str, Any]:
    if not (folder / STATE_FILE).exists():
        return {}
    return _STATE.read(folder / STATE_FILE)


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    write_text(folder / STATE_FILE, json.dumps(_STATE.sign(state)))
