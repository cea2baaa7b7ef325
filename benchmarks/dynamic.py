"""How well does a model predict whose tables keep a part of the keys? Ways to choose it, side by side.

    python -m benchmarks.dynamic [movielens] [drift] [--seeds 0 1 2] [--samples 1000000] [--quick]

A stream of samples is read once, in order, in ten parts; after each of the first nine, the model predicts
the next one. The figure is the mean AUC of these nine; `online` is the AUC of all batches together, each
predicted before it is trained. Tables hold a share of all distinct keys of the stream:

    lru        keys that were read twice, the one read longest ago is evicted
    lfu        every key, the one with the fewest reads is evicted, of a half-life of 100 batches
    ahead      keys that are read twice within 64 batches, the one read farthest ahead is evicted
    hashing    no key is kept apart: rows are shared by a hash, the trick that others use
    unlimited  every key has a row

MovieLens-1M has no times: users come in the order of their numbers, the highest first, which is that of
their registration, one every 166 ratings, and rate in their order. `drift` is drawn: users and items are
born and die, popularity moves, and tastes stay.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import RESULTS, conditions, write
from hotrows import Adagrad, Batch, Constant, Dynamic, Embedding, Normal, Table
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.metrics import auc
from hotrows.schema import Schema, Sparse

RATINGS = Path(__file__).parents[2] / "shared" / "data" / "movielens_1m_ratings.csv.gz"
FEATURES = ("user", "item")
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
BATCH, DIM, WINDOW, PARTS = 1024, 8, 64, 10
WAYS = {
    "lru": {"admit": "after:2", "evict": "lru"},
    "lfu": {"evict": "lfu:100"},
    "ahead": {"admit": "ahead:2", "evict": "ahead", "window": WINDOW},
}


@dataclass(frozen=True)
class Samples:
    """keys: [2, N] int64, of users and items; labels: [N] float32; in the order of time."""

    keys: np.ndarray
    labels: np.ndarray

    def batches(self, begin: int, end: int) -> Iterator[Batch]:
        for first in range(begin, end, BATCH):
            part = slice(first, min(first + BATCH, end))
            keys, labels = (
                torch.from_numpy(self.keys[:, part].copy()),
                torch.from_numpy(self.labels[part]),
            )
            yield Batch(FEATURES, keys.reshape(-1), torch.zeros(len(labels), 0), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", nargs="*", default=list(STREAMS), metavar="STREAM")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(10), help="added to those measured")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument(
        "--quick", action="store_true", help="one seed of few samples; nothing is written"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.streams:
        setting = {"samples": args.samples, "batch": BATCH, "dim": DIM, "ways": WAYS}
        figures = [] if args.quick else earlier(name, setting)
        for seed in args.seeds[:1] if args.quick else args.seeds:
            samples = STREAMS[name](seed, 60_000 if args.quick else args.samples)
            figures = [figure for figure in figures if figure["seed"] != seed]
            figures += measure(samples, seed, (0.1,) if args.quick else SHARES)
            show(name, figures)
            if not args.quick:
                write(f"dynamic-{name}", {**conditions(1), **setting, "figures": figures})


def earlier(name: str, setting: dict) -> list[dict]:
    """The figures of other seeds that were measured by the same setting."""
    path = RESULTS / f"dynamic-{name}.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    return result["figures"] if setting.items() <= result.items() else []


def measure(samples: Samples, seed: int, shares: tuple[float, ...]) -> list[dict]:
    """The figures of every way and share, of one seed of the first values."""
    distinct = [len(np.unique(keys)) for keys in samples.keys]
    figures = [{"way": "unlimited", "share": 1.0, **train(samples, seed, [Dynamic()] * 2)}]
    for share in shares:
        rows = [max(int(share * num), 1) for num in distinct]
        for way, policy in WAYS.items():
            dynamic = [Dynamic(capacity=num, **policy) for num in rows]
            figures.append({"way": way, "share": share, **train(samples, seed, dynamic)})
        figures.append({"way": "hashing", "share": share, **train(hashed(samples, rows), seed, rows)})
    return [{"seed": seed, **figure} for figure in figures]


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
    torch.manual_seed(seed)
    embedding = tables(declared, seed)
    bias = nn.Parameter(torch.zeros(()))
    dense = torch.optim.Adagrad([bias], lr=0.02)

    def logits(vectors: list[Tensor]) -> Tensor:
        pairs, linear = (leaf.view(-1, 2, leaf.shape[1]) for leaf in vectors)
        return bias + linear.sum((1, 2)) + (pairs[:, 0] * pairs[:, 1]).sum(1)

    @torch.no_grad()
    def predictions(batches: Iterator[Batch]) -> Tensor:
        return torch.cat([logits(embedding.lookup(embedding.plan(batch)).leaves) for batch in batches])

    num, aucs, online = len(samples.labels), [], []
    bounds = [num * part // PARTS // BATCH * BATCH for part in range(PARTS)] + [num]
    for step, (batch, raw) in enumerate(
        zip(
            embedding.resolved(samples.batches(0, bounds[-2])),
            samples.batches(0, bounds[-2]),
            strict=True,
        )
    ):
        if step * BATCH in bounds[1:]:
            part = bounds.index(step * BATCH)
            aucs.append(
                _auc(predictions(samples.batches(*bounds[part : part + 2])), samples, bounds, part)
            )
        online.append(predictions(iter([raw])))
        plan = embedding.plan(batch, step)
        vectors = embedding.lookup(plan)
        functional.binary_cross_entropy_with_logits(logits(vectors.leaves), batch.labels).backward()
        embedding.update(plan, vectors)
        dense.step()
        dense.zero_grad()
    last = predictions(samples.batches(*bounds[-2:]))
    aucs.append(_auc(last, samples, bounds, PARTS - 1))
    labels = torch.from_numpy(samples.labels[: bounds[-2]])
    return {"auc": mean(aucs), "online": auc(torch.cat(online), labels)}


def tables(declared: list[Dynamic] | list[int], seed: int) -> Embedding:
    of = Schema(
        features=tuple(
            Sparse(name, rows=how + 3) if isinstance(how, int) else Sparse(name, dynamic=how)
            for name, how in zip(FEATURES, declared, strict=True)
        )
    )
    made = []
    for role, dim, first in (("vector", DIM, Normal(0.1)), ("linear", 1, Constant(0.0))):
        for name in FEATURES:
            rows, reserved = of.rows_of(name), of.reserved_of(name)
            made.append(Table(f"{name}.{role}", rows, dim, (name,), role, first, reserved=reserved))
    dynamic = DynamicIds.of_schema(of, made)
    return Embedding(made, optimizer=Adagrad(lr=0.05), seed=seed, dynamic=dynamic)


def _auc(predictions: Tensor, samples: Samples, bounds: list[int], part: int) -> float:
    return auc(predictions, torch.from_numpy(samples.labels[bounds[part] : bounds[part + 1]]))


def movielens(seed: int, most: int) -> Samples:
    """Users in the order of their registration; the seed is that of first values alone."""
    user, item, rating, place = np.loadtxt(RATINGS, np.int64, delimiter=",", skiprows=1).T
    num_users = user.max()
    order = np.argsort((num_users - user) * (len(user) / num_users) + place, kind="stable")[:most]
    return Samples(np.stack([user, item])[:, order], (rating[order] >= 4).astype(np.float32))


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
    print(f"\n{name}: {len({f['seed'] for f in figures})} seeds; next-tenth AUC, online AUC")
    for share in sorted({f["share"] for f in figures}):
        for way in dict.fromkeys(f["way"] for f in figures if f["share"] == share):
            chosen = [f for f in figures if (f["way"], f["share"]) == (way, share)]
            words = []
            for what in ("auc", "online"):
                values = [f[what] for f in chosen]
                spread = 1.96 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
                words.append(f"{mean(values):.4f} ± {spread:.4f}")
            print(f"{share:6.0%}  {way:10} {words[0]}   {words[1]}", flush=True)


STREAMS = {"movielens": movielens, "drift": drift}

if __name__ == "__main__":
    main()
