"""What do two threads gain, and what do they lose where other programs keep the cores busy?

    python -m benchmarks.threads [--rounds R]

A model is trained on 1 and on 2 threads, alone and beside two processes that never pause, by hotrows
and by a plain PyTorch loop over the same batches. OpenMP's threads spin while they wait for one
another: 300,000 times unless told otherwise (`two-default`), 3,000 times as `import hotrows` asks for
(`two`). All arms run in turn, each in a process of its own; figures are medians of samples a second.
"""

import argparse
import itertools
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

THREADS = {"one": (1, "3000"), "two": (2, "3000"), "two-default": (2, "300000")}
SETTINGS = {"lr": (128, 400), "deepfm": (128, 300), "deepfm-large": (2048, 40)}  # batch size, steps
LOADS = (0, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=4, help="library, model, threads and folder of one arm")
    args = parser.parse_args()
    if args.one:
        library, model, threads, folder = args.one
        torch.set_num_threads(int(threads))
        print(round((ours if library == "hotrows" else plain)(model, Path(folder))))
        return
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        synth = [sys.executable, "-m", "hotrows", "synth", "criteo", "--rows", "100000"]
        subprocess.run([*synth, "--out", folder / "raw"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        hotrows.prepare([folder / "raw" / "train.txt"], hotrows.datasets.schemas.criteo, folder / "enc")
        for _, load in itertools.product(range(args.rounds), LOADS):
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
            try:
                for model, library, how in itertools.product(SETTINGS, ("hotrows", "plain"), THREADS):
                    key = f"{model} beside {load} busy processes, {library}, {how}"
                    figures.setdefault(key, []).append(measured(library, model, how, folder))
                    print(f"{key:60} {figures[key][-1]:>10,.0f}", flush=True)
            finally:
                for process in busy:
                    process.kill()
    write("threads", {"samples_per_s": {k: median(v) for k, v in figures.items()}, **conditions(2)})


def measured(library: str, model: str, how: str, folder: Path) -> float:
    threads, spins = THREADS[how]
    environment = {**os.environ, "GOMP_SPINCOUNT": spins, "OMP_NUM_THREADS": str(threads)}
    environment.pop("OMP_WAIT_POLICY", None)
    command = [sys.executable, "-m", "benchmarks.threads", "--one", library, model, str(threads), folder]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def ours(model: str, folder: Path) -> float:
    batch_size, steps = SETTINGS[model]
    config = hotrows.TrainConfig(
        model=model.split("-")[0], batch_size=batch_size, steps=steps, evaluate_every=10**6
    )
    data = hotrows.data.EncodedData.open(folder / "enc")
    with tempfile.TemporaryDirectory() as run:
        return hotrows.Trainer(data, config, Path(run) / "run").fit().samples_per_second


def plain(model: str, folder: Path) -> float:
    batch_size, steps = SETTINGS[model]
    data = hotrows.data.EncodedData.open(folder / "enc")
    features, dim = data.schema.id_features, 1 if model == "lr" else 16
    tables = nn.ModuleList(nn.Embedding(f.rows, dim, sparse=True) for f in features)
    widths = [len(features) * dim + len(data.schema.dense), *([] if model == "lr" else [400] * 3), 1]
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    dense = nn.Sequential(*layers[:-1])
    optimizers = [torch.optim.SparseAdam(tables.parameters()), torch.optim.Adam(dense.parameters())]
    loader = hotrows.Loader(data.parts["train"], batch_size, shuffle=True)
    batches = (batch for epoch in itertools.count() for batch in loader.batches(epoch))
    begin, samples = time.perf_counter(), 0
    for batch in itertools.islice(batches, steps):
        ids = batch.ids.view(len(tables), -1)
        vectors = [table(column) for table, column in zip(tables, ids, strict=True)]
        logits = dense(torch.cat([*vectors, batch.dense], 1)).squeeze(1)
        for optimizer in optimizers:
            optimizer.zero_grad()
        binary_cross_entropy_with_logits(logits, batch.labels).backward()
        for optimizer in optimizers:
            optimizer.step()
        samples += batch.size
    return samples / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
