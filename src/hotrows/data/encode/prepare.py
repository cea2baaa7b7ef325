"""prepare: raw rows into encoded shards that a trainer maps into memory.

Two passes stream over the inputs. The first counts the values of the training part and gathers its
statistics; the second encodes every row with them. (A split by shares of time first counts the
distinct seconds, in memory.) Memory grows neither with the number of rows nor with the number of
distinct values: counts that would not fit go to sorted files, which are merged (see `vocabulary`).
The first pass checks every row, before a shard is written.

Both passes save their state, so that a preparation that was killed can be resumed:

    count    every two minutes: counts (in files), statistics, and position in the stream
    encode   after every shard: the shards, and the position of the oldest row that is in none yet

Stored encoders (`like`) replace the first pass; with growing ones (`extend`) it counts the values
that the stored vocabularies lack.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hotrows.data.encode.encoding import Encoder, opened_encoder
from hotrows.data.encode.first_pass import Counting, CountingHere, begin_sharing, learn_encoders
from hotrows.data.encode.job import (
    STATE_FILE,
    Job,
    Progress,
    StageProgress,
    job_of,
    read_state,
    stage_progress,
    write_state,
)
from hotrows.data.encode.oddities import oddities, with_extremes
from hotrows.data.encode.rates import ValueRates
from hotrows.data.encode.requests import SharedChecks
from hotrows.data.encode.split import Sharing
from hotrows.data.raw.inputs import InputPosition, stream
from hotrows.data.stored.encoded import EncodedData, Extremes, write_manifest
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.shard_writer import ShardWriter, Written
from hotrows.json_file import build
from hotrows.runtime.atomic_files import new_folder
from hotrows.schema import Schema

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
    validation: more rows, all of which validate. test: more rows, all of which test.
    out: a new folder for the encoded data.
    split: how rows are split into training, validation and test: fraction:A,B,C at random,
        stratified:A,B,C with equal rates of each label, position:A,B,C in order, time:A,B,C by time,
        time:T,U by values of the time; position:A takes validation from the end of the first A
        (default: fraction:0.8,0.1,0.1, or all training if validation or test has rows of its own).
    seed: the seed of a split that draws.
    like: prepared data whose encoders are used unchanged, so that its models fit.
    extend: prepared data whose ids remain and whose vocabularies grow by new values.
    memory: bytes to use on a machine, approximately (default: a quarter of this one's, at least 2 GiB).
    threads: threads on this machine, or tasks that run at once on a cluster (default: one per core).
    progress: called with the stage ("lines", "times", "count", "merge" or "encode"), amount and total.

    With `like` or `extend`, `schema` may be None, and a warning names features whose rates of unknown and
    missing values are far from those of that data. Calling it again resumes an interrupted preparation.
    """
    job = job_of(raw, schema, validation, test, split, seed, like, extend, memory, threads)
    passes: Passes = _PassesHere()
    if job.on_ray:
        from hotrows.data.encode.cluster import passes as on_cluster

        job, passes = on_cluster.passes_on_ray(job, threads)
    with new_folder(Path(out), job.identity()) as folder:
        state = read_state(folder)
        sharing = begin_sharing(job, state, progress, passes)
        if state.get("stage") != "encode":
            encoders, num_rows = learn_encoders(job, folder, sharing, state, progress, passes)
            state = {"stage": "encode", "encoders": encoders, "rows": num_rows, **sharing.settled}
            write_state(folder, state)
        encoder = opened_encoder(job.schema, folder, state["encoders"], job.threads, job.counts_memory)
        of_stage = stage_progress(progress, "encode")
        written, extremes = passes.encode(job, encoder, folder, state, of_stage)
        _finish(job, folder, encoder, state, written, extremes)
    data = EncodedData.open(out)
    _warn_of_empty_parts(data, job)
    if job.stored is not None:
        ValueRates.of_parts(data.parts.values(), job.stored.parts.values()).warn()
    else:
        _warn(data, is_drawn=split is None and set(job.declared_parts) == {None})
    return data


def _warn_of_empty_parts(data: EncodedData, job: Job) -> None:
    for name, is_shared in job.split.sharing.items():
        if is_shared and not data.parts[name].rows:
            log.warning(
                f"the {name} part has no rows, although the split {job.split_text!r} gives it some: give "
                f"more rows or another share (rows of one time, or of one request, stay together)"
            )


