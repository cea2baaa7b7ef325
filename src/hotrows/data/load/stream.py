"""Stream: the batches of a source, epoch after epoch, loaded ahead on a background thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Protocol

from hotrows.batch import Batch
from hotrows.pipeline.prefetch import Prefetched, prefetch


class BatchSource(Protocol):
    """Batches by epoch and position, as `Loader` has them."""

    batch_size: int

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `first_batch` on."""
        ...


class Stream:
    """An iterator over batches with a position that can be saved; made by `Loader.stream`.

    Its state is the position behind the batches it has returned, whatever was loaded ahead; a stream
    that loads the state resumes with the next batch. The state does not depend on the number of ranks.

    identity: part, rows and settings that a position belongs to, JSON-able; see `Loader.identity`.
    """

    def __init__(
        self,
        source: BatchSource,
        identity: dict[str, Any],
        epochs: int | None,
        position: dict[str, Any] | None,
        prefetch: int,
        pin_memory: bool,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 (no thread) or more, not {prefetch}")
        self._source = source
        self._identity = identity
        self._epochs = epochs
        self._prefetch = prefetch
        self._pin_memory = pin_memory
        self._epoch = self._batch = 0
        self._batches: Prefetched[Batch] | Generator[Batch] | None = None
        if position is not None:
            self.load_state_dict(position)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        if self._batches is None:
            batches = _batches(self._source, self._epoch, self._batch, self._epochs, self._pin_memory)
            self._batches = prefetch(batches, self._prefetch)
        batch = next(self._batches)
        self._batch += 1
        if self._batch == len(self._source):
            self._epoch, self._batch = self._epoch + 1, 0
        return batch

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """The identity of the data, and epoch and number of the next batch; JSON-able."""
        return {**self._identity, "epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a state; an error if it is of other data or another order."""
        expected = self._identity
        missing = sorted({*expected, "epoch", "batch"} - set(state))
        if missing:
            raise ValueError(
                f"a state of a stream has {[*expected, 'epoch', 'batch']}, {missing} are missing; "
                f"pass what state_dict() gave"
            )
        differing = [name for name in expected if state[name] != expected[name]]
        if differing:
            saved = {name: state[name] for name in differing}
            current = {name: expected[name] for name in differing}
            raise ValueError(
                f"the state is of a stream with {saved}, this one has {current}; resume with the same "
                f"data and settings, or begin anew without a state"
            )
        if not (state["epoch"] >= 0 and 0 <= state["batch"] <= len(self._source)):
            raise ValueError(
                f"a state must name an epoch from 0 and a batch from 0 to {len(self._source):,}, "
                f"not {state['epoch']} and {state['batch']}; pass what state_dict() gave"
            )
        self.close()
        self._epoch, self._batch = state["epoch"], state["batch"]

    def close(self) -> None:
        """Stops loading ahead; the next batch starts it again at the current position."""
        if self._batches is not None:
            self._batches.close()
        self._batches = None


def _batches(
    source: BatchSource, epoch: int, first_batch: int, epochs: int | None, pin_memory: bool
) -> Iterator[Batch]:
    while len(source) and (epochs is None or epoch < epochs):
        for batch in source.batches(epoch, first_batch):
            yield batch.pin_memory() if pin_memory else batch
        epoch, first_batch = epoch + 1, 0
