"""What does a training step with dynamic ids cost, next to one with ids that are known before?

    python -m benchmarks.dynamic_step [memory] [file] [--threads 2] [--quick | --prepare]

DLRM on 26 features of Criteo Kaggle's sizes, scaled to `rows` in all, ids by Zipf 1.05, batches of 8,192.

    memory    all rows in memory
    file      a tenth in fast memory, the popular ones to begin with, looking 64 batches ahead; all rows
              in a file, where each was written before

One arm reads ids, the other the same as keys, all of which are live before, but for 1 % of new ones in
every batch, which evict others (`lru`). Both plan on threads of their own, beside training. They take
turns of 12 steps, each after six that do not count: planning was that far ahead of them. The ratio is
the median over turns of that of the median steps.
"""

import argparse
import shutil
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.arms.tiers import fill
from benchmarks.harness import conditions, write
from benchmarks.workload import CRITEO_KAGGLE, DATA, DLRM_BOTTOM, DLRM_TOP, LEARNING_RATE
from hotrows import Adagrad, Batch, Caching, Dense, Dynamic, Embedding, Schema, Sparse, models
from hotrows.engine.planning.policy import Lookahead
from hotrows.engine.stages import start
from hotrows.models.nn import choose_linear_paths, use_linear_paths

BATCH, DIM, NEW, SHARE, WINDOW = 8192, 16, 0.01, 0.1, 64
TURN, AHEAD = 12, 6
ARMS, TIERS = ("static", "dynamic"), ("memory", "file")
RECORD = 2 * 4 * DIM  # bytes: weights, and Adagrad's sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tiers", nargs="*", default=TIERS, metavar="TIER", help=", ".join(TIERS))
    parser.add_argument("--rows", type=int, default=33_800_000)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few rows and turns; nothing is written")
    parser.add_argument("--prepare", action="store_true", help="only write the files, which are kept")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for tier in ["file"] if args.prepare else args.tiers:
        rows, turns, steps = (200_000, 1, 2) if args.quick else (args.rows, args.turns, TURN)
        sizes = [max(int(size * rows / sum(CRITEO_KAGGLE)), 10) for size in CRITEO_KAGGLE]
        if args.quick:
            shutil.rmtree(folder(sizes), ignore_errors=True)
        folder(sizes).mkdir(parents=True, exist_ok=True)
        if args.prepare:
            for name in ARMS:
                Arm(tier, sizes, name, 0).close()
            return
        figures = measure(tier, sizes, turns, steps)
        print(f"{tier}, {sum(sizes):,} rows, {args.threads} threads:", figures, flush=True)
        if not args.quick:
            setting = {"rows": sum(sizes), "batch": BATCH, "dim": DIM, "new": NEW, "turns": turns}
            setting |= {"share": SHARE, "window": WINDOW} if tier == "file" else {}
            write(f"dynamic_step-{tier}-{args.threads}", conditions(args.threads) | setting | figures)
        if tier == "file":
            shutil.rmtree(folder(sizes))


def folder(sizes: list[int]) -> Path:
    return DATA / f"dynamic-step-{sum(sizes)}"


def measure(tier: str, sizes: list[int], turns: int, num_steps: int) -> dict:
    """Milliseconds of a step of each arm, the ratio, and that of each turn."""
    arms = {name: Arm(tier, sizes, name, (1 + turns) * (AHEAD + num_steps)) for name in ARMS}
    seconds: dict[str, list[list[float]]] = {name: [] for name in ARMS}
    for turn in range(1 + turns):
        for name, arm in arms.items():
            steps = arm.train(num_steps)
            if turn:  # the first one warms up
                seconds[name].append(steps)
    ratios = [median(dynamic) / median(static) for static, dynamic in zip(*seconds.values(), strict=True)]
    figures = {name: round(1e3 * median(chain(*of_arm)), 2) for name, of_arm in seconds.items()}
    waited = {name: round(sum(arm.runner.stalled.values()), 3) for name, arm in arms.items()}
    for arm in arms.values():
        arm.close()
    return {
        "ms": figures,
        "ratio": round(median(ratios), 4),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "waited_seconds": waited,
    }


