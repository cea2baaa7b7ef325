"""Steps that all ranks run together: done on every one of them, or an error on all.

A step may take one rank much longer than another, and longer than a collective's timeout. So each rank
runs it on a thread, and meanwhile all gather, every few seconds, whether they are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hotrows.engine.distributed.comm import Ranks
from hotrows.runtime.background import Worker

Result = TypeVar("Result")
_POLL = 2.0  # seconds between two collectives, well below the timeout of one
_KINDS = {kind.__name__: kind for kind in (OSError, ValueError, ImportError)}


def together(ranks: Ranks, step: Callable[[], Result]) -> Result:
    """Collective: runs the step, and returns this rank's result.

    Where it failed on any rank, all raise: that rank its own error, all others one of its kind and
    words.
    """
    result, errors = _try(ranks, step)
    _raise_any(errors, ranks.gather_objects(_words(errors)))
    return result  # type: ignore[return-value]


def gathered(ranks: Ranks, step: Callable[[], Result]) -> list[Result]:
    """Collective: runs the step, and returns the results of all ranks, which are small; errors as
    `together` raises them."""
    result, errors = _try(ranks, step)
    results = ranks.gather_objects((result, _words(errors)))
    _raise_any(errors, [failure for _, failure in results])
    return [value for value, _ in results]


def of_rank_0(ranks: Ranks, step: Callable[[], Result]) -> Result:
    """Collective: the result of a step that rank 0 alone runs."""
    return gathered(ranks, lambda: step() if ranks.rank == 0 else None)[0]  # type: ignore[return-value]


def _try(ranks: Ranks, step: Callable[[], Result]) -> tuple[Result | None, list[Exception]]:
    """This rank's result, or its error, once all ranks are done with the step."""
    if ranks.num_ranks > 1:
        worker = Worker("checkpoint step", step, patience=None)
        while not all(ranks.gather_objects(worker.wait(_POLL))):
            pass
        step = worker.result
    try:
        return step(), []
    except Exception as error:
        return None, [error]


def _raise_any(errors: list[Exception], failures: Sequence[tuple[str, str] | None]) -> None:
    if errors:
        raise errors.pop()  # it refers to frames, and none of them to it: what they have is freed with it
    for rank, failure in enumerate(failures):
        if failure is not None:
            kind, words = failure
            raise _KINDS.get(kind, RuntimeError)(f"rank {rank}: {words}")


def _words(errors: Sequence[Exception]) -> tuple[str, str] | None:
    if not errors:
        return None
    (error,) = errors
    kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "")
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return kind, words or type(error).__name__
