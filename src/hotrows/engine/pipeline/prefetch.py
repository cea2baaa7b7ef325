"""prefetch: makes the next items on a background thread while the present one is used.

    thread   item 0 | item 1 | item 2 |  ..  | item 3
    caller            use 0  |  use 1          | use 2       depth 2: at most two wait

    planned = ((batch, embedding.plan(batch, step)) for step, batch in enumerate(batches))
    for batch, plan in prefetch(planned, depth=2): ...

Order is kept, and an error is raised where its item would have come.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from threading import Condition
from typing import Generic, TypeVar

from hotrows.runtime.background import Worker

T = TypeVar("T")


def prefetch(items: Iterable[T], depth: int) -> Prefetched[T] | Generator[T]:
    """Iterates over `items` in their order, on a thread of its own; up to `depth` of them wait.

    depth 0 takes each item from the caller's thread when it is needed: equal results, serially.
    Leave the iterator early through `contextlib.closing`, so that the thread ends at once.

    >>> list(prefetch(range(4), depth=2))
    [0, 1, 2, 3]
    """
    if depth < 0:
        raise ValueError(f"depth must be 0 (no thread) or more, not {depth}")
    return Prefetched(iter(items), depth) if depth else (item for item in items)


class Prefetched(Generic[T]):
    """An iterator whose items a thread makes.

    The thread ends with the items, with `close`, or when nothing refers to this iterator any more;
    an item that is begun is made.
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._queue: Queue[T] = Queue(depth)
        worker = Worker("hotrows-ahead", partial(_fill, self._queue, items), self._queue.drop)
        self._end = weakref.finalize(self, worker.close)
        self._end.atexit = False  # all workers are ended then

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._queue.take()

    def close(self) -> None:
        """Stops the thread and drops the items that wait."""
        self._end()


class Queue(Generic[T]):
    """Items that wait between two threads: at most `depth`.

    has_ended: no item will be added; has_failed: it ended with an error; num_added, num_taken: items.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self.has_ended, self.has_failed, self.num_added, self.num_taken = False, False, 0, 0
        self._changed = Condition()

    def wait_for_room(self) -> bool:
        """Waits until an item may be made; False: none is needed any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended or len(self._items) < self._depth)
            return not self.has_ended

    def add(self, item: T) -> None:
        with self._changed:
            if not self.has_ended:
                self.num_added += 1  # before `may_take` is true of it
                self._items.append(item)
                self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the queue from the side that adds; `error` is raised behind the last item."""
        with self._changed:
            if not self.has_ended:
                self.has_ended, self.has_failed, self._error = True, error is not None, error
            self._changed.notify_all()

    def drop(self) -> None:
        """Ends the queue from the side that takes."""
        with self._changed:
            self.end()
            self._items.clear()
            self._error = None

    @property
    def may_take(self) -> bool:
        """True if `take` returns, or raises, at once."""
        return bool(self._items) or self.has_ended

    @property
    def is_over(self) -> bool:
        """True if all items were taken, and none is missing for an error, which one thread has taken."""
        return self.has_ended and not self._items and not self.has_failed

    def wait(self, seconds: float) -> bool:
        """Waits until `may_take`, so long at most; returns whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self.may_take, seconds)

    def take(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self.may_take)
            if self._items:
                self._changed.notify_all()
                self.num_taken += 1
                return self._items.popleft()
            error, self._error = self._error, None
        raise error or StopIteration


def _fill(queue: Queue[T], items: Iterator[T]) -> None:
    """Runs on the thread; refers to no `Prefetched`, so that dropping that one ends it."""
    try:
        while queue.wait_for_room():
            try:
                item = next(items)
            except StopIteration:
                break
            queue.add(item)
            del item
        queue.end()
    except BaseException as error:
        queue.end(error)
    finally:
        if hasattr(items, "close"):
            items.close()
