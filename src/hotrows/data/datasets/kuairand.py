"""KuaiRand (Pure, 1K, 27K): does a user click, like or watch a short video?

The rows of the standard logs, joined with features of user and video, and the videos and authors that
the user clicked before. Thirty-one days: the last one tests, the one before validates. Columns
about the outcome of a row (play time, stay times, comments) are left out, and so are the statistics of
videos, which are averages over the month.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.datasets import tables
from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.datasets.events import histories, sort_events
from hotrows.data.datasets.tables import (
    TEST,
    TRAIN,
    VALIDATION,
    Directory,
    find,
    integers,
    partition,
    read_bucket,
)
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time

HISTORY = 50
VALIDATION_DATE, TEST_DATE = 20220507, 20220508

_LOG = {
    **dict.fromkeys(("user_id", "video_id", "date", "time_ms"), "int64"),
    **dict.fromkeys(("is_click", "is_like", "long_view"), "int8"),
    "duration_ms": "float64",
    "tab": "int64",
}
_USER_RANGES = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")
USER_FEATURES = (
    *("user_active_degree", "is_lowactive_period", "is_live_streamer", "is_video_author"),
    *(f"{name}_range" for name in _USER_RANGES),
    *(f"onehot_feat{i}" for i in range(18)),
)
_VIDEO = ("video_type", "upload_type", "music_id", "music_type", "tag")

schema = Schema(
    name="kuairand",
    label=(Label("is_click"), Label("is_like"), Label("long_view")),
    group="user_id",
    time=Time("time_ms", format="unix_ms", utc_offset=8),
    features=(
        Dense("duration_ms", transform="log"),
        Sparse("user_id"),
        Sparse("video_id", min_count=10),
        Sparse("author_id", min_count=10),
        Sparse("tab"),
        Sparse("hour", transform="hour"),
        Sparse("weekday", transform="weekday"),
        *(Sparse(name) for name in USER_FEATURES),
        *(Sparse(name, min_count=10) for name in _VIDEO[:-1]),
        Sparse("tag", many=True, separator=",", pooling="mean"),
        Sequence("history_video", vocabulary="video_id", min_count=10, max_length=HISTORY),
        Sequence("history_author", vocabulary="author_id", min_count=10, max_length=HISTORY),
    ),
)


def build(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """log_standard_*.csv, user_features_*.csv and video_features_basic_*.csv of one version."""
    first = find(raw, "log_standard_*.csv")
    logs = sorted(first.parent.glob(f"log_standard_*{''.join(first.suffixes)}"))
    path = find(first.parent, "user_features_*.csv")
    users = tables.read_directory(path, "user_id", dict.fromkeys(USER_FEATURES, "category"))
    path = find(first.parent, "video_features_basic_*.csv")
    types = {"author_id": "int64", **dict.fromkeys(_VIDEO, "category")}
    videos = tables.read_directory(path, "video_id", types)
    with tempfile.TemporaryDirectory(dir=samples) as scratch, tables.written(samples) as writer:
        rows = (block for path in logs for block in tables.csv_blocks(path, _LOG))
        buckets = partition(rows, "user_id", Path(scratch) / "log", "events", progress)
        for number, bucket in enumerate(buckets):
            _write(read_bucket(bucket), users, videos, writer)
            progress("histories", number + 1, len(buckets))
    return writer.samples


def _write(log: Any, users: Directory, videos: Directory, writer: tables.PartWriter) -> None:
    """Writes the samples of a bucket of users, in order of time; `time_ms` is in milliseconds."""
    log = log.sort_by("time_ms").combine_chunks()
    clicked = log.filter(log["is_click"].cast("bool")).select(["user_id", "video_id", "time_ms"])
    events = sort_events(integers(clicked["user_id"]), integers(clicked["time_ms"]))
    authors = tables.lookup(videos, integers(clicked["video_id"]))["author_id"]
    watched = clicked.select(["video_id"]).append_column("author_id", authors)
    for block in tables.slices(log):
        rows = tables.joined(block, users, integers(block["user_id"]))
        rows = tables.joined(rows, videos, integers(rows["video_id"]))
        past = histories(events, integers(rows["user_id"]), integers(rows["time_ms"]), HISTORY)
        rows = rows.append_column("history_video", past.column(watched["video_id"]))
        rows = rows.append_column("history_author", past.column(watched["author_id"]))
        dates = integers(block["date"])
        parts = np.select([dates >= TEST_DATE, dates >= VALIDATION_DATE], [TEST, VALIDATION], TRAIN)
        writer.write(rows, parts)


_ZENODO = "https://zenodo.org/records/10439422"

kuairand = DataSet(
    name="kuairand",
    title="KuaiRand: short videos (Pure)",
    schema=schema,
    rows=1_436_609,
    size="0.2 GB",
    licence="CC BY-SA 4.0",
    home="https://kuairand.com",
    sources=(
        Source(
            "KuaiRand-Pure.tar.gz",
            f"{_ZENODO}/files/KuaiRand-Pure.tar.gz",
            "0820331067a3784d9691136f772b35a7",
        ),
        *map(
            Source,
            (
                "log_standard_4_08_to_4_21_pure.csv",
                "log_standard_4_22_to_5_08_pure.csv",
                "user_features_pure.csv",
                "video_features_basic_pure.csv",
            ),
        ),
    ),
    build=build,
)
