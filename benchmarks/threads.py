"""What do two threads gain, and what do they lose where other programs keep the cores busy?

    python -m benchmarks.threads [--rounds R]

Models are trained on one thread and on two, alone and beside two processes that never pause, by hotrows
and by a plain PyTorch loop over the same batches: in turn, by one process of each library, in which
OpenMP's threads spin while they wait for one another as often as `import hotrows` asks for (3,000 times),
or as PyTorch's do of themselves (300,000). Figures are medians over rounds, written after each; the data
is made once, before anything is measured.
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
# model, batch size, steps, widths of the MLP
SETTINGS = {
    "lr, batch 128": ("lr", 128, 200, ()),
    "tiny deepfm, batch 128": ("deepfm", 128, 80, (16, 16)),
    "deepfm, batch 128": ("deepfm", 128, 40, (400, 400, 400)),
    "deepfm, batch 2048": ("deepfm", 2048, 8, (400, 400, 400)),
}
LOADS, THREADS = (0, 2), (1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prepare", action="store_true", help="make the data alone")
    parser.add_argument("--one", choices=SPINS, help="measure one library, print its figures")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(figures_of(args.one)))
        return
    if not (FOLDER / "enc" / "data.json").exists():
        make_data()
    rounds: dict[str, list[float]] = {}
    for number, load in itertools.product(range(0 if args.prepare else args.rounds), LOADS):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            for library in SPINS:
                for name, figure in measured(library).items():
                    rounds.setdefault(f"{name}, beside {load} processes, {library}", []).append(figure)
        finally:
            for process in busy:
                process.kill()
        if load == LOADS[-1]:
            outcome = result(rounds)
            write("threads", outcome)
            print(f"round {number + 1}", json.dumps(outcome["two_over_one"], indent=1), flush=True)


def make_data() -> None:
    synth = ["-m", "hotrows", "synth", "criteo", "--rows", "100000", "--out"]
    command = [sys.executable, *synth, FOLDER / "raw"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    raw, schema = FOLDER / "raw" / "train.txt", hotrows.datasets.schemas.criteo
    hotrows.prepare([raw], schema, FOLDER / "enc", split="fraction:0.96,0.02,0.02")


def result(rounds: dict[str, list[float]]) -> dict:
    """Samples a second; and, of two threads, as multiples of those of one thread in the same round."""
    ratios = {}
    for name, figures in rounds.items():
        if ", 2 threads" in name:
            ones = rounds[name.replace(", 2 threads", ", 1 threads")]
            ratios[name.replace(", 2 threads", "")] = [b / a for a, b in zip(ones, figures, strict=True)]
    return {
        "question": __doc__.splitlines()[0],
        **conditions(2),
        "samples_per_s": {name: median(figures) for name, figures in rounds.items()},
        "two_over_one": {name: round(median(of_rounds), 3) for name, of_rounds in ratios.items()},
        "rounds": rounds,
    }


def measured(library: str) -> dict[str, float]:
    environment = {**os.environ, "GOMP_SPINCOUNT": SPINS[library], "OMP_NUM_THREADS": "2"}
    environment.pop("OMP_WAIT_POLICY", None)
    command = [sys.executable, "-m", "benchmarks.threads", "--one", library]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def figures_of(library: str) -> dict[str, float]:
    data = EncodedData.open(FOLDER / "enc")
    train, figures = (ours if library == "hotrows" else plain), {}
    for (name, setting), threads in itertools.product(SETTINGS.items(), THREADS):
        torch.set_num_threads(threads)
        figures[f"{name}, {threads} threads"] = train(data, *setting)
    return figures


def ours(data: EncodedData, model: str, batch_size: int, steps: int, hidden: Widths) -> float:
    """Samples a second of training alone, without evaluations and checkpoints."""
    options = {"hidden": list(hidden)} if hidden else {}
    settings = {"batch_size": batch_size, "steps": steps, "evaluate_every": 10**6}
    config = hotrows.TrainConfig(model=model, model_options=options, **settings)
    with tempfile.TemporaryDirectory() as run:
        return hotrows.Trainer(data, config, Path(run) / "run").fit().samples_per_second


def plain(data: EncodedData, model: str, batch_size: int, steps: int, hidden: Widths) -> float:
    features, dim = data.schema.id_features, 1 if model == "lr" else 16
    tables = nn.ModuleList(nn.Embedding(f.rows, dim, sparse=True) for f in features)
    widths = [len(features) * dim + len(data.schema.dense), *hidden, 1]
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
