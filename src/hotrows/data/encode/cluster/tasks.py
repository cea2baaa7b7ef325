"""The tasks of a cluster's workers: pure functions of blocks of rows, which may be done again.

Each reads its blocks as one machine would read the same rows, with their numbers among all rows; so the
parts of rows, ids and shards do not depend on where the blocks were cut. Files are written into a folder
of the attempt and renamed to their names when they are complete: a worker that is killed leaves nothing
that is read, and one that does its work twice writes the same bytes twice.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.columns.stream import rows_of_candidates
from hotrows.data.encode.encoder import Encoder, opened_encoder, owners_of
from hotrows.data.encode.events import EventIndex, Matches
from hotrows.data.encode.passes import CountedRows, without_features
from hotrows.data.encode.passes import count as count_rows
from hotrows.data.encode.passes import encode as encode_rows
from hotrows.data.encode.split import SharedChecks, Sharing, Split
from hotrows.data.encode.vocabulary import Counts, IdCounts, open_values
from hotrows.data.raw.cells import table_cells
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.tables import table_of
from hotrows.data.raw.values import RawIds, hash_values, mix64
from hotrows.data.rows import RawRows, Room, Rows, gathered, narrowed
from hotrows.data.stored.encoded import Extremes
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.shards import ShardWriter
from hotrows.runtime.atomic_files import link_or_copy
from hotrows.schema import Schema

ATTEMPT = "attempt-"  # begins the names of folders that a task works in
_RUNS = 1 << 20  # that a task can write, of one vocabulary
_SAMPLED = 64  # one of so many rows is in the digest


@dataclass(frozen=True)
class ClusterWork:
    """The arguments that all tasks of a pass share.

    token: another one for every pass; folder: that all machines see; total, before: of the split, see
    `Sharing`; memory: bytes a task may use for vocabularies; encoders: see `stored_encoders`; known: by
    vocabulary the file of the values that precede new ones.
    """

    token: str
    schema: Schema = field(compare=False)
    folder: Path = field(compare=False)
    memory: int = field(compare=False)
    split: Split = field(compare=False)
    seed: int = field(compare=False)
    total: int | None = field(default=None, compare=False)
    before: tuple[int, int] | None = field(default=None, compare=False)
    encoders: Mapping[str, Any] = field(default_factory=dict, compare=False)
    known: Mapping[str, Path] = field(default_factory=dict, compare=False)

    def reading(self, features: bool = True) -> Reading:
        if not features:
            return Reading(without_features(self.schema), 1, False)
        return Reading(self.schema, 1, by=self.split.by, histories="references")

    def events(self) -> EventIndex | None:
        """The sorted events, in which a task finds the histories of its samples."""
        return EventIndex(self.schema, self.folder) if self.schema.histories else None

    def sharing(self, state: Mapping[str, int]) -> Sharing:
        return Sharing(self.split, self.seed, self.total, self.before, dict(state))


@dataclass(frozen=True)
class BlockPlace:
    """Where a block belongs.

    name: of its dataset; first: number of its first row in the dataset; first_row: number of its first
    sample among those of all datasets; rows: how many samples it has, None: they cannot be read; cut:
    which rows of the block are read; part: that all belong to, None: the split decides; sharing: state of
    the split before the first of them.
    """

    name: str
    first: int
    first_row: int = 0
    rows: int | None = None
    cut: slice | None = None
    part: int | None = None
    sharing: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Surveyed:
    """The number of samples of a block, and how many of each label a stratified split counts.

    rows: None where they cannot be read; the task that reads all columns says why.
    """

    rows: int | None
    sharing: Mapping[str, int]


def survey(work: ClusterWork, place: BlockPlace, block: Any) -> Surveyed:
    """Surveys a block before its samples have numbers: how many it has, and of which labels."""
    sharing, rows = work.sharing({}), 0
    try:
        for columns in _columns(work, place, block, work.reading(features=False)):
            rows += columns.num_rows
            if work.split.kind == "stratified":
                sharing.parts(columns)
    except ValueError:
        return Surveyed(None, {})
    return Surveyed(rows, sharing.state)


def count_times(work: ClusterWork, place: BlockPlace, block: Any) -> tuple[np.ndarray, np.ndarray]:
    """The distinct times of a block, and how many samples have each."""
    seen = IdCounts()
    for columns in _columns(work, place, block, work.reading(features=False)):
        seen.add(columns.values["times"])
    return seen.merged()


@dataclass(frozen=True)
class BlockCounts:
    """Counts of blocks. runs: see `keep_runs`; digest: see `digest_of`; matches: with the events."""

    counted: CountedRows
    runs: tuple[tuple[int, ...], ...]
    digest: int
    matches: Matches | None


def count(work: ClusterWork, number: int, places: Sequence[BlockPlace], *blocks: Any) -> BlockCounts:
    """Counts the values of the training part of neighbouring blocks into run files, and into another
    one the references of its histories."""
    owners = owners_of(work.schema)
    read = SchemaColumns(work.schema, histories="references")
    rows, numbers, digest = 0, [np.zeros((len(read.numbers.standard), 0))], 0
    with _attempt(work) as folder:
        counts, events = Counts(owners, folder, work.memory, 1), work.events()
        with open(folder / "references", "wb") as references:
            for columns, parts in _chunks(work, places, blocks):
                counted = count_rows(read, columns, parts, counts, events)
                rows += counted.rows
                numbers.append(counted.numbers)
                digest += digest_of(columns)
                if counted.references is not None:
                    references.write(counted.references.data)
        if events is not None:
            os.replace(references.name, events.references_of(number))
        runs = keep_runs(counts, owners, work.folder, number)
    counted = CountedRows(rows, np.concatenate(numbers, 1))
    matches = None if events is None else events.matches
    return BlockCounts(counted, runs, digest % (1 << 64), matches)


def keep_runs(
    counts: Counts, owners: Sequence[int], folder: Path, number: int
) -> tuple[tuple[int, ...], ...]:
    """Moves the run files of counts into the folder; returns their numbers, per vocabulary. number: of
    the task, for names that no other has."""
    counts.spill()
    runs = []
    for v in range(len(set(owners))):
        files = counts.runs(v)
        assert len(files) < _RUNS
        runs.append(tuple(number * _RUNS + n for n in range(len(files))))
        for file, run in zip(files, runs[v], strict=True):
            os.replace(file, folder / _run(v, run))
    return tuple(runs)


def write_vocabulary(
    work: ClusterWork, v: int, runs: Sequence[int], file: str, name: str, min_count: int
) -> int:
    """Merges the runs of vocabulary v into its file; returns how many distinct values were seen."""
    with _attempt(work) as folder:
        for run in runs:
            link_or_copy(work.folder / _run(v, run), folder / _run(0, run))
        names = [_run(0, run) for run in runs]
        state = {"runs": [names], "num_runs": max(runs, default=-1) + 1}
        counts = Counts([0], folder, work.memory, 1, state)
        known = open_values(work.known[name]) if name in work.known else None
        num_distinct = counts.write(0, folder / file, name, min_count, known)
        os.replace(folder / file, work.folder / file)
    return num_distinct


@dataclass(frozen=True)
class EncodedBlocks:
    """Encoded blocks without their rows. rows: in each part; first, last: samples, where those of a
    request share features; digest: see `digest_of`; matches: with the events."""

    rows: tuple[int, ...]
    extremes: Extremes
    digest: int
    first: tuple[Rows, RawRows] | None
    last: Rows | None
    matches: Matches | None


def encode(
    work: ClusterWork, places: Sequence[BlockPlace], *blocks: Any
) -> tuple[EncodedBlocks | Rows | None, ...]:
    """Encodes neighbouring blocks: what is known of them, and their rows of each part."""
    encoder, events = _encoder(work), work.events()
    by = encoder.columns_with("references", events)
    pieces: list[list[Rows]] = [[] for _ in NAMES]
    shared, extremes, digest = SharedChecks(by), Extremes(), 0
    for columns, parts in _chunks(work, places, blocks):
        encoded = encode_rows(encoder, by, columns, parts, shared)
        extremes = extremes.joined(encoded.extremes)
        digest += digest_of(columns)
        for of_part, piece in zip(pieces, encoded.pieces, strict=True):
            of_part += [] if piece is None else [narrowed(piece, by.sections)]
    sizes = tuple(sum(map(len, of_part)) for of_part in pieces)
    matches = None if events is None else events.matches
    known = EncodedBlocks(sizes, extremes, digest % (1 << 64), shared.first, shared.last, matches)
    return known, *(
        gathered(of_part, np.arange(size), Room()) if size else None
        for of_part, size in zip(pieces, sizes, strict=True)
    )


def write_shard(
    work: ClusterWork, part: str, number: int, spans: Sequence[slice], *pieces: Rows
) -> tuple[str, int, dict[str, list[int]]]:
    """Writes spans of pieces, end to end, as one shard: its name, its rows, and their tally."""
    size, events = sum(span.stop - span.start for span in spans), work.events()
    histories = None if events is None else events.stored(work.schema)
    columns = SchemaColumns(work.schema, histories="references", events=events)
    with _attempt(work) as folder:
        writer = ShardWriter(folder, part, columns, size, number=number, histories=histories)
        for span, rows in zip(spans, pieces, strict=True):
            writer.append(rows[span])
        (shard,) = writer.close().shards
        os.replace(folder / shard.file, work.folder / shard.file)
    return shard.file, size, writer.state()["tally"]


def digest_of(raw: RawRows) -> int:
    """A number that differs where rows have other values or another order; of a chunk, it is the sum of
    its rows' numbers, modulo 2^64. One row of 64 is looked at."""
    rows = np.arange(-raw.first_row % _SAMPLED, raw.num_rows, _SAMPLED)
    hashes = mix64((rows + raw.first_row).astype(np.uint64))
    with np.errstate(over="ignore"):
        for values in raw.values.values():
            if isinstance(values, RawIds) and values.offsets is None:
                sampled = RawIds(values.text, values.starts[rows], values.lengths[rows])
                hashes = mix64(hashes + hash_values(sampled))
        for numbers in raw.values["dense"]:
            hashes = mix64(hashes + numbers[rows].view(np.uint64))
        return int(hashes.sum(dtype=np.uint64))


