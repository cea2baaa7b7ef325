"""Reading a checkpoint: by any number of ranks, whatever number wrote it.

Where every rank holds just what a rank wrote, its records are read into the place where they live.
Otherwise each rank verifies its share of the files, then takes what it holds from all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor, nn

from hotrows.checkpoint import files
from hotrows.checkpoint.files import bytes_of, damaged
from hotrows.checkpoint.manifest import (
    Manifest,
    SavedPiece,
    chain,
    check_files,
    read_manifest,
)
from hotrows.checkpoint.saved import (
    Assembled,
    FileStores,
    Tables,
    chunks_of,
    cut_of,
    fill,
    fill_packs,
    in_files,
)
from hotrows.checkpoint.together import together
from hotrows.checkpoint.write import State, placements_of
from hotrows.embedding import Embedding
from hotrows.piece import Piece
from hotrows.ranks import Ranks
from hotrows.record import layout_of
from hotrows.storage.file import FileStore
from hotrows.tiers import Tiers

Chain = Sequence[tuple[Path, Manifest]]


def load(
    folder: Path,
    embedding: Embedding,
    model: nn.Module,
    fingerprints: str | Sequence[str] | None = None,
    read_only: bool = False,
) -> State:
    """Reads the checkpoint in `folder` into `embedding` and `model`.

    Collective between the embedding's ranks, of which there may be more or fewer than wrote it.
    fingerprints: of the data at hand, or several that will do, where tables have grown; None: any.
    read_only: a file store is read as it was then, and keeps what was trained since. After an error
    the rows and parameters are in no usable state.
    """
    ranks = embedding.ranks.channel("checkpoint")
    found = together(ranks, lambda: _checked(folder, embedding, fingerprints))
    manifest = found[-1][1]
    if _is_in_files(embedding):
        if not manifest.stores:
            _verify(found, ranks)
        together(ranks, lambda: _open_stores(found, embedding, read_only))
    elif _is_as_written(found, embedding):
        together(ranks, lambda: _read_in_place(folder, manifest, embedding))
    else:
        _verify(found, ranks)
        together(ranks, lambda: _fill_memory(in_files(found), embedding))
    if embedding.tiers and not _is_in_files(embedding):
        embedding.tiers.forget_plans()
    return together(ranks, lambda: _read_dense(folder, manifest, model))


def read_state(folder: Path) -> dict[str, Any]:
    """The plain values of the trainer's state alone."""
    return read_manifest(folder).state


# ---- what fits


def _checked(
    folder: Path, embedding: Embedding, fingerprints: str | Sequence[str] | None
) -> Chain:  # fmt: skip
    """The checkpoint and what it is made on, once nothing speaks against reading it."""
    found = chain(folder)
    manifest = found[-1][1]
    _check_fingerprint(folder, manifest, fingerprints)
    check_files(found)
    if manifest.stores:
        _check_in_files(folder, embedding)
    if manifest.tables or not manifest.stores:  # format 1 does not name the tables of a store
        _check_tables(folder, manifest, embedding)
    return found


def _is_in_files(embedding: Embedding) -> bool:
    return embedding.tiers is not None and embedding.tiers.caching.path is not None


def _check_fingerprint(
    folder: Path, manifest: Manifest, fingerprints: str | Sequence[str] | None
) -> None:
    legal = [fingerprints] if isinstance(fingerprints, str) else fingerprints
    if legal is not None and manifest.fingerprint not in legal:
        raise ValueError(
            f"checkpoint {folder} belongs to data of another schema or encoding "
            f"({manifest.fingerprint or 'none'}, not {legal[0]}); use the data folder that "
            f"the run was trained on, or train a new run"
        )


def _check_in_files(folder: Path, embedding: Embedding) -> None:
    if not _is_in_files(embedding):
        raise ValueError(
            f"checkpoint {folder} has its rows in a file store; load it with the store that the run "
            f"was begun with"
        )


