"""Criteo: the Kaggle challenge of seven days, and the log of 24 days and a terabyte.

Both hold tab-separated rows without a header: the label, 13 whole numbers, 26 categories of 8
hexadecimal digits, and are samples already.
"""

from __future__ import annotations

import dataclasses
import re
from itertools import islice
from pathlib import Path

from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.datasets.tables import find, open_bytes
from hotrows.schema import Dense, Schema, Sparse

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
DAYS = 24


def schema(name: str, min_count: int) -> Schema:
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


def schema_x4() -> Schema:
    """Integers as ids, floor(log(x)^2), like the categories: BARS' Criteo_x4_001."""
    plain = schema("criteo_x4", 10)
    integers = tuple(Sparse(name, transform="log", min_count=10) for name in INTEGERS)
    return dataclasses.replace(plain, features=(*integers, *plain.sparse))


def build(raw: Path | None, samples: Path, seed: int, progress: Progress | None) -> Samples:
    """Returns train.txt, whose rows are samples."""
    return Samples((find(raw, "train.txt"),))


def build_days(raw: Path | None, samples: Path, seed: int, progress: Progress | None) -> Samples:
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


def _halves(path: Path, folder: Path, progress: Progress | None) -> tuple[Path, Path]:
    """The first and the second half of the lines of a file, the first one the shorter."""
    halves = (folder / "validation.txt", folder / "test.txt")
    with open_bytes(path) as lines:
        num_lines = sum(1 for _ in lines)
    with open_bytes(path) as lines:
        for half, count in zip(halves, (num_lines // 2, num_lines), strict=True):
            with open(half, "wb") as out:
                out.writelines(islice(lines, count))
            if progress:
                progress("halving", min(count, num_lines), num_lines)
    return halves


_TERMS = "CC BY-NC-SA 4.0"

criteo = DataSet(
    name="criteo",
    title="Criteo Kaggle: seven days of ads",
    schema=schema("criteo", 10),
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
    build=build,
    split="stratified:0.8,0.1,0.1",
)

criteo_x4 = dataclasses.replace(
    criteo, name="criteo_x4", title="Criteo Kaggle, integers as ids", schema=schema_x4()
)

criteo_1tb = dataclasses.replace(
    criteo,
    name="criteo_1tb",
    title="Criteo 1TB: 24 days of ads",
    schema=schema("criteo_1tb", 3),
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
