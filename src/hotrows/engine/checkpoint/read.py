"""Reading a checkpoint: by any number of ranks, whatever number wrote it.

Where every rank holds exactly what a rank wrote, its records are read into their final place.
Otherwise each rank verifies its share of the files, then copies what it holds from all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor, nn

from hotrows import optim
from hotrows.engine.cached_tables import CachedTables
from hotrows.engine.checkpoint import files, key_state, sources
from hotrows.engine.checkpoint.fetch import bring
from hotrows.engine.checkpoint.files import bytes_of, damaged
from hotrows.engine.checkpoint.manifest import (
    DENSE,
    Chain,
    Manifest,
    SavedPiece,
    check_files,
    manifests,
    read_manifest,
)
from hotrows.engine.checkpoint.reshard import check_scales
from hotrows.engine.checkpoint.sources import FileStores, ReshardedSource, Tables, chunks_of, in_files
from hotrows.engine.checkpoint.write import State, placements_of
from hotrows.engine.dense_rows import PREFIX
from hotrows.engine.distributed.all_or_none import together
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.embedding import Embedding
from hotrows.engine.storage.file_store import FileStore
from hotrows.ops.record import RankShard, TableSlice, below, layout_of
from hotrows.optim import DenseRowOptimizer
from hotrows.runtime.remote.copies import origin_of

Widen = Callable[[dict[str, Tensor], dict[str, Tensor]], tuple[dict[str, Tensor], dict[str, Tensor]]]


def load(
    folder: Path | str,
    embedding: Embedding,
    model: nn.Module,
    fingerprints: str | Sequence[str] | None = None,
    read_only: bool = False,
    converts: bool = False,
) -> State:
    """Reads the checkpoint in `folder` into `embedding` and `model`.

    Collective between the embedding's ranks, of which there may be more or fewer than wrote it.
    fingerprints: of the data in use, or several legal ones, where tables have grown; None: any.
    read_only: read a file store as it was at the checkpoint, and leave later generations in it.
    converts: weights may be of another dtype, to which they are rounded; else that is an error.
    After an error the rows and parameters are in no usable state.

    >>> embedding = hotrows.Embedding([hotrows.Table("user", rows=100, dim=8, features=("user",))])
    >>> model = torch.nn.Linear(8, 1)
    >>> name = hotrows.engine.checkpoint.save(f"{folder}/run", embedding, model, State(1, {}, {}))
    >>> load(f"{folder}/run/checkpoints/{name}", embedding, model).step
    1
    """
    # Check the chain on all ranks, before anything is changed.
    folder = Path(folder)
    ranks = embedding.ranks.channel("checkpoint")
    checkpoints = together(ranks, lambda: _checked(folder, embedding, fingerprints, converts))
    manifest = checkpoints[-1][1]
    # Read rows: in place where layout and ranks are the same, else through a copy.
    if embedding.cached_tables.is_in_files:
        if not manifest.stores:
            _verify(checkpoints, ranks)
        together(ranks, lambda: _open_stores(checkpoints, embedding, read_only))
    elif _is_as_written(checkpoints, embedding):
        together(ranks, lambda: _read_in_place(folder, manifest, embedding))
    else:
        _verify(checkpoints, ranks)
        together(ranks, lambda: _fill_memory(in_files(checkpoints), embedding))
    if not embedding.cached_tables.is_in_files:
        embedding.cached_tables.forget_plans()
    together(ranks, lambda: _read_keys(checkpoints, embedding))
    state = together(ranks, lambda: read_dense(folder, manifest, model))
    of_rows = {name: state.tensors.pop(name) for name in list(state.tensors) if name.startswith(PREFIX)}
    embedding.packed.dense_rows.load(of_rows)
    return state


def read_state(folder: Path | str) -> dict[str, Any]:
    """The plain values of the trainer's state, without its tensors."""
    return read_manifest(folder).state


def fill_tables(embedding: Embedding, tables: Tables) -> None:
    """Gives rows the records in `tables`, by the name of their table; all others stay as they are.

    Collective between the embedding's ranks. File stores are to be new.
    """
    cached_tables = embedding.cached_tables

    def fill() -> None:
        if cached_tables.files:
            for g, store in enumerate(cached_tables.files):
                _fill_store(store, embedding, cached_tables, g, tables)
        else:
            _fill_memory(tables, embedding)

    together(embedding.ranks.channel("checkpoint"), fill)
    cached_tables.forget_plans()


