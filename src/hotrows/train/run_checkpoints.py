"""The checkpoints of a run: what training needs to resume, written and read back.

A checkpoint holds the number of batches trained (not planned), rows, parameters, optimizer and random
state, and the schedule's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from hotrows import checkpoint
from hotrows.checkpoint.manifest import naming
from hotrows.checkpoint.run_lock import RunLock
from hotrows.train import other_ids, pretrained
from hotrows.train.run_state import RunState
from hotrows.train.step import load_optimizer, optimizer_tensors
from hotrows.train.step_trainer import StepTrainer

_WINDOW = "window/"  # begins the names of its tensors


class RunCheckpoints:
    """Writes and reads the checkpoints in the folder of a run; calls are collective between ranks.

    random_state, device_random_state: where the random numbers of training begin, of the host and of
    the device (None: as the seed says).
    saved: the state that the last checkpoint has. coverage: of the tables with pretrained values.
    window, open_window: of a run on a stream, what the checkpoint that was read has of the events scored
    since the last window, and what the next one is to have.
    """

    def __init__(self, run: Path, steps: StepTrainer, lock: RunLock) -> None:
        self._run, self._steps, config = run, steps, steps.config
        self.random_state = _first_random_state(steps)
        self.device_random_state: Tensor | None = None
        self.seed = rank_seed(steps)
        self.saved: RunState | None = None
        self.coverage: list[pretrained.Coverage] = []
        self.window: dict[str, Tensor] = {}
        self.open_window: Callable[[], dict[str, Tensor]] = dict
        self.writer = checkpoint.Writer(
            run,
            steps.embedding,
            steps.model,
            steps.data.fingerprint,
            keep_last=config.keep_last,
            full_every=config.full_every,
            background=config.background_checkpoints,
            lock=lock,
        )

    def save(self) -> bool:
        """Writes a checkpoint as the last, perhaps the best; returns whether the state had none yet."""
        steps, state = self._steps, self._steps.state
        if self.saved == state:
            return False
        tensors = optimizer_tensors(steps.dense_optimizer)
        tensors["random_state"] = steps.ranks.all_gather(torch.get_rng_state()).wait()  # [P, n]
        of_device = steps.recommender.device.random_state()
        if of_device is not None:
            tensors["device_random_state"] = steps.ranks.all_gather(of_device).wait()  # [P, n]
        tensors |= {_WINDOW + name: tensor for name, tensor in self.open_window().items()}
        is_best = state.best is None or state.best_step == state.step
        self.writer.save(checkpoint.State(state.step, state.to_json(), tensors), is_best)
        self.saved = state
        return True

    def resume(self) -> None:
        """Reads the last checkpoint; where there is none yet, the run begins anew."""
        steps = self._steps
        if checkpoint.pointed(self._run) is None:  # it was stopped before its first one
            if steps.cached_tables:
                steps.cached_tables.restore(None)
            self.first_values()
            return
        folder = checkpoint.folder_of(self._run, "last")
        stored = checkpoint.load(folder, steps.embedding, steps.model, steps.data.fingerprint)
        with naming(folder):
            steps.state = self.saved = RunState.from_json(stored.fields)
        random_states = stored.tensors.pop("random_state")  # [P, n]
        of_devices = stored.tensors.pop("device_random_state", None)  # [P, n]
        if len(random_states) == steps.ranks.num_ranks:  # else every rank begins anew
            self.random_state = random_states[steps.ranks.rank].clone()  # PyTorch misreads views
            if of_devices is not None:
                self.device_random_state = of_devices[steps.ranks.rank].clone()
        names = [name for name in stored.tensors if name.startswith(_WINDOW)]
        self.window = {name.removeprefix(_WINDOW): stored.tensors.pop(name) for name in names}
        load_optimizer(steps.dense_optimizer, stored.tensors)
        self.writer.went_to(folder)
        if steps.cached_tables:
            ranks = steps.ranks
            steps.cached_tables.retain(checkpoint.retained(self._run, ranks.rank, ranks.num_ranks))

    def first_values(self) -> None:
        """Reads pretrained values, or the best checkpoint of the run that the config starts from."""
        steps = self._steps
        if steps.config.pretrained:
            self.coverage = pretrained.fill(steps.embedding, steps.data, steps.config.pretrained)
        if steps.config.start_from is None:
            return
        other = Path(steps.config.start_from)
        if other_ids.differ(other, steps.data):
            stored = other_ids.load(other, steps.embedding, steps.model, steps.data)
        else:
            folder = checkpoint.folder_of(other, "best")
            stored = checkpoint.load(folder, steps.embedding, steps.model, steps.data.lineage)
            saved = checkpoint.read_manifest(folder).tables
            steps.embedding.catch_up({table.name: table.rows for table in saved})  # by that run's numbers
        for name in list(stored.tensors):
            if name in ("random_state", "device_random_state") or name.startswith(_WINDOW):
                del stored.tensors[name]
        load_optimizer(steps.dense_optimizer, stored.tensors)

    def load_best(self) -> None:
        """Waits for the last checkpoint, and reads the best one, unless it is what memory holds."""
        self.writer.wait()
        steps, pointer = self._steps, checkpoint.pointed(self._run)
        in_files = steps.cached_tables is not None and steps.cached_tables.files
        if pointer is not None and (pointer.best != pointer.last or in_files):
            folder = checkpoint.folder_of(self._run, "best")
            fingerprint = steps.data.fingerprint
            checkpoint.load(folder, steps.embedding, steps.model, fingerprint, read_only=True)


def _first_random_state(steps: StepTrainer) -> Tensor:
    """Where random numbers begin, on every rank at another place."""
    if steps.ranks.rank == 0:
        return steps.recommender.random_state
    return torch.Generator().manual_seed(rank_seed(steps)).get_state()


def rank_seed(steps: StepTrainer) -> int:
    """The run's seed on the first rank, another one on every other."""
    return (steps.config.seed + 0x9E3779B97F4A7C15 * steps.ranks.rank) & (1 << 63) - 1