def _check_tables(folder: Path, manifest: Manifest, embedding: Embedding) -> None:
    own = {table.name: table for table in embedding.tables}
    saved = {table.name: table for table in manifest.tables}
    missing, unknown = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if missing or unknown:
        raise ValueError(
            f"checkpoint {folder} does not fit the model: tables it lacks: "
            f"{', '.join(missing) or 'none'}; tables the model lacks: "
            f"{', '.join(unknown) or 'none'}; build the model that the run was trained with"
        )
    for name, table in saved.items():
        if table.layout != layout_of(own[name]):
            raise ValueError(
                f"checkpoint {folder}: records of table {name!r} are {table.layout.to_json()}, the "
                f"model's are {layout_of(own[name]).to_json()}; use the dim, dtype and row optimizer "
                f"of the run"
            )
        if table.rows > own[name].rows:
            raise ValueError(
                f"checkpoint {folder}: table {name!r} has {table.rows:,} rows, the model's only "
                f"{own[name].rows:,}; a table may grow but not shrink: use the schema of the run"
            )


def _verify(found: Chain, ranks: Ranks) -> None:
    """Collective: every file of records is verified, by one rank or another."""
    all_files = [
        (folder / name, manifest.files[name])
        for folder, manifest in found
        for name in dict.fromkeys(
            name for piece in manifest.pieces for name in (piece.file, piece.listed) if name
        )
    ]

    def mine() -> None:
        for path, expected in all_files[ranks.rank :: ranks.num_ranks]:
            files.verify(path, expected)

    together(ranks, mine)


# ---- rows in memory


def _is_as_written(found: Chain, embedding: Embedding) -> bool:
    """Whether every rank holds what one rank wrote, in files that it can read from end to end."""
    (_, manifest), num_ranks = found[-1], embedding.ranks.num_ranks
    if len(found) > 1 or manifest.num_ranks != num_ranks or not _on_host(embedding):
        return False
    held = [_held(embedding, rank) for rank in range(num_ranks)]
    return all(
        held[piece.rank or 0].get(_key(piece), -1) >= piece.num_ids for piece in manifest.pieces
    )


def _held(embedding: Embedding, rank: int) -> dict[tuple, int]:
    """How many rows each piece of a rank has, by what a saved piece of them says."""
    found = {}
    for pack in embedding.packs:
        shard = pack.shard(rank, embedding.ranks.num_ranks)
        for piece in shard.pieces:
            found[_key_of(pack.tables[piece.table].name, piece, shard.columns)] = piece.num_rows
    return found


def _key(saved: SavedPiece) -> tuple:
    return saved.table, saved.first_id, saved.id_step, saved.columns, saved.rank is None


def _key_of(table: str, piece: Piece, columns: tuple[int, int]) -> tuple:
    return table, piece.first_id, piece.id_step, columns, piece.shared


def _read_in_place(folder: Path, manifest: Manifest, embedding: Embedding) -> None:
    """Reads the files that this rank wrote, and those of shared rows, without a second copy."""
    places = _places(embedding)
    mine = [piece for piece in manifest.pieces if piece.rank in (None, embedding.ranks.rank)]
    mine.sort(key=lambda piece: (piece.file, piece.offset))
    for file, pieces in itertools.groupby(mine, lambda piece: piece.file):
        _read_file(folder, manifest, file, list(pieces), places)


def _places(embedding: Embedding) -> dict[tuple, memoryview]:
    """The bytes of each piece that this rank holds."""
    found = {}
    for shard, store in zip(embedding.shards, embedding.stores, strict=True):
        for piece in shard.pieces:
            own = store.records[piece.first_row : piece.first_row + piece.num_rows]
            key = _key_of(shard.tables[piece.table].name, piece, shard.columns)
            found[key] = bytes_of(own)
    return found


def _read_file(
    folder: Path, manifest: Manifest, name: str, pieces: list[SavedPiece],
    places: Mapping[tuple, memoryview],
) -> None:  # fmt: skip
    path, checksum = folder / name, 0
    with open(path, "rb") as file:
        for piece in pieces:
            if file.tell() != piece.offset:
                raise damaged(path, f"table {piece.table!r} does not stand where it should")
            size = piece.num_ids * manifest.cut(piece).layout.stride
            checksum = files.read_into(file, places[_key(piece)][:size], checksum)
    if checksum != manifest.files[name].crc32:
        raise damaged(path, "its checksum is wrong")


