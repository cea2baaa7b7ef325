"""The first pass of `prepare`: vocabularies and statistics of the training part."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hotrows.data.encode.encoding import (
    owners_of,
    readers_of,
    stored_encoders,
    stored_values,
    without_keys,
)
from hotrows.data.encode.id_counts import IdCounts
from hotrows.data.encode.job import Job, Progress, StageProgress, stage_progress, write_state
from hotrows.data.encode.split import Sharing
from hotrows.data.encode.transform import ColumnMoments
from hotrows.data.encode.vocabulary import Counts, Values
from hotrows.data.raw.cells import Reading
from hotrows.data.raw.inputs import InputPosition, stream
from hotrows.data.stored.encoded import StoredVocabulary
from hotrows.runtime.atomic_files import link_or_copy
from hotrows.schema import Schema

SAVE_SECONDS = 120.0  # between two saved states of the count


class Counting(Protocol):
    """How rows are counted: here (`CountingHere`), or on the workers of a cluster."""

    def rows(self, job: Job, progress: StageProgress | None) -> int:
        """The number of rows that the split shares out."""
        ...

    def times(self, job: Job, progress: StageProgress | None) -> IdCounts:
        """How many of these rows have each time."""
        ...

    def values(
        self,
        job: Job,
        folder: Path,
        sharing: Sharing,
        state: Mapping[str, Any],
        progress: StageProgress | None,
    ) -> tuple[CountState, Any]:
        """Counts the values of the training part; the second has `write` as `vocabulary.Counts` has."""
        ...


def begin_sharing(
    job: Job, state: Mapping[str, Any], progress: Progress | None, counting: Counting
) -> Sharing:
    total, before = state.get("total"), state.get("before")
    if job.split.needs_total and total is None:
        total = counting.rows(job, stage_progress(progress, "lines"))
    if job.split.needs_times and before is None:
        before = _time_bounds(job, counting.times(job, stage_progress(progress, "times")))
    of_split = state.get("sharing", {}) if state.get("stage") == "count" else {}
    return Sharing(job.split, job.seed, total, before and (before[0], before[1]), of_split)


def without_features(schema: Schema) -> Schema:
    """A schema of the same rows, of which fewer columns are read."""
    shared = tuple(f for f in schema.features if f.name in schema.shared)
    return dataclasses.replace(schema, features=shared, weight=None, group=None)


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


@dataclass
class CountState:
    """The state of the first pass: statistics, rows, and position in the stream."""

    moments: ColumnMoments
    rows: int = 0
    training_rows: int = 0
    position: InputPosition = field(default_factory=InputPosition)


def learn_encoders(
    job: Job,
    folder: Path,
    sharing: Sharing,
    state: Mapping[str, Any],
    progress: Progress | None,
    counting: Counting,
) -> tuple[dict[str, Any], int | None]:
    """Writes the vocabularies into the folder; returns the encoders' fields and the number of rows.

    The number of rows is None if stored encoders make a first pass unnecessary.
    """
    if job.stored is not None and not job.extends:
        for vocabulary in job.stored.vocabularies.values():
            link_or_copy(job.stored.path / vocabulary.file, folder / vocabulary.file)
        return stored_encoders(job.stored.vocabularies, job.stored.statistics), None
    of_stage = stage_progress(progress, "count")
    counted, vocabulary_counts = counting.values(job, folder, sharing, state, of_stage)
    if counted.training_rows == 0:
        names = ", ".join(source.name for source in job.inputs)
        raise ValueError(
            f"the training part has none of the {counted.rows:,} rows of {names}; give more rows, or "
            f"a larger share"
        )
    if job.stored:
        known, statistics = stored_values(job.stored), job.stored.statistics
    else:
        columns = (feature.name for feature in job.schema.dense if feature.transform == "standard")
        known, statistics = {}, dict(zip(columns, counted.moments.statistics(), strict=True))
    written = _merge(job, folder, vocabulary_counts, known, stage_progress(progress, "merge"))
    return stored_encoders(written, statistics), counted.rows


class CountingHere:
    """Counts the rows on this machine; see `Counting`."""

    def rows(self, job: Job, progress: StageProgress | None) -> int:
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

    def times(self, job: Job, progress: StageProgress | None) -> IdCounts:
        how, seen = Reading(without_features(job.schema), job.threads, for_training=False), IdCounts()
        for _, columns in stream(job.shared, how, progress):
            assert columns.times is not None
            seen.add(columns.times)
        return seen

    def values(
        self,
        job: Job,
        folder: Path,
        sharing: Sharing,
        state: Mapping[str, Any],
        progress: StageProgress | None,
    ) -> tuple[CountState, Any]:
        standard = standard_columns(job.schema)
        moments = ColumnMoments(len(standard))
        owners = owners_of(job.schema)
        if state.get("stage") == "count":
            moments.restore(state["moments"])
            counted = CountState(
                moments, state["rows"], state["training_rows"], InputPosition(*state["place"])
            )
        else:
            counted = CountState(moments)
        counts = Counts(owners, folder, job.counts_memory, job.threads, state=state.get("counts"))
        saved = time.monotonic()
        for position, columns in stream(job.inputs, job.reading, progress, counted.position):
            if time.monotonic() - saved > SAVE_SECONDS:
                counted.position = position
                write_state(folder, _count_state(counted, counts, sharing))
                saved = time.monotonic()
            training = job.parts(position, columns, sharing) == 0
            counts.add(without_keys(job.schema, columns.ids), training)
            moments.add(columns.dense[standard], training, job.threads)
            counted.rows += columns.num_rows
            counted.training_rows += int(training.sum())
        return counted, counts


def standard_columns(schema: Schema) -> list[int]:
    """The places of the dense features whose mean and deviation are learned."""
    return [i for i, feature in enumerate(schema.dense) if feature.transform == "standard"]


def _count_state(counted: CountState, counts: Any, sharing: Sharing) -> dict[str, Any]:
    counts.spill()
    return {
        "stage": "count",
        "place": counted.position.to_json(),
        "rows": counted.rows,
        "training_rows": counted.training_rows,
        "moments": counted.moments.state(),
        "counts": counts.state(),
        "sharing": sharing.state,
        **sharing.settled,
    }


def _merge(
    job: Job, folder: Path, counts: Any, known: Mapping[str, Values], progress: StageProgress | None
) -> dict[str, StoredVocabulary]:
    """Writes the vocabularies on several threads."""
    readers = readers_of(job.schema)
    files = [f"vocabulary-{v:05d}.values" for v in range(len(readers))]

    def write(v: int, name: str) -> int:
        return counts.write(v, folder / files[v], name, readers[name][0].min_count, known.get(name))

    written = {}
    with ThreadPoolExecutor(job.threads) as pool:
        sizes = pool.map(write, range(len(readers)), readers)
        for v, (name, num_distinct) in enumerate(zip(readers, sizes, strict=True)):
            written[name] = StoredVocabulary(files[v], num_distinct)
            if progress is not None:
                progress(v + 1, len(readers))
    for run in folder.glob("run-*"):
        run.unlink()  # left by an interruption, of vocabularies that are written
    return written
