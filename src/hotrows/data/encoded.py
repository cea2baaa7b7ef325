"""Prepared data: a folder of shards and vocabularies, described by its `data.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.part import Part
from hotrows.data.sections import open_sections
from hotrows.data.shards import Written
from hotrows.data.split import NAMES
from hotrows.data.transform import Statistics
from hotrows.schema import Schema

VERSION = 2
_MANIFEST = "data.json"


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
    extends: fingerprints of the data whose vocabularies have grown into these, the nearest first.
    source: where the parts are read from, if not from shards in this folder; see `open_source`.
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

    @property
    def lineage(self) -> tuple[str, ...]:
        """Fingerprints of this data and of what it extends: a model of any of them fits, its tables
        grown."""
        return (self.fingerprint, *self.extends)

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
    extends: Sequence[str] = (),
) -> None:
    """Writes data.json. encoders: {"vocabularies": {name: {file, num_distinct}}, "statistics":
    {feature: {mean, deviation}}, "encodes_raw": bool}; extends: fingerprints of the data whose
    vocabularies have grown into these, the nearest first."""
    parts = {name: _part_to_json(of) for name, of in written.items()}
    manifest = {
        "format": "hotrows data",
        "version": VERSION,
        "fingerprint": _fingerprint(folder, schema, encoders),
        "extends": list(extends),
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
        clicks, labelled = (tuple(of.pop(key, ())) for key in ("clicks", "labelled"))
        of.pop("rows", None)
        return Part(name, path, schema, shards, clicks, labelled, **of)

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
        extends=tuple(manifest.get("extends", ())),
        halves=halves and (part("hot", halves["hot"]), part("cold", halves["cold"])),
    )


def _part_to_json(written: Written) -> dict[str, Any]:
    return {
        "rows": sum(rows for _, rows in written.shards),
        "clicks": written.clicks,
        "labelled": written.labelled,
        "missing": written.missing,
        "unknown": written.unknown,
        "values": written.values,
        "empty": written.empty,
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
