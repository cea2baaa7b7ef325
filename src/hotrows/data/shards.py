"""Shards: the rows of a part, column after column, in files that are mapped and never read whole.

Sections of a shard: `labels` [rows] uint8; `dense` [rows, num_dense] float32; `ids/NAME` [rows] for
every feature that carries ids, in the narrowest of uint8, uint16, uint32 and int64 that holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotrows.data.sections import open_sections, write_sections
from hotrows.schema import FIRST_UNKNOWN, MISSING, Schema

ROWS_PER_SHARD = 1 << 19


@dataclass(frozen=True)
class Rows:
    """Encoded rows: ids, one [rows] array of unsigned integers per feature; dense [rows, num_dense]
    float32; labels [rows] uint8."""

    ids: tuple[np.ndarray, ...]
    dense: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: slice) -> Rows:
        ids = tuple(column[chosen] for column in self.ids)
        return Rows(ids, self.dense[chosen], self.labels[chosen])


@dataclass(frozen=True)
class Written:
    """What a writer wrote: its shards as (file, rows), the rows with label 1, and per feature how
    often its value was missing or unknown."""

    shards: tuple[tuple[str, int], ...]
    clicks: int
    missing: dict[str, int]
    unknown: dict[str, int]


class ShardWriter:
    """Collects the rows of one part and writes a shard whenever one is full."""

    def __init__(self, folder: Path, part: str, schema: Schema, rows: int = ROWS_PER_SHARD) -> None:
        self._folder = folder
        self._part = part
        self._schema = schema
        self._buffer = _empty_rows(schema, rows)
        self._filled = 0
        self._shards: list[tuple[str, int]] = []
        self._clicks = 0
        self._missing = np.zeros(len(schema.dense) + len(schema.sparse), np.int64)
        self._unknown = np.zeros(len(schema.sparse), np.int64)

    def append(
        self, ids: np.ndarray, dense: np.ndarray, labels: np.ndarray, num_missing: Sequence[int]
    ) -> None:
        """Adds rows: ids [F, rows] int64, dense [rows, num_dense] float32, labels [rows] uint8;
        num_missing: in how many of them each dense feature was missing."""
        self._count(ids, labels, num_missing)
        done = 0
        while done < len(labels):
            size = min(len(labels) - done, len(self._buffer) - self._filled)
            room = self._buffer[self._filled : self._filled + size]
            for column, values in zip(room.ids, ids[:, done : done + size], strict=True):
                column[:] = values
            room.dense[:] = dense[done : done + size]
            room.labels[:] = labels[done : done + size]
            self._filled += size
            done += size
            if self._filled == len(self._buffer):
                self._write()

    def close(self) -> Written:
        """Writes the last shard."""
        if self._filled:
            self._write()
        ids = [f.name for f in self._schema.sparse]
        names = [*(f.name for f in self._schema.dense), *ids]
        return Written(
            shards=tuple(self._shards),
            clicks=self._clicks,
            missing=dict(zip(names, self._missing.tolist(), strict=True)),
            unknown=dict(zip(ids, self._unknown.tolist(), strict=True)),
        )

    def _count(self, ids: np.ndarray, labels: np.ndarray, num_missing: Sequence[int]) -> None:
        self._clicks += int(labels.sum())
        num_dense = len(self._schema.dense)
        self._missing[:num_dense] += np.asarray(num_missing, np.int64)
        for f, feature in enumerate(self._schema.sparse):
            missing = np.count_nonzero(ids[f] == MISSING)
            reserved = np.count_nonzero(ids[f] < FIRST_UNKNOWN + feature.num_unknown)
            padding = len(ids[f]) - np.count_nonzero(ids[f])
            self._missing[num_dense + f] += missing
            self._unknown[f] += reserved - missing - padding

    def _write(self) -> None:
        name = f"{self._part}-{len(self._shards):05d}.shard"
        rows = self._buffer[: self._filled]
        ids = {f"ids/{f.name}": c for f, c in zip(self._schema.sparse, rows.ids, strict=True)}
        header = {"kind": "shard", "rows": self._filled}
        arrays = {"labels": rows.labels, "dense": rows.dense, **ids}
        write_sections(self._folder / name, header, arrays)
        self._shards.append((name, self._filled))
        self._filled = 0


def open_shard(path: Path, features: Sequence[str]) -> Rows:
    """Maps the rows of a shard."""
    sections = open_sections(path)
    ids = tuple(sections[f"ids/{feature}"] for feature in features)
    return Rows(ids, sections["dense"], sections["labels"])


def width_of(rows: int) -> np.dtype:
    """The narrowest stored integer that holds ids below `rows`."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if rows <= np.iinfo(dtype).max + 1:
            return np.dtype(dtype)
    return np.dtype(np.int64)


def _empty_rows(schema: Schema, rows: int) -> Rows:
    ids = tuple(np.empty(rows, width_of(schema.rows_of(f.name))) for f in schema.sparse)
    dense = np.empty((rows, len(schema.dense)), np.float32)
    return Rows(ids, dense, np.empty(rows, np.uint8))
