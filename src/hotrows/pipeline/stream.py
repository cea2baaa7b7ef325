"""ahead: makes the next things on one background thread while the present one is used.

    thread   make 0 | make 1 | make 2 |  ..  | make 3
    caller            use 0  |  use 1          | use 2       depth 2: at most two wait

Order is kept, errors arrive in their place, and closing the iterator ends the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(items: Iterable[Item], make: Callable[[Item], Made], depth: int) -> Iterator[Made]:
    """Yields make(item) for each item in order, made up to `depth` ahead on one thread.

    depth 0 makes each one when it is asked for, without a thread: the same results, serially.
    Leave it early through `contextlib.closing`, so that the thread ends at once.
    """
    if depth < 0:
        raise ValueError(f"depth must be 0 (no thread) or more, not {depth}")
    return _threaded(items, make, depth) if depth else (make(item) for item in items)


def _threaded(items: Iterable[Item], make: Callable[[Item], Made], depth: int) -> Iterator[Made]:
    outcomes: SimpleQueue = SimpleQueue()
    room = threading.Semaphore(depth)
    closed = threading.Event()

    def produce() -> None:
        try:
            for item in items:
                room.acquire()
                if closed.is_set():
                    return
                outcomes.put((make(item), None))
            outcomes.put((None, _End()))
        except BaseException as error:
            outcomes.put((None, error))

    thread = threading.Thread(target=produce, name="hotrows-ahead", daemon=True)
    thread.start()
    try:
        while True:
            made, error = outcomes.get()
            room.release()
            if isinstance(error, _End):
                return
            if error is not None:
                raise error
            yield made
    finally:
        closed.set()
        room.release()
        thread.join()


class _End(Exception):
    """Says that the items are used up."""
