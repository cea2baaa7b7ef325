"""How fast is training when fast memory holds a tenth of the tables?

    python -m benchmarks.tiers [COMPARISON ...] [--arms ARM ...] [--samples N]
    python -m benchmarks.tiers billion [--help]      # a billion rows in 2 GiB: `benchmarks.billion`

DLRM at Criteo Kaggle's cardinalities (33.8 M rows) on a stream of fresh samples. Every arm is a
process of its own and trains on the same samples in the same order; ratios are to `memory`, which
holds everything. Fast memory holds a tenth of the tables' bytes. Arms of a file get the same bytes of
memory in all, page cache included, by a memory cgroup: as many as `file` needs (measured without a
limit: its rows, all that planning knows of them, the log's index and merging, the process itself)
and 192 MiB for the stream that it reads and for the kernel. Policies without a look ahead get its
bytes for more rows. Every row of the file was written before: no holes. Caches begin with the most
popular rows.

`link` arms keep the tables in host memory behind a link slowed down to the declared speed, in the
place of a bus; `uncached` moves every row of every batch over it and back.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import hotrows
from benchmarks.harness import ROOT, conditions, stored, write
from benchmarks.memory_limit import MemoryLimit
from benchmarks.workload import CRITEO_KAGGLE, DATA
from hotrows.data import EncodedData
from hotrows.data.encode.writing import write_encoded

BATCH = 8192
SCHEMA = hotrows.Schema(
    tuple(hotrows.Dense(f"I{i}") for i in range(13))
    + tuple(hotrows.Sparse(f"C{f}", rows=rows) for f, rows in enumerate(CRITEO_KAGGLE)),
    name="criteo-shaped",
)
TIERS = ("memory", "arena", "file", "file-lru-serial", "file-mapped")
SLOW = ("file-mapped", "file-uncached", "link-uncached")  # seconds a step: fewer of them
COMPARISONS = {
    "dim16": {"dim": 16, "optimizer": "adagrad", "arms": TIERS},
    "dim64": {"dim": 64, "optimizer": "rowwise", "arms": TIERS},
    # With --steps 100: long enough for the log to be merged. No limit: a merge needs more memory.
    "sustained": {"dim": 16, "optimizer": "adagrad", "limited": False, "arms": ("memory", "file")},
}


def main() -> None:
    if sys.argv[1:2] == ["billion"]:
        from benchmarks import billion

        billion.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comparisons", nargs="*", metavar="COMPARISON", help=", ".join(COMPARISONS))
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument("--samples", type=int, default=6_000_000, help="of the stream")
    parser.add_argument("--warmup", type=int, default=120, help="steps before timing")
    parser.add_argument("--windows", type=int, default=5, help="that are timed")
    parser.add_argument("--steps", type=int, default=20, help="of a window")
    parser.add_argument("--share", type=float, default=0.1, help="of the tables in fast memory")
    parser.add_argument("--keep", action="store_true", help="keep tables and stream on disk")
    args = parser.parse_args()
    stream(args.samples)
    popular_rows()
    for name in args.comparisons or COMPARISONS:
        compare(name, args)
    if not args.keep:
        for path in DATA.glob("tiers-*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def compare(name: str, args: argparse.Namespace) -> None:
    setting = {k: v for k, v in COMPARISONS[name].items() if k != "arms"}
    setting |= {"share": args.share, "warmup": args.warmup, "windows": args.windows}
    setting |= {"steps": args.steps, "samples": args.samples}
    arms = [arm for arm in COMPARISONS[name]["arms"] if not args.arms or arm in args.arms]
    print(f"\ntiers-{name}: {setting}", flush=True)
    figures: dict[str, dict] = {"memory": run("memory", setting)}
    limit = None
    if any("file" in arm for arm in arms):
        prepare(setting, arms)
        if setting.get("limited", True):
            limit = run("file", setting)["own_bytes"] + (192 << 20)
            print(f"  file arms have {limit / 2**20:,.0f} MiB in all", flush=True)
    for arm in ("memory", *(arm for arm in arms if arm != "memory")):
        if arm != "memory":
            slow = {"warmup": 20, "windows": 3, "steps": 5} if arm in SLOW else {}
            figures[arm] = run(arm, setting | slow, limit if "file" in arm else None)
        if "error" in figures[arm]:
            print(f"  {arm:16} failed: {figures[arm]['error']}", flush=True)
            continue
        figures[arm]["ratio"] = figures[arm]["samples_per_s"] / figures["memory"]["samples_per_s"]
        print(f"  {arm:16} {in_words(figures[arm])}", flush=True)
    facts = {"question": __doc__.splitlines()[0], "setting": setting}
    run_of = {"date": conditions(2)["date"], "memory": figures["memory"]["samples_per_s"]}
    for figure in figures.values():
        figure["run"] = run_of
    figures = earlier(name, setting) | figures
    write(f"tiers-{name}", facts | conditions(2) | {"arms": figures})


def earlier(name: str, setting: dict) -> dict[str, dict]:
    """The arms of an earlier run of the same setting, which this one does not repeat.

    `run` says which run an arm is from; its ratio is to the `memory` of that run.
    """
    results = stored(f"tiers-{name}")
    return results["arms"] if results.get("setting") == setting else {}


def prepare(setting: dict, arms: list[str]) -> None:
    """Makes the files, outside any limit."""
    for kind in ("file", "file-mapped") if "file-mapped" in arms else ("file",):
        prepared = run(f"{kind}:prepare", setting)
        if "error" in prepared:
            raise SystemExit(f"could not make the tables: {prepared['error']}")


def in_words(figures: dict) -> str:
    words = f"{figures['samples_per_s']:9,.0f} samples/s"
    words += f" ({figures['lowest']:,.0f} - {figures['highest']:,.0f})"
    if figures["ratio"]:
        words += f" {figures['ratio']:6.1%}"
    if figures["misses_per_batch"] is not None:
        words += f"  {figures['misses_per_batch']:,.0f} misses a batch, waited {figures['waited']:.0%}"
    return words + f"  {figures['peak_rss_mb']:,.0f} MB"


def run(arm: str, setting: dict, limit: int | None = None) -> dict:
    """One arm in a process of its own, within so many bytes of memory."""
    group = None if limit is None else MemoryLimit("benchmark", limit)
    environment = os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.arms.tiers", arm, json.dumps(setting)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800,
        preexec_fn=group.enter if group else None,
    )  # fmt: skip
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1]) | {
        "memory_limit": limit if group and group.holds else None
    }


def table_bytes(setting: dict) -> int:
    return sum(CRITEO_KAGGLE) * stride(setting)


def stride(setting: dict) -> int:
    return 4 * (2 * setting["dim"] if setting["optimizer"] == "adagrad" else setting["dim"] + 1)


def stream(samples: int) -> EncodedData:
    """The samples, made once: Zipf 1.05 in every field, as the other benchmarks draw them."""
    path = DATA / f"tiers-stream-{samples}"
    if not path.exists():
        print(f"making {samples:,} samples", flush=True)
        DATA.mkdir(exist_ok=True)
        write_encoded(path, SCHEMA, {"train": _batches(samples)})
    return EncodedData.open(path)


def _batches(samples: int):
    rng = np.random.default_rng(0)
    ids = [_draw(rows, samples, rng) for rows in CRITEO_KAGGLE]
    names = tuple(feature.name for feature in SCHEMA.sparse)
    for begin in range(0, samples, 1 << 16):
        part = slice(begin, min(begin + (1 << 16), samples))
        columns = np.stack([column[part] for column in ids]).astype(np.int64)
        count = columns.shape[1]
        dense = np.log1p(rng.exponential(10.0, (count, 13))).astype(np.float32)
        labels = (rng.random(count) < 0.25).astype(np.float32)
        yield hotrows.Batch(
            names,
            torch.from_numpy(columns).reshape(-1),
            torch.from_numpy(dense),
            torch.from_numpy(labels),
        )


def _draw(rows: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    cumulated = np.cumsum(np.arange(1.0, rows + 1) ** -1.05)
    row_of = permutation(rows)
    drawn = np.empty(samples, np.int32)
    for begin in range(0, samples, 1 << 20):
        points = rng.random(min(1 << 20, samples - begin)) * cumulated[-1]
        ranks = np.minimum(np.searchsorted(cumulated, points), rows - 1)
        drawn[begin : begin + len(points)] = row_of[ranks]
    return drawn


def popular_rows() -> Path:
    """A file of the 8 M most popular rows of all tables, the most popular first; made once."""
    path = DATA / "tiers-popular.npy"
    if not path.exists():
        weights = [np.arange(1.0, rows + 1) ** -1.05 for rows in CRITEO_KAGGLE]
        chance = np.concatenate([(weight / weight.sum()).astype(np.float32) for weight in weights])
        firsts = np.cumsum([0, *CRITEO_KAGGLE])
        row_of = np.concatenate(
            [permutation(rows) + first for rows, first in zip(CRITEO_KAGGLE, firsts, strict=False)]
        )
        np.save(path, row_of[np.argsort(-chance, kind="stable")[: 8 << 20]].astype(np.int32))
    return path


def permutation(rows: int) -> np.ndarray:
    """The row of each rank of popularity."""
    return np.random.default_rng(rows).permutation(rows).astype(np.int32)


if __name__ == "__main__":
    main()
