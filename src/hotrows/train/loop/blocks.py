"""Batches of regrouped data: blocks of all-hot batches, then cold ones, as long as validation says.

    h h h c c c c | h h c c | h h c c ..          `hotrows.data.hot_cold.schedule` says how long

The batches of a block arrive, as those of a stream do, once the loss behind the block before has set the
rate. Where nothing sets it (no validation part, the sequential order, a benchmark), none is waited for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.data import EncodedData, Loader
from hotrows.data.hot_cold import (
    SEQUENTIAL,
    HotColdLoader,
    Position,
    Profile,
    advance,
    hot_and_cold,
    is_regrouped,
    next_block,
)
from hotrows.engine.distributed.comm import Ranks
from hotrows.runtime.json_file import build
from hotrows.train.callback import Callback
from hotrows.train.config import TrainConfig
from hotrows.train.loop.evaluate import scaling
from hotrows.train.run.data import TrainingBatches
from hotrows.train.run.state import RunState
from hotrows.train.telling.progress import Progress


def batches_of(data: EncodedData, config: TrainConfig, ranks: Ranks) -> TrainingBatches:
    """The batches of a run on prepared data, which may be regrouped."""
    kind = BlockBatches if is_regrouped(data) else TrainingBatches
    return kind(data, config, ranks)


def popular_ids(data: EncodedData, config: TrainConfig) -> dict[str, Tensor] | None:
    """The hot ids of regrouped data by vocabulary; None: the data is not regrouped. ValueError where the
    policy `hot` needs them."""
    is_needed = config.fast_memory is not None and config.policy == "hot"
    if not is_regrouped(data) and not is_needed:
        return None
    return {name: torch.from_numpy(ids) for name, ids in Profile.from_data(data).hot.items()}


class BlockBatches(TrainingBatches):
    """The batches of regrouped data, block after block; the state of a run has the position in them.

    waits: whether a block arrives only once `arrive` is called with a state at its beginning.
    """

    waits = False

    def __init__(self, data: EncodedData, config: TrainConfig, ranks: Ranks) -> None:
        super().__init__(data, config, ranks)
        self._sizes = len(self.loader.hot), len(self.loader.cold)
        self._first = Position() if config.hot_cold == "scheduled" else SEQUENTIAL
        self.callbacks = () if self._first.rate is None else (_SetRate(self),)

    def _load(self, data: EncodedData, size: int, how: dict[str, Any]) -> HotColdLoader:
        return HotColdLoader(*hot_and_cold(data), size, **how)

    def first_state(self) -> RunState:
        return _at(self._first, RunState())

    def _loaders(self) -> Sequence[Loader]:
        return self.loader.hot, self.loader.cold

    def scatters_groups(self) -> bool:
        return True

    def after(self, state: RunState) -> Iterator[tuple[int, Batch]]:
        self._next_step = state.step
        self.arrive(state)
        return self._blocks(state.step, self._position)

    def _blocks(self, step: int, position: Position) -> Iterator[tuple[int, Batch]]:
        end = self._end
        while step < end:
            block = next_block(position, *self._sizes)
            batches = self.loader.block(*dataclasses.astuple(block))
            for batch in islice(batches, end - step):
                self._next_step = step + 1
                yield step, batch
                step += 1
            position = self._position if self.waits else advance(position, len(block), *self._sizes)

    def has_arrived(self) -> bool:
        """True if the next batch is of a block that has arrived, or none will come."""
        return self._next_step < self._arrived_steps or self._next_step >= self._end

    def again(self, state: RunState) -> Iterator[Batch] | None:
        return None if self.waits else super().again(state)

    def arrive(self, state: RunState) -> None:
        """Lets the block at a state arrive."""
        self._position = _position_of(state)
        self._arrived_steps = state.step + len(next_block(self._position, *self._sizes))

    def on_arrival(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def advance(self, state: RunState) -> RunState:
        return _at(advance(_position_of(state), 1, *self._sizes), super().advance(state))


class _SetRate(Callback):
    """Sets the rate behind each block by the validation loss, whereupon the next block arrives."""

    def __init__(self, batches: BlockBatches) -> None:
        self._batches = batches

    def on_begin(self, trainer: Any) -> None:
        batches = self._batches
        batches.waits = bool(trainer.data.parts["validation"].rows)
        batches.arrived = batches.has_arrived if batches.waits else None

    def on_step_end(self, trainer: Any, progress: Progress) -> None:
        """Evaluates where the step was a block's last one.

        Ctrl-C waits for it: the checkpoint would be one of a block's end with the rate of before.
        """
        position, part = _position_of(trainer.state), trainer.data.parts["validation"]
        if position.done or not self._batches.waits:
            return
        with trainer.steps.paused(), scaling("none"):
            loss = trainer.evaluation(part, trainer.reports.show_evaluation).validation_loss
        if not math.isnan(loss):
            assert position.rate is not None, "the sequential order has no rate to set"
            position = dataclasses.replace(position, rate=position.rate.after(loss))
        trainer.steps.state = _at(position, trainer.state)
        self._batches.arrive(trainer.state)
        self._batches.wake()


def _at(position: Position, state: RunState) -> RunState:
    return dataclasses.replace(state, position=dataclasses.asdict(position))


def _position_of(state: RunState) -> Position:
    return build(Position, state.position)
