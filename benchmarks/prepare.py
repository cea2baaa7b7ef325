"""How fast does raw data become shards, and in how much memory?

    python -m benchmarks.prepare [--rows N] [--rounds R]
    python -m benchmarks.prepare --raw BIG.txt --limit 2GiB
    python -m benchmarks.prepare --ray [--rows N] [--rounds R] [--raw FOLDER]

Raw Criteo text, next to what users write: polars, and polars with scikit-learn's encoder, in memory and
in one pass over it (`arms/encode.py`). Ours makes both of its passes, checks every line and writes
shards with checksums. With `--raw` and `--limit` a file of any size is prepared within a memory cgroup:
anonymous memory and the page cache together may not take more. With `--ray` the same rows, as Parquet
files, are prepared by one process and by a cluster of Ray on the same cores (`pip install
'hotrows[ray]'`); the cluster runs already, as clusters do, and its first tasks start its workers.
"""

import argparse
import filecmp
import importlib.metadata
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import ROOT, conditions, write
from benchmarks.memory_limit import MemoryLimit
from benchmarks.peers import python_of
from hotrows.runtime.units import parse_bytes

BESIDE = 256 << 20  # what a limit leaves for the file being read and written, beside --memory
ARMS = ("hotrows", "polars", "sklearn")
QUESTION = "How fast does raw data become shards, and in how much memory?"


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--raw", type=Path, help="prepare this file, within --limit")
    parser.add_argument("--limit", type=parse_bytes, default=2 << 30)
    parser.add_argument("--ray", action="store_true", help="one process and a cluster of Ray")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--one-on-ray", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(hotrows_arm(*args.one, args.threads)))
    elif args.one_on_ray:
        print(json.dumps(ray_arm(*args.one_on_ray, args.threads)))
    elif args.ray:
        compare_with_ray(args.rows, args.rounds, args.threads, args.raw)
    elif args.raw:
        bounded(args.raw, args.limit, args.threads)
    else:
        compare(args.rows, args.rounds, args.threads)


def compare(rows: int, rounds: int, threads: int) -> None:
    from hotrows.data.datasets.synthetic import synth_criteo

    with tempfile.TemporaryDirectory() as folder:
        raw = synth_criteo(rows, Path(folder) / "raw")
        raw_bytes = raw.stat().st_size
        seen: dict[str, list[dict]] = {arm: [] for arm in ARMS}
        for number in range(rounds):
            for arm, figures in seen.items():
                out = Path(folder) / "out"
                figures.append(measure(arm, raw, out, threads))
                shutil.rmtree(out)
                print(f"round {number}: {arm}: {figures[-1]['rows_per_s']:,.0f} rows/s", flush=True)
    arms = {arm: summary(figures, seen["hotrows"]) for arm, figures in seen.items()}
    facts = {"question": QUESTION, "rows": rows, "raw_bytes": raw_bytes, "num_rounds": rounds}
    write("prepare", facts | conditions(threads) | {"arms": arms})
    for arm, row in arms.items():
        print(
            f"{arm:10} {row['rows_per_s']:>12,.0f} rows/s  {row['peak_rss_mb']:>8,.0f} MB  "
            f"hotrows is {row['hotrows_over_it']:.2f}x"
        )


def summary(figures: list[dict], ours: list[dict]) -> dict:
    pairs = zip(ours, figures, strict=True)
    return {
        "rows_per_s": median(one["rows_per_s"] for one in figures),
        "peak_rss_mb": max(one["peak_rss_mb"] for one in figures),
        "hotrows_over_it": median(a["rows_per_s"] / b["rows_per_s"] for a, b in pairs),
        "rounds": figures,
    }


def compare_with_ray(rows: int, rounds: int, threads: int, raw: Path | None) -> None:
    seen: dict[str, list[dict]] = {"process": [], "ray": []}
    equal: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        raw = parquet_files(rows, raw or Path(folder) / "raw")
        for number in range(rounds):
            for arm, figures in seen.items():
                command = [sys.executable, "-m", "benchmarks.prepare", "--threads", str(threads)]
                end = ["--one", raw, f"{folder}/{arm}", "0"] if arm == "process" else None
                command += end or ["--one-on-ray", raw, f"{folder}/{arm}"]
                figures.append(outcome_of(command, os.environ | {"OMP_NUM_THREADS": str(threads)}))
                print(f"round {number}: {arm}: {figures[-1]['rows_per_s']:,.0f} rows/s", flush=True)
            files = sorted(path.name for path in Path(folder, "process").iterdir())
            _, different, absent = filecmp.cmpfiles(f"{folder}/process", f"{folder}/ray", files, False)
            equal.append(not different and not absent)  # where Ray read the rows in the files' order
            for arm in seen:
                shutil.rmtree(f"{folder}/{arm}")
    ratios = [b["rows_per_s"] / a["rows_per_s"] for a, b in zip(*seen.values(), strict=True)]
    facts = {"question": QUESTION, "rows": rows, "num_rounds": rounds, "equal_bytes": equal}
    facts |= {"ray": importlib.metadata.version("ray"), "ray_over_process": median(ratios)}
    write(f"prepare-ray-{rows // 1_000_000}m", facts | conditions(threads) | {"arms": seen})
    print(f"Ray is {median(ratios):.2f}x of one process")


