"""Milliseconds from raw rows to shards, batches and scores, by public names alone: any tree runs it.

    python from_rows.py make FOLDER                 raw rows, data and a bundle, which all arms read
    python from_rows.py ARM FOLDER                  prints {"ms": ..}

Arms: `csv`, `parquet` prepare rows of Criteo's shape; `csv_461`, `parquet_461` rows of 461 columns;
`loader` reads an epoch in order of a shuffle; `request` scores one user's 500 candidates.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

import hotrows
from hotrows import Dense, Schema, Sparse

ROWS, NUMBERS, IDS = 200_000, 13, 26
WIDE_ROWS, WIDE_NUMBERS, WIDE_IDS = 12_000, 130, 330
CANDIDATES, REQUESTS = 500, 300


def schema_of(numbers: int, ids: int) -> Schema:
    features = (*(Dense(f"I{n}") for n in range(numbers)), *(Sparse(f"C{n}") for n in range(ids)))
    return Schema(features, label="click")


def table_of(rows: int, numbers: int, ids: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    values = random.zipf(1.3, (rows, ids)) % 100_000
    columns: dict[str, Any] = {"click": (random.random(rows) < 0.25).astype(np.int8)}
    columns |= {f"I{n}": random.exponential(30, rows).round(1) for n in range(numbers)}
    columns |= {f"C{n}": pa.array(np.char.mod("%x", values[:, n] * 2_654_435_761)) for n in range(ids)}
    return pa.table(columns)


def make(folder: Path) -> None:
    from hotrows.export.whole import export  # a path that commits before the moves have, too

    for name, sizes in (("", (ROWS, NUMBERS, IDS)), ("_461", (WIDE_ROWS, WIDE_NUMBERS, WIDE_IDS))):
        table = table_of(*sizes)
        csv.write_csv(table, folder / f"csv{name}", csv.WriteOptions(quoting_style="none"))
        parquet.write_table(table, folder / f"parquet{name}")
    data = hotrows.prepare(table_of(ROWS, NUMBERS, IDS), schema_of(NUMBERS, IDS), folder / "enc")
    config = hotrows.TrainConfig(model="deepfm", steps=20)
    hotrows.Trainer(data, config, folder / "run").fit()
    export(folder / "run", folder / "bundle", format="onnx", shared=[f"C{n}" for n in range(13)])


def prepared(kind: str, folder: Path) -> float:
    """Seconds of one preparation."""
    sizes = (WIDE_NUMBERS, WIDE_IDS) if kind.endswith("461") else (NUMBERS, IDS)
    suffix = ".csv" if kind.startswith("csv") else ".parquet"
    with tempfile.TemporaryDirectory() as out:
        raw = Path(out) / f"rows{suffix}"
        shutil.copy(folder / kind, raw)
        begin = time.perf_counter()
        hotrows.prepare(raw, schema_of(*sizes), Path(out) / "enc")
        return time.perf_counter() - begin


def loaded(folder: Path) -> float:
    """Seconds of an epoch of batches."""
    from hotrows.data import EncodedData, Loader

    loader = Loader(EncodedData.open(folder / "enc").parts["train"], 4096)
    begin = time.perf_counter()
    for _ in loader.batches(epoch=0):
        pass
    return time.perf_counter() - begin


def scorer_of(folder: Path) -> Callable[[], float]:
    """Seconds of one request."""
    from hotrows.serving import Scorer

    scorer = Scorer(folder / "bundle")
    table = table_of(CANDIDATES, NUMBERS, IDS, seed=1).drop_columns(["click"])
    names = [f"C{n}" for n in range(13)]
    shared, rows = {name: table[name][0].as_py() for name in names}, table.drop_columns(names)

    def scored() -> float:
        begin = time.perf_counter()
        scorer.score(rows, shared)
        return time.perf_counter() - begin

    return scored


def main(arm: str, place: str) -> None:
    folder = Path(place)
    if arm == "make":
        make(folder)
        return
    if arm == "request":
        score = scorer_of(folder)
        seconds = [score() for _ in range(REQUESTS)][REQUESTS // 10 :]
    elif arm == "loader":
        seconds = [loaded(folder) for _ in range(6)][1:]
    else:
        seconds = [prepared(arm, folder) for _ in range(4)][1:]
    print(json.dumps({"ms": 1e3 * median(seconds)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
