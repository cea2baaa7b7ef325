"""Published: how far a run had come at its last version, and what differs from that since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.distributed.first_rank import to_first
from hotrows.losses import Calibration
from hotrows.serving import table_rows
from hotrows.serving.deltas import VersionHead
from hotrows.serving.key_ids import GONE, last_of_each
from hotrows.serving.version import Version
from hotrows.train.callback import Training
from hotrows.train.run.state import RunState


@dataclass(frozen=True)
class Published:
    """step, events: of the run at its last version; events: of a stream, else 0. calibration: of that
    version. differs: whether a run that was resumed had other rows than it."""

    step: int
    calibration: Calibration
    events: int = 0
    differs: bool = False

    @staticmethod
    def from_state(state: RunState, calibration: Calibration) -> Published:
        return Published(state.step, calibration, num_events(state))

    @staticmethod
    def before(head: VersionHead, state: RunState, differs: bool, calibration: Calibration) -> Published:
        """The versions that a run which begins or resumes at `state` has published.

        On prepared data it comes to the step of that version with its bits. On a stream it comes to its
        events, but with batches that may be cut otherwise, and so with other rows after other steps.
        """
        if not head.events and state.stream is None:
            return Published(head.step, calibration)
        return Published(min(head.step, state.step), calibration, head.events, differs)

    def batches_since(self, state: RunState, calibration: Calibration) -> int:
        """The batches that the next version would be beyond the last; 0: there is nothing to publish, or
        the last version is ahead. A new calibration alone, as an evaluation fits, counts as one."""
        if num_events(state) < self.events or state.step < self.step:
            return 0
        return max(state.step - self.step, int(self.differs or calibration != self.calibration))


def num_events(state: RunState) -> int:
    """The events that a run on a stream has trained on; of others 0."""
    return 0 if state.stream is None else state.stream.events


class ChangedKeys:
    """The keys of a vocabulary that have got rows, or lost them, since they were taken last."""

    def __init__(self) -> None:
        self._parts = [np.zeros((2, 0), np.int64)]

    def add(self, keys: np.ndarray, ids: np.ndarray | int) -> None:
        """Notes keys [n], distinct ones, that have these ids from here on."""
        if len(keys):
            self._parts.append(np.stack([keys, np.broadcast_to(ids, keys.shape)]))

    def add_before(self, keys: np.ndarray, ids: np.ndarray) -> None:
        """Notes keys that had these ids before all that was noted."""
        self._parts.insert(0, np.stack([keys, ids]))

    def take(self, ranks: Ranks) -> np.ndarray:
        """[2, n]: the keys, ascending, and the ids that they have now; none is noted then.

        Collective: rank 0 gets those of all ranks. All hear of a key that gets a row, and only the rank
        that has its partition hears that it has lost it: that comes last.
        """
        pairs = last_of_each(np.concatenate(self._parts, 1))
        self._parts = [np.zeros((2, 0), np.int64)]
        keys, ids = (torch.cat(to_first(ranks, torch.from_numpy(row))).numpy() for row in pairs)
        return last_of_each(np.stack([keys, ids])[:, np.argsort(ids == GONE, kind="stable")])


def differences(trainer: Training, version: Version | None) -> Iterator[tuple[str, Tensor]]:
    """Collective: by table, ids whose rows are others than those of a version, which rank 0 has."""
    embedding, ranks = trainer.embedding, trainer.ranks
    tables = {} if version is None else version.tables
    rows = ranks.gather_objects({name: stored.rows for name, stored in tables.items()})[0]
    for table in (table for table in embedding.tables if table.name in rows):
        num_rows, first = embedding.num_rows()[table.name], 0
        for weights in embedding.weight_chunks(table.name, min(num_rows, rows[table.name])):
            ids = np.arange(first, first + len(weights))  # none on other ranks
            if stored := tables.get(table.name):
                before, now = stored.stored(ids), table_rows.encode(weights.float().numpy(), stored.dtype)
                ids = ids[(before.view(np.uint8) != np.ascontiguousarray(now).view(np.uint8)).any(1)]
            first += len(weights)
            yield table.name, torch.from_numpy(ranks.gather_objects(ids)[0])
        yield table.name, torch.arange(min(num_rows, rows[table.name]), num_rows)  # new ones
