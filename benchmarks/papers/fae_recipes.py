"""RMC1, RMC2 and RMC3, the models of FAE by name, in the arms of its rig."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

import numpy as np
from hotrows.config import TrainConfig

from benchmarks.fae import FOLDER
from benchmarks.gpu_parts.part import Findings
from benchmarks.papers import fae_rig
from benchmarks.papers.part import Part, Setting
from benchmarks.samples import ends_of, random_lengths
from hotrows.data import EncodedData, prepare
from hotrows.models.recipes import RECIPES
from hotrows.schema import Schema, Sequence, Sparse

BATCHES = {"rmc2": 2048}  # in place of 128; of the others those of their scripts
ROWS = 150_000  # of the synthetic Criteo, 120,000 of them to train on
SAMPLES = 120_000  # of the shop, four fifths to train on
LENGTH = 20
SHOP = Schema(
    name="shop",
    label="label",
    features=(
        Sparse("user"),
        Sparse("item"),
        Sparse("category"),
        Sequence("history_item", vocabulary="item", max_length=LENGTH),
        Sequence("history_category", vocabulary="category", max_length=LENGTH),
    ),
)
_SMALL = {"rmc1": {"dim": 8}}  # the others are the model of the rig


def run(findings: Findings, setting: Setting) -> None:
    for name in setting.pick(tuple(RECIPES), tuple(_SMALL)):
        config = TrainConfig.from_fields({
            **RECIPES[name],
            "batch_size": setting.pick(BATCHES.get(name, RECIPES[name]["batch_size"]), 256),
            "evaluate_every": 1 << 30,
            "linear_paths": "plain",
        })  # fmt: skip
        if setting.small:
            config = dataclasses.replace(config, model_options=_SMALL[name])
        criteo = functools.partial(fae_rig.data_of, rows=ROWS)
        data = functools.partial(shop if name == "rmc1" else criteo, setting)
        fae_rig.run_arms(findings, setting, data, config, f"{name.upper()}: ")


@functools.cache
def shop(setting: Setting) -> EncodedData:
    """Samples in the shape of Taobao's, one in fifty of its users, items and five of its categories;
    those of whole runs are kept."""
    if setting.small:
        return prepare(
            [shop_rows(2000, 300, 800, 40)], SHOP, _folder() / "enc", split="position:0.8,0.1,0.1"
        )
    out = FOLDER / f"shop-{SAMPLES}"
    if not out.exists():
        FOLDER.mkdir(exist_ok=True)
        prepare(shop_rows(SAMPLES, 20_000, 80_000, 2_000), SHOP, out, split="position:0.8,0.1,0.1")
    return EncodedData.open(out)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


def _folder() -> Path:
    return Path(_temporary().name)


def shop_rows(num: int, num_users: int, num_items: int, num_categories: int):
    """A table: what users with a taste for three categories viewed before, and what they view next, or an
    item drawn by popularity in its place. Popular items are read most, by Zipf's law (1.05)."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    in_category = num_items // num_categories
    cumulated = np.cumsum(np.arange(1.0, num_users + 1) ** -0.8)
    user = np.searchsorted(cumulated, rng.random(num) * cumulated[-1])
    tastes = _zipf(rng, (num_users, 3), num_categories)
    offsets = ends_of(random_lengths(rng, num, 10, LENGTH))
    of_sample = np.repeat(np.arange(num), np.diff(offsets))

    def viewed(by: np.ndarray, faithful: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        taste = tastes[by, rng.integers(0, 3, len(by))]
        category = np.where(faithful, taste, _zipf(rng, len(by), num_categories))
        return category + num_categories * _zipf(rng, len(by), in_category), category

    past, past_categories = viewed(user[of_sample], rng.random(len(of_sample)) < 0.7)
    label = rng.random(num) < 0.5
    item, category = viewed(user, label)
    return pa.table({
        "label": label.astype(np.int8),
        "user": user,
        "item": item,
        "category": category,
        "history_item": pa.ListArray.from_arrays(offsets.astype(np.int32), past),
        "history_category": pa.ListArray.from_arrays(offsets.astype(np.int32), past_categories),
    })  # fmt: skip


def _zipf(rng: np.random.Generator, shape, num: int) -> np.ndarray:
    cumulated = np.cumsum(np.arange(1.0, num + 1) ** -1.05)
    return np.searchsorted(cumulated, rng.random(shape) * cumulated[-1])


def table(arms: dict[str, dict]) -> str:
    return fae_rig.table_of_groups("recipe", arms)


PART = Part("And of the models RMC1, RMC2 and RMC3?", run, table)
