"""How well does a model predict whose tables keep a part of the keys? Ways to choose it, side by side.

    python -m benchmarks.dynamic [movielens] [avazu] [drift] [--seeds 0 1 2] [--minutes 10] [--quick]
    python -m benchmarks.dynamic --picture  # draws what was measured

A stream of samples is read once, in order, in ten parts; after each of the first nine, a factorization
machine predicts the next one. The figure is the mean AUC of these nine. Tables hold a share of all
distinct keys of the stream:

    lru        keys that were read twice, the one read longest ago is evicted
    frequent   keys that were read twice lately, and more often than the one that is evicted, which has
               the fewest reads, of a half-life of 8 batches
    budget     as `frequent`, rows of all tables divided as `rows_budget` does for shuffled samples: by
               the counts of the parts that are trained
    ordered    as `budget`, as `rows_budget` does for samples in order: by the reads of rows that earlier
               batches have trained, with the half-life, 8 or 32 batches, that serves most of them; in
               all others each table holds the same share of its keys
    cafe       hot keys of all tables own rows, others share them by a hash (`benchmarks.papers.cafe`), in
               the bytes of `frequent` with its keys and its sketch
    lfu        every key, the one with the fewest reads is evicted, of a half-life of 25 batches
    ahead      keys that are read twice within 16 batches, the one read farthest ahead is evicted
    hashing    no key is kept apart: rows are shared by a hash, the trick that others use
    unlimited  every key has a row

A stream is 240 batches, 24 a part. No way sees beyond the part that it trains: what is looked ahead ends
there.

MovieLens-1M has no times: users come in the order of their numbers, the highest first, which is that of
their registration, one every 166 ratings, and rate in their order. `avazu` is few samples, of four hours
of a week. `drift` is drawn: users and items are born and die, popularity moves, and tastes stay.

Figures are written as they come; a run that was ended goes on with those that are missing.
"""

import argparse
import csv
import functools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import RESULTS, conditions, stored, write
from benchmarks.papers.cafe import CafeRows, Setting
from hotrows import Adagrad, Batch, Constant, Dynamic, Embedding, Normal, Table
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.metrics import auc
from hotrows.schema import Schema, Sparse
from hotrows.train.rows_budget import Replay, ValueReads, divide

DATA = Path(__file__).parents[2] / "shared" / "data"
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
BATCHES, DIM, WINDOW, PARTS = 240, 8, 16, 10
WAYS = {
    "frequent": {"admit": "frequent:2", "evict": "lfu:8"},
    "lru": {"admit": "after:2", "evict": "lru"},
    "lfu": {"evict": "lfu:25"},
    "ahead": {"admit": "ahead:2", "evict": "ahead", "window": WINDOW},
}
CAFE = Setting(threshold=2, shared=0.3, decay=0.9)  # best of those tried; published: 10 to 500
RECORD, KEY = 2 * 4 * (DIM + 1), 24 + 32  # bytes of a key: its rows, and what finds and counts it
ARMS = (("unlimited", 1.0), *product((*WAYS, "budget", "ordered", "cafe", "hashing"), SHARES))


