"""Sources of saved records: the files of a checkpoint, or the file stores of the ranks that wrote it.

`SavedRecords` are a piece of a table that gives its records at places; `fill` copies what all pieces
of a table have of some ids. Files are memory-mapped: only what is needed is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hotrows.engine.checkpoint import files
from hotrows.engine.checkpoint.manifest import Chain, Manifest
from hotrows.engine.checkpoint.reshard import ColumnSlice, Ids, Places, check_scales, common, copy_records
from hotrows.engine.distributed.comm import Seat
from hotrows.engine.embedding import Embedding
from hotrows.engine.planning.sharding import Placement
from hotrows.engine.storage.store import Store
from hotrows.ops.record import RankShard, TableSlice, below, layout_of
from hotrows.runtime.json_file import build


class SavedRecords(Protocol):
    """Records of some ids of a table, with some of its columns."""

    @property
    def ids(self) -> Ids: ...

    @property
    def columns(self) -> ColumnSlice: ...

    def take(self, places: Places) -> np.ndarray:
        """[n, stride] uint8: the records at these places among the ids."""


Tables = Mapping[str, Sequence[SavedRecords]]  # the pieces of each table, older ones first


def fill(saved: Sequence[SavedRecords], ids: Ids, target: np.ndarray, columns: ColumnSlice) -> None:
    """Copies what is saved of `ids` into their records, target [n, stride] uint8 of `columns`; later
    pieces win. Bytes that are not saved stay."""
    for piece in saved:
        if places := common(ids, piece.ids):
            target_rows, source_rows = places
            copy_records(piece.take(source_rows), piece.columns, target, columns, target_rows)


def end_of(saved: Sequence[SavedRecords]) -> int:
    """The first id from which on nothing is saved."""
    return max((int(piece.ids[-1]) + 1 for piece in saved if len(piece.ids)), default=0)


def chunks_of(ids: range, stride: int) -> Iterator[tuple[int, range]]:
    """(place of the first id, ids) for chunks of ids whose records are copied at once."""
    size = max(256, files.CHUNK // max(stride, 1))
    for begin in range(0, len(ids), size):
        yield begin, ids[begin : begin + size]


# ---- in files


@dataclass(frozen=True)
class RecordsInFile:
    """A piece in a mapped file. records: [n, stride] uint8."""

    ids: Ids
    columns: ColumnSlice
    records: np.ndarray

    def take(self, places: Places) -> np.ndarray:
        return self.records[places]


def in_files(checkpoints: Chain) -> dict[str, list[SavedRecords]]:
    """The pieces of each table in the files of a full checkpoint and of the increments on it."""
    tables: dict[str, list[SavedRecords]] = {}
    for folder, manifest in checkpoints:
        names = {name for piece in manifest.pieces for name in (piece.file, piece.listed) if name}
        mapped = {name: np.memmap(folder / name, np.uint8, "r") for name in names}
        for piece in manifest.pieces:
            columns = manifest.column_slice(piece)
            stride = columns.layout.stride
            records = mapped[piece.file][piece.offset :][: piece.num_ids * stride].reshape(-1, stride)
            ids: Ids
            if piece.listed is None:
                ids = piece.ids
            else:
                ids = mapped[piece.listed][piece.listed_at :][: 8 * piece.num_ids].view(np.int64)
            tables.setdefault(piece.table, []).append(RecordsInFile(ids, columns, records))
    return tables


# ---- in file stores


@dataclass(frozen=True)
class RecordsInStore:
    """A piece in a file store: rows from first_row on, the bytes from `offset` on of a group's record."""

    ids: range
    columns: ColumnSlice
    store: Store
    first_row: int
    offset: int

    def take(self, places: Places) -> np.ndarray:
        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self.ids)))
        rows = places + self.first_row
        records = torch.empty(rows.size, self.store.stride, dtype=torch.uint8)
        self.store.read(torch.from_numpy(rows), records)
        return records[:, self.offset : self.offset + self.columns.layout.stride].numpy()


