"""The training data of a run: its batches from any state on, hot ids, and counts of ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hotrows.batch import Batch
from hotrows.config import TrainConfig
from hotrows.data import EncodedData, Loader
from hotrows.data.description import row_counts
from hotrows.data.hot_cold.profile import Profile
from hotrows.data.hot_cold.schedule import SEQUENTIAL, HotColdLoader, Position, advance, next_block
from hotrows.data.raw.columns import missing_labels
from hotrows.data.stored.order import BLOCK_ROWS, POOL_ROWS
from hotrows.distributed.comm import Ranks
from hotrows.losses import Loss
from hotrows.models.tables import LINEAR
from hotrows.schema import vocabulary_of
from hotrows.table import Table
from hotrows.train.run_state import RunState
from hotrows.train.targets import Tasks, task_numbers


class TrainingBatches:
    """The batches of a run, each with the number of its step.

    loader: reads them; total_steps: how many there are, of all epochs. Regrouped data is read block by
    block, of hot and of cold batches in turn; other data has no blocks, but for one.
    arrived: None: no batch is waited for.
    """

    is_stream, arrived = False, None

    def __init__(self, data: EncodedData, config: TrainConfig, ranks: Ranks) -> None:
        self.loader = _loader(data, config, ranks)
        assert config.epochs is not None, "settle the config first"
        self.total_steps = config.steps or config.epochs * len(self.loader)
        self._scheduled = config.hot_cold == "scheduled"

    @property
    def epoch_steps(self) -> int:
        return len(self.loader)

    def keep_groups(self) -> None:
        """Lets rows of a group follow one another in shuffled epochs."""
        loader = self.loader
        for part in (loader.hot, loader.cold) if isinstance(loader, HotColdLoader) else (loader,):
            part.keep_groups = True

    def first_state(self) -> RunState:
        """The state of a run that has trained on nothing."""
        if not isinstance(self.loader, HotColdLoader):
            return RunState()
        return RunState(position=Position() if self._scheduled else SEQUENTIAL)

    def after(self, state: RunState) -> Iterator[tuple[int, Batch]]:
        """Yields the batches still to train, in this block, each with its step."""
        step = state.step
        if isinstance(self.loader, HotColdLoader):
            assert state.position is not None
            block = next_block(state.position, len(self.loader.hot), len(self.loader.cold))
            batches = self.loader.block(*dataclasses.astuple(block))
            yield from enumerate(islice(batches, self.total_steps - step), step)
            return
        while step < self.total_steps:
            epoch, first = divmod(step, len(self.loader))
            batches = self.loader.batches(epoch, first)
            for batch in islice(batches, self.total_steps - step):
                yield step, batch
                step += 1

    def advance(self, state: RunState) -> RunState:
        """The state after one more step."""
        position = state.position
        if isinstance(self.loader, HotColdLoader):
            assert position is not None
            position = advance(position, 1, len(self.loader.hot), len(self.loader.cold))
        return dataclasses.replace(state, step=state.step + 1, position=position)


def _loader(data: EncodedData, config: TrainConfig, ranks: Ranks) -> Loader | HotColdLoader:
    assert config.batch_size is not None
    how: dict[str, Any] = {"shuffle": config.shuffle, "seed": config.seed, "order": config.order}
    how |= {"rank": ranks.rank, "num_ranks": ranks.num_ranks}
    if data.halves is not None:
        return HotColdLoader(*data.halves, config.batch_size, **how)
    return Loader(data.parts["train"], config.batch_size, **how)


def groups_are_scattered(data: EncodedData) -> bool:
    """True if rows of a group come in batches far apart though each pool keeps them together: of several
    pools, in whose data they are not neighbours, or of regrouped data."""
    part = data.parts["train"]
    if data.halves is not None or part.rows <= POOL_ROWS:
        return data.halves is not None
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
                values = rows.labels.reshape(len(rows), len(data.schema.labels))[:, task]
                wrong = np.flatnonzero(loss.labels.wrong(values) & ~missing_labels(values))
                if len(wrong):
                    raise ValueError(
                        f"label {label.name!r}: the loss {loss} admits a {loss.labels.words}, found "
                        f"{float(values[wrong[0]]):g} in row {first + int(wrong[0]):,} of the "
                        f"{part.name} part; {remedy}"
                    )
                first += len(rows)


def hot_ids(data: EncodedData) -> dict[str, Tensor] | None:
    """The hot ids of regrouped data by vocabulary; None: the data is not regrouped."""
    if data.halves is None:
        return None
    return {name: torch.from_numpy(ids) for name, ids in Profile.from_data(data).hot.items()}


def id_counts(data: EncodedData, tables: Sequence[Table], num_batches: int) -> dict[str, Tensor]:
    """How often each id occurs in the training part, [rows] by table; crosses are left out.

    Of weights of single ids: in how many of the `num_batches` of an epoch it is expected, since a batch
    decays its row once. A frequent id would else hardly decay, which counts where labels are rare.
    """
    if not data.vocabularies:
        raise ValueError(f"decay_by_count: {data.path} has no counts of ids; `prepare` makes them")
    vocabularies = {f.name: vocabulary_of(f) for f in data.schema.id_features}
    by_vocabulary = {name: torch.from_numpy(num) for name, num in row_counts(data).items()}
    counts = {}
    for table in tables:
        if table.features[0] in vocabularies:
            num = by_vocabulary[vocabularies[table.features[0]]][: table.rows]
            if table.role == LINEAR:
                num = num_batches * -torch.expm1(-num.double() / num_batches)
            counts[table.name] = functional.pad(num, (0, table.rows - len(num)))
    return counts
