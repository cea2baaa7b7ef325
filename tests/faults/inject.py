"""Faults: what happens to one rank, where and when; `python -m tests.faults.inject FAULT train ...` is
the command line with one of them.

    Fault("kill", "forward", rank=1, call=6)     rank 1 kills itself in its 6th forward pass
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hotrows import cli
from hotrows.engine.checkpoint import files, write, writer
from hotrows.engine.distributed import dense_gradients, row_exchange
from hotrows.engine.embedding import Embedding
from hotrows.engine.planning import routing
from hotrows.models.deepfm import DeepFM
from hotrows.train.loop import recommender, step, step_trainer

# Where a fault strikes: the function, and whether as it begins or as it ends.
STAGES: dict[str, tuple[Any, str, str]] = {
    "start": (step_trainer.StepTrainer, "choose_linear_paths", "begins"),
    "planning": (Embedding, "plan", "begins"),
    "planned": (routing, "serve_plan", "ends"),
    "rows": (row_exchange.RowExchange, "rows", "begins"),
    "rows on their way": (row_exchange.RowExchange, "_receive", "begins"),
    "forward": (DeepFM, "forward", "begins"),
    "backward": (dense_gradients._Bucket, "send", "begins"),
    "gradients": (row_exchange.RowExchange, "gradients", "begins"),
    "update": (Embedding, "update", "ends"),
    "dense step": (step.Step, "_dense_step", "begins"),
    "evaluation": (recommender.Recommender, "targets", "begins"),
    "snapshot": (writer, "take", "begins"),
    "writing": (write, "_write_records", "begins"),
    "half written": (files, "write_file", "ends"),
    "written": (write, "_write_records", "ends"),
    "publishing": (write, "_publish", "begins"),
    "published": (write, "_publish", "ends"),
    "pointing": (writer, "point", "begins"),
    "pointed": (writer, "point", "ends"),
}
OF_RANK_0 = ("publishing", "published", "pointing", "pointed")
_LAG = 0.1  # seconds, more than ten times what a step of these tests takes
_FULL = 1000  # bytes: room for messages, but not for the records of a rank
_MOST = 32 << 20  # bytes


@dataclass(frozen=True)
class Fault:
    """kind: kill, stop (it hangs for good), raise, lag (in every call from this one on), full (its
    files may not grow any more), fill (the disk of `path` is full). rank: whom it strikes; call: of the
    stage's function, from 1; attempt: of torchrun."""

    kind: str
    stage: str
    rank: int = 1
    call: int = 1
    attempt: int = 0
    path: str = ""

    def __str__(self) -> str:
        return f"{self.kind} rank {self.rank} in {self.stage} {self.call}"


def to_text(faults: tuple[Fault, ...]) -> str:
    return json.dumps([asdict(fault) for fault in faults])


def from_text(text: str) -> tuple[Fault, ...]:
    return tuple(Fault(**fields) for fields in json.loads(text))


def arm(faults: tuple[Fault, ...]) -> None:
    """Makes those faults happen that are this rank's, in this attempt."""
    for fault in faults:
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if (fault.rank, fault.attempt) == (int(os.environ["RANK"]), attempt):
            _arm(fault)


def _arm(fault: Fault) -> None:
    owner, name, moment = STAGES[fault.stage]
    function = getattr(owner, name)
    calls = 0

    @functools.wraps(function)
    def struck(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        due = calls >= fault.call if fault.kind == "lag" else calls == fault.call
        if due and moment == "begins":
            _KINDS[fault.kind](fault)
        result = function(*arguments, **options)
        if due and moment == "ends":
            _KINDS[fault.kind](fault)
        return result

    setattr(owner, name, struck)


def _kill(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(fault: Fault) -> None:
    raise RuntimeError(f"this {fault.stage} failed")


def _lag(fault: Fault) -> None:
    time.sleep(_LAG)


def _full(fault: Fault) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, most))


def _fill(fault: Fault) -> None:
    block = bytes(1 << 12)
    with open(fault.path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.tell() < _MOST:
            file.write(block)
    assert os.path.getsize(fault.path) < _MOST, "the disk of this fault is a small one"


_KINDS: dict[str, Callable[[Fault], None]] = {
    "kill": _kill, "stop": _stop, "raise": _raise, "lag": _lag, "full": _full, "fill": _fill,
}  # fmt: skip

if __name__ == "__main__":
    arm(from_text(sys.argv[1]))
    cli.main(sys.argv[2:])