# ---- checks


def _checked(
    folder: Path, embedding: Embedding, fingerprints: str | Sequence[str] | None, converts: bool
) -> Chain:
    """The checkpoint and its bases, once it is known that the embedding can read them."""
    all_ranks = manifests(folder)
    checkpoints = _needed(all_ranks, embedding)
    manifest = checkpoints[-1][1]
    legal = [fingerprints] if isinstance(fingerprints, str) else fingerprints
    if legal is not None and manifest.fingerprint not in legal:
        raise ValueError(
            f"checkpoint {folder} belongs to data of another schema or encoding "
            f"({manifest.fingerprint or 'none'}, not {legal[0]}); use the data folder that "
            f"the run was trained on, or train a new run"
        )
    for path, of_rank in checkpoints:
        bring(path, of_rank.files)
    check_files(all_ranks, checkpoints)
    if manifest.stores and not embedding.cached_tables.is_in_files:
        raise ValueError(
            f"checkpoint {folder} has its rows in a file store; load it with the store that the run "
            f"was begun with"
        )
    check_tables(folder, manifest, embedding, converts=converts)
    return checkpoints


def _needed(checkpoints: Chain, embedding: Embedding) -> Chain:
    """The checkpoints with the pieces and files that this rank reads: of a copy of a run those of its own
    rows, if ranks had the same rows when they were written; else all."""
    ranks = embedding.ranks
    sharding = ranks.num_ranks, placements_of(embedding)
    if origin_of(checkpoints[-1][0].parent.parent) is None:
        return checkpoints
    if any((manifest.num_ranks, manifest.placements) != sharding for _, manifest in checkpoints):
        return checkpoints
    needed = []
    for folder, manifest in checkpoints:
        pieces = tuple(piece for piece in manifest.pieces if piece.rank in (None, ranks.rank))
        others = {name for piece in manifest.pieces for name in (piece.file, piece.listed)}
        read = {name for piece in pieces for name in (piece.file, piece.listed)}
        files = {
            name: entry for name, entry in manifest.files.items() if name in read or name not in others
        }
        needed.append((folder, replace(manifest, pieces=pieces, files=files)))
    return needed


def check_tables(
    folder: Path,
    manifest: Manifest,
    embedding: Embedding,
    added: Container[str] | None = None,
    converts: bool = False,
) -> None:
    """Raises ValueError where a model has other tables than a checkpoint, or by equal ids fewer rows.

    added: tables that the checkpoint lacks, where rows get other ids; None: ids are equal.
    converts: weights in files of the checkpoint may be of another dtype.
    """
    tables = {table.name: table for table in embedding.tables if table.name not in (added or ())}
    saved = {table.name: table for table in manifest.tables}
    missing, unknown = sorted(tables.keys() - saved.keys()), sorted(saved.keys() - tables.keys())
    if missing or unknown:
        raise ValueError(
            f"checkpoint {folder} does not fit the model: tables it lacks: "
            f"{', '.join(missing) or 'none'}; tables the model lacks: "
            f"{', '.join(unknown) or 'none'}; build the model that the run was trained with"
        )
    for name, table in saved.items():
        layout = layout_of(tables[name])
        converted = replace(table.layout, dtype=layout.dtype)
        if layout not in (table.layout, converted if converts and not manifest.stores else None):
            raise ValueError(
                f"checkpoint {folder}: records of table {name!r} are {table.layout.to_json()}, the "
                f"model's are {layout.to_json()}; use the dim, dtype and row optimizer of the run, or "
                f"begin a new run with --init-from, which converts weights of a run without a file store"
            )
        placement = (manifest.placements or {}).get(name, {})
        if layout.has_scale and placement.get("columns"):
            raise ValueError(
                f"checkpoint {folder}: ranks hold columns of table {name!r}, and rows of {layout.dtype} "
                f"have one scale for all; bring them together with `hotrows checkpoint merge`"
            )
        optimizer = tables[name].optimizer
        kind = "" if optimizer is None else optimizer.kind
        if _is_dense(table.optimizer) != _is_dense(kind):
            raise ValueError(
                f"checkpoint {folder}: rows of table {name!r} were trained by {table.optimizer}, and the "
                f"model's by {kind}, which counts the steps of a row in another way; use the row "
                f"optimizer of the run"
            )
        if table.rows > tables[name].rows and added is None:
            raise ValueError(
                f"checkpoint {folder}: table {name!r} has {table.rows:,} rows, the model's only "
                f"{tables[name].rows:,}; a table may grow but not shrink: use the schema of the run"
            )


