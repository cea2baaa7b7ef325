"""How long does `hotrows train` take on four million rows, beside its own step and other libraries?

    python -m benchmarks.peers ctr                  # once
    python -m benchmarks.user_path                  # results/user_path.json; half an hour
    python -m benchmarks.user_path hotrows-deepfm plain-deepfm --rows 100000 --dry

Synthetic rows of Criteo's layout are prepared once; that is not counted. Then each arm is a process,
timed from its start to its end: imports, reading, one epoch, evaluations on two parts, and saving.

    hotrows-MODEL     `hotrows train DATA --model MODEL`, all else by default
    step-MODEL        the same loader and step without a run around them: samples a second alone
    plain-MODEL       a careful loop in plain PyTorch over the same rows as arrays
    deepctr, fuxictr  their own DeepFM of the same layers, and their own `fit`
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness import OURS, QUIET, ROOT, conditions, environment_of, write
from benchmarks.peers import python_of
from benchmarks.workload import DATA, cpu_seconds_of_others

PARTS = ("train", "validation", "test")
# name -> environment, arm, model, batch size (0: what hotrows takes by default)
ARMS: dict[str, tuple[str, str, str, int]] = {
    "hotrows-deepfm": (OURS, "hotrows", "deepfm", 0),
    "step-deepfm": (OURS, "step", "deepfm", 0),
    "plain-deepfm": (OURS, "plain", "deepfm", 4096),
    "hotrows-lr": (OURS, "hotrows", "lr", 0),
    "step-lr": (OURS, "step", "lr", 0),
    "plain-lr": (OURS, "plain", "lr", 4096),
    "hotrows-deepfm-16384": (OURS, "hotrows", "deepfm", 16384),
    "deepctr": ("ctr", "deepctr", "deepfm", 4096),
    "fuxictr": ("ctr", "fuxictr", "deepfm", 4096),
}
ONCE = ("deepctr", "fuxictr")  # minutes each
TIMEOUT = 1800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arms", nargs="*", metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    args = parser.parse_args()
    folder = prepared(args.rows)
    seen: dict[str, list[dict]] = {name: [] for name in args.arms or ARMS}
    for number in range(args.rounds):
        for name, rounds in seen.items():
            if number and name in ONCE:
                continue
            rounds.append(measured(name, folder, args.threads))
            print(f"round {number + 1}: {name}: {_in_words(rounds[-1])}", flush=True)
    figures = {name: {**summary(rounds), "rounds": rounds} for name, rounds in seen.items()}
    if not args.dry:
        about = json.loads((folder / "about.json").read_text())
        facts = {"question": __doc__.splitlines()[0], "rows": args.rows, "samples": about["samples"]}
        write("user_path", facts | conditions(args.threads) | {"arms": figures})


def prepared(rows: int) -> Path:
    """A folder with the rows as prepared data, and as arrays for others."""
    folder = DATA / f"user_path-{rows}"
    if (folder / "about.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for command in (
        f"synth criteo --rows {rows} --out {folder}/raw",
        f"prepare {folder}/raw/train.txt --schema criteo --out {folder}/data",
    ):
        subprocess.run([sys.executable, "-m", "hotrows", *command.split()], cwd=ROOT, check=True)
    write_arrays(folder)
    return folder


def write_arrays(folder: Path) -> None:
    from hotrows.data import EncodedData, Loader

    data = EncodedData.open(folder / "data")
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS:
        batches = list(Loader(data.parts[part], 65536).batches(0))
        ids = [batch.ids.reshape(-1, batch.size).t().int().numpy() for batch in batches]
        arrays[f"{part}_ids"] = np.concatenate(ids)
        arrays[f"{part}_dense"] = np.concatenate([batch.dense.numpy() for batch in batches])
        arrays[f"{part}_labels"] = np.concatenate([batch.labels.numpy() for batch in batches])
    np.savez(folder / "arrays.npz", **arrays)
    about = {
        "rows": [feature.rows for feature in data.schema.sparse],
        "samples": {part: data.parts[part].rows for part in PARTS},
    }
    (folder / "about.json").write_text(json.dumps(about))


def measured(name: str, folder: Path, threads: int) -> dict:
    """Seconds of one process and of its turns."""
    environment, arm, model, batch_size = ARMS[name]
    python = sys.executable if environment == OURS else str(python_of(environment))
    command = f"-W ignore -m benchmarks.arms.user_path {arm} {folder} {model} {batch_size}"
    others, begin = cpu_seconds_of_others(), time.time()
    child = _children_seconds()
    done = subprocess.run(
        [python, *command.split()],
        cwd=ROOT,
        env=environment_of(threads),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    seconds = time.time() - begin
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    others = cpu_seconds_of_others() - others - (_children_seconds() - child)
    turns = json.loads(done.stdout.splitlines()[-1])
    within = [b - a for a, b in turns["evaluations"] if a < turns["last_step"]]
    behind = [b - a for a, b in turns["evaluations"] if a >= turns["last_step"]]
    training = turns["last_step"] - turns["first_step"] - sum(within)
    return {
        "seconds": seconds,
        "samples": turns["samples"],
        "samples_per_s": turns["samples"] / seconds,
        "start_seconds": turns["first_step"] - begin,
        "training_seconds": training,
        "training_samples_per_s": turns["samples"] / training,
        "evaluation_seconds": sum(within, 0.0) + sum(behind),
        "end_seconds": begin + seconds - turns["last_step"] - sum(behind),
        "auc": turns.get("auc"),
        "batch_size": turns.get("batch_size"),
        "other_cores": max(0.0, others) / seconds,
    }


def _children_seconds() -> float:
    import os

    times = os.times()
    return times.children_user + times.children_system


def summary(rounds: list[dict]) -> dict:
    """Medians of the quiet rounds, of all where none was."""
    if errors := [row["error"] for row in rounds if "error" in row]:
        return {"error": errors[0]}
    quiet = [row for row in rounds if row["other_cores"] <= QUIET]
    counted = quiet or rounds
    names = [name for name, value in counted[0].items() if isinstance(value, float)]
    return {"quiet_rounds": len(quiet)} | {name: median(row[name] for row in counted) for name in names}


def _in_words(row: dict) -> str:
    if "error" in row:
        return row["error"]
    return (
        f"{row['seconds']:.1f} s, {row['samples_per_s']:,.0f} samples/s in all; start "
        f"{row['start_seconds']:.1f}, training {row['training_seconds']:.1f} "
        f"({row['training_samples_per_s']:,.0f}/s), evaluations {row['evaluation_seconds']:.1f}, end "
        f"{row['end_seconds']:.1f} s; AUC {row['auc'] or 0:.4f}"
    )


if __name__ == "__main__":
    main()
