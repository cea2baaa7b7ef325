"""Prepared data: a folder of shards and vocabularies, described by its `data.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hotrows.data.sections import open_sections
from hotrows.data.shards import Rows, Written, open_shard
from hotrows.data.split import NAMES
from hotrows.data.transform import Statistics
from hotrows.schema import Schema

VERSION = 1
_MANIFEST = "data.json"


@dataclass(frozen=True)
class Part:
    """Rows to train on, to validate with, or to test with.

    shards: (file, rows) in order; clicks: rows with label 1; missing, unknown: per feature, in how
    many rows its value was missing, or not in the vocabulary.
    """

    name: str
    folder: Path
    features: tuple[str, ...]
    num_dense: int
    shards: tuple[tuple[str, int], ...] = ()
    clicks: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.shards)

    def shard(self, index: int) -> Rows:
        """The rows of a shard, mapped; an error where the file was cut off or replaced."""
        name, expected = self.shards[index]
        status = (self.folder / name).stat() if (self.folder / name).exists() else None
        version = (status.st_ino, status.st_mtime_ns, status.st_size) if status else (0, 0, 0)
        rows = _opened(self.folder / name, version, self.features)
        if len(rows) != expected:
            raise ValueError(
                f"{self.folder / name} has {len(rows):,} rows, {_MANIFEST} says {expected:,}; "
                f"prepare the data again"
            )
        return rows


@dataclass(frozen=True)
class StoredVocabulary:
    """Where a vocabulary is stored, and how many values were seen, those below min_count too."""

    file: str
    num_distinct: int


@dataclass(frozen=True)
class EncodedData:
    """A folder of prepared data.

    schema: as declared, with the rows of every vocabulary filled in.
    parts: "train", "validation" and "test"; a part may have no rows.
    halves: where the data is regrouped, the all-hot and the cold rows of "train", in this order.
    fingerprint: of schema, vocabularies and statistics; equal where a value gets the same id.
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

    @property
    def hot_rows(self) -> int | None:
        """How many training rows are all-hot; None where the data is not regrouped."""
        return None if self.halves is None else self.halves[0].rows

    def hot_and_cold(self) -> tuple[Part, Part]:
        """The all-hot and the cold rows of the training part; `missing` tells of ids alone."""
        if self.halves is None:
            raise ValueError(
                f"{self.path} is not regrouped into hot and cold rows; do so with "
                f"`hotrows regroup {self.path} --out FOLDER --fast-memory SIZE`"
            )
        return self.halves

    @staticmethod
    def open(path: Path | str) -> EncodedData:
        return _from_manifest(Path(path), read_manifest(Path(path)))

    def check(self) -> None:
        """Reads every byte and compares it with its checksum."""
        for part in self.parts.values():
            for name, _ in part.shards:
                open_sections(self.path / name).check()
        for vocabulary in self.vocabularies.values():
            open_sections(self.path / vocabulary.file).check()


def read_manifest(path: Path) -> dict[str, Any]:
    """The contents of a folder's data.json."""
    if not (path / _MANIFEST).is_file():
        raise ValueError(
            f"{path} holds no prepared data (no {_MANIFEST} in it); make it with `prepare`"
        )
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
    except ValueError as error:
        raise ValueError(f"{path / _MANIFEST} is damaged ({error}); prepare it again") from error
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{path} has format version {manifest.get('version')}, this hotrows reads {VERSION}; "
            f"prepare the data again with this version"
        )
    return manifest


def write_manifest(
    folder: Path,
    schema: Schema,
    written: Mapping[str, Written],
    encoders: Mapping[str, Any],
    split: str | None = None,
    seed: int = 0,
) -> None:
    """Writes data.json. encoders: {"vocabularies": {name: {file, num_distinct}}, "statistics":
    {feature: {mean, deviation}}, "encodes_raw": bool}."""
    parts = {name: _part_to_json(of) for name, of in written.items()}
    manifest = {
        "format": "hotrows data",
        "version": VERSION,
        "fingerprint": _fingerprint(folder, schema, encoders),
        "split": split,
        "seed": seed,
        "schema": json.loads(schema.to_json()),
        "parts": parts,
        **encoders,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def write_regrouped(folder: Path, source: Path, hot: Written, cold: Written) -> None:
    """Writes data.json: that of `source`, its training part laid out anew as `hot`, then `cold`."""
    manifest = read_manifest(source)
    halves = {"hot": _part_to_json(hot), "cold": _part_to_json(cold)}
    for half in halves.values():
        half["missing"] = {name: half["missing"][name] for name in half["unknown"]}
    shards = [shard for half in halves.values() for shard in half["shards"]]
    manifest["parts"]["train"]["shards"] = shards
    text = json.dumps({**manifest, "halves": halves}, indent=1)
    (folder / _MANIFEST).write_text(text + "\n")


def _from_manifest(path: Path, manifest: dict[str, Any]) -> EncodedData:
    schema = Schema.from_json(json.dumps(manifest["schema"]))

    def part(name: str, stored: Mapping[str, Any]) -> Part:
        of = dict(stored)
        shards = tuple((shard["file"], shard["rows"]) for shard in of.pop("shards"))
        of.pop("rows", None)
        features = tuple(f.name for f in schema.sparse)
        return Part(name, path, features, len(schema.dense), shards, **of)

    halves = manifest.get("halves")
    return EncodedData(
        path=path,
        schema=schema,
        parts={name: part(name, manifest["parts"].get(name, {"shards": []})) for name in NAMES},
        fingerprint=manifest["fingerprint"],
        split=manifest["split"],
        seed=manifest["seed"],
        vocabularies={n: StoredVocabulary(**of) for n, of in manifest["vocabularies"].items()},
        statistics={n: Statistics(**of) for n, of in manifest["statistics"].items()},
        encodes_raw=manifest["encodes_raw"],
        halves=halves and (part("hot", halves["hot"]), part("cold", halves["cold"])),
    )


def _part_to_json(written: Written) -> dict[str, Any]:
    return {
        "rows": sum(rows for _, rows in written.shards),
        "clicks": written.clicks,
        "missing": written.missing,
        "unknown": written.unknown,
        "shards": [{"file": file, "rows": rows} for file, rows in written.shards],
    }


def _fingerprint(folder: Path, schema: Schema, encoders: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(schema.to_json().encode())
    digest.update(json.dumps(encoders["statistics"]).encode())
    for vocabulary in encoders["vocabularies"].values():
        sections = open_sections(folder / vocabulary["file"])
        digest.update(sections["ends"].tobytes())
        digest.update(sections["text"].tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _opened(path: Path, version: tuple[int, int, int], features: tuple[str, ...]) -> Rows:
    """A shard, mapped once while its file (inode, time and size) stays the same."""
    return open_shard(path, features)
