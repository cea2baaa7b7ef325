"""The small world that trials disturb: raw rows, prepared data, finished runs, and what is right."""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import shutil
import signal
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotrows import cli
from hotrows.dynamic import Dynamic
from hotrows.engine import checkpoint
from hotrows.engine.storage.disk_io import Disk
from hotrows.runtime.atomic_files import write_json
from hotrows.schema import Schema
from hotrows.serving.export.whole import export
from hotrows.train.telling.metrics_log import read_metrics
from tests.faults.commands import Command, computed, run
from tests.faults.jobs import free_port
from tests.support.runs import schema, write_rows

_SETTINGS = (
    "--model", "deepfm", "--option", "dim=4", "--option", "hidden=[16]", "--batch-size", "50",
    "--lr", "0.1", "--linear-paths", "plain", "--checkpoint-every", "3",
)  # fmt: skip
_CACHED = ("--fast-memory", "4KiB", "--in-flight", "2")
OF_KEYS = "train with dynamic ids"
TRAININGS = {
    "train in memory": (),
    "train with increments": ("--full-every", "3", "--keep-last", "2", "--epochs", "2"),
    "train waiting for checkpoints": ("--no-background-checkpoints",),
    "train behind a cache": _CACHED,
    "train in a file store": (*_CACHED, "--store", "file:rows"),
    OF_KEYS: ("--full-every", "3", "--keep-last", "2"),
}
_KEYS = Dynamic(capacity=18, admit="after:2", evict="lru", partitions=2)
RANKS_TRAIN = "train in memory"  # on several ranks, too
TIMEOUT = 20  # seconds after which a silent rank is given up
_OF_A_RUN = ("eval", "predict", "export", "checkpoint merge")
JOBS = (*TRAININGS, "prepare", "regroup", *_OF_A_RUN)
DESCRIBE = ("describe", "data", "--json", "--verify")
_MAY_STAY = ("job.json", "lock")  # where a preparation is killed as soon as its data have their name
_NOT_COMPARED = ("samples_per_second", "seconds", "run", "time")


@dataclass(frozen=True)
class Undisturbed:
    """A job that nothing happened to: its folder, its result, seconds, and changes of the disk."""

    folder: Path
    result: Any
    seconds: float
    num_changes: int


