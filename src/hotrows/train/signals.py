"""SIGINT and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Catches the first Ctrl-C or SIGTERM; yields a function that says whether there was one.

    The second one acts as it did before. A step interrupted in its middle would leave rows of one pack
    updated and those of another not. In threads other than the main one nothing is caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    requested = threading.Event()
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def remember(number: int, frame: Any) -> None:
        requested.set()
        restore()

    for number in before:
        signal.signal(number, remember)
    try:
        yield requested.is_set
    finally:
        restore()