def _is_dense(kind: str) -> bool:
    return issubclass(optim.BY_NAME.get(kind, object), DenseRowOptimizer)


def _verify(checkpoints: Chain, ranks: Ranks) -> None:
    """Collective: verifies every file of records, each on one of the ranks; those of copies were verified
    as they came."""
    if origin_of(checkpoints[-1][0].parent.parent) is not None:
        return
    all_files = {
        folder / name: manifest.files[name]
        for folder, manifest in checkpoints
        for piece in manifest.pieces
        for name in (piece.file, piece.listed)
        if name
    }

    def verify_share() -> None:
        for path, expected in list(all_files.items())[ranks.rank :: ranks.num_ranks]:
            files.verify(path, expected)

    together(ranks, verify_share)


# ---- rows in memory


def _is_as_written(checkpoints: Chain, embedding: Embedding) -> bool:
    """True if every rank holds what one rank wrote, in files that it can read from end to end."""
    (_, manifest), num_ranks = checkpoints[-1], embedding.ranks.num_ranks
    # Files can be read into memory without gaps.
    as_files = all(store.is_plain for store in embedding.stores)
    if len(checkpoints) > 1 or manifest.num_ranks != num_ranks or not as_files:
        return False
    if any(manifest.layouts[table.name] != layout_of(table) for table in embedding.tables):
        return False
    held = [_held(embedding, rank) for rank in range(num_ranks)]
    return all(held[piece.rank or 0].get(_key(piece), -1) >= piece.num_ids for piece in manifest.pieces)


def _held(embedding: Embedding, rank: int) -> dict[tuple[Any, ...], int]:
    """The number of rows of each piece of a rank, by the key that its saved piece has."""
    shards = [pack.shard(rank, embedding.ranks.num_ranks) for pack in embedding.packs]
    return {_key_of(shard, piece): piece.num_rows for shard in shards for piece in shard.slices}


def _key(saved: SavedPiece) -> tuple[Any, ...]:
    return saved.table, saved.first_id, saved.id_step, saved.columns, saved.rank is None


def _key_of(shard: RankShard, piece: TableSlice) -> tuple[Any, ...]:
    table = shard.tables[piece.table].name
    return table, piece.first_id, piece.id_step, shard.columns, piece.shared


def _read_in_place(folder: Path, manifest: Manifest, embedding: Embedding) -> None:
    """Reads the files that this rank wrote, and those of shared rows, without a second copy."""
    places = {
        _key_of(shard, piece): store.records[piece.first_row :][: piece.num_rows]
        for shard, store in zip(embedding.shards, embedding.stores, strict=True)
        for piece in shard.slices
    }
    pieces = [piece for piece in manifest.pieces if piece.rank in (None, embedding.ranks.rank)]
    pieces.sort(key=lambda piece: (piece.file, piece.offset))
    for name, of_file in itertools.groupby(pieces, lambda piece: piece.file):
        path, checksum, in_file = folder / name, 0, list(of_file)
        with open(path, "rb") as file:
            for piece in in_file:
                if file.tell() != piece.offset:
                    raise damaged(path, f"table {piece.table!r} does not stand where it should")
                records = places[_key(piece)][: piece.num_ids]
                checksum = files.read_into(file, bytes_of(records), checksum)
        if checksum != manifest.files[name].crc32:
            raise damaged(path, "its checksum is wrong")
        for piece in in_file:
            layout = manifest.layouts[piece.table]
            for begin, ids in chunks_of(piece.ids, layout.stride):
                read = places[_key(piece)][begin : begin + len(ids)].numpy()
                check_scales(piece.table, read, layout, ids)


