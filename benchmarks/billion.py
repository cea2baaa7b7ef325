"""How fast is training from a billion rows within 2 GiB of memory?

    python -m benchmarks.tiers billion [--streams criteo zipf] [--steps N] [--seconds 400]

DLRM on tables of a billion rows, dim 16, weights of --dtype, row-wise Adagrad, batch 8,192, in a file
store that begins empty. The whole process is within a memory cgroup of 2 GiB, page cache included. Beside
it, in turn with it, the same model trains on tables of ten million rows, all in memory.

    criteo   26 tables in the proportions of Criteo Kaggle; zipf: 26 tables of equal size
    both     a stream of fresh samples, ids by a power law of exponent 1.05, popular rows scattered

Each call goes on where the last one ended, for so many seconds: a piece trains in memory first, then the
billion; in between its process is halted by a signal, which also halts its merges. Steps of a call with
--untimed are made and not counted: rows come to be in files, and the log is filled. At the end the
process is killed some steps behind its last checkpoint, and resumed: the losses must be those of before.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

import hotrows
from benchmarks.harness import ROOT, conditions, write
from benchmarks.memory_limit import MemoryLimit
from benchmarks.workload import CRITEO_KAGGLE, DATA
from hotrows.data import EncodedData
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.encode.encoder import readers_of
from hotrows.data.encode.vocabulary import IdCounts
from hotrows.data.encode.writing import _checked, _save_counts
from hotrows.data.stored.encoded import write_manifest
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.shards import ShardWriter
from hotrows.runtime.atomic_files import new_folder

BATCH, ROWS, ROWS_IN_MEMORY, EXPONENT = 8192, 10**9, 10**7, 1.05
LIMIT = 2 << 30
MEMORY_STEPS, MEMORY_WARM = 150, 30
RESUMED_STEPS = 20
STREAMS = ("criteo", "zipf")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=STREAMS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--steps", type=int, default=5000, help="in all")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "int8", "int4"))
    parser.add_argument(
        "--samples", type=int, help="of the stream, read again from its begin [all fresh]"
    )
    parser.add_argument("--seconds", type=float, default=400, help="of this call")
    parser.add_argument("--fast-memory", type=int, default=224 << 20, help="bytes of rows held")
    parser.add_argument("--lookahead-memory", type=int, default=96 << 20)
    parser.add_argument("--limit", type=int, default=LIMIT, help="bytes of the process in all")
    parser.add_argument("--memory-steps", type=int, default=MEMORY_STEPS, help="timed, of a piece")
    parser.add_argument("--untimed", action="store_true", help="steps of this call are not counted")
    parser.add_argument("--data-only", action="store_true", help="make the streams, and end")
    parser.add_argument("--keep", action="store_true", help="keep the tables on disk at the end")
    args = parser.parse_args(arguments)
    args.samples = args.samples or args.steps * BATCH
    for stream in args.streams:
        samples(stream, args.rows, args.samples)
        samples(stream, min(args.rows, ROWS_IN_MEMORY), (MEMORY_STEPS + MEMORY_WARM) * BATCH)
    if args.data_only:
        return
    end = time.monotonic() + args.seconds
    for stream in args.streams:
        training = Training(stream, args)
        while not training.is_over and end - time.monotonic() > 20:
            training.piece(end)
        if not training.is_over:
            print(f"{stream}: {len(training.steps()):,} of {args.steps:,} steps; call again to go on")
            return
        training.report()
        if not args.keep:
            training.delete()


class Training:
    """The billion of one stream: its process, what it has noted, and where it was halted."""

    def __init__(self, stream: str, args: argparse.Namespace) -> None:
        self.stream, self.args = stream, args
        self.folder = DATA / f"billion-{stream}-{args.rows}-{args.dtype}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._state_file = self.folder / "state.json"
        state = json.loads(self._state_file.read_text()) if self._state_file.exists() else {}
        self.state = {"pid": None, "memory": [], "starts": [], "peaks": []} | state
        self.state.setdefault("pauses", [])  # begin and end
        self.state.setdefault("untimed", [])

    def piece(self, end: float) -> None:
        """Trains in memory for some steps, then goes on with the billion until `end`."""
        if not self.args.untimed:
            self.state["memory"].append(self._in_memory())
        begin = time.monotonic()
        self._go_on()
        while time.monotonic() < end and self._is_alive() and not self._is_complete():
            time.sleep(0.5)
        if self.args.untimed:
            self.state["untimed"].append([begin, time.monotonic()])
        if self._is_complete():
            os.kill(self.state["pid"], signal.SIGKILL)
            self._reap()
            self._resume()
        elif self._is_alive():
            os.kill(self.state["pid"], signal.SIGSTOP)
            self.state["pauses"].append([time.monotonic(), None])
        else:
            raise SystemExit((self.folder / "errors.txt").read_text()[-2000:])
        self._save()

    @property
    def is_over(self) -> bool:
        return "resumed" in self.state

    def steps(self, name: str = "steps.jsonl", last: int | None = None) -> list[dict]:
        """What was noted of each step and checkpoint; last: only in so many bytes of the file's end."""
        path = self.folder / name
        if not path.exists():
            return []
        with open(path, "rb") as file:
            begin = file.seek(max(path.stat().st_size - (last or 1 << 60), 0))
            lines = file.read().decode().splitlines()[bool(begin) :]  # the first may be cut
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def _go_on(self) -> None:
        if self.state["pid"] is None:
            self._start("steps.jsonl")
        elif self.state["pauses"] and self.state["pauses"][-1][1] is None:
            self.state["pauses"][-1][1] = time.monotonic()
            os.kill(self.state["pid"], signal.SIGCONT)
        self._save()

    def _start(self, notes: str) -> None:
        group = MemoryLimit("billion", self.args.limit)
        self.state["limit_holds"] = group.holds
        setting = {
            "folder": str(self.folder),
            "notes": notes,
            "data": str(samples(self.stream, self.args.rows, self.args.samples).path),
            "steps": self.args.steps + 1000,  # it is killed before
            "dtype": self.args.dtype,
            "fast_memory": self.args.fast_memory,
            "lookahead_memory": self.args.lookahead_memory,
        }
        self.state["starts"].append(time.monotonic())
        with open(self.folder / "errors.txt", "a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "benchmarks.arms.billion", json.dumps(setting)],
                cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "2"}, stdout=errors, stderr=errors,
                start_new_session=True, preexec_fn=group.enter,
            )  # fmt: skip
        self.state["pid"] = process.pid

    def _in_memory(self) -> list[float]:
        """Seconds of steps of the model in memory."""
        rows = min(self.args.rows, ROWS_IN_MEMORY)
        data = samples(self.stream, rows, (MEMORY_STEPS + MEMORY_WARM) * BATCH).path
        folder = self.folder / "memory"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        steps = self.args.memory_steps + MEMORY_WARM
        setting = {"folder": str(folder), "notes": "steps.jsonl", "data": str(data), "steps": steps}
        setting["dtype"] = self.args.dtype
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.arms.billion", json.dumps(setting)],
            cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "2"}, check=True, timeout=300,
        )  # fmt: skip
        ends = [note["at"] for note in self.steps("memory/steps.jsonl") if note["kind"] == "step"]
        return np.diff(ends[MEMORY_WARM:]).tolist()

    def _is_complete(self) -> bool:
        """Whether all steps are made, and some behind the last checkpoint."""
        notes = self.steps(last=32 << 10)
        steps = [note["step"] for note in notes if note["kind"] == "step"]
        behind = next((n for n, note in enumerate(reversed(notes)) if note["kind"] == "checkpoint"), 1000)
        has_any = self.state["has_checkpoint"] = self.state.get("has_checkpoint") or behind < 1000
        return has_any and steps[-1:] >= [self.args.steps] and behind >= 2 * RESUMED_STEPS

    def _resume(self) -> None:
        """Resumes the killed run, and compares its losses with those before."""
        group = Path("/sys/fs/cgroup/memory/hotrows-billion")
        if group.exists():
            self.state["peaks"].append(int((group / "memory.max_usage_in_bytes").read_text()))
            self.state["fails"] = int((group / "memory.failcnt").read_text())
        self._start("resumed.jsonl")
        while self._is_alive() and len(self.steps("resumed.jsonl")) < RESUMED_STEPS:
            time.sleep(0.05)
        os.kill(self.state["pid"], signal.SIGKILL)
        self._reap()
        before = {note["step"]: note["loss"] for note in self.steps() if note["kind"] == "step"}
        resumed = [note for note in self.steps("resumed.jsonl") if note["kind"] == "step"]
        self.state["resumed"] = {
            "seconds": resumed[0]["at"] - self.state["starts"][-1],
            "steps": len(resumed),
            "equal": all(before[note["step"]] == note["loss"] for note in resumed),
        }

    def _is_alive(self) -> bool:
        try:
            status = Path(f"/proc/{self.state['pid']}/stat").read_text()
        except FileNotFoundError:
            return False
        return status.rsplit(")", 1)[1].split()[0] != "Z"

    def _reap(self) -> None:
        while self._is_alive():
            time.sleep(0.05)

    def _save(self) -> None:
        self._state_file.write_text(json.dumps(self.state))

    def _seconds(self) -> tuple[np.ndarray, list[float]]:
        """Of each step, and of each standstill by a checkpoint, but for the time that it was halted."""
        begin, after_checkpoint, steps, stands = None, False, [], []
        for note in self.steps():
            if note["kind"] == "checkpoint":
                after_checkpoint = True
                continue
            end = note["at"]
            is_timed = (
                not any(b < end and begin < e for b, e in self.state["untimed"]) if begin else False
            )
            if is_timed:
                pauses = [(max(b, begin), min(e, end)) for b, e in self.state["pauses"]]
                halted = sum(max(e - b, 0) for b, e in pauses)
                (stands if after_checkpoint else steps).append(end - begin - halted)
            begin, after_checkpoint = end, False
        usual = median(steps)
        return np.array(steps), [max(seconds - usual, 0) for seconds in stands]

    def report(self) -> None:
        """Prints and writes the figures."""
        seconds, standstills = self._seconds()
        in_memory = median(s for part in self.state["memory"] for s in part)
        windows = np.convolve(seconds, np.ones(100) / 100, "valid")
        slowest = np.sort(seconds)[-100:]
        notes = [note for note in self.steps() if note["kind"] == "step"]
        checkpoints = [note["seconds"] for note in self.steps() if note["kind"] == "checkpoint"]
        quarters = np.array_split(seconds, 4)
        figures = {
            "steps": len(notes),
            "steps_timed": len(seconds),
            "limit": self.args.limit if self.state.get("limit_holds") else None,
            "peak_bytes": max(self.state["peaks"], default=None),
            "median_ms": 1e3 * float(np.median(seconds)),
            "in_memory_ms": 1e3 * in_memory,
            "in_memory_pieces_ms": [1e3 * median(part) for part in self.state["memory"]],
            "ratio": in_memory / float(np.median(seconds)),
            "ratio_by_quarter": [in_memory / float(np.median(part)) for part in quarters],
            "ratio_slowest_window_of_100": in_memory / float(windows.max()),
            "ratio_slowest_100_steps": in_memory / float(slowest.mean()),
            "worst_step_ms": 1e3 * float(slowest[-1]),
            "start_seconds": notes[0]["at"] - self.state["starts"][0],
            "standstills": standstills,
            "checkpoint_seconds": checkpoints,
            "resumed": self.state["resumed"],
            "anonymous_mb": max(note.get("anonymous_mb", 0) for note in notes),
            "rows_in_per_step": float(np.mean([note["rows_in"] for note in notes])),
            **_of_disk(notes),
            "last": notes[-1],
        }  # fmt: skip
        for name, value in figures.items():
            print(f"  {self.stream}: {name}: {value}")
        setting = vars(self.args) | {"streams": None, "seconds": None}
        facts = {"question": __doc__.splitlines()[0], "setting": setting, "batch": BATCH}
        name = self.stream if self.args.dtype == "bfloat16" else f"{self.stream}-{self.args.dtype}"
        write(f"tiers-billion-{name}", facts | conditions(2) | {"figures": figures})

    def delete(self) -> None:
        shutil.rmtree(self.folder)


