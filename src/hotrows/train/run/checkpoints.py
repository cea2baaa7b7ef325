"""The checkpoints of a run: what training needs to resume, written and read back.

A checkpoint holds the number of batches trained (not planned), rows, parameters, optimizer and random
state, and the schedule's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hotrows.data import EncodedData
from hotrows.data.columns.key import keys_of
from hotrows.data.encode.encoder import stored_values
from hotrows.data.encode.vocabulary import Values
from hotrows.data.raw.values import RawIds
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint import key_state
from hotrows.engine.checkpoint.fetch import FOLDER
from hotrows.engine.checkpoint.manifest import chain, naming
from hotrows.engine.checkpoint.run_lock import RunLock
from hotrows.engine.distributed.all_or_none import of_rank_0
from hotrows.engine.embedding import Embedding
from hotrows.engine.keys.partitions import row_ids
from hotrows.schema import FIRST_UNKNOWN, IdFeature, Schema, vocabulary_of
from hotrows.train.loop.step import load_optimizer, optimizer_tensors
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.run import folder as run_folder
from hotrows.train.run.state import RunState
from hotrows.train.start import effects, pretrained
from hotrows.train.start.wider import is_wider, load_wider
from hotrows.train.telling import notes

_RANDOM_STATES = ("random_state", "device_random_state")  # of the host and of the device
_NEXT_SEED, _SEEDS = 0x9E3779B97F4A7C15, (1 << 63) - 1  # each rank has another seed, below 2^63
_WINDOW = "window/"  # begins the names of its tensors
_VALUES = 1 << 20  # values of a vocabulary whose keys are computed at once
Keyed = tuple[np.ndarray, np.ndarray]  # ids [n], and the key that each stands for, distinct


class RunCheckpoints:
    """Writes and reads the checkpoints in the folder of a run; calls are collective between ranks.

    saved: the state that the last checkpoint has. coverage: of the tables with pretrained values.
    window, open_window: of a run on a stream, what the checkpoint that was read has of the events scored
    since the last window and of the histories of users, and what the next one is to have.
    """

    def __init__(self, run: Path, steps: StepTrainer, lock: RunLock) -> None:
        self._run, self._steps, config = run, steps, steps.config
        if steps.ranks.rank > 0:  # the first one's go on where the model was made
            steps.recommender.random.begin_at((config.seed + _NEXT_SEED * steps.ranks.rank) & _SEEDS)
        self.saved: RunState | None = None
        self.coverage: list[pretrained.Coverage | effects.Gains] = []
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
            leaves=config.notice is not None,
            lock=lock,
        )

    def save(self) -> bool:
        """Writes a checkpoint as the last, perhaps the best; returns whether the state had none yet."""
        steps, state = self._steps, self._steps.state
        if self.saved == state:
            return False
        tensors = optimizer_tensors(steps.dense_optimizer)
        for name, of_rank in zip(_RANDOM_STATES, steps.recommender.random.states, strict=False):
            tensors[name] = steps.ranks.all_gather(of_rank).wait()  # [P, n]
        tensors |= {_WINDOW + name: tensor for name, tensor in self.open_window().items()}
        is_best = state.best is None or state.best_step == state.step
        self.writer.save(checkpoint.State(state.step, state.to_json(), tensors), is_best)
        self.saved = state
        return True

    def safe(self) -> str:
        """Which checkpoint is the last one that is complete, for messages."""
        name, place = self.writer.safe(), run_folder.shown_place(self._run)
        return f"the checkpoint is in {place}: {name}" if name else f"{place} has no checkpoint yet"

    def resume(self) -> None:
        """Reads the last checkpoint; where there is none yet, the run begins anew."""
        steps = self._steps
        pointer = of_rank_0(steps.ranks, partial(checkpoint.pointed, self._run))
        if pointer is None:  # it was stopped before its first one
            steps.cached_tables.restore(None)
            self.first_values()
            return
        folder = self._run / FOLDER / pointer.last
        stored = checkpoint.load(folder, steps.embedding, steps.model, steps.data.fingerprint)
        with naming(folder):
            steps.state = self.saved = RunState.from_json(stored.fields)
            steps.recommender.calibrate(self.saved.calibration_of(steps.recommender.calibration))
        states, rank = steps.recommender.random.states, steps.ranks.rank
        for k, name in enumerate(_RANDOM_STATES):
            of_ranks = stored.tensors.pop(name, ())  # [P, n]
            if k < len(states) and len(of_ranks) == steps.ranks.num_ranks:  # else they begin anew
                states[k] = of_ranks[rank].clone()  # PyTorch misreads views
        names = [name for name in stored.tensors if name.startswith(_WINDOW)]
        self.window = {name.removeprefix(_WINDOW): stored.tensors.pop(name) for name in names}
        load_optimizer(steps.dense_optimizer, stored.tensors)
        self.writer.went_to(folder)
        ranks = steps.ranks
        steps.cached_tables.retain(checkpoint.retained(self._run, ranks.rank, ranks.num_ranks))

    def first_values(self) -> None:
        """Reads pretrained values and fits effects, or reads the best checkpoint of the run that the
        config starts from."""
        steps = self._steps
        if steps.config.pretrained:
            self.coverage += pretrained.fill(steps.embedding, steps.data, steps.config.pretrained)
        if steps.config.start_from is None:
            self.coverage += effects.fill(steps.embedding, steps.model, steps.data, steps.config.label)
            return
        other = Path(steps.config.start_from)
        then, fingerprint = run_folder.read_schema(other), run_folder.read_data(other).fingerprint
        if is_wider(then, steps.data, fingerprint):
            stored = load_wider(other, then, steps)
        elif _ids_differ(then, fingerprint, steps.data):
            stored = _load_by_keys(other, steps.embedding, steps.model, steps.data)
        else:
            folder = checkpoint.folder_of(other, "best")
            lineage = steps.data.lineage
            stored = checkpoint.load(folder, steps.embedding, steps.model, lineage, converts=True)
            saved = checkpoint.read_manifest(folder).tables
            steps.embedding.catch_up({table.name: table.rows for table in saved})  # by that run's numbers
        begun = run_folder.encoded_data(other)
        has_same_events = begun is not None and begun.events == steps.data.events
        for name in list(stored.tensors):
            if name in _RANDOM_STATES or name.startswith(_WINDOW):
                tensor = stored.tensors.pop(name)
                if has_same_events and run_folder.HISTORIES in name:
                    self.window[name.removeprefix(_WINDOW)] = tensor
        load_optimizer(steps.dense_optimizer, stored.tensors)
        begun_with = RunState.from_json(stored.fields)
        notes.of_other_losses(begun_with.calibration, steps.recommender.calibration.stored())
        if run_folder.read_config(other).calibration == "scale":
            steps.calibrate(begun_with.calibration_of(steps.recommender.calibration))

    def load_best(self) -> None:
        """Waits for the last checkpoint, and reads the best one, unless it is what memory holds, with its
        calibration."""
        self.writer.wait()
        steps, pointer = self._steps, checkpoint.pointed(self._run)
        if pointer is not None and (pointer.best != pointer.last or steps.cached_tables.files):
            folder = checkpoint.folder_of(self._run, "best")
            fingerprint = steps.data.fingerprint
            stored = checkpoint.load(folder, steps.embedding, steps.model, fingerprint, read_only=True)
            best = RunState.from_json(stored.fields)
            steps.recommender.calibrate(best.calibration_of(steps.recommender.calibration))


def _ids_differ(then: Schema, fingerprint: str, data: EncodedData) -> bool:
    """True if ids of dynamic features stand for other keys: a run was trained on other data than this, or
    this extends, or with other capacities. Keys find their rows wherever they come from."""
    old, new = then.id_features, data.schema.id_features
    other = fingerprint not in data.lineage or [f.dynamic for f in old] != [f.dynamic for f in new]
    return other and bool(then.dynamic_vocabularies or data.schema.dynamic_vocabularies)


def _load_by_keys(
    run: Path, embedding: Embedding, model: torch.nn.Module, data: EncodedData
) -> checkpoint.State:
    """Reads the best checkpoint of a run whose ids stand for other values; collective between ranks.

        a vocabulary        id -> value -> the key of this value      the run's encoders
        a dynamic feature   id -> key                                 the run's checkpoint

    Rows go to the ids of equal keys. The ids of a dynamic feature are given out here, in the order of the
    other run's: frequent values of a vocabulary first, as many as the capacity has room for.
    """
    # Which features both have, and whether ids of both can be told apart
    folder = checkpoint.folder_of(run, "best")
    then, now = _features(run_folder.read_schema(run)), _features(data.schema)
    _check(run, then, embedding, data.schema)
    keys, old_values = key_state.read(chain(folder)), run_folder.raw_values(run)
    new_values = stored_values(data) if data.encodes_raw else None
    if (old_values is None) != (new_values is None):
        raise ValueError(
            f"of {run} and {data.path} one has raw values and the other came encoded, so that nothing "
            f"says which ids are the same; begin without --init-from"
        )
    # The key of each id, then and now
    old = {name: _of_run(name, then[name], keys, old_values) for name in now if name in then}
    counted = now.keys() - data.schema.dynamic_vocabularies
    new = {name: _of_values(name, now[name], new_values) for name in counted}
    first = {name: torch.from_numpy(old[name][1]) for name in embedding.dynamic.vocabularies}
    begun = embedding.dynamic.keys.begin_with(first)
    new |= {name: (ids.numpy(), of_ids.numpy()) for name, (ids, of_ids) in begun.items()}
    of_vocabulary = {
        name: _new_ids(old[name], new[name], then[name], now[name]) for name in old if name in new
    }
    vocabularies = {feature.name: vocabulary_of(feature) for feature in data.schema.id_features}
    new_ids = {table.name: of_vocabulary[vocabularies[table.features[0]]] for table in embedding.tables}
    return checkpoint.load_renumbered(folder, embedding, model, new_ids)


def _features(schema: Schema) -> dict[str, IdFeature]:
    """A feature of each vocabulary."""
    return {vocabulary_of(feature): feature for feature in schema.id_features}


def _check(run: Path, then: Mapping[str, IdFeature], embedding: Embedding, schema: Schema) -> None:
    """Raises ValueError for tables whose rows have no other ids to go to."""
    features = {feature.name: feature for feature in schema.id_features}
    for table in embedding.tables:
        feature = features.get(table.features[0])
        if feature is None:
            raise ValueError(
                f"{run}: the rows of {table.name!r} are hashed from ids, which are others now; begin "
                f"with a run on the same data"
            )
        if vocabulary_of(feature) not in then:
            raise ValueError(
                f"{run} has no feature of {vocabulary_of(feature)!r}; begin without --init-from"
            )


def _of_run(
    name: str, feature: IdFeature, keys: Mapping[str, Tensor], values: Mapping[str, Values] | None
) -> Keyed:
    if feature.dynamic is None:
        return _of_values(name, feature, values)
    first_id, num = FIRST_UNKNOWN + feature.num_unknown, feature.dynamic.partitions
    parts = [(name, 0)] if num == 1 else [(f"{name}/{q} of {num}", q) for q in range(num)]
    ids = torch.cat([row_ids(keys[f"{part}/ids"], first_id, q, num) for part, q in parts])
    ids, order = ids.sort()
    return ids.numpy(), torch.cat([keys[f"{part}/keys"] for part, _ in parts])[order].numpy()


def _of_values(name: str, feature: IdFeature, of_all: Mapping[str, Values] | None) -> Keyed:
    """The ids of a vocabulary; of values with one key, which is rare, the first one. Ids of data that
    came encoded are keys."""
    if of_all is None:
        ids = np.arange(FIRST_UNKNOWN + feature.num_unknown, feature.rows)
        return ids, ids
    values, keys = of_all[name], [np.zeros(0, np.int64)]
    for begin in range(0, len(values), _VALUES):
        end = min(begin + _VALUES, len(values))
        first = int(values.ends[begin - 1]) if begin else 0
        ends = values.ends[begin:end] - first
        starts = np.concatenate([[0], ends[:-1]])
        text = np.ascontiguousarray(values.text[first : int(values.ends[end - 1])])
        keys.append(keys_of(RawIds(text, starts.astype(np.uint32), (ends - starts).astype(np.uint32))))
    of_values = np.concatenate(keys)
    _, places = np.unique(of_values, return_index=True)
    places.sort()
    return places + FIRST_UNKNOWN + feature.num_unknown, of_values[places]


def _new_ids(old: Keyed, new: Keyed, then: IdFeature, now: IdFeature) -> np.ndarray:
    """For each id of the other run the one of the same key; -1: it has none. Reserved ids stay."""
    (old_ids, old_keys), (new_ids, new_keys) = old, new
    reserved = FIRST_UNKNOWN + then.num_unknown
    ids = np.full(max(int(old_ids.max(initial=0)) + 1, reserved), -1, np.int64)
    both = FIRST_UNKNOWN + min(then.num_unknown, now.num_unknown)
    ids[:both] = np.arange(both)
    _, places, new_places = np.intersect1d(old_keys, new_keys, assume_unique=True, return_indices=True)
    ids[old_ids[places]] = new_ids[new_places]
    return ids
