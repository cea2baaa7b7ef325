"""How fast do rows come and go where a user would keep them first: a key-value store, or a mapped file?

    python -m benchmarks.stores [--arms NAME ...] [--rows N] [--seconds 8]
    python -m benchmarks.peers stores        # before: the environment of rocksdict and lmdb

The same work for all, in processes of their own, with the same bytes of memory in all, page cache
included, by a memory cgroup: a table of records, all written before; then rounds as a cache in front of
it makes them. A round reads some thousand random rows at once and writes as many that were read before;
every 25 rounds come a checkpoint. Stores differ in what a checkpoint is: see `keeps`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys

from benchmarks.harness import ROOT, conditions, python_of, write
from benchmarks.memory_limit import MemoryLimit
from benchmarks.workload import DATA

ARMS = {
    "hotrows": (None, "going back to a checkpoint after a kill"),
    "mapped": ("stores", "nothing: a kill leaves rows of any step, some torn"),
    "rocksdb": ("stores", "a row at a time, up to the last sync at least; going back is not possible"),
    "lmdb": ("stores", "going back to the last commit after a kill"),
    "sqlite": ("stores", "going back to the last commit after a kill"),
}
QUESTION = __doc__.splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--stride", type=int, default=128, help="bytes of a record")
    parser.add_argument("--per-round", type=int, default=4000, help="rows read, and rows written")
    parser.add_argument("--seconds", type=float, default=8, help="of rounds, for each arm")
    parser.add_argument("--memory", type=int, default=256 << 20, help="bytes of each process")
    parser.add_argument("--fill-only", action="store_true", help="write the tables, and end")
    parser.add_argument("--keep", action="store_true", help="keep the tables")
    args = parser.parse_args()
    figures = {}
    for arm in args.arms:
        filled = DATA / f"stores-{arm}-{args.rows}-{args.stride}"
        if not filled.exists():
            shutil.rmtree(f"{filled}.part", ignore_errors=True)
            seconds = run(arm, args, f"{filled}.part", fill=True)["seconds"]
            os.rename(f"{filled}.part", filled)
            print(f"{arm}: filled in {seconds:.0f} s", flush=True)
    for arm in [] if args.fill_only else args.arms:
        folder = DATA / f"stores-{arm}-{args.rows}-{args.stride}"
        figures[arm] = {"keeps": ARMS[arm][1]} | run(arm, args, str(folder))
        print(f"{arm:8} {in_words(figures[arm])}", flush=True)
    if figures:
        facts = {"question": QUESTION, "setting": vars(args)}
        write("stores", facts | conditions(2) | {"arms": figures})
    if not args.keep and not args.fill_only:
        for folder in DATA.glob("stores-*"):
            shutil.rmtree(folder)


def run(arm: str, args: argparse.Namespace, folder: str, fill: bool = False) -> dict:
    """Fills a table, or makes its rounds, in a process of its own."""
    environment = ARMS[arm][0]
    python = sys.executable if environment is None else str(python_of(environment))
    group = None if fill else MemoryLimit("stores", args.memory)
    setting = {"arm": arm, "folder": folder, "fill": fill, "seconds": args.seconds}
    setting |= {"rows": args.rows, "stride": args.stride, "per_round": args.per_round}
    done = subprocess.run(
        [python, "-W", "ignore", "-m", "benchmarks.arms.stores", json.dumps(setting)],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "2"}, capture_output=True, text=True,
        timeout=1200, preexec_fn=group.enter if group else None,
    )  # fmt: skip
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1]) | {
        "memory_limit": args.memory if group and group.holds else None
    }


def in_words(figures: dict) -> str:
    if "error" in figures:
        return f"failed: {figures['error']}"
    checkpoint = "-" if figures["checkpoint_ms"] is None else round(figures["checkpoint_ms"])
    return (
        f"{figures['rows_per_s']:10,.0f} rows/s  read {figures['read_us']:.1f}, written "
        f"{figures['write_us']:.1f} us a row  processor {figures['cpu_us']:.1f} us a row  checkpoint "
        f"{checkpoint} ms  slowest round {figures['slowest_round_ms']:.0f} ms  "
        f"{figures['disk_gb']:.1f} GB"
    )


if __name__ == "__main__":
    main()
