"""Stream: the batches of a loader, epoch after epoch, loaded ahead on a thread of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hotrows.batch import Batch
from hotrows.data.ahead import Ahead

if TYPE_CHECKING:
    from hotrows.data.loader import Loader


class Stream:
    """An iterator over batches that knows where it stands.

    Made by `Loader.stream`. Its state is the position behind the batches it has given out, whatever
    was loaded ahead; a stream that loads it goes on with the next one. The state does not depend on
    the number of ranks.
    """

    def __init__(
        self,
        loader: Loader,
        epochs: int | None,
        position: dict[str, Any] | None,
        prefetch: int,
        pin_memory: bool,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 (no thread) or more, not {prefetch}")
        self._loader = loader
        self._epochs = epochs
        self._prefetch = prefetch
        self._pin_memory = pin_memory
        self._epoch = self._batch = 0
        self._batches: Ahead[Batch] | Iterator[Batch] | None = None
        if position is not None:
            self.load_state_dict(position)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        if self._batches is None:
            self._batches = self._begun()
        batch = next(self._batches)
        self._batch += 1
        if self._batch == len(self._loader):
            self._epoch, self._batch = self._epoch + 1, 0
        return batch

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """What is read, and the batch that comes next; JSON-able."""
        return {**_identity(self._loader), "epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; an error where it is of other data or of another order."""
        expected = _identity(self._loader)
        missing = sorted({*expected, "epoch", "batch"} - set(state))
        if missing:
            raise ValueError(
                f"a state of a stream has {[*expected, 'epoch', 'batch']}, {missing} are missing; "
                f"pass what state_dict() gave"
            )
        differing = [name for name in expected if state[name] != expected[name]]
        if differing:
            here, there = ({name: of[name] for name in differing} for of in (expected, state))
            raise ValueError(
                f"the state is of a stream with {there}, this one has {here}; resume with the same "
                f"data and settings, or begin anew without a state"
            )
        if not (state["epoch"] >= 0 and 0 <= state["batch"] <= len(self._loader)):
            raise ValueError(
                f"a state must name an epoch from 0 and a batch from 0 to {len(self._loader):,}, "
                f"not {state['epoch']} and {state['batch']}; pass what state_dict() gave"
            )
        self.close()
        self._epoch, self._batch = state["epoch"], state["batch"]

    def close(self) -> None:
        """Stops loading ahead; asked for more, the stream begins again where it stands."""
        if isinstance(self._batches, Ahead):
            self._batches.close()
        self._batches = None

    def _begun(self) -> Ahead[Batch] | Iterator[Batch]:
        place = (self._epoch, self._batch, self._epochs)
        batches = _batches(self._loader, *place, self._pin_memory)
        return Ahead(batches, self._prefetch) if self._prefetch else batches


def _batches(
    loader: Loader, epoch: int, first_batch: int, epochs: int | None, pin_memory: bool
) -> Iterator[Batch]:
    while len(loader) and (epochs is None or epoch < epochs):
        for batch in loader.batches(epoch, first_batch):
            yield batch.pin_memory() if pin_memory else batch
        epoch, first_batch = epoch + 1, 0


def _identity(loader: Loader) -> dict[str, Any]:
    """What a position means nothing without."""
    return {
        "part": loader.part.name,
        "rows": loader.part.rows,
        "batch_size": loader.batch_size,
        "shuffle": loader.shuffle,
        "seed": loader.seed,
    }
