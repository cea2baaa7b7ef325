"""What does a training step with dynamic ids cost, next to one with ids that are known before?

    python -m benchmarks.dynamic_step [--rows 33800000] [--share 0.1 [--store FOLDER]] [--quick]

DLRM on 26 features of Criteo's sizes, scaled to `rows` in all, ids by Zipf 1.05, batches of 8,192, in
memory or behind a cache that holds a share of the rows, the others in memory or in files. One arm
reads ids, the other the same as keys, all of which are live before, but for 1 % of new ones in every
batch, which evict others. Arms take turns, ten steps each; the figure is the median step, planning on a
thread of its own.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn import functional

from benchmarks.harness import conditions, write
from benchmarks.workload import CRITEO_KAGGLE
from hotrows import Adagrad, Batch, Caching, Dense, Dynamic, Embedding, Schema, Sparse, models
from hotrows.engine.stages import start

BATCH, DIM, NEW, TURN = 8192, 16, 0.01, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=33_800_000)
    parser.add_argument("--share", type=float, help="of the rows in fast memory (default: all)")
    parser.add_argument("--store", type=Path, help="folder for the other rows (default: in memory)")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="few rows and turns; nothing is written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = 200_000 if args.quick else args.rows
    sizes = [max(int(size * rows / sum(CRITEO_KAGGLE)), 10) for size in CRITEO_KAGGLE]
    arms = {}
    for name in ("static", "dynamic"):
        store = "memory" if args.store is None else f"file:{args.store / name}"
        caching = args.share and Caching(int(sum(sizes) * 2 * 4 * DIM * args.share), store)
        arms[name] = Arm(sizes, name == "dynamic", caching)
    turns = 2 if args.quick else args.turns
    steps: dict[str, list[list[float]]] = {name: [] for name in arms}
    for turn in range(1 + turns):
        for name, arm in arms.items():
            seconds = arm.train(turn)
            if turn:  # the first one warms up
                steps[name].append(seconds)
    figures = {name: 1e3 * median(chain(*of_arm)) for name, of_arm in steps.items()}
    pairs = zip(steps["static"], steps["dynamic"], strict=True)
    ratio = median(median(dynamic) / median(static) for static, dynamic in pairs)
    words = ", ".join(f"{name} {ms:.1f} ms" for name, ms in figures.items())
    print(f"{sum(sizes):,} rows: {words}, {ratio:.3f}x")
    if not args.quick:
        tier = "-cached" if args.store is None else "-file"
        name = "dynamic_step" if args.share is None else f"dynamic_step{tier}"
        setting = {"rows": sum(sizes), "share": args.share, "batch": BATCH, "dim": DIM, "new": NEW}
        write(name, {**conditions(1), **setting, "ms": figures, "ratio": ratio})


class Arm:
    """A model that trains on the stream, some steps at a time."""

    def __init__(self, sizes: list[int], is_dynamic: bool, caching: Caching | None) -> None:
        self.sizes, self.is_dynamic = sizes, is_dynamic
        self.draw = np.random.default_rng(0)
        names = [f"C{f}" for f in range(len(sizes))]
        ids = [
            Sparse(name, dynamic=Dynamic(capacity=size, evict="lru"))
            if is_dynamic
            else Sparse(name, rows=size + 3)
            for name, size in zip(names, sizes, strict=True)
        ]
        schema = Schema(features=(*(Dense(f"I{d}") for d in range(13)), *ids))
        torch.manual_seed(0)
        self.model = models.build("dlrm", schema, dim=DIM)
        self.features = tuple(names)
        self.embedding = Embedding.for_model(
            self.model, schema, optimizer=Adagrad(lr=0.02), caching=caching
        )
        self.dense = torch.optim.Adagrad(self.model.parameters(), lr=0.02)
        if self.embedding.dynamic is not None:
            state = self.embedding.dynamic.state()
            for name, size in zip(names, sizes, strict=True):
                state |= _filled(state, name, size)
            self.embedding.dynamic.load(state)

    def batches(self, turn: int) -> Iterator[tuple[int, Batch]]:
        for number in range(turn * TURN, (turn + 1) * TURN):
            columns = []
            for size in self.sizes:
                ids = torch.from_numpy(_zipf(self.draw, size, BATCH))
                if self.is_dynamic:
                    ids = _spread(ids)
                    new = torch.from_numpy(self.draw.random(BATCH) < NEW)
                    ids[new] = _spread(torch.arange(int(new.sum())) + (1 << 40) + number * BATCH)
                else:
                    ids = ids + 3
                columns.append(ids)
            dense = torch.from_numpy(self.draw.random((BATCH, 13), np.float32))
            labels = torch.from_numpy((self.draw.random(BATCH) < 0.25).astype(np.float32))
            yield number, Batch(self.features, torch.cat(columns), dense, labels)

    def train(self, turn: int) -> list[float]:
        """Seconds of each step of a turn."""
        seconds, batches = [], list(self.batches(turn))
        with closing(start(self.embedding, batches, plan_depth=2)) as runner:
            begin = time.perf_counter()
            for work in runner:
                plan, batch = work.item.plan, work.item.batch
                vectors = self.embedding.lookup(plan)
                logits = self.model(vectors, batch.dense)
                functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
                self.embedding.update(plan, vectors)
                self.dense.step()
                self.dense.zero_grad()
                begin, before = time.perf_counter(), begin
                seconds.append(begin - before)
        return seconds


def _zipf(draw: np.random.Generator, size: int, num: int) -> np.ndarray:
    """[num] ids below size, by Zipf's law of exponent 1.05."""
    a = 1 - 1.05
    ranks = (draw.random(num) * ((size + 1) ** a - 1) + 1) ** (1 / a)
    return np.minimum(ranks.astype(np.int64) - 1, size - 1)


def _filled(state: dict[str, torch.Tensor], name: str, size: int) -> dict[str, torch.Tensor]:
    """The state of a key table whose keys 0 to size - 1 are live, key k as the row of k."""
    keys, counters = torch.arange(size), state[f"{name}/counters"].clone()
    counters[2:4] = size  # rows, admitted
    columns = {
        "keys": _spread(keys), "ids": keys + 3, "counters": counters,
        "last_use": torch.full_like(keys, -1), "counts": torch.zeros_like(keys),
    }  # fmt: skip
    return {f"{name}/{what}": column for what, column in columns.items()}


def _spread(keys: torch.Tensor) -> torch.Tensor:
    """Distinct keys far from one another."""
    return keys * 0x9E3779B97F4A7C1


if __name__ == "__main__":
    main()
