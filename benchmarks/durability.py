"""What do checksums, syncing and one spelling of each value cost?

    python -m benchmarks.durability [--rows N] [--rounds R] [JOB ...]

Each arm but the first leaves something out, by a patch in a process of its own: the library has no switch
for it. Beside the time on the clock stands the CPU's, which other load on the machine changes less.
`verify` leaves nothing out; it says how fast files are read and compared with their checksums.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from unittest import mock

from benchmarks.harness import ROOT, conditions, write

QUESTION = "What do checksums, syncing and one spelling of each value cost?"
AS_IT_IS = "as it is"
# What each arm leaves out: names, and what stands there instead.
LEFT_OUT: dict[str, tuple[tuple[str, Callable], ...]] = {
    AS_IT_IS: (),
    "no syncs": (("os.fsync", lambda fd: None),),
    "no checksums": (("zlib.crc32", lambda data, value=0: 0),),
    "neither": (("os.fsync", lambda fd: None), ("zlib.crc32", lambda data, value=0: 0)),
    "values as they are spelled": (("hotrows.data.raw.cells.canonical", lambda raw, threads: raw),),
    "no checksums of shards": (("hotrows.data.stored.part.check_once", lambda path: None),),
}
BATCH, DIM = 8192, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        job, arm, folder = args.one
        print(json.dumps(measure(job, arm, Path(folder), args.threads)))
    else:
        compare(args.jobs or list(JOBS), args.rows, args.rounds, args.threads)


def compare(jobs: list[str], rows: int, rounds: int, threads: int) -> None:
    from hotrows.data import prepare
    from hotrows.datasets import schemas
    from hotrows.datasets.synthetic import synth_criteo

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = synth_criteo(rows, folder / "raw")
        prepare(raw, schemas.criteo, folder / "enc", split="fraction:0.8,0.1,0.1", threads=threads)
        results = {job: in_turn(job, folder, rounds, threads) for job in jobs}
        facts = {"question": QUESTION, "rows": rows, "raw_bytes": raw.stat().st_size, "rounds": rounds}
        facts["load_average"] = os.getloadavg()  # at the end, of all that the machine runs
    write("durability", facts | conditions(threads) | {"jobs": results})


def in_turn(job: str, folder: Path, rounds: int, threads: int) -> dict[str, dict]:
    """The figures of all arms of a job; every other round in reverse order."""
    arms = JOBS[job][1]
    seen: dict[str, list[dict]] = {arm: [] for arm in arms}
    command = [sys.executable, "-m", "benchmarks.durability", "--threads", str(threads), "--one", job]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    for number in range(rounds):
        for arm in arms if number % 2 == 0 else arms[::-1]:
            os.sync()  # what an arm left to be written is not the next one's
            done = subprocess.run(
                [*command, arm, str(folder)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
            )
            seen[arm].append(json.loads(done.stdout.splitlines()[-1]))
    return {arm: summary(job, arm, seen[arm], seen[arms[0]]) for arm in arms}


def summary(job: str, arm: str, figures: list[dict], as_it_is: list[dict]) -> dict:
    """Medians; `saved` is the median over the rounds of the share of time that the arm takes less."""
    row: dict = {"rounds": figures}
    for clock, name in (("seconds", "saved"), ("cpu_seconds", "cpu_saved")):
        row[clock] = median(one[clock] for one in figures)
        pairs = zip(figures, as_it_is, strict=True)
        row[name] = median(1 - one[clock] / whole[clock] for one, whole in pairs)
    unit = UNITS.get(job, "bytes")
    row[f"{unit}_per_s"] = median(one[unit] / one["seconds"] for one in figures)
    print(
        f"{job:18} {arm:28} {row['seconds']:8.3f} s {row['cpu_seconds']:8.3f} s of the CPU  "
        f"{row[f'{unit}_per_s']:13,.0f} {unit}/s  saved {row['saved']:6.1%}, {row['cpu_saved']:6.1%}",
        flush=True,
    )
    return row


class Clock:
    """The seconds since it was made, and those of the CPU, of all threads."""

    def __init__(self) -> None:
        self._begin, self._begin_cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        seconds, cpu_seconds = time.perf_counter() - self._begin, time.process_time() - self._begin_cpu
        return {"seconds": seconds, "cpu_seconds": cpu_seconds}


def measure(job: str, arm: str, folder: Path, threads: int) -> dict:
    with ExitStack() as patches:
        for target, instead in LEFT_OUT[arm]:
            patches.enter_context(mock.patch(target, instead))
        return JOBS[job][0](folder, threads)


def prepare_rows(folder: Path, threads: int) -> dict:
    from hotrows.data import prepare
    from hotrows.datasets import schemas

    clock = Clock()
    data = prepare(
        folder / "raw" / "train.txt",
        schemas.criteo,
        folder / "out",
        split="fraction:0.8,0.1,0.1",
        threads=threads,
    )
    times = clock.read()
    shutil.rmtree(folder / "out")
    return times | {"rows": sum(part.rows for part in data.parts.values())}


def train_epoch(folder: Path, threads: int) -> dict:
    """An epoch of a small DeepFM, from its second step to its last."""
    from hotrows.config import TrainConfig
    from hotrows.data import EncodedData
    from hotrows.train import Trainer
    from hotrows.train.progress import Progress

    clock, ends = Clock(), []

    def progress(now: Progress) -> None:
        if now.stage == "train":
            ends.append(clock.read())

    config = TrainConfig(
        model="deepfm", model_options={"dim": DIM, "hidden": [64]}, epochs=1, batch_size=BATCH
    )
    try:
        Trainer(EncodedData.open(folder / "enc"), config, folder / "run", progress=progress).fit()
    finally:
        shutil.rmtree(folder / "run", ignore_errors=True)
    times = {name: ends[-1][name] - ends[0][name] for name in ends[0]}
    return times | {"samples": BATCH * (len(ends) - 1)}


def save_checkpoint(folder: Path, threads: int) -> dict:
    """A full checkpoint of a million rows with their optimizer state, in the foreground."""
    from torch import nn

    import hotrows
    from hotrows import checkpoint
    from hotrows.engine.embedding import Embedding
    from hotrows.table import Table

    run = folder / "checkpoints"
    table = Table("t", 1_000_000, 4 * DIM, features=("f",), optimizer=hotrows.Adagrad(lr=0.1))
    embedding = Embedding((table,), seed=1)
    shutil.rmtree(run, ignore_errors=True)
    clock = Clock()
    checkpoint.save(run, embedding, nn.Linear(3, 2), checkpoint.State(1, {}, {}))
    return clock.read() | {"bytes": _bytes_in(run)}


def verify_checkpoint(folder: Path, threads: int) -> dict:
    from hotrows import checkpoint

    save_checkpoint(folder, threads)
    (saved,) = (folder / "checkpoints" / "checkpoints").iterdir()
    clock = Clock()
    assert checkpoint.problems(saved) == []
    return clock.read() | {"bytes": _bytes_in(saved)}


def verify_data(folder: Path, threads: int) -> dict:
    from hotrows.data import EncodedData

    data = EncodedData.open(folder / "enc")
    clock = Clock()
    data.check()
    return clock.read() | {"bytes": _bytes_in(folder / "enc")}


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


JOBS: dict[str, tuple[Callable[[Path, int], dict], list[str]]] = {
    "prepare": (prepare_rows, [AS_IT_IS, "no syncs", "no checksums", "values as they are spelled"]),
    "train": (train_epoch, [AS_IT_IS, "no checksums of shards"]),
    "checkpoint": (save_checkpoint, [AS_IT_IS, "no syncs", "no checksums", "neither"]),
    "verify checkpoint": (verify_checkpoint, [AS_IT_IS]),
    "verify data": (verify_data, [AS_IT_IS]),
}
UNITS = {"prepare": "rows", "train": "samples"}  # of the others: bytes

if __name__ == "__main__":
    main()
