"""Avazu: ten days of mobile ads, in order of time. The file's rows are samples already."""

from __future__ import annotations

from pathlib import Path

from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.datasets.tables import find
from hotrows.schema import Schema, Sparse, Time

_CATEGORIES = (
    *("C1", "banner_pos", "site_id", "site_domain", "site_category"),
    *("app_id", "app_domain", "app_category", "device_id", "device_ip", "device_model"),
    *("device_type", "device_conn_type"),
    *(f"C{i}" for i in range(14, 22)),
)

schema = Schema(
    name="avazu",
    label="click",
    delimiter=",",
    time=Time("hour", format="%y%m%d%H"),
    features=(
        *(Sparse(name, transform=name) for name in ("hour", "weekday", "weekend")),
        *(Sparse(name, min_count=2) for name in _CATEGORIES),
    ),
)


def build(raw: Path | None, samples: Path, seed: int, progress: Progress | None) -> Samples:
    """Returns train.csv, or train.gz as Kaggle packs it, whose rows are samples."""
    return Samples((find(raw, "train.csv", "train"),))


avazu = DataSet(
    name="avazu",
    title="Avazu: ten days of mobile ads",
    schema=schema,
    rows=40_428_967,
    size="5.9 GB",
    licence="Kaggle competition rules",
    home="https://www.kaggle.com/c/avazu-ctr-prediction",
    sources=(Source("train.gz"),),
    build=build,
    split="stratified:0.8,0.1,0.1",
    sign_in="sign in at https://www.kaggle.com/c/avazu-ctr-prediction/data, accept the rules, and "
    "put train.gz (or train.csv)",
)
