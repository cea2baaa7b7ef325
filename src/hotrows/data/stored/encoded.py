"""Prepared data: a folder of shards and vocabularies, described by its `data.json`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.columns.number import Statistics, ranges_of
from hotrows.data.raw.values import MISSING_TIME, TEXT_RULE
from hotrows.data.rows import RawRows
from hotrows.data.stored.histories import EVENTS_FILE, cut_histories
from hotrows.data.stored.part import NAMES, Part
from hotrows.data.stored.sections import header_checksum, is_count, open_sections
from hotrows.data.stored.shard_copies import ShardCopies
from hotrows.data.stored.shards import Shard, Written
from hotrows.runtime.atomic_files import absolute, address, link_or_copy
from hotrows.runtime.json_file import JsonFile, build, is_name
from hotrows.runtime.pages import notebook
from hotrows.runtime.remote import is_url, named
from hotrows.runtime.remote.copies import copy_of, locked, update
from hotrows.schema import FIRST_UNKNOWN, Dense, Schema, vocabulary_of

VERSION = 3
MANIFEST = "data.json"
_FILE = JsonFile(
    "prepare the data again",
    "prepare the data again with this version",
    version="version",
    number=VERSION,
    editable=False,
)


@dataclass(frozen=True)
class StoredVocabulary:
    """The file of a vocabulary, and the number of distinct values seen, those below min_count too.

    header: the checksum of the file's header, which has those of its sections; None before
    data.json is written.
    """

    file: str
    num_distinct: int
    header: int | None = None


@dataclass(frozen=True)
class Extremes:
    """Extremes of the raw rows. least: of dense features under `log`, their least number below 0; times:
    the first and the last, in seconds since 1970, () where there is none; ranges: the least and the
    greatest number of dense features under `log` and `none`."""

    least: dict[str, float] = field(default_factory=dict)
    times: tuple[int, ...] = ()
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    @staticmethod
    def of_rows(features: Sequence[Dense], raw: RawRows) -> Extremes:
        """The extremes of some rows. features: the single numbers."""
        times = raw.get("times")
        times = np.zeros(0, np.int64) if times is None else times[times != MISSING_TIME]
        first_and_last = (int(times.min()), int(times.max())) if len(times) else ()
        return Extremes({}, first_and_last, ranges_of(features, raw.values["dense"]))

    def joined(self, other: Extremes) -> Extremes:
        times, ranges = (*self.times, *other.times), dict(self.ranges)
        for name, (low, high) in other.ranges.items():
            before = ranges.get(name, (low, high))
            ranges[name] = min(low, before[0]), max(high, before[1])
        return Extremes({}, (min(times), max(times)) if times else (), ranges)

    def ordered(self, schema: Schema) -> Extremes:
        """The extremes in the order of the schema, in whatever order they were found, with `least`."""
        ranges = {f.name: self.ranges[f.name] for f in schema.dense if f.name in self.ranges}
        logs = [f.name for f in schema.dense if f.transform == "log" and f.name in ranges]
        return Extremes({n: ranges[n][0] for n in logs if ranges[n][0] < 0.0}, self.times, ranges)


@dataclass(frozen=True, repr=False)
class EncodedData:
    """A folder of prepared data.

    schema: as declared, with the rows of every vocabulary filled in.
    parts: "train", "validation" and "test"; a part may have no rows.
    halves: by name, parts that "train" was divided into; {} where it is as it was prepared.
    fingerprint: of schema, vocabularies and statistics; data of one fingerprint share their ids.
    extends: fingerprints of the data whose vocabularies have grown into these, the nearest first.
    source: Parquet files that the parts are read from instead of shards; see `open_source`.
    extremes: of the raw rows, as far as `prepare` saw them.
    events: the file of the events that are histories; None if the schema has no histories.

    >>> EncodedData.open(data.path).parts["test"].rows
    10
    """

    path: Path
    schema: Schema
    parts: dict[str, Part]
    fingerprint: str
    split: str | None
    seed: int
    vocabularies: dict[str, StoredVocabulary]
    statistics: dict[str, Statistics]
    encodes_raw: bool
    halves: dict[str, Part] = field(default_factory=dict)
    source: dict[str, Any] | None = None
    extends: tuple[str, ...] = ()
    extremes: Extremes = field(default_factory=Extremes)
    events: Shard | None = None

    _repr_html_ = notebook.data

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {part.rows:,}" for name, part in self.parts.items())
        return f"EncodedData({self.path}, samples: {rows}; {self.schema!r})"

    @property
    def lineage(self) -> tuple[str, ...]:
        """Fingerprints of this data and of what it extends: a model of any of them fits after its
        tables have grown."""
        return (self.fingerprint, *self.extends)

    def cut(self, last: int) -> EncodedData:
        """The data with at most the last so many events in each history: nothing is prepared again."""
        return self.read_by(cut_histories(self.schema, last))

    def read_by(self, schema: Schema) -> EncodedData:
        """The data read by a schema that differs in the length of histories or the capacity of keys."""
        if schema == self.schema:
            return self
        parts = {name: replace(part, schema=schema) for name, part in self.parts.items()}
        return replace(self, schema=schema, parts=parts)

    def label_means(self) -> tuple[float | None, ...]:
        """The mean of each label over the training part, of the samples that have it, each times its
        weight; None: none has it, or all weigh 0."""
        return self.parts["train"].label_means()

    def check_counts(self, purpose: str) -> None:
        """Raises ValueError where features are dynamic, whose ids no one knows before training."""
        for feature in self.schema.id_features:
            if feature.dynamic is not None:
                raise ValueError(
                    f"{purpose} needs the counts of ids, and feature {feature.name!r} of {self.path} is "
                    f"dynamic: its ids come and go while a model trains; prepare the data with a "
                    f"vocabulary for it"
                )

    @staticmethod
    def open(path: Path | str, cache: int | None = None) -> EncodedData:
        """cache: bytes that the copies of shards of data at a URL may take; None: all are kept. They are
        fetched when they are read, and ahead of that."""
        copies = _copies_of(address(path).rstrip("/"), cache) if is_url(path) else None
        path = Path(path) if copies is None else copies.folder
        folder = absolute(path)
        manifest = read_manifest(path)
        with _FILE.naming(path / MANIFEST):
            data = _from_manifest(folder, build(_Manifest, manifest), copies)
            if problem := _problem(data):
                raise ValueError(problem)
        return data

    def check(self) -> None:
        """Reads every byte and compares it with its checksum; an error names the first damaged file."""
        for problem in self.problems():
            raise ValueError(problem)

    def problems(self, sections: bool = True) -> Iterator[str]:
        """Says of each damaged file what is wrong with it.
        sections: read them all, not headers alone."""
        others = {stored.file: stored.header for stored in self.vocabularies.values()}
        others |= {self.events.file: self.events.header} if self.events else {}
        shards = (
            pair
            for part in self.parts.values()
            for pair in zip(part.paths(), [shard.header for shard in part.shards], strict=True)
        )
        for path, header in chain(shards, ((self.path / name, others[name]) for name in others)):
            try:
                opened = open_sections(path, header)
                if sections:
                    opened.check()
            except ValueError as error:
                yield str(error)


def read_manifest(path: Path) -> dict[str, Any]:
    if not (path / MANIFEST).is_file():
        problem = f"holds no prepared data (no {MANIFEST} in it)" if path.exists() else "does not exist"
        raise ValueError(f"{named(path)} {problem}; make it with `prepare`, or correct the path")
    if (path / "config.json").is_file():
        raise ValueError(f"{path} is a run; name the folder of prepared data that it was trained on")
    return _FILE.read(path / MANIFEST)


def write_manifest(
    folder: Path,
    schema: Schema,
    written: Mapping[str, Written],
    encoders: Mapping[str, Any],
    split: str | None = None,
    seed: int = 0,
    extends: Sequence[str] = (),
    extremes: Extremes | None = None,
    events: Shard | None = None,
    snapshots: Sequence[str] = (),
) -> None:
    """Writes data.json. encoders: {"vocabularies": {name: {file, num_distinct}}, "statistics":
    {feature: {mean, deviation}}, "encodes_raw": bool, "text_rule": int, where it encodes raw rows};
    extends: fingerprints of the data whose vocabularies have grown into these, the nearest first;
    snapshots: tables of Iceberg and Delta Lake that the rows are of, each with its snapshot."""
    vocabularies = {
        name: {**stored, "header": header_checksum(folder / stored["file"])}
        for name, stored in encoders["vocabularies"].items()
    }
    manifest = {
        "format": "hotrows data",
        "fingerprint": _fingerprint(folder, schema, encoders),
        "extends": list(extends),
        **({"snapshots": list(snapshots)} if snapshots else {}),
        "split": split,
        "seed": seed,
        "schema": json.loads(schema.to_json()),
        "parts": {name: part.to_json() for name, part in written.items()},
        **encoders,
        "vocabularies": vocabularies,
        **({} if extremes is None else {"extremes": asdict(extremes.ordered(schema))}),
        **({} if events is None else {"events": asdict(events)}),
    }
    write_signed(folder, manifest)


def copy_manifest(data: EncodedData, folder: Path) -> None:
    """Writes data.json of the data into a folder, linked unless the histories are cut."""
    manifest, schema = read_manifest(data.path), json.loads(data.schema.to_json())
    if manifest["schema"] == schema:
        link_or_copy(data.path / MANIFEST, folder / MANIFEST)
    else:
        write_signed(folder, {**manifest, "schema": schema})


def write_signed(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps(_FILE.sign(manifest), indent=1) + "\n")


@dataclass(frozen=True)
class _Manifest:
    fingerprint: str
    schema: dict[str, Any]
    parts: dict[str, dict[str, Any]]
    vocabularies: dict[str, StoredVocabulary]
    statistics: dict[str, Statistics]
    encodes_raw: bool
    split: str | None
    seed: int
    extends: tuple[str, ...] = ()
    snapshots: tuple[str, ...] = ()
    halves: dict[str, dict[str, Any]] = field(default_factory=dict)
    text_rule: int = TEXT_RULE
    extremes: Extremes = field(default_factory=Extremes)
    events: Shard | None = None
    format: str = ""


def _copies_of(url: str, limit: int | None) -> ShardCopies:
    """Brings a copy of data at a URL up to date, except for its shards."""
    folder = copy_of(url, "shards")
    with locked(folder):
        stamps = update(folder, url, lambda name: not _is_shard(name))
        sizes = {name: int(stamp[0]) for name, stamp in stamps.items() if _is_shard(name)}
        for path in folder.glob("*.shard"):
            if path.name not in stamps:
                path.unlink()
        copies = ShardCopies(folder, url, sizes, limit)
        copies.clean()
    return copies


def _is_shard(name: str) -> bool:
    return name.endswith(".shard") and name != EVENTS_FILE


def _from_manifest(path: Path, manifest: _Manifest, copies: ShardCopies | None) -> EncodedData:
    if manifest.text_rule != TEXT_RULE:
        raise ValueError(f"expected text_rule {TEXT_RULE}, found {manifest.text_rule}")
    schema = Schema.from_fields(manifest.schema)

    def part(name: str, fields: Mapping[str, Any]) -> Part:
        written = build(Written, {key: fields[key] for key in fields if key != "rows"}, "part")
        if copies and (missing := {shard.file for shard in written.shards} - copies.sizes.keys()):
            raise ValueError(f"{copies.url} has no file {min(missing)!r}; send it there again")
        known = vars(written) | {"events": manifest.events, "copies": copies}
        return Part(name=name, folder=path, schema=schema, **known)

    known = {field.name for field in dataclasses.fields(EncodedData)}
    fields = {name: value for name, value in vars(manifest).items() if name in known}
    parts = {name: part(name, manifest.parts.get(name, {})) for name in NAMES}
    halves = {name: part(name, of_half) for name, of_half in manifest.halves.items()}
    return EncodedData(path, **{**fields, "schema": schema, "parts": parts, "halves": halves})


def _problem(data: EncodedData) -> str | None:
    """Describes the first impossible statement of a manifest, or None."""
    vocabularies = {vocabulary_of(feature) for feature in data.schema.id_features}
    if set(data.vocabularies) != vocabularies or any(f.rows is None for f in data.schema.id_features):
        return f"expected the vocabularies {sorted(vocabularies)}, and their rows in the schema"
    said = {(vocabulary_of(f), f.rows, f.min_count, f.num_unknown) for f in data.schema.id_features}
    if len(said) != len(vocabularies) or any((r or 0) < FIRST_UNKNOWN + n for _, r, _, n in said):
        return "expected features that share a vocabulary to say the same of it, and rows for all of it"
    for entry in data.vocabularies.values():
        if not (is_name(entry.file) and is_count(entry.num_distinct) and is_count(entry.header)):
            return "expected file, num_distinct and header of every vocabulary"
    if len(data.extremes.times) not in (0, 2):
        return "expected no times among the extremes, or the first and the last"
    events = data.events
    if bool(data.schema.histories) != (events is not None) or not (
        events is None or (is_name(events.file) and is_count(events.rows))
    ):
        return "expected file and rows of the events if the schema has histories"
    if any(entry.deviation <= 0 for entry in data.statistics.values()):
        return "expected deviations above 0"
    return next(filter(None, map(_problem_of_part, (*data.parts.values(), *data.halves.values()))), None)


def _problem_of_part(part: Part) -> str | None:
    if not all(is_name(shard.file) and is_count(shard.rows) for shard in part.shards):
        return f"expected file and rows of every shard of {part.name}"
    dense = set(part.schema.dense_places)
    ids = {feature.name for feature in part.schema.id_features}
    lists = {column.name for column in part.columns.ids if column.is_list}
    expected = {"missing": dense | ids, "unknown": ids, "values": ids, "empty": lists}
    if part.name not in NAMES:
        expected["missing"] = ids
    for name, features in expected.items():
        counts = getattr(part, name)
        if set(counts) != features or not all(map(is_count, counts.values())):
            return f"expected counts of {name} of every feature of {part.name}"
    labels = (part.clicks, part.labelled)
    if any(len(c) != len(part.schema.labels) or not all(map(is_count, c)) for c in labels):
        return f"expected clicks and labelled of every label of {part.name}"
    return None


def _fingerprint(folder: Path, schema: Schema, encoders: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(schema.to_json().encode())
    digest.update(json.dumps(encoders["statistics"]).encode())
    for vocabulary in encoders["vocabularies"].values():
        sections = open_sections(folder / vocabulary["file"])
        for name in ("ends", "text"):
            digest.update(sections[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
