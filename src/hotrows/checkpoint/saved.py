"""What a checkpoint has of a table, wherever it is: in its files, or in the file stores of its ranks.

A `Saved` piece gives records at places; `fill` puts what all pieces of a table have of some ids into
their records. Files are mapped: what is asked for is read, and nothing is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hotrows.checkpoint import files
from hotrows.checkpoint.manifest import Manifest
from hotrows.checkpoint.recut import Cut, Ids, Places, common, copy_records
from hotrows.embedding import Embedding
from hotrows.piece import Piece, Shard
from hotrows.planning.sharding import Placement
from hotrows.ranks import OneRank
from hotrows.record import layout_of
from hotrows.storage.store import Store
from hotrows.tiers import Tiers


class Saved(Protocol):
    """Records of some ids of a table, with some of its columns."""

    @property
    def ids(self) -> Ids: ...

    @property
    def cut(self) -> Cut: ...

    def take(self, places: Places) -> np.ndarray:
        """[n, stride] uint8: the records at these places among the ids."""


Tables = Mapping[str, Sequence[Saved]]  # the pieces of each table, older ones first


def fill(saved: Sequence[Saved], ids: Ids, target: np.ndarray, to: Cut) -> None:
    """Makes the records of `ids`, [n, stride] uint8 cut as `to`, what is saved of them; later pieces
    win. What is not saved stays."""
    for piece in saved:
        found = common(ids, piece.ids)
        if found is not None:
            here, there = found
            copy_records(piece.take(there), piece.cut, target, to, here)


def chunks_of(ids: range, stride: int) -> Iterator[tuple[int, range]]:
    """(place of the first, ids) for as many ids as are copied at once."""
    size = max(256, files.CHUNK // max(stride, 1))
    for begin in range(0, len(ids), size):
        yield begin, ids[begin : begin + size]


# ---- in files


@dataclass(frozen=True)
class InFile:
    """A piece in a mapped file. records: [n, stride] uint8."""

    ids: Ids
    cut: Cut
    records: np.ndarray

    def take(self, places: Places) -> np.ndarray:
        return self.records[places]


def in_files(found: Sequence[tuple[Path, Manifest]]) -> dict[str, list[Saved]]:
    """The pieces in the files of a full checkpoint and of the increments on it."""
    tables: dict[str, list[Saved]] = {}
    for folder, manifest in found:
        mapped: dict[str, np.ndarray] = {}

        def bytes_at(
            file: str, begin: int, size: int, folder: Path = folder, mapped: dict = mapped
        ) -> np.ndarray:
            if file not in mapped:
                mapped[file] = np.memmap(folder / file, np.uint8, "r")
            return mapped[file][begin : begin + size]

        for piece in manifest.pieces:
            cut, ids = manifest.cut(piece), None
            stride = cut.layout.stride
            records = bytes_at(piece.file, piece.offset, piece.num_ids * stride)
            if piece.listed is not None:
                ids = bytes_at(piece.listed, piece.listed_at, 8 * piece.num_ids).view(np.int64)
            saved = InFile(piece.ids if ids is None else ids, cut, records.reshape(-1, stride))
            tables.setdefault(piece.table, []).append(saved)
    return tables


# ---- in file stores


@dataclass(frozen=True)
class InStore:
    """A piece in a file store: rows from first_row on, the bytes from `offset` on of a group's record."""

    ids: range
    cut: Cut
    store: Store
    first_row: int
    offset: int

    def take(self, places: Places) -> np.ndarray:
        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self.ids)))
        rows = places + self.first_row
        found = torch.empty(rows.size, self.store.stride, dtype=torch.uint8)
        self.store.read(torch.from_numpy(rows), found)
        return found[:, self.offset : self.offset + self.cut.layout.stride].numpy()


class FileStores:
    """The file stores of the ranks that wrote a checkpoint, as they were then; to be closed.

    They are looked for where the embedding at hand has its own.
    """

    def __init__(self, manifest: Manifest, embedding: Embedding) -> None:
        self._embeddings = []
        self.tables: dict[str, list[Saved]] = {}
        shared = True  # of rows that all ranks hold, those of the first are read
        for rank, generations in enumerate(manifest.stores):
            then = _as_then(manifest, embedding, rank)
            assert then.tiers is not None
            then.tiers.view(generations)
            self._embeddings.append(then)
            self._add(then, then.tiers, shared)
            shared = False

    def close(self) -> None:
        for embedding in self._embeddings:
            embedding.close()

    def _add(self, then: Embedding, tiers: Tiers, shared: bool) -> None:
        for g, group in enumerate(then.groups):
            for p, offset in zip(group.packs, group.offsets, strict=True):
                shard = then.shards[p]
                for piece in shard.pieces:
                    if piece.shared and not shared:
                        continue
                    saved = InStore(
                        piece.ids,
                        cut_of(shard, piece),
                        tiers.caches[g].store,
                        piece.first_row,
                        offset,
                    )
                    self.tables.setdefault(shard.tables[piece.table].name, []).append(saved)


def cut_of(shard: Shard, piece: Piece) -> Cut:
    """The records of a piece of a shard."""
    return Cut(layout_of(shard.tables[piece.table]), shard.columns)


class _Seat(OneRank):
    """The place of one rank among several, to ask what it holds; it talks to nobody."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks


def _as_then(manifest: Manifest, embedding: Embedding, rank: int) -> Embedding:
    """What a rank had when the checkpoint was written, to be read."""
    assert embedding.tiers is not None
    sequences = {feature for pack in embedding.packs for feature, _ in pack.sequences}
    placements = manifest.placements or {}
    return Embedding(
        embedding.tables,
        seed=embedding.seed,
        sequences=sorted(sequences),
        caching=embedding.tiers.caching,
        read_only=True,
        ranks=_Seat(rank, manifest.num_ranks),
        sharding={name: Placement(**of) for name, of in placements.items()},
    )


# ---- as a store


class Assembled:
    """The rows of a group of an embedding, read from what is saved, as they are asked for.

    Rows that are not saved have their first values. source: what `close` closes.
    """

    def __init__(
        self, embedding: Embedding, g: int, tables: Tables, source: FileStores | None = None
    ) -> None:
        assert embedding.tiers is not None
        self._group, self._source = embedding.groups[g], source
        self._first_values = embedding.tiers.first_values(g)
        self._shards = [embedding.shards[p] for p in self._group.packs]
        self._tables = tables
        self.stride = self._group.stride

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""
        self._first_values(rows, out)
        for k, piece in enumerate(self._shards[0].pieces):
            bounds = torch.tensor([piece.first_row, piece.first_row + piece.num_rows])
            begin, end = torch.searchsorted(rows, bounds).tolist()
            if begin < end:
                ids = piece.first_id + (rows[begin:end] - piece.first_row) * piece.id_step
                of_packs = out[begin:end].split(list(self._group.strides), 1)
                fill_packs(self._tables, self._shards, k, ids.numpy(), of_packs)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def fill_packs(
    tables: Tables, shards: Sequence[Shard], k: int, ids: Ids, records: Sequence[Tensor]
) -> None:
    """`fill` for the k-th piece of all packs of a group: records [n, stride] of each."""
    for shard, own in zip(shards, records, strict=True):
        piece = shard.pieces[k]
        saved = tables.get(shard.tables[piece.table].name, ())
        fill(saved, ids, own.numpy(), cut_of(shard, piece))