def _chunks(
    work: ClusterWork, places: Sequence[BlockPlace], blocks: Sequence[Any]
) -> Iterator[tuple[RawRows, np.ndarray]]:
    """The columns of neighbouring blocks, and the part of each row."""
    for place, block in zip(places, blocks, strict=True):
        if place.rows is None:
            deque(_columns(work, place, block, work.reading()), 0)  # raises
        sharing = work.sharing(place.sharing)
        for columns in _columns(work, place, block, work.reading()):
            yield columns, sharing.parts(columns, place.part)


def _columns(work: ClusterWork, place: BlockPlace, block: Any, how: Reading) -> Iterator[RawRows]:
    """The columns of a block's rows, with their numbers."""
    first_row, columns = place.first_row, SchemaColumns(how.schema, histories=how.histories)
    for cells in table_cells(table_of(block, place.cut), place.name, how, place.first):
        for part in rows_of_candidates(cells, columns):
            yield replace(columns.read(part), first_row=first_row)
            first_row += part.num_rows


def _run(v: int, number: int) -> str:
    """The name of a run file, as `Counts` names it."""
    return f"run-{v:05d}-{number}"


@contextmanager
def _attempt(work: ClusterWork) -> Iterator[Path]:
    _check_folder(work)
    with tempfile.TemporaryDirectory(prefix=ATTEMPT, dir=work.folder) as folder:
        yield Path(folder)


def _check_folder(work: ClusterWork) -> None:
    if not work.folder.is_dir():
        raise ValueError(
            f"the machine {platform.node()} of the cluster does not see the folder {work.folder}; name "
            f"one on a file system that all its machines share"
        )


@lru_cache(1)
def _encoder(work: ClusterWork) -> Encoder:
    """The encoder, which a worker opens once."""
    _check_folder(work)
    return opened_encoder(work.schema, work.folder, work.encoders, 1, work.memory)
