"""Is this commit as fast as another one? The arms of other benchmarks, of both trees, in turn.

    python -m benchmarks.same_speed --base main~3
    python -m benchmarks.same_speed --base main~3 --only "embedding alone,file" --rounds 5

Both commits are checked out in throw-away worktrees, which share one folder of data. Each round runs
an arm of one tree and then of the other, and the next round begins with the other tree; a ratio is
that of a pair. Every tree runs its own copy of the arms, which may name its own modules.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.harness import conditions, write
from benchmarks.same_bits import worktree
from benchmarks.tiers import BATCH

TIER = {"dim": 16, "optimizer": "adagrad", "share": 0.1, "warmup": 40, "windows": 4, "steps": 8}
TIER |= {"samples": 800_000}
HOTROWS = "benchmarks.arms.hotrows_arm --windows 3 --max-seconds 20"
# Arm by name: module and arguments. All print figures as JSON; those with a setting are tiers.
ARMS: dict[str, list[str]] = {
    "embedding alone": f"{HOTROWS} --optimizer adagrad --embedding-only".split(),
    "many tables": f"{HOTROWS} --workload B --optimizer adagrad --model deepfm".split(),
    "dlrm": f"{HOTROWS} --optimizer adagrad --model dlrm".split(),
    "deepfm": f"{HOTROWS} --optimizer adagrad --model deepfm".split(),
    "memory": ["benchmarks.arms.tiers", "memory", json.dumps(TIER)],
    "cache over memory": ["benchmarks.arms.tiers", "arena", json.dumps(TIER)],
    "cache over a file": ["benchmarks.arms.tiers", "file", json.dumps(TIER)],
    "accelerated": ["benchmarks.overhead", "--quick"],
}
# Arms that call public names alone: this tree's file runs on both, and reads what the base has made.
ROWS = Path(__file__).parent / "arms" / "from_rows.py"
FROM_ROWS = ("csv", "parquet", "csv_461", "parquet_461", "loader", "request")
ARMS |= {name: [str(ROWS), name, "benchmarks/.data"] for name in FROM_ROWS}


def run(tree: Path, arguments: Sequence[str]) -> str:
    """What Python prints with the source of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"same_speed: {' '.join(arguments)} failed in {tree}\n{done.stderr}")
    return done.stdout


def step_ms(tree: Path, arm: Sequence[str]) -> float:
    """Milliseconds of a training step: the median that an arm of a tree measures."""
    printed = run(tree, arm if arm[0] == str(ROWS) else ["-m", *arm])
    lines = [json.loads(line[line.index("{") :]) for line in printed.splitlines() if "{" in line]
    if "accelerated_us" in lines[0]:
        return sum(line["accelerated_us"] for line in lines) / len(lines) / 1e3
    return lines[-1].get("ms") or 1e3 * BATCH / lines[-1]["samples_per_s"]


def compare(trees: Sequence[Path], name: str, rounds: int) -> dict[str, float]:
    """Medians of both trees, and the median ratio of pairs."""
    arm, pairs = ARMS[name], []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        times = {side: step_ms(trees[side], arm) for side in order}
        pairs.append((times[0], times[1]))
    ratios = sorted(here / base for base, here in pairs)
    figures = {"base_ms": median(b for b, _ in pairs), "here_ms": median(h for _, h in pairs)}
    return {**figures, "ratio": median(ratios), "lowest": ratios[0], "highest": ratios[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", metavar="REV", required=True, help="the commit to compare with")
    parser.add_argument("--here", metavar="REV", default="HEAD", help="the commit that is compared")
    parser.add_argument("--only", metavar="ARM,...", default=",".join(ARMS), help="these arms")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs of an arm")
    args = parser.parse_args()
    names = args.only.split(",")
    if not set(names) <= ARMS.keys():
        parser.error(f"--only takes of {', '.join(ARMS)}")
    question = {"question": __doc__.splitlines()[0], "base": args.base, "rounds": args.rounds}
    figures: dict[str, dict[str, float]] = {}
    with worktree(args.base) as base, worktree(args.here) as here, tempfile.TemporaryDirectory() as data:
        for tree in (base, here):
            (tree / "benchmarks" / ".data").symlink_to(data)
        if "cache over a file" in names:  # the tables, made once and read by both
            make_tables(base)
        if not set(FROM_ROWS).isdisjoint(names):
            run(base, [str(ROWS), "make", "benchmarks/.data"])
        for name in names:
            figures[name] = compare((base, here), name, args.rounds)
            words = " ".join(f"{key} {value:.3f}" for key, value in figures[name].items())
            print(f"{name:18} {words}", flush=True)
            write("same_speed", {**question, **conditions(2), "arms": figures})


def make_tables(tree: Path) -> None:
    """Makes the file store that the arm over a file trains on, in the shared folder of data."""
    arm, _, setting = ARMS["cache over a file"]
    run(tree, ["-m", arm, "file:prepare", setting])


if __name__ == "__main__":
    main()
