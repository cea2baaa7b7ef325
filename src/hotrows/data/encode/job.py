"""A preparation: its inputs and settings, and the file that says how far an interrupted one came."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.encode.encoder import readers_of, stored_values
from hotrows.data.encode.split import Sharing, Split, parse_split, parts_of
from hotrows.data.raw.cells import Columns, Reading
from hotrows.data.raw.inputs import Input, InputPosition, inputs_of
from hotrows.data.raw.ray_dataset import RayInput
from hotrows.data.raw.values import plain_time
from hotrows.data.stored.encoded import VERSION, EncodedData
from hotrows.data.stored.part import NAMES
from hotrows.json_file import parse
from hotrows.runtime.atomic_files import write_text
from hotrows.runtime.machine import num_threads, total_memory
from hotrows.schema import Schema

Progress = Callable[[str, int, int], None]
StageProgress = Callable[[int, int], None]

_BESIDE = 768 << 20  # bytes of memory for libraries, chunks and shards, beside counts
_ALL_TRAIN = "fraction:1,0,0"
STATE_FILE = "state.json"


@dataclass(frozen=True)
class Job:
    """Inputs and settings of a preparation.

    declared_parts: per input the number of the part its rows belong to, None where the split decides.
    """

    inputs: tuple[Input, ...]
    declared_parts: tuple[int | None, ...]
    schema: Schema
    split_text: str
    split: Split
    seed: int
    stored: EncodedData | None
    extends: bool
    memory: int
    threads: int
    progress: Progress | None = None

    @property
    def on_ray(self) -> bool:
        """Whether the rows are in datasets of Ray."""
        on_ray = [isinstance(source, RayInput) for source in self.inputs]
        if any(on_ray) and not all(on_ray):
            raise ValueError(
                "expected all rows in Ray datasets or none, found both; read the files with ray.data, too"
            )
        return all(on_ray)

    @property
    def reading(self) -> Reading:
        return Reading(self.schema, self.threads)

    @property
    def shared(self) -> tuple[Input, ...]:
        """The inputs whose rows the split distributes over the parts."""
        return tuple(self.inputs[i] for i, part in enumerate(self.declared_parts) if part is None)

    @property
    def counts_memory(self) -> int:
        """Bytes that counts and indexes of vocabularies may take."""
        return max(self.memory - _BESIDE, self.memory // 4)

    def progress_of(self, stage: str) -> StageProgress | None:
        return None if self.progress is None else partial(self.progress, stage)

    def parts(self, position: InputPosition, columns: Columns, sharing: Sharing) -> np.ndarray:
        """[rows] uint8, the part of each row."""
        return parts_of(self.declared_parts[position.input], columns, sharing)

    def identity(self) -> dict[str, Any] | None:
        """Inputs and settings that an interrupted preparation must share with this one to be resumed."""
        stamps = [source.stamp for source in self.inputs]
        if None in stamps:
            return None
        return {
            "prepare": VERSION,
            "inputs": stamps,
            "given": self.declared_parts,
            "schema": json.loads(self.schema.to_json()),
            "split": self.split_text,
            "seed": self.seed,
            "stored": self.stored and [self.stored.fingerprint, self.extends],
        }


def job_of(
    raw: Any,
    schema: Schema | None,
    validation: Any,
    test: Any,
    split: str | None,
    seed: int,
    like: Path | str | None,
    extend: Path | str | None,
    memory: int | None,
    threads: int | None,
    progress: Progress | None,
) -> Job:
    stored = _stored(like, extend)
    schema = _schema_of(schema, stored)
    groups = [inputs_of(rows) for rows in (raw, validation, test)]
    if not groups[0]:
        raise ValueError("no raw files to prepare; name at least one")
    declared = [name for name, group in zip(NAMES[1:], groups[1:], strict=True) if group]
    text = split or (_ALL_TRAIN if declared else "fraction:0.8,0.1,0.1")
    return Job(
        inputs=tuple(source for group in groups for source in group),
        declared_parts=tuple(
            part for part, group in zip((None, 1, 2), groups, strict=True) for _ in group
        ),
        schema=schema,
        split_text=text,
        split=_split(text, schema, declared),
        seed=seed,
        stored=stored,
        extends=extend is not None,
        memory=memory or max(total_memory() // 4, 2 << 30),
        threads=num_threads(threads),
        progress=progress,
    )


def _stored(like: Path | str | None, extend: Path | str | None) -> EncodedData | None:
    if like is not None and extend is not None:
        raise ValueError("give either like= (encoders as they are) or extend= (growing), not both")
    folder = extend if like is None else like
    if folder is None:
        return None
    data = EncodedData.open(folder)
    stored_values(data)  # raises an error if it has none
    return data


def _schema_of(schema: Schema | None, stored: EncodedData | None) -> Schema:
    """Returns the schema to prepare with: that of the stored encoders, if there are any."""
    if stored is None and schema is None:
        raise ValueError("prepare needs a schema: one of your own, or that of stored data (like=)")
    if stored is None:
        if not isinstance(schema, Schema):
            raise ValueError(
                f"expected a Schema, not {type(schema).__name__}; draft_schema(rows).schema drafts one, "
                f"Schema.load(FILE) reads one"
            )
        readers_of(schema)
        return schema
    if schema is not None and _without_rows(schema) != _without_rows(stored.schema):
        raise ValueError(
            f"the schema differs from that of {stored.path}, whose encoders are to be used; leave "
            f"the schema out, or prepare without them"
        )
    return stored.schema


def _without_rows(schema: Schema) -> Schema:
    return schema.with_rows(dict.fromkeys(readers_of(schema)))  # type: ignore[arg-type]


def _split(text: str, schema: Schema, declared: Sequence[str]) -> Split:
    def parse(word: str) -> int:
        assert schema.time is not None
        for form in (schema.time.format, "iso"):
            if (seconds := plain_time(word.encode(), form)) is not None:
                return seconds
        raise ValueError(f"split {text!r}: {word!r} is no time in the format {schema.time.format!r}")

    split = parse_split(text, parse if schema.time else None, declared)
    if split.kind == "time" and schema.time is None:
        raise ValueError(
            f"split {text!r} needs to know the time: say which column that is, time=Time(COLUMN)"
        )
    if split.kind == "stratified" and schema.request is not None:
        raise ValueError(
            f"split {text!r} draws rows by their label, and rows of a request stay together; split in "
            f"another way, such as fraction:0.8,0.1,0.1"
        )
    if split.kind == "stratified" and not schema.labels[0].values.binary:
        raise ValueError(
            f"split {text!r} shares out the rows of each label, and {schema.labels[0].name!r} is a "
            f"number; split in another way, such as fraction:0.8,0.1,0.1"
        )
    return split


def read_state(folder: Path) -> dict[str, Any]:
    if not (folder / STATE_FILE).exists():
        return {}
    try:
        stored = parse((folder / STATE_FILE).read_bytes())
        text, checksum = stored["state"], stored["crc32"]
        if zlib.crc32(text.encode()) == checksum:
            return parse(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ValueError(
        f"{folder / STATE_FILE} is damaged, so the preparation that was interrupted cannot go on and its "
        f"files are removed; prepare again"
    )


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    text = json.dumps(state)
    write_text(folder / STATE_FILE, json.dumps({"state": text, "crc32": zlib.crc32(text.encode())}))
