"""Why does CAFE predict MovieLens better than keys chosen by their reads? One difference after the other.

    python -m benchmarks.dynamic_ablation [movielens] [avazu] [drift] [--seeds 0 1] [--shares 0.05 0.1]

Streams, model, bytes and AUC are those of `benchmarks.dynamic`. Arms are CAFE with one thing changed, and
our `frequent` with one thing after the other made that of CAFE:

    pool      own rows of all features in one pool, or a pool of each feature: in proportion to its keys
              or divided as `budget` or `ordered` do
    hot       keys of high scores (gradient norms, or counts), or those that TinyLFU keeps, whose reads
              have a half-life of 8 batches or, for each feature, the one that `ordered` has
    begin     a new own row begins as the shared row of its key, with first values, or at 0
    shared    fraction of bytes for rows that cold keys share by a hash (0: one row a feature)
    hashes    shared rows of a key, which are summed
    back      a key that loses its row leaves the mean of both in its shared row

Figures are written as they come; a run that was ended goes on with those that are missing.
"""

import argparse
import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from benchmarks.dynamic import (
    BATCHES,
    CAFE,
    DIM,
    KEY,
    RECORD,
    STREAMS,
    WAYS,
    Samples,
    divided,
    replayed,
    train_rows,
)
from benchmarks.harness import conditions, stored, write
from benchmarks.papers.cafe import EPS, LR, SLOT_BYTES, SLOTS, HotSketch
from hotrows import Batch, Dynamic
from hotrows.data.raw.values import mix64
from hotrows.keys.native import NativeKeyTable


@dataclass(frozen=True)
class Choice:
    """What an arm does; by default CAFE as published."""

    pool: str = "one"  # or "each", "budget", "ordered"
    hot: str = "norm"  # or "count", "lfu", "chosen"
    begin: str = "shared"  # or "fresh", "zero"
    shared: float = CAFE.shared
    hashes: int = 1
    back: bool = False


OURS = Choice(pool="each", hot="lfu", begin="fresh", shared=0.0)
ORDERED = replace(OURS, pool="ordered")
ARMS = {
    "CAFE": Choice(),
    "CAFE, a pool of each feature": Choice(pool="each"),
    "CAFE, new rows begin fresh": Choice(begin="fresh"),
    "CAFE, scores count reads": Choice(hot="count"),
    "CAFE, TinyLFU in place of scores": Choice(hot="lfu"),
    "CAFE, one shared row a feature": Choice(shared=0.0),
    "CAFE, 10 % shared": Choice(shared=0.1),
    "CAFE, two hashes": Choice(hashes=2),
    "CAFE, writes back": Choice(back=True),
    "frequent": OURS,
    "frequent, one pool": replace(OURS, pool="one"),
    "frequent, begins as shared": replace(OURS, begin="shared"),
    "budget": replace(OURS, pool="budget"),
    "ordered, half-life 8": ORDERED,
    "ordered, half-life 8, begins as shared": replace(ORDERED, begin="shared"),
    "ordered, half-life 8, begins at 0": replace(ORDERED, begin="zero"),
    "ordered, half-life 8, 10 % shared": replace(ORDERED, shared=0.1),
    "ordered": replace(ORDERED, hot="chosen"),
    "ordered, begins as shared": replace(ORDERED, hot="chosen", begin="shared"),
}


class Scored:
    """Hot keys by CAFE's sketch, which are known after a batch."""

    key_bytes = SLOTS * SLOT_BYTES

    def __init__(self, rows: int, by_norm: bool) -> None:
        self.sketch, self.by_norm = HotSketch(rows, CAFE.threshold, CAFE.decay), by_norm

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The own row of each key; -1: it has none."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        own = [self.sketch.row(key) for key in distinct.tolist()]
        return np.array([-1 if row is None else row for row in own])[inverse]

    def resolve(self, keys: np.ndarray) -> tuple[np.ndarray, "Changes"]:
        return self.find(keys), Changes()

    def trained(self, keys: np.ndarray, norms: np.ndarray) -> "Changes":
        owners = [slot for bucket in self.sketch.buckets for slot in bucket if slot[2] is not None]
        before = [(slot, slot[0], slot[2]) for slot in owners]
        self.sketch.fade()
        lost = [(key, row) for slot, key, row in before if slot[2] is None]
        scores = norms if self.by_norm else np.ones_like(norms)
        added = (
            (key, self.sketch.add(key, s)) for key, s in zip(keys.tolist(), scores.tolist(), strict=True)
        )
        return Changes([pair for pair in added if pair[1] is not None], lost)


