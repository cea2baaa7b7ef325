"""Taobao UserBehavior: which item does a user view next?

The log holds views, purchases, carts and favourites of nine days. Targets are views, some of each
user's; the negative beside a target is an item the user left alone; the history is all the user did
before. The last day tests, the day before validates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.sets import tables
from hotrows.data.sets.buckets import partition, read_bucket
from hotrows.data.sets.clicks import Log, samples_of
from hotrows.data.sets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.sets.history import sort_events
from hotrows.data.sets.negatives import Catalog, catalog, negatives
from hotrows.data.sets.tables import find, integers
from hotrows.schema import Schema, Sequence, Sparse, Time

HISTORY = 50
TARGETS = 20  # of each user, drawn at random: all 90 million views would make 20 billion ids
VIEW = "pv"
POWER = 0.75
UTC_OFFSET = 8
FIRST_DAY, VALIDATION_DAY, TEST_DAY = map(tables.day, ("2017-11-25", "2017-12-02", "2017-12-03"))
_TYPES = {
    "user": "int64",
    "item": "int64",
    "category": "int64",
    "behaviour": "string",
    "time": "int64",
}

schema = Schema(
    name="taobao_userbehavior",
    label="label",
    group="user",
    time=Time("time", utc_offset=UTC_OFFSET),
    features=(
        Sparse("user"),
        Sparse("item", min_count=2),
        Sparse("category"),
        Sequence("history_item", vocabulary="item", min_count=2, max_length=HISTORY),
        Sequence("history_category", vocabulary="category", max_length=HISTORY),
    ),
)


def build(raw: Path | None, samples: Path, seed: int, progress: Progress | None) -> Samples:
    """UserBehavior.csv: cut by user, then bucket by bucket into samples."""
    path = find(raw, "UserBehavior.csv", "taobao_userbehavior_4k.csv")
    counts = _Counts()
    with tempfile.TemporaryDirectory(dir=samples) as scratch, tables.written(samples) as writer:
        blocks = counts.of(_events(path))
        buckets = partition(blocks, "user", Path(scratch) / "log", "events", progress)
        items = counts.items()
        for number, bucket in enumerate(buckets):
            if bucket.exists():
                random = np.random.default_rng([seed, number])
                rows = _samples(read_bucket(bucket), items, random)
                writer.write(rows, _parts(rows))
            if progress:
                progress("samples", number + 1, len(buckets))
    return writer.samples


def _events(path: Path) -> Iterator[Any]:
    """Events within the nine days; the file has some 55 thousand others."""
    import pyarrow as pa

    for block in tables.csv_blocks(path, _TYPES, columns=tuple(_TYPES)):
        days = (integers(block["time"]) + 3600 * UTC_OFFSET) // 86_400
        yield block.filter(pa.array((days >= FIRST_DAY) & (days <= TEST_DAY)))


@dataclass(frozen=True)
class _Items:
    """All items, ascending: what to draw from, and the category of each."""

    catalog: Catalog
    categories: np.ndarray


class _Counts:
    """How often each item is seen, and its category, gathered while blocks pass."""

    def __init__(self) -> None:
        self._items = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._categories = np.zeros(0, np.int64)

    def of(self, blocks: Iterator[Any]) -> Iterator[Any]:
        """The same blocks, counted."""
        for block in blocks:
            items, first, counts = np.unique(
                integers(block["item"]), return_index=True, return_counts=True
            )
            self._add(items, counts, integers(block["category"])[first])
            yield block

    def items(self) -> _Items:
        return _Items(catalog(self._items, self._counts, POWER), self._categories)

    def _add(self, items: np.ndarray, counts: np.ndarray, categories: np.ndarray) -> None:
        both = np.concatenate([self._items, items])
        self._items, first, place = np.unique(both, return_index=True, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        self._counts = np.bincount(place, weights, len(self._items)).astype(np.int64)
        self._categories = np.concatenate([self._categories, categories])[first]


def _samples(rows: Any, items: _Items, random: np.random.Generator) -> Any:
    """Targets of the users of a bucket, each with a negative."""
    import pyarrow as pa

    rows = _without_repeats(rows)
    users, times = integers(rows["user"]), integers(rows["time"])
    places = np.searchsorted(items.catalog.items, integers(rows["item"]))
    categories, of_item = np.unique(items.categories, return_inverse=True)
    names = pa.array(items.catalog.items), pa.array(categories)
    log = Log(users, places, times, of_item, *names)
    views = np.flatnonzero(rows["behaviour"].to_numpy(zero_copy_only=False) == VIEW)
    targets = views[_some_of_each(users[views], random)]
    drawn = negatives(items.catalog, users[targets], users, integers(rows["item"]), random)
    left_alone = np.searchsorted(items.catalog.items, drawn)
    return samples_of(log, sort_events(users, times), targets, left_alone, HISTORY)


def _without_repeats(rows: Any) -> Any:
    """Each event once, in order of user and time; the file repeats 49."""
    order = [(name, "ascending") for name in ("user", "time", "item", "category", "behaviour")]
    return rows.group_by(rows.column_names).aggregate([]).sort_by(order).combine_chunks()


def _some_of_each(users: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The places of at most TARGETS events of each user, ascending; `users` ascend."""
    order = np.lexsort((random.random(len(users)), users))
    _, begins, counts = np.unique(users, return_index=True, return_counts=True)
    rank = np.arange(len(users)) - np.repeat(begins, counts)
    return np.sort(order[rank < TARGETS])


def _parts(rows: Any) -> np.ndarray:
    return tables.parts_by_day(integers(rows["time"]), UTC_OFFSET, VALIDATION_DAY, TEST_DAY)


taobao_userbehavior = DataSet(
    name="taobao_userbehavior",
    title="Taobao: nine days of views",
    schema=schema,
    rows=100_150_807,
    size="3.6 GB",
    licence="terms of Tianchi",
    home="https://tianchi.aliyun.com/dataset/649",
    sources=(Source("UserBehavior.csv"),),
    build=build,
    sign_in="sign in at https://tianchi.aliyun.com/dataset/649, accept the terms, and put "
    "UserBehavior.csv",
)
