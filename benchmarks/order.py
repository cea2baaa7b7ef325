"""Clusters of samples that read equal rows need fewer fetches: is the model as good?

    python -m benchmarks.order [MODEL ...]    # twenty seeds

Runs that are in the result file already are not made again; --again makes them anew. One epoch, every row
in memory: only the order of samples differs. A seed sets first values and order; a difference is that of
two runs of one seed.
"""

import argparse
import csv
import gzip
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.harness import RESULTS, conditions, write
from hotrows import datasets
from hotrows.config import TrainConfig
from hotrows.data import EncodedData, prepare, profile, regroup
from hotrows.data.hot_cold import row_bytes
from hotrows.datasets import schemas
from hotrows.datasets.synthetic import synth_criteo
from hotrows.optim import Adagrad
from hotrows.train import Trainer
from hotrows.train.recommender import Recommender

QUESTION = __doc__.split("\n")[0]
FOLDER = Path(__file__).parent / ".data" / "order"
RAW = Path(__file__).parents[2] / "shared" / "data"
HOT_COLD = "hot-cold"  # FAE's layout: all cold batches, then all hot ones
HOT_SHARE = 0.2  # of the tables is hot in FAE's layout, by bytes


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
    parser.add_argument("names", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--arms", nargs="+", choices=(*ARMS, HOT_COLD), default=ARMS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    FOLDER.mkdir(parents=True, exist_ok=True)
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


def regrouped(data: EncodedData, config: TrainConfig, out: Path) -> EncodedData:
    """FAE's layout of the data."""
    embedding = Recommender(config, data.schema).embedding
    bytes_per_row = row_bytes(embedding.tables, data.schema, config.row_optimizer)
    memory = int(HOT_SHARE * embedding.num_bytes)
    found = profile(data, bytes_per_row=bytes_per_row, fast_memory=memory, sample=0.5)
    return regroup(data, found, out, force=True)


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


def t_95(freedom: int) -> float:
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
                middle, half = mean(more), t_95(len(more) - 1) * stdev(more) / len(more) ** 0.5
                lines.append(
                    f"{model:10} {arm:9} {name:9} {len(runs):3} seeds, shuffle "
                    f"{mean(plain[name] for plain, _ in runs):.5f} ± {noise:.5f}: {middle:+.2f} "
                    f"deviations ({middle - half:+.2f} to {middle + half:+.2f})"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