class Counted:
    """Hot keys as `frequent` of `benchmarks.dynamic` chooses them, which are known before a batch."""

    key_bytes = KEY

    def __init__(self, rows: int, evict: str) -> None:
        self.table = NativeKeyTable(Dynamic(rows, "frequent:2", evict))

    def find(self, keys: np.ndarray) -> np.ndarray:
        ids = self.table.find(torch.from_numpy(keys.view(np.int64))).numpy()
        return ids - self.table.first_id  # -1: the unknown id

    def resolve(self, keys: np.ndarray) -> tuple[np.ndarray, "Changes"]:
        new = self.table.resolve(torch.from_numpy(keys.view(np.int64)))
        first = self.table.first_id
        born = zip(
            new.born_keys.numpy().view(np.uint64).tolist(), (new.born - first).tolist(), strict=True
        )
        died = zip(
            new.died_keys.numpy().view(np.uint64).tolist(), (new.died - first).tolist(), strict=True
        )
        return new.ids.numpy() - first, Changes(list(born), list(died))

    def trained(self, keys: np.ndarray, norms: np.ndarray) -> "Changes":
        self.table.trained()
        return Changes()


@dataclass(frozen=True)
class Changes:
    """Keys that got a row, and keys that lost theirs before, with these rows."""

    born: list[tuple[int, int]] | tuple = ()
    died: list[tuple[int, int]] | tuple = ()