class FileStores:
    """The file stores of the ranks that wrote a checkpoint, as they were then; to be closed.

    Their folders are expected next to that of the embedding's own stores.
    """

    def __init__(self, manifest: Manifest, embedding: Embedding) -> None:
        self._embeddings = []
        self._num_rows = {table.name: table.rows for table in manifest.tables}
        self.tables: dict[str, list[SavedRecords]] = {}
        for rank, generations in enumerate(manifest.stores):
            then = _as_then(manifest, embedding, rank)
            then.cached_tables.view(generations)
            self._embeddings.append(then)
            for group, cached in zip(then.groups, then.cached_tables.groups, strict=True):
                for p, offset in zip(group.packs, group.offsets, strict=True):
                    self._add(then.shards[p], rank, cached.cache.store, offset)

    def close(self) -> None:
        for embedding in self._embeddings:
            embedding.close()

    def _add(self, shard: RankShard, rank: int, store: Store, offset: int) -> None:
        for piece in shard.slices:
            if rank == 0 or not piece.shared:  # shared rows are read from the first rank
                name, columns = shard.tables[piece.table].name, column_slice(shard, piece)
                ids = below(piece.ids, self._num_rows[name])
                saved = RecordsInStore(ids, columns, store, piece.first_row, offset)
                self.tables.setdefault(name, []).append(saved)


def column_slice(shard: RankShard, piece: TableSlice) -> ColumnSlice:
    """The columns that the records of a piece of a shard have."""
    return ColumnSlice(layout_of(shard.tables[piece.table]), shard.columns)


def _as_then(manifest: Manifest, embedding: Embedding, rank: int) -> Embedding:
    """An embedding, to be read, with the shards that a rank had when the checkpoint was written."""
    sequences = {feature for pack in embedding.packs for feature, _ in pack.sequences}
    placements = manifest.placements or {}
    return Embedding(
        embedding.tables,
        seed=embedding.seed,
        sequences=sorted(sequences),
        caching=embedding.cached_tables.caching,
        read_only=True,
        ranks=Seat(rank, manifest.num_ranks),
        sharding={name: build(Placement, fields) for name, fields in placements.items()},
    )


# ---- as a store


class ReshardedSource:
    """The rows of a group of an embedding, read from saved records on demand, in the new sharding.

    Rows that are not saved have their initial values. source: the stores to be closed by `close`.
    """

    def __init__(
        self, embedding: Embedding, g: int, tables: Tables, source: FileStores | None = None
    ) -> None:
        self._group, self._source = embedding.groups[g], source
        self._initial_values = embedding.cached_tables.initial_values(g)
        self._shards = [embedding.shards[p] for p in self._group.packs]
        self._tables, self.stride = tables, self._group.stride

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""
        self._initial_values(rows, out)
        for k, piece in enumerate(self._shards[0].slices):
            bounds = torch.tensor([piece.first_row, piece.first_row + piece.num_rows])
            begin, end = torch.searchsorted(rows, bounds).tolist()
            if begin < end:
                ids = piece.first_id + (rows[begin:end] - piece.first_row) * piece.id_step
                records = out[begin:end].split(list(self._group.strides), 1)
                fill_packs(self._tables, self._shards, k, ids.numpy(), records)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def fill_packs(
    tables: Tables, shards: Sequence[RankShard], k: int, ids: Ids, records: Sequence[Tensor]
) -> None:
    """Fills the records of the k-th piece of every pack of a group. records: [n, stride] by pack."""
    for shard, of_pack in zip(shards, records, strict=True):
        piece = shard.slices[k]
        name, columns = shard.tables[piece.table].name, column_slice(shard, piece)
        fill(tables.get(name, ()), ids, of_pack.numpy(), columns)
        check_scales(name, of_pack.numpy(), columns.layout, ids)
