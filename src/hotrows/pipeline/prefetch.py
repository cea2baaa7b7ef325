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
from threading import Condition, Thread, current_thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def prefetch(items: Iterable[T], depth: int) -> Prefetched[T] | Generator[T]:
    """Iterates over `items` in their order, on a thread of its own; up to `depth` of them wait.

    depth 0 takes each item from the caller's thread when it is needed: equal results, serially.
    Leave the iterator early through `contextlib.closing`, so that the thread ends at once.
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
        self._queue: _Queue[T] = _Queue(depth)
        thread = Thread(target=_fill, args=(self._queue, items), daemon=True, name="hotrows-ahead")
        self._end = weakref.finalize(self, _stop, self._queue, thread)
        thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._queue.take()

    def close(self) -> None:
        """Stops the thread and drops the items that wait."""
        self._end()


class _Queue(Generic[T]):
    """Items that wait between the two threads: at most `depth`."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False  # no item will be added
        self._changed = Condition()

    def wait_for_room(self) -> bool:
        """Waits until an item may be made; False: none is needed any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._items) < self._depth)
            return not self._ended

    def add(self, item: T) -> None:
        with self._changed:
            if not self._ended:
                self._items.append(item)
                self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the queue from the side that adds; `error` is raised behind the last item."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def drop(self) -> None:
        """Ends the queue from the side that takes."""
        with self._changed:
            self.end()
            self._items.clear()
            self._error = None

    def take(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._items)
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
            error, self._error = self._error, None
        raise error or StopIteration


def _fill(queue: _Queue[T], items: Iterator[T]) -> None:
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


def _stop(queue: _Queue[Any], thread: Thread) -> None:
    queue.drop()
    if thread is not current_thread():  # a garbage collection may run on any thread
        thread.join()
