"""prepare: raw rows into encoded shards that a trainer maps into memory.

    read      raw rows   ->  `Columns`, and the part of each row      raw.inputs, split
    count     columns    ->  `CountedRows`, and the values of their ids   `count`
    fix       counts     ->  vocabularies in files, means             `_fix`
    encode    columns    ->  `EncodedRows`, a `Piece` of each part        `encode`
    write     pieces     ->  `Written` of each part, data.json        stored.shards, stored.encoded

An `Executor` runs `count` over all rows, and then `encode`: on this machine, or on a cluster of Ray.
Memory grows neither with the number of rows nor with the number of distinct values: counts that would not
fit go to sorted files, which are merged (see `vocabulary`). The first pass checks every row, before a
shard is written. (A split by shares of time first counts the distinct seconds, in memory.)

Both passes save their state, so that a preparation that was killed can be resumed:

    count    every two minutes: counts (in files), statistics, and position in the stream
    encode   after every shard: the shards, and the position of the oldest row that is in none yet

Stored encoders (`like`) replace the first pass; with growing ones (`extend`) it counts the values
that the stored vocabularies lack.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.encode.encoder import (
    ColumnMoments,
    Encoder,
    opened_encoder,
    owners_of,
    readers_of,
    stored_encoders,
    stored_values,
    without_keys,
)
from hotrows.data.encode.job import STATE_FILE, Job, Progress, job_of, read_state, write_state
from hotrows.data.encode.oddities import oddities
from hotrows.data.encode.rates import ValueRates
from hotrows.data.encode.split import SharedChecks, Sharing
from hotrows.data.encode.vocabulary import Counts, IdCounts
from hotrows.data.raw.cells import Columns, Reading
from hotrows.data.raw.inputs import InputPosition, stream
from hotrows.data.stored.encoded import EncodedData, Extremes, StoredVocabulary, write_manifest
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.rows import Rows
from hotrows.data.stored.shards import ShardWriter, Written
from hotrows.json_file import build
from hotrows.runtime.atomic_files import link_or_copy, new_folder
from hotrows.schema import Schema

SAVE_SECONDS = 120.0  # between two saved states of the count

log = logging.getLogger("hotrows")


def prepare(
    raw: Any,
    schema: Schema | None,
    out: Path | str,
    *,
    validation: Any = (),
    test: Any = (),
    split: str | None = None,
    seed: int = 0,
    like: Path | str | None = None,
    extend: Path | str | None = None,
    memory: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> EncodedData:
    """Encodes raw rows into the new folder `out`.

    raw: a path, glob, folder or URL of text, JSON lines, Parquet, Arrow or ORC, an Arrow table, a frame,
        a dict of columns, a dataset of Ray Data, whose cluster then does the work, or a list of these.
    validation, test: further rows, all of which belong to these parts.
    split: distribution of the rows of `raw` over the parts, see `parse_split`; by default
        fraction:0.8,0.1,0.1, or all training where `validation` or `test` is passed.
    seed: of a split that draws.
    like: prepared data whose encoders are used unchanged, so that its models fit.
    extend: prepared data whose ids remain and whose vocabularies grow by new values.
        Either provides its schema; `schema` may be None.
    memory: bytes to use on a machine, approximately (default: a quarter of this one's, at least 2 GiB).
    threads: on this machine (default: its cores); of a cluster, how many tasks run at once (default: as
        many as it has processors).
    progress: called with the stage ("lines", "times", "count", "merge" or "encode"), the amount read
        and the total.

    With `like` or `extend`, a warning names features whose rates of unknown and missing values are far
    from those of that data. Calling it again after an interruption resumes the preparation.
    """
    job = job_of(raw, schema, validation, test, split, seed, like, extend, memory, threads, progress)
    executor = Executor(job)
    if job.on_ray:
        from hotrows.data.encode.cluster.passes import OnRay

        executor = OnRay(job, threads)
    with new_folder(Path(out), job.identity()) as folder:
        state = read_state(folder)
        sharing = _sharing(executor, state)
        if state.get("stage") != "encode":
            encoders, num_rows = _learned(executor, folder, sharing, state)
            state = {"stage": "encode", "encoders": encoders, "rows": num_rows, **sharing.settled}
            write_state(folder, state)
        encoder = opened_encoder(job.schema, folder, state["encoders"], job.threads, job.counts_memory)
        written, extremes = executor.encode(encoder, folder, state)
        if not written["train"].shards and job.stored is None:
            raise ValueError("the training part has no rows; give more rows, or a larger share")
        extends = job.stored.lineage if job.stored and job.extends else ()
        of_split = (job.split_text, job.seed)
        write_manifest(folder, encoder.schema, written, state["encoders"], *of_split, extends, extremes)
        (folder / STATE_FILE).unlink()
    data = EncodedData.open(out)
    _warn(data, job, is_drawn=split is None and set(job.declared_parts) == {None})
    return data


@dataclass(frozen=True)
class CountedRows:
    """Counts of some rows, beside those of their values.

    numbers: [standard features, training rows] float64, in the order of the rows.
    """

    rows: int
    numbers: np.ndarray


def count(schema: Schema, columns: Columns, parts: np.ndarray, counts: Counts) -> CountedRows:
    """Adds the values of the training part to the counts. parts: of each row, [rows] uint8."""
    training = parts == 0
    counts.add(without_keys(schema, columns.ids), training)
    return CountedRows(columns.num_rows, columns.dense[standard_columns(schema)][:, training])


Piece = tuple[Rows, np.ndarray]  # encoded rows of a part, and [num_dense, rows] which numbers are missing


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows: a piece of each part, None where it has none of them, and the raw ones' extremes."""

    pieces: tuple[Piece | None, ...]
    extremes: Extremes


def encode(encoder: Encoder, columns: Columns, parts: np.ndarray, shared: SharedChecks) -> EncodedRows:
    """Encodes rows. parts: of each row, [rows] uint8; shared: checks of the rows so far."""
    rows, missing = encoder.encode_columns(columns), np.isnan(columns.dense)
    shared.check(rows, columns)
    pieces: list[Piece | None] = []
    for part in range(len(NAMES)):
        chosen = np.flatnonzero(parts == part)
        if len(chosen) == len(rows):
            pieces.append((rows, missing))
        else:
            pieces.append((rows.take(chosen), missing[:, chosen]) if len(chosen) else None)
    return EncodedRows(tuple(pieces), Extremes.of_rows(encoder.schema, columns))


@dataclass
class Totals:
    """What was counted so far: rows, and the moments of `standard` numbers."""

    moments: ColumnMoments
    rows: int = 0
    training_rows: int = 0

    def add(self, counted: CountedRows, threads: int) -> None:
        self.moments.add(counted.numbers, threads)
        self.rows += counted.rows
        self.training_rows += counted.numbers.shape[1]


class Executor:
    """Runs both functions over all rows: on this machine, chunk after chunk."""

    def __init__(self, job: Job) -> None:
        self.job = job

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
            if progress is not None:
                progress(sum(sizes[: i + 1]), sum(sizes))
        return total

    def times(self) -> IdCounts:
        """How many of these rows have each time."""
        schema, seen = without_features(self.job.schema), IdCounts()
        how = Reading(schema, self.job.threads, for_training=False)
        for _, columns in stream(self.job.shared, how, self.job.progress_of("times")):
            assert columns.times is not None
            seen.add(columns.times)
        return seen

    def count(self, folder: Path, sharing: Sharing, state: Mapping[str, Any]) -> tuple[Totals, Any]:
        """Counts all rows; the second has `write` as `vocabulary.Counts` has."""
        job, start = self.job, InputPosition()
        totals = Totals(ColumnMoments(len(standard_columns(job.schema))))
        if state.get("stage") == "count":
            totals = Totals(totals.moments, state["rows"], state["training_rows"])
            totals.moments.restore(state["moments"])
            start = InputPosition(*state["place"])
        counts = Counts(
            owners_of(job.schema), folder, job.counts_memory, job.threads, state=state.get("counts")
        )
        saved = time.monotonic()
        for position, columns in stream(job.inputs, job.reading, job.progress_of("count"), start):
            if time.monotonic() - saved > SAVE_SECONDS:
                write_state(folder, _count_state(totals, position, counts, sharing))
                saved = time.monotonic()
            parts = job.parts(position, columns, sharing)
            totals.add(count(job.schema, columns, parts, counts), job.threads)
        return totals, counts

    def encode(
        self, encoder: Encoder, folder: Path, state: dict[str, Any]
    ) -> tuple[dict[str, Written], Extremes]:
        """Encodes every row into the shards of its part; saves the state after every shard."""
        job = self.job
        writers, start = _writers(encoder.schema, folder, state)
        sharing = Sharing(job.split, job.seed, state["total"], state["before"], start.sharing)
        rows, num_rows = list(start.rows), start.position.rows
        extremes = build(Extremes, state.get("encoding", {}).get("extremes", {}))
        shared = SharedChecks(encoder.schema)
        oldest = [start] * len(NAMES)  # per part, the state before the first row that is in no shard
        for position, columns in stream(
            job.inputs, job.reading, job.progress_of("encode"), start.position
        ):
            before = _StreamState(position, tuple(rows), sharing.state)
            in_shards = [writer.rows_in_shards for writer in writers]
            encoded = encode(encoder, columns, job.parts(position, columns, sharing), shared)
            extremes = extremes.joined(encoded.extremes)
            for part, (writer, piece) in enumerate(zip(writers, encoded.pieces, strict=True)):
                if piece is not None:
                    writer.append(*piece)
                if in_shards[part] == rows[part] or writer.rows_in_shards > in_shards[part]:
                    oldest[part] = before
                rows[part] += 0 if piece is None else len(piece[0])
            num_rows += columns.num_rows
            if [writer.rows_in_shards for writer in writers] != in_shards:
                encoding = {**_encoding_state(writers, oldest), "extremes": asdict(extremes)}
                write_state(folder, state | {"encoding": encoding})
        if state["rows"] not in (None, num_rows):
            raise ValueError(
                f"the raw files changed while they were prepared: {state['rows']:,} rows in the first "
                f"pass, {num_rows:,} in the second; prepare again"
            )
        return dict(zip(NAMES, (writer.close() for writer in writers), strict=True)), extremes


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


@dataclass(frozen=True)
class _StreamState:
    """The state before a chunk: position in the stream, rows per part, and state of the split."""

    position: InputPosition
    rows: tuple[int, ...]
    sharing: dict[str, int]


def _encoding_state(writers: list[ShardWriter], oldest: list[_StreamState]) -> dict[str, Any]:
    """The shards written, and the state from which to resume without losing a row."""
    start = min(oldest, key=lambda before: before.position.rows)
    return {"start": asdict(start), "writers": [writer.state() for writer in writers]}


def _writers(
    schema: Schema, folder: Path, state: Mapping[str, Any]
) -> tuple[list[ShardWriter], _StreamState]:
    """Returns the writers of the parts and the state to start from, new or saved."""
    encoding = state.get("encoding")
    if encoding is None:
        start = _StreamState(InputPosition(), (0,) * len(NAMES), {})
        return [ShardWriter(folder, name, schema) for name in NAMES], start
    start = build(_StreamState, encoding["start"])
    writers = [
        ShardWriter.resume(folder, name, schema, writer_state, already=writer_state["rows"] - rows)
        for name, writer_state, rows in zip(NAMES, encoding["writers"], start.rows, strict=True)
    ]
    return writers, start


def without_features(schema: Schema) -> Schema:
    """A schema of the same rows, of which fewer columns are read."""
    shared = tuple(f for f in schema.features if f.name in schema.shared)
    return dataclasses.replace(schema, features=shared, weight=None, group=None)


def standard_columns(schema: Schema) -> list[int]:
    """The places of the dense features whose mean and deviation are learned."""
    return [i for i, feature in enumerate(schema.dense) if feature.transform == "standard"]


def _sharing(executor: Executor, state: Mapping[str, Any]) -> Sharing:
    """The split before the first row, or where it was interrupted; counts what it must know before."""
    job, total, before = executor.job, state.get("total"), state.get("before")
    if job.split.needs_total and total is None:
        total = executor.num_rows()
    if job.split.needs_times and before is None:
        before = _time_bounds(job, executor.times())
    of_split = state.get("sharing", {}) if state.get("stage") == "count" else {}
    return Sharing(job.split, job.seed, total, before and (before[0], before[1]), of_split)


def _time_bounds(job: Job, seen: IdCounts) -> tuple[int, int]:
    """Returns the times from which rows belong to validation and to test.

    Rows of one time belong to one part, that of the first of them.
    """
    times, counts = seen.merged()
    ends = np.cumsum(counts)
    starts = ends - counts
    assert job.split.shares is not None
    train, validation, _ = job.split.shares
    cuts = [int(share * int(ends[-1])) for share in (train, train + validation)]
    bounds = np.append(times, np.iinfo(np.int64).max)[np.searchsorted(starts, cuts)]
    return int(bounds[0]), int(bounds[1])


def _learned(
    executor: Executor, folder: Path, sharing: Sharing, state: Mapping[str, Any]
) -> tuple[dict[str, Any], int | None]:
    """Writes the vocabularies into the folder; returns the encoders' fields and the number of rows.

    The number of rows is None if stored encoders make a first pass unnecessary.
    """
    job = executor.job
    if job.stored is not None and not job.extends:
        for vocabulary in job.stored.vocabularies.values():
            link_or_copy(job.stored.path / vocabulary.file, folder / vocabulary.file)
        return stored_encoders(job.stored.vocabularies, job.stored.statistics), None
    totals, counts = executor.count(folder, sharing, state)
    if totals.training_rows == 0:
        names = ", ".join(source.name for source in job.inputs)
        raise ValueError(
            f"the training part has none of the {totals.rows:,} rows of {names}; give more rows, or "
            f"a larger share"
        )
    return _fix(job, folder, totals, counts), totals.rows


def _fix(job: Job, folder: Path, totals: Totals, counts: Any) -> dict[str, Any]:
    """Writes the vocabularies, on several threads; returns the encoders' fields."""
    known = stored_values(job.stored) if job.stored else {}
    readers, progress = readers_of(job.schema), job.progress_of("merge")
    files = [f"vocabulary-{v:05d}.values" for v in range(len(readers))]

    def write(v: int, name: str) -> int:
        return counts.write(v, folder / files[v], name, readers[name][0].min_count, known.get(name))

    vocabularies = {}
    with ThreadPoolExecutor(job.threads) as pool:
        sizes = pool.map(write, range(len(readers)), readers)
        for v, (name, num_distinct) in enumerate(zip(readers, sizes, strict=True)):
            vocabularies[name] = StoredVocabulary(files[v], num_distinct)
            if progress is not None:
                progress(v + 1, len(readers))
    for run in folder.glob("run-*"):
        run.unlink()  # left by an interruption, of vocabularies that are written
    if job.stored:
        return stored_encoders(vocabularies, job.stored.statistics)
    names = [job.schema.dense[place].name for place in standard_columns(job.schema)]
    return stored_encoders(vocabularies, dict(zip(names, totals.moments.statistics(), strict=True)))


def _warn(data: EncodedData, job: Job, is_drawn: bool) -> None:
    """Warns of what is odd about the data, a line each. is_drawn: its parts are, as nothing was said."""
    for name, is_shared in job.split.sharing.items():
        if is_shared and not data.parts[name].rows:
            log.warning(
                f"the {name} part has no rows, although the split {job.split_text!r} gives it some: give "
                f"more rows or another share (rows of one time, or of one request, stay together)"
            )
    if job.stored is not None:
        ValueRates.of_parts(data.parts.values(), job.stored.parts.values()).warn()
        return
    if is_drawn and data.schema.time is not None:
        log.info(
            "parts were drawn at random although the schema has a time: to be tested on what comes "
            "later, as in use, take --split time:0.8,0.1,0.1"
        )
    if not data.parts["validation"].rows:
        log.warning(
            "no rows validate, so that no checkpoint is chosen as the best: give --validation FILE, or "
            "--split fraction:0.9 with --test FILE, or fraction:0.8,0.1,0.1"
        )
    try:
        lines = list(oddities(data))
    except ValueError as error:  # of a shard that was written before an interruption
        raise ValueError(f"{data.path} is damaged; prepare the data again: {error}") from error
    for line in lines:
        log.warning(line)
