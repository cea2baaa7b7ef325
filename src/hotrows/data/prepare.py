"""prepare: raw delimited text into encoded shards that a trainer maps into memory.

Two passes stream over the files. The first counts the values of the training part and gathers its
statistics; the second encodes every row with them. A split by position needs the number of rows, so
it counts lines before. Memory grows with the number of distinct values and the size of a chunk,
never with the number of rows. Every line is checked in the first pass, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hotrows.data.aside import written_aside
from hotrows.data.encoded import EncodedData, write_manifest
from hotrows.data.encoding import Encoder, owners_of, readers_of
from hotrows.data.foreign import num_threads
from hotrows.data.rows import Parsed, count_rows, parsed
from hotrows.data.shards import ShardWriter, Written
from hotrows.data.split import NAMES, Split, parse_split, parts_of
from hotrows.data.transform import Moments
from hotrows.data.vocabulary import vocabularies
from hotrows.schema import Schema

Progress = Callable[[str, int, int], None]
PartsOf = Callable[[Parsed], np.ndarray]


def prepare(
    raw: Sequence[Path | str],
    schema: Schema,
    out: Path | str,
    *,
    split: str = "fraction:0.8,0.1,0.1",
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> EncodedData:
    """Encodes raw files into the new folder `out`.

    split: how rows are shared out, see `parse_split`; seed: of a split by fraction.
    progress: told the stage ("lines", "count" or "encode"), and how many bytes of the raw files of
        how many it has read.
    """
    paths, out = [Path(path) for path in raw], Path(out)
    _check_schema(schema, paths)
    chosen, threads = parse_split(split), num_threads(threads)
    with written_aside(out) as folder:
        parts = _sharing(chosen, paths, schema, seed, _stage(progress, "lines"))
        stage = _stage(progress, "count")
        encoder, num_rows = _learn(paths, schema, parts, threads, stage)
        stage = _stage(progress, "encode")
        written = _write(paths, encoder, parts, folder, num_rows, threads, stage)
        write_manifest(folder, encoder.schema, written, encoder.save(folder), split, seed)
    return EncodedData.open(out)


def _sharing(split: Split, raw: list[Path], schema: Schema, seed: int, progress) -> PartsOf:
    """What tells the part of every row of a chunk, [rows] uint8."""
    total = count_rows(raw, schema, progress) if split.needs_total else None
    return lambda chunk: parts_of(split, chunk.first_row, chunk.num_rows, total, seed)


def _learn(
    raw: list[Path], schema: Schema, parts: PartsOf, threads: int, progress
) -> tuple[Encoder, int]:
    """The first pass: the encoder of the training part, and the number of rows in all."""
    counts = vocabularies(owners_of(schema))
    standard = [i for i, f in enumerate(schema.dense) if f.transform == "standard"]
    moments = Moments(len(standard))
    rows = training_rows = 0
    for chunk in parsed(raw, schema, threads, progress=progress):
        training = parts(chunk) == 0
        counts.count(chunk.fields, training)
        moments.add(chunk.numbers.dense[standard], training, threads)
        rows += chunk.num_rows
        training_rows += int(training.sum())
    if training_rows == 0:
        raise ValueError(
            f"the training part has none of the {rows:,} rows of {', '.join(map(str, raw))}; "
            f"give more rows, or a larger share"
        )
    readers = readers_of(schema)
    min_counts = [features[0].min_count for features in readers.values()]
    values = dict(zip(readers, counts.take(min_counts, threads), strict=True))
    names = [schema.dense[i].name for i in standard]
    statistics = dict(zip(names, moments.statistics(), strict=True))
    return Encoder(schema, values, statistics), rows


def _write(
    raw: list[Path],
    encoder: Encoder,
    parts: PartsOf,
    folder: Path,
    num_rows: int,
    threads: int,
    progress,
) -> dict[str, Written]:
    """The second pass: every row encoded, into the shards of its part."""
    writers = [ShardWriter(folder, name, encoder.schema) for name in NAMES]
    rows = 0
    for chunk in parsed(raw, encoder.schema, threads, progress=progress):
        ids, dense = encoder.encode_fields(chunk.fields, chunk.numbers)
        missing = np.isnan(chunk.numbers.dense)
        labels = chunk.numbers.labels
        assert labels is not None
        part_of_row = parts(chunk)
        for part, writer in enumerate(writers):
            of = _all_or_some(part_of_row == part)
            writer.append(ids[:, of], dense[of], labels[of], missing[:, of].sum(axis=1))
        rows += chunk.num_rows
    if rows != num_rows:
        raise ValueError(
            f"the raw files changed while they were prepared: {num_rows:,} rows in the first pass, "
            f"{rows:,} in the second; prepare again"
        )
    return dict(zip(NAMES, (writer.close() for writer in writers), strict=True))


def _all_or_some(chosen: np.ndarray) -> slice | np.ndarray:
    """What indexes the chosen rows: a slice, without a copy, where they are all or none."""
    if chosen.all():
        return slice(None)
    return np.flatnonzero(chosen) if chosen.any() else slice(0)


def _check_schema(schema: Schema, raw: list[Path]) -> None:
    if not raw:
        raise ValueError("no raw files to prepare; name at least one")
    if schema.sequences:
        names = [feature.name for feature in schema.sequences]
        raise ValueError(f"sequences are not yet prepared from raw text: {names}; leave them out")
    readers_of(schema)


def _stage(progress: Progress | None, stage: str):
    return None if progress is None else partial(progress, stage)
