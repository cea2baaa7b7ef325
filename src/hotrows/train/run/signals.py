"""Ctrl-C, SIGTERM, a closed terminal: the first stops a run after the step, the third ends it at once.

A handler in Python runs when the main thread is back in Python, which may be minutes later while it waits
for other ranks. So the system also writes each signal to a socket, which a thread listens to and answers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from hotrows.engine.distributed import job
from hotrows.runtime.background import Worker

log = logging.getLogger("hotrows")

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 130  # the exit code


class Interrupted(KeyboardInterrupt):
    """A run has stopped on request and saved itself; resume it to go on.

    exit_code: of the command: 130, or 75 (try again) where the machine is to be taken away, `notice`.

    >>> try:
    ...     raise Interrupted("stopped after step 7 of 10")
    ... except KeyboardInterrupt as stop:  # as Ctrl-C in a loop of your own
    ...     print(stop)
    stopped after step 7 of 10
    """

    exit_code = 130


class StopRequest:
    """Whether a stop was requested, by Ctrl-C, SIGTERM or SIGHUP.

    noticed_at: when the first SIGTERM came, by `time.monotonic`; None: none has.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.noticed_at: float | None = None

    def __call__(self) -> bool:
        return self.requested.is_set()


@contextmanager
def stop_signals(doing: Callable[[], str] = lambda: "at work") -> Iterator[StopRequest]:
    """Yields an object that says whether a stop was requested.

    The second signal says what is under way, `doing()`. The third raises KeyboardInterrupt; a rank of
    several, which may wait for the others in code that nothing interrupts, ends its process. A step
    interrupted in its middle would leave rows of one pack updated and those of another not. In threads
    other than the main one nothing is caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield StopRequest()
        return
    request, ended = StopRequest(), threading.Event()
    receiving, sending = socket.socketpair()

    def handle(number: int, frame: Any) -> None:
        request.requested.set()
        if ended.is_set():
            ended.clear()  # once: the stack is unwound in peace
            raise KeyboardInterrupt

    def listen() -> None:
        count = 0
        while number := receiving.recv(1)[0]:
            if number in _NUMBERS:
                count += 1
                if number == signal.SIGTERM and request.noticed_at is None:
                    request.noticed_at = time.monotonic()
                request.requested.set()
                _answer(count, doing, ended)

    with closing(receiving), closing(sending), _handled(handle, sending):
        # Ended by what is no signal's number; the socket stays, as one may still come.
        listener = Worker("hotrows-signals", listen, lambda: sending.send(bytes(1)))
        try:
            yield request
        finally:
            listener.close()


def _answer(count: int, doing: Callable[[], str], ended: threading.Event) -> None:
    """Says what happens after this many signals, and ends the process after the third."""
    rank = job.name()
    if count == 1 and rank in ("", "rank 0: "):
        log.warning("stopping: the step is finished and the run saved first")
    elif count == 2:
        log.warning(
            f"{rank}still {doing()}; another Ctrl-C ends it at once and loses what was trained since the "
            f"last checkpoint"
        )
    elif count == 3:
        ended.set()
        if rank:
            log.warning(f"{rank}ended at once; go on from the last checkpoint with --resume")
            os._exit(_INTERRUPTED)
        while ended.is_set():  # until it is handled: one that comes just before a wait does not end that
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)


_undo: Callable[[], None] | None = None  # for children made by fork


@contextmanager
def _handled(handle: Callable[[int, Any], None], socket_: socket.socket) -> Iterator[None]:
    """Signals are handled, and written to the socket too; in this process alone."""
    global _undo
    socket_.setblocking(False)
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # nohup: the run outlives its terminal
        del before[signal.SIGHUP]
    wakeup = signal.set_wakeup_fd(socket_.fileno(), warn_on_full_buffer=False)

    def undo() -> None:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    _undo = undo
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        _undo = None
        undo()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _undo and _undo())
