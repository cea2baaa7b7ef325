"""Prepared data: a folder of shards and vocabularies, described by its `data.json`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.raw.canonical import TEXT_RULE
from hotrows.data.stored.part import NAMES, Part
from hotrows.data.stored.sections import is_count, open_sections
from hotrows.data.stored.shard_writer import Written
from hotrows.schema import FIRST_UNKNOWN, Schema, is_list, vocabulary_of

VERSION = 3
_READABLE = (2, VERSION)  # 2: before values had a canonical text, text rule 1
_MANIFEST = "data.json"


@dataclass(frozen=True)
class StoredVocabulary:
    """The file of a vocabulary, and the number of distinct values seen, those below min_count too."""

    file: str
    num_distinct: int


@dataclass(frozen=True)
class Statistics:
    """Mean and (population) deviation of a column over the training part."""

    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True)
class EncodedData:
    """A folder of prepared data.

    schema: as declared, with the rows of every vocabulary filled in.
    parts: "train", "validation" and "test"; a part may have no rows.
    halves: of regrouped data, the all-hot and the cold rows of "train", in this order.
    fingerprint: of schema, vocabularies and statistics; data of one fingerprint share their ids.
    extends: fingerprints of the data whose vocabularies have grown into these, the nearest first.
    text_rule: version of the rule by which raw values became text, see `data.raw.canonical`.
    source: Parquet files that the parts are read from instead of shards; see `open_source`.
    """

    path: Path
    schema: Schema
    parts: dict[str, Part]
    fingerprint: str
    split: str
    seed: int
    vocabularies: dict[str, StoredVocabulary]
    statistics: dict[str, Statistics]
    encodes_raw: bool
    halves: tuple[Part, Part] | None = None
    source: dict[str, Any] | None = None
    extends: tuple[str, ...] = ()
    text_rule: int = TEXT_RULE

    @property
    def lineage(self) -> tuple[str, ...]:
        """Fingerprints of this data and of what it extends: a model of any of them fits after its
        tables have grown."""
        return (self.fingerprint, *self.extends)

    @property
    def hot_rows(self) -> int | None:
        """Number of all-hot training rows; None if the data is not regrouped."""
        return None if self.halves is None else self.halves[0].rows

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
        try:
            data = _from_manifest(Path(path), manifest)
            problem = _problem(data)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"[:200]
        if problem:
            raise ValueError(f"{Path(path) / _MANIFEST} is damaged ({problem}); prepare the data again")
        return data

    def check(self) -> None:
        """Reads every byte and compares it with its checksum."""
        shards = [name for part in self.parts.values() for name, _ in part.shards]
        for name in (*shards, *(vocabulary.file for vocabulary in self.vocabularies.values())):
            open_sections(self.path / name).check()


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads a folder's data.json."""
    if not (path / _MANIFEST).is_file():
        raise ValueError(f"{path} holds no prepared data (no {_MANIFEST} in it); make it with `prepare`")
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path / _MANIFEST} is damaged ({error}); prepare it again") from error
    if not isinstance(manifest, dict):
        raise ValueError(f"{path / _MANIFEST} is damaged (no JSON object); prepare it again")
    if manifest.get("version") not in _READABLE:
        raise ValueError(
            f"{path} has format version {manifest.get('version')!r:.40}, this hotrows reads "
            f"{_READABLE[0]} and {VERSION}; prepare the data again with this version"
        )
    return manifest


