"""profile: which rows are hot, and what share of training they would serve.

Two samples are drawn from the training part, in blocks of consecutive rows, so that mapped shards
are read in pieces. Every stretch of the part gives one block to each:

    blocks of the part    . c . . m . | m . . c . . | . . c m . .
                          c: counted, to choose the hot ids; m: measured, to say how good they are

A row looks hotter in the sample that chose it than it is; the measured sample never saw the choice,
so its shares are without bias. Rows of a block resemble one another, so the shares of the blocks
say how wide an interval is: Wilson's, over as many independent trials as the blocks are worth.

Counts are kept for the ids of the sample alone: memory grows with the sample, not with the tables.
FAE (Adnan et al., VLDB 2022) looks for a threshold of accesses whose rows just fit, by sampling
the tables once more (its Rand-Em Box); counts this compact give that threshold exactly, per byte.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from hotrows.data.encoded import EncodedData, Part
from hotrows.data.encoding import readers_of
from hotrows.data.gather import ends_of, joined_offsets
from hotrows.data.prepare import Progress
from hotrows.data.sections import open_sections, write_sections
from hotrows.data.shards import Rows
from hotrows.optim import RowOptimizer
from hotrows.planning.budget import format_bytes
from hotrows.record import layout_of
from hotrows.schema import Schema, Table, vocabulary_of

WORTHWHILE = 0.2  # of samples all-hot; with fewer, four batches in five train as if none were
WHOLE = 1 << 20  # a vocabulary of no more bytes is hot as a whole, as in FAE
HOT_FILE = "hot.ids"  # where regrouped data keeps its profile

_FORMAT = 1
_LEAST_COUNT = 2  # an id read once says little about how often it is read
_BLOCK_ROWS, _BLOCKS = 4096, 256  # rows of a block at most; blocks of a sample, where rows allow
_TABLE_BYTES = 1 << 24


@dataclass(frozen=True)
class Share:
    """A share that was measured on a sample; the true one is from `low` to `high`, at the
    confidence of the profile."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f} %)"


@dataclass(frozen=True)
class HotVocabulary:
    """What is hot of a vocabulary.

    rows, hot_rows: ids in all, and hot ones; bytes: of the hot rows, in all tables that read them.
    threshold: how often the least read hot id was read in the counted sample; 0 where the
        vocabulary is hot as a whole, None where nothing of it is hot.
    lookups: the share of its lookups that are hot.
    """

    name: str
    features: tuple[str, ...]
    rows: int
    hot_rows: int
    bytes: int
    threshold: int | None
    lookups: Share


@dataclass(frozen=True, eq=False)
class Profile:
    """The hot ids of a data set, and what they are worth.

    hot: per vocabulary its hot ids, ascending, int64; vocabularies: what they serve of each.
    lookups, samples: the share of lookups that are hot, and of samples whose lookups all are.
    fast_memory: the budget in bytes; sample: the share of the training part that each of the two
        samples was to have; counted, measured: the rows they had.
    fingerprint: of the data.
    """

    hot: Mapping[str, np.ndarray]
    vocabularies: tuple[HotVocabulary, ...]
    lookups: Share
    samples: Share
    fast_memory: int
    sample: float
    counted: int
    measured: int
    confidence: float
    seed: int
    fingerprint: str

    @property
    def hot_rows(self) -> int:
        return sum(of.hot_rows for of in self.vocabularies)

    @property
    def bytes(self) -> int:
        """What the hot rows take of the budget."""
        return sum(of.bytes for of in self.vocabularies)

    def to_json(self) -> dict[str, Any]:
        """All but the ids."""
        fields = asdict(dataclasses.replace(self, hot={}))
        del fields["hot"]
        return {"hot_rows": self.hot_rows, "bytes": self.bytes, **fields}

    def save(self, path: Path | str) -> None:
        part = Path(f"{path}.part")
        header = {"kind": "profile", "format": _FORMAT, "profile": self.to_json()}
        write_sections(part, header, {f"ids/{name}": ids for name, ids in self.hot.items()})
        os.replace(part, path)

    @staticmethod
    def load(path: Path | str) -> Profile:
        file = open_sections(Path(path))
        if (file.header.get("kind"), file.header.get("format")) != ("profile", _FORMAT):
            raise ValueError(
                f"{path} is no profile of format {_FORMAT}, the one that this hotrows reads; "
                f"profile the data again"
            )
        file.check()
        given = dict(file.header["profile"])
        del given["hot_rows"], given["bytes"]
        vocabularies = tuple(_hot_vocabulary(of) for of in given.pop("vocabularies"))
        hot = {of.name: file[f"ids/{of.name}"].copy() for of in vocabularies}
        lookups, samples = Share(**given.pop("lookups")), Share(**given.pop("samples"))
        return Profile(hot, vocabularies, lookups, samples, **given)

    @staticmethod
    def of(data: EncodedData) -> Profile:
        """The profile by which data was regrouped."""
        data.hot_and_cold()  # says so where it was not
        return Profile.load(data.path / HOT_FILE)


