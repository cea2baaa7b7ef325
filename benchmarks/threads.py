"""What do two threads gain, and what do they lose where other programs keep the cores busy?

    python -m benchmarks.threads [--prepare]

Models are trained alone and beside two processes that never pause, by hotrows and by a plain PyTorch loop
over the same batches, in one process of each library. A training has windows of a few steps, on one
thread and on two in turn, the first of which are left out. OpenMP's threads spin while they wait for one
another as often as `import hotrows` asks for (3,000 times), or as PyTorch's do of themselves (300,000).
`--prepare` makes the data alone, before anything is measured.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.harness import ROOT, conditions, write
from benchmarks.workload import DATA
from hotrows.data import EncodedData

Widths = tuple[int, ...]
FOLDER = DATA / "threads"
SPINS = {"hotrows": "3000", "plain": "300000"}
# model, batch size, steps of a window (of a plain loop a quarter), widths of the MLP
SETTINGS = {
    "lr, batch 128": ("lr", 128, 400, ()),
    "tiny deepfm, batch 128": ("deepfm", 128, 80, (16, 16)),
    "deepfm, batch 128": ("deepfm", 128, 24, (400, 400, 400)),
    "deepfm, batch 2048": ("deepfm", 2048, 4, (400, 400, 400)),
}
LOADS, THREADS, PAIRS = (0, 2), (1, 2), 7  # pairs of windows: one to warm up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", action="store_true", help="make the data alone")
    parser.add_argument("--one", choices=SPINS, help="measure one library, print its figures")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(windows_of(args.one)))
        return
    if not (FOLDER / "enc" / "data.json").exists():
        make_data()
    arms: dict[str, dict] = {}
    for load, library in itertools.product(() if args.prepare else LOADS, SPINS):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            measured = windows(library)
        finally:
            for process in busy:
                process.kill()
        for name, speeds in measured.items():
            arms[f"{name}, {library}, beside {load} processes"] = arm(speeds)
            print(name, library, load, arm(speeds)["two_over_one"], flush=True)
        write("threads", {"question": __doc__.splitlines()[0], **conditions(2), "arms": arms})


def make_data() -> None:
    synth = ["-m", "hotrows", "synth", "criteo", "--rows", "100000", "--out"]
    command = [sys.executable, *synth, FOLDER / "raw"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    raw, schema = FOLDER / "raw" / "train.txt", hotrows.datasets.schemas.criteo
    hotrows.prepare([raw], schema, FOLDER / "enc", split="fraction:0.96,0.02,0.02")


def arm(speeds: list[float]) -> dict:
    """Of samples a second, window by window, on one thread and on two in turn: medians, and how many
    times as fast two threads are, in the median of pairs."""
    one, two = speeds[2::2], speeds[3::2]
    ratio = median(b / a for a, b in zip(one, two, strict=True))
    return {"one": median(one), "two": median(two), "two_over_one": round(ratio, 3), "windows": speeds}


def windows(library: str) -> dict[str, list[float]]:
    environment = {**os.environ, "GOMP_SPINCOUNT": SPINS[library], "OMP_NUM_THREADS": "2"}
    environment.pop("OMP_WAIT_POLICY", None)
    command = [sys.executable, "-m", "benchmarks.threads", "--one", library]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def windows_of(library: str) -> dict[str, list[float]]:
    data = EncodedData.open(FOLDER / "enc")
    train = ours if library == "hotrows" else plain
    return {name: train(data, *setting) for name, setting in SETTINGS.items()}


class Windows(hotrows.Callback):
    """Times windows of steps, and changes the number of threads after each."""

    def __init__(self, steps: int, batch_size: int) -> None:
        self.steps, self.samples, self.speeds, self.step = steps, steps * batch_size, [], 0
        torch.set_num_threads(THREADS[0])
        self.begin_window = time.perf_counter()

    def on_step_end(self, *_: object) -> None:
        self.step += 1
        if self.step % self.steps == 0:
            self.speeds.append(round(self.samples / (time.perf_counter() - self.begin_window), 1))
            torch.set_num_threads(THREADS[len(self.speeds) % 2])
            self.begin_window = time.perf_counter()


def ours(data: EncodedData, model: str, batch_size: int, steps: int, hidden: Widths) -> list[float]:
    options = {"hidden": list(hidden)} if hidden else {}
    settings = {"batch_size": batch_size, "steps": 2 * PAIRS * steps, "evaluate_every": 10**6}
    config = hotrows.TrainConfig(model=model, model_options=options, **settings)
    windows = Windows(steps, batch_size)
    with tempfile.TemporaryDirectory() as run:
        hotrows.Trainer(data, config, Path(run) / "run").fit(callbacks=[windows])
    return windows.speeds


def plain(data: EncodedData, model: str, batch_size: int, steps: int, hidden: Widths) -> list[float]:
    features, dim = data.schema.id_features, 1 if model == "lr" else 16
    tables = nn.ModuleList(nn.Embedding(f.rows, dim, sparse=True) for f in features)
    widths = [len(features) * dim + len(data.schema.dense), *hidden, 1]
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    dense = nn.Sequential(*layers[:-1])
    optimizers = [torch.optim.SparseAdam(tables.parameters()), torch.optim.Adam(dense.parameters())]
    loader = hotrows.Loader(data.parts["train"], batch_size, shuffle=True)
    batches = (batch for epoch in itertools.count() for batch in loader.batches(epoch))
    windows = Windows(steps // 4, batch_size)
    for batch in itertools.islice(batches, 2 * PAIRS * (steps // 4)):
        ids = batch.ids.view(len(tables), -1)
        vectors = [table(column) for table, column in zip(tables, ids, strict=True)]
        logits = dense(torch.cat([*vectors, batch.dense], 1)).squeeze(1)
        for optimizer in optimizers:
            optimizer.zero_grad()
        binary_cross_entropy_with_logits(logits, batch.labels).backward()
        for optimizer in optimizers:
            optimizer.step()
        windows.on_step_end()
    return windows.speeds


if __name__ == "__main__":
    main()