def write_manifest(
    folder: Path,
    schema: Schema,
    written: Mapping[str, Written],
    encoders: Mapping[str, Any],
    split: str | None = None,
    seed: int = 0,
    extends: Sequence[str] = (),
) -> None:
    """Writes data.json. encoders: {"vocabularies": {name: {file, num_distinct}}, "statistics":
    {feature: {mean, deviation}}, "encodes_raw": bool, "text_rule": int, where it encodes raw rows};
    extends: fingerprints of the data whose vocabularies have grown into these, the nearest first."""
    manifest = {
        "format": "hotrows data",
        "version": VERSION,
        "fingerprint": _fingerprint(folder, schema, encoders),
        "extends": list(extends),
        "split": split,
        "seed": seed,
        "schema": json.loads(schema.to_json()),
        "parts": {name: _part_to_json(part) for name, part in written.items()},
        **encoders,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def write_regrouped(folder: Path, source: Path, hot: Written, cold: Written) -> None:
    """Writes data.json: that of `source`, with the training part as `hot`, then `cold`."""
    manifest = read_manifest(source)
    halves = {"hot": _part_to_json(hot), "cold": _part_to_json(cold)}
    for half in halves.values():
        half["missing"] = {name: half["missing"][name] for name in half["unknown"]}
    manifest["parts"]["train"]["shards"] = [s for half in halves.values() for s in half["shards"]]
    (folder / _MANIFEST).write_text(json.dumps({**manifest, "halves": halves}, indent=1) + "\n")


def _from_manifest(path: Path, manifest: dict[str, Any]) -> EncodedData:
    schema = Schema.from_json(json.dumps(manifest["schema"]))

    def part(name: str, stored: Mapping[str, Any]) -> Part:
        fields = dict(stored)
        shards = tuple((shard["file"], shard["rows"]) for shard in fields.pop("shards"))
        clicks, labelled = (tuple(fields.pop(key, ())) for key in ("clicks", "labelled"))
        fields.pop("rows", None)
        return Part(name, path, schema, shards, clicks, labelled, **fields)

    halves = manifest.get("halves")
    return EncodedData(
        path=path,
        schema=schema,
        parts={name: part(name, manifest["parts"].get(name, {"shards": []})) for name in NAMES},
        fingerprint=manifest["fingerprint"],
        split=manifest["split"],
        seed=manifest["seed"],
        vocabularies={n: StoredVocabulary(**v) for n, v in manifest["vocabularies"].items()},
        statistics={n: Statistics(**fields) for n, fields in manifest["statistics"].items()},
        encodes_raw=manifest["encodes_raw"],
        extends=tuple(manifest.get("extends", ())),
        text_rule=manifest.get("text_rule", 1),
        halves=halves and (part("hot", halves["hot"]), part("cold", halves["cold"])),
    )


def _problem(data: EncodedData) -> str | None:
    """Describes the first impossible statement of a manifest, or None."""
    texts = [data.fingerprint, *data.extends, *([] if data.split is None else [data.split])]
    if not all(isinstance(text, str) for text in texts):
        return "expected texts as fingerprint, split and extends"
    if data.text_rule not in range(1, TEXT_RULE + 1):
        return f"expected a text_rule from 1 to {TEXT_RULE}"
    if type(data.seed) is not int or type(data.encodes_raw) is not bool:
        return "expected a number as seed, and encodes_raw to be true or false"
    vocabularies = {vocabulary_of(feature) for feature in data.schema.id_features}
    if set(data.vocabularies) != vocabularies or any(f.rows is None for f in data.schema.id_features):
        return f"expected the vocabularies {sorted(vocabularies)}, and their rows in the schema"
    said = {(vocabulary_of(f), f.rows, f.min_count, f.num_unknown) for f in data.schema.id_features}
    if len(said) != len(vocabularies) or any((r or 0) < FIRST_UNKNOWN + n for _, r, _, n in said):
        return "expected features that share a vocabulary to say the same of it, and rows for all of it"
    for entry in data.vocabularies.values():
        if not _is_file(entry.file) or not is_count(entry.num_distinct):
            return "expected file and num_distinct of every vocabulary"
    numbers = [x for entry in data.statistics.values() for x in (entry.mean, entry.deviation)]
    if not all(type(x) in (int, float) and math.isfinite(x) for x in numbers):
        return "expected numbers as statistics"
    if any(entry.deviation <= 0 for entry in data.statistics.values()):
        return "expected deviations above 0"
    return next(filter(None, map(_problem_of_part, (*data.parts.values(), *(data.halves or ())))), None)


def _problem_of_part(part: Part) -> str | None:
    if not all(_is_file(file) and is_count(rows) for file, rows in part.shards):
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


def _is_file(name: Any) -> bool:
    return (
        isinstance(name, str) and name.isprintable() and name not in ("", ".", "..") and "/" not in name
    )


def _part_to_json(written: Written) -> dict[str, Any]:
    return {
        "rows": sum(rows for _, rows in written.shards),
        **{name: counts for name, counts in vars(written).items() if name != "shards"},
        "shards": [{"file": file, "rows": rows} for file, rows in written.shards],
    }


def _fingerprint(folder: Path, schema: Schema, encoders: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(schema.to_json().encode())
    digest.update(json.dumps(encoders["statistics"]).encode())
    for vocabulary in encoders["vocabularies"].values():
        sections = open_sections(folder / vocabulary["file"])
        for name in ("ends", "text"):
            digest.update(sections[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