class AblatedRows:
    """The rows of a factorization machine, with the calls of `hotrows.Embedding` that training makes.

    num_rows: of each feature, how many keys `frequent` keeps in its bytes. Rows are own ones, shared ones
    and, last, one of zeros, which stands for the second hash of a hot key.
    """

    def __init__(self, samples: Samples, num_rows: list[int], choice: Choice, seed: int) -> None:
        self.choice, features = choice, range(len(num_rows))
        key_bytes = (Scored if choice.hot in ("norm", "count") else Counted).key_bytes
        num_bytes = [num * (RECORD + KEY) for num in num_rows]
        self.shared = [max(int(num * choice.shared / RECORD), 1) for num in num_bytes]
        own = [num * (1 - choice.shared) / (RECORD + key_bytes) for num in num_bytes]
        sizes = [max(int(num), 1) for num in ([sum(own)] if choice.pool == "one" else own)]
        if choice.pool in DIVIDED:
            sizes = DIVIDED[choice.pool](samples, sum(sizes))
        self.spans = [slice(None)] if choice.pool == "one" else [slice(f, f + 1) for f in features]
        evict = ["lfu:8"] * len(sizes)
        if choice.hot == "chosen":
            evict = [replay.evict(num) for replay, num in zip(replayed(samples), sizes, strict=True)]
        scored = choice.hot in ("norm", "count")
        self.hot = [
            Scored(num, choice.hot == "norm") if scored else Counted(num, how)
            for num, how in zip(sizes, evict, strict=True)
        ]
        self.first = [sum(sizes[:n]) for n in range(len(sizes))]
        self.begin = [sum(sizes) + sum(self.shared[:f]) for f in features]
        self.draw = torch.Generator().manual_seed(seed)
        self.weights = torch.zeros(sum(sizes) + sum(self.shared) + 1, DIM + 1)
        self.weights[:-1] = self._first_values(len(self.weights) - 1)
        self.squares = torch.zeros_like(self.weights)
        self.shared_of: dict[int, list[int]] = {}  # by key, of those that were ever read

    def _first_values(self, num: int) -> Tensor:
        return torch.cat([torch.randn(num, DIM, generator=self.draw) * 0.1, torch.zeros(num, 1)], 1)

    def resolved(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return batches

    def plan(self, batch: Batch, step: int | None = None) -> "Places":
        keys = batch.ids.view(len(self.shared), -1).numpy()
        sizes, begin = np.array(self.shared, np.uint64)[:, None], np.array(self.begin)[:, None]
        with np.errstate(over="ignore"):
            mixed = [mix64(keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))]
            mixed.append(mix64(mixed[0]))
            shared = np.stack([(m % sizes).astype(np.int64) + begin for m in mixed[: self.choice.hashes]])
            named = mix64(mixed[0] + np.arange(1, len(keys) + 1, dtype=np.uint64)[:, None])
        if step is not None:
            flat = shared.reshape(len(shared), -1).T.tolist()
            self.shared_of.update(zip(named.reshape(-1).tolist(), flat, strict=True))
        own = np.empty(keys.shape, np.int64)
        for span, first, hot in zip(self.spans, self.first, self.hot, strict=True):
            of = named[span].reshape(-1)
            rows, changes = hot.find(of), Changes()
            if step is not None:
                rows, changes = hot.resolve(of)
            self._change(changes, first)
            own[span] = np.where(rows < 0, -1, rows + first).reshape(named[span].shape)
        rows = np.where(own < 0, shared, np.full_like(shared, len(self.weights) - 1))
        rows[0] = np.where(own < 0, shared[0], own)
        return Places(named, torch.from_numpy(rows))

    def _change(self, changes: Changes, first: int) -> None:
        if self.choice.back:
            for key, row in changes.died:
                of = self.shared_of[key]
                self.weights[of] = (self.weights[of] + self.weights[first + row] / len(of)) / 2
        for key, row in changes.born:
            self.weights[first + row] = self._beginning(key)
            self.squares[first + row] = 0.0

    def _beginning(self, key: int) -> Tensor:
        if self.choice.begin == "shared":
            return self.weights[self.shared_of[key]].sum(0)
        return self._first_values(1)[0] * (self.choice.begin == "fresh")

    def lookup(self, places: "Places") -> "Places":
        read = self.weights[places.rows.transpose(1, 2)].sum(0).flatten(0, 1)  # a sample after the other
        places.leaves = [read[:, :-1].clone().requires_grad_(), read[:, -1:].clone().requires_grad_()]
        return places

    def update(self, places: "Places", vectors: "Places") -> None:
        gradient = torch.cat([leaf.grad for leaf in vectors.leaves], 1)
        rows, inverse = places.rows.transpose(1, 2).reshape(-1).unique(return_inverse=True)
        summed = torch.zeros(len(rows), DIM + 1).index_add_(
            0, inverse, gradient.repeat(len(places.rows), 1)
        )
        self.squares[rows] += summed**2
        self.weights[rows] -= LR * summed / (self.squares[rows].sqrt() + EPS)
        self.weights[-1] = 0.0
        norms = gradient[:, :-1].norm(dim=1).view(-1, len(self.shared)).T
        scores = (norms / norms.mean(1, keepdim=True).clamp(min=1e-30)).numpy()
        for span, first, hot in zip(self.spans, self.first, self.hot, strict=True):
            self._change(hot.trained(places.named[span].reshape(-1), scores[span].reshape(-1)), first)


@dataclass
class Places:
    """Keys of a batch [F, B] as hot keys are named, and the rows [H, F, B] that they read."""

    named: np.ndarray
    rows: Tensor
    leaves: list[Tensor] | None = None


DIVIDED = {"budget": divided, "ordered": functools.partial(divided, in_order=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", nargs="*", default=["movielens"], metavar="STREAM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    setting = {"batches": BATCHES, "dim": DIM, "ways": WAYS, "cafe": asdict(CAFE)}
    result = stored("dynamic-ablation")
    figures = result["figures"] if setting.items() <= result.items() else []
    done = {(f["data"], f["seed"], f["share"], f["arm"]) for f in figures}
    for seed, data in product(args.seeds, args.streams):
        samples: Samples | None = None
        for share, arm in product(args.shares, args.arms):
            if (data, seed, share, arm) in done:
                continue
            samples = samples or STREAMS[data](seed, 1_000_000)
            rows = [max(int(share * len(np.unique(keys))), 1) for keys in samples.keys]
            figure = train_rows(samples, AblatedRows(samples, rows, ARMS[arm], seed), seed)
            figures.append({"data": data, "seed": seed, "share": share, "arm": arm, **figure})
            print(f"{data} {seed} {share:4.0%} {figure['auc']:.4f} {arm}", flush=True)
            write("dynamic-ablation", {**conditions(1), **setting, "figures": figures})


if __name__ == "__main__":
    main()
