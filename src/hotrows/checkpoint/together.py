"""Steps that all ranks take together: done on every one of them, or an error on all.

A step may take one rank much longer than another, and longer than a collective waits. So each takes it
on a thread, and meanwhile all ask one another, every few seconds, whether they are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from hotrows.ranks import Ranks

Found = TypeVar("Found")
_PATIENCE = 20.0  # seconds between two questions, well below what a collective waits
_KINDS = {kind.__name__: kind for kind in (OSError, ValueError)}


def together(ranks: Ranks, step: Callable[[], Found]) -> Found:
    """Collective: takes the step, and gives what it gave here.

    Where it failed on any rank, all raise: that rank its own error, the others one of its kind and
    words.
    """
    found, failed = _tried(ranks, step)
    _raise_any(failed, ranks.gather_objects(failed and _words(failed)))
    return found  # type: ignore[return-value]


def gathered(ranks: Ranks, step: Callable[[], Found]) -> list[Found]:
    """Collective: the same, but gives what the step gave on every rank: small things."""
    found, failed = _tried(ranks, step)
    told = ranks.gather_objects((found, failed and _words(failed)))
    _raise_any(failed, [failure for _, failure in told])
    return [value for value, _ in told]


def of_rank_0(ranks: Ranks, step: Callable[[], Found]) -> Found:
    """Collective: what a step gave that rank 0 alone takes."""
    return gathered(ranks, lambda: step() if ranks.rank == 0 else None)[0]  # type: ignore[return-value]


def _tried(ranks: Ranks, step: Callable[[], Found]) -> tuple[Found | None, Exception | None]:
    """What the step gave, or how it failed, once all ranks are done with it."""
    ended: list[tuple[Found | None, Exception | None]] = []

    def take() -> None:
        try:
            ended.append((step(), None))
        except Exception as error:
            ended.append((None, error))

    if ranks.num_ranks == 1:
        take()
        return ended[0]
    thread = threading.Thread(target=take, name="checkpoint step")
    thread.start()
    while not all(ranks.gather_objects(_is_done(thread))):
        pass
    return ended[0]


def _is_done(thread: threading.Thread) -> bool:
    thread.join(_PATIENCE)
    return not thread.is_alive()


def _raise_any(own: Exception | None, failures: Sequence[tuple[str, str] | None]) -> None:
    if own is not None:
        raise own
    for rank, failure in enumerate(failures):
        if failure is not None:
            kind, words = failure
            raise _KINDS.get(kind, RuntimeError)(f"rank {rank}: {words}")


def _words(error: Exception) -> tuple[str, str]:
    kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "")
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return kind, words or type(error).__name__