class World:
    """Data and runs in `folder`, made when they are first needed.

    All commands run in `here`, one after the other, as runs know their stores by absolute paths; what is
    to be kept is moved away, and copied back by the trials that go on from it.
    """

    def __init__(self, folder: Path, of: Schema | None = None) -> None:
        self.folder, self.here = folder, folder / "here"
        folder.mkdir(parents=True, exist_ok=True)
        self.raw = write_rows(folder / "raw.csv", 1310)
        self.other_raw = write_rows(folder / "other.csv", 1310, seed=1)
        self.schema = folder / "schema.json"
        self.schema.write_text((of or schema()).to_json())

    def words(self, job: str, seed: int = 3) -> list[str]:
        """The command line of a job, in a folder of its own; runs are in `run`, results in `out`."""
        if job in TRAININGS:
            data = self.data_of_keys if job == OF_KEYS else self.data
            return [
                "train", str(data), *_SETTINGS, "--seed", str(seed), *TRAININGS[job], "--run", "run",
            ]  # fmt: skip
        if job == "prepare":
            split = ("--split", "position:0.6,0.2,0.2")
            return ["prepare", str(self.raw), "--schema", str(self.schema), *split, "--out", "out"]
        if job == "regroup":
            return ["regroup", str(self.data), "--fast-memory", "1KiB", "--out", "out", "--force"]
        out = ["--out", "out"]
        more = {"predict": [str(self.raw), *out], "export": out, "eval": ["--json"]}
        return [*job.split(), "run", *more.get(job, ["out"])]

    @functools.cached_property
    def data(self) -> Path:
        return self.undisturbed("prepare").folder / "out"

    def begin(self, job: str, run_of: str = "train in memory") -> None:
        """Makes the folder in which a job begins."""
        self.here.mkdir(exist_ok=True)
        if job in _OF_A_RUN:
            self.put(self.undisturbed(run_of).folder)

    def put(self, folder: Path) -> None:
        """Puts a copy of what was kept where commands run."""
        shutil.copytree(folder, self.here, dirs_exist_ok=True)

    @contextlib.contextmanager
    def _kept(self, name: str) -> Iterator[Path]:
        """Gives the place to which `here` is moved at the end; what was there before comes back."""
        aside, kept = self.folder / "aside", self.folder / "kept" / name
        kept.parent.mkdir(exist_ok=True)
        if self.here.exists():
            self.here.rename(aside)
        yield kept
        self.here.rename(kept)
        if aside.exists():
            aside.rename(self.here)

    def undisturbed(self, job: str, run_of: str = "train in memory", seed: int = 3) -> Undisturbed:
        """Runs a job, once; run_of: the training whose run it reads, if any."""
        return self._undisturbed(job, run_of if job in _OF_A_RUN else "", seed)

    @functools.cache  # noqa: B019 (as long as the world)
    def _undisturbed(self, job: str, run_of: str, seed: int) -> Undisturbed:
        words = self.words(job, seed)
        if run_of:
            self.undisturbed(run_of)
        with self._kept("-".join([*job.split(), str(seed), *run_of.split()])) as kept:
            self.begin(job, run_of)
            changes = Changes()
            command = Command(self.here, *words, before=changes.count)
            ended = command.end()
            assert ended.is_done, ended
            seconds = time.monotonic() - command.begun
            result = ended.out if job == "eval" else self.result(job)
            return Undisturbed(kept, result, seconds, changes.number)

    def start_ranks(self) -> list[Command]:
        """Starts, or resumes, a training on two ranks, which nobody watches over."""
        words = [*self.words(RANKS_TRAIN), "--sharding", "rows", "--timeout", str(TIMEOUT)]
        if (self.here / "run" / "config.json").exists():
            words.append("--resume")
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        return [
            Command(self.here, *words, environment={**meet, "RANK": rank, "LOCAL_RANK": rank})
            for rank in ("0", "1")
        ]

    @functools.cache  # noqa: B019
    def undisturbed_ranks(self) -> Undisturbed:
        assert self.data
        with self._kept("ranks") as kept:
            self.begin(RANKS_TRAIN)
            begun = time.monotonic()
            for ended in [command.end() for command in self.start_ranks()]:
                assert ended.is_done, ended
            return Undisturbed(kept, self.result(RANKS_TRAIN), time.monotonic() - begun, 0)

    def stopped(self, training: str, seed: int = 3, eighth: int = 5) -> Path:
        """The folder of a training that was killed after so many eighths of its changes of the disk."""
        return self._stopped(training, seed, eighth)

    @functools.cache  # noqa: B019
    def _stopped(self, training: str, seed: int, eighth: int) -> Path:
        middle = self.undisturbed(training).num_changes * eighth // 8
        pointer = self.here / "run" / "checkpoints.json"

        def strike(number: int) -> None:
            if number >= middle and pointer.exists():
                os.kill(os.getpid(), signal.SIGKILL)

        with self._kept("-".join(["stopped", *training.split(), f"{seed}-{eighth}"])) as kept:
            self.begin(training)
            words = self.words(training, seed)
            ended = Command(self.here, *words, before=lambda: Changes().count(strike)).end()
            assert ended.code == -signal.SIGKILL, ended
            return kept

    @functools.cached_property
    def other_data(self) -> Path:
        """Data of the same schema and other rows."""
        return self._prepared("other", self.raw, self.other_raw)

    @functools.cached_property
    def data_of_keys(self) -> Path:
        """Data of the same rows, with a dynamic feature."""
        keyed = self.schema.with_name("keyed.json")
        keyed.write_text(schema(dynamic=_KEYS).to_json())
        return self._prepared("keyed", self.schema, keyed)

    def _prepared(self, name: str, in_place_of: Path, file: Path) -> Path:
        """Prepares data with another file."""
        words = [str(file) if word == str(in_place_of) else word for word in self.words("prepare")]
        with self._kept(name) as kept:
            self.begin("prepare")
            assert run(self.here, *words).is_done
            return kept / "out"

    @functools.cached_property
    def described(self) -> str:
        """What `describe` says of the data."""
        shutil.copytree(self.data, self.folder / "described" / "data")
        return run(self.folder / "described", *DESCRIBE).out

    @functools.cached_property
    def predictions(self) -> set[str]:
        """What the checkpoints of all steps predict."""
        often = ("--checkpoint-every", "1", "--keep-last", "1000", "--epochs", "2")
        words = [*self.words("train in memory"), *often]
        with self._kept("predictions"):
            self.here.mkdir()
            assert run(self.here, *words).is_done
            return set(computed(_predictions, self.here, self.raw))

    def result(self, job: str) -> Any:
        """What a job that has ended left: names and checksums of bytes, and metrics."""
        if job in TRAININGS:
            scratch = self.folder / "scratch"
            shutil.rmtree(scratch, ignore_errors=True)
            return computed(_bits_of, self.here, scratch)
        sums = file_sums(self.here / "out")
        return {name: number for name, number in sums.items() if name not in _MAY_STAY}


