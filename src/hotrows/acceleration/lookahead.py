"""Look-ahead: the rows of batches to come are moved into fast memory while earlier ones are trained.

    for batch in lookahead(loader, model):      yields the loader's own batches, in order

The loader is read a few batches ahead, on the caller's thread, so that it and the model draw random
numbers in a fixed order. For each batch the model's forward is run up to its first lookup, which gives
the ids; nothing is computed. Threads do what follows (`lookahead_runner`).

When the loop looks up the ids that were planned, their rows are in slots, and stay there until it
takes the next batch. Any other lookup is read through the cache while nothing moves: right, and slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from hotrows.acceleration.accelerate import Acceleration, acceleration_of
from hotrows.acceleration.batch_arguments import CallRecorder, Inputs
from hotrows.acceleration.lookahead_runner import IdProbe, LookaheadRunner
from hotrows.runtime.user_warnings import warn

_MAX_FAILURES = 3  # batches from which the arguments could not be learned, before it gives up


def lookahead(
    loader: Iterable, model: nn.Module, inputs: Inputs | None = None, in_flight: int = 4
) -> LookaheadLoader:
    """Iterates over a loader, while rows of the batches to come are moved into fast memory.

    model: accelerated with fast_memory, or a module that contains such a model; for any other model,
    the result iterates over the loader alone. inputs: a function from a batch to the arguments of the
    model: a tensor, a tuple, or a dictionary of arguments by name; None: learned from the first batch.
    in_flight: number of batches whose rows are in slots or move at once.
    """
    if in_flight < 1:
        raise ValueError(f"in_flight must be at least 1, not {in_flight}")
    states = [state for x in model.modules() if (state := acceleration_of(x)) is not None]
    if not states:
        raise ValueError(
            "lookahead takes a model that hotrows.accelerate(model, optimizer, fast_memory=...) has "
            "accelerated; this one is not"
        )
    state = next((state for state in states if state.groups), states[0])
    return LookaheadLoader(loader, model, state, inputs, in_flight)


class LookaheadLoader:
    """The result of `lookahead`; may be iterated over as often as the loader."""

    def __init__(
        self, loader: Iterable, model: nn.Module, state: Acceleration, inputs: Inputs | None,
        in_flight: int,
    ) -> None:  # fmt: skip
        self._loader, self._model, self._state = loader, model, state
        self._inputs, self._in_flight = inputs, in_flight

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        groups = self._state.groups
        if not groups or self._is_running():
            yield from batches
            return
        if self._inputs is None:
            yield from self._learn(batches)
            if self._inputs is None or self._is_running():
                yield from batches
                return
        probe = IdProbe(self._model, self._state, self._inputs)
        runner = LookaheadRunner(batches, probe, groups, self._in_flight)
        try:
            yield from runner
        finally:
            runner.close()

    def _is_running(self) -> bool:
        """Whether some look-ahead moves rows of this model."""
        return any(group.runner is not None for group in self._state.groups)

    def _learn(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields one batch or a few, and learns where the model's arguments are in them."""
        num_failures = 0
        for batch in batches:
            recorder = CallRecorder()
            self._state.recorders.append(recorder)
            try:
                yield batch
            finally:
                self._state.recorders.remove(recorder)
            try:
                self._inputs = recorder.inputs_from(batch)
            except LookupError as error:
                num_failures += 1
                if num_failures == _MAX_FAILURES:
                    self._warn_unknown(error)
                    return
            if self._inputs is not None:
                return

    def _warn_unknown(self, error: LookupError) -> None:
        warn(
            f"lookahead cannot tell how a batch becomes the arguments of "
            f"{type(self._model).__name__}: {error}. Rows are not moved ahead; pass inputs=, a "
            f"function from a batch to the arguments of model(...)"
        )
