"""profile: the hot rows of a data set, and the share of training lookups that they serve.

One sample of the training part chooses the hot ids, a second one measures them (see `sampling`).
Only ids of the sample are counted: memory grows with the sample, not with the tables.
FAE (Adnan et al., VLDB 2022) looks for a threshold of accesses whose rows just fit, by sampling
the tables once more (its Rand-Em Box); counts this compact give that threshold exactly, per byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.encode.encoder import readers_of
from hotrows.data.encode.passes import Progress
from hotrows.data.hot_cold.sampling import (
    Accesses,
    Estimate,
    Sample,
    count_accesses,
    interval,
    two_samples,
)
from hotrows.data.rows import Rows, ends_of
from hotrows.data.stored.encoded import EncodedData
from hotrows.data.stored.part import Part
from hotrows.data.stored.sections import open_sections, write_sections
from hotrows.ops.record import layout_of
from hotrows.optim import RowOptimizer
from hotrows.runtime.atomic_files import replaced
from hotrows.runtime.json_file import build, check_version, value_of
from hotrows.runtime.units import format_bytes
from hotrows.schema import Schema, vocabulary_of
from hotrows.table import Table

WORTHWHILE = 0.2  # share of all-hot samples; with fewer, four batches in five are cold
WHOLE = 1 << 20  # vocabularies of at most this many bytes are hot as a whole, as in FAE
HOT_FILE = "hot.ids"  # the profile in a folder of regrouped data

_FORMAT = 1
_LEAST_COUNT = 2  # one lookup is too few to estimate a frequency
_TABLE_BYTES = 1 << 24


@dataclass(frozen=True)
class HotVocabulary:
    """The hot ids of a vocabulary.

    rows, hot_rows: number of all ids and of hot ones; bytes: of the hot rows in all tables.
    threshold: number of lookups in the counted sample of the least frequent hot id; 0 if all ids
        are hot, None if none is.
    lookups: share of its lookups that are hot.
    """

    name: str
    features: tuple[str, ...]
    rows: int
    hot_rows: int
    bytes: int
    threshold: int | None
    lookups: Estimate


@dataclass(frozen=True, eq=False)
class Profile:
    """The hot ids of a data set, and the shares of lookups and samples that they serve.

    hot: per vocabulary its hot ids, ascending, int64; vocabularies: sizes and shares of each.
    lookups, samples: share of hot lookups, and of samples whose lookups are all hot.
    fast_memory: budget in bytes; sample: requested size of either sample as a share of the training
        part; counted, measured: number of rows in the two samples.
    fingerprint: of the data.
    """

    hot: Mapping[str, np.ndarray]
    vocabularies: tuple[HotVocabulary, ...]
    lookups: Estimate
    samples: Estimate
    fast_memory: int
    sample: float
    counted: int
    measured: int
    confidence: float
    seed: int
    fingerprint: str

    @property
    def hot_rows(self) -> int:
        return sum(vocabulary.hot_rows for vocabulary in self.vocabularies)

    @property
    def bytes(self) -> int:
        """Bytes of the hot rows."""
        return sum(vocabulary.bytes for vocabulary in self.vocabularies)

    def to_json(self) -> dict[str, Any]:
        """All fields but the ids."""
        fields = asdict(dataclasses.replace(self, hot={}))
        del fields["hot"]
        return {"hot_rows": self.hot_rows, "bytes": self.bytes, **fields}

    def save(self, path: Path | str) -> None:
        header = {"kind": "profile", "format": _FORMAT, "profile": self.to_json()}
        with replaced(Path(path)) as part:
            write_sections(part, header, {f"ids/{name}": ids for name, ids in self.hot.items()})

    @staticmethod
    def load(path: Path | str) -> Profile:
        file = open_sections(Path(path))
        if file.header.get("kind") != "profile":
            raise ValueError(f"{path} is not a profile; profile the data again")
        check_version(file.path, file.header.get("format"), _FORMAT, "profile the data again")
        file.check()
        fields = {
            **value_of(dict[str, Any], file.header.get("profile"), f"{path}: the profile"),
            "hot": {},
        }
        without = build(Profile, {k: v for k, v in fields.items() if k not in ("hot_rows", "bytes")})
        hot = {v.name: file[f"ids/{v.name}"].copy() for v in without.vocabularies}
        return dataclasses.replace(without, hot=hot)

    @staticmethod
    def from_data(data: EncodedData) -> Profile:
        """Loads the profile by which data was regrouped."""
        hot_and_cold(data)  # raises an error if it was not
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
    """Chooses the rows that `fast_memory` bytes should hold, and measures the share they serve.

    bytes_per_row: by vocabulary, see `row_bytes`. fast_memory: bytes that hot rows may take.
    sample: the fraction of training samples to count; as many more are measured.
    confidence: the confidence of intervals. seed: the seed of the samples.
    progress: called with the stage ("counting" or "measuring"), features done, and features in all.
    """
    data.check_counts("a profile")
    _check(data, bytes_per_row, fast_memory, sample, confidence)
    part = data.parts["train"]
    counted, measured = (Sample(part, blocks) for blocks in two_samples(part.rows, sample, seed))
    accesses = list(count_accesses(counted, data.schema, bytes_per_row, progress))
    chosen = choose(accesses, fast_memory)
    hot = {entry.vocabulary: ids for entry, ids in zip(accesses, chosen, strict=True)}
    estimates = _measure(measured, hot, data.schema, confidence, progress)
    return Profile(
        hot=hot,
        vocabularies=tuple(_hot_part(entry, hot, data.schema, estimates) for entry in accesses),
        lookups=estimates.lookups,
        samples=estimates.samples,
        fast_memory=fast_memory,
        sample=sample,
        counted=len(counted),
        measured=len(measured),
        confidence=confidence,
        seed=seed,
        fingerprint=data.fingerprint,
    )


def pays(profile: Profile) -> tuple[bool, str]:
    """Decides whether regrouping data by a profile pays; returns the decision and its reason."""
    budget = format_bytes(profile.fast_memory)
    if all(vocabulary.hot_rows == vocabulary.rows for vocabulary in profile.vocabularies):
        return False, (
            f"regrouping would not pay: all {profile.hot_rows:,} rows "
            f"({format_bytes(profile.bytes)}) fit in {budget}; train on the data as it is"
        )
    of_samples = f"{profile.samples} of the samples are all-hot with {budget}"
    if profile.samples.high >= WORTHWHILE:
        return True, f"regrouping pays: {of_samples}"
    return False, (
        f"regrouping would not pay: {of_samples}; below {100 * WORTHWHILE:.0f} % nearly every batch is "
        f"cold; give more fast memory, or train with --policy lookahead, which needs no regrouping"
    )


def row_bytes(tables: Iterable[Table], schema: Schema, optimizer: RowOptimizer) -> dict[str, int]:
    """Returns per vocabulary the bytes of one id in the tables of a model, optimizer state included.

    optimizer: of tables that have none of their own. Crosses belong to no vocabulary.
    """
    owner = {feature.name: vocabulary_of(feature) for feature in schema.id_features}
    num_bytes = dict.fromkeys(owner.values(), 0)
    for table in tables:
        filled = dataclasses.replace(table, optimizer=table.optimizer or optimizer)
        for vocabulary in {owner[name] for name in table.features if name in owner}:
            num_bytes[vocabulary] += layout_of(filled).stride
    return num_bytes


def all_hot(hot: Mapping[str, np.ndarray], schema: Schema) -> Callable[[Rows], np.ndarray]:
    """Returns a test of stored rows [n]: whether every lookup of a row is hot, [n] bool.

    A row without lookups is all-hot.
    """
    tests = list(zip((f"ids/{f.name}" for f in schema.id_features), _tests(hot, schema), strict=True))

    def test(rows: Rows) -> np.ndarray:
        is_all_hot = np.ones(len(rows), bool)
        for section, is_hot in tests:
            is_all_hot &= _all_of(is_hot(rows.values(section)), rows.bounds_of(section))
        return is_all_hot

    return test


def choose(accesses: Sequence[Accesses], fast_memory: int) -> list[np.ndarray]:
    """Chooses the hot ids of each vocabulary, ascending.

    First come all ids of vocabularies of at most 1 MiB; then the ids with most lookups per byte, of
    all vocabularies together, until the first that does not fit. Memory that is left completes
    vocabularies, those that lack fewest bytes first. Ties go by vocabulary, then by id.
    """
    num = {entry.vocabulary: 0 for entry in accesses}
    left = fast_memory
    for entry in sorted(accesses, key=lambda entry: -entry.counts.sum() / entry.bytes):
        if entry.bytes <= min(WHOLE, left):
            num[entry.vocabulary], left = entry.rows, left - entry.bytes
    others = [entry for entry in accesses if num[entry.vocabulary] == 0]
    for entry, fitting in zip(others, _num_hot(others, left), strict=True):
        num[entry.vocabulary], left = fitting, left - fitting * entry.bytes_per_row
    lacking = {e.vocabulary: e.bytes - num[e.vocabulary] * e.bytes_per_row for e in others}
    for entry in sorted(others, key=lambda entry: lacking[entry.vocabulary]):
        if lacking[entry.vocabulary] <= left:
            num[entry.vocabulary], left = entry.rows, left - lacking[entry.vocabulary]
    return [_hottest(entry, num[entry.vocabulary]) for entry in accesses]


def _num_hot(accesses: Sequence[Accesses], left: int) -> list[int]:
    """Counts the ids of each vocabulary that fit, those with most lookups per byte first.

    Ids of one vocabulary with equal counts form a level. Levels are few, whatever the number of ids;
    every level is taken entirely but for the last.
    """
    tallies = [np.bincount(entry.counts, minlength=_LEAST_COUNT) for entry in accesses]
    levels = [np.flatnonzero(tally[_LEAST_COUNT:]) + _LEAST_COUNT for tally in tallies]
    owner = np.repeat(np.arange(len(accesses)), [len(entry) for entry in levels])
    count = np.concatenate([np.zeros(0, np.int64), *levels])
    pairs = zip(tallies, levels, strict=True)
    num = np.concatenate([np.zeros(0, np.int64), *(tally[level] for tally, level in pairs)])
    width = np.array([entry.bytes_per_row for entry in accesses], np.int64)[owner]
    order = np.lexsort((owner, -(count / width)))
    owner, num, width = owner[order], num[order], width[order]
    before = np.cumsum(num * width) - num * width
    taken = np.clip((left - before) // width, 0, num)
    return np.bincount(owner, taken, len(accesses)).astype(np.int64).tolist()


def _hottest(accesses: Accesses, num: int) -> np.ndarray:
    """Returns the `num` ids with most lookups, ascending; of equal counts the lowest ids."""
    threshold = _threshold(accesses, num)
    if not threshold:
        return np.arange(num)
    chosen = accesses.counts > threshold
    tied = np.flatnonzero(accesses.counts == threshold)
    chosen[tied[: num - np.count_nonzero(chosen)]] = True
    return accesses.ids[chosen]


def _threshold(accesses: Accesses, num: int) -> int | None:
    """Counts the lookups of the least frequent of the `num` hottest ids; 0 if these are all ids."""
    if num in (0, accesses.rows):
        return 0 if num else None
    last = len(accesses.counts) - num
    return int(np.partition(accesses.counts, last)[last])


@dataclass(frozen=True)
class _Estimates:
    lookups: Estimate
    samples: Estimate
    by_vocabulary: dict[str, Estimate]


def _measure(
    sample: Sample, hot: Mapping[str, np.ndarray], schema: Schema, confidence: float, progress: Progress
) -> _Estimates:
    """Estimates the shares of a sample that the hot ids serve."""
    samples = np.ones(len(sample), bool)
    hits, sizes = ({name: np.zeros(len(sample.sizes), np.int64) for name in hot} for _ in range(2))
    tests = _tests(hot, schema)
    for done, (feature, is_hot) in enumerate(zip(schema.id_features, tests, strict=True), 1):
        column = sample.column(feature.name)
        is_hit = is_hot(column.ids)
        samples &= _all_of(is_hit, column.rows)
        hits[vocabulary_of(feature)] += np.diff(ends_of(is_hit)[column.pieces])
        sizes[vocabulary_of(feature)] += np.diff(column.pieces)
        progress("measuring", done, len(tests))
    all_hits, all_sizes = (np.sum(list(counts.values()), axis=0) for counts in (hits, sizes))
    return _Estimates(
        lookups=interval(all_hits, all_sizes, confidence),
        samples=interval(sample.hits(samples), sample.sizes, confidence),
        by_vocabulary={name: interval(hits[name], sizes[name], confidence) for name in hits},
    )


def _all_of(is_hot: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """Reduces a test of ids [N] bool, row after row, to [rows] bool: whether all ids of a row pass."""
    if rows is None:
        return is_hot
    missed = ends_of(~is_hot)
    starts = rows.astype(np.int64) - int(rows[0])
    return missed[starts[1:]] == missed[starts[:-1]]


def _hot_part(
    accesses: Accesses, hot: Mapping[str, np.ndarray], schema: Schema, estimates: _Estimates
) -> HotVocabulary:
    num = len(hot[accesses.vocabulary])
    return HotVocabulary(
        name=accesses.vocabulary,
        features=tuple(feature.name for feature in readers_of(schema)[accesses.vocabulary]),
        rows=accesses.rows,
        hot_rows=num,
        bytes=num * accesses.bytes_per_row,
        threshold=_threshold(accesses, num),
        lookups=estimates.by_vocabulary[accesses.vocabulary],
    )


def _tests(hot: Mapping[str, np.ndarray], schema: Schema) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Returns per feature with ids a test of ids [n]: whether they are hot, [n] bool."""
    tests = {
        name: _members(hot[name], schema.rows_of(readers[0].name))
        for name, readers in readers_of(schema).items()
    }
    return [tests[vocabulary_of(feature)] for feature in schema.id_features]


