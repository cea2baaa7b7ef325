"""Prepared data: a folder of shards and vocabularies, described by its `data.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.raw.canonical import TEXT_RULE
from hotrows.data.stored.part import NAMES, Part
from hotrows.data.stored.sections import header_checksum, is_count, open_sections
from hotrows.data.stored.shard_writer import Written
from hotrows.json_file import JsonFile, build, is_name
from hotrows.pages import notebook
from hotrows.schema import FIRST_UNKNOWN, Schema, is_list, vocabulary_of

VERSION = 3
_MANIFEST = "data.json"
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
class Statistics:
    """Mean and (population) deviation of a column over the training part."""

    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True)
class Extremes:
    """Extremes of the raw rows. least: of dense features under `log`, their least number below 0; times:
    the first and the last, in seconds since 1970, () where there is none."""

    least: dict[str, float] = field(default_factory=dict)
    times: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class EncodedData:
    """A folder of prepared data.

    schema: as declared, with the rows of every vocabulary filled in.
    parts: "train", "validation" and "test"; a part may have no rows.
    halves: of regrouped data, the all-hot and the cold rows of "train", in this order.
    fingerprint: of schema, vocabularies and statistics; data of one fingerprint share their ids.
    extends: fingerprints of the data whose vocabularies have grown into these, the nearest first.
    source: Parquet files that the parts are read from instead of shards; see `open_source`.
    extremes: of the raw rows, as far as `prepare` saw them.
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
    halves: tuple[Part, Part] | None = None
    source: dict[str, Any] | None = None
    extends: tuple[str, ...] = ()
    extremes: Extremes = field(default_factory=Extremes)

    _repr_html_ = notebook.data

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {part.rows:,}" for name, part in self.parts.items())
        return f"EncodedData({self.path}, rows: {rows}; {self.schema!r})"

    @property
    def lineage(self) -> tuple[str, ...]:
        """Fingerprints of this data and of what it extends: a model of any of them fits after its
        tables have grown."""
        return (self.fingerprint, *self.extends)

    def label_means(self) -> tuple[float | None, ...]:
        """The mean of each label over the training part, of the samples that have it, each times its
        weight; None: none has it, or all weigh 0."""
        return self.parts["train"].label_means()

    @property
    def hot_rows(self) -> int | None:
        """Number of all-hot training rows; None if the data is not regrouped."""
        return None if self.halves is None else self.halves[0].rows

    def check_counts(self, purpose: str) -> None:
        """Raises ValueError where features are dynamic, whose ids no one knows before training."""
        for feature in self.schema.id_features:
            if feature.dynamic is not None:
                raise ValueError(
                    f"{purpose} needs the counts of ids, and feature {feature.name!r} of {self.path} is "
                    f"dynamic: its ids come and go while a model trains; prepare the data with a "
                    f"vocabulary for it"
                )

    def hot_and_cold(self) -> tuple[Part, Part]:
        """The all-hot and the cold rows of the training part; their `missing` counts ids alone."""
        if self.halves is None:
            raise ValueError(
                f"{self.path} is not regrouped into hot and cold rows; do so with "
                f"`hotrows regroup {self.path} --out FOLDER --fast-memory SIZE`"
            )
        return self.halves

    @staticmethod
    def open(path: Path | str) -> EncodedData:
        manifest = read_manifest(Path(path))
        with _FILE.naming(Path(path) / _MANIFEST):
            data = _from_manifest(Path(path), build(_Manifest, manifest))
            if problem := _problem(data):
                raise ValueError(problem)
        return data

    def check(self) -> None:
        """Reads every byte and compares it with its checksum; an error names the first damaged file."""
        for problem in self.problems():
            raise ValueError(problem)

    def problems(self, sections: bool = True) -> Iterator[str]:
        """Says of each damaged file what is wrong with it; sections: read them all, not headers alone."""
        files: dict[str, int | None] = {}
        for part in self.parts.values():
            files |= {name: part.headers.get(name) for name, _ in part.shards}
        files |= {stored.file: stored.header for stored in self.vocabularies.values()}
        for name, header in files.items():
            try:
                opened = open_sections(self.path / name, header)
                if sections:
                    opened.check()
            except ValueError as error:
                yield str(error)


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads a folder's data.json."""
    if not (path / _MANIFEST).is_file():
        problem = f"holds no prepared data (no {_MANIFEST} in it)" if path.exists() else "does not exist"
        raise ValueError(f"{path} {problem}; make it with `prepare`, or correct the path")
    if (path / "config.json").is_file():
        raise ValueError(f"{path} is a run; name the folder of prepared data that it was trained on")
    return _FILE.read(path / _MANIFEST)


def write_manifest(
    folder: Path,
    schema: Schema,
    written: Mapping[str, Written],
    encoders: Mapping[str, Any],
    split: str | None = None,
    seed: int = 0,
    extends: Sequence[str] = (),
    extremes: Extremes | None = None,
) -> None:
    """Writes data.json. encoders: {"vocabularies": {name: {file, num_distinct}}, "statistics":
    {feature: {mean, deviation}}, "encodes_raw": bool, "text_rule": int, where it encodes raw rows};
    extends: fingerprints of the data whose vocabularies have grown into these, the nearest first."""
    vocabularies = {
        name: {**stored, "header": header_checksum(folder / stored["file"])}
        for name, stored in encoders["vocabularies"].items()
    }
    manifest = {
        "format": "hotrows data",
        "fingerprint": _fingerprint(folder, schema, encoders),
        "extends": list(extends),
        "split": split,
        "seed": seed,
        "schema": json.loads(schema.to_json()),
        "parts": {name: _part_to_json(folder, part) for name, part in written.items()},
        **encoders,
        "vocabularies": vocabularies,
        **({} if extremes is None else {"extremes": asdict(extremes)}),
    }
    _write(folder, manifest)


