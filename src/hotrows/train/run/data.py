"""The training data of a run: its batches from any state on, and counts of ids."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hotrows.batch import Batch
from hotrows.data import EncodedData, Loader
from hotrows.data.columns.label import missing_labels
from hotrows.data.description import row_counts
from hotrows.data.stored.order import BLOCK_ROWS, POOL_ROWS
from hotrows.data.stored.user_histories import UserHistories
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.planning.crosses import append_crosses
from hotrows.losses import Loss
from hotrows.models.tables import LINEAR
from hotrows.schema import vocabulary_of
from hotrows.table import Cross, Table
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import Tasks, task_numbers
from hotrows.train.run.state import RunState


class RunBatches:
    """The batches of a run, each with the number of its step.

    total_steps: how many there are; known_steps: the same, or 0 where no one knows it beforehand;
    epoch_steps: how many an epoch has. until: a step before which they end, to begin anew with other
    shares of the ranks.
    arrived: True if the next batch has arrived, or none will; None: no batch is waited for. See
    `hotrows.engine.stages`. callbacks: each a `Callback`, called after those of a user. histories: of
    users, behind the last batch that was trained; None: those of the data.
    """

    total_steps: int
    known_steps: int
    epoch_steps: int
    until = sys.maxsize
    arrived: Callable[[], bool] | None = None
    callbacks: Sequence[Any] = ()
    histories: UserHistories | None = None

    def first_state(self) -> RunState:
        """The state of a run that has trained on nothing."""
        return RunState()

    def after(self, state: RunState) -> Iterator[tuple[int, Batch]]:
        """The batches still to train, each with its step."""
        raise NotImplementedError

    def again(self, state: RunState) -> Iterator[Batch] | None:
        """The batches of `after` once more, to look ahead in; None: they are read once."""
        return None

    def num_left(self, state: RunState) -> int:
        """How many batches `again` has; 0 where nobody knows."""
        is_known = self.total_steps == self.known_steps
        return max(min(self.known_steps, self.until) - state.step, 0) if is_known else 0

    def advance(self, state: RunState) -> RunState:
        """The state after one more step."""
        return dataclasses.replace(state, step=state.step + 1)

    def share(self, shares: tuple[int, ...], until: int) -> None:
        """Gives each rank such a share of the batches to come; until: see `until`."""
        raise NotImplementedError

    def on_arrival(self, wake: Callable[[], None]) -> None:
        """wake: called, on any thread, when a batch has arrived that was waited for."""

    def wait(self, seconds: float, requests: Any) -> bool:
        """Waits until there is a batch to train, or it is known that none comes, so long at most.
        requests: a `RunControl`, of whose requests all ranks hear where they wait together."""
        return True


class TrainingBatches(RunBatches):
    """The batches of prepared data, epoch after epoch, as the config shuffles them."""

    def __init__(self, data: EncodedData, config: TrainConfig, ranks: Ranks) -> None:
        assert config.batch_size is not None and config.epochs is not None, "settle the config first"
        how: dict[str, Any] = {"shuffle": config.shuffle, "seed": config.seed, "order": config.order}
        how |= {"rank": ranks.rank, "num_ranks": ranks.num_ranks}
        self.loader = self._load(data, config.batch_size, how)
        self.epoch_steps = len(self.loader)
        self.total_steps = self.known_steps = config.steps or config.epochs * self.epoch_steps

    def _load(self, data: EncodedData, size: int, how: dict[str, Any]) -> Any:
        return Loader(data.parts["train"], size, **how)

    def again(self, state: RunState) -> Iterator[Batch] | None:
        return (batch for _, batch in self.after(state))

    def after(self, state: RunState) -> Iterator[tuple[int, Batch]]:
        step, end = state.step, self._end
        while step < end:
            epoch, first = divmod(step, len(self.loader))
            batches = self.loader.batches(epoch, first)
            for batch in islice(batches, end - step):
                yield step, batch
                step += 1

    @property
    def _end(self) -> int:
        return min(self.total_steps, self.until)

    def share(self, shares: tuple[int, ...], until: int) -> None:
        self.until = until
        for loader in self._loaders():
            loader.shares = shares

    def _loaders(self) -> Sequence[Loader]:
        return (self.loader,)

    def keep_groups(self) -> None:
        """Lets rows of a group follow one another in shuffled epochs."""
        for loader in self._loaders():
            loader.keep_groups = True

    def scatters_groups(self) -> bool:
        """True if rows of a group come in batches far apart though each pool keeps them together: of
        several pools, in whose data they are not neighbours, or of regrouped data."""
        part = self.loader.part
        if part.rows <= POOL_ROWS:
            return False
        groups = next(Loader(part, BLOCK_ROWS).batches(0)).groups
        assert groups is not None, "tasks of an order are checked to have groups"
        return len(groups.unique_consecutive()) > 2 * len(groups.unique())


def check_labels(data: EncodedData, tasks: Tasks, losses: Sequence[Loss]) -> None:
    """Raises ValueError for the first label that the loss it is trained with does not admit."""
    for task, loss in zip(task_numbers(tasks), losses, strict=True):
        label = data.schema.labels[task]
        if loss.labels.includes(label.values):
            continue
        remedy = (
            f"train with another loss, or say in the schema Label({label.name!r}, loss={str(loss)!r}), "
            f"which finds such labels when data is prepared"
        )
        if data.source is not None:
            raise ValueError(
                f"the loss {loss} admits a {loss.labels.words}, the schema lets {label.name!r} be a "
                f"{label.values.words}; {remedy}"
            )
        for part in data.parts.values():
            first = 0
            for rows in part.mapped(0, part.rows):
                values = rows.arrays["labels"].reshape(len(rows), len(data.schema.labels))[:, task]
                wrong = np.flatnonzero(loss.labels.wrong(values) & ~missing_labels(values))
                if len(wrong):
                    raise ValueError(
                        f"label {label.name!r}: the loss {loss} admits a {loss.labels.words}, found "
                        f"{float(values[wrong[0]]):g} in row {first + int(wrong[0]):,} of the "
                        f"{part.name} part; {remedy}"
                    )
                first += len(rows)


def id_counts(
    data: EncodedData, tables: Sequence[Table], crosses: Sequence[Cross], num_batches: int
) -> dict[str, Tensor]:
    """How often each id occurs in the training part, [rows] by table.

    Of weights of single ids: in how many of the `num_batches` of an epoch it is expected, since a batch
    decays its row once. A frequent id would else hardly decay, which counts where labels are rare.
    """
    if not data.vocabularies:
        raise ValueError(f"decay_by_count: {data.path} has no counts of ids; `prepare` makes them")
    vocabularies = {f.name: vocabulary_of(f) for f in data.schema.id_features}
    by_vocabulary = {name: torch.from_numpy(num) for name, num in row_counts(data).items()}
    by_vocabulary |= _cross_counts(data, crosses)
    counts = {}
    for table in tables:
        num = by_vocabulary[vocabularies.get(table.features[0], table.features[0])][: table.rows]
        if table.role == LINEAR:
            num = num_batches * -torch.expm1(-num.double() / num_batches)
        counts[table.name] = functional.pad(num, (0, table.rows - len(num)))
    return counts


def _cross_counts(data: EncodedData, crosses: Sequence[Cross]) -> dict[str, Tensor]:
    """How often each bucket of a cross occurs in the training part, [rows] by its name."""
    counts = {cross.name: torch.zeros(cross.rows, dtype=torch.int64) for cross in crosses}
    for batch in Loader(data.parts["train"], BLOCK_ROWS, shuffle=False).batches(0) if crosses else ():
        batch = batch.expanded()
        crossed = append_crosses(batch, crosses).ids[len(batch.ids) :].view(len(crosses), -1)
        for cross, buckets in zip(crosses, crossed, strict=True):
            counts[cross.name] += buckets.bincount(minlength=cross.rows)
    return counts
