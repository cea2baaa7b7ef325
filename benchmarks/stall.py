"""Does training wait for data?

    python -m benchmarks.stall [--rows N] [--rounds R]

DLRM on synthetic Criteo rows, batch 8,192, as `hotrows train` runs it: shards, shuffled, loaded and
planned beside the step. `stall` is the time for which the step had no batch, as the run itself logs it.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

import torch

from benchmarks.harness import conditions, write
from hotrows.data import prepare
from hotrows.data.datasets import schemas
from hotrows.data.datasets.synthetic import synth_criteo
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.telling import pictures

QUESTION = "Does training wait for data?"
BATCH_SIZE = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pictures.draw_run = lambda run: None
    with tempfile.TemporaryDirectory() as folder:
        raw = synth_criteo(args.rows, Path(folder) / "raw")
        data = prepare(raw, schemas.criteo, Path(folder) / "enc", split="fraction:0.98,0.01,0.01")
        rounds = [one(data, Path(folder) / f"run{number}") for number in range(args.rounds)]
    figures = {name: median(figures_of_round[name] for figures_of_round in rounds) for name in rounds[0]}
    facts = {"question": QUESTION, "rows": args.rows, "batch_size": BATCH_SIZE, "model": "dlrm"}
    write("stall", facts | conditions(args.threads) | {"figures": figures, "rounds": rounds})
    print(json.dumps(figures, indent=1))


def one(data, run: Path) -> dict:
    config = TrainConfig(model="dlrm", batch_size=BATCH_SIZE, evaluate_every=10**6)
    Trainer(data, config, run).fit()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"][1:]  # the first waits for the start
    seconds = sum(line["seconds"] for line in steps)
    stalled = sum(line["stall_seconds"] for line in steps)
    num_steps = steps[-1]["step"] - steps[0]["step"] + 1
    return {
        "steps": num_steps,
        "seconds": seconds,
        "stalled_seconds": stalled,
        "stalled_share": stalled / seconds,
        "samples_per_s": num_steps * BATCH_SIZE / seconds,
    }


if __name__ == "__main__":
    main()
