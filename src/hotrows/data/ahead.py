"""Ahead: the items of an iterator, made on a thread of their own before they are asked for."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from threading import Condition, Thread, current_thread
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Iterates over `items` in their order; up to `depth` of them wait, made.

    An error of the thread is raised where its item would have come. The thread ends with the items,
    with `close`, or when nothing refers to this any more; an item that is begun is made.
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._made: _Made[T] = _Made(depth)
        thread = Thread(target=_make, args=(items, self._made), daemon=True, name="hotrows-ahead")
        self._end = weakref.finalize(self, _stop, self._made, thread)
        thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._made.take()

    def close(self) -> None:
        """Stops the thread; what it made is dropped."""
        self._end()


class _Made(Generic[T]):
    """What stands between the two threads."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False  # no item will be added
        self._changed = Condition()

    def room(self) -> bool:
        """Waits until an item may be made; False: none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._items) < self._depth)
            return not self._ended

    def add(self, item: T) -> None:
        with self._changed:
            if not self._ended:
                self._items.append(item)
                self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def drop(self) -> None:
        """Ends from the side that takes."""
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


def _make(items: Iterator[T], made: _Made[T]) -> None:
    """The thread: holds nothing of `Ahead` itself, so that dropping that one ends it."""
    try:
        while made.room():
            try:
                item = next(items)
            except StopIteration:
                break
            made.add(item)
            del item
        made.end()
    except BaseException as error:
        made.end(error)
    finally:
        if hasattr(items, "close"):
            items.close()


def _stop(made: _Made, thread: Thread) -> None:
    made.drop()
    if thread is not current_thread():  # a garbage collection may run on any thread
        thread.join()
