"""Fewer fetches than Bélády's optimum of a random order: what do clusters save, and what do they cost?

    python -m benchmarks.order fetches [SET ...]       rows fetched, distinct rows, time
    python -m benchmarks.order loading [SET ...]       nanoseconds of a lookup, orders in turn
    python -m benchmarks.order accuracy [MODEL ...]    twenty seeds: is the model as good?

Pieces that are in the result file already are not measured again; --again measures them anew.

fetches: the loader's batches of two epochs through planning alone; the second counts, in which no row is
new. `optimum` is Bélády's of each order, which knows the whole future, without pins; `fetched` is what
training fetches: a window ahead, four batches in flight. `least` is what any order within the pools of
262,144 samples has to fetch: each row of a pool once, but for those that the cache kept.
loading: the thread's own time of an epoch, the median of rounds in which orders take turns.
accuracy: one epoch, every row in memory: only the order of samples differs. A seed sets first values
and order; a difference is that of two runs of one seed.
"""

import argparse
import csv
import gzip
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
import torch

from benchmarks.harness import RESULTS, conditions, write
from hotrows import datasets
from hotrows.batch import Batch
from hotrows.config import TrainConfig
from hotrows.data import EncodedData, HotColdLoader, Loader, prepare, profile, regroup, write_encoded
from hotrows.data.hot_cold import hot_and_cold, row_bytes
from hotrows.data.stored.order import POOL_ROWS
from hotrows.datasets import schemas
from hotrows.datasets.synthetic import synth_criteo
from hotrows.optim import Adagrad
from hotrows.planning.policy import Lookahead
from hotrows.planning.slots import NativeSlotMap
from hotrows.schema import Schema, Sparse, vocabulary_of
from hotrows.train import Trainer
from hotrows.train.recommender import Recommender

QUESTION = __doc__.split("\n")[0]
FOLDER = Path(__file__).parent / ".data" / "order"
RAW = Path(__file__).parents[2] / "shared" / "data"
SHARES = (0.02, 0.05, 0.10)
ORDERS = ("shuffle", "reuse:8", "reuse:16", "reuse:32")
HOT_COLD = "hot-cold"  # FAE's layout: all cold batches, then all hot ones
HOT_SHARE = 0.2  # of the tables is hot in FAE's layout, by bytes


@dataclass(frozen=True)
class Set:
    """Data, and samples of a batch: a cache of a twentieth of the rows holds the rows of two at least."""

    make: Callable[[Path], EncodedData]
    batch_size: int


def criteo(rows: int) -> Callable[[Path], EncodedData]:
    """Synthetic Criteo; values that come once have no row."""

    def make(out: Path) -> EncodedData:
        with tempfile.TemporaryDirectory(dir=FOLDER) as raw:
            schema = schemas.with_min_count(schemas.BY_NAME["criteo"], 2)
            return prepare([synth_criteo(rows, Path(raw))], schema, out, split="position:0.8,0.1,0.1")

    return make


def real(file: str, name: str) -> Callable[[Path], EncodedData]:
    """A sample of real data; values that come once have no row."""
    schema = schemas.with_min_count(schemas.BY_NAME[name], 2)
    return lambda out: prepare([RAW / file], schema, out, split="position:0.8,0.1,0.1")


def movielens(users: int) -> Callable[[Path], EncodedData]:
    """The ratings of the first users of MovieLens-1M."""

    def make(out: Path) -> EncodedData:
        with tempfile.TemporaryDirectory(dir=FOLDER) as raw:
            for file in RAW.glob("movielens_1m_*.dat"):
                shutil.copy(file, raw)
            with gzip.open(RAW / "movielens_1m_ratings.csv.gz", "rt") as ratings:
                lines = list(csv.reader(ratings))
            few = [lines[0], *(line for line in lines[1:] if int(line[0]) <= users)]
            with open(Path(raw) / "movielens_1m_ratings.csv", "w", newline="") as file:
                csv.writer(file).writerows(few)
            return datasets.prepare(datasets.BY_NAME["movielens_1m"], Path(raw), out)

    return make