def _of_disk(notes: list[dict]) -> dict:
    """What the store read and wrote; rows that come in without ever having been written are no reads."""
    noted = [note for note in notes if "store" in note]
    steps = np.array([note["step"] for note in noted])
    reads = np.array([note["store"]["rows_read"] - note["store"]["rows_initialised"] for note in noted])
    bounds = np.linspace(0, len(noted) - 1, 5).astype(int)
    evicted = sum(note["bytes_out"] for note in notes[: steps[-1]])
    return {
        "disk_reads_per_step": float(reads[-1] / steps[-1]),
        "disk_reads_by_quarter": (np.diff(reads[bounds]) / np.diff(steps[bounds])).tolist(),
        "bytes_written_per_step": noted[-1]["store"]["bytes_written"] / int(steps[-1]),
        "bytes_written_over_evicted": noted[-1]["store"]["bytes_written"] / evicted,
        "store_bytes": noted[-1]["store_bytes"],
    }


def table_rows(stream: str, rows: int) -> list[int]:
    """The rows of each table, all together about so many."""
    if stream == "zipf":
        return [rows // len(CRITEO_KAGGLE)] * len(CRITEO_KAGGLE)
    factor = rows / sum(CRITEO_KAGGLE)
    return [max(int(count * factor), 3) for count in CRITEO_KAGGLE]


def schema(stream: str, rows: int) -> hotrows.Schema:
    return hotrows.Schema(
        tuple(hotrows.Dense(f"I{i}") for i in range(13))
        + tuple(hotrows.Sparse(f"C{f}", rows=n) for f, n in enumerate(table_rows(stream, rows))),
        name=f"billion-{stream}",
    )


def samples(stream: str, rows: int, num: int) -> EncodedData:
    """The stream, made once; without the counts of its ids, which would take as much memory again."""
    path = DATA / f"billion-stream-{stream}-{rows}-{num}"
    if not path.exists():
        print(f"making {num:,} samples of {stream}", flush=True)
        DATA.mkdir(exist_ok=True)
        of = schema(stream, rows)
        with new_folder(path) as folder:
            columns = SchemaColumns(of)
            writers = {name: ShardWriter(folder, name, columns) for name in NAMES}
            for first, batch in _batches(stream, rows, num):
                writers["train"].append(_checked(columns, "part 'train'", first, batch))
            written = {name: writer.close() for name, writer in writers.items()}
            counts = {name: IdCounts() for name in readers_of(of)}
            write_manifest(folder, of, written, _save_counts(folder, of, counts))
    return EncodedData.open(path)


def _batches(stream: str, rows: int, num: int):
    rng, counts = np.random.default_rng(0), table_rows(stream, rows)
    names = tuple(f"C{f}" for f in range(len(counts)))
    for first in range(0, num, 1 << 16):
        size = min(1 << 16, num - first)
        ids = np.stack([_draw(count, size, rng) for count in counts])
        dense = np.log1p(rng.exponential(10.0, (size, 13))).astype(np.float32)
        labels = (rng.random(size) < 0.25).astype(np.float32)
        columns = torch.from_numpy(ids).reshape(-1)
        yield first, hotrows.Batch(names, columns, torch.from_numpy(dense), torch.from_numpy(labels))


def _draw(rows: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Rows by a power law: that of rank k has the integral of x^-1.05 from k to k + 1."""
    power = 1 - EXPONENT
    ranks = (1 - rng.random(size) * (1 - (rows + 1.0) ** power)) ** (1 / power)
    ranks = np.minimum(ranks.astype(np.int64) - 1, rows - 1)
    return ranks * _scatter(rows) % rows


def _scatter(rows: int) -> int:
    """A factor that makes ranks a permutation of rows, near ranks far apart."""
    factor = int(rows * 0.6180339887) | 1
    while np.gcd(factor, rows) != 1:
        factor += 2
    return factor % rows or 1


if __name__ == "__main__":
    main(sys.argv[1:])
