"""prepare: raw rows into encoded shards that a trainer maps into memory.

Two passes stream over the inputs. The first counts the values of the training part and gathers its
statistics; the second encodes every row with them. (A split by shares of time counts the seconds there
are before; these are held in memory.) Memory grows neither with the number of rows nor
with the number of distinct values: counts that would not fit go to sorted files, which are merged
(see `vocabulary`). Every row is checked in the first pass, before a shard is written.

Both passes note where they are, so that a preparation that was killed goes on:

    count    every two minutes: what was counted goes to files; place in the stream, statistics
    encode   after every shard: the shards there are, and the place where the oldest of the rows
             stands that are in none yet

With stored encoders (`like`) the first pass is left out; with growing ones (`extend`) it finds the
values that the stored vocabularies lack.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.aside import link_or_copy, resumed_aside, write_json_aside
from hotrows.data.columns import Columns
from hotrows.data.encoded import (
    VERSION,
    EncodedData,
    StoredVocabulary,
    write_manifest,
)
from hotrows.data.encoding import (
    Encoder,
    owners_of,
    readers_of,
    stored_encoders,
    stored_values,
)
from hotrows.data.foreign import num_threads
from hotrows.data.inputs import Input, Place, Reading, inputs_of, stream
from hotrows.data.shards import ShardWriter, Written
from hotrows.data.split import NAMES, Sharing, Split, parse_split
from hotrows.data.transform import Moments, Statistics
from hotrows.data.values import plain_time
from hotrows.data.vocabulary import Values, counts, open_values, resume_counts
from hotrows.data.writing import IdCounts
from hotrows.schema import Schema

Progress = Callable[[str, int, int], None]
Shown = Callable[[int, int], None]

SAVE_SECONDS = 120.0  # between two notes of where counting is
_STATE = "state.json"
_BESIDE = 768 << 20  # bytes that preparing takes beside what it counts: libraries, chunks, shards
_ALL_TRAIN = "fraction:1,0,0"


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

    raw: a path, glob, folder or URL of text or Parquet, an Arrow table, a pandas or Polars frame, or
        a list of these; validation, test: the same, for rows that are of these parts by themselves.
    split: how the rows of `raw` are shared out, see `parse_split`; by default fraction:0.8,0.1,0.1,
        or where parts are given all to training. seed: of a split that draws.
    like: prepared data whose encoders are used as they are, so that its models fit.
    extend: prepared data whose ids stay and whose vocabularies grow by the values that are new.
        Either brings its schema; `schema` may be None.
    memory: bytes to stay within, about; None: a quarter of the machine's, at least 2 GiB.
    progress: told the stage ("lines", "times", "count", "merge" or "encode"), and how much of how
        much it has read.

    A preparation that was interrupted goes on where it was when it is asked for again.
    """
    job = _job(raw, schema, validation, test, split, seed, like, extend, memory, threads)
    with resumed_aside(Path(out), job.identity()) as folder:
        state = _read_state(folder)
        sharing = _sharing(job, state, progress)
        if state.get("stage") != "encode":
            vocabularies, statistics, num_rows = _encoders(job, folder, sharing, state, progress)
            state = _encode_state(vocabularies, statistics, num_rows, sharing)
            _write_state(folder, state)
        encoder = _encoder(job, folder, state)
        written = _encode(job, encoder, folder, state, _stage(progress, "encode"))
        _finish(job, folder, encoder, state, written)
    return EncodedData.open(out)