def zipf(out: Path) -> EncodedData:
    """Two pools of samples that read a row each of 26 tables, by Zipf's law, independently."""
    tables, rows, samples = 26, 100_000, 2 * POOL_ROWS
    random, chance = np.random.default_rng(0), np.cumsum(np.arange(1.0, rows + 1) ** -1.05)
    ids = np.searchsorted(chance, random.random((tables, samples)) * chance[-1])
    names = tuple(f"f{table}" for table in range(tables))
    schema = Schema(tuple(Sparse(name, rows=rows) for name in names))
    batch = Batch(names, torch.from_numpy(ids.reshape(-1)), torch.zeros(samples, 0), torch.zeros(samples))
    return write_encoded(out, schema, {"train": [batch]})


SETS = {
    "criteo": Set(criteo(1_310_720), 2048),
    "zipf": Set(zipf, 2048),
    "movielens": Set(movielens(3_000), 128),
    "avazu": Set(real("avazu_14k.csv", "avazu"), 32),
    "criteo-real": Set(real("criteo_kaggle_10k.tsv", "criteo"), 32),
}
ACCURACY_SETS = {"criteo-60k": criteo(60_000)} | {f"movielens-{n}": movielens(n) for n in (200, 1000)}
CONFIG = TrainConfig(row_optimizer=Adagrad(), evaluate_every=1 << 30, linear_paths="plain", epochs=1)
SMALL = {"dim": 8, "hidden": [64, 64]}
# Model, perhaps with a word -> data, samples of a batch, options. A cluster of reuse:8 has ten batches.
MODELS = {
    "deepfm": ("criteo-60k", 512, SMALL),
    "dlrm": ("criteo-60k", 512, {"dim": 8, "bottom": [64], "top": [64, 64]}),
    "din": ("movielens-200", 256, SMALL),
    "din-larger": ("movielens-1000", 256, SMALL),
}
ARMS = ("shuffle", "reuse:8", "reuse:32")


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("what", choices=("fetches", "loading", "accuracy"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets, or models")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--arms", nargs="+", choices=(*ARMS, HOT_COLD), default=ARMS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if args.what == "fetches":
        found = _Found("order-fetches", args)
        for name in args.names or SETS:
            fetches(name, found)
        return
    if args.what == "loading":
        found = _Found("order-loading", args)
        for name in args.names or ["criteo"]:
            loading(name, found)
        return
    found = _Found("order-accuracy", args)
    for seed in range(args.seeds):
        for name in args.names or MODELS:
            for arm in args.arms:
                accuracy(name, arm, seed, found)
    print(accuracy_table(found))


class _Found:
    """Figures by name, in a result file that is written after each of them."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        path = RESULTS / f"{name}.json"
        known = json.loads(path.read_text())["figures"] if path.exists() and not args.again else {}
        self.name, self.figures = name, known
        self._facts = {"question": QUESTION, **conditions(args.threads)}

    def add(self, key: str, figures: dict) -> None:
        self.figures[key] = figures
        print(f"{key:28}", *(f"{k} {v:.4g}" for k, v in figures.items() if isinstance(v, float | int)))
        write(self.name, {**self._facts, "figures": self.figures})


def encoded(name: str, make: Callable[[Path], EncodedData]) -> EncodedData:
    """The data, made once."""
    return EncodedData.open(FOLDER / name) if (FOLDER / name).exists() else make(FOLDER / name)


def fetches(name: str, found: _Found) -> None:
    """Counts what each order of a set fetches, and adds it."""
    data, size = encoded(name, SETS[name].make), SETS[name].batch_size
    names = {vocabulary_of(feature): feature.name for feature in data.schema.id_features}
    sizes = [data.schema.rows_of(feature) for feature in names.values()]
    firsts = dict(zip(names, np.cumsum([0, *sizes]).tolist(), strict=False))
    for order in (*ORDERS, HOT_COLD):
        if f"{name} {order}" in found.figures:
            continue
        batches, lookups, seconds = _rows_of_batches(data, size, order, firsts)
        distinct = mean(map(len, batches))
        figures: dict = {"rows": sum(sizes), "batch_size": size, "distinct_rows": distinct}
        figures |= {"lookups": lookups / len(batches), "loading_ns": seconds / lookups * 1e9}
        for share in SHARES:
            slots, half = int(share * sum(sizes)), len(batches) // 2
            samples = data.parts["train"].rows
            for kind, window, in_flight in (("optimum", None, 1), ("fetched", "auto", 4)):
                number = _misses(batches, slots, Lookahead(window), in_flight)
                figures[f"{kind} {share:.0%}"] = number / samples
            if order == "shuffle":
                pools = _pools(batches[:half], size) + _pools(batches[half:], size)
                figures[f"least {share:.0%}"] = _least(pools, slots) / samples
        found.add(f"{name} {order}", figures)


def _rows_of_batches(
    data: EncodedData, size: int, order: str, firsts: dict[str, int]
) -> tuple[list[torch.Tensor], int, float]:
    """The distinct rows of each batch of two epochs, the number of lookups, and the loader's seconds."""
    first = np.array([firsts[vocabulary_of(feature)] for feature in data.schema.id_features])
    rows, lookups, seconds = [], 0, 0.0
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        loader = _loader(data, size, order, Path(folder))
        for epoch in (0, 1):
            batches = loader.batches(epoch)
            while True:
                begin = time.thread_time()
                batch = next(batches, None)
                seconds += time.thread_time() - begin
                if batch is None:
                    break
                ends = np.arange(len(first) + 1) * batch.size
                if batch.offsets is not None:
                    ends = batch.offsets.numpy()[ends]
                ids = batch.ids.numpy() + np.repeat(first, np.diff(ends))
                lookups += len(ids)
                rows.append(torch.from_numpy(np.unique(ids)))
    return rows, lookups, seconds


def _loader(data: EncodedData, size: int, order: str, folder: Path) -> Loader | HotColdLoader:
    if order != HOT_COLD:
        return Loader(data.parts["train"], size, shuffle=True, order=order)
    config = replace(CONFIG, model="dnn", model_options=SMALL)
    hot, cold = hot_and_cold(regrouped(data, config, folder / "hot"))
    return HotColdLoader(hot, cold, size, shuffle=True)


def regrouped(data: EncodedData, config: TrainConfig, out: Path) -> EncodedData:
    """FAE's layout of the data."""
    embedding = Recommender(config, data.schema).embedding
    bytes_per_row = row_bytes(embedding.tables, data.schema, config.row_optimizer)
    memory = int(HOT_SHARE * embedding.num_bytes)
    found = profile(data, bytes_per_row=bytes_per_row, fast_memory=memory, sample=0.5)
    return regroup(data, found, out, force=True)


def _misses(batches: list[torch.Tensor], num_slots: int, policy: Lookahead, in_flight: int) -> int:
    """Rows that the second half of the batches fetches."""
    slots, fed, misses = NativeSlotMap(num_slots, policy, in_flight), 0, 0
    for j, rows in enumerate(batches):
        while slots.wants():
            if fed == len(batches):
                slots.end()
            else:
                slots.feed(batches[fed])
                fed += 1
        if j == len(batches) // 2:
            misses = slots.misses
        slots.allocate(rows)
    return slots.misses - misses


def _pools(batches: list[torch.Tensor], size: int) -> list[np.ndarray]:
    """The distinct rows of each pool of an epoch."""
    per_pool = max(POOL_ROWS // size, 1)
    starts = range(0, len(batches), per_pool)
    return [np.unique(torch.cat(batches[start : start + per_pool]).numpy()) for start in starts]


def _least(pools: list[np.ndarray], num_slots: int) -> int:
    """Rows that any order within the pools of the second epoch fetches at least: each row of a pool once,
    unless it was kept from the last one that read it; of too many, those read soonest are kept."""
    never = len(pools)
    last = np.full(max(int(rows.max()) for rows in pools) + 1, never)
    next_use = []
    for p, rows in reversed(list(enumerate(pools))):
        next_use.append(last[rows])
        last[rows] = p
    kept, kept_until, fetched = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for p, (rows, until) in enumerate(zip(pools, reversed(next_use), strict=True)):
        fetched += int((~np.isin(rows, kept)).sum()) if p >= len(pools) // 2 else 0
        others = ~np.isin(kept, rows)
        kept, kept_until = np.append(kept[others], rows), np.append(kept_until[others], until)
        soonest = np.argsort(kept_until, kind="stable")[:num_slots]
        kept, kept_until = kept[soonest], kept_until[soonest]
    return fetched


def loading(name: str, found: _Found, rounds: int = 5) -> None:
    """Measures what each order of a set takes to load, and adds it."""
    data, size = encoded(name, SETS[name].make), SETS[name].batch_size
    times: dict[str, list[float]] = {order: [] for order in ORDERS}
    for number, order in product(range(rounds), ORDERS):
        loader, lookups = _loader(data, size, order, FOLDER), 0
        begin = time.thread_time()
        for batch in loader.batches(number):
            lookups += len(batch.ids)
        times[order].append((time.thread_time() - begin) / lookups * 1e9)
    for order, of_order in times.items():
        more = median(mine - plain for mine, plain in zip(of_order, times["shuffle"], strict=True))
        found.add(f"{name} {order}", {"ns_a_lookup": median(of_order), "more_than_shuffle": more})


def accuracy(which: str, arm: str, seed: int, found: _Found) -> None:
    """Trains a model with one seed in one order, and adds how good it is."""
    key = f"{which} {arm} {seed}"
    if key in found.figures:
        return
    name, batch_size, options = MODELS[which]
    data, model = encoded(name, ACCURACY_SETS[name]), which.partition("-")[0]
    config = replace(CONFIG, model=model, model_options=options, batch_size=batch_size, seed=seed)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        if arm == HOT_COLD:
            layout = regrouped(data, config, Path(folder) / "hot")
            config = replace(config, hot_cold="sequential")
        else:
            layout, config = data, replace(config, order=arm)
        result = Trainer(layout, config, Path(folder) / "run").fit()
    test, seconds = result.test, data.parts["train"].rows / result.samples_per_second
    found.add(key, {"auc": test.auc, "log_loss": test.log_loss, "training_seconds": seconds})


def _by_seed(found: _Found, model: str, arm: str) -> Iterator[tuple[dict, dict]]:
    """Runs of plain shuffling and of an arm, of each seed that has both."""
    for key, figures in found.figures.items():
        of_model, of_arm, seed = key.split()
        if (of_model, of_arm) == (model, arm) and f"{model} shuffle {seed}" in found.figures:
            yield found.figures[f"{model} shuffle {seed}"], figures


def _t_95(freedom: int) -> float:
    """Student's t of 95 % intervals, within one percent from five degrees of freedom on."""
    return 1.96 + 2.37 / freedom + 2.8 / freedom**2


def accuracy_table(found: _Found) -> str:
    """Differences from plain shuffling in deviations of a seed, with 95 % intervals."""
    lines = []
    for model in MODELS:
        for arm in (*ARMS[1:], HOT_COLD):
            runs = list(_by_seed(found, model, arm))
            for name in ("auc", "log_loss") if len(runs) > 2 else ():
                noise = stdev(plain[name] for plain, _ in runs)
                more = [(figures[name] - plain[name]) / noise for plain, figures in runs]
                middle, half = mean(more), _t_95(len(more) - 1) * stdev(more) / len(more) ** 0.5
                lines.append(
                    f"{model:10} {arm:9} {name:9} {len(runs):3} seeds, shuffle "
                    f"{mean(plain[name] for plain, _ in runs):.5f} ± {noise:.5f}: {middle:+.2f} "
                    f"deviations ({middle - half:+.2f} to {middle + half:+.2f})"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
