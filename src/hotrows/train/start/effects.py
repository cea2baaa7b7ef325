"""Effects of ids and numbers, and of combinations, on a label: fitted before training, by folds.

A combination is admitted that lowers the log loss of an additive model on samples that it was fitted
without (`additive`), and so are bins of a number, and trees (`trees`). Where some are, the model that is
trained gets their effects and those of single ids and numbers, which are not trained, and vectors of the
best pairs of ids. The fold of a sample is a hash of its ids and numbers, so that the model finds it too.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hotrows.data import EncodedData, Loader
from hotrows.engine import checkpoint
from hotrows.engine.embedding import Embedding
from hotrows.engine.planning.crosses import bucket_of
from hotrows.models.effects import BINS, EFFECT, FEW_BINS, FOLD, FOLDS, Effects, fold_of_numbers
from hotrows.table import Table
from hotrows.train.start.additive import Additive, EffectColumn, FittedSamples, combination, with_error
from hotrows.train.start.pretrained import GivenRows
from hotrows.train.start.trees import boosted

# FittedSamples that combinations are chosen by, and effects are fitted on; samples times features.
_SAMPLES, _FITTED, _CELLS = 100_000, 250_000, 5_000_000
_MOST_NUMBERS = 64  # of a schema: of more, none is looked at
# Features whose pairs are screened; pairs that are measured each time; combinations that are admitted at
# most; those of the first that also grow by a third feature. Standard errors of gains of each step.
_SCREENED, _MEASURED, _MOST, _GROWING = 28, 30, 16, 4
_ENTERS, _ADMITTED, _OF_TREES = 2.0, 3.0, 4.0
_FEWEST = 2_000  # samples for trees: of fewer, those of digits made too sure a network (log loss 1.15x)
_MOST_IDS = 40_000  # of a feature that is combined with a number
_LEAST = 0.05  # of the gain of single columns that combinations have
_LEAST_OF_NUMBERS = 0.25  # of that of ids and a line: smaller gains a network makes by itself
# Pairs that get vectors too, at most; samples of a value that they need on average, and the gain, of that
# of single columns.
_CROSSES, _CROSS_ROWS, _SAMPLES_OF_VALUE, _CROSSED = 4, 30_000, 20, 0.1
_FOLD_COLUMNS, _APART = 6, 0.99
_ROOM, _MOST_ROWS = 16, 1 << 20  # rows of a table for each combination that has an effect
_BATCH = 8192
_SHOWN = 4  # effects that a run prints


@dataclass(frozen=True)
class Gains:
    """The nats that training samples gain by each effect, outside of the fit; the largest first."""

    nats: dict[str, float]

    def __str__(self) -> str:
        names = list(self.nats)
        lines = ["effects, and the nats that each gains on samples that it was fitted without:"]
        lines += [f"  {self.nats[name]:9,.0f}  {name}" for name in names[:_SHOWN]]
        if hidden := names[_SHOWN:]:
            lines.append(f"  {sum(self.nats[name] for name in hidden):9,.0f}  {len(hidden)} more")
        return "\n".join(lines)


def options(data: EncodedData, label: str | None) -> dict[str, Any]:
    """Options of DeepFM: the effects that it is given, none if no combination or number says enough."""
    names = [feature.name for feature in data.schema.single]
    task = _task(data, label)
    if len(names) + len(data.schema.dense) < 2 or not data.schema.labels[task].values.binary:
        return {}
    samples = read(data, names, task, _SAMPLES)
    return choose(samples, data.parts["train"].rows <= _FITTED) if samples.num else {}


def fill(embedding: Embedding, model: nn.Module, data: EncodedData, label: str | None) -> list[Gains]:
    """Fits the effects that a model has, and writes them into tables and the dense part; collective
    between ranks."""
    effects = next((module for module in model.modules() if isinstance(module, Effects)), None)
    if effects is None:
        return []
    task = _task(data, label)
    if not data.schema.labels[task].values.binary or data.schema.dynamic_vocabularies:
        raise ValueError(
            "effects are fitted for labels of 0 and 1 by ids of vocabularies, and this data has other "
            "labels or dynamic features: leave the option effects out"
        )
    names = [feature.name for feature in data.schema.single]
    samples = read(data, names, task, _FITTED)
    if not set(effects.numbers) <= samples.numbers.keys() or (effects.trees and not samples.numbers):
        raise ValueError(f"effects of numbers need 1 to {_MOST_NUMBERS} of them in the schema")
    fitted = Additive(samples, fold_of(samples, effects.folds), bool(effects.numbers))
    if not fitted.is_defined:  # too few samples of a label
        return []
    keys = _fit(fitted, effects)
    tables = {table.name: table for table in embedding.tables}
    rows_of = {table.name: _of_fold(table, samples) for table in tables.values() if table.role == FOLD}
    gains: dict[str, float] = collections.defaultdict(float)
    for column in fitted.columns:
        assert column.effects is not None
        used = slice(int(column.is_combined), None)
        rows, values = keys[column][used], column.effects[used]
        names = list(column.names)
        name = f"{'*'.join(names)}.{EFFECT}"
        if names in effects.of_numbers:
            _add_cells(effects, column, rows, values, fitted)
        elif names in effects.of_bins:
            name, of_rows = f"{names[0]}.{EFFECT}.{names[1]}", rows // FEW_BINS
            by_bin = np.zeros((of_rows.max(initial=0) + 1, FEW_BINS, FOLDS + 1))
            by_bin[of_rows, rows % FEW_BINS] = values
            rows_of[name] = (np.arange(len(by_bin)), by_bin.reshape(len(by_bin), -1))
        elif name in tables:
            rows_of[name] = (rows, values)
        else:
            continue
        if column.tau:
            gains["*".join(names)] += fitted.gain_of(column)
    if effects.trees is not None:
        by_names = {column.names: column for column in fitted.columns}
        of_ids = [by_names[names] for names in effects.of_ids]
        trees = boosted(fitted, of_ids, effects.trees.num)
        trees.fill(effects.trees)
        gains[f"{effects.trees.num} trees of numbers and effects"] = trees.gain
    by_table = {name: [GivenRows(tables[name], *of_table)] for name, of_table in rows_of.items()}
    checkpoint.fill_tables(embedding, by_table)
    for place, name in enumerate(effects.numbers):
        bins = fitted.bins[name]
        effects.edges[place, : len(bins.edges)] = torch.from_numpy(bins.edges)
        effects.few_bins[place, : len(bins.few)] = torch.from_numpy(bins.few)
    return [Gains(dict(sorted(gains.items(), key=lambda pair: -pair[1])))] if gains else []


def _fit(fitted: Additive, effects: Effects) -> dict[EffectColumn, np.ndarray]:
    """Fits single columns and the combinations of a model; returns the ids, or bins, by code."""
    fitted.fit_columns()
    keys = {column: np.arange(column.num_values) for column in fitted.columns}
    for cross in effects.crosses:
        if cross.name != effects.fold:
            in_buckets = buckets(fitted.samples, cross.features, cross.rows)
            column, keys[column] = combination(cross.features, in_buckets)
            fitted.add(column)
    both = itertools.product((n for n in effects.of_numbers if len(n) > 1), (FEW_BINS, BINS))
    for names, bins in (*both, *((names, FEW_BINS) for names in effects.of_bins)):
        column, keys[column] = fitted.combined(names, bins)
        fitted.add(column)
    fitted.sweep()
    fitted.sweep()
    return keys


def _of_fold(table: Table, samples: FittedSamples) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the table that tells folds, of an id or of a cross into folds: a 1 in that of the fold."""
    rows = np.arange(table.rows)
    is_id = table.features[0] in samples.ids
    fold = bucket_of(torch.from_numpy(rows)[None], FOLDS).numpy() if is_id else rows
    return rows, np.eye(FOLDS)[fold]


