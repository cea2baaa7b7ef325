"""Background threads: each ends before the process does.

    worker = Worker("hotrows-events", read_events, stop=events.stop)   # a thread that runs read_events()
    worker.close()                                                     # stops it, and waits for it

Before 3.14, CPython unwinds a daemon thread that comes back from PyTorch while the process ends, and C++
answers by abort. So `end` stops all workers first, and waits for them.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
PATIENCE = 30.0  # seconds


class Worker(threading.Thread, Generic[Result]):
    """A thread that runs `work()` from now on.

    stop: makes `work` return soon; called by `close`, and at the end of the process, which waits
    `patience` seconds at most (default 30; None: until the thread ends). error: what `work` has raised.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], Result],
        stop: Callable[[], object] = lambda: None,
        patience: float | None = PATIENCE,
    ) -> None:
        super().__init__(target=self._keep, args=(work,), name=name, daemon=True)
        self.stop, self.patience = stop, patience
        self.error: BaseException | None = None
        self.start()

    def _keep(self, work: Callable[[], Result]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self.error = error

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the thread has ended, so long at most (default: no limit); returns whether it has.
        At once on the thread itself, where a garbage collection may close it."""
        if self is not threading.current_thread():
            self.join(seconds)
        return not self.is_alive()

    def result(self) -> Result:
        """Waits for what `work` returns; raises its error."""
        self.wait()
        if self.error is not None:
            raise self.error
        return self._result

    def close(self) -> None:
        """Stops the thread and waits until it has ended."""
        self.stop()
        self.wait()


def end() -> None:
    """Stops the workers of this process, and those that they start meanwhile, and waits for them."""
    ended: set[Worker[Any]] = set()
    while workers := _started() - ended:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.wait(worker.patience)
        ended |= workers


def _started() -> set[Worker[Any]]:
    return {thread for thread in threading.enumerate() if isinstance(thread, Worker) and thread.ident}


weakref.finalize(Worker, bool)  # finalizers free what workers use, so all of them are to run after `end`
atexit.register(end)
