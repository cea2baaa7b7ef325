"""How fast does data arrive: raw Criteo text through `prepare`, and batches out of the loader?

    python -m benchmarks.data [--rows N] [--repeats R]

Each repeat is a process of its own. `prepare` counts both of its passes, and writing. The loader
reads one epoch of the training part on one thread, from memory that the system has cached.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import hotrows.data
from benchmarks.harness import ROOT, conditions, write
from hotrows.data import EncodedData, Loader, schemas
from hotrows.data.synth import synth_criteo

BATCH_SIZE = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast does data arrive?")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(MEASURES[args.one[0]](Path(args.one[1]), Path(args.one[2]), args.threads)))
        return
    with tempfile.TemporaryDirectory() as folder:
        raw, encoded = Path(folder) / "raw", Path(folder) / "encoded"
        synth_criteo(args.rows, raw)
        figures: dict[str, list] = {"prepare": [], "shuffled": [], "in_order": []}
        for number in range(args.repeats):
            target = encoded.with_name(f"encoded{number}")
            for name, seen in figures.items():
                seen.append(_run(name, raw, target, args))
                print(f"{name}: {seen[-1]['rows_per_s']:,.0f} rows/s", flush=True)
    result = {
        name: {
            "rows_per_s": median(one["rows_per_s"] for one in seen),
            "peak_rss_mb": max(one["peak_rss_mb"] for one in seen),
            "rounds": seen,
        }
        for name, seen in figures.items()
    }
    facts = {"question": "How fast does data arrive?", "rows": args.rows, "batch_size": BATCH_SIZE}
    write("data", facts | conditions(args.threads) | {"arms": result})
    for name, row in result.items():
        print(f"{name:10} {row['rows_per_s']:>14,.0f} rows/s  {row['peak_rss_mb']:,.0f} MB")


def prepare(raw: Path, out: Path, threads: int) -> dict:
    begin = time.perf_counter()
    data = hotrows.data.prepare(
        [raw / "train.txt"], schemas.BY_NAME["criteo"], out, threads=threads
    )
    seconds = time.perf_counter() - begin
    return _figures(sum(part.rows for part in data.parts.values()), seconds)


def shuffled(raw: Path, encoded: Path, threads: int) -> dict:
    return _load(encoded, shuffle=True)


def in_order(raw: Path, encoded: Path, threads: int) -> dict:
    return _load(encoded, shuffle=False)


MEASURES = {"prepare": prepare, "shuffled": shuffled, "in_order": in_order}


def _load(encoded: Path, shuffle: bool) -> dict:
    loader = Loader(EncodedData.open(encoded).parts["train"], BATCH_SIZE, shuffle=shuffle)
    for _ in loader.batches(epoch=0):  # brings the files into the system's cache
        pass
    begin = time.perf_counter()
    rows = sum(batch.size for batch in loader.batches(epoch=1))
    return _figures(rows, time.perf_counter() - begin)


def _figures(rows: int, seconds: float) -> dict:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows_per_s": rows / seconds, "seconds": seconds, "peak_rss_mb": peak}


def _run(name: str, raw: Path, encoded: Path, args: argparse.Namespace) -> dict:
    command = ["-m", "benchmarks.data", "--one", name, str(raw), str(encoded)]
    command += ["--threads", str(args.threads)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
