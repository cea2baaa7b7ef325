"""The data on which accuracy is compared: training and test samples as arrays, made once.

Criteo, Avazu and MovieLens lie in the folder RAW where their licences keep them out of the checkout
(`hotrows data NAME` says how to get them); Adult is bundled, and `clicks` is drawn here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.samples import Features, Samples, cut, ends_of, random_lengths
from benchmarks.workload import DATA

if TYPE_CHECKING:
    from hotrows import Batch
    from hotrows.data import EncodedData, Part

FOLDER = DATA / "accuracy"
RAW = Path(__file__).parents[2] / "shared" / "data"
MAX_LENGTH = 20  # of histories, the last clicks of longer ones
ONE_USER_IN = 4  # of MovieLens


def load(name: str) -> tuple[Features, Samples, Samples]:
    """What samples have, those to train on, and those to test on; of what `make` has made."""
    facts = json.loads((FOLDER / f"{name}.json").read_text())
    features = Features(**facts | {"labels": tuple(facts["labels"])})
    with np.load(FOLDER / f"{name}.npz") as file:
        parts = [
            Samples(*(file[f"{part}_{field}"] for field in Samples._fields)) for part in ("train", "test")
        ]
    return features, *parts


def make(name: str, raw: Path = RAW) -> None:
    """Makes a data set's files, unless they are there."""
    if (FOLDER / f"{name}.json").exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    features, *parts = SETS[name](raw)
    arrays = {}
    for part, samples in zip(("train", "test"), parts, strict=True):
        arrays |= {f"{part}_{field}": array for field, array in samples._asdict().items()}
    np.savez(FOLDER / f"{name}.npz", **arrays)
    aside = FOLDER / f"{name}.json.{os.getpid()}"
    aside.write_text(json.dumps(asdict(features)))
    aside.replace(FOLDER / f"{name}.json")


Made = tuple[Features, Samples, Samples]


def _criteo(raw: Path) -> Made:
    from hotrows.datasets import schemas

    from hotrows.data import prepare

    files, schema = [raw / "criteo_kaggle_10k.tsv"], schemas.BY_NAME["criteo"]
    return _encoded(lambda folder: prepare(files, schema, folder, split="position:0.8,0,0.2"))


def _avazu(raw: Path) -> Made:
    from hotrows.datasets import schemas

    from hotrows.data import prepare

    files, schema = [raw / "avazu_14k.csv"], schemas.BY_NAME["avazu"]
    return _encoded(lambda folder: prepare(files, schema, folder, split="position:0.8,0,0.2"))


def _adult(raw: Path) -> Made:
    from hotrows import datasets

    return _encoded(lambda folder: datasets.prepare(datasets.BY_NAME["adult"], None, folder))


def _movielens(raw: Path) -> Made:
    """Users whose id is divisible by four; genres, several per movie, are left out."""
    from hotrows import datasets

    data_set = datasets.BY_NAME["movielens_1m"]
    features, *parts = _encoded(lambda folder: datasets.prepare(data_set, raw, folder), target="movie")
    user = features.fields.index("user")
    kept = [_where(part, part.ids[user] % ONE_USER_IN == 0) for part in parts]
    return features, *kept


