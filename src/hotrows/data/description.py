"""describe: how large and how skewed prepared data is, from the counts that `prepare` stored.

The count of a row is how many lookups of the training part read it; missing and unknown values
count too, since they have rows of their own. A cache wants to know which share of the lookups the
hottest rows serve; that is `curve`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hotrows.data.encoded import EncodedData, Part
from hotrows.data.encoding import readers_of
from hotrows.data.sections import open_sections
from hotrows.schema import FIRST_UNKNOWN, MISSING

HOTTEST = (0.001, 0.01, 0.1)
_CURVE_POINTS = 200
_FIT_BINS = 2000


@dataclass(frozen=True)
class PartSize:
    """rows: samples; click_rate: the share of label 1, None where there are no rows."""

    rows: int
    click_rate: float | None


@dataclass(frozen=True)
class FieldUse:
    """How often a feature is missing, and (for ids) unknown: shares of the rows of each part."""

    name: str
    kind: str
    missing: dict[str, float]
    unknown: dict[str, float] | None


@dataclass(frozen=True)
class VocabularyUse:
    """A space of ids and the lookups of its rows in the training part.

    rows: ids, reserved ones counted; num_distinct: values seen, those below min_count too.
    hottest: {share of rows: share of the lookups they serve}; top: the share of the hottest row.
    zipf: exponent a of the law count ~ rank^-a, fitted to the values by maximum likelihood; None
        where there are fewer than three.
    curve: (share of rows, share of lookups served) of the hottest rows, for a picture.
    table_bytes: what a float32 table of `dim` weights per row takes, without optimizer state.
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
class Description:
    """What `describe` found. dim: the weights per row that `table_bytes` assumes."""

    parts: dict[str, PartSize]
    fields: tuple[FieldUse, ...]
    vocabularies: tuple[VocabularyUse, ...]
    dim: int

    @property
    def table_bytes(self) -> int:
        return sum(vocabulary.table_bytes for vocabulary in self.vocabularies)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "table_bytes": self.table_bytes}


def describe(data: EncodedData, dim: int = 16) -> Description:
    """Sizes, click rates, missing rates and skew of prepared data."""
    used = tuple(_vocabulary_use(data, name, of, dim) for name, of in row_counts(data).items())
    sizes = {name: _part_size(part) for name, part in data.parts.items()}
    return Description(sizes, _fields(data), used, dim)


def row_counts(data: EncodedData) -> dict[str, np.ndarray]:
    """For every vocabulary, int64: how many lookups of the training part read each row.

    Reserved rows first, then values by rank; rows that data written already encoded never read are
    left out. Lookups of unknown values are shared evenly among the rows reserved for them.
    """
    train = data.parts["train"]
    counts = {}
    for name, readers in readers_of(data.schema).items():
        num_unknown = readers[0].num_unknown
        reserved = np.zeros(FIRST_UNKNOWN + num_unknown, np.int64)
        reserved[MISSING] = sum(train.missing[feature.name] for feature in readers)
        unknown = sum(train.unknown[feature.name] for feature in readers)
        reserved[FIRST_UNKNOWN:] = unknown // num_unknown
        reserved[FIRST_UNKNOWN : FIRST_UNKNOWN + unknown % num_unknown] += 1
        stored = open_sections(data.path / data.vocabularies[name].file)["counts"]
        counts[name] = np.concatenate([reserved, stored])
    return counts


def _part_size(part: Part) -> PartSize:
    return PartSize(part.rows, part.clicks / part.rows if part.rows else None)


def _fields(data: EncodedData) -> tuple[FieldUse, ...]:
    parts = {name: part for name, part in data.parts.items() if part.rows}

    def missing(name: str) -> dict[str, float]:
        return {of: part.missing[name] / part.rows for of, part in parts.items()}

    def unknown(name: str) -> dict[str, float]:
        return {of: part.unknown[name] / part.rows for of, part in parts.items()}

    dense = (FieldUse(f.name, "dense", missing(f.name), None) for f in data.schema.dense)
    sparse = (
        FieldUse(f.name, "sparse", missing(f.name), unknown(f.name)) for f in data.schema.sparse
    )
    return (*dense, *sparse)


def _vocabulary_use(data: EncodedData, name: str, counts: np.ndarray, dim: int) -> VocabularyUse:
    readers = readers_of(data.schema)[name]
    rows = data.schema.rows_of(readers[0].name)
    hottest_first = np.sort(counts)[::-1]
    served = np.cumsum(hottest_first) / max(1, hottest_first.sum())
    return VocabularyUse(
        name=name,
        features=tuple(feature.name for feature in readers),
        rows=rows,
        num_distinct=data.vocabularies[name].num_distinct,
        lookups=int(counts.sum()),
        top=float(served[0]),
        hottest={share: _served(served, share, rows) for share in HOTTEST},
        zipf=zipf_exponent(counts[FIRST_UNKNOWN + readers[0].num_unknown :]),
        curve=_curve(served, rows),
        table_bytes=4 * dim * rows,
    )


def _served(served: np.ndarray, share: float, rows: int) -> float:
    """The share of lookups that the hottest `share` of rows serve; at least one row is meant."""
    hottest = max(1, int(share * rows))
    return float(served[min(hottest, len(served)) - 1])


def _curve(served: np.ndarray, rows: int) -> tuple[tuple[float, float], ...]:
    """The curve at points that are evenly spread over the logarithm of the rank."""
    ranks = np.unique(np.geomspace(1, len(served), _CURVE_POINTS).round().astype(np.int64))
    return tuple((float(rank) / rows, float(served[rank - 1])) for rank in ranks)


def zipf_exponent(counts: np.ndarray) -> float | None:
    """The a for which count ~ rank^-a is most likely, for counts in falling order.

    There the mean of log(rank) over all lookups equals its expectation under the law, which falls
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
        low, high = (
            (middle, high) if (weights * ranks).sum() / weights.sum() > seen else (low, middle)
        )
    return low
