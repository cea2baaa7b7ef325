"""The first pass of `prepare`: vocabularies and statistics of the training part."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.encode.encoding import (
    owners_of,
    readers_of,
    stored_encoders,
    stored_values,
    without_keys,
)
from hotrows.data.encode.job import Job, Progress, StageProgress, stage_progress, write_state
from hotrows.data.encode.split import Sharing
from hotrows.data.encode.transform import ColumnMoments
from hotrows.data.encode.vocabulary import begin_counts, resume_counts
from hotrows.data.encode.vocabulary_file import Values
from hotrows.data.encode.writing import IdCounts
from hotrows.data.raw.inputs import InputPosition, Reading, stream
from hotrows.data.stored.encoded import StoredVocabulary
from hotrows.runtime.atomic_files import link_or_copy

SAVE_SECONDS = 120.0  # between two saved states of the count


def begin_sharing(job: Job, state: Mapping[str, Any], progress: Progress | None) -> Sharing:
    total, before = state.get("total"), state.get("before")
    if job.split.needs_total and total is None:
        total = _count_rows(job, stage_progress(progress, "lines"))
    if job.split.needs_times and before is None:
        before = _time_bounds(job, stage_progress(progress, "times"))
    of_split = state.get("sharing", {}) if state.get("stage") == "count" else {}
    return Sharing(job.split, job.seed, total, before and (before[0], before[1]), of_split)


def _count_rows(job: Job, progress: StageProgress | None) -> int:
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


def _time_bounds(job: Job, progress: StageProgress | None) -> tuple[int, int]:
    """Returns the times from which rows belong to validation and to test.

    Rows of one time belong to one part, that of the first of them.
    """
    shared = tuple(f for f in job.schema.features if f.name in job.schema.shared)
    timed = dataclasses.replace(job.schema, features=shared, weight=None, group=None)
    seen = IdCounts()
    for _, columns in stream(job.shared, Reading(timed, job.threads, for_training=False), progress):
        assert columns.times is not None
        seen.add(columns.times)
    times, counts = seen.merged()
    ends = np.cumsum(counts)
    starts = ends - counts
    assert job.split.shares is not None
    train, validation, _ = job.split.shares
    cuts = [int(share * int(ends[-1])) for share in (train, train + validation)]
    bounds = np.append(times, np.iinfo(np.int64).max)[np.searchsorted(starts, cuts)]
    return int(bounds[0]), int(bounds[1])


@dataclass
class _Counted:
    """The state of the first pass: statistics, rows, and position in the stream."""

    moments: ColumnMoments
    rows: int = 0
    training_rows: int = 0
    position: InputPosition = field(default_factory=InputPosition)


def learn_encoders(
    job: Job, folder: Path, sharing: Sharing, state: Mapping[str, Any], progress: Progress | None
) -> tuple[dict[str, Any], int | None]:
    """Writes the vocabularies into the folder; returns the encoders' fields and the number of rows.

    The number of rows is None if stored encoders make a first pass unnecessary.
    """
    if job.stored is not None and not job.extends:
        for vocabulary in job.stored.vocabularies.values():
            link_or_copy(job.stored.path / vocabulary.file, folder / vocabulary.file)
        return stored_encoders(job.stored.vocabularies, job.stored.statistics, job.text_rule), None
    counted, vocabulary_counts = _count(job, folder, sharing, state, stage_progress(progress, "count"))
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
    return stored_encoders(written, statistics, job.text_rule), counted.rows


def _count(
    job: Job, folder: Path, sharing: Sharing, state: Mapping[str, Any], progress: StageProgress | None
) -> tuple[_Counted, Any]:
    standard = [i for i, f in enumerate(job.schema.dense) if f.transform == "standard"]
    moments = ColumnMoments(len(standard))
    owners = owners_of(job.schema)
    if state.get("stage") == "count":
        moments.restore(state["moments"])
        counted = _Counted(moments, state["rows"], state["training_rows"], InputPosition(*state["place"]))
        counts = resume_counts(owners, folder, job.counts_memory, job.threads, state["counts"])
    else:
        counted = _Counted(moments)
        counts = begin_counts(owners, folder, job.counts_memory, job.threads)
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


def _count_state(counted: _Counted, counts: Any, sharing: Sharing) -> dict[str, Any]:
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