def _clicks(raw: Path) -> Made:
    """Items of shops, and the shops of what users clicked before, which follow their tastes.

    The more of these are the item's shop, the likelier a click; buying asks for the last one only.
    """
    rng = np.random.default_rng(0)
    num, num_users, num_items, num_shops = 80_000, 4_000, 1_000, 40
    shop_of, quality = rng.integers(0, num_shops, num_items), rng.normal(0, 0.7, num_items)
    tastes = rng.integers(0, num_shops, (num_users, 3))
    user, item = rng.integers(0, num_users, num), rng.integers(0, num_items, num)
    shop = shop_of[item]
    offsets = ends_of(random_lengths(rng, num, 10, MAX_LENGTH))
    sample = np.repeat(np.arange(num), np.diff(offsets))
    history = tastes[user[sample], rng.integers(0, 3, len(sample))]
    is_fan = rng.random(num) < 0.3  # samples with the item's shop in the history; most have none
    history = np.where(is_fan[sample] & (rng.random(len(sample)) < 0.4), shop[sample], history)
    last = history[offsets[1:] - 1]
    share = np.bincount(sample, history == shop[sample], num) / np.diff(offsets)
    click = -1.5 + 4 * share + quality[item]
    buy = -1.5 + 2.5 * (last == shop) + quality[item]
    labels = rng.random((num, 2)) < 1 / (1 + np.exp(-np.stack([click, buy], 1)))
    rows = {"user": num_users, "item": num_items, "shop": num_shops, "last": num_shops}
    rows = {name: number + 1 for name, number in rows.items()}  # 0 is padding
    samples = Samples(
        np.stack([user, item, shop, last]) + 1,
        np.zeros((num, 0), np.float32),
        labels.astype(np.float32),
        history + 1,
        offsets,
    )
    features = Features(rows, 0, "shop", MAX_LENGTH, ("click", "buy"))
    return features, cut(samples, 0, num * 3 // 4), cut(samples, num * 3 // 4, num)


SETS: dict[str, Callable[[Path], Made]] = {
    "criteo": _criteo,
    "avazu": _avazu,
    "adult": _adult,
    "movielens": _movielens,
    "clicks": _clicks,
}


def _encoded(prepare: Callable[[Path], EncodedData], target: str | None = None) -> Made:
    """Data that `prepare` encodes into a folder; lists but a history of the target are left out."""
    folder = FOLDER / f"encoded-{os.getpid()}"
    try:
        data = prepare(folder)
        schema = data.schema
        fields = {f.name: schema.rows_of(f.name) for f in schema.sparse if not f.many}
        length = MAX_LENGTH if target else 0
        features = Features(fields, len(schema.dense), target, length)
        return features, *(_samples(data.parts[name], features) for name in ("train", "test"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _samples(part: Part, features: Features) -> Samples:
    from hotrows.data.load.loader import Loader

    encoded = [_of_batch(batch, features) for batch in Loader(part, 8192, shuffle=False).batches(0)]
    lengths = np.concatenate([np.diff(samples.offsets) for samples in encoded])
    return Samples(
        np.concatenate([samples.ids for samples in encoded], 1),
        np.concatenate([samples.dense for samples in encoded]),
        np.concatenate([samples.labels for samples in encoded]),
        np.concatenate([samples.history for samples in encoded]),
        ends_of(lengths),
    )


def _of_batch(batch: Batch, features: Features) -> Samples:
    ids, size = batch.ids.numpy(), batch.size
    offsets = np.arange(len(ids) + 1) if batch.offsets is None else batch.offsets.numpy()

    def ids_of(name: str) -> tuple[np.ndarray, np.ndarray]:
        place = batch.features.index(name)
        ends = offsets[place * size : (place + 1) * size + 1]
        return ids[ends[0] : ends[-1]], ends - ends[0]

    history, ends = np.zeros(0, np.int64), np.zeros(size + 1, np.int64)
    if features.target is not None:
        history, ends = _last(*ids_of("history"), features.max_length)
    columns = np.stack([ids_of(name)[0] for name in features.fields])
    return Samples(columns, batch.dense.numpy(), batch.labels.numpy(), history, ends)


def _last(values: np.ndarray, offsets: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists without all but their last `length` values."""
    lengths = np.diff(offsets)
    from_end = np.repeat(offsets[1:], lengths) - np.arange(len(values))
    return values[from_end <= length], ends_of(np.minimum(lengths, length))


def _where(samples: Samples, kept: np.ndarray) -> Samples:
    lengths = np.diff(samples.offsets)
    return Samples(
        samples.ids[:, kept],
        samples.dense[kept],
        samples.labels[kept],
        samples.history[np.repeat(kept, lengths)],
        ends_of(lengths[kept]),
    )
