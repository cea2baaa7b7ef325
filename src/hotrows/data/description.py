"""describe: how large and how skewed prepared data is, and what is odd about its columns.

Sizes and skew come from the counts that `prepare` stored. The count of a row is the number of its
lookups in the training part; missing and unknown values count too, since they have rows of their
own. `curve` is the share of lookups that the hottest rows serve, for the sizing of caches.

Lengths of lists, fields that are missing together or equal, and drift between the parts come from
a sample of every part, 64 blocks of rows spread evenly over it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from hotrows.data.columns.number import NumberColumns
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.encode.encoder import readers_of
from hotrows.data.encode.oddities import lost_digits, oddities
from hotrows.data.encode.rates import ValueRates
from hotrows.data.encode.vocabulary import open_values
from hotrows.data.rows import Rows
from hotrows.data.stored.encoded import EncodedData
from hotrows.data.stored.part import Part
from hotrows.schema import FIRST_UNKNOWN, MISSING, TIME_TRANSFORMS, Schema, Sequence, Sparse

HOTTEST = (0.001, 0.01, 0.1)
QUANTILES = (0.5, 0.9, 0.99)
DENSE_QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
STABLE = 0.1  # the largest PSI without drift
_TOGETHER = 0.95
_SINGLE_BINS, _FREQUENT = 32, 30  # number of ids with a bin each, and the least count of one
_CURVE_POINTS = 200
_BLOCKS, _BLOCK_ROWS, _CELLS = 64, 4096, 1 << 26  # of a sample, and its cells at most
_COMPARED_AT_ONCE, _CELLS_COMPARED, _LEAST_COMPARED = 256, 1 << 24, 1 << 11
_FIT_BINS = 2000
_HISTOGRAM_BINS = 24
_WHOLE = 1e-5  # relative distance up to which a number that float32 has kept is whole


@dataclass(frozen=True)
class PartSize:
    """rows: samples; positive_rates: per label of 0 and 1 the share of 1, None where no row has the
    label."""

    rows: int
    positive_rates: dict[str, float | None]


@dataclass(frozen=True)
class FieldUse:
    """Shares of a feature's values that are missing (of lists: of the lists that are empty), and (of ids)
    unknown, in every part."""

    name: str
    kind: str
    missing: dict[str, float]
    unknown: dict[str, float] | None


@dataclass(frozen=True)
class VocabularyUse:
    """A vocabulary and the lookups of its rows in the training part.

    rows: ids, reserved ones included; num_distinct: values seen, those below min_count too.
    hottest: {share of rows: share of the lookups they serve}; top: share of the hottest row.
    zipf: exponent a of the law count ~ rank^-a, fitted to the values by maximum likelihood; None
        where there are fewer than three.
    curve: (share of rows, share of lookups served) of the hottest rows, for a picture.
    table_bytes: of a float32 table with `dim` weights per row, without optimizer state.
    """

    name: str
    features: tuple[str, ...]
    rows: int
    num_distinct: int
    lookups: int
    top: float
    hottest: dict[float, float]
    zipf: float | None
    curve: tuple[tuple[float, float], ...]
    table_bytes: int


@dataclass(frozen=True)
class ListUse:
    """Lengths of a feature's lists in the training part.

    empty: share of rows without an id; quantiles: {share of rows: length they do not exceed}.
    """

    name: str
    mean: float
    empty: float
    quantiles: dict[float, int]
    longest: int


@dataclass(frozen=True)
class DenseUse:
    """Numbers of a dense feature in the training part, in the units of the raw column; under `log` those
    below 0 are 0.

    count: of samples that have one. All others are of some samples: mean, deviation (std), and quantiles
    {fraction of the numbers: number they do not exceed}, min and max too; None if no sample has one.
    histogram: edges from the 1 % to the 99 % quantile of the numbers as they are after the transform, and
        the share between each two.
    """

    name: str
    transform: str
    count: int
    mean: float | None = None
    deviation: float | None = None
    quantiles: dict[float, float] = field(default_factory=dict)
    histogram: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


@dataclass(frozen=True)
class Description:
    """Sizes, skew and oddities of prepared data. dim: weights per row that `table_bytes` assumes.

    missing_together: groups of id features that are missing in nearly equal rows (their rows in
        common are at least 95 % of those of either).
    same: pairs of id features that are equal up to renaming: each id of one occurs with a single id
        of the other; of several such features, each with the first.
    drift: per feature and part, the PSI (population stability index) against the training part: the sum
        of (p - q) log(p / q) over bins of ids by frequency (of numbers, tenths), less what chance
        explains. Up to 0.1 is called stable, above 0.25 a shift. Ids that training lacks do not count:
        their share is in `fields`. Hours, weekdays and days have none: a part covers those that it was
        cut at.
    oddities: what every user would want to be warned of, a line each.
    """

    parts: dict[str, PartSize]
    fields: tuple[FieldUse, ...]
    vocabularies: tuple[VocabularyUse, ...]
    dim: int
    lists: tuple[ListUse, ...] = ()
    missing_together: tuple[tuple[str, ...], ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    drift: dict[str, dict[str, float]] = field(default_factory=dict)
    oddities: tuple[str, ...] = ()
    dense: tuple[DenseUse, ...] = ()

    @property
    def table_bytes(self) -> int:
        return sum(vocabulary.table_bytes for vocabulary in self.vocabularies)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "table_bytes": self.table_bytes}


def describe(data: EncodedData, dim: int = 16) -> Description:
    """Computes sizes, positive rates, missing rates and skew of prepared data. dim: the dim of tables.

    >>> describe(data).parts["train"].positive_rates
    {'click': 0.5375}
    """
    if data.source is not None:
        raise ValueError(
            f"describe reads prepared data, not Parquet files as they are ({data.path}); prepare them, "
            f"or train without a description"
        )
    columns = data.parts["train"].columns
    num_columns = len(data.schema.features) + len(data.schema.labels)
    block_rows = min(_BLOCK_ROWS, max(1, _CELLS // _BLOCKS // num_columns))
    samples = {name: part.sample(_BLOCKS, block_rows) for name, part in data.parts.items() if part.rows}
    train = samples.get("train")
    readers = readers_of(data.schema)
    return Description(
        parts={name: _part_size(part) for name, part in data.parts.items()},
        fields=_fields(data),
        vocabularies=tuple(
            _vocabulary_use(data, name, readers[name], counts, dim)
            for name, counts in row_counts(data).items()
        ),
        dim=dim,
        lists=() if train is None else tuple(_list_uses(columns, train)),
        missing_together=() if train is None else _missing_together(columns, train),
        same=() if train is None else tuple(_same(data.schema, train)),
        drift=_drift(columns, samples),
        oddities=(*lost_digits(data), *oddities(data)),
        dense=() if train is None else tuple(_dense_uses(data, train)),
    )


def row_counts(data: EncodedData) -> dict[str, np.ndarray]:
    """Counts the lookups of each row in the training part, int64, per vocabulary.

    Reserved rows come first, then values by rank; data written by `write_encoded` leaves out rows
    without lookups. Lookups of unknown values are divided evenly among the rows reserved for them.
    """
    train = data.parts["train"]
    counts = {}
    for name, readers in readers_of(data.schema).items():
        num_unknown = readers[0].num_unknown
        reserved = np.zeros(FIRST_UNKNOWN + num_unknown, np.int64)
        reserved[MISSING] = sum(train.missing[feature.name] for feature in readers)
        unknown = sum(train.unknown[feature.name] for feature in readers)
        reserved[FIRST_UNKNOWN:] = unknown // max(1, num_unknown)
        reserved[FIRST_UNKNOWN : FIRST_UNKNOWN + unknown % max(1, num_unknown)] += 1
        vocabulary = data.vocabularies[name]
        stored = open_values(data.path / vocabulary.file, vocabulary.header).counts
        counts[name] = np.concatenate([reserved, stored])
    return counts


def _part_size(part: Part) -> PartSize:
    counts = zip(part.schema.labels, part.clicks, part.labelled, strict=True)
    rates = {
        label.name: clicks / total if total else None
        for label, clicks, total in counts
        if label.values.binary
    }
    return PartSize(part.rows, rates)


def _fields(data: EncodedData) -> tuple[FieldUse, ...]:
    parts = {name: part for name, part in data.parts.items() if part.rows}
    counts = {name: ValueRates.of_parts([part], ()).features for name, part in parts.items()}

    def share(kind: str, name: str) -> dict[str, float]:
        return {part: features[name].rate(kind) for part, features in counts.items()}

    dense = (FieldUse(name, "dense", share("missing", name), None) for name in data.schema.dense_places)
    ids = (
        FieldUse(f.name, type(f).__name__.lower(), share("missing", f.name), share("unknown", f.name))
        for f in data.schema.id_features
    )
    return (*dense, *ids)


def quantile_name(share: float) -> str:
    """A quantile in words: min, 1 %, median."""
    return {0.0: "min", 0.5: "median", 1.0: "max"}.get(share, f"{share:.0%}")


def _dense_uses(data: EncodedData, rows: Rows) -> Iterator[DenseUse]:
    """Yields how each dense feature is distributed, without the zeros that missing values became."""
    dense, part = data.schema.dense, data.parts["train"]
    numbers = NumberColumns(data.schema, data.statistics)
    for d, feature in enumerate(dense):
        missing = 0 if feature.transform == "missing" else part.missing[feature.name]
        column = np.sort(rows.arrays["dense"][:, d])
        first, end = np.searchsorted(column, [0.0, np.nextafter(np.float32(0), np.float32(1))])
        absent = min(end - first, round(missing / part.rows * len(column)))
        column = np.delete(column, np.s_[first : first + absent])
        values = numbers.inverse(d, column)
        if not len(values):
            yield DenseUse(feature.name, feature.transform, 0)
            continue
        quantiles = {share: float(np.quantile(values, share)) for share in DENSE_QUANTILES}
        low, high = np.quantile(column, [0.01, 0.99])
        edges = np.linspace(low, high if high > low else low + 1, _HISTOGRAM_BINS + 1)
        is_whole = (np.abs(values - values.round()) <= _WHOLE * (1 + np.abs(values))).all()
        if is_whole and feature.transform != "missing":
            edges = _between_whole_numbers(numbers.inverse(d, edges))
            edges = numbers.transformed(np.tile(edges, (len(dense), 1)), 1)[:, d].astype(np.float64)
        shares = np.histogram(column.clip(edges[0], edges[-1]), edges)[0] / len(values)
        yield DenseUse(
            name=feature.name,
            transform=feature.transform,
            count=part.rows - missing,
            mean=float(values.mean()),
            deviation=float(values.std()),
            quantiles=quantiles,
            histogram=(tuple(edges.tolist()), tuple(shares.tolist())),
        )


def _between_whole_numbers(edges: np.ndarray) -> np.ndarray:
    """Edges near others: each bin has as many whole numbers as the one before, or more; else a comb."""
    widths = np.maximum.accumulate(np.ceil(np.diff(edges) * (1 - _WHOLE)).clip(1))
    between = np.round(edges[0]) - 0.5 + np.append(0, widths.cumsum())
    return between[: np.searchsorted(between, edges[-1] * (1 - _WHOLE)) + 1]


def _list_uses(columns: SchemaColumns, rows: Rows) -> Iterator[ListUse]:
    for name in (column.name for column in columns.ids if column.is_list):
        lengths = np.sort(np.diff(rows.bounds[name].astype(np.int64)))
        places = {share: min(int(share * len(lengths)), len(lengths) - 1) for share in QUANTILES}
        yield ListUse(
            name=name,
            mean=float(lengths.mean()),
            empty=float((lengths == 0).mean()),
            quantiles={share: int(lengths[place]) for share, place in places.items()},
            longest=int(lengths[-1]),
        )


def _missing_together(columns: SchemaColumns, rows: Rows) -> tuple[tuple[str, ...], ...]:
    """Groups features that are missing in nearly equal rows, each with the first that matches."""
    names, patterns = [], []
    for column in columns.ids:
        absent = column.absent(rows.arrays[f"ids/{column.name}"], rows.bounds.get(column.name))
        if absent.any():
            names.append(column.name)
            patterns.append(absent)
    if not names:
        return ()
    most = max(_LEAST_COMPARED, _CELLS_COMPARED // len(names))
    absences = np.array([absent[:most] for absent in patterns], np.float32)  # [F, rows]
    sizes = absences.sum(1)
    groups: dict[int, list[int]] = {}
    for first in range(0, len(names), _COMPARED_AT_ONCE):
        common = absences[first : first + _COMPARED_AT_ONCE] @ absences.T
        for f, shared in enumerate(common, first):
            heads = np.fromiter(groups, np.int64, len(groups))
            least = _TOGETHER * np.maximum(sizes[heads], sizes[f])
            matching = heads[(shared[heads] >= least) & (sizes[heads] > 0) & (sizes[f] > 0)]
            groups.setdefault(int(matching[0]) if len(matching) else f, []).append(f)
    return tuple(tuple(names[f] for f in group) for group in groups.values() if len(group) > 1)


def _same(schema: Schema, rows: Rows) -> Iterator[tuple[str, str]]:
    """Yields pairs of features that are equal up to renaming, with at least two ids: each with the first
    one, by their ids numbered in the order in which they occur."""
    first: dict[bytes, str] = {}
    for feature in (feature for feature in schema.id_features if feature.name not in rows.bounds):
        ids = rows.arrays[f"ids/{feature.name}"]
        _, starts, numbers = np.unique(ids, return_index=True, return_inverse=True)
        if len(starts) > 1:
            places = np.empty(len(starts), np.uint32)
            places[np.argsort(starts)] = np.arange(len(starts))
            known = first.setdefault(sha256(places[numbers].data).digest(), feature.name)
            if known != feature.name:
                yield known, feature.name


def _drift(columns: SchemaColumns, samples: Mapping[str, Rows]) -> dict[str, dict[str, float]]:
    if "train" not in samples:
        return {}
    others = {name: rows for name, rows in samples.items() if name != "train"}
    drift: dict[str, dict[str, float]] = {}
    for d, dense in enumerate(columns.numbers.features):
        values = {name: rows.arrays["dense"][:, d] for name, rows in samples.items()}
        bounds = np.unique(np.quantile(values["train"], np.arange(0.1, 1, 0.1)))
        bins = {name: np.searchsorted(bounds, of_part) for name, of_part in values.items()}
        drift[dense.name] = {name: _stability(bins["train"], bins[name]) for name in others}
    for column in (column for column in columns.ids if column.transform not in TIME_TRANSFORMS):
        ids = {name: rows.values(f"ids/{column.name}") for name, rows in samples.items()}
        known = {name: of_part[~column.is_unknown(of_part)] for name, of_part in ids.items()}
        drift[column.name] = {name: _stability(*_bins(known["train"], known[name])) for name in others}
    return drift


def _bins(train: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bins the ids of both samples by how often training has them: the most frequent ids of either one by
    one, others by powers of two. Ids that training lacks are left out.

    A row of training counts its id without itself, as if it were a row of the other part: so two samples
    of one distribution fall into the bins alike, however many ids are seen once and new ids come.
    """
    ids, place, counts = np.unique(train, return_inverse=True, return_counts=True)
    other_place = np.searchsorted(ids, other[np.isin(other, ids)])
    other_counts = np.bincount(other_place, minlength=len(ids))
    share = np.maximum(counts / max(1, len(train)), other_counts / max(1, len(other)))
    most = np.argsort(-share, kind="stable")[:_SINGLE_BINS]
    most = most[np.maximum(counts, other_counts)[most] >= _FREQUENT]
    single = np.full(len(ids), -1)
    single[most] = np.arange(len(most))

    def bins_of(place: np.ndarray, counted: np.ndarray) -> np.ndarray:
        place, counted = place[counted > 0], counted[counted > 0]
        by_count = _SINGLE_BINS + np.log2(counted).astype(np.int64)
        return np.where(single[place] >= 0, single[place], by_count)

    return bins_of(place, counts[place] - 1), bins_of(other_place, counts[other_place])


