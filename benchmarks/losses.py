"""Where does another library train faster? Small batches, bfloat16, one thread.

    python -m benchmarks.losses                   # every model; results/losses.json; 40 minutes
    python -m benchmarks.losses lr din --rounds 1
    python -m benchmarks.losses --quick

A cell is a model at a batch size, in a precision, on a number of threads; one thread means one core.
Arms train the same model on the same samples with Adagrad, one after the other, in processes of their
own, each of which measures all cells of its number of threads. A cell's ratio is the median, over its
quiet rounds, of our speed over that of the best peer in the same round. The tables have a tenth of Criteo
Kaggle's rows: larger ones favour us. DIN trains on histories of 40; its peer is PyTorch with padding and
the attention's first layer in parts.
"""

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from statistics import median

from benchmarks.harness import ARMS as STEP_ARMS
from benchmarks.harness import OURS, QUIET, ROOT, Arm, conditions, environment_of, write
from benchmarks.peers import python_of
from benchmarks.sequence_step import ARMS as SEQUENCE_ARMS

BATCH_SIZES = (256, 1024, 8192)
PRECISIONS = ("float32", "bfloat16")
THREADS = (1, 2)
CRITEO = "--workload criteo-tenth --optimizer adagrad --windows 3 --warmup 1.5 --max-seconds 12"
HISTORIES = "--windows 3 --warmup 1.5 --max-seconds 12"
# model -> arguments, peers
MODELS = {
    "dlrm": (f"--model dlrm {CRITEO}", ("plain-torch", "fbgemm", "torchrec", "tensorflow")),
    "deepfm": (f"--model deepfm {CRITEO}", ("plain-torch", "fbgemm", "tensorflow")),
    "dcnv2": (f"--model dcnv2 {CRITEO}", ("plain-torch", "fbgemm", "torchrec")),
    "lr": (f"--model lr {CRITEO}", ("plain-torch", "fbgemm")),
    "din": (f"--model din {HISTORIES}", ("padded-torch",)),
}
ONE_EACH = ("tensorflow",)  # sets its number of threads once a process
TIMEOUT = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="batches of 1,024 alone; nothing is written")
    args = parser.parse_args()
    sizes = BATCH_SIZES[1:2] if args.quick else BATCH_SIZES
    seen: dict[str, list[dict]] = {}
    for number, model, threads in product(range(args.rounds), args.models or MODELS, THREADS):
        for arm in ("hotrows", *MODELS[model][1]):
            for cell, figures in measured(model, arm, threads, sizes).items():
                seen.setdefault(cell, []).append({"arm": arm, "round": number, **figures})
            print(f"round {number + 1}: {model}, {threads} threads: {arm}", flush=True)
    cells = {cell: summary(rows) for cell, rows in seen.items()}
    for cell, row in cells.items():
        print(f"{cell:32} {row['samples_per_s']:11,.0f}  {row['ratio'] or 0:5.2f}x {row['best_peer']}")
    if not args.quick:
        facts = {"question": __doc__.splitlines()[0], "num_rounds": args.rounds}
        write("losses", facts | conditions(2) | {"models": MODELS, "cells": cells})


def measured(model: str, name: str, threads: int, sizes: tuple[int, ...]) -> dict[str, dict]:
    """The figures of an arm by cell; none of those that it failed at."""
    arm = (SEQUENCE_ARMS if model == "din" else STEP_ARMS)[name]
    grids = [(sizes, PRECISIONS)]
    if name in ONE_EACH:
        grids = [((size,), (precision,)) for size, precision in product(sizes, PRECISIONS)]
    figures = {}
    for batch_sizes, precisions in grids:
        lines = _run(arm, MODELS[model][0], threads, batch_sizes, precisions)
        cells = product(batch_sizes, precisions)
        for (size, precision), line in zip(cells, lines, strict=False):
            figures[f"{model}, {size:,}, {precision}, {threads}"] = json.loads(line)
    return figures


def summary(rows: list[dict]) -> dict:
    """Our speed, the best peer's, and the median ratio, over rounds in which all arms were quiet."""
    rounds: dict[int, dict[str, dict]] = {}
    for row in rows:
        rounds.setdefault(row["round"], {})[row["arm"]] = row
    whole = [arms for arms in rounds.values() if "hotrows" in arms and len(arms) > 1]
    quiet = [arms for arms in whole if all(arm["other_cores"] <= QUIET for arm in arms.values())]
    counted = quiet or whole
    speeds = {
        name: median(arms[name]["samples_per_s"] for arms in counted if name in arms)
        for name in dict.fromkeys(row["arm"] for row in rows)
        if any(name in arms for arms in counted)
    }
    peers = {name: speed for name, speed in speeds.items() if name != "hotrows"}
    ratios = [
        arms["hotrows"]["samples_per_s"]
        / max(arm["samples_per_s"] for name, arm in arms.items() if name != "hotrows")
        for arms in counted
    ]
    return {
        "samples_per_s": speeds.get("hotrows", 0.0),
        "best_peer": max(peers, key=lambda name: peers[name], default=None),
        "ratio": median(ratios) if ratios else None,
        "ratios": ratios,
        "quiet_rounds": len(quiet),
        "arms": speeds,
    }


def _run(
    arm: Arm, setting: str, threads: int, sizes: tuple[int, ...], precisions: tuple[str, ...]
) -> list[str]:
    """The lines of figures that one process prints, fewer where it fails."""
    python = sys.executable if arm.environment == OURS else str(python_of(arm.environment))
    cells = f"--batch-sizes {' '.join(map(str, sizes))} --precisions {' '.join(precisions)}"
    command = (
        f"-m benchmarks.arms.grid {arm.module} {arm.arguments} {setting} --threads {threads} {cells}"
    )
    done = subprocess.run(
        [python, "-W", "ignore", *command.split()],
        cwd=ROOT,
        env=environment_of(threads),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        preexec_fn=_one_core if threads == 1 else None,
    )
    if done.returncode:
        print(f"  {arm.module} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return [line for line in done.stdout.splitlines() if line.startswith("{")]


def _one_core() -> None:
    """For this process alone: a background thread of an arm is no second thread."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


if __name__ == "__main__":
    main()