def parquet_files(rows: int, folder: Path, num_files: int = 8) -> str:
    """Synthetic rows of Criteo's form as Parquet files, as another program would write them; those that
    the folder holds already, if it does."""
    import pyarrow.csv
    import pyarrow.parquet

    from hotrows.data.datasets import schemas
    from hotrows.data.datasets.synthetic import synth_criteo

    if folder.exists():
        return str(folder)
    names = schemas.criteo.columns
    assert names is not None
    raw = synth_criteo(rows, folder)
    batches = pyarrow.csv.open_csv(
        raw,
        pyarrow.csv.ReadOptions(column_names=list(names), block_size=64 << 20),
        pyarrow.csv.ParseOptions(delimiter="\t"),
        pyarrow.csv.ConvertOptions(column_types={name: "string" for name in names if name[0] == "C"}),
    )
    with ExitStack() as files:
        paths = [folder / f"part-{number:05d}.parquet" for number in range(num_files)]
        writers = [pyarrow.parquet.ParquetWriter(path, batches.schema) for path in paths]
        for writer in writers:
            files.enter_context(writer)
        done = 0
        for batch in batches:
            writers[done * num_files // rows].write_batch(batch, row_group_size=1 << 17)
            done += batch.num_rows
    raw.unlink()
    return str(folder)


def ray_arm(raw: str, out: str, threads: int) -> dict:
    import ray.data

    ray.init(num_cpus=threads, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().use_datasource_v2 = False  # which keeps no order of files
    figures = hotrows_arm(ray.data.read_parquet(raw), out, "0", threads)
    ray.shutdown()
    return figures


def measure(arm: str, raw: Path, out: Path, threads: int) -> dict:
    if arm == "hotrows":
        command = [sys.executable, "-m", "benchmarks.prepare", "--threads", str(threads)]
        command += ["--one", str(raw), str(out), "0"]
    else:
        command = [str(python_of("encode")), "benchmarks/arms/encode.py", arm, str(raw), str(out)]
        command += [str(threads)]
    environment = os.environ | {"POLARS_MAX_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return outcome_of(command, environment)


def outcome_of(command: list[str], environment: Mapping[str, str]) -> dict:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def bounded(raw: Path, limit: int, threads: int) -> None:
    """Prepares a file within a memory cgroup of `limit` bytes."""
    group = MemoryLimit("prepare", limit)
    out = raw.parent / "prepared"
    command = [sys.executable, "-m", "benchmarks.prepare", "--threads", str(threads)]
    command += ["--one", str(raw), str(out), str(limit - BESIDE)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, preexec_fn=group.enter
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    if group.holds:
        figures["cgroup_peak_mb"] = int((group.group / "memory.max_usage_in_bytes").read_text()) / 2**20
        figures["cgroup_failures"] = (group.group / "memory.oom_control").read_text().split()[-1]
    facts = {"question": QUESTION, "raw_bytes": raw.stat().st_size, "limit": limit}
    facts |= {"limited_by_cgroup": group.holds, "memory": limit - BESIDE}
    write("prepare-bounded", facts | conditions(threads) | {"figures": figures})
    print(json.dumps(figures, indent=1))
    shutil.rmtree(out)


def hotrows_arm(raw: Any, out: str, memory: str, threads: int) -> dict:
    from hotrows.data import prepare
    from hotrows.data.datasets import schemas

    begin = time.perf_counter()
    stages: dict[str, float] = {}

    def progress(stage: str, done: int, total: int) -> None:
        stages[stage] = time.perf_counter() - begin

    data = prepare(
        raw,
        schemas.criteo,
        out,
        split="fraction:0.8,0.1,0.1",
        memory=int(memory) or None,
        threads=threads,
        progress=progress,
    )
    seconds = time.perf_counter() - begin
    return {
        "rows_per_s": sum(part.rows for part in data.parts.values()) / seconds,
        "seconds": seconds,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ended": stages,
        "distinct_values": sum(vocabulary.num_distinct for vocabulary in data.vocabularies.values()),
        "table_rows": sum(data.schema.rows_of(f.name) for f in data.schema.id_features),
        "bytes": sum(file.stat().st_size for file in Path(out).iterdir()),
    }


if __name__ == "__main__":
    main()
