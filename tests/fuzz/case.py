"""A case: files, one of them damaged, and the claim that is made of it."""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hotrows.data.raw import chunks, typed_files
from hotrows.engine.pipeline.prefetch import prefetch
from tests.reference.rows_of_data import use_plain_python

MESSAGE = 2_000  # letters of the longest message


class Broken(Exception):
    """The claim does not hold."""


class Hang(BaseException):
    """A case took longer than it may."""


@dataclass(frozen=True)
class Case:
    """files: by name, what stands in the folder; damaged: the one that is, and that messages name."""

    files: dict[str, bytes]
    damaged: str
    how: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """make: a case of random choices; run: raises Broken where the claim does not hold of it."""

    make: Callable[[random.Random], Case]
    run: Callable[[Case], None]


def write_files(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))  # a preparation that goes on knows files by their time


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def late(*_) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(action: Callable[[], Any], *names: str) -> tuple[str, Any]:
    """("worked", what came) or ("refused", the message), which must name one of the names."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "column .* has other values in files than in the names")
            return "worked", action()
    except Exception as error:
        message = str(error)
        if type(error) is not ValueError:
            raise Broken(f"{type(error).__name__}: {message[:300]}") from error
        reserves = names[0].endswith(".arrow")  # Arrow does, what a compressed buffer says that it holds
        if isinstance(error.__cause__, MemoryError) and not reserves:
            raise Broken(f"MemoryError: {message[:300]}") from error
        if not message.isprintable() or len(message) > MESSAGE:
            raise Broken(f"message is not one short line: {message[:3000]!r}") from error
        if not any(name in message for name in names):
            raise Broken(f"message names none of {names}: {message}") from error
        return "refused", message


@contextmanager
def reading_ahead(on_a_thread: bool) -> Iterator[None]:
    """With raw files read on a thread, or, several times faster for these few rows, by the caller's."""

    def ahead(items: Any, depth: int) -> Any:
        return prefetch(items, depth if on_a_thread else 0)

    with mock.patch.object(chunks, "prefetch", ahead), mock.patch.object(typed_files, "prefetch", ahead):
        yield


@contextmanager
def core(plain: bool) -> Iterator[None]:
    """With the native core, or with plain Python in its place."""
    with pytest.MonkeyPatch.context() as patch:
        if plain:
            use_plain_python(patch)
        yield
