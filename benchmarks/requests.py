"""What is gained where the user is stored and computed once for all candidates of a request?

    python -m benchmarks.requests [din dien]          samples/s, bytes on disk, rows looked up
    python -m benchmarks.requests --quick             8 candidates, short; nothing is written

Both arms train on the same samples in the same order, from shards, in the step of `hotrows train`: one
reads data whose schema says what a request shares (`once`), one its expanded twin. They run in turn,
window by window. Histories of items and their categories have 40 elements on average and at most 100.
"""

import argparse
import shutil
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.harness import conditions, write
from benchmarks.samples import ends_of, random_lengths
from hotrows import Batch, Dense, Schema, Sequence, Sparse, TrainConfig
from hotrows.batch import RequestFeatures
from hotrows.data import EncodedData, Loader, write_encoded
from hotrows.train.loop.step_trainer import StepTrainer, keep_freed_memory

QUESTION = __doc__.split("\n")[0]
CANDIDATES = (1, 2, 4, 8, 16, 32)
BATCH_SIZE = 2048
BATCHES = 24
MODELS = ("dien", "din", "hstu")
SHARED = ("user", "age", "city", "segments", "items", "categories")
ROWS = {"user": 1_000_000, "city": 5_000, "segment": 200, "item": 1_000_000, "category": 1_000}
ZIPF, MEAN_LENGTH, MOST = 1.05, 40, 100

PLAIN = Schema(
    features=(
        Dense("age"), Dense("price"),
        Sparse("user", rows=ROWS["user"]), Sparse("city", rows=ROWS["city"]),
        Sparse("segments", vocabulary="segment", rows=ROWS["segment"], many=True, pooling="mean"),
        Sparse("item", rows=ROWS["item"]), Sparse("category", rows=ROWS["category"]),
        Sequence("items", vocabulary="item", rows=ROWS["item"]),
        Sequence("categories", vocabulary="category", rows=ROWS["category"]),
    ),
    group="request",
)  # fmt: skip
ONCE = replace(PLAIN, group=None, request="request", shared=SHARED)


def batches(candidates: int) -> list[Batch]:
    """Batches of requests of so many candidates each, the same for every arm."""
    random = np.random.default_rng(candidates)
    chances = {name: np.cumsum(np.arange(1.0, rows + 1) ** -ZIPF) for name, rows in ROWS.items()}

    def ids(name: str, size: int) -> np.ndarray:
        return np.searchsorted(chances[name], random.random(size) * chances[name][-1])

    made = []
    for number in range(BATCHES):
        size = BATCH_SIZE // candidates
        past, segments = random_lengths(random, size, MEAN_LENGTH, MOST), random.integers(0, 6, size)
        lengths = [np.ones(2 * size, np.int64), segments, past, past]
        drawn = [
            ids("user", size), ids("city", size), ids("segment", segments.sum()),
            ids("item", past.sum()), ids("category", past.sum()),
        ]  # fmt: skip
        shared = Batch(
            ("user", "city", "segments", "items", "categories"),
            torch.from_numpy(np.concatenate(drawn)),
            torch.empty(size, 0),
            offsets=torch.from_numpy(ends_of(np.concatenate(lengths))),
        )
        age = np.repeat(random.random(size), candidates)
        price, label = random.random(BATCH_SIZE), random.random(BATCH_SIZE) < 0.2
        own = np.concatenate([ids("item", BATCH_SIZE), ids("category", BATCH_SIZE)])
        starts = torch.arange(0, BATCH_SIZE + 1, candidates)
        made.append(
            Batch(
                ("item", "category"),
                torch.from_numpy(own),
                torch.from_numpy(np.stack([age, price], 1).astype(np.float32)),
                torch.from_numpy(label.astype(np.float32)),
                groups=number * size + torch.arange(size).repeat_interleave(candidates),
                requests=RequestFeatures(shared, starts),
            )
        )
    return made


class Arm:
    """A training in windows."""

    def __init__(self, data: EncodedData, model: str) -> None:
        # The auxiliary loss draws negatives at random, so that losses could not be compared.
        options = {"auxiliary": 0.0} if model == "dien" else {}
        config = TrainConfig(
            model=model,
            model_options=options | {"histories": [["items", "categories"]]},
            batch_size=BATCH_SIZE,
            shuffle=False,
            epochs=1 << 20,
            linear_paths="plain",
        )
        self.steps, self.seconds, self.losses = StepTrainer(data, config), [], []
        self.steps.choose_linear_paths()
        self.runner = self.steps.start()
        self._work = iter(self.runner)

    def window(self, num_steps: int) -> None:
        begin = time.perf_counter()
        for _ in range(num_steps):
            self.losses.append(float(self.steps.train(next(self._work))))
        self.seconds.append((time.perf_counter() - begin) / num_steps)


