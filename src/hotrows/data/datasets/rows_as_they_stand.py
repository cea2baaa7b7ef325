"""Data sets whose rows are samples already: Criteo, Avazu, and UCI Adult, which is bundled.

Criteo: the Kaggle challenge of seven days, and the log of 24 days and a terabyte. Both hold tab-separated
rows without a header: the label, 13 whole numbers, 26 categories of 8 hexadecimal digits. Avazu: ten days
of mobile ads, in order of time. Adult: does a person of the census of 1994 earn more than 50,000 dollars?
"""

from __future__ import annotations

import dataclasses
import gzip
import re
from importlib.resources import files
from itertools import islice
from pathlib import Path

from hotrows.data.datasets.dataset import Build, DataSet, Progress, Samples, Source
from hotrows.data.datasets.tables import find, open_bytes
from hotrows.schema import Dense, Label, Schema, Sparse, Time

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
DAYS = 24


def _criteo(name: str, min_count: int) -> Schema:
    """Integers as log(1 + max(x, 0)), categories as ids."""
    return Schema(
        name=name,
        label="label",
        columns=("label", *INTEGERS, *CATEGORIES),
        features=(
            *(Dense(name, transform="log") for name in INTEGERS),
            *(Sparse(name, min_count=min_count) for name in CATEGORIES),
        ),
    )


def _criteo_x4() -> Schema:
    """Integers as ids, floor(log(x)^2), like the categories: BARS' Criteo_x4_001."""
    plain = _criteo("criteo_x4", 10)
    integers = tuple(Sparse(name, transform="log", min_count=10) for name in INTEGERS)
    return dataclasses.replace(plain, features=(*integers, *plain.sparse))


def as_it_is(*names: str) -> Build:
    """A builder that builds nothing: the rows of the first of these files are samples."""
    return lambda raw, samples, seed, progress: Samples((find(raw, *names),))