def _add_cells(
    effects: Effects, column: EffectColumn, cells: np.ndarray, values: np.ndarray, fitted: Additive
) -> None:
    """Gives the cells of numbers' bins their effects: those of few bins go to all bins in them."""
    grid = np.zeros((*[column.bins] * len(column.names), FOLDS + 1))
    grid.reshape(-1, FOLDS + 1)[cells] = values
    for axis, name in enumerate(column.names):
        bins = fitted.bins[name].few if column.bins == FEW_BINS else np.arange(BINS)
        grid = grid.take(np.pad(bins, (0, BINS - len(bins))), axis)
    place = effects.of_numbers.index(list(column.names))
    first = sum(BINS ** len(names) for names in effects.of_numbers[:place])
    effects.cells[first : first + BINS ** len(column.names)] += (
        torch.from_numpy(grid).view(-1, FOLDS + 1).to(effects.cells)
    )


def _task(data: EncodedData, label: str | None) -> int:
    """The number of the label; another one is refused later, with advice."""
    labels = [one.name for one in data.schema.labels]
    return labels.index(label) if label in labels else 0


def read(data: EncodedData, names: Sequence[str], task: int, most: int) -> FittedSamples:
    """The first samples of the training part in random order, about `most` of them; fewer of many
    features."""
    most = min(most, _CELLS // len(data.schema.features))
    numbers_of = [feature.name for feature in data.schema.dense]
    numbers_of = numbers_of if len(numbers_of) <= _MOST_NUMBERS else []
    ids, numbers, labels, weights = [], [], [], []
    loader = Loader(data.parts["train"], _BATCH, shuffle=True, seed=0)
    for batch in itertools.islice(loader.batches(0), -(-most // _BATCH)):
        batch = batch.expanded()
        assert batch.labels is not None
        begins = torch.arange(len(batch.ids)) if batch.offsets is None else batch.offsets[:-1]
        places = [batch.features.index(name) for name in names]
        ids.append(batch.ids[begins.view(len(batch.features), batch.size)[places]].numpy())
        numbers.append(batch.dense[:, : len(numbers_of)].numpy().T)
        labels.append(batch.labels.view(batch.size, -1)[:, task].double().numpy())
        of_batch = batch.sample_weights
        weights.append(np.ones(batch.size) if of_batch is None else of_batch.double().numpy())
    y, columns = np.concatenate(labels), np.concatenate(ids, 1)
    known = ~np.isnan(y)
    return FittedSamples(
        dict(zip(names, columns[:, known], strict=True)),
        dict(zip(numbers_of, np.concatenate(numbers, 1)[:, known], strict=True)),
        y[known],
        np.concatenate(weights)[known],
    )


@dataclass(frozen=True)
class _Fit:
    """An additive model with the columns that it admits.

    folds: features that tell folds; is_apart: samples differ in these.
    """

    model: Additive
    admitted: list[EffectColumn]
    folds: list[str]
    is_apart: bool

    @staticmethod
    def from_samples(samples: FittedSamples, with_numbers: bool, parts_numbers: bool) -> _Fit:
        folds, is_apart = _fold_columns(samples, parts_numbers)
        model = Additive(samples, fold_of(samples, folds), with_numbers)
        return _Fit(model, _admit(model), folds, is_apart)

    @property
    def has_pairs_of_numbers(self) -> bool:
        return any(column.bins and column.is_combined for column in self.admitted)

    def num_trees(self) -> int:
        """How many trees are admitted: none if numbers say little beside ids, or if trees gain little
        beside what a network learns by itself."""
        model = self.model
        if not model.is_defined or model.samples.num < _FEWEST:
            return 0
        of_ids = [*model.single, *self.admitted]
        bins = [column for column in model.columns if column.bins and column.tau]
        of_numbers = model.line_gain() + sum(map(model.gain_of, bins))
        if of_numbers <= _LEAST * sum(map(model.gain_of, of_ids)):
            return 0
        trees = boosted(model, of_ids)
        errors = with_error(model.smooth_losses() - trees.losses)[1]
        return len(trees.values) if errors > _OF_TREES else 0


def choose(samples: FittedSamples, has_few: bool = True) -> dict[str, Any]:
    """Admits combinations one after the other, the one that gains most first.

    Numbers are in pairs that are admitted, else in trees, else in bins. The best pairs of few values of
    ids are crossed too: they get vectors that are trained. If samples have few different ids, a fold has
    all of those that an effect would be of, and pairs are only crossed. has_few: whether there are few
    samples; of many, a network learns by itself what trees would say, and none are fitted.
    """
    fit, trees = None, 0
    if samples.numbers:
        fit = _Fit.from_samples(samples, with_numbers=True, parts_numbers=True)
        if has_few and not fit.has_pairs_of_numbers:
            beside = _Fit.from_samples(samples, with_numbers=False, parts_numbers=True)
            if trees := beside.num_trees():
                fit = beside
    if fit is None or not (fit.admitted or trees):
        if len(samples.ids) < 2:
            return {"effects": []}
        fit = _Fit.from_samples(samples, with_numbers=False, parts_numbers=False)
    model = fit.model
    chosen: dict[str, Any] = {"effects": []}
    of_ids = [column for column in fit.admitted if not column.bins]
    if fit.admitted or trees:
        most = max((column.num_values for column in of_ids), default=1)
        used = dict.fromkeys(column.names for column in (*model.single, *fit.admitted))
        chosen = {
            "effects": [list(names) for names in used],
            "effect_folds": fit.folds,
            "effect_rows": min(1 << (_ROOM * most - 1).bit_length(), _MOST_ROWS),
        }
        if trees:
            chosen["effect_trees"] = trees
    elif not fit.is_apart:
        fold = np.random.default_rng(0).integers(FOLDS, size=samples.num)
        of_ids = _admit(Additive(samples, fold, with_numbers=False))
    pairs = [column for column in of_ids if len(column.names) == 2]
    if fit.admitted or trees:
        most, least = samples.num // _SAMPLES_OF_VALUE, _CROSSED * sum(map(model.gain_of, model.single))
        pairs = [c for c in pairs if c.num_values <= most and model.gain_of(c) >= least]
    crosses = [list(column.names) for column in pairs[:_CROSSES]]
    return {**chosen, "crosses": crosses, "cross_rows": _CROSS_ROWS} if crosses else chosen


def fold_of(samples: FittedSamples, names: Sequence[str]) -> np.ndarray:
    """The fold of each sample, [N], by its ids and numbers of these columns."""
    fold = np.zeros(samples.num, np.int64)
    ids, numbers = ([n for n in names if n in some] for some in (samples.ids, samples.numbers))
    if ids:
        fold += buckets(samples, ids, FOLDS)
    if numbers:
        stacked = np.stack([samples.numbers[name] for name in numbers], 1)
        fold += fold_of_numbers(torch.from_numpy(stacked)).numpy()
    return fold % FOLDS


def buckets(samples: FittedSamples, names: Sequence[str], rows: int) -> np.ndarray:
    """The bucket below `rows` of each sample's ids of these columns, as a `Cross` has it: [N]."""
    return bucket_of(torch.from_numpy(np.stack([samples.ids[name] for name in names])), rows).numpy()


def _fold_columns(samples: FittedSamples, with_numbers: bool) -> tuple[list[str], bool]:
    """Few columns of ids, two at least, that tell samples apart nearly as well as all do, and all
    numbers; True if most samples are told apart from all others."""
    of_numbers = samples.numbers if with_numbers else {}
    numbers = [x.astype(np.float32).view(np.int32) for x in of_numbers.values()]

    def distinct(columns: Sequence[np.ndarray]) -> int:
        return len(np.unique(_hashed(columns))) if columns else 0

    ids = dict(sorted(samples.ids.items(), key=lambda pair: -distinct([pair[1]])))
    most, columns = distinct([*ids.values()]), list(ids.values())
    few = next(
        (n for n in range(2, _FOLD_COLUMNS) if distinct(columns[:n]) >= _APART * most), _FOLD_COLUMNS
    )
    is_apart = 2 * distinct([*columns, *numbers]) > samples.num
    return [*list(ids)[:few], *of_numbers], is_apart


def _hashed(ids: Sequence[np.ndarray]) -> np.ndarray:
    """64 bits of each combination, int64, for this process alone."""
    bits = np.zeros(len(ids[0]), np.uint64)
    for column in ids:
        bits = (bits ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        bits ^= bits >> np.uint64(29)
    return bits.view(np.int64)


def _admit(model: Additive) -> list[EffectColumn]:
    """Fits the model, and returns the combinations of columns that it was given, and bins of numbers;
    none if combinations gain little beside ids, or numbers little beside ids and their own line."""
    if not model.is_defined:
        return []
    model.fit_columns()
    ids, order = model.samples.ids, [*model.samples.ids, *model.bins]
    by_gain = sorted(model.columns, key=lambda column: -column.gain)
    names = dict.fromkeys(column.names[0] for column in by_gain)
    single = [name for name in names if name in ids or model.with_numbers][:_SCREENED]

    def combined(names: Sequence[str]) -> Iterator[EffectColumn]:
        inside = sorted(names, key=order.index)
        numbers = [name for name in names if name in model.bins]
        if not numbers:
            yield combination(tuple(inside), _hashed([ids[name] for name in inside]))[0]
        elif len(numbers) == 2:
            yield from (model.combined(inside, bins)[0] for bins in (FEW_BINS, BINS))
        elif len(names) == 2 and ids[inside[0]].max() < _MOST_IDS:
            yield model.combined(inside, FEW_BINS)[0]

    pairs = itertools.chain.from_iterable(map(combined, itertools.combinations(single, 2)))
    candidates = model.best_of(pairs, _ENTERS, _MEASURED)
    admitted: list[EffectColumn] = []
    while len(admitted) < _MOST and (candidates := model.best_of(candidates, _ADMITTED)):
        best = candidates.pop(0)
        model.add(best)
        admitted.append(best)
        if len(best.names) == 2 and not best.bins and len(admitted) <= _GROWING:
            others = [name for name in single if name in ids and name not in best.names]
            grown = [column for name in others for column in combined([*best.names, name])]
            known = {column.names for column in (*candidates, *admitted)}
            candidates += [column for column in grown if column.names not in known]
    model.sweep()
    model.sweep()
    admitted = [column for column in admitted if column.tau]
    of_bins = [column for column in model.single if column.bins and column.errors > _ADMITTED]
    of_numbers = [column for column in (*admitted, *of_bins) if column.bins]
    alone = sum(model.gain_of(column) for column in model.single if not column.bins)
    if not model.with_numbers:
        return admitted if sum(map(model.gain_of, admitted)) > _LEAST * alone else []
    gained = sum(model.gain_of(column, beside_curve=True) for column in of_numbers)
    is_enough = gained > _LEAST_OF_NUMBERS * (alone + model.line_gain())
    return [*admitted, *of_bins] if is_enough else []
