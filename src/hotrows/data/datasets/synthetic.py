"""Synthetic clicks in Criteo's raw format: any number of rows, as skewed and learnable as real ones.

Every value is drawn; what makes them resemble Criteo Kaggle are aggregate figures, fitted to the
published counts of its 45.8 million rows and to a sample of 10,000. A row is drawn in this order:

  ids       The values of a field are ordered by their popularity, at places 0, 1, 2, …. After
            an explicit head, the share of places below x is Zipf-Mandelbrot's in closed form,
                F(x) = (q^(1-a) - (x+q)^(1-a)) / (q^(1-a) - (V+q)^(1-a)),
            whose inverse is one power: four billion places need no table. A keyed bijection of
            32-bit numbers makes the id of a place look random.
  families  Many fields are functions of another one: C3 decides C12, that C21, and so on
            through C16 and C4 to C24; C15 decides C14 and C18, that C2; C26 decides C19, C20, C25;
            C7 decides C9 and C11, that C13, and mostly C10, C17, C23. The map is a hash of the
            source's place: it founds a value of its own, or joins one drawn from the field's skew.
  integers  Five Gaussian factors correlate them; each has its own quantiles, which preserve the many
            zeros, ones and twos. The first factor depends on C7, too.
  missing   Columns go missing in groups, beyond thresholds on the same factors.
  click     by the chances of `synthetic_labels`.

Rows come in blocks with a random stream each, so n rows are the first n of any larger number. They
are alike in all but chance: no id appears or fades with time, unlike in Criteo's seven days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hotrows.data.datasets.synthetic_labels import (
    MISSING,
    Columns,
    Floats,
    Integers,
    Teacher,
    calibrated_teacher,
    click_chance,
    hashed_uniform,
    key,
)
from hotrows.runtime.atomic_files import replaced

BLOCK = 16_384  # rows that share a random stream
_CALIBRATION_BLOCKS = 3


@dataclass(frozen=True)
class Skew:
    """Frequencies of places: the shares of the `head`, then Zipf-Mandelbrot over all others."""

    num_places: int
    exponent: float = 1.5
    offset: float = 1.0
    head: tuple[float, ...] = ()


@dataclass(frozen=True)
class Field:
    """A column of ids. One with a `source` is a function of it in the share `fidelity` of rows.

    Place r of the source founds place r here with chance (r / founders)^-decay, at most 1, or joins
    a place that the skew draws, once and for all. So the skew's `num_places` bounds only the latter.
    """

    skew: Skew
    source: str | None = None
    fidelity: float = 1.0
    founders: float = 0.0
    decay: float = 0.0


@dataclass(frozen=True)
class Count:
    """A column of integers: log(1 + value - lowest) goes through `logs` as its normal does _LEVELS.

    So its quantiles are the sample's in the rows where the column is not missing.
    """

    logs: tuple[float, ...]
    largest: int
    loadings: tuple[float, ...]
    lowest: int = 0


@dataclass(frozen=True)
class Gap:
    """Columns that are missing together, in the share `rate` of rows."""

    columns: tuple[str, ...]
    rate: float
    loadings: tuple[float, ...]


# Criteo Kaggle's fields, sources before what depends on them.
FIELDS: dict[str, Field] = {
    "C1": Field(Skew(1_460, 1.976, 0.955)),
    "C5": Field(Skew(305, 2.674, 1.108)),
    "C6": Field(Skew(23, head=(0.5299, 0.2238, 0.1418, 0.0478, 0.0396, 0.0168))),
    "C8": Field(Skew(633, 2.320, 1.032)),
    "C22": Field(Skew(17, head=(0.526, 0.384, 0.037, 0.032, 0.018, 0.002))),
    "C3": Field(Skew(3_900_000_000, 1.066, 4.135, head=(0.0487, 0.0343, 0.0281))),
    "C12": Field(Skew(100_000, 1.07, 4.0), "C3", founders=1e6, decay=0.057),
    "C21": Field(Skew(100_000, 1.07, 4.0), "C12", founders=1e6, decay=0.055),
    "C16": Field(Skew(100_000, 1.07, 4.0), "C21", founders=1e6, decay=0.095),
    "C4": Field(Skew(5_000, 1.1, 4.0, head=(0.08, 0.08)), "C16", founders=1e6, decay=0.67),
    "C24": Field(
        Skew(10_000, 1.2, 4.0, head=(0.04, 0.08, 0.10, 0.10, 0.05)), "C4", founders=4e3, decay=0.39
    ),
    "C15": Field(Skew(14_992, 1.548, 54.0, head=(0.0195, 0.0150))),
    "C18": Field(Skew(2_000, 1.3, 8.0, head=(0.08, 0.03)), "C15", founders=30, decay=0.2),
    "C2": Field(Skew(583, 1.1, 5.0, head=(0.20, 0.10, 0.06)), "C18", founders=30, decay=0.9),
    "C14": Field(Skew(27, 5.53, 10.6, head=(0.363, 0.346, 0.160, 0.036, 0.025)), "C15"),
    "C7": Field(Skew(12_517, 1.085, 30.5, head=(0.0105, 0.0086, 0.0083, 0.0082))),
    "C11": Field(Skew(1_000, 1.15, 5.0), "C7", founders=1_000, decay=0.55),
    "C13": Field(Skew(2_000, 1.15, 5.0), "C11", founders=1_000, decay=0.60),
    "C9": Field(Skew(3, head=(0.887, 0.1125)), "C7"),
    "C10": Field(Skew(93_145, 1.08, 25.0, head=(0.2757, 0.0105, 0.0104)), "C7", fidelity=0.59),
    "C17": Field(
        Skew(10, head=(0.430, 0.133, 0.127, 0.077, 0.060, 0.049, 0.044, 0.042, 0.037)),
        "C7",
        fidelity=0.69,
    ),
    "C23": Field(
        Skew(15, 1.5, 1.0, head=(0.4515, 0.2024, 0.1045, 0.0724, 0.0605, 0.0406, 0.0315, 0.0141)),
        "C7",
        fidelity=0.76,
    ),
    "C26": Field(Skew(142_572, 1.185, 5.9, head=(0.0825,))),
    "C19": Field(Skew(2_172, 0.6, 2.5, head=(0.6014, 0.0365, 0.022, 0.015)), "C26"),
    "C20": Field(Skew(3, head=(0.362, 0.322)), "C26"),
    "C25": Field(Skew(104, 2.2, 2.0, head=(0.328, 0.199, 0.113, 0.065, 0.045, 0.044)), "C26"),
}

# 1 %, 10 %, 25 %, 50 %, 75 %, 90 %, 99 % of a normal; around them the ends, one row in 50 million.
_LEVELS = (-5.5, -2.33, -1.28, -0.67, 0.0, 0.67, 1.28, 2.33, 5.5)

_SAID_BY_C7 = 0.8  # correlation of the first factor with its hash of C7

# The five factors: engagement (how much history there is), whether the placement is known, how much
# context there is, how fresh the history is, and what C6 and C22 share.
COUNTS: dict[str, Count] = {
    "I1": Count((0.00, 0.08, 0.26, 0.57, 1.12, 1.90, 3.50), 5_775, (0.26, 0.05, 0.03, 0.68, 0)),
    "I2": Count((0.74, 1.10, 1.35, 1.85, 3.72, 5.27, 7.71), 257_675, (0, -0.08, 0.07, 0, 0), -2),
    "I3": Count((0.52, 0.89, 1.25, 1.94, 2.91, 3.84, 5.63), 65_535, (0, 0.41, 0.39, 0, 0)),
    "I4": Count((0.01, 0.43, 0.92, 1.53, 2.28, 2.95, 3.77), 969, (0.12, 0, 0.74, 0, 0)),
    "I5": Count((0.49, 2.78, 5.84, 7.99, 9.40, 10.50, 12.97), 23_159_456, (-0.43, 0, -0.16, -0.80, 0)),
    "I6": Count((0.18, 1.36, 2.61, 3.96, 5.10, 6.05, 7.62), 431_037, (-0.14, -0.10, 0.27, -0.75, -0.11)),
    "I7": Count((0.02, 0.28, 0.64, 1.38, 2.40, 3.39, 5.20), 56_311, (0.84, 0, 0, 0.09, 0)),
    "I8": Count((0.08, 0.61, 1.31, 2.19, 3.06, 3.59, 3.91), 6_047, (0.26, 0, 0.68, -0.06, -0.10)),
    "I9": Count((0.25, 1.28, 2.38, 3.71, 4.78, 5.69, 7.10), 29_019, (0.54, -0.08, 0.30, -0.46, -0.13)),
    "I10": Count((0.00, 0.09, 0.26, 0.55, 0.85, 1.03, 1.36), 11, (0.21, 0, 0.05, 0.68, 0)),
    "I11": Count((0.02, 0.27, 0.62, 0.95, 1.34, 1.90, 3.16), 231, (0.83, 0, 0, 0.06, 0)),
    "I12": Count((0.01, 0.12, 0.28, 0.51, 0.69, 1.16, 2.63), 4_008, (0.08, 0, 0, 0.22, -0.07)),
    "I13": Count((0.02, 0.53, 0.99, 1.62, 2.48, 3.21, 4.24), 7_393, (0.06, 0, 0.77, -0.32, 0)),
}

GAPS = (
    Gap(("I1", "I10"), 0.448, (-0.74, 0, -0.15, -0.40, 0.08)),
    Gap(("I3",), 0.204, (0, -0.44, -0.48, -0.06, 0)),
    Gap(("I4", "I13"), 0.198, (-0.11, -0.07, -0.95, -0.21, 0)),
    Gap(("I5",), 0.049, (-0.91, -0.19, -0.20, -0.20, 0)),
    Gap(("I6",), 0.251, (-0.95, -0.06, -0.05, -0.20, -0.06)),
    Gap(("I7", "I9", "I11"), 0.049, (-0.66, -0.06, -0.26, -0.28, -0.08)),
    Gap(("I12",), 0.773, (-0.62, 0, 0, 0.09, 0.05)),
    Gap(("C3", "C4", "C12", "C16", "C21", "C24"), 0.036, (-0.07, -0.29, 0, 0, 0.05)),
    Gap(("C6",), 0.133, (0, 0.20, -0.06, 0, 0.95)),
    Gap(("C19", "C20", "C25", "C26"), 0.450, (-0.18, -0.94, 0, -0.07, -0.19)),
    Gap(("C22",), 0.818, (0, -0.07, 0, 0, 0.60)),
)


def synth_criteo(
    rows: int,
    out: Path | str,
    *,
    seed: int = 0,
    cardinality_scale: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes `rows` synthetic rows, laid out as Criteo's, to `out`/train.txt and returns that path.

    Equal arguments write equal bytes, and fewer rows the first of these.

    rows: the number of rows.
    out: the folder for train.txt.
    seed: the seed of ids and tastes; another seed has other ones with equal statistics.
    cardinality_scale: of criteo: a factor for the number of values that each field can take, at most
        2^32, which is eight hex digits; how many of them occur depends on the number of rows too.
    progress: called with the rows written and `rows` after every block of rows.

    >>> synth_criteo(100, folder, cardinality_scale=0.001).name
    'train.txt'
    """
    if rows < 1 or not 0 < cardinality_scale <= 1e6:
        raise ValueError(
            f"synth_criteo needs rows of 1 or more and a cardinality_scale above 0 and at most 1e6, "
            f"not {rows} and {cardinality_scale}"
        )
    path = Path(out) / "train.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as part, part.open("wb") as file:
        done = 0
        for text in _blocks_of_text(rows, seed, cardinality_scale):
            file.write(text)
            done = min(done + BLOCK, rows)
            if progress:
                progress(done, rows)
    return path