def _stability(train: np.ndarray, other: np.ndarray) -> float:
    """Population stability index of two samples of bins, with half a count added to each bin, less what
    two samples of one distribution have by chance: it is (1 / n + 1 / m) times a chi-square variable of
    bins - 1 degrees of freedom, whose mean and five standard deviations are taken off."""
    if not len(train) or not len(other):
        return 0.0
    size = int(max(train.max(), other.max())) + 1
    p, q = (np.bincount(bins, minlength=size) for bins in (train, other))
    seen = (p > 0) | (q > 0)
    p, q = ((counts[seen] + 0.5) / (counts[seen] + 0.5).sum() for counts in (p, q))
    freedom = len(p) - 1
    chance = (1 / len(train) + 1 / len(other)) * (freedom + 5 * math.sqrt(2 * freedom))
    return max(0.0, float(((p - q) * np.log(p / q)).sum()) - chance)


def _vocabulary_use(
    data: EncodedData, name: str, readers: list[Sparse | Sequence], counts: np.ndarray, dim: int
) -> VocabularyUse:
    grows = readers[0].dynamic is not None and readers[0].dynamic.capacity is None
    rows = len(counts) if grows else data.schema.rows_of(readers[0].name)
    hottest_first = np.sort(counts)[::-1]
    served = np.cumsum(hottest_first) / max(1, hottest_first.sum())
    most = {share: max(1, int(share * rows)) for share in HOTTEST}
    # Points of the curve are spread evenly over the logarithm of the rank.
    ranks = np.unique(np.geomspace(1, len(served), _CURVE_POINTS).round().astype(np.int64))
    return VocabularyUse(
        name=name,
        features=tuple(feature.name for feature in readers),
        rows=rows,
        num_distinct=data.vocabularies[name].num_distinct,
        lookups=int(counts.sum()),
        top=float(served[0]),
        hottest={share: float(served[min(hottest, len(served)) - 1]) for share, hottest in most.items()},
        zipf=zipf_exponent(counts[FIRST_UNKNOWN + readers[0].num_unknown :]),
        curve=tuple((float(rank) / rows, float(served[rank - 1])) for rank in ranks),
        table_bytes=4 * dim * rows,
    )


def zipf_exponent(counts: np.ndarray) -> float | None:
    """Fits the exponent a of count ~ rank^-a by maximum likelihood, for counts in falling order.

    At that a the mean of log(rank) over all lookups equals its expectation under the law, which falls
    with a: found by bisection, the ranks gathered in bins of nearly equal logarithm.
    """
    counts = counts[counts > 0]
    if len(counts) < 3:
        return None
    bounds = np.unique(np.geomspace(1, len(counts) + 1, _FIT_BINS).round().astype(np.int64))
    sizes = np.diff(bounds)
    ranks = np.log((bounds[:-1] + bounds[1:] - 1) / 2)
    lookups = np.add.reduceat(counts.astype(np.float64), bounds[:-1] - 1)
    seen = float((lookups * ranks).sum() / lookups.sum())
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        weights = sizes * np.exp(-middle * ranks)
        low, high = (middle, high) if (weights * ranks).sum() / weights.sum() > seen else (low, middle)
    return low