def profile(
    data: EncodedData,
    *,
    bytes_per_row: Mapping[str, int],
    fast_memory: int,
    sample: float = 0.05,
    confidence: float = 0.999,
    seed: int = 0,
    progress: Progress = lambda stage, done, total: None,
) -> Profile:
    """Chooses the rows that `fast_memory` bytes should hold, and measures what they serve.

    bytes_per_row: by vocabulary, see `row_bytes`; sample: the share of the training part that is
    counted, and as much again is measured; confidence: of the intervals.
    progress: told the stage ("counting" or "measuring") and how many features of how many are done.
    """
    _check(data, bytes_per_row, fast_memory, sample, confidence)
    part = data.parts["train"]
    counted, measured = (_Sample(part, blocks) for blocks in two_samples(part.rows, sample, seed))
    accesses = list(_accesses(counted, data.schema, bytes_per_row, progress))
    chosen = choose(accesses, fast_memory)
    hot = {of.vocabulary: ids for of, ids in zip(accesses, chosen, strict=True)}
    found = _measure(measured, hot, data.schema, confidence, progress)
    return Profile(
        hot=hot,
        vocabularies=tuple(_line(of, hot, data.schema, found) for of in accesses),
        lookups=found.lookups,
        samples=found.samples,
        fast_memory=fast_memory,
        sample=sample,
        counted=len(counted),
        measured=len(measured),
        confidence=confidence,
        seed=seed,
        fingerprint=data.fingerprint,
    )


def pays(found: Profile) -> tuple[bool, str]:
    """Whether data is worth regrouping by a profile, and why."""
    budget = format_bytes(found.fast_memory)
    if all(of.hot_rows == of.rows for of in found.vocabularies):
        return False, (
            f"regrouping would not pay: all {found.hot_rows:,} rows ({format_bytes(found.bytes)}) fit "
            f"in {budget}; train on the data as it is"
        )
    of_samples = f"{found.samples} of the samples are all-hot with {budget}"
    if found.samples.high >= WORTHWHILE:
        return True, f"regrouping pays: {of_samples}"
    return False, (
        f"regrouping would not pay: {of_samples}; below {100 * WORTHWHILE:.0f} % nearly every "
        f"batch is cold; give more fast memory, or train with --policy lookahead, which needs no "
        f"regrouping"
    )


def row_bytes(tables: Iterable[Table], schema: Schema, optimizer: RowOptimizer) -> dict[str, int]:
    """For every vocabulary, the bytes that an id has in the tables of a model, state included.

    optimizer: for tables that bring none of their own. Crosses belong to no vocabulary.
    """
    owner = {feature.name: vocabulary_of(feature) for feature in schema.id_features}
    found = dict.fromkeys(owner.values(), 0)
    for table in tables:
        filled = dataclasses.replace(table, optimizer=table.optimizer or optimizer)
        for vocabulary in {owner[name] for name in table.features if name in owner}:
            found[vocabulary] += layout_of(filled).stride
    return found


def all_hot(hot: Mapping[str, np.ndarray], schema: Schema) -> Callable[[Rows], np.ndarray]:
    """What tells of stored rows, [n], whether every lookup of theirs is hot, [n] bool.

    A row without any lookup is.
    """
    tests = _tests(hot, schema)

    def test(rows: Rows) -> np.ndarray:
        found = np.ones(len(rows), bool)
        for f, is_hot in enumerate(tests):
            found &= _all_of(is_hot(rows.values(f)), rows.offsets[f])
        return found

    return test