def _members(hot: np.ndarray, rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """Tests ids by a table up to the last hot id, or by search if that would be large."""
    size = min(rows, int(hot[-1]) + 2) if len(hot) else 1
    if len(hot) == rows:
        return lambda ids: np.ones(len(ids), bool)
    if size > max(_TABLE_BYTES, 64 * len(hot)):
        return lambda ids: hot.take(np.searchsorted(hot, ids), mode="clip") == ids
    table = np.zeros(size, bool)
    table[hot] = True
    return lambda ids: table.take(ids, mode="clip")  # ids beyond the end read its last entry, False


def _check(
    data: EncodedData,
    bytes_per_row: Mapping[str, int],
    fast_memory: int,
    sample: float,
    confidence: float,
) -> None:
    if data.parts["train"].rows < 2:
        raise ValueError(
            f"the training part of {data.path} has {data.parts['train'].rows} samples; a profile "
            f"needs at least one to count and one to measure: prepare the data with another split"
        )
    if not 1 <= fast_memory < 1 << 63:
        raise ValueError(f"fast_memory must be at least one byte and below 2^63, not {fast_memory}")
    if not 0 < sample <= 0.5:
        raise ValueError(
            f"sample must be above 0 and at most 0.5, not {sample}: as many samples are measured as "
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


def is_regrouped(data: EncodedData) -> bool:
    return bool(data.halves)


def hot_and_cold(data: EncodedData) -> tuple[Part, Part]:
    """The all-hot and the cold rows of the training part; their `missing` counts ids alone."""
    if not is_regrouped(data):
        raise ValueError(
            f"{data.path} is not regrouped into hot and cold samples; do so with "
            f"`hotrows regroup {data.path} --out FOLDER --fast-memory SIZE`"
        )
    if set(data.halves) != {"hot", "cold"}:
        raise ValueError(f"{data.path}: expected the halves hot and cold; regroup the data again")
    return data.halves["hot"], data.halves["cold"]