class Changes:
    """Counts what a process does to files, and may kill it at one of them."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)

    @property
    def number(self) -> int:
        return struct.unpack("q", self._shared[:])[0]

    def count(self, strike: Callable[[int], None] = lambda number: None) -> None:
        """Calls `strike` with the number of every change of this process, before it is made."""

        def one_more() -> None:
            number = self.number + 1
            self._shared[:] = struct.pack("q", number)
            strike(number)

        def hook(event: str, arguments: tuple) -> None:
            if event in _CHANGES or (event == "open" and _writes(arguments)):
                one_more()

        def counted(call: Callable) -> Callable:
            def change(*arguments: Any) -> Any:
                one_more()
                return call(*arguments)

            return change

        os.fsync = counted(os.fsync)
        for name in ("pwrite", "sync"):
            setattr(Disk, name, staticmethod(counted(getattr(Disk, name))))
        sys.addaudithook(hook)


_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}


def _writes(arguments: tuple) -> bool:
    path, _, flags = arguments
    return isinstance(path, str) and bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))


def file_sums(path: Path) -> dict[str, int]:
    """The checksum of every file of a folder, or of a file."""
    if path.is_file():
        return {"": zlib.crc32(path.read_bytes())}
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".svg")
    return {str(file.relative_to(path)): zlib.crc32(file.read_bytes()) for file in files}


def _bits_of(folder: Path, scratch: Path) -> dict[str, Any]:
    """All that a finished run is: rows, optimizers' state, dense part, metrics."""
    scratch.mkdir()
    run = folder / "run"
    os.chdir(folder)
    for which in ("best", "last"):
        saved = checkpoint.folder_of(run, which)
        if checkpoint.read_manifest(saved).stores:
            if which == "best":  # the store has gone back to it
                export(run, scratch / which, which)
            for name in ("trainer", "keys"):
                if (saved / f"{name}.safetensors").exists():
                    shutil.copyfile(
                        saved / f"{name}.safetensors", scratch / f"{which}-{name}.safetensors"
                    )
        else:
            checkpoint.merge(saved, scratch / which)
    sums = {n: s for n, s in file_sums(scratch).items() if n.endswith((".safetensors", ".records"))}
    result = json.loads((run / "result.json").read_text())
    evaluations = [r for r in read_metrics(run) if r["kind"] == "evaluation"]
    return {"files": sums, "result": _compared(result), "log": [_compared(r) for r in evaluations]}


def _predictions(folder: Path, raw: Path) -> list[str]:
    os.chdir(folder)
    texts = []
    for saved in sorted(Path("run/checkpoints").iterdir()):
        write_json(Path("run/checkpoints.json"), {"last": saved.name, "best": saved.name, "kept": []})
        with contextlib.suppress(SystemExit):
            cli.main(["predict", "run", str(raw), "--out", f"of-{saved.name}"])
        texts.append(Path(f"of-{saved.name}").read_text())  # which `predict` overwrites for nobody
    return texts


def _compared(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _NOT_COMPARED}
