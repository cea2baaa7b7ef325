"""Taobao: display ads, and views of items.

**Ads**: does a user click the ad? Impressions, joined with the ad and with the user's profile, and the
last categories, brands and kinds of the user's behaviours on Taobao before the impression. Eight days:
the last one tests, the one before validates.

**UserBehavior**: which item does a user view next? The log holds views, purchases, carts and favourites
of nine days. Targets are views, some of each user's; the negative of a target is an item without an
event of the user; the history are all earlier events. The last day tests, the day before validates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.datasets import tables
from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.datasets.events import (
    Catalog,
    ClickLog,
    catalog,
    histories,
    negatives,
    samples_of,
    sort_events,
)
from hotrows.data.datasets.tables import find, integers, partition, read_bucket
from hotrows.runtime.arrow import pa
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time

HISTORY = 50
UTC_OFFSET = 8
_AD_DAYS = tuple(map(tables.day, ("2017-05-12", "2017-05-13")))

_SAMPLE = {"user": "int64", "time_stamp": "int64", "adgroup_id": "int64", "pid": "string", "clk": "int8"}
_AD = dict.fromkeys(("adgroup_id", "cate_id", "campaign_id", "customer", "brand"), "int64")
_AD["price"] = "float64"
_ABOUT_USER = (
    *("cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level"),
    *("shopping_level", "occupation", "new_user_class_level"),
)
_PROFILE = dict.fromkeys(("userid", *_ABOUT_USER), "int64")
_BEHAVIOUR = {"user": "int64", "time_stamp": "int64", "btag": "string", "cate": "int64", "brand": "int64"}
_LAYOUT: Any = {"nulls": ("", "NULL"), "also": {"nick": "user", "customer_id": "customer"}}
_HISTORIES = {"history_cate": "cate", "history_brand": "brand", "history_btag": "btag"}

_ads = Schema(
    name="taobao_ad",
    label=Label("click", column="clk"),
    group="user",
    time=Time("time_stamp", utc_offset=UTC_OFFSET),
    features=(
        Dense("price", transform="log"),
        *(
            Sparse(name, min_count=10)
            for name in (
                *("user", "adgroup_id", "cate_id", "brand", "campaign_id", "customer", "pid"),
                *_ABOUT_USER,
            )
        ),
        Sequence("history_cate", vocabulary="cate_id", min_count=10, max_length=HISTORY),
        Sequence("history_brand", vocabulary="brand", min_count=10, max_length=HISTORY),
        Sequence("history_btag", min_count=10, max_length=HISTORY),
    ),
)


def build_ads(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """raw_sample.csv, ad_feature.csv, user_profile.csv and behavior_log.csv."""
    ads = tables.read_directory(find(raw, "ad_feature.csv"), "adgroup_id", _AD, **_LAYOUT)
    profiles = tables.read_directory(find(raw, "user_profile.csv"), "userid", _PROFILE, **_LAYOUT)
    path = find(raw, "behavior_log.csv", "raw_behavior_log.csv")
    behaviours = tables.csv_blocks(path, _BEHAVIOUR, **_LAYOUT)
    impressions = tables.csv_blocks(find(raw, "raw_sample.csv"), _SAMPLE, **_LAYOUT)
    with tempfile.TemporaryDirectory(dir=samples) as scratch, tables.written(samples) as writer:
        log = partition(behaviours, "user", Path(scratch) / "log", "behaviours", progress)
        cut = partition(impressions, "user", Path(scratch) / "shown", "impressions", progress)
        for number, (behaviour, shown) in enumerate(zip(log, cut, strict=True)):
            rows = read_bucket(shown).sort_by("time_stamp")
            rows = tables.joined(rows, ads, integers(rows["adgroup_id"]))
            rows = tables.joined(rows, profiles, integers(rows["user"]))
            times = integers(rows["time_stamp"])
            parts = tables.parts_by_day(times, UTC_OFFSET, *_AD_DAYS)
            events = read_bucket(behaviour)
            past = sort_events(integers(events["user"]), integers(events["time_stamp"]))
            seen = histories(past, integers(rows["user"]), times, HISTORY)
            for name, column in _HISTORIES.items():
                rows = rows.append_column(name, seen.column(events[column]))
            writer.write(rows, parts)
            progress("histories", number + 1, len(cut))
    return writer.samples


_TIANCHI = "https://tianchi.aliyun.com/dataset/56"

taobao_ad = DataSet(
    name="taobao_ad",
    title="Taobao: eight days of ads",
    schema=_ads,
    rows=26_557_961,
    size="24 GB",
    licence="terms of Tianchi",
    home=_TIANCHI,
    sources=tuple(
        map(Source, ("raw_sample.csv", "ad_feature.csv", "user_profile.csv", "behavior_log.csv"))
    ),
    build=build_ads,
    sign_in=f"sign in at {_TIANCHI}, accept the terms, unpack the four archives, and put "
    "raw_sample.csv, ad_feature.csv, user_profile.csv and behavior_log.csv",
)

TARGETS = 20  # of each user, drawn at random: all 90 million views would make 20 billion ids
VIEW = "pv"
POWER = 0.75
FIRST_DAY, VALIDATION_DAY, TEST_DAY = map(tables.day, ("2017-11-25", "2017-12-02", "2017-12-03"))
_TYPES = {"user": "int64", "item": "int64", "category": "int64", "behaviour": "string", "time": "int64"}

_views = Schema(
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


def build_views(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """UserBehavior.csv: cut by user, then bucket by bucket into samples."""
    path = find(raw, "UserBehavior.csv", "taobao_userbehavior_4k.csv")
    counts = _Counts()
    with tempfile.TemporaryDirectory(dir=samples) as scratch, tables.written(samples) as writer:
        blocks = counts.add_blocks(_events(path))
        buckets = partition(blocks, "user", Path(scratch) / "log", "events", progress)
        items = counts.items()
        for number, bucket in enumerate(buckets):
            if bucket.exists():
                rows = _samples(read_bucket(bucket), *items, np.random.default_rng([seed, number]))
                times = integers(rows["time"])
                parts = tables.parts_by_day(times, UTC_OFFSET, VALIDATION_DAY, TEST_DAY)
                writer.write(rows, parts)
            progress("samples", number + 1, len(buckets))
    return writer.samples


def _events(path: Path) -> Iterator[Any]:
    """Events within the nine days; the file has some 55 thousand others."""
    for block in tables.csv_blocks(path, _TYPES, columns=tuple(_TYPES)):
        days = (integers(block["time"]) + 3600 * UTC_OFFSET) // 86_400
        yield block.filter(pa.array((days >= FIRST_DAY) & (days <= TEST_DAY)))


class _Counts:
    """Number of events and category of each item, gathered block by block."""

    def __init__(self) -> None:
        self._items = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._categories = np.zeros(0, np.int64)

    def add_blocks(self, blocks: Iterator[Any]) -> Iterator[Any]:
        """Yields the blocks again, and counts them."""
        for block in blocks:
            column = integers(block["item"])
            items, first, counts = np.unique(column, return_index=True, return_counts=True)
            self._add(items, counts, integers(block["category"])[first])
            yield block

    def items(self) -> tuple[Catalog, np.ndarray]:
        """Returns all items, ascending: the catalog to draw from, and the category of each."""
        return catalog(self._items, self._counts, POWER), self._categories

    def _add(self, items: np.ndarray, counts: np.ndarray, categories: np.ndarray) -> None:
        both = np.concatenate([self._items, items])
        self._items, first, place = np.unique(both, return_index=True, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        self._counts = np.bincount(place, weights, len(self._items)).astype(np.int64)
        self._categories = np.concatenate([self._categories, categories])[first]


def _samples(rows: Any, items: Catalog, categories: np.ndarray, random: np.random.Generator) -> Any:
    """Builds the samples of a bucket of users: targets, each followed by a negative.

    rows: events; categories: of each of `items`.
    """
    rows = _without_repeats(rows)
    users, times = integers(rows["user"]), integers(rows["time"])
    places = np.searchsorted(items.items, integers(rows["item"]))
    category_names, of_item = np.unique(categories, return_inverse=True)
    log = ClickLog(users, places, times, of_item, pa.array(items.items), pa.array(category_names))
    views = np.flatnonzero(rows["behaviour"].to_numpy(zero_copy_only=False) == VIEW)
    targets = views[_some_of_each(users[views], random)]
    drawn = negatives(items, users[targets], users, integers(rows["item"]), random)
    negative_places = np.searchsorted(items.items, drawn)
    return samples_of(log, sort_events(users, times), targets, negative_places, HISTORY)


def _without_repeats(rows: Any) -> Any:
    """Drops repeated events (the file has 49) and sorts by user and time."""
    order = [(name, "ascending") for name in ("user", "time", "item", "category", "behaviour")]
    return rows.group_by(rows.column_names).aggregate([]).sort_by(order).combine_chunks()


def _some_of_each(users: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws at most TARGETS events of each user: their places, ascending; `users` ascend."""
    order = np.lexsort((random.random(len(users)), users))
    _, begins, counts = np.unique(users, return_index=True, return_counts=True)
    rank = np.arange(len(users)) - np.repeat(begins, counts)
    return np.sort(order[rank < TARGETS])


taobao_userbehavior = DataSet(
    name="taobao_userbehavior",
    title="Taobao: nine days of views",
    schema=_views,
    rows=100_150_807,
    size="3.6 GB",
    licence="terms of Tianchi",
    home="https://tianchi.aliyun.com/dataset/649",
    sources=(Source("UserBehavior.csv"),),
    build=build_views,
    sign_in="sign in at https://tianchi.aliyun.com/dataset/649, accept the terms, and put "
    "UserBehavior.csv",
)