def _warn(data: EncodedData, is_drawn: bool) -> None:
    """Warns of what is odd about new data, a line each. is_drawn: its parts are, as nothing was said."""
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


class Passes(Counting, Protocol):
    """Both passes over the rows: here, or on the workers of a cluster."""

    def encode(
        self,
        job: Job,
        encoder: Encoder,
        folder: Path,
        state: dict[str, Any],
        progress: StageProgress | None,
    ) -> tuple[dict[str, Written], Extremes]:
        """Writes the shards of every part into the folder."""
        ...


@dataclass(frozen=True)
class _StreamState:
    """The state before a chunk: position in the stream, rows per part, and state of the split."""

    position: InputPosition
    rows: tuple[int, ...]
    sharing: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"place": self.position.to_json(), "rows": self.rows, "sharing": self.sharing}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> _StreamState:
        return _StreamState(InputPosition(*fields["place"]), tuple(fields["rows"]), fields["sharing"])


class _PassesHere(CountingHere):
    def encode(
        self,
        job: Job,
        encoder: Encoder,
        folder: Path,
        state: dict[str, Any],
        progress: StageProgress | None,
    ) -> tuple[dict[str, Written], Extremes]:
        """Encodes every row into the shards of its part; saves the state after every shard."""
        writers, start = _writers(encoder.schema, folder, state)
        sharing = Sharing(job.split, job.seed, state["total"], state["before"], start.sharing)
        rows, num_rows = list(start.rows), start.position.rows
        extremes = build(Extremes, state.get("encoding", {}).get("extremes", {}))
        shared = SharedChecks(encoder.schema)
        oldest = [start] * len(NAMES)  # per part, the state before the first row that is in no shard
        for position, columns in stream(job.inputs, job.reading, progress, start.position):
            before = _StreamState(position, tuple(rows), sharing.state)
            in_shards = [writer.rows_in_shards for writer in writers]
            encoded, missing = encoder.encode_columns(columns), np.isnan(columns.dense)
            shared.check(encoded, columns)
            part_of_row = job.parts(position, columns, sharing)
            extremes = with_extremes(extremes, encoder.schema, columns)
            for part, writer in enumerate(writers):
                chosen = np.flatnonzero(part_of_row == part)
                if len(chosen) == columns.num_rows:
                    writer.append(encoded, missing)
                elif len(chosen):
                    writer.append(encoded.take(chosen), missing[:, chosen])
                if in_shards[part] == rows[part] or writer.rows_in_shards > in_shards[part]:
                    oldest[part] = before
                rows[part] += len(chosen)
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


def _encoding_state(writers: list[ShardWriter], oldest: list[_StreamState]) -> dict[str, Any]:
    """The shards written, and the state from which to resume without losing a row."""
    start = min(oldest, key=lambda before: before.position.rows)
    return {"start": start.to_json(), "writers": [writer.state() for writer in writers]}


def _writers(
    schema: Schema, folder: Path, state: Mapping[str, Any]
) -> tuple[list[ShardWriter], _StreamState]:
    """Returns the writers of the parts and the state to start from, new or saved."""
    encoding = state.get("encoding")
    if encoding is None:
        start = _StreamState(InputPosition(), (0,) * len(NAMES), {})
        return [ShardWriter(folder, name, schema) for name in NAMES], start
    start = _StreamState.from_json(encoding["start"])
    writers = [
        ShardWriter.resume(folder, name, schema, writer_state, already=writer_state["rows"] - rows)
        for name, writer_state, rows in zip(NAMES, encoding["writers"], start.rows, strict=True)
    ]
    return writers, start


def _finish(
    job: Job,
    folder: Path,
    encoder: Encoder,
    state: Mapping[str, Any],
    written: Mapping[str, Written],
    extremes: Extremes,
) -> None:
    """Writes data.json and removes the saved state."""
    if not written["train"].shards and job.stored is None:
        raise ValueError("the training part has no rows; give more rows, or a larger share")
    extends = job.stored.lineage if job.stored and job.extends else ()
    of_split = (job.split_text, job.seed)
    write_manifest(folder, encoder.schema, written, state["encoders"], *of_split, extends, extremes)
    (folder / STATE_FILE).unlink()
