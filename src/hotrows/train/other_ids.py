"""A run that begins with one whose ids stand for other values: vocabularies become keys, and back.

    a vocabulary        id -> value -> the key of this value      the run's encoders
    a dynamic feature   id -> key                                 the run's checkpoint

Rows go to the ids of equal keys. The ids of a dynamic feature are given out here, in the order of the
other run's: frequent values of a vocabulary first, as many as the capacity has room for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hotrows import checkpoint
from hotrows.checkpoint import key_state
from hotrows.checkpoint.manifest import chain
from hotrows.data import EncodedData
from hotrows.data.encode.encoding import stored_values
from hotrows.data.encode.keys import keys_of
from hotrows.data.encode.vocabulary_file import Values
from hotrows.data.raw.columns import RawIds
from hotrows.engine.embedding import Embedding
from hotrows.keys.partitions import row_ids
from hotrows.schema import FIRST_UNKNOWN, IdFeature, Schema, vocabulary_of
from hotrows.train import run_folder

_VALUES = 1 << 20  # values of a vocabulary whose keys are computed at once
Keyed = tuple[np.ndarray, np.ndarray]  # ids [n], and the key that each stands for, distinct


def differ(run: Path, data: EncodedData) -> bool:
    """True if a run was trained on other data than this, or this extends, and features of either are
    dynamic: keys find their rows wherever they come from."""
    features = (*run_folder.read_schema(run).id_features, *data.schema.id_features)
    is_other = run_folder.read_data(run).fingerprint not in data.lineage
    return is_other and any(feature.dynamic is not None for feature in features)


def load(run: Path, embedding: Embedding, model: torch.nn.Module, data: EncodedData) -> checkpoint.State:
    """Reads the best checkpoint of a run into an embedding and a model; collective between ranks."""
    folder = checkpoint.folder_of(run, "best")
    then, now = _features(run_folder.read_schema(run)), _features(data.schema)
    _check(run, then, embedding, data.schema)
    keys, old_values = key_state.read(chain(folder)), run_folder.raw_values(run)
    new_values = stored_values(data) if data.encodes_raw else None
    if (old_values is None) != (new_values is None):
        raise ValueError(
            f"of {run} and {data.path} one has raw values and the other came encoded, so that nothing "
            f"says which ids are the same; begin without --from"
        )
    old = {name: _of_run(name, then[name], keys, old_values) for name in now if name in then}
    new = {name: _of_values(name, f, new_values) for name, f in now.items() if f.dynamic is None}
    if embedding.dynamic is not None:
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
            raise ValueError(f"{run} has no feature of {vocabulary_of(feature)!r}; begin without --from")


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
