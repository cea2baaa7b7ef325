"""Jobs: ranks as processes that nobody watches over, each with a fault or none; and what is left.

Nothing but the closed connections tells a rank that another is gone: torchrun, which ends all of them
as soon as one has failed, would hide a rank that hangs. All are forked from one process that has
imported everything.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotrows.engine import checkpoint
from tests.faults.inject import Fault, arm, to_text

TIMEOUT = 20  # seconds that a collective may take, where a case does not say
SETTINGS = (
    "--model", "deepfm", "--option", "dim=4", "--option", "hidden=[16]", "--batch-size", "50",
    "--embedding-lr", "0.1", "--seed", "3", "--linear-paths", "plain", "--sharding", "rows",
    "--checkpoint-every", "3",
)  # fmt: skip

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        "tests.faults.inject",
        "tests.faults.jobs",
        "hotrows.train.telling.pictures",
        "torch.utils.tensorboard",
    ]
)


@dataclass(frozen=True)
class Ended:
    """How a job ended: of each rank its exit code (-9: killed; None: it hangs) and what it said on
    standard error; and seconds, from when the first rank died or fell silent."""

    codes: tuple[int | None, ...]
    said: tuple[str, ...]
    seconds: float

    @property
    def failed(self) -> bool:
        return any(self.codes)


def train(
    data: Path, run: Path, num_ranks: int, *more: str, faults: tuple[Fault, ...] = (),
    timeout: float = TIMEOUT, patience: float = 120, said: str = "said",
) -> Ended:  # fmt: skip
    """`hotrows train DATA --run-dir RUN` on ranks, with these settings and `more`.

    patience: seconds after which ranks that are still there are killed, and count as hanging.
    """
    begun = time.monotonic()
    ranks, outputs = start(data, run, num_ranks, *more, faults=faults, timeout=timeout, said=said)
    stopped = {fault.rank for fault in faults if fault.kind == "stop"}
    ended = begun
    while any(process.is_alive() for process in ranks):
        if time.monotonic() - begun > patience or all(
            rank in stopped for rank, process in enumerate(ranks) if process.is_alive()
        ):
            break
        if ended == begun and any(map(is_struck, ranks)):
            ended = time.monotonic()
        time.sleep(0.02)
    now = time.monotonic()
    codes = tuple(process.exitcode for process in ranks)
    for process in ranks:
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
    return Ended(codes, tuple(path.read_text() for path in outputs), now - ended)


def start(
    data: Path, run: Path, num_ranks: int, *more: str, faults: tuple[Fault, ...] = (),
    timeout: float = TIMEOUT, said: str = "said",
) -> tuple[list[Any], list[Path]]:  # fmt: skip
    """The processes of such a job, started, and the files of what they say on standard error."""
    run.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["train", str(data), *SETTINGS, "--timeout", str(timeout), "--run-dir", str(run)]
    if (run / "config.json").exists():
        arguments.append("--resume")
    port = free_port()
    outputs = [run.parent / f"{run.name}-{said}-{rank}" for rank in range(num_ranks)]
    ranks = [
        _forks.Process(
            target=_rank, args=(rank, num_ranks, port, faults, [*arguments, *more], outputs[rank])
        )
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    return ranks, outputs


def checksums(run: Path) -> dict[str, int]:
    """The checksums of all files of the last checkpoint, which are right: rows and their optimizer's
    state, dense part, its optimizer and random numbers."""
    summary = checkpoint.summary(checkpoint.folder_of(run, "last"), True)
    assert summary["verified"]
    folder = checkpoint.folder_of(run, "last")
    return {name: file.crc32 for name, file in checkpoint.read_manifest(folder).files.items()}


def step_of(run: Path) -> int:
    """The step of the last checkpoint, 0 where there is none."""
    if checkpoint.pointed(run) is None:
        return 0
    return checkpoint.read_state(checkpoint.folder_of(run, "last"))["step"]


def _rank(
    rank: int, num_ranks: int, port: int, faults: tuple[Fault, ...], arguments: list[str], said: Path
) -> None:
    """A rank, in a process of its own."""
    from hotrows import cli
    from hotrows.train.telling import pictures

    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(out, b"\n")  # takes room for what it says, before the disk is full
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )  # fmt: skip
    torch.set_num_threads(1)
    pictures.draw_run = lambda run: None
    arm(faults)
    cli.main(arguments)


def is_struck(process: multiprocessing.Process) -> bool:
    """Whether it has failed, or is stopped."""
    if process.exitcode is not None:
        return process.exitcode != 0
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it has ended just now
        return False
    return state == "T"


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


__all__ = ["SETTINGS", "TIMEOUT", "Ended", "Fault", "checksums", "start", "step_of", "to_text", "train"]