class Arm:
    """A model that trains on the stream, some steps at a time."""

    def __init__(self, tier: str, sizes: list[int], name: str, num_steps: int) -> None:
        self.sizes, self.is_dynamic = sizes, name == "dynamic"
        self.features = tuple(f"C{f}" for f in range(len(sizes)))
        ids = [
            Sparse(feature, dynamic=Dynamic(capacity=size, evict="lru"))
            if self.is_dynamic
            else Sparse(feature, rows=size + 3)
            for feature, size in zip(self.features, sizes, strict=True)
        ]
        schema = Schema(features=(*(Dense(f"I{d}") for d in range(13)), *ids))
        torch.manual_seed(0)
        options = {"dim": DIM, "bottom": DLRM_BOTTOM[:-1], "top": DLRM_TOP[:-1]}
        self.model = models.build("dlrm", schema, **options)
        use_linear_paths(self.model, choose_linear_paths(self.model, torch.float32))
        caching = None if tier == "memory" else self._caching(folder(sizes) / name)
        self.embedding = Embedding.for_model(
            self.model, schema, optimizer=Adagrad(lr=LEARNING_RATE), caching=caching
        )
        self.dense = torch.optim.Adagrad(self.model.parameters(), LEARNING_RATE, fused=True)
        if self.embedding.dynamic.vocabularies:
            state = self.embedding.dynamic.state()
            for feature, size in zip(self.features, sizes, strict=True):
                state |= _filled(state, feature, size)
            self.embedding.dynamic.load(state)
        if self.embedding.cached_tables:
            fill(self.embedding)
            self.embedding.cached_tables.warm()
        self.runner = start(self.embedding, self._batches(num_steps))

    def _caching(self, path: Path) -> Caching:
        popular = {
            feature: torch.arange(3, 3 + int(size * SHARE))
            for feature, size in zip(self.features, self.sizes, strict=True)
        }
        fast_memory = int(sum(self.sizes) * RECORD * SHARE)
        return Caching(fast_memory, f"file:{path}", Lookahead(WINDOW), hot_ids=popular)

    def _batches(self, num: int) -> Iterator[tuple[int, Batch]]:
        draw = np.random.default_rng(0)
        drawn = [self._batch(draw, number) for number in range(num + WINDOW)]
        return iter(enumerate(drawn))

    def _batch(self, draw: np.random.Generator, number: int) -> Batch:
        columns = []
        for size in self.sizes:
            ids = torch.from_numpy(_zipf(draw, size, BATCH))
            is_new = torch.from_numpy(draw.random(BATCH) < NEW)
            if self.is_dynamic:
                ids[is_new] = torch.arange(int(is_new.sum())) + (1 << 40) + number * BATCH
            columns.append(_spread(ids) if self.is_dynamic else ids + 3)
        dense = torch.from_numpy(draw.random((BATCH, 13), np.float32))
        labels = torch.from_numpy((draw.random(BATCH) < 0.25).astype(np.float32))
        return Batch(self.features, torch.cat(columns), dense, labels)

    def train(self, num_steps: int) -> list[float]:
        """Seconds of each step of a turn."""
        times = [time.perf_counter()]
        for _, work in zip(range(AHEAD + num_steps), self.runner, strict=False):
            plan, batch = work.item.plan, work.item.batch
            vectors = self.embedding.lookup(plan)
            logits = self.model(vectors, batch.dense)
            binary_cross_entropy_with_logits(logits, batch.labels).backward()
            self.embedding.update(plan, vectors)
            self.dense.step()
            self.dense.zero_grad()
            times.append(time.perf_counter())
        return np.diff(times)[AHEAD:].tolist()

    def close(self) -> None:
        self.runner.close()
        self.embedding.close()


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
