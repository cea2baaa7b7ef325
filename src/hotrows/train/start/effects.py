"""Effects of ids, and of combinations of ids, on a label: fitted before training, by folds.

A combination is admitted that lowers the log loss of an additive model on samples that it was fitted
without (`additive`). Where some are, the model that is trained gets their effects and those of single ids
in tables that are not trained, and vectors of the best pairs in tables that are. The fold of a sample
is a hash of its ids, so that the model finds it too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hotrows.data import EncodedData, Loader
from hotrows.dynamic import any_dynamic
from hotrows.engine import checkpoint
from hotrows.engine.embedding import Embedding
from hotrows.engine.planning.crosses import bucket_of
from hotrows.models.effects import EFFECT, FOLD, FOLDS
from hotrows.train.start.additive import MOST_NUMBERS, Additive, EffectColumn, FittedSamples, combination
from hotrows.train.start.pretrained import GivenRows

# FittedSamples that combinations are chosen by, and effects are fitted on; samples times features.
_SAMPLES, _FITTED, _CELLS = 100_000, 250_000, 5_000_000
# Features whose pairs are screened; pairs that are measured each time; combinations that are admitted at
# most; those of the first that also grow by a third feature. Standard errors of gains of each step.
_SCREENED, _MEASURED, _MOST, _GROWING = 28, 30, 16, 4
_ENTERS, _ADMITTED = 2.0, 3.0
_LEAST = 0.05  # of the gain of single columns that combinations have
# Pairs that get vectors too, at most; samples of a value that they need on average, and the gain, of that
# of single columns.
_CROSSES, _CROSS_ROWS, _SAMPLES_OF_VALUE, _CROSSED = 4, 30_000, 20, 0.1
_FOLD_COLUMNS, _APART = 6, 0.99
_ROOM, _MOST_ROWS = 16, 1 << 20  # rows of a table for each combination that has an effect
_BATCH = 8192


@dataclass(frozen=True)
class Gain:
    """The nats that training samples gain by an effect, by models that were fitted without them."""

    name: str
    nats: float

    def __str__(self) -> str:
        return (
            f"effect of {self.name}: {self.nats:,.0f} nats gained on samples that it was fitted without"
        )


def options(data: EncodedData, label: str | None) -> dict[str, Any]:
    """Options of DeepFM: the effects that it is given, none if no combination of ids says enough."""
    names = [feature.name for feature in data.schema.single]
    task = _task(data, label)
    if len(names) < 2 or not data.schema.labels[task].values.binary:
        return {}
    samples = read(data, names, task, _SAMPLES)
    return choose(samples) if samples.num else {}


def fill(embedding: Embedding, data: EncodedData, label: str | None) -> list[Gain]:
    """Fits the effects that tables are for, and writes their rows; collective between ranks."""
    tables = {table.features[0]: table for table in embedding.tables if table.role == EFFECT}
    if not tables:
        return []
    task = _task(data, label)
    if not data.schema.labels[task].values.binary or any_dynamic(data.schema.id_features):
        raise ValueError(
            "effects are fitted for labels of 0 and 1 by ids of vocabularies, and this data has other "
            "labels or dynamic features: leave the option effects out"
        )
    names = [feature.name for feature in data.schema.single]
    samples = read(data, names, task, _FITTED)
    crosses = {cross.name: cross for cross in embedding.planner.crosses}
    (fold_table,) = (table for table in embedding.tables if table.role == FOLD)
    model = Additive(samples, fold_of(samples, crosses[fold_table.features[0]].features))
    if not model.is_defined:  # too few samples of a label
        return []
    model.fit_columns()
    ids = {column.names[0]: np.arange(column.num_values) for column in model.columns if column.names}
    for name, table in tables.items():
        if name in crosses:
            keys = buckets(samples, crosses[name].features, table.rows)
            column, ids[name] = combination(crosses[name].features, keys)
            model.add(column)
    model.sweep()
    model.sweep()
    filled = {fold_table.name: [GivenRows(fold_table, np.arange(FOLDS), np.eye(FOLDS, FOLDS + 1))]}
    gains = []
    for column in model.columns:
        name = "*".join(column.names) + (f".{EFFECT}" if column.is_combined else "")
        if name in tables and column.effects is not None:
            used = slice(1 if column.is_combined else 0, None)
            filled[tables[name].name] = [GivenRows(tables[name], ids[name][used], column.effects[used])]
            gains += [Gain("*".join(column.names), model.gain_of(column))] if column.tau else []
    checkpoint.fill_tables(embedding, filled)
    return gains


def _task(data: EncodedData, label: str | None) -> int:
    """The number of the label; another one is refused later, with advice."""
    labels = [one.name for one in data.schema.labels]
    return labels.index(label) if label in labels else 0


def read(data: EncodedData, names: Sequence[str], task: int, most: int) -> FittedSamples:
    """The first samples of the training part in random order, about `most` of them; fewer of many
    features."""
    most = min(most, _CELLS // len(data.schema.features))
    ids, numbers, labels, weights = [], [], [], []
    loader = Loader(data.parts["train"], _BATCH, shuffle=True, seed=0)
    for batch in itertools.islice(loader.batches(0), -(-most // _BATCH)):
        batch = batch.expanded()
        assert batch.labels is not None
        begins = torch.arange(len(batch.ids)) if batch.offsets is None else batch.offsets[:-1]
        places = [batch.features.index(name) for name in names]
        ids.append(batch.ids[begins.view(len(batch.features), -1)[places]].numpy())
        numbers.append(batch.dense[:, : MOST_NUMBERS + 1].numpy())
        labels.append(batch.labels.view(batch.size, -1)[:, task].double().numpy())
        of_batch = batch.sample_weights
        weights.append(np.ones(batch.size) if of_batch is None else of_batch.double().numpy())
    y, columns = np.concatenate(labels), np.concatenate(ids, 1)
    known = ~np.isnan(y)
    return FittedSamples(
        dict(zip(names, columns[:, known], strict=True)),
        np.concatenate(numbers)[known],
        y[known],
        np.concatenate(weights)[known],
    )


def choose(samples: FittedSamples) -> dict[str, Any]:
    """Admits combinations one after the other, the one that gains most first.

    The best pairs of few values are crossed too: they get vectors that are trained. If samples have few
    different ids, a fold has all of those that an effect would be of, and pairs are only crossed.
    """
    names, is_apart = _fold_columns(samples)
    model = Additive(samples, fold_of(samples, names))
    admitted = _admit(model)
    chosen: dict[str, Any] = {"effects": []}
    if admitted:
        most = max(column.num_values for column in admitted)
        chosen = {
            "effects": [list(column.names) for column in (*model.single, *admitted)],
            "effect_folds": names,
            "effect_rows": min(1 << (_ROOM * most - 1).bit_length(), _MOST_ROWS),
        }
    elif not is_apart:
        admitted = _admit(Additive(samples, np.random.default_rng(0).integers(FOLDS, size=samples.num)))
    pairs = [column for column in admitted if len(column.names) == 2]
    if chosen["effects"]:
        most, least = samples.num // _SAMPLES_OF_VALUE, _CROSSED * sum(map(model.gain_of, model.single))
        pairs = [c for c in pairs if c.num_values <= most and model.gain_of(c) >= least]
    crosses = [list(column.names) for column in pairs[:_CROSSES]]
    return {**chosen, "crosses": crosses, "cross_rows": _CROSS_ROWS} if crosses else chosen


def fold_of(samples: FittedSamples, names: Sequence[str]) -> np.ndarray:
    """The fold of each sample, [N], by its ids of these columns."""
    return buckets(samples, names, FOLDS)


def buckets(samples: FittedSamples, names: Sequence[str], rows: int) -> np.ndarray:
    """The bucket below `rows` of each sample's ids of these columns, as a `Cross` has it: [N]."""
    return bucket_of(torch.from_numpy(np.stack([samples.ids[name] for name in names])), rows).numpy()