def build_days(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """Uses all days but the last for training; the halves of the last validate and test."""
    *training, last = _days(raw)
    if not training:
        raise ValueError(
            f"{raw} holds {last.name} alone, but the last day is kept for validation and test; "
            f"add at least one day before it"
        )
    validation, test = _halves(last, samples, progress)
    return Samples(tuple(training), (validation,), (test,))


def _days(raw: Path | None) -> list[Path]:
    """The files of the days that are there, in order."""
    folder = find(raw, *(f"day_{i}" for i in range(DAYS))).parent
    numbered: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if match := re.fullmatch(r"day_(\d+)(\.gz)?", path.name):
            numbered.setdefault(int(match[1]), path)
    return [numbered[day] for day in sorted(numbered)]


def _halves(path: Path, folder: Path, progress: Progress) -> tuple[Path, Path]:
    """The first and the second half of the lines of a file, the first one the shorter."""
    halves = (folder / "validation.txt", folder / "test.txt")
    with open_bytes(path) as lines:
        num_lines = sum(1 for _ in lines)
    with open_bytes(path) as lines:
        for half, count in zip(halves, (num_lines // 2, num_lines), strict=True):
            with open(half, "wb") as out:
                out.writelines(islice(lines, count))
            progress("halving", min(count, num_lines), num_lines)
    return halves


_TERMS = "CC BY-NC-SA 4.0"

criteo = DataSet(
    name="criteo",
    title="Criteo Kaggle: seven days of ads",
    schema=_criteo("criteo", 10),
    rows=45_840_617,
    size="11 GB",
    licence=_TERMS,
    home="https://ailab.criteo.com/ressources/",
    sources=(
        Source(
            "criteo.tar.gz",
            "https://go.criteo.net/criteo-research-kaggle-display-advertising-challenge-dataset.tar.gz",
        ),
        Source("train.txt", md5="4dcfe6c4b7783585d4ae3c714994f26a"),
        Source("test.txt", md5="94ccf2787a67fd3d6e78a62129af0ed9"),
    ),
    build=as_it_is("train.txt"),
    split="stratified:0.8,0.1,0.1",
)

criteo_x4 = dataclasses.replace(
    criteo, name="criteo_x4", title="Criteo Kaggle, integers as ids", schema=_criteo_x4()
)

criteo_1tb = dataclasses.replace(
    criteo,
    name="criteo_1tb",
    title="Criteo 1TB: 24 days of ads",
    schema=_criteo("criteo_1tb", 3),
    rows=4_373_472_329,
    size="1.1 TB",
    home="https://huggingface.co/datasets/criteo/CriteoClickLogs",
    sources=tuple(
        Source(f"day_{day}.gz", f"https://storage.googleapis.com/criteo-cail-datasets/day_{day}.gz")
        for day in range(DAYS)
    ),
    build=build_days,
    split=None,
)

_OF_AVAZU = (
    *("C1", "banner_pos", "site_id", "site_domain", "site_category"),
    *("app_id", "app_domain", "app_category", "device_id", "device_ip", "device_model"),
    *("device_type", "device_conn_type"),
    *(f"C{i}" for i in range(14, 22)),
)

_avazu = Schema(
    name="avazu",
    label="click",
    delimiter=",",
    time=Time("hour", format="%y%m%d%H"),
    features=(
        *(Sparse(name, transform=name) for name in ("hour", "weekday", "weekend")),
        *(Sparse(name, min_count=2) for name in _OF_AVAZU),
    ),
)

avazu = DataSet(
    name="avazu",
    title="Avazu: ten days of mobile ads",
    schema=_avazu,
    rows=40_428_967,
    size="5.9 GB",
    licence="Kaggle competition rules",
    home="https://www.kaggle.com/c/avazu-ctr-prediction",
    sources=(Source("train.gz"),),
    build=as_it_is("train.csv", "train"),  # train.csv, or train.gz as Kaggle packs it
    split="stratified:0.8,0.1,0.1",
    sign_in="sign in at https://www.kaggle.com/c/avazu-ctr-prediction/data, accept the rules, and "
    "put train.gz (or train.csv)",
)

_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week"),
    *("native_country", "income"),
)
_NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_VALIDATES = 10  # one row in this many, the last ones of the training file

# Numbers are read twice, as numbers and as ids: single amounts of capital gain decide much.
# fnlwgt is left out: the number of people that a person represents in the census is unknown for new
# rows, and does not depend on that person's income.
_adult = Schema(
    name="adult",
    label=Label("income", positive=(">50K", ">50K.")),
    columns=_COLUMNS,
    delimiter=",",
    strip=True,
    missing=("?",),
    features=(
        Dense("age", transform="standard"),
        Dense("education_num", transform="standard"),
        Dense("capital_gain", transform="log"),
        Dense("capital_loss", transform="log"),
        Dense("hours_per_week", transform="standard"),
        *(Sparse(f"{name}_id", column=name, min_count=3) for name in _NUMBERS),
        *(
            Sparse(name)
            for name in (
                *("workclass", "education", "marital_status", "occupation", "relationship"),
                *("race", "sex", "native_country"),
            )
        ),
    ),
)


def build_adult(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """adult.data cut into training and validation, adult.test without its first line.

    The rows are in no order, so the last tenth of adult.data is as good as any.
    """
    rows = _rows(raw, "adult.data")
    cut = len(rows) - len(rows) // _VALIDATES
    parts = {"train": rows[:cut], "validation": rows[cut:], "test": _rows(raw, "adult.test")}
    paths = [samples / f"{name}.csv" for name in parts]
    for path, lines in zip(paths, parts.values(), strict=True):
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    return Samples((paths[0],), (paths[1],), (paths[2],))


def _rows(raw: Path | None, name: str) -> list[bytes]:
    """The lines that hold a person: not the blank last one, not the remark at the head of the test."""
    if raw is not None and (raw / name).exists():
        text = (raw / name).read_bytes()
    else:
        text = gzip.decompress((files(__package__) / "files" / f"{name}.gz").read_bytes())
    return [line for line in text.splitlines() if line.strip() and not line.startswith(b"|")]


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"

adult = DataSet(
    name="adult",
    title="Adult: incomes of a census",
    schema=_adult,
    rows=48_842,
    size="6 MB",
    licence="CC BY 4.0",
    home="https://archive.ics.uci.edu/dataset/2/adult",
    sources=(
        Source("adult.data", f"{_UCI}/adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
        Source("adult.test", f"{_UCI}/adult.test", "35238206dfdf7f1fe215bbb874adecdc"),
    ),
    build=build_adult,
    bundled=True,
)