def _fill_memory(tables: Tables, embedding: Embedding) -> None:
    """Copies what this rank holds from all saved records of its tables."""
    for shard, store in zip(embedding.shards, embedding.stores, strict=True):
        for piece in shard.slices:
            name = shard.tables[piece.table].name
            saved = tables.get(name, ())
            columns = sources.column_slice(shard, piece)
            known = below(piece.ids, sources.end_of(saved))
            for begin, ids in chunks_of(known, store.layout.stride):
                first = piece.first_row + begin
                records = store.copy_out(first, first + len(ids))
                sources.fill(saved, ids, records.numpy(), columns)
                check_scales(name, records.numpy(), columns.layout, ids)
                if not store.is_plain:
                    store.copy_in(first, records)


# ---- rows in file stores


def _open_stores(checkpoints: Chain, embedding: Embedding, read_only: bool) -> None:
    """Restores the file stores to the checkpoint, or reads them as they were then."""
    (_, manifest), cached_tables, ranks = checkpoints[-1], embedding.cached_tables, embedding.ranks
    sharding = ranks.num_ranks, placements_of(embedding)
    if manifest.stores and (manifest.num_ranks, manifest.placements) == sharding:
        (cached_tables.view if read_only else cached_tables.restore)(manifest.stores[ranks.rank])
        return
    source = FileStores(manifest, embedding) if manifest.stores else None
    tables = source.tables if source else in_files(checkpoints)
    if read_only or not cached_tables.files:
        groups = range(len(embedding.groups))
        cached_tables.read_from([ReshardedSource(embedding, g, tables, source) for g in groups])
        return
    try:
        for g, store in enumerate(cached_tables.files):
            _fill_store(store, embedding, cached_tables, g, tables)
    finally:
        if source:
            source.close()
    cached_tables.forget_plans()


def _fill_store(
    store: FileStore, embedding: Embedding, cached_tables: CachedTables, g: int, tables: Tables
) -> None:
    """Writes the rows of a group that differ from those in its store."""
    earlier = store.generations
    store.restore(earlier[-1] if earlier else None)
    group = embedding.groups[g]
    shards = [embedding.shards[p] for p in group.packs]
    for k, piece in enumerate(shards[0].slices):
        known = piece.ids
        if shards[0].tables[piece.table].grows:  # what is behind is written before it is read
            names = [shard.tables[shard.slices[k].table].name for shard in shards]
            known = below(known, max(sources.end_of(tables.get(name, ())) for name in names))
        for begin, ids in chunks_of(known, group.stride):
            rows = torch.arange(len(ids)) + piece.first_row + begin
            before = torch.empty(len(ids), group.stride, dtype=torch.uint8)
            cached_tables.initial_values(g)(rows, before)
            wanted = before.clone()
            sources.fill_packs(tables, shards, k, ids, wanted.split(list(group.strides), 1))
            if earlier:
                store.read(rows, before)
            changed = (wanted != before).any(1)
            if changed.any():
                store.write(rows[changed], wanted[changed])
            if store.wants_checkpoint:
                store.checkpoint()
                store.retain([*earlier, store.generations[-1]])


# ---- keys, and the dense part


def _read_keys(checkpoints: Chain, embedding: Embedding) -> None:
    """Reads the key tables of dynamic features."""
    state = key_state.read(checkpoints)
    if bool(embedding.dynamic.vocabularies) != bool(state):
        saved, model = ("keys", "ids") if state else ("ids", "keys")
        raise ValueError(
            f"checkpoint {checkpoints[-1][0]} has rows by {saved}, and the features of the model have "
            f"{model}; use the schema that the run was trained with"
        )
    embedding.dynamic.load(state)


def read_dense(folder: Path, manifest: Manifest, model: nn.Module, widen: Widen | None = None) -> State:
    """Reads the dense part into a model; returns the rest of the trainer's state. widen: changes both."""
    contents = [files.read_file(folder / name, manifest.files[name]) for name in DENSE]
    parameters, tensors = map(tensors_from_bytes, contents)
    if widen is not None:
        parameters, tensors = widen(parameters, tensors)
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            raise ValueError(
                f"checkpoint {folder}: parameter {name!r} has shape {shapes.get(name)}, the "
                f"model's {expected.get(name)}; build the model that the run was trained with"
            )
    model.load_state_dict(parameters)
    return State(manifest.step, manifest.state, tensors)
