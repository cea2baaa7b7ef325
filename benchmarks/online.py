"""How long does a request take: raw rows in, probabilities out, on one core?

    python -m benchmarks.online [RAW_CRITEO_FILE]

An Arrow table of 1 or 100 raw rows is encoded and scored by a DeepFM (dim 16, 400x400x400), which was
trained on the file, or on 100,000 synthetic rows of Criteo's shape. 2,000 requests each, in turn.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

import hotrows
from benchmarks.harness import ROOT, conditions, write
from hotrows.data import Encoder
from hotrows.datasets import schemas

REQUESTS = 2000


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        raw = sys.argv[1] if len(sys.argv) > 1 else synthetic(folder)
        data = hotrows.prepare([raw], schemas.criteo, folder / "enc", split="position:0.8")
        config = hotrows.TrainConfig(model="deepfm", epochs=1)
        hotrows.Trainer(data, config, folder / "run").fit()
        predictor, encoder = hotrows.load_run(folder / "run"), Encoder.open(folder / "enc", threads=1)
        table = rows_of(Path(raw), encoder)

        def encode(rows: pa.Table) -> list[hotrows.Batch]:
            return list(encoder.encode(rows))

        def score(rows: pa.Table) -> list[torch.Tensor]:
            return list(predictor.predict(encode(rows)))

        seconds: dict[str, list[float]] = {}
        for request in range(REQUESTS):
            for size in (1, 100):
                rows = table.slice(request % (len(table) - size), size)
                for step in (encode, score):
                    begin = time.perf_counter()
                    step(rows)
                    key = f"{step.__name__}, rows: {size}"
                    seconds.setdefault(key, []).append(time.perf_counter() - begin)
    figures = {
        key: {f"p{q}_ms": round(1e3 * float(np.percentile(times[20:], q)), 2) for q in (50, 99)}
        for key, times in seconds.items()
    }
    for key, figure in figures.items():
        print(f"{key:18} {figure}")
    write("online", {"requests": REQUESTS, "figures": figures, **conditions(1)})


def synthetic(folder: Path) -> str:
    command = [sys.executable, "-m", "hotrows", "synth", "criteo", "--rows", "100000"]
    subprocess.run([*command, "--out", str(folder / "raw")], cwd=ROOT, check=True)
    return str(folder / "raw" / "train.txt")


def rows_of(raw: Path, encoder: Encoder) -> pa.Table:
    """The first rows of the file, without labels, as text."""
    with raw.open() as lines:
        cells = [next(lines).rstrip("\n").split("\t")[1:] for _ in range(1000)]
    names = encoder.schema.raw_columns[: len(cells[0])]
    return pa.table(dict(zip(names, map(list, zip(*cells, strict=True)), strict=True)))


if __name__ == "__main__":
    main()
