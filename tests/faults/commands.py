"""Commands of the command line, each in a process forked from this one: a start takes 20 ms.

This process has imported everything and never runs a native thread, which a fork would lose: what
computes runs in a forked process, too (`computed`).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

import hotrows
from hotrows import cli
from hotrows.runtime import native
from hotrows.train.telling import pictures

_LIBC = "cannot allocate memory for thread-local data: ABORT"
_SOURCE = Path(hotrows.__file__).parents[1]
LIMIT = 120.0  # seconds after which a command counts as hanging
_PRELOADED = (
    "torch.utils.tensorboard",
    "torch._dynamo",
    "torch.distributed",
    "pyarrow.parquet",
    "fsspec",
    "rich.progress",
    "rich.table",
    "numpy.ctypeslib",
    "numpy.ma",
)
_OF_THE_COMPILER = ("torch._dynamo", "hotrows.acceleration")
_Before = Callable[[], object]


class Failed(Exception):
    """A trial in which the promise was broken; outcome: lost, different, hung or traceback."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


class Patience:
    """A limit of seconds in which the campaign runs: it may be stopped with all that it has started, and
    nothing that could be waited for happens meanwhile."""

    _LONGEST_STEP = 1.0  # that a caller lets pass between two looks

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit, self._seen = limit, time.monotonic()
        self._waited = 0.0

    @property
    def is_over(self) -> bool:
        now = time.monotonic()
        self._waited += min(now - self._seen, self._LONGEST_STEP)
        self._seen = now
        return self._waited > self._limit

    def renew(self) -> None:
        """Begins the limit anew: something has moved."""
        self._waited, self._seen = 0.0, time.monotonic()


class Unreadable(Failed):
    """What a command has left is refused in one line when it is read; lost, where nothing damaged it."""


def preload(publishes: bool) -> None:
    """Imports all that commands import when they first need it, and makes forks cheap.

    publishes: whether commands export programs, which takes PyTorch's compiler, seconds of imports.
    """
    files = Path(hotrows.__file__).parent.rglob("*.py")
    modules = (".".join(file.relative_to(_SOURCE).with_suffix("").parts) for file in sorted(files))
    left_out = () if publishes else _OF_THE_COMPILER
    for name in (*_PRELOADED, *(module.removesuffix(".__init__") for module in modules)):
        if not name.endswith("__main__") and not name.startswith(left_out):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    native.load()
    for finalizer in weakref.finalize._registry:  # of PyTorch's operators: half the time of a command
        finalizer.atexit = False
    gc.collect()
    gc.freeze()  # else the collector of every process writes to, and so copies, all pages
    _threads.extend(_native_threads())


_threads: list[str] = []  # of libraries that stop them when the process forks


def _native_threads() -> list[str]:
    tasks = Path("/proc/self/task")
    return [(task / "comm").read_text() for task in tasks.iterdir()]