@dataclass(frozen=True)
class Accesses:
    """How often the ids of a vocabulary were read: ids [I] int64, ascending; counts [I] int64.

    rows: ids in all, read or not; bytes_per_row: of one of them.
    """

    vocabulary: str
    rows: int
    bytes_per_row: int
    ids: np.ndarray
    counts: np.ndarray

    @property
    def bytes(self) -> int:
        return self.rows * self.bytes_per_row


def choose(accesses: Sequence[Accesses], fast_memory: int) -> list[np.ndarray]:
    """The hot ids of each vocabulary, ascending.

    Vocabularies of at most 1 MiB come first, whole; then the ids that are read most often for the
    bytes they take, of all vocabularies together, until the first that does not fit. What is left
    makes vocabularies whole, those that lack least first. Ties go by vocabulary, then by id.
    """
    num = {of.vocabulary: 0 for of in accesses}
    left = fast_memory
    for of in sorted(accesses, key=lambda of: -of.counts.sum() / of.bytes):
        if of.bytes <= min(WHOLE, left):
            num[of.vocabulary], left = of.rows, left - of.bytes
    rest = [of for of in accesses if num[of.vocabulary] == 0]
    for of, fitting in zip(rest, _num_hot(rest, left), strict=True):
        num[of.vocabulary], left = fitting, left - fitting * of.bytes_per_row
    for of in sorted(rest, key=lambda of: of.bytes - num[of.vocabulary] * of.bytes_per_row):
        lacking = of.bytes - num[of.vocabulary] * of.bytes_per_row
        if lacking <= left:
            num[of.vocabulary], left = of.rows, left - lacking
    return [_hottest(of, num[of.vocabulary]) for of in accesses]