def _fold_columns(samples: FittedSamples) -> tuple[list[str], bool]:
    """Few columns, two at least, that tell samples apart nearly as well as all do; True if most samples
    have ids that no other one has."""

    def distinct(names: Sequence[str]) -> int:
        return len(np.unique(_hashed([samples.ids[name] for name in names])))

    names = sorted(samples.ids, key=lambda name: -distinct([name]))
    most = distinct(names)
    few = next(
        (n for n in range(2, _FOLD_COLUMNS) if distinct(names[:n]) >= _APART * most), _FOLD_COLUMNS
    )
    return names[:few], 2 * most > samples.num


def _hashed(ids: Sequence[np.ndarray]) -> np.ndarray:
    """64 bits of each combination, int64, for this process alone."""
    bits = np.zeros(len(ids[0]), np.uint64)
    for column in ids:
        bits = (bits ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        bits ^= bits >> np.uint64(29)
    return bits.view(np.int64)


def _admit(model: Additive) -> list[EffectColumn]:
    """Fits the model, and returns the combinations of columns that it was given; none if they gain little
    beside single columns."""
    if not model.is_defined:
        return []
    model.fit_columns()
    ids, order = model.samples.ids, list(model.samples.ids)
    by_gain = sorted(model.columns, key=lambda column: -column.gain)
    single = [column.names[0] for column in by_gain if column.names][:_SCREENED]

    def combined(names: Sequence[str]) -> EffectColumn:
        inside = sorted(names, key=order.index)
        return combination(tuple(inside), _hashed([ids[name] for name in inside]))[0]

    candidates = model.best_of(map(combined, itertools.combinations(single, 2)), _ENTERS, _MEASURED)
    admitted: list[EffectColumn] = []
    while len(admitted) < _MOST and (candidates := model.best_of(candidates, _ADMITTED)):
        best = candidates.pop(0)
        model.add(best)
        admitted.append(best)
        if len(best.names) == 2 and len(admitted) <= _GROWING:
            grown = [combined([*best.names, name]) for name in single if name not in best.names]
            known = {column.names for column in (*candidates, *admitted)}
            candidates += [column for column in grown if column.names not in known]
    model.sweep()
    model.sweep()
    admitted = [column for column in admitted if column.tau]
    gained = sum(map(model.gain_of, admitted))
    alone = sum(
        model.gain_of(column) for column in model.columns if len(column.names) == 1 and column.tau
    )
    return admitted if gained > _LEAST * alone else []