def _fork() -> int:
    assert len(_native_threads()) <= len(_threads), f"a fork would lose one of {_native_threads()}"
    return os.fork()


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (-9: killed), standard output, standard error."""

    words: tuple[str, ...]
    code: int
    out: str
    said: str

    @property
    def is_killed(self) -> bool:
        """Whether the system ended it: by SIGKILL, or where libc finds no memory for a thread."""
        return self.code == -signal.SIGKILL or (self.code == 127 and _LIBC in self.said)

    @property
    def is_done(self) -> bool:
        """Whether it did its work; False: refused, in one line that says why. All else is a failure."""
        if "Traceback (most recent call last)" in self.said or self.code < 0:
            raise Failed("traceback", str(self))
        if self.code == 0:
            return True
        lines = self.said.strip().splitlines() or [""]
        if self.code == 1 and "--verify" in self.words:
            return False  # a line for each damaged file
        is_usage = self.code == 2 and lines[-1].startswith("Error: ")
        if not is_usage and (self.code not in (1, 130) or not lines[-1].startswith("hotrows: ")):
            raise Failed("traceback", f"no refusal in one line: {self}")
        return False

    def __str__(self) -> str:
        return f"hotrows {' '.join(self.words)}\n-> exit code {self.code}\n{self.said[-3000:]}"


class Command:
    """A command that runs: `hotrows WORDS` in a folder.

    before: called in its process before the command begins. is_real: `python -m hotrows`, and nothing
    imported before.
    """

    def __init__(
        self, folder: Path, *words: str, before: _Before = lambda: None,
        environment: Mapping[str, str] | None = None, is_real: bool = False,
    ) -> None:  # fmt: skip
        self.words, self.begun = words, time.monotonic()
        outputs = [_pipe() for _ in ("out", "said")]  # files would share the fate of the command's
        self._ended: Ended | None = None
        reading, writing = os.pipe()
        self.pid = _fork()
        if not self.pid:
            try:
                for stream, (_, end) in zip((1, 2), outputs, strict=True):
                    os.dup2(end, stream)
                self._become(folder, before, environment or {}, is_real, writing)
            finally:
                os._exit(99)
        for end in (writing, *(end for _, end in outputs)):
            os.close(end)
        self._outputs = [reading for reading, _ in outputs]
        self._process = os.pidfd_open(self.pid)
        with os.fdopen(reading, "rb") as pipe:
            pipe.read(1)  # it has begun

    def _become(
        self, folder: Path, before: _Before, environment: Mapping[str, str], is_real: bool, ready: int
    ) -> NoReturn:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setpgid(0, 0)
        os.chdir(folder)
        os.environ.update(environment, OMP_WAIT_POLICY="passive")
        if is_real:
            before()
            os.environ["PYTHONPATH"] = str(_SOURCE)  # not what else is installed
            os.set_inheritable(ready, False)
            os.execv(sys.executable, [sys.executable, "-m", "hotrows", *self.words])
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        torch.set_num_threads(1)
        pictures.draw_run = pictures.draw_skew = lambda *_: None
        before()
        os.write(ready, b".")
        os.close(ready)
        os._exit(_run(self.words))

    @property
    def is_running(self) -> bool:
        return self._ended is None and not select.select([self._process], [], [], 0)[0]

    def send(self, number: int) -> bool:
        """Sends a signal to all of its processes; False where it has ended before."""
        if not self.is_running:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        return True

    def lives_for(self, seconds: float) -> bool:
        """Whether it still runs after these seconds."""
        return self._ended is None and not select.select([self._process], [], [], max(0.0, seconds))[0]

    def end(self, limit: float = LIMIT) -> Ended:
        """Waits for its end; Failed where it does not come."""
        patience = Patience(limit)
        while self.lives_for(0.5) and not patience.is_over:
            pass
        if self.is_running:
            self.send(signal.SIGUSR1)  # says where every thread is
            self.lives_for(3)
            self.send(signal.SIGKILL)
            raise Failed("hung", f"after {limit:.0f} s: {self._reaped()}")
        return self._reaped()

    def _reaped(self) -> Ended:
        if self._ended is None:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # what it may have left holds the pipes
            out, said = (_read(pipe) for pipe in self._outputs)
            for end in (self._process, *self._outputs):
                os.close(end)
            self._ended = Ended(self.words, code, out, said)
        return self._ended


def _pipe() -> tuple[int, int]:
    """A pipe that takes all that a command says, before it is read."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(reading, False)
    return reading, writing


def _read(pipe: int) -> str:
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe, 1 << 20):
            parts.append(part)
    return b"".join(parts).decode(errors="replace")


def run(folder: Path, *words: str, **how: Any) -> Ended:
    """Runs a command to its end; how: see `Command`."""
    return Command(folder, *words, **how).end()


def computed(function: Callable[..., Any], *arguments: Any, limit: float = LIMIT) -> Any:
    """What a function gives, as JSON, in a process of its own; Unreadable where it raises ValueError."""
    reading, writing = os.pipe()
    pid = _fork()
    if not pid:
        try:
            torch.set_num_threads(1)
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
                result = {"value": function(*arguments)}
        except ValueError as error:
            result = {"refused": str(error)}
        except BaseException:
            result = {"error": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            patience = Patience(limit)
            while not select.select([pipe], [], [], 0.5)[0]:
                if patience.is_over:
                    raise Failed("hung", f"{function.__name__} after {limit:.0f} s")
            text = pipe.read()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    result = json.loads(text or b'{"error": "the process died"}')
    if "refused" in result:
        raise Unreadable("lost", f"{function.__name__}: {result['refused']}")
    if "error" in result:
        raise Failed("lost", f"{function.__name__}: {result['error']}")
    return result["value"]


def _run(words: Sequence[str]) -> int:
    """The command, and what an interpreter does at its end."""
    code: Any = 0
    try:
        cli.main(list(words))
    except SystemExit as left:
        code = left.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code
