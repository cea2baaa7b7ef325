"""What do rows of 8 and 4 bits cost next to float32: in test AUC, and in the time of a step in memory?

    python -m benchmarks.row_bits --raw FOLDER_OF_RAW_FILES        # AUC, by data, optimizer and seed
    python -m benchmarks.row_bits --steps                          # seconds of steps

Every other setting is left open, on one thread; runs of the result file are not made again. `synthetic`
has two million samples like Criteo's, whose values are hashed into tables of 33.8 million rows. A step
of DeepFM is timed in seconds of its processor, all ways in turn, on tables far larger than caches.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks import defaults_data
from benchmarks.harness import add, conditions, measured
from benchmarks.workload import CRITEO_KAGGLE, DATA
from hotrows import Sparse, models
from hotrows.config import TrainConfig
from hotrows.data import EncodedData, prepare
from hotrows.datasets import schemas
from hotrows.datasets.synthetic import synth_criteo
from hotrows.record import layout_of
from hotrows.train import Trainer

NAME, QUESTION = "row_bits", __doc__.splitlines()[0]
DTYPES = ("float32", "int8", "int4")
OPTIMIZERS = {"adagrad": hotrows.Adagrad(), "rowwise_adagrad": hotrows.RowWiseAdagrad()}
FIELDS, ROWS, BATCH, ROUNDS, STEPS = 26, 100_000, 2048, 15, 4
SAMPLES = 2_000_000  # of the synthetic set


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--sets", nargs="+", default=["criteo", "avazu", "movielens", "synthetic"])
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=OPTIMIZERS)
    parser.add_argument("--models", nargs="+", default=["deepfm", "dcnv2", "dlrm"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--raw", type=Path, default=defaults_data.RAW, help="folder of raw files")
    parser.add_argument("--steps", action="store_true", help="time steps in place of AUC")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.steps:
        for optimizer in args.optimizers:
            _store(["steps", optimizer], _seconds(optimizer))
        return
    arms = product(args.models, args.sets, args.optimizers, range(args.seeds), DTYPES)
    for model, name, optimizer, seed, dtype in arms:
        if model == "dlrm" and name in ("avazu", "movielens"):  # which have no dense features
            continue
        keys = [f"auc of {model}", name, optimizer, dtype, str(seed)]
        if not measured(NAME, keys):
            _store(keys, _auc(model, name, optimizer, dtype, seed, args.raw))


def _auc(model: str, name: str, optimizer: str, dtype: str, seed: int, raw: Path) -> float:
    """AUC of the test part."""
    rows = None if optimizer == "adagrad" else OPTIMIZERS[optimizer]  # the default, where it is that
    data = _synthetic(seed) if name == "synthetic" else defaults_data.load(name, seed, raw)
    config = TrainConfig(model=model, table_dtype=dtype, row_optimizer=rows, seed=seed, plan_depth=0)
    with tempfile.TemporaryDirectory() as folder:
        result = Trainer(data, config, Path(folder) / "run").fit()
    assert result.test is not None
    return result.test.auc


def _synthetic(seed: int) -> EncodedData:
    """Samples like Criteo's, made for a seed, without vocabularies: values are hashed over the rows."""
    made = DATA / f"row_bits-{seed}"
    if not (made / "data.json").exists():
        rows, never = iter(CRITEO_KAGGLE), 1 << 40
        features = tuple(
            replace(feature, num_unknown=next(rows), min_count=never)
            if isinstance(feature, Sparse)
            else feature
            for feature in schemas.criteo.features
        )
        with tempfile.TemporaryDirectory() as folder:
            file = synth_criteo(SAMPLES, folder, seed=seed)
            prepare(file, replace(schemas.criteo, features=features), made, seed=seed)
    return EncodedData.open(made)


def _seconds(optimizer: str) -> dict[str, Any]:
    """Milliseconds of a step and bytes of a row, by dtype, and the median ratio to float32 of a round."""
    torch.manual_seed(0)
    fields = tuple(hotrows.Sparse(f"C{n}", rows=ROWS) for n in range(FIELDS))
    schema = hotrows.Schema((*(hotrows.Dense(f"I{n}") for n in range(13)), *fields), label="click")
    names = tuple(field.name for field in fields)
    batches = [
        hotrows.Batch(
            names,
            (torch.rand(FIELDS * BATCH).pow(3) * ROWS).long(),  # some ids are frequent
            torch.rand(BATCH, 13),
            torch.randint(0, 2, (BATCH,)).float(),
        )
        for _ in range(8)
    ]
    arms = {dtype: _Arm(schema, dtype, optimizer) for dtype in DTYPES}
    seconds: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
    for k in range(ROUNDS + 1):
        for dtype, arm in arms.items():
            begin = time.process_time()
            for step in range(STEPS * k, STEPS * (k + 1)):
                arm.step(batches[step % len(batches)], step)
            seconds[dtype].append((time.process_time() - begin) / STEPS)
    wide = seconds["float32"][1:]
    ratios = {
        dtype: median(b / a for a, b in zip(wide, times[1:], strict=True))
        for dtype, times in seconds.items()
    }
    return {
        "ms": {dtype: round(1e3 * median(times[1:]), 2) for dtype, times in seconds.items()},
        "ratio": {dtype: round(ratios[dtype], 3) for dtype in DTYPES[1:]},
        "record_bytes": {dtype: arm.record_bytes for dtype, arm in arms.items()},
    }


class _Arm:
    """DeepFM with rows of a dtype, in memory."""

    def __init__(self, schema: hotrows.Schema, dtype: str, optimizer: str) -> None:
        self._model = models.build("deepfm", schema)
        self._embedding = hotrows.Embedding.for_model(
            self._model, schema, table_dtype=dtype, optimizer=OPTIMIZERS[optimizer]
        )
        self._dense = torch.optim.Adam(self._model.parameters(), fused=True)
        self.record_bytes = max(layout_of(table).stride for table in self._embedding.tables)

    def step(self, batch: hotrows.Batch, step: int) -> None:
        plan = self._embedding.plan(batch, step)
        vectors = self._embedding.lookup(plan)
        logits = self._model(vectors, batch.dense)
        binary_cross_entropy_with_logits(logits, batch.labels).backward()
        self._embedding.update(plan, vectors)
        self._dense.step()
        self._dense.zero_grad()


def _store(keys: list[str], value: Any) -> None:
    add(NAME, keys, value, {"question": QUESTION, **conditions(1)})
    print(*keys, value, flush=True)


if __name__ == "__main__":
    main()