@dataclass(frozen=True)
class _Job:
    """What is to be prepared. given: the part that each input says, None where the split does."""

    inputs: tuple[Input, ...]
    given: tuple[int | None, ...]
    schema: Schema
    split_text: str
    split: Split
    seed: int
    stored: EncodedData | None
    extends: bool
    memory: int
    threads: int

    @property
    def reading(self) -> Reading:
        return Reading(self.schema, self.threads)

    @property
    def shared(self) -> tuple[Input, ...]:
        """The inputs whose rows the split shares out."""
        return tuple(of for of, part in zip(self.inputs, self.given, strict=True) if part is None)

    @property
    def counts_memory(self) -> int:
        """What counts and indexes of vocabularies may take."""
        return max(self.memory - _BESIDE, self.memory // 4)

    def parts(self, place: Place, columns: Columns, sharing: Sharing) -> np.ndarray:
        """[rows] uint8, the part of each row."""
        given = self.given[place.input]
        if given is None:
            return sharing.parts(columns)
        return np.full(columns.num_rows, given, np.uint8)

    def identity(self) -> dict[str, Any] | None:
        """What an interrupted preparation must have in common with this one to go on as it."""
        stamps = [of.stamp for of in self.inputs]
        if None in stamps:
            return None
        return {
            "prepare": VERSION,
            "inputs": stamps,
            "given": self.given,
            "schema": json.loads(self.schema.to_json()),
            "split": self.split_text,
            "seed": self.seed,
            "stored": self.stored and [self.stored.fingerprint, self.extends],
        }


def _job(
    raw: Any,
    schema: Schema | None,
    validation: Any,
    test: Any,
    split: str | None,
    seed: int,
    like: Path | str | None,
    extend: Path | str | None,
    memory: int | None,
    threads: int | None,
) -> _Job:
    stored = _stored(like, extend)
    schema = _settled(schema, stored)
    groups = [inputs_of(of) for of in (raw, validation, test)]
    if not groups[0]:
        raise ValueError("no raw files to prepare; name at least one")
    text = split or (_ALL_TRAIN if groups[1] or groups[2] else "fraction:0.8,0.1,0.1")
    return _Job(
        inputs=tuple(of for group in groups for of in group),
        given=tuple(part for part, group in zip((None, 1, 2), groups, strict=True) for _ in group),
        schema=schema,
        split_text=text,
        split=_split(text, schema),
        seed=seed,
        stored=stored,
        extends=extend is not None,
        memory=memory or _sensible_memory(),
        threads=num_threads(threads),
    )


def _stored(like: Path | str | None, extend: Path | str | None) -> EncodedData | None:
    if like is not None and extend is not None:
        raise ValueError("give either like= (encoders as they are) or extend= (growing), not both")
    folder = extend if like is None else like
    if folder is None:
        return None
    data = EncodedData.open(folder)
    stored_values(data)  # says so where there are none
    return data


def _settled(schema: Schema | None, stored: EncodedData | None) -> Schema:
    """The schema to prepare with: that of the stored encoders, where there are any."""
    if stored is None and schema is None:
        raise ValueError("prepare needs a schema: one of your own, or that of stored data (like=)")
    if stored is None:
        assert schema is not None
        readers_of(schema)
        return schema
    if schema is not None and _without_rows(schema) != _without_rows(stored.schema):
        raise ValueError(
            f"the schema differs from that of {stored.path}, whose encoders are to be used; leave "
            f"the schema out, or prepare without them"
        )
    return stored.schema


def _without_rows(schema: Schema) -> Schema:
    return schema.with_rows(dict.fromkeys(readers_of(schema)))  # type: ignore[arg-type]


def _split(text: str, schema: Schema) -> Split:
    def parse(word: str) -> int:
        assert schema.time is not None
        for form in (schema.time.format, "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"):
            if (found := plain_time(word.encode(), form)) is not None:
                return found
        raise ValueError(
            f"split {text!r}: {word!r} is no time in the format {schema.time.format!r}"
        )

    split = parse_split(text, parse if schema.time else None)
    if split.kind == "time" and schema.time is None:
        raise ValueError(
            f"split {text!r} needs to know the time: say which column that is, time=Time(COLUMN)"
        )
    return split


def _sensible_memory() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(physical // 4, 2 << 30)


# ---- what the split must know before the first row


def _sharing(job: _Job, state: Mapping[str, Any], progress: Progress | None) -> Sharing:
    total, before = state.get("total"), state.get("before")
    if job.split.needs_total and total is None:
        total = _count_rows(job, _stage(progress, "lines"))
    if job.split.needs_times and before is None:
        before = _time_bounds(job, _stage(progress, "times"))
    of_split = state.get("sharing", {}) if state.get("stage") == "count" else {}
    return Sharing(job.split, job.seed, total, before and (before[0], before[1]), of_split)


def _count_rows(job: _Job, progress: Shown | None) -> int:
    sizes = [of.size for of in job.shared]
    total = 0
    for i, of in enumerate(job.shared):
        total += of.count_rows(job.schema)
        if progress is not None:
            progress(sum(sizes[: i + 1]), sum(sizes))
    return total


def _time_bounds(job: _Job, progress: Shown | None) -> tuple[int, int]:
    """The times from which on rows validate and test.

    Rows of one time stay together, in the part of the first of them.
    """
    timed = dataclasses.replace(job.schema, features=(), weight=None, group=None)
    seen = IdCounts()
    how = Reading(timed, job.threads, for_training=False)
    for _, columns in stream(job.shared, how, progress):
        assert columns.times is not None
        seen.add(columns.times)
    times, found = seen.merged()
    ends = np.cumsum(found)
    starts = ends - found
    assert job.split.shares is not None
    train, validation, _ = job.split.shares
    cuts = [int(share * int(ends[-1])) for share in (train, train + validation)]
    after = np.append(times, np.iinfo(np.int64).max)
    bounds = after[np.searchsorted(starts, cuts)]
    return int(bounds[0]), int(bounds[1])


# ---- the first pass: counting


@dataclass
class _Counted:
    """What the first pass has gathered so far."""

    moments: Moments
    rows: int = 0
    training_rows: int = 0
    place: Place = field(default_factory=Place)


def _encoders(
    job: _Job, folder: Path, sharing: Sharing, state: Mapping[str, Any], progress: Progress | None
) -> tuple[dict[str, StoredVocabulary], dict[str, Statistics], int | None]:
    """The vocabularies, written into the folder, the statistics, and the number of rows if known."""
    if job.stored is not None and not job.extends:
        for of in job.stored.vocabularies.values():
            link_or_copy(job.stored.path / of.file, folder / of.file)
        return job.stored.vocabularies, job.stored.statistics, None
    counted, vocabulary_counts = _count(job, folder, sharing, state, _stage(progress, "count"))
    if counted.training_rows == 0:
        names = ", ".join(of.name for of in job.inputs)
        raise ValueError(
            f"the training part has none of the {counted.rows:,} rows of {names}; give more rows, or "
            f"a larger share"
        )
    known = stored_values(job.stored) if job.stored else {}
    statistics = job.stored.statistics if job.stored else _statistics(job, counted.moments)
    written = _merge(job, folder, vocabulary_counts, known, _stage(progress, "merge"))
    return written, statistics, counted.rows


def _count(
    job: _Job, folder: Path, sharing: Sharing, state: Mapping[str, Any], progress: Shown | None
) -> tuple[_Counted, Any]:
    standard = [i for i, f in enumerate(job.schema.dense) if f.transform == "standard"]
    moments = Moments(len(standard))
    owners = owners_of(job.schema)
    if state.get("stage") == "count":
        moments.restore(state["moments"])
        counted = _Counted(moments, state["rows"], state["training_rows"], Place(*state["place"]))
        found = resume_counts(owners, folder, job.counts_memory, job.threads, state["counts"])
    else:
        counted = _Counted(moments)
        found = counts(owners, folder, job.counts_memory, job.threads)
    saved = time.monotonic()
    for place, columns in stream(job.inputs, job.reading, progress, counted.place):
        if time.monotonic() - saved > SAVE_SECONDS:
            counted.place = place
            _write_state(folder, _count_state(counted, found, sharing))
            saved = time.monotonic()
        training = job.parts(place, columns, sharing) == 0
        found.add(columns.ids, training)
        moments.add(columns.dense[standard], training, job.threads)
        counted.rows += columns.num_rows
        counted.training_rows += int(training.sum())
    return counted, found


def _count_state(counted: _Counted, found: Any, sharing: Sharing) -> dict[str, Any]:
    found.spill()
    return {
        "stage": "count",
        "place": counted.place.to_json(),
        "rows": counted.rows,
        "training_rows": counted.training_rows,
        "moments": counted.moments.state(),
        "counts": found.state(),
        "sharing": sharing.state,
        **sharing.settled,
    }


def _statistics(job: _Job, moments: Moments) -> dict[str, Statistics]:
    names = [feature.name for feature in job.schema.dense if feature.transform == "standard"]
    return dict(zip(names, moments.statistics(), strict=True))


def _merge(
    job: _Job, folder: Path, found: Any, known: Mapping[str, Values], progress: Shown | None
) -> dict[str, StoredVocabulary]:
    """Writes the vocabularies, several at once."""
    readers = readers_of(job.schema)
    files = [f"vocabulary-{v:05d}.values" for v in range(len(readers))]

    def write(v: int, name: str) -> int:
        return found.write(v, folder / files[v], name, readers[name][0].min_count, known.get(name))

    written = {}
    with ThreadPoolExecutor(job.threads) as pool:
        for v, (name, num_distinct) in enumerate(
            zip(readers, pool.map(write, range(len(readers)), readers), strict=True)
        ):
            written[name] = StoredVocabulary(files[v], num_distinct)
            if progress is not None:
                progress(v + 1, len(readers))
    for run in folder.glob("run-*"):
        run.unlink()  # of vocabularies that were written before a stop: they are not asked for again
    return written


# ---- the second pass: encoding


def _encode_state(
    vocabularies: Mapping[str, StoredVocabulary],
    statistics: Mapping[str, Statistics],
    num_rows: int | None,
    sharing: Sharing,
) -> dict[str, Any]:
    return {
        "stage": "encode",
        "encoders": stored_encoders(vocabularies, statistics),
        "rows": num_rows,
        **sharing.settled,
    }


def _encoder(job: _Job, folder: Path, state: Mapping[str, Any]) -> Encoder:
    encoders = state["encoders"]
    values = {
        name: open_values(folder / of["file"]) for name, of in encoders["vocabularies"].items()
    }
    statistics = {name: Statistics(**of) for name, of in encoders["statistics"].items()}
    return Encoder(job.schema, values, statistics, job.threads, job.counts_memory)


@dataclass(frozen=True)
class _Before:
    """Where the stream stood before a chunk: place, rows of each part, and the state of the split."""

    place: Place
    rows: tuple[int, ...]
    sharing: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"place": self.place.to_json(), "rows": self.rows, "sharing": self.sharing}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> _Before:
        return _Before(Place(*fields["place"]), tuple(fields["rows"]), fields["sharing"])


def _encode(
    job: _Job, encoder: Encoder, folder: Path, state: dict[str, Any], progress: Shown | None
) -> dict[str, Written]:
    """Every row encoded, into the shards of its part; a note of where it is after every shard."""
    writers, at = _writers(encoder.schema, folder, state)
    sharing = Sharing(job.split, job.seed, state["total"], state["before"], at.sharing)
    rows, num_rows = list(at.rows), at.place.rows
    oldest = [at] * len(NAMES)  # per part, what came before the first row that is in no shard yet
    for place, columns in stream(job.inputs, job.reading, progress, at.place):
        before = _Before(place, tuple(rows), sharing.state)
        in_shards = [writer.rows_in_shards for writer in writers]
        encoded, missing = encoder.encode_columns(columns), np.isnan(columns.dense)
        part_of_row = job.parts(place, columns, sharing)
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
            _write_state(folder, state | {"encoding": _encoding_state(writers, oldest)})
    if state["rows"] not in (None, num_rows):
        raise ValueError(
            f"the raw files changed while they were prepared: {state['rows']:,} rows in the first "
            f"pass, {num_rows:,} in the second; prepare again"
        )
    return dict(zip(NAMES, (writer.close() for writer in writers), strict=True))


def _encoding_state(writers: Sequence[ShardWriter], oldest: Sequence[_Before]) -> dict[str, Any]:
    """The shards there are, and where to go on so that no row is lost."""
    start = min(oldest, key=lambda before: before.place.rows)
    return {"start": start.to_json(), "writers": [writer.state() for writer in writers]}


def _writers(
    schema: Schema, folder: Path, state: Mapping[str, Any]
) -> tuple[list[ShardWriter], _Before]:
    """The writers of the parts, and where the stream begins: anew, or where it was left."""
    encoding = state.get("encoding")
    if encoding is None:
        start = _Before(Place(), (0,) * len(NAMES), {})
        return [ShardWriter(folder, name, schema) for name in NAMES], start
    start = _Before.from_json(encoding["start"])
    writers = [
        ShardWriter.resume(folder, name, schema, of, already=of["rows"] - rows)
        for name, of, rows in zip(NAMES, encoding["writers"], start.rows, strict=True)
    ]
    return writers, start


def _finish(
    job: _Job,
    folder: Path,
    encoder: Encoder,
    state: Mapping[str, Any],
    written: Mapping[str, Written],
) -> None:
    """Writes data.json, and leaves nothing else in the folder."""
    if not written["train"].shards and job.stored is None:
        raise ValueError("the training part has no rows; give more rows, or a larger share")
    extends = job.stored.lineage if job.stored and job.extends else ()
    write_manifest(
        folder, encoder.schema, written, state["encoders"], job.split_text, job.seed, extends
    )
    (folder / _STATE).unlink()


def _read_state(folder: Path) -> dict[str, Any]:
    if not (folder / _STATE).exists():
        return {}
    try:
        stored = json.loads((folder / _STATE).read_text())
        text, checksum = stored["state"], stored["crc32"]
        if zlib.crc32(text.encode()) == checksum:
            return json.loads(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ValueError(
        f"{folder / _STATE} is damaged, so the preparation that was interrupted cannot go on and its "
        f"files are removed; prepare again"
    )


def _write_state(folder: Path, state: Mapping[str, Any]) -> None:
    text = json.dumps(state)
    write_json_aside(folder / _STATE, {"state": text, "crc32": zlib.crc32(text.encode())})


def _stage(progress: Progress | None, stage: str) -> Shown | None:
    return None if progress is None else partial(progress, stage)