def _fill_memory(tables: Tables, embedding: Embedding) -> None:
    """Takes what this rank holds from all that is saved."""
    for shard, store in zip(embedding.shards, embedding.stores, strict=True):
        for piece in shard.pieces:
            saved, to = tables[shard.tables[piece.table].name], cut_of(shard, piece)
            for begin, ids in chunks_of(piece.ids, store.layout.stride):
                first = piece.first_row + begin
                records = store.copy_out(first, first + len(ids))
                fill(saved, ids, records.numpy(), to)
                if not store.device.on_host:
                    store.copy_in(first, records)


def _on_host(embedding: Embedding) -> bool:
    """Whether the rows can be read into where they stay."""
    return all(store.device.on_host for store in embedding.stores)


# ---- rows in file stores


def _open_stores(found: Chain, embedding: Embedding, read_only: bool) -> None:
    """Brings the file stores to the checkpoint, or reads what they were."""
    (_, manifest), tiers, ranks = found[-1], embedding.tiers, embedding.ranks
    assert tiers is not None
    placements = placements_of(embedding)
    if manifest.stores and (manifest.num_ranks, manifest.placements) == (
        ranks.num_ranks,
        placements,
    ):
        own = manifest.stores[ranks.rank]
        (tiers.view if read_only else tiers.restore)(own)
        return
    source = FileStores(manifest, embedding) if manifest.stores else None
    tables = source.tables if source else in_files(found)
    if read_only or not tiers.files:
        groups = range(len(embedding.groups))
        tiers.read_from([Assembled(embedding, g, tables, source) for g in groups])
        return
    try:
        for g, store in enumerate(tiers.files):
            _fill_store(store, embedding, tiers, g, tables)
    finally:
        if source:
            source.close()
    tiers.forget_plans()


def _fill_store(
    store: FileStore, embedding: Embedding, tiers: Tiers, g: int, tables: Tables
) -> None:
    """Writes the rows of a group into its store, those that differ from what it has."""
    earlier = store.generations
    store.restore(earlier[-1] if earlier else None)
    group = embedding.groups[g]
    shards = [embedding.shards[p] for p in group.packs]
    for k, piece in enumerate(shards[0].pieces):
        for begin, ids in chunks_of(piece.ids, group.stride):
            rows = torch.arange(len(ids)) + piece.first_row + begin
            before = torch.empty(len(ids), group.stride, dtype=torch.uint8)
            tiers.first_values(g)(rows, before)
            wanted = before.clone()
            fill_packs(tables, shards, k, ids, wanted.split(list(group.strides), 1))
            if earlier:
                store.read(rows, before)
            changed = (wanted != before).any(1)
            if changed.any():
                store.write(rows[changed], wanted[changed])
            if store.wants_checkpoint:
                store.checkpoint()
                store.retain([*earlier, store.generations[-1]])


# ---- the dense part


def _read_dense(folder: Path, manifest: Manifest, model: nn.Module) -> State:
    names = ("model.safetensors", "trainer.safetensors")
    parameters, tensors = (
        tensors_from_bytes(files.read_file(folder / name, manifest.files[name])) for name in names
    )
    _check_parameters(folder, parameters, model)
    model.load_state_dict(parameters)
    return State(manifest.step, manifest.state, tensors)


def _check_parameters(folder: Path, saved: dict[str, Tensor], model: nn.Module) -> None:
    shapes = {name: tuple(value.shape) for name, value in saved.items()}
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name in sorted(shapes.keys() | own.keys()):
        if shapes.get(name) != own.get(name):
            raise ValueError(
                f"checkpoint {folder}: parameter {name!r} has shape {shapes.get(name)}, the "
                f"model's {own.get(name)}; build the model that the run was trained with"
            )