@dataclass(frozen=True, eq=False)
class Samples:
    """keys: [F, N] int64, of each feature; labels: [N] float32; in the order of time."""

    keys: np.ndarray
    labels: np.ndarray

    @property
    def bounds(self) -> list[int]:
        """Where the batches of a stream begin and end."""
        return [len(self.labels) * number // BATCHES for number in range(BATCHES + 1)]

    def of_part(self, part: int) -> slice:
        first, last = (part * BATCHES // PARTS, (part + 1) * BATCHES // PARTS)
        return slice(self.bounds[first], self.bounds[last])

    def batches(self, part: int) -> Iterator[Batch]:
        span = self.of_part(part)
        inside = [bound for bound in self.bounds if span.start <= bound <= span.stop]
        for begin, end in pairwise(inside):
            keys = torch.from_numpy(self.keys[:, begin:end].copy())
            labels = torch.from_numpy(self.labels[begin:end])
            features = tuple(f"key{f}" for f in range(len(keys)))
            yield Batch(features, keys.reshape(-1), torch.zeros(len(labels), 0), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", nargs="*", default=list(STREAMS), metavar="STREAM")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(10), help="added to those measured")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no figure after so many")
    parser.add_argument("--picture", action="store_true", help="draw what was measured")
    parser.add_argument("--quick", action="store_true", help="few samples; nothing is written")
    args = parser.parse_args()
    if args.picture:
        draw()
        return
    torch.set_num_threads(1)
    began = time.monotonic()
    for seed, name in product(args.seeds[:1] if args.quick else args.seeds, args.streams):
        setting = {"batches": BATCHES, "dim": DIM, "ways": WAYS}
        figures = [] if args.quick else earlier(name, setting)
        done = {(f["seed"], f["way"], f["share"]) for f in figures}
        missing = [arm for arm in ARMS if (seed, *arm) not in done and (not args.quick or arm[1] >= 0.5)]
        samples = STREAMS[name](seed, 60_000 if args.quick else 1_000_000) if missing else None
        for way, share in missing:
            if time.monotonic() - began > 60 * args.minutes:
                return
            assert samples is not None
            figures.append(
                {"seed": seed, "way": way, "share": share, **measure(samples, seed, way, share)}
            )
            if not args.quick:
                facts = {
                    **setting,
                    "samples": len(samples.labels),
                    "features": len(samples.keys),
                    "cafe": asdict(CAFE),
                }
                write(f"dynamic-{name}", {**conditions(1), **facts, "figures": figures})
        show(name, figures)


def earlier(name: str, setting: dict) -> list[dict]:
    """The figures that were measured by the same setting."""
    result = stored(f"dynamic-{name}")
    return result["figures"] if setting.items() <= result.items() else []


def measure(samples: Samples, seed: int, way: str, share: float) -> dict[str, float]:
    """The figures of a way that keeps a share of the distinct keys of each feature."""
    rows = [max(int(share * len(np.unique(keys))), 1) for keys in samples.keys]
    if way == "unlimited":
        return train(samples, seed, [Dynamic()] * len(rows))
    if way == "hashing":
        return train(hashed(samples, rows), seed, rows)
    if way == "cafe":
        cafe = CafeRows([num * (RECORD + KEY) for num in rows], DIM, CAFE, seed)
        return train_rows(samples, cafe, seed)
    if way == "ordered":
        rows = divided(samples, sum(rows), in_order=True)
        evict = [replay.evict(num) for replay, num in zip(replayed(samples), rows, strict=True)]
        return train(
            samples,
            seed,
            [Dynamic(*how) for how in zip(rows, ["frequent:2"] * len(rows), evict, strict=True)],
        )
    if way == "budget":
        rows, way = divided(samples, sum(rows)), "frequent"
    return train(samples, seed, [Dynamic(capacity=num, **WAYS[way]) for num in rows])


def divided(samples: Samples, num_rows: int, in_order: bool = False) -> list[int]:
    """So many rows divided over the features by the parts that are trained: by the counts of keys or, in
    order, by the reads of rows that earlier batches have trained."""
    counts = enumerate([one.counts() for one in replayed(samples)] if in_order else _counts(samples))
    read = {str(f): ValueReads(num, RECORD) for f, num in counts}
    return list(divide(read, num_rows * RECORD).values())


def _counts(samples: Samples) -> list[np.ndarray]:
    trained = samples.keys[:, : samples.of_part(PARTS - 1).start]
    return [np.sort(np.unique(keys, return_counts=True)[1])[::-1] for keys in trained]


@functools.lru_cache(1)  # of all shares
def replayed(samples: Samples) -> list[Replay]:
    replays = [Replay(len(num)) for num in _counts(samples)]
    for batch in (batch for part in range(PARTS - 1) for batch in samples.batches(part)):
        for replay, keys in zip(replays, batch.ids.view(len(replays), -1), strict=True):
            replay.read(keys)
    return replays


def hashed(samples: Samples, rows: list[int]) -> Samples:
    """The samples with ids in place of keys: a hash, modulo the rows."""
    with np.errstate(over="ignore"):
        ids = [
            _mix(keys) % np.uint64(num) + np.uint64(3)
            for keys, num in zip(samples.keys, rows, strict=True)
        ]
    return Samples(np.stack(ids).astype(np.int64), samples.labels)


def train(samples: Samples, seed: int, declared: list[Dynamic] | list[int]) -> dict[str, float]:
    """Trains a factorization machine; declared: of each feature, how keys get rows, or its rows."""
    return train_rows(samples, tables(declared, seed), seed)


def train_rows(samples: Samples, embedding: Embedding | CafeRows, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    bias = nn.Parameter(torch.zeros(()))
    dense = torch.optim.Adagrad([bias], lr=0.02)

    def logits(vectors: list[Tensor]) -> Tensor:
        vector, linear = (leaf.view(-1, len(samples.keys), leaf.shape[1]) for leaf in vectors)
        pairs = (vector.sum(1) ** 2 - (vector**2).sum(1)).sum(1) / 2
        return bias + linear.sum((1, 2)) + pairs

    @torch.no_grad()
    def predictions(part: int) -> Tensor:
        batches = samples.batches(part)
        return torch.cat([logits(embedding.lookup(embedding.plan(batch)).leaves) for batch in batches])

    aucs, step = [], 0
    for part in range(PARTS - 1):
        for batch in embedding.resolved(samples.batches(part)):
            vectors = embedding.lookup(plan := embedding.plan(batch, step))
            functional.binary_cross_entropy_with_logits(logits(vectors.leaves), batch.labels).backward()
            embedding.update(plan, vectors)
            dense.step()
            dense.zero_grad()
            step += 1
        labels = torch.from_numpy(samples.labels[samples.of_part(part + 1)])
        aucs.append(auc(predictions(part + 1), labels))
    return {"auc": mean(aucs)}


def tables(declared: list[Dynamic] | list[int], seed: int) -> Embedding:
    names = [f"key{f}" for f in range(len(declared))]
    of = Schema(
        features=tuple(
            Sparse(name, rows=how + 3) if isinstance(how, int) else Sparse(name, dynamic=how)
            for name, how in zip(names, declared, strict=True)
        )
    )
    made = []
    for role, dim, first in (("vector", DIM, Normal(0.1)), ("linear", 1, Constant(0.0))):
        for name in names:
            rows, reserved = of.rows_of(name), of.reserved_of(name)
            made.append(Table(f"{name}.{role}", rows, dim, (name,), role, first, reserved=reserved))
    dynamic = DynamicIds.of_schema(of, made)
    return Embedding(made, optimizer=Adagrad(lr=0.05), seed=seed, dynamic=dynamic)


def movielens(seed: int, most: int) -> Samples:
    """Users in the order of their registration; the seed is that of first values alone."""
    ratings = DATA / "movielens_1m_ratings.csv.gz"
    user, item, rating, place = np.loadtxt(ratings, np.int64, delimiter=",", skiprows=1).T
    num_users = user.max()
    order = np.argsort((num_users - user) * (len(user) / num_users) + place, kind="stable")[:most]
    return Samples(np.stack([user, item])[:, order], (rating[order] >= 4).astype(np.float32))


def avazu(seed: int, most: int) -> Samples:
    """The columns that have many values; the seed is that of first values alone."""
    with open(DATA / "avazu_14k.csv", newline="") as file:
        rows = list(csv.DictReader(file))[:most]
    columns = "site_id", "app_id", "device_id", "device_ip", "device_model", "C14", "C17", "C20"
    keys = [np.unique([row[name] for row in rows], return_inverse=True)[1] for name in columns]
    return Samples(
        np.stack(keys).astype(np.int64), np.array([row["click"] == "1" for row in rows], np.float32)
    )


def drift(seed: int, most: int, life: float = 0.1) -> Samples:
    """Users and items live for a tenth of the stream on average. Some are read far more often than
    others; popularity rises and falls within a life. A label is drawn of the quality of both and of
    tastes in four dimensions, which a user and an item have for good."""
    draw = np.random.default_rng(seed)
    keys, tastes, quality = [], [], []
    for num in (most // 50, most // 100):
        born = draw.uniform(-life, 1, num)
        length = draw.exponential(life, num)
        weight = draw.pareto(1.1, num) + 0.05
        keys.append(_alive(draw, born, length, weight, most))
        tastes.append(draw.normal(0, 0.8, (num, 4)))
        quality.append(draw.normal(0, 0.7, num))
    (user, item), (of_users, of_items) = keys, tastes
    score = quality[0][user] + quality[1][item] + (of_users[user] * of_items[item]).sum(1)
    labels = (draw.random(most) < 1 / (1 + np.exp(-score))).astype(np.float32)
    return Samples(np.stack([_mix(k.astype(np.uint64)).view(np.int64) for k in keys]), labels)


def _alive(draw, born: np.ndarray, length: np.ndarray, weight: np.ndarray, most: int) -> np.ndarray:
    """[most]: who is read at each time, of those that are alive by their weight then."""
    chosen, steps = [], 1000
    for part in np.array_split(np.arange(most), steps):
        age = (part[0] / most - born) / length
        share = weight * np.where((age > 0) & (age < 1), age * (1 - age), 0)
        chosen.append(draw.choice(len(born), len(part), p=share / share.sum()))
    return np.concatenate(chosen)


def _mix(x: np.ndarray) -> np.ndarray:
    from hotrows.data.raw.values import mix64

    with np.errstate(over="ignore"):
        return mix64(x.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))


def show(name: str, figures: list[dict]) -> None:
    """Prints mean and 95 % interval over seeds."""
    print(f"\n{name}: {len({f['seed'] for f in figures})} seeds; next-tenth AUC")
    for share in sorted({f["share"] for f in figures}):
        for way in dict.fromkeys(f["way"] for f in figures if f["share"] == share):
            print(f"{share:6.0%}  {way:10} {_cell(figures, way, share)}", flush=True)


def _aucs(figures: list[dict], way: str, share: float) -> list[float]:
    return [f["auc"] for f in figures if (f["way"], f["share"]) == (way, share)]


def _cell(figures: list[dict], way: str, share: float) -> str:
    values = _aucs(figures, way, share)
    if not values:
        return ""
    spread = 1.96 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{mean(values):.4f} ± {spread:.4f}"


def _of_whole_seeds(figures: list[dict]) -> list[dict]:
    """Without the seed that was under way when a run was ended."""
    return [f for f in figures if sum(other["seed"] == f["seed"] for other in figures) == len(ARMS)]


def draw() -> None:
    """Draws all streams that were measured into docs/pictures/kept.png."""
    from benchmarks.pictures import draw_kept

    paths = {name: RESULTS / f"dynamic-{name}.json" for name in STREAMS}
    draw_kept(
        {n: _of_whole_seeds(json.loads(p.read_text())["figures"]) for n, p in paths.items() if p.exists()}
    )


STREAMS = {"movielens": movielens, "avazu": avazu, "drift": drift}

if __name__ == "__main__":
    main()