def two_samples(rows: int, sample: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of rows for two samples that share none: each [K, 2] int64, first row and end.

    The part is cut into K stretches; each gives a block drawn at random to one sample, and another
    one to the other.
    """
    asked = max(1, round(sample * rows))
    block_rows = min(max(1, asked // _BLOCKS), _BLOCK_ROWS)
    num_blocks = -(-rows // block_rows)
    stretches = min(-(-asked // block_rows), num_blocks // 2)
    bounds = np.arange(stretches + 1) * num_blocks // stretches
    first, sizes = bounds[:-1], np.diff(bounds)
    random = np.random.PCG64(seed & (1 << 64) - 1).random_raw(2 * stretches).reshape(2, -1) >> 1
    one = random[0].astype(np.int64) % sizes
    other = (one + 1 + random[1].astype(np.int64) % (sizes - 1)) % sizes
    starts = [(first + chosen) * block_rows for chosen in (one, other)]
    counted, measured = (np.stack([at, np.minimum(at + block_rows, rows)], 1) for at in starts)
    return counted, measured


def _num_hot(accesses: Sequence[Accesses], left: int) -> list[int]:
    """How many ids of each vocabulary fit, the most read per byte first.

    Ids of one vocabulary with equal counts form a level. Levels are few, however many ids there
    are; every level is taken whole but for the last.
    """
    tallies = [np.bincount(of.counts, minlength=_LEAST_COUNT) for of in accesses]
    levels = [np.flatnonzero(tally[_LEAST_COUNT:]) + _LEAST_COUNT for tally in tallies]
    owner = np.repeat(np.arange(len(accesses)), [len(of) for of in levels])
    count = np.concatenate([np.zeros(0, np.int64), *levels])
    pairs = zip(tallies, levels, strict=True)
    num = np.concatenate([np.zeros(0, np.int64), *(tally[level] for tally, level in pairs)])
    width = np.array([of.bytes_per_row for of in accesses], np.int64)[owner]
    order = np.lexsort((owner, -(count / width)))
    owner, num, width = owner[order], num[order], width[order]
    before = np.cumsum(num * width) - num * width
    taken = np.clip((left - before) // width, 0, num)
    return np.bincount(owner, taken, len(accesses)).astype(np.int64).tolist()


def _hottest(of: Accesses, num: int) -> np.ndarray:
    """The `num` ids that are read most often, ascending; of equal counts the lowest ids."""
    threshold = _threshold(of, num)
    if not threshold:
        return np.arange(num)
    chosen = of.counts > threshold
    tied = np.flatnonzero(of.counts == threshold)
    chosen[tied[: num - np.count_nonzero(chosen)]] = True
    return of.ids[chosen]


def _threshold(of: Accesses, num: int) -> int | None:
    """How often the last of the `num` most read ids was read; 0 where all ids are meant."""
    if num in (0, of.rows):
        return 0 if num else None
    last = len(of.counts) - num
    return int(np.partition(of.counts, last)[last])


@dataclass(frozen=True)
class Column:
    """The ids of a feature in a sample, [N].

    rows: [rows + 1], where each row's begin, None where each has one; pieces: [K + 1], where each
        piece's begin.
    """

    ids: np.ndarray
    rows: np.ndarray | None
    pieces: np.ndarray


class _Sample:
    """Rows of blocks, still mapped, in pieces that no shard's end cuts."""

    def __init__(self, part: Part, blocks: np.ndarray) -> None:
        self._places = {feature: f for f, feature in enumerate(part.features)}
        self._pieces = [
            piece for first, end in blocks.tolist() for piece in part.mapped(first, end)
        ]
        self.sizes = np.array([len(piece) for piece in self._pieces])  # [K]
        self._starts = np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def column(self, feature: str) -> Column:
        place = self._places[feature]
        ids = [piece.values(place) for piece in self._pieces]
        bounds = [of for piece in self._pieces if (of := piece.offsets[place]) is not None]
        return Column(
            ids=np.concatenate(ids),
            rows=joined_offsets(bounds) if bounds else None,
            pieces=ends_of(np.array([len(of) for of in ids])),
        )

    def hits(self, found: np.ndarray) -> np.ndarray:
        """[K] int64: how many rows of each piece were found; found: [rows] bool."""
        return np.add.reduceat(found, self._starts, dtype=np.int64)


def _accesses(
    sample: _Sample, schema: Schema, bytes_per_row: Mapping[str, int], progress: Progress
) -> Iterator[Accesses]:
    done = 0
    for name, readers in readers_of(schema).items():
        rows = schema.rows_of(readers[0].name)
        columns = [sample.column(feature.name).ids for feature in readers]
        yield Accesses(name, rows, bytes_per_row[name], *_counts(np.concatenate(columns), rows))
        done += len(readers)
        progress("counting", done, len(schema.id_features))


def _counts(ids: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids, ascending, and how often each occurs; memory grows with `ids` alone."""
    if rows <= len(ids):
        counts = np.bincount(ids, minlength=rows)
        distinct = np.flatnonzero(counts)
        return distinct, counts[distinct]
    distinct, counts = np.unique(ids, return_counts=True)
    return distinct.astype(np.int64), counts


@dataclass(frozen=True)
class _Found:
    lookups: Share
    samples: Share
    by_vocabulary: dict[str, Share]


def _measure(
    sample: _Sample,
    hot: Mapping[str, np.ndarray],
    schema: Schema,
    confidence: float,
    progress: Progress,
) -> _Found:
    """What the hot ids serve of a sample."""
    samples = np.ones(len(sample), bool)
    hits, sizes = ({name: np.zeros(len(sample.sizes), np.int64) for name in hot} for _ in range(2))
    tests = _tests(hot, schema)
    for done, (feature, is_hot) in enumerate(zip(schema.id_features, tests, strict=True), 1):
        column = sample.column(feature.name)
        found = is_hot(column.ids)
        samples &= _all_of(found, column.rows)
        hits[vocabulary_of(feature)] += np.diff(ends_of(found)[column.pieces])
        sizes[vocabulary_of(feature)] += np.diff(column.pieces)
        progress("measuring", done, len(tests))
    all_hits, all_sizes = (np.sum(list(of.values()), axis=0) for of in (hits, sizes))
    return _Found(
        lookups=interval(all_hits, all_sizes, confidence),
        samples=interval(sample.hits(samples), sample.sizes, confidence),
        by_vocabulary={name: interval(of, sizes[name], confidence) for name, of in hits.items()},
    )


def _all_of(found: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """[rows] bool, whether all ids of a row were found; found: [N] bool, row after row."""
    if rows is None:
        return found
    missed = ends_of(~found)
    starts = rows.astype(np.int64) - int(rows[0])
    return missed[starts[1:]] == missed[starts[:-1]]


def _line(
    of: Accesses, hot: Mapping[str, np.ndarray], schema: Schema, found: _Found
) -> HotVocabulary:
    num = len(hot[of.vocabulary])
    return HotVocabulary(
        name=of.vocabulary,
        features=tuple(feature.name for feature in readers_of(schema)[of.vocabulary]),
        rows=of.rows,
        hot_rows=num,
        bytes=num * of.bytes_per_row,
        threshold=_threshold(of, num),
        lookups=found.by_vocabulary[of.vocabulary],
    )


def interval(hits: np.ndarray, sizes: np.ndarray, confidence: float) -> Share:
    """The share of hits and its Wilson interval; hits, sizes: [K] int64, of each block.

    Where neighbouring blocks differ more than chance would have it, a block is worth fewer trials
    than it has (Kish's design effect). A slow drift through the part is no such difference: every
    stretch of it has its block.
    """
    total = int(sizes.sum())
    if total == 0:
        return Share(0.0, 0.0, 1.0)  # nothing was seen, and so nothing is known
    p = float(hits.sum() / total)
    of_chance = p * (1 - p) / total
    n = float(total)
    if len(sizes) > 1 and of_chance > 0:
        steps = np.diff(hits - p * sizes)
        variance = len(sizes) / (2 * len(steps)) * float((steps**2).sum()) / total**2
        n = total / max(1.0, variance / of_chance)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    return Share(p, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))


def _tests(
    hot: Mapping[str, np.ndarray], schema: Schema
) -> list[Callable[[np.ndarray], np.ndarray]]:
    """For every feature with ids, what tells of them, [n], whether they are hot, [n] bool."""
    of = {
        name: _members(hot[name], schema.rows_of(readers[0].name))
        for name, readers in readers_of(schema).items()
    }
    return [of[vocabulary_of(feature)] for feature in schema.id_features]


def _members(hot: np.ndarray, rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """By a table that ends behind the last hot id; by search where that would be large."""
    size = min(rows, int(hot[-1]) + 2) if len(hot) else 1
    if len(hot) == rows:
        return lambda ids: np.ones(len(ids), bool)
    if size > max(_TABLE_BYTES, 64 * len(hot)):
        return lambda ids: hot.take(np.searchsorted(hot, ids), mode="clip") == ids
    table = np.zeros(size, bool)
    table[hot] = True
    return lambda ids: table.take(ids, mode="clip")  # ids behind the end read its last place


def _hot_vocabulary(given: Mapping[str, Any]) -> HotVocabulary:
    changed = {"features": tuple(given["features"]), "lookups": Share(**given["lookups"])}
    return HotVocabulary(**{**given, **changed})


def _check(
    data: EncodedData,
    bytes_per_row: Mapping[str, int],
    fast_memory: int,
    sample: float,
    confidence: float,
) -> None:
    if data.parts["train"].rows < 2:
        raise ValueError(
            f"the training part of {data.path} has {data.parts['train'].rows} rows; a profile "
            f"needs at least one to count and one to measure: prepare the data with another split"
        )
    if fast_memory < 1:
        raise ValueError(f"fast_memory must be at least one byte, not {fast_memory}")
    if not 0 < sample <= 0.5:
        raise ValueError(
            f"sample must be above 0 and at most 0.5, not {sample}: as many rows are measured as "
            f"are counted"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, such as 0.999, not {confidence}")
    if data.source is not None:
        raise ValueError(
            f"a profile needs prepared data, and {data.path} is read straight from Parquet; make "
            f"such data with `hotrows prepare`"
        )
    wrong = [name for name in readers_of(data.schema) if bytes_per_row.get(name, 0) < 1]
    if wrong:
        raise ValueError(
            f"bytes_per_row must say how many bytes a row of every vocabulary takes; {wrong} are "
            f"missing or 0: row_bytes(model.tables, data.schema, optimizer) gives them"
        )
