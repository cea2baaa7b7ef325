"""prepare: raw rows into encoded shards that a trainer maps into memory.

    read      raw rows   ->  `RawRows`, and the part of each                 columns.stream, split
    count     raw rows   ->  `CountedRows`, and the counts of their values   `passes.count`
    fix       counts     ->  vocabularies in files, means                    `_fix`
    encode    raw rows   ->  `EncodedRows`, the `Rows` of each part          `passes.encode`
    write     rows       ->  `Written` of each part, data.json               stored.shards, stored.encoded

An `Executor` runs `count` over all rows, and then `encode`: on this machine, or on a cluster of Ray.
Memory grows neither with the number of rows nor with the number of distinct values: counts that would not
fit go to sorted files, which are merged (see `vocabulary`). The first pass checks every row, before a
shard is written. (A split by shares of time first counts the distinct seconds, in memory.)

Stored encoders (`like`) replace the first pass; with growing ones (`extend`) it counts the values
that the stored vocabularies lack.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.encode.encoder import opened_encoder, readers_of, stored_encoders, stored_values
from hotrows.data.encode.events import EventFiles
from hotrows.data.encode.oddities import lost_digits, oddities
from hotrows.data.encode.passes import (
    STATE_FILE,
    Executor,
    Job,
    Progress,
    Totals,
    read_state,
    write_state,
)
from hotrows.data.encode.rates import ValueRates
from hotrows.data.encode.split import Sharing, Split, parse_split
from hotrows.data.encode.vocabulary import IdCounts
from hotrows.data.raw.inputs import inputs_of, zones_of
from hotrows.data.raw.typed_files import SnapshotInput
from hotrows.data.raw.values import time_of
from hotrows.data.stored.encoded import MANIFEST, EncodedData, StoredVocabulary, write_manifest
from hotrows.data.stored.histories import EVENTS_FILE
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.sections import header_checksum
from hotrows.data.stored.shards import Shard
from hotrows.runtime.atomic_files import absolute, link_or_copy, new_folder, shown
from hotrows.runtime.machine import num_threads, total_memory
from hotrows.runtime.terminal import silent
from hotrows.runtime.user_warnings import warn
from hotrows.schema import TIME_TRANSFORMS, Schema

log = logging.getLogger("hotrows")
_ALL_TRAIN = "fraction:1,0,0"


def prepare(
    raw: Any,
    schema: Schema | None,
    out: Path | str,
    *,
    validation: Any = (),
    test: Any = (),
    events: Any = (),
    split: str | None = None,
    seed: int = 0,
    like: Path | str | None = None,
    extend: Path | str | None = None,
    memory: int | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EncodedData:
    """Encodes raw rows into the folder `out`.

    raw: a path, glob, folder or URL of text, JSON lines, Parquet, Arrow or ORC, an Arrow table, a frame,
        a dict of columns, a table (`iceberg:NAME@SNAPSHOT`, `delta:PATH@VERSION`), a dataset of Ray Data,
        whose cluster then does the work, or a list of these.
    validation: more rows, all of which validate.
    test: more rows, all of which test.
    events: the events of users, which the histories of the schema are made of.
    out: a folder for the encoded data, new or empty.
    split: how rows are split into training, validation and test: fraction:A,B,C at random,
        stratified:A,B,C with equal rates of each label, group:COLUMN:A,B,C at random with all rows of a
        value, such as a user's, in one part (group:A,B,C: by the schema's group), position:A,B,C in
        order, time:A,B,C by time, time:T,U by values of the time; position:A takes validation from the
        end of the first A (default: fraction:0.8,0.1,0.1, or all training if validation or test has rows
        of its own).
    seed: the seed of a split that draws.
    like: prepared data whose encoders are used unchanged, so that its models fit.
    extend: prepared data whose ids remain and whose vocabularies grow by new values; `schema` may have
        more features than its schema has.
    memory: bytes to use on a machine, approximately (default: a quarter of this one's, at least 2 GiB).
    threads: threads on this machine, or tasks that run at once on a cluster (default: one per core).
    overwrite: replace prepared data in `out`, once the new data is complete.
    progress: called with the stage ("events", "lines", "times", "count", "merge" or "encode"), amount
        and total.

    With `like` or `extend`, `schema` may be None, and a warning names features whose rates of unknown and
    missing values are far from those of that data. Calling it again resumes an interrupted preparation.

    >>> schema = Schema((hotrows.Sparse("user"), hotrows.Dense("price")), label="click")
    >>> encoded = hotrows.prepare(frame, schema, f"{folder}/encoded", split="fraction:0.8,0.1,0.1")
    >>> encoded.parts["train"].rows
    74
    """
    rows = (raw, validation, test, events)
    job = _job(rows, schema, split, seed, like, extend, memory, threads, progress)
    is_drawn = split is None and set(job.declared_parts) == {None}
    data = _prepared(job, absolute(out), overwrite, threads)
    _warn(data, job, is_drawn)
    return data


def _prepared(job: Job, out: Path, overwrite: bool, threads: int | None) -> EncodedData:
    if (out / MANIFEST).exists() and not overwrite:
        raise ValueError(
            f"{out} exists and is no empty folder: it has prepared data; replace it (--overwrite, "
            f"overwrite=True), or choose another name"
        )
    executor, threads_here = Executor(job), job.threads
    if job.on_ray:
        from hotrows.data.encode.cluster.on_ray import OnRay

        executor = OnRay(job, threads)
        job = executor.job
    with new_folder(out, job.identity(), MANIFEST) as folder:
        state, events = read_state(folder), None
        if job.events:
            sorting = (threads_here, job.progress_of("events"))
            events = executor.events = EventFiles(job.events, job.schema, folder, *sorting)
        sharing = _sharing(executor, state)
        # Learn the vocabularies, then encode.
        if state.get("stage") != "encode":
            encoders, num_rows = _learned(executor, folder, sharing, state)
            state = {"stage": "encode", "encoders": encoders, "rows": num_rows, **sharing.settled}
            write_state(folder, state)
        encoder = opened_encoder(job.schema, folder, state["encoders"], threads_here, job.counts_memory)
        written, extremes = executor.encode(encoder, folder, state)
        if not written["train"].shards and job.stored is None:
            raise ValueError("the training part has no samples; give more rows, or a larger fraction")
        lineage = job.stored.lineage if job.stored and job.extends else ()
        stored_events = None
        if events is not None:
            events.check_users()
            events.remove()
            header = header_checksum(folder / EVENTS_FILE)
            stored_events = Shard(EVENTS_FILE, events.rows, header)
        snapshots = [source.name for source in job.inputs if isinstance(source, SnapshotInput)]
        origin = (job.split_text, job.seed, lineage, extremes, stored_events, snapshots)
        write_manifest(folder, encoder.schema, written, state["encoders"], *origin)
        (folder / STATE_FILE).unlink()
    return EncodedData.open(out)


def _job(
    rows: tuple[Any, Any, Any, Any],
    schema: Schema | None,
    split: str | None,
    seed: int,
    like: Path | str | None,
    extend: Path | str | None,
    memory: int | None,
    threads: int | None,
    progress: Progress | None,
) -> Job:
    stored = _stored(like, extend)
    schema = _schema_of(schema, stored, extend is not None)
    *groups, events = map(inputs_of, rows)
    if not groups[0]:
        raise ValueError("no raw files to prepare; name at least one")
    if bool(events) != bool(schema.histories):
        raise ValueError(
            f"schema {schema.name!r} has histories {list(schema.histories)}, and events were "
            f"{'' if events else 'not '}given: histories=(SEQUENCE, ...) in the schema and events=FILE "
            f"(--events FILE) belong together"
        )
    inputs = tuple(source for group in groups for source in group)
    if (time := schema.time) and time.zone is None and time.utc_offset is None:
        # Later rows are read by the clock of the zone that the type of the time names.
        zones = zones_of(inputs, time)
        zone = next(filter(None, zones), None)
        schema = replace(schema, time=replace(time, zone=zone))
        if zone and zones[1:] and any(f.transform in TIME_TRANSFORMS for f in schema.sparse):
            shown = " and ".join(name or "none (UTC, if not written with an offset)" for name in zones)
            warn(
                f"times in {time.column!r} are of the zones {shown}: hours and days are those of {zone}, "
                f"the first that a file names; choose one by Time({time.column!r}, zone=...)"
            )
    declared = [name for name, group in zip(NAMES[1:], groups[1:], strict=True) if group]
    text = split or (_ALL_TRAIN if declared else "fraction:0.8,0.1,0.1")
    return Job(
        inputs=inputs,
        declared_parts=tuple(
            part for part, group in zip((None, 1, 2), groups, strict=True) for _ in group
        ),
        schema=schema,
        split_text=text,
        split=_split(text, schema, declared),
        seed=seed,
        stored=stored,
        extends=extend is not None,
        memory=memory or max(total_memory() // 4, 2 << 30),
        threads=num_threads(threads),
        progress=progress or silent,
        events=tuple(events),
    )


def _stored(like: Path | str | None, extend: Path | str | None) -> EncodedData | None:
    if like is not None and extend is not None:
        raise ValueError("give either like= (encoders as they are) or extend= (growing), not both")
    folder = extend if like is None else like
    if folder is None:
        return None
    data = EncodedData.open(folder)
    stored_values(data)  # raises an error if it has none
    return data


def _schema_of(schema: Schema | None, stored: EncodedData | None, extends: bool) -> Schema:
    """Returns the schema to prepare with: that of the stored encoders, if there are any, and behind its
    features, if it extends them, those that are new."""
    if stored is None and schema is None:
        raise ValueError("prepare needs a schema: one of your own, or that of stored data (like=)")
    if stored is None:
        if not isinstance(schema, Schema):
            raise ValueError(
                f"expected a Schema, not {type(schema).__name__}; draft_schema(rows).schema drafts one, "
                f"Schema.load(FILE) reads one"
            )
        readers_of(schema)
        return schema
    if schema is None:
        return stored.schema
    wanted, known = _without_rows(schema), _without_rows(stored.schema)
    if wanted.time and known.time and wanted.time == replace(known.time, zone=None, utc_offset=None):
        wanted = replace(wanted, time=known.time)
    if wanted == known:
        return stored.schema
    new = [feature for feature in wanted.features if feature not in known.features]
    if extends and len(known.features) + len(new) == len(wanted.features):
        wider = replace(wanted, features=(*known.features, *new))
        if wider == replace(known, features=wider.features, columns=wanted.columns):
            return wider
    raise ValueError(
        f"the schema differs from that of {shown(stored.path)}, whose encoders are to be used; leave "
        f"the schema out, or prepare without them; with extend= it may have more features"
    )


def _without_rows(schema: Schema) -> Schema:
    return schema.with_rows(dict.fromkeys(readers_of(schema)))  # type: ignore[arg-type]


def _split(text: str, schema: Schema, declared: Sequence[str]) -> Split:
    def parse(word: str) -> int:
        assert schema.time is not None
        for form in (schema.time.format, "iso"):
            if (seconds := time_of(word.encode(), form)) is not None:
                return seconds
        raise ValueError(f"split {text!r}: {word!r} is no time in the format {schema.time.format!r}")

    split = parse_split(text, parse if schema.time else None, declared)
    if split.kind == "group" and split.by is None:
        split = replace(split, by=schema.grouping)
        if split.by is None:
            raise ValueError(
                f"split {text!r} needs a column, and schema {schema.name!r} has no group: name one, such "
                f"as group:user:0.8,0.1,0.1"
            )
    if split.kind == "time" and schema.time is None:
        raise ValueError(
            f"split {text!r} needs to know the time: say which column that is, time=Time(COLUMN)"
        )
    if split.kind == "stratified" and schema.request is not None:
        raise ValueError(
            f"split {text!r} draws rows by their label, and rows of a request stay together; split in "
            f"another way, such as fraction:0.8,0.1,0.1"
        )
    if split.kind == "stratified" and not schema.labels[0].values.binary:
        raise ValueError(
            f"split {text!r} shares out the rows of each label, and {schema.labels[0].name!r} is a "
            f"number; split in another way, such as fraction:0.8,0.1,0.1"
        )
    return split


def _sharing(executor: Executor, state: Mapping[str, Any]) -> Sharing:
    """The split before the first row, or where it was interrupted; counts what it must know before."""
    job, total, before = executor.job, state.get("total"), state.get("before")
    if job.split.kind == "position" and total is None:
        total = executor.num_rows()
    if job.split.kind == "time" and before is None and job.split.before is None:
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
            progress(v + 1, len(readers))
    for run in folder.glob("run-*"):
        run.unlink()  # left by an interruption, of vocabularies that are written
    names = [feature.name for feature in job.schema.dense if feature.transform == "standard"]
    statistics = dict(zip(names, totals.moments.statistics(), strict=True))
    return stored_encoders(vocabularies, statistics | (job.stored.statistics if job.stored else {}))


def _warn(data: EncodedData, job: Job, is_drawn: bool) -> None:
    """Warns of what is odd about the data, a line each. is_drawn: its parts are, as nothing was said."""
    for name, is_shared in job.split.sharing.items():
        if is_shared and not data.parts[name].rows:
            log.warning(
                f"the {name} part has no samples, although the split {job.split_text!r} gives it some: "
                f"give more rows or another fraction (rows of one time, request or group stay together)"
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
            "no samples validate, so that no checkpoint is chosen as the best: give --validation FILE, "
            "or --split fraction:0.9 with --test FILE, or fraction:0.8,0.1,0.1"
        )
    for line in lost_digits(data):
        warn(line)
    try:
        lines = list(oddities(data))
    except ValueError as error:  # of a shard that was written before an interruption
        raise ValueError(f"{data.path} is damaged; prepare the data again: {error}") from error
    for line in lines:
        log.warning(line)
