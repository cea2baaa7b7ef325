"""UCI Adult: does a person of the census of 1994 earn more than 50,000 dollars? Bundled."""

from __future__ import annotations

import gzip
from importlib.resources import files
from pathlib import Path

from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.schema import Dense, Label, Schema, Sparse

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
schema = Schema(
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


def build(raw: Path | None, samples: Path, seed: int, progress: Progress | None) -> Samples:
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
    schema=schema,
    rows=48_842,
    size="6 MB",
    licence="CC BY 4.0",
    home="https://archive.ics.uci.edu/dataset/2/adult",
    sources=(
        Source("adult.data", f"{_UCI}/adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
        Source("adult.test", f"{_UCI}/adult.test", "35238206dfdf7f1fe215bbb874adecdc"),
    ),
    build=build,
    bundled=True,
)