def write_regrouped(folder: Path, source: Path, hot: Written, cold: Written) -> None:
    """Writes data.json: that of `source`, with the training part as `hot`, then `cold`."""
    manifest = read_manifest(source)
    halves = {"hot": _part_to_json(folder, hot), "cold": _part_to_json(folder, cold)}
    for half in halves.values():
        half["missing"] = {name: half["missing"][name] for name in half["unknown"]}
    manifest["parts"]["train"]["shards"] = [s for half in halves.values() for s in half["shards"]]
    _write(folder, {**manifest, "halves": halves})


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / _MANIFEST).write_text(json.dumps(_FILE.sign(manifest), indent=1) + "\n")


@dataclass(frozen=True)
class _Shard:
    file: str
    rows: int
    header: int  # the checksum of the file's header


@dataclass(frozen=True)
class _Part:
    """A part as data.json has it."""

    shards: tuple[_Shard, ...] = ()
    rows: int = 0
    clicks: tuple[int, ...] = ()
    labelled: tuple[int, ...] = ()
    missing: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Manifest:
    """data.json."""

    fingerprint: str
    schema: dict[str, Any]
    parts: dict[str, _Part]
    vocabularies: dict[str, StoredVocabulary]
    statistics: dict[str, Statistics]
    encodes_raw: bool
    split: str | None
    seed: int
    extends: tuple[str, ...] = ()
    halves: dict[str, _Part] | None = None
    text_rule: int = TEXT_RULE
    extremes: Extremes = field(default_factory=Extremes)
    format: str = ""


def _from_manifest(path: Path, manifest: _Manifest) -> EncodedData:
    if manifest.text_rule != TEXT_RULE:
        raise ValueError(f"expected text_rule {TEXT_RULE}, found {manifest.text_rule}")
    schema = Schema.from_fields(manifest.schema)

    def part(name: str, stored: _Part) -> Part:
        fields = dict(vars(stored))
        shards, _ = fields.pop("shards"), fields.pop("rows")
        files = tuple((shard.file, shard.rows) for shard in shards)
        headers = {shard.file: shard.header for shard in shards}
        return Part(name, path, schema, files, headers=headers, **fields)

    halves = manifest.halves
    if halves is not None and set(halves) != {"hot", "cold"}:
        raise ValueError("expected the halves hot and cold")
    return EncodedData(
        path=path,
        schema=schema,
        parts={name: part(name, manifest.parts.get(name, _Part())) for name in NAMES},
        fingerprint=manifest.fingerprint,
        split=manifest.split,
        seed=manifest.seed,
        vocabularies=manifest.vocabularies,
        statistics=manifest.statistics,
        encodes_raw=manifest.encodes_raw,
        extends=manifest.extends,
        extremes=manifest.extremes,
        halves=None if halves is None else (part("hot", halves["hot"]), part("cold", halves["cold"])),
    )


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
    if any(entry.deviation <= 0 for entry in data.statistics.values()):
        return "expected deviations above 0"
    return next(filter(None, map(_problem_of_part, (*data.parts.values(), *(data.halves or ())))), None)


def _problem_of_part(part: Part) -> str | None:
    if not all(is_name(file) and is_count(rows) for file, rows in part.shards):
        return f"expected file and rows of every shard of {part.name}"
    dense = {feature.name for feature in part.schema.dense}
    ids = {feature.name for feature in part.schema.id_features}
    lists = {f.name for f in part.schema.id_features if is_list(f)}
    expected = {"missing": dense | ids, "unknown": ids, "values": ids, "empty": lists}
    if part.name in ("hot", "cold"):
        expected["missing"] = ids
    for name, features in expected.items():
        counts = getattr(part, name)
        if set(counts) != features or not all(map(is_count, counts.values())):
            return f"expected counts of {name} of every feature of {part.name}"
    labels = (part.clicks, part.labelled)
    if any(len(c) != len(part.schema.labels) or not all(map(is_count, c)) for c in labels):
        return f"expected clicks and labelled of every label of {part.name}"
    return None


def _part_to_json(folder: Path, written: Written) -> dict[str, Any]:
    return {
        "rows": sum(rows for _, rows in written.shards),
        **{name: counts for name, counts in vars(written).items() if name != "shards"},
        "shards": [
            {"file": file, "rows": rows, "header": header_checksum(folder / file)}
            for file, rows in written.shards
        ],
    }


def _fingerprint(folder: Path, schema: Schema, encoders: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(schema.to_json().encode())
    digest.update(json.dumps(encoders["statistics"]).encode())
    for vocabulary in encoders["vocabularies"].values():
        sections = open_sections(folder / vocabulary["file"])
        for name in ("ends", "text"):
            digest.update(sections[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
