"""Samples made of events alone: positives, drawn negatives, and the last events of each user to test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.datasets.events import catalog, negatives, places
from hotrows.data.raw.tables import as_table
from hotrows.data.stored.part import NAMES
from hotrows.runtime.arrow import pa
from hotrows.runtime.atomic_files import new_folder

LABEL, REQUEST = "label", "request"


def samples_of(
    events: Any,
    out: Path | str,
    *,
    user: str,
    time: str,
    item: str,
    num_negatives: int = 1,
    first: int = 1,
    last: int = 1,
    power: float = 0.0,
    seed: int = 0,
) -> dict[str, Path]:
    """Writes samples as Parquet files into the new folder `out`; returns them by part.

    events: a Parquet file, or a table or frame in memory; user, time, item: its columns. The samples have
    these, `label`, and `request`, a number for each positive and its negatives.
    num_negatives: samples with label 0 for each positive: items that are in no event of the user.
    first: number of first events of each user that are no samples. last: number of last ones that test;
    the one before them validates.
    power: items are drawn by their count to this power (default: uniformly).

    >>> visits = {"who": [1, 1, 1, 1, 2, 2], "at": [1, 2, 3, 4, 1, 2], "what": [5, 6, 7, 5, 6, 8]}
    >>> paths = samples_of(visits, f"{folder}/samples", user="who", time="at", item="what")
    >>> sorted(paths)
    ['test', 'train', 'validation']
    """
    table = _table(events, [user, time, item])
    encoded = (table[name].combine_chunks().dictionary_encode() for name in (user, item))
    users, items = (column.indices.to_numpy() for column in encoded)
    place, total = places(users, table[time].to_numpy())
    positives = np.flatnonzero(place >= first)
    left = (total - place)[positives]
    part = np.where(left <= last, 2, np.where(left == last + 1, 1, 0))
    distinct, event, counts = np.unique(items, return_index=True, return_counts=True)
    targets, random = np.repeat(positives, num_negatives), np.random.default_rng(seed)
    drawn = negatives(catalog(distinct, counts, power), users[targets], users, items, random)
    named = np.column_stack([positives, event[drawn].reshape(len(positives), -1)])
    number = np.repeat(np.arange(len(positives)), 1 + num_negatives)
    columns = [table[name].take(pa.array(positives[number])) for name in (user, time)]
    columns += [table[item].take(pa.array(named.reshape(-1)))]
    columns += [pa.array(np.tile([1, *[0] * num_negatives], len(positives))), pa.array(number)]
    samples = pa.table(columns, names=[user, time, item, LABEL, REQUEST])
    with new_folder(Path(out)) as folder:
        for index, name in enumerate(NAMES):
            of_part = samples.filter(pa.array(part[number] == index))
            pa.parquet.write_table(of_part, folder / f"{name}.parquet")
    return {name: Path(out) / f"{name}.parquet" for name in NAMES}


def _table(events: Any, columns: list[str]) -> Any:
    """The columns of events, in one piece; an error if a value is missing."""
    is_file = isinstance(events, str | Path)
    table = pa.parquet.read_table(events) if is_file else as_table(events)
    if absent := sorted(set(columns) - set(table.column_names)):
        raise ValueError(f"the events lack the columns {absent}; they have {table.column_names}")
    table = table.select(columns).combine_chunks()
    for name in columns:
        if table[name].null_count:
            row = int(table[name].is_null().to_numpy().argmax())
            raise ValueError(f"row {row:,} of the events has no {name!r}; fill it in, or leave it out")
    return table