def _blocks_of_text(rows: int, seed: int, scale: float) -> Iterator[bytes]:
    fields = {name: _scaled(field, scale) for name, field in FIELDS.items()}
    teacher = _teacher(seed, fields)
    for block in range(-(-rows // BLOCK)):
        rng = np.random.default_rng([key(seed, "rows"), block])
        columns = draw_columns(rng, seed, fields)
        clicks = rng.random(BLOCK) < click_chance(teacher, columns)
        yield _text(seed, clicks, columns, min(BLOCK, rows - block * BLOCK))


def _scaled(field: Field, scale: float) -> Field:
    num_places = round(field.skew.num_places * scale)
    num_places = min(max(num_places, len(field.skew.head), 2), 2**32)
    skew = replace(field.skew, num_places=num_places)
    return replace(field, skew=skew, founders=field.founders * scale)


def _teacher(seed: int, fields: dict[str, Field]) -> Teacher:
    rng = np.random.default_rng([key(seed, "calibration")])
    draws = [draw_columns(rng, seed, fields) for _ in range(_CALIBRATION_BLOCKS)]
    return calibrated_teacher(seed, {n: np.concatenate([d[n] for d in draws]) for n in draws[0]})


def draw_columns(rng: np.random.Generator, seed: int, fields: dict[str, Field]) -> Columns:
    """A block of rows: for each column [BLOCK] places of ids, or integers above their lowest."""
    columns: Columns = {}
    for name, field in fields.items():
        columns[name] = _draw_places(rng, seed, name, columns, field)
    factors = _draw_factors(rng, seed, columns)
    columns |= {name: _draw_count(rng, factors, count) for name, count in COUNTS.items()}
    for gap in GAPS:
        missing = _correlated(rng, factors, gap.loadings) > NormalDist().inv_cdf(1 - gap.rate)
        for name in gap.columns:
            columns[name] = np.where(missing, MISSING, columns[name])
    return columns


def _draw_places(
    rng: np.random.Generator, seed: int, name: str, columns: Columns, field: Field
) -> Integers:
    if field.source is None:
        return place_at(field.skew, rng.random(BLOCK))
    places = _mapped(seed, name, columns[field.source], field)
    if field.fidelity == 1:
        return places
    faithful = rng.random(BLOCK) < field.fidelity
    return np.where(faithful, places, place_at(field.skew, rng.random(BLOCK)))


def _mapped(seed: int, name: str, source: Integers, field: Field) -> Integers:
    joined = place_at(field.skew, hashed_uniform(key(seed, "joins", name), source))
    if not field.founders:
        return joined
    chance = (np.maximum(source, field.founders) / field.founders) ** -field.decay
    return np.where(hashed_uniform(key(seed, "founds", name), source) < chance, source, joined)


def place_at(skew: Skew, shares: Floats) -> Integers:
    """Returns the places [B] at which the cumulative share exceeds `shares` [B], in [0, 1)."""
    steps = np.cumsum(skew.head)
    head = sum(skew.head)
    num_tail = skew.num_places - len(skew.head)
    if not num_tail:
        return np.searchsorted(steps[:-1], shares, side="right")
    q, power = skew.offset, 1 - skew.exponent
    first, last = q**power, (num_tail + q) ** power
    within = np.maximum(shares - head, 0) / (1 - head)
    tail = ((first - within * (first - last)) ** (1 / power) - q).astype(np.int64)
    tail = np.clip(tail, 0, num_tail - 1) + len(skew.head)
    return np.where(shares < head, np.searchsorted(steps, shares, side="right"), tail)


def _draw_factors(rng: np.random.Generator, seed: int, columns: Columns) -> Floats:
    """Standard normals [5, BLOCK]; the first leans on the hash by which C7 decides C17."""
    factors = rng.standard_normal((5, BLOCK))
    shares = hashed_uniform(key(seed, "joins", "C17"), columns["C7"])
    bell = np.log(shares / (1 - shares)) * np.sqrt(3) / np.pi  # logistic, nearly a normal
    factors[0] = _SAID_BY_C7 * bell + np.sqrt(1 - _SAID_BY_C7**2) * factors[0]
    return factors


def _draw_count(rng: np.random.Generator, factors: Floats, count: Count) -> Integers:
    logs = (0.0, *count.logs, np.log1p(count.largest - count.lowest))
    return np.expm1(np.interp(_correlated(rng, factors, count.loadings), _LEVELS, logs)).astype(np.int64)


def _correlated(rng: np.random.Generator, factors: Floats, loadings: tuple[float, ...]) -> Floats:
    """Draws standard normals [B] with the given loadings on the factors [5, B]."""
    residual = np.sqrt(1 - sum(loading**2 for loading in loadings))
    normal = residual * rng.standard_normal(factors.shape[1])
    for loading, factor in zip(loadings, factors, strict=True):
        if loading:
            normal += loading * factor
    return normal


_HEX = np.array([list(b"%04x" % i) for i in range(1 << 16)], np.uint8)
_DIGITS = np.array([list(b"%04d" % i) for i in range(10_000)], np.uint8)
_LEADING_DIGITS = np.array([list((b"%d" % i).rjust(4, b"\0")) for i in range(10_000)], np.uint8)
_INTEGER_WIDTH, _ID_WIDTH = 10, 9  # tab, sign and eight digits; tab and eight hex digits


def _text(seed: int, clicks: NDArray[np.bool_], columns: Columns, rows: int) -> bytes:
    """Writes the lines of the first `rows` rows at full width, then drops unused, zero bytes.

    label | tab sign digit digit … (13 times) | tab hex hex … (26 times) | newline
    """
    page = np.zeros((rows, 1 + 13 * _INTEGER_WIDTH + 26 * _ID_WIDTH + 1), np.uint8)
    page[:, 0] = clicks[:rows] + ord("0")
    integers, ids = np.split(page[:, 1:-1], [13 * _INTEGER_WIDTH], axis=1)
    for i, cell in enumerate(np.split(integers, 13, axis=1), start=1):
        _write_integer(cell, columns[f"I{i}"][:rows], COUNTS[f"I{i}"].lowest)
    for i, cell in enumerate(np.split(ids, 26, axis=1), start=1):
        _write_id(cell, columns[f"C{i}"][:rows], key(seed, "id", f"C{i}"))
    page[:, -1] = ord("\n")
    return page[page != 0].tobytes()


def _write_integer(cell: NDArray[np.uint8], values: Integers, lowest: int) -> None:
    signed = values + lowest
    high, low = np.divmod(np.abs(signed), 10_000)
    long = (high > 0)[:, None]
    cell[:, 1] = np.where(signed < 0, ord("-"), 0)
    cell[:, 2:6] = np.where(long, _LEADING_DIGITS[high], 0)
    cell[:, 6:10] = np.where(long, _DIGITS[low], _LEADING_DIGITS[low])
    cell[values == MISSING] = 0
    cell[:, 0] = ord("\t")


def _write_id(cell: NDArray[np.uint8], places: Integers, key: int) -> None:
    ids = id_of(key, places)
    cell[:, 1:5] = _HEX[ids >> np.uint32(16)]
    cell[:, 5:9] = _HEX[ids & np.uint32(0xFFFF)]
    cell[places == MISSING] = 0
    cell[:, 0] = ord("\t")


def id_of(key: int, places: Integers) -> NDArray[np.uint32]:
    """The ids of places below 2^32: a keyed bijection, so no two are equal, that looks random."""
    x = places.astype(np.uint32)
    for half in (key & 0xFFFFFFFF, key >> 32):
        x ^= np.uint32(half)
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x7FEB352D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x846CA68B)
        x ^= x >> np.uint32(16)
    return x