def alone(arm: Arm) -> dict[str, float]:
    """Milliseconds of a batch without the model: loaded; planned; looked up and updated."""
    embedding, times = arm.steps.embedding, []
    batches = Loader(arm.steps.data.parts["train"], BATCH_SIZE).batches(0)
    for step in range(len(arm.losses), len(arm.losses) + BATCHES):
        moments = [time.perf_counter()]
        batch = next(batches)
        moments.append(time.perf_counter())
        plan = embedding.plan(batch, step)
        moments.append(time.perf_counter())
        vectors = embedding.lookup(plan)
        for leaf in vectors.leaves:
            leaf.grad = leaf.detach() * 1e-3
        embedding.update(plan, vectors)
        moments.append(time.perf_counter())
        times.append(np.diff(moments))
    names = ("load", "plan", "look up and update")
    return dict(zip(names, (1000 * np.median(times, 0)).tolist(), strict=True))


def measure(model: str, data: dict[str, EncodedData], windows: int, num_steps: int) -> dict:
    arms = {}
    for name, encoded in data.items():
        torch.manual_seed(0)
        arms[name] = Arm(encoded, model)
    with closing(arms["once"].runner), closing(arms["expanded"].runner):
        for _ in range(windows + 1):  # the first one warms up
            for arm in arms.values():
                arm.window(num_steps)
    seconds = {name: arm.seconds[1:] for name, arm in arms.items()}
    pairs = zip(seconds["expanded"], seconds["once"], strict=True)
    losses = np.array([arm.losses for arm in arms.values()])
    return {
        "samples_per_s": {name: BATCH_SIZE / median(times) for name, times in seconds.items()},
        "speedup": median(slow / fast for slow, fast in pairs),
        "largest_difference_of_losses": float(np.abs(losses[0] - losses[1]).max()),
        "last_loss": float(losses[0][-1]),
        "seconds": seconds,
        "ms_without_the_model": {name: alone(arm) for name, arm in arms.items()},
    }


def stored(candidates: int, folder: Path) -> dict[str, EncodedData]:
    made, names = batches(candidates), [feature.name for feature in PLAIN.id_features]
    expanded = [batch.expanded(names) for batch in made]
    return {
        "expanded": write_encoded(folder / "expanded", PLAIN, {"train": expanded}),
        "once": write_encoded(folder / "once", ONCE, {"train": made}),
    }


def num_bytes(data: EncodedData) -> int:
    return sum((data.path / s.file).stat().st_size for s in data.parts["train"].shards)


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--quick", action="store_true", help="8 candidates, short; nothing is written")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    windows, num_steps = (2, 4) if args.quick else (9, 6)
    results: dict[str, dict] = {}
    for candidates in (8,) if args.quick else CANDIDATES:
        folder = Path(tempfile.mkdtemp())
        try:
            data = stored(candidates, folder)
            sizes = {name: num_bytes(encoded) for name, encoded in data.items()}
            results[str(candidates)] = {
                "shard_bytes": sizes,
                "times_smaller": sizes["expanded"] / sizes["once"],
            }
            print(
                f"{candidates} candidates: shards {sizes['expanded'] / sizes['once']:.2f} times smaller"
            )
            for model in args.models or MODELS:
                result = results[str(candidates)][model] = measure(model, data, windows, num_steps)
                speeds = result["samples_per_s"]
                print(
                    f"  {model}: {speeds['once']:,.0f} samples/s, expanded {speeds['expanded']:,.0f}, "
                    f"{result['speedup']:.2f} times; losses differ by "
                    f"{result['largest_difference_of_losses']:.1e}",
                    flush=True,
                )
                for name, times in result["ms_without_the_model"].items():
                    print(f"    {name}: " + ", ".join(f"{n} {ms:.2f} ms" for n, ms in times.items()))
        finally:
            shutil.rmtree(folder)
    if not args.quick:
        write("requests", {"question": QUESTION, **conditions(args.threads), "candidates": results})


if __name__ == "__main__":
    main()
