"""Batches of regrouped data, all-hot or all-cold, and the schedule that mixes them.

FAE (Adnan et al., VLDB 2022) trains blocks: some hot batches, then some cold ones, then a look at
the loss on held-out data. Its shuffle scheduler sets how much of an epoch a block is: half at first, half
as much whenever the loss rose, twice as much after it fell four times in a row. Long blocks change seldom
between fast and slow memory; short ones come closer to the order of plain training.

    rate 50         h h h c c c c | h h h c c c c        a block has half of both kinds
    rate 25         h h c c | h h c c | h c c | h c      and a quarter after the loss rose
    sequential      c c c c c c c c | h h h h h h

The code published with the paper has no such scheduler: its DLRM trains all cold batches, then all
hot ones, unshuffled (its TBSM hot ones first). That is `sequential` here, but for the shuffling
within each kind; it needs no evaluation.

A `Position` determines all later batches, so a run may stop after any batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hotrows.batch import Batch
from hotrows.data.load.loader import Loader
from hotrows.data.stored.part import Part

_FALLS = 4  # falls in a row that double the rate


@dataclass(frozen=True)
class Rate:
    """The share of an epoch in a block, as the losses of evaluations set it.

    percent: of an epoch's batches of either kind; falls: falls of the loss in a row; last_loss: of
    the last evaluation.
    """

    percent: int = 50
    falls: int = 0
    last_loss: float | None = None

    def after(self, loss: float) -> Rate:
        """The rate after an evaluation: 50, then losses 0.6, 0.7  ->  25."""
        if self.last_loss is not None and loss > self.last_loss:
            return Rate(max(1, self.percent // 2), 0, loss)
        falls = self.falls + 1 if self.last_loss is not None and loss < self.last_loss else 0
        if falls == _FALLS:
            return Rate(min(100, 2 * self.percent), 0, loss)
        return Rate(self.percent, falls, loss)


@dataclass(frozen=True)
class Position:
    """The position of a run in the schedule.

    epoch; hot, cold: batches of the epoch that earlier blocks trained; done: trained batches of the
    current block; rate: None is `sequential`.
    """

    epoch: int = 0
    hot: int = 0
    cold: int = 0
    done: int = 0
    rate: Rate | None = Rate()


SEQUENTIAL = Position(rate=None)  # where a run without evaluations begins


@dataclass(frozen=True)
class Block:
    """Batches to train next: hot ones hot_from .. hot_to - 1 of the epoch, then cold ones."""

    epoch: int
    hot_from: int
    hot_to: int
    cold_from: int
    cold_to: int

    def __len__(self) -> int:
        return self.hot_to - self.hot_from + self.cold_to - self.cold_from


def next_block(position: Position, num_hot: int, num_cold: int) -> Block:
    """Returns the rest of the block at a position, for an epoch of `num_hot` and `num_cold` batches."""
    block = _whole_block(position, num_hot, num_cold)
    hot = min(position.done, block.hot_to - block.hot_from)
    cold = position.done - hot
    return dataclasses.replace(block, hot_from=block.hot_from + hot, cold_from=block.cold_from + cold)


def advance(position: Position, trained: int, num_hot: int, num_cold: int) -> Position:
    """Returns the position after `trained` more batches; at the end of a block, the next one's start.

    `done` is 0 exactly between blocks, when a run evaluates and sets the rate.
    """
    block = _whole_block(position, num_hot, num_cold)
    done = position.done + trained
    assert done <= len(block), "one block at a time"
    if done < len(block):
        return dataclasses.replace(position, done=done)
    if (block.hot_to, block.cold_to) == (num_hot, num_cold):
        return Position(epoch=position.epoch + 1, rate=position.rate)
    return dataclasses.replace(position, hot=block.hot_to, cold=block.cold_to, done=0)


class HotColdLoader:
    """Batches of at most `batch_size` samples that are all hot or all cold.

    The samples of a kind are divided evenly among as few batches as hold them: otherwise each kind
    would end an epoch with a small batch, and a step on few samples counts as much as any other.
    how: of both kinds, each by itself: shuffle, seed, order, rank and num_ranks of `Loader`.
    """

    def __init__(self, hot: Part, cold: Part, batch_size: int, **how: Any) -> None:
        self.hot, self.cold = (Loader(part, _even(part.rows, batch_size), **how) for part in (hot, cold))
        self.batch_size = batch_size

    def __len__(self) -> int:
        """Batches per epoch, of both kinds."""
        return len(self.hot) + len(self.cold)

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch in sequential order, cold ones first, from `first_batch` on."""
        num_hot, num_cold = len(self.hot), len(self.cold)
        yield from self.block(epoch, 0, 0, min(first_batch, num_cold), num_cold)
        yield from self.block(epoch, max(0, first_batch - num_cold), num_hot, num_cold, num_cold)

    def block(
        self, epoch: int, hot_from: int, hot_to: int, cold_from: int, cold_to: int
    ) -> Iterator[Batch]:
        """Yields hot batches hot_from .. hot_to - 1 of an epoch, then cold ones."""
        yield from islice(self.hot.batches(epoch, hot_from), max(0, hot_to - hot_from))
        for batch in islice(self.cold.batches(epoch, cold_from), max(0, cold_to - cold_from)):
            first_sample = batch.first_sample + self.hot.part.rows  # as the training part counts
            yield dataclasses.replace(batch, first_sample=first_sample)


def _even(rows: int, batch_size: int) -> int:
    """Returns an even batch size: 1,000 rows in batches of at most 300 make four of 250."""
    num_batches = max(-(-rows // batch_size), 1)
    return max(-(-rows // num_batches), 1)


def _whole_block(position: Position, num_hot: int, num_cold: int) -> Block:
    """Returns the block that begins at position.hot and position.cold."""
    hot, cold, rate = position.hot, position.cold, position.rate
    if rate is None and cold < num_cold:
        return Block(position.epoch, hot, hot, cold, num_cold)
    percent = 100 if rate is None else rate.percent
    hot_to = min(num_hot, hot + (num_hot * percent + 99) // 100)  # rounded up: both kinds end together
    cold_to = min(num_cold, cold + (num_cold * percent + 99) // 100)
    return Block(position.epoch, hot, hot_to, cold, cold_to)
