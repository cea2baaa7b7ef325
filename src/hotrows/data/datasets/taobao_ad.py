"""Taobao display ads: does a user click the ad? With the user's earlier behaviour on Taobao.

Impressions, joined with the ad and with the user's profile, and the last categories, brands and kinds of
the user's behaviours before the impression. Eight days: the last one tests, the one before validates.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hotrows.data.datasets import tables
from hotrows.data.datasets.buckets import partition, read_bucket
from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.datasets.history import histories, sort_events
from hotrows.data.datasets.tables import Directory, find, integers
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time

HISTORY = 50
UTC_OFFSET = 8
VALIDATION_DAY, TEST_DAY = map(tables.day, ("2017-05-12", "2017-05-13"))
_NULLS = ("", "NULL")

_SAMPLE = {"user": "int64", "time_stamp": "int64", "adgroup_id": "int64", "pid": "string", "clk": "int8"}
_AD = dict.fromkeys(("adgroup_id", "cate_id", "campaign_id", "customer", "brand"), "int64")
_AD["price"] = "float64"
_ABOUT_USER = (
    *("cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level"),
    *("shopping_level", "occupation", "new_user_class_level"),
)
_PROFILE = dict.fromkeys(("userid", *_ABOUT_USER), "int64")
_BEHAVIOUR = {"user": "int64", "time_stamp": "int64", "btag": "string", "cate": "int64", "brand": "int64"}
_OLD_NAMES = {"nick": "user", "customer_id": "customer"}
_HISTORIES = {"history_cate": "cate", "history_brand": "brand", "history_btag": "btag"}

schema = Schema(
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


def build(raw: Path | None, samples: Path, seed: int, progress: Progress | None) -> Samples:
    """raw_sample.csv, ad_feature.csv, user_profile.csv and behavior_log.csv."""
    ads = _directory(find(raw, "ad_feature.csv"), _AD, "adgroup_id")
    profiles = _directory(find(raw, "user_profile.csv"), _PROFILE, "userid")
    behaviours = _blocks(find(raw, "behavior_log.csv", "raw_behavior_log.csv"), _BEHAVIOUR)
    impressions = _blocks(find(raw, "raw_sample.csv"), _SAMPLE)
    with tempfile.TemporaryDirectory(dir=samples) as scratch, tables.written(samples) as writer:
        log = partition(behaviours, "user", Path(scratch) / "log", "behaviours", progress)
        cut = partition(impressions, "user", Path(scratch) / "shown", "impressions", progress)
        for number, (events, shown) in enumerate(zip(log, cut, strict=True)):
            rows = read_bucket(shown).sort_by("time_stamp")
            rows = tables.joined(rows, ads, integers(rows["adgroup_id"]))
            rows = tables.joined(rows, profiles, integers(rows["user"]))
            times = integers(rows["time_stamp"])
            parts = tables.parts_by_day(times, UTC_OFFSET, VALIDATION_DAY, TEST_DAY)
            writer.write(_with_histories(rows, read_bucket(events)), parts)
            if progress:
                progress("histories", number + 1, len(cut))
    return writer.samples


def _with_histories(rows: Any, log: Any) -> Any:
    events = sort_events(integers(log["user"]), integers(log["time_stamp"]))
    past = histories(events, integers(rows["user"]), integers(rows["time_stamp"]), HISTORY)
    for name, column in _HISTORIES.items():
        rows = rows.append_column(name, tables.lists(past.offsets, log[column].take(past.index)))
    return rows


def _directory(path: Path, types: dict[str, str], key: str) -> Directory:
    return tables.directory(tables.read_csv(path, types, nulls=_NULLS, also=_OLD_NAMES), key)


def _blocks(path: Path, types: dict[str, str]) -> Any:
    return tables.csv_blocks(path, types, nulls=_NULLS, also=_OLD_NAMES)


_TIANCHI = "https://tianchi.aliyun.com/dataset/56"

taobao_ad = DataSet(
    name="taobao_ad",
    title="Taobao: eight days of ads",
    schema=schema,
    rows=26_557_961,
    size="24 GB",
    licence="terms of Tianchi",
    home=_TIANCHI,
    sources=tuple(
        map(Source, ("raw_sample.csv", "ad_feature.csv", "user_profile.csv", "behavior_log.csv"))
    ),
    build=build,
    sign_in=f"sign in at {_TIANCHI}, accept the terms, unpack the four archives, and put "
    "raw_sample.csv, ad_feature.csv, user_profile.csv and behavior_log.csv",
)
