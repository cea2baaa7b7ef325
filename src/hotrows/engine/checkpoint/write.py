"""Writing a checkpoint: every rank its records, rank 0 everything else; complete, or not at all.

    rank 0      makes step-N.part                    manifest, rename
    every rank            | its records, synced |            |  done, or the same error on all
                 agreed ----------------------- agreed ---- agreed

Each rank writes a `Snapshot`: its records themselves, or copies, so that training may go on
meanwhile; all of them, or those of the rows touched.
"""

from __future__ import annotations

import itertools
import mmap
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from hotrows import ops
from hotrows.engine.changed_rows import spans_of
from hotrows.engine.checkpoint import files, key_state
from hotrows.engine.checkpoint.files import bytes_of
from hotrows.engine.checkpoint.manifest import (
    NAME,
    Manifest,
    SavedPiece,
    SavedTable,
    keys_file,
    manifest_crc32,
    to_json,
)
from hotrows.engine.checkpoint.pointer import FOLDER
from hotrows.engine.distributed.all_or_none import gathered, of_rank_0, together
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.embedding import Embedding
from hotrows.ops.record import RankShard, TableSlice, below, layout_of
from hotrows.runtime.atomic_files import make_folder, part_of, publish, sync
from hotrows.runtime.file_sums import FileSum


@dataclass(frozen=True)
class State:
    """The state of a trainer without its model.

    fields: plain JSON values.
    tensors: optimizer and random state by name.

    >>> State(step=3, fields={"epoch": 0}, tensors={}).step
    3
    """

    step: int
    fields: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class RecordsFile:
    """The content of one file of records: pieces, end to end.

    records: [n, stride] uint8 each, in order; ids: [n] int64, where they are listed in the file `listed`.
    """

    file: str
    pieces: tuple[SavedPiece, ...]
    records: tuple[Tensor, ...]
    listed: str | None = None
    ids: Tensor | None = None


@dataclass(frozen=True)
class Snapshot:
    """The part of a checkpoint that this rank writes, with its entries in the manifest.

    tensors: files of tensors by name: of the dense part on rank 0, and this rank's keys. stores:
    generations of this rank's file stores. base: of an increment, the name of its base checkpoint.
    """

    step: int
    fingerprint: str
    fields: dict[str, Any]
    tables: tuple[SavedTable, ...]
    placements: dict[str, Any] | None
    records: tuple[RecordsFile, ...]
    tensors: dict[str, bytes] = field(default_factory=dict)
    stores: tuple[int, ...] = ()
    base: str | None = None


def save(
    run: Path | str, embedding: Embedding, model: nn.Module, state: State, fingerprint: str = ""
) -> str:
    """Writes a checkpoint of `run` and returns its name; nothing points at it yet.

    Collective between the embedding's ranks, which see one folder `run`.
    fingerprint: of the data's schema and encoders; `load` refuses another one.

    >>> embedding = hotrows.Embedding([hotrows.Table("user", rows=100, dim=8, features=("user",))])
    >>> model = torch.nn.Linear(8, 1)
    >>> save(f"{folder}/run", embedding, model, State(step=1, fields={}, tensors={}))
    'step-1'
    """
    run = Path(run)
    ranks = embedding.ranks.channel("checkpoint")
    of_rank_0(ranks, lambda: make_folder(run))
    return write(run, state.step, ranks, lambda: take(embedding, model, state, fingerprint))[0]


def take(
    embedding: Embedding, model: nn.Module, state: State, fingerprint: str = "",
    base: str | None = None, changed_rows: Sequence[Tensor] | None = None, copied: bool = False,
) -> Snapshot:  # fmt: skip
    """A snapshot of the embedding and the model as they are; file stores close a generation.

    base, changed_rows: take only the rows that have changed since this checkpoint, ascending by group.
    copied: copy the records, so that later training does not change the snapshot.
    """
    # The dense part is the first rank's alone.
    dense: dict[str, Mapping[str, Tensor]] = {}
    if embedding.ranks.rank == 0:
        trainer = {**state.tensors, **embedding.packed.dense_rows.tensors()}
        dense = {"model.safetensors": model.state_dict(), "trainer.safetensors": trainer}
    # Keys of dynamic ids: all, or those that are new since the base.
    if keys := embedding.dynamic.state():
        changed = keys if base is None else key_state.changes(keys, embedding.dynamic.keys.saved)
        dense[keys_file(embedding.ranks.rank)] = changed
        embedding.dynamic.keys.note_saved()
    num_rows = embedding.num_rows()
    stores = embedding.cached_tables.checkpoint()
    kinds = [table.optimizer.kind if table.optimizer else "" for table in embedding.tables]
    return Snapshot(
        step=state.step,
        fingerprint=fingerprint,
        fields=dict(state.fields),
        tables=tuple(
            SavedTable(table.name, num_rows[table.name], layout_of(table), kind)
            for table, kind in zip(embedding.tables, kinds, strict=True)
        ),
        placements=placements_of(embedding),
        records=_records_files(embedding, num_rows, changed_rows, copied),
        tensors={
            file: tensors_to_bytes({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
            for file, tensors in dense.items()
        },
        stores=tuple(stores),
        base=base,
    )


def write(
    run: Path, step: int, ranks: Ranks, snapshot: Callable[[], Snapshot], apart: bool = False
) -> tuple[str, FileSum]:
    """Collective: writes the ranks' snapshots as one checkpoint; returns its name, and the size and
    checksum of its manifest. apart: `run` is a folder of each rank's own, with its part of the checkpoint
    and the manifest of all."""
    folder, part = run / FOLDER / f"step-{step}", None
    on_first = together if apart else of_rank_0
    try:
        folder = run / FOLDER / of_rank_0(ranks, lambda: _free_name(run, step))
        part = part_of(folder)
        on_first(ranks, lambda: _begin(folder))
        written = gathered(ranks, lambda: _write_records(part_of(folder), snapshot()))
        manifest = on_first(ranks, lambda: _publish(folder, written))
    except BaseException as error:
        if part is not None and (apart or ranks.rank == 0):
            shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise OSError(
                f"could not write checkpoint {folder}: {error.strerror or error}; "
                f"earlier checkpoints are whole; make room, then resume the run"
            ) from error
        raise
    return folder.name, manifest


def placements_of(embedding: Embedding) -> dict[str, Any] | None:
    """The sharding of each table over ranks, as JSON; None: on one rank."""
    if embedding.ranks.num_ranks == 1:
        return None
    return {
        table.name: placement.to_json()
        for pack in embedding.packs
        for table, placement in zip(pack.tables, pack.placements, strict=True)
    }


def _free_name(run: Path, step: int) -> str:
    """The name of a new checkpoint: step-1200, or step-1200-2 where one of that step was made before an
    evaluation."""
    name, number = f"step-{step}", 1
    while (run / FOLDER / name).exists():
        number += 1
        name = f"step-{step}-{number}"
    return name


def _begin(folder: Path) -> None:
    """Makes the folder step-1200.part empty for the checkpoint step-1200, which is not there yet."""
    part = part_of(folder)
    for old in (folder, part):
        shutil.rmtree(old, ignore_errors=True)
    try:
        folder.parent.mkdir(exist_ok=True)  # not the run's folder: one that is gone stays gone
        part.mkdir()
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise


@dataclass(frozen=True)
class _Written:
    """The result of a rank's writing: its snapshot without the records, and checksums of its files."""

    snapshot: Snapshot
    pieces: tuple[SavedPiece, ...]
    sums: dict[str, FileSum]


def _write_records(folder: Path, snapshot: Snapshot) -> _Written:
    sums = {}
    for content in snapshot.records:
        (folder / content.file).parent.mkdir(exist_ok=True)
        parts = itertools.chain.from_iterable(map(_bytes_of, content.records))
        sums[content.file] = files.write_file(folder / content.file, parts)
        if content.listed is not None and content.ids is not None:
            sums[content.listed] = files.write_file(folder / content.listed, [bytes_of(content.ids)])
    for parent in {(folder / content.file).parent for content in snapshot.records}:
        sync(parent)
    sums |= {name: files.write_file(folder / name, [t]) for name, t in snapshot.tensors.items()}
    pieces = tuple(piece for content in snapshot.records for piece in content.pieces)
    small = replace(snapshot, records=(), tensors={})  # is sent to the other ranks
    return _Written(small, pieces, sums)


def _bytes_of(records: Tensor) -> Iterator[memoryview]:
    """The bytes of all records; a chunk at a time, those on a device, or with gaps, are copied."""
    chunks = records.split(max(files.CHUNK // max(records.shape[1], 1), 1))
    return (bytes_of(chunk.cpu().contiguous()) for chunk in chunks)


def _publish(folder: Path, written: Sequence[_Written]) -> FileSum:
    """Writes the manifest, then renames the folder, which makes it a checkpoint."""
    first, part = written[0].snapshot, part_of(folder)
    base = None if first.base is None else folder.with_name(first.base)
    manifest = Manifest(
        step=first.step,
        fingerprint=first.fingerprint,
        tables=first.tables,
        pieces=tuple(piece for by_rank in written for piece in by_rank.pieces),
        files={name: of_file for by_rank in written for name, of_file in by_rank.sums.items()},
        state=first.fields,
        num_ranks=len(written),
        placements=first.placements,
        stores=tuple(by_rank.snapshot.stores for by_rank in written) if first.stores else (),
        base=first.base,
        base_crc32=None if base is None else manifest_crc32(base),
    )
    written_manifest = files.write_file(part / NAME, [to_json(manifest).encode()])
    publish(part, folder)
    return written_manifest


# ---- records


def _records_files(
    embedding: Embedding, num_rows: Mapping[str, int], changed: Sequence[Tensor] | None, copied: bool
) -> tuple[RecordsFile, ...]:
    """The files that this rank writes; rank 0 also writes the rows that all ranks hold.

    num_rows: of each table, those that it needs. changed: by group, the only rows to take; None: all.
    """
    contents: list[RecordsFile] = []
    group_of = {p: g for g, group in enumerate(embedding.groups) for p in group.packs}
    for p, store in enumerate(embedding.stores):
        shard, name = embedding.shards[p], embedding.packs[p].name
        shared = tuple(piece for piece in shard.slices if piece.shared)
        local = tuple(piece for piece in shard.slices if not piece.shared)
        folder = "" if shard.num_ranks == 1 else f"rank-{shard.rank}/"
        sides = [(local, f"{folder}{name}.records")]
        if shard.rank == 0:
            sides.append((shared, f"shared/{name}.records"))
        for pieces, file in sides:
            if changed is not None:
                rows = changed[group_of[p]]
                bounds = [(piece.first_row, piece.first_row + piece.num_rows) for piece in pieces]
                of_pieces = [rows[span] for span in spans_of(rows, bounds)]
                contents.append(_listed(file, shard, pieces, of_pieces, store.records))
            else:
                contents.append(_all_rows(file, shard, pieces, num_rows, store.records, copied))
    return tuple(content for content in contents if content.pieces)


def _all_rows(
    file: str, shard: RankShard, pieces: Sequence[TableSlice], num_rows: Mapping[str, int],
    records: Tensor, copied: bool,
) -> RecordsFile:  # fmt: skip
    """All rows that tables need of pieces in `records`, [R, stride] uint8."""
    saved, parts, offset = [], [], 0
    for piece in pieces:
        name, rank = shard.tables[piece.table].name, None if piece.shared else shard.rank
        num, first_id, step = len(below(piece.ids, num_rows[name])), piece.first_id, piece.id_step
        saved.append(SavedPiece(name, num, shard.columns, file, offset, first_id, step, rank=rank))
        rows = records[piece.first_row : piece.first_row + num]
        parts.append(_mapped_memory(*rows.shape).copy_(rows) if copied else rows)
        offset += num * records.shape[1]
    return RecordsFile(file, tuple(saved), tuple(parts))


def _mapped_memory(num_rows: int, stride: int) -> Tensor:
    """[num_rows, stride] bytes of memory that the system gets back as soon as they are freed; malloc
    may keep it. On huge pages, where there are any: fresh memory costs more than copying."""
    if num_rows == 0:
        return torch.empty(0, stride, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_rows * stride)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(num_rows, stride)


def _listed(
    file: str, shard: RankShard, pieces: Sequence[TableSlice], rows: Sequence[Tensor], records: Tensor
) -> RecordsFile:
    """Copies of some rows of pieces, ascending, with their ids. rows: of each piece, among records."""
    listed = str(Path(file).with_suffix(".ids"))
    saved, ids, done, stride = [], [], 0, records.shape[1]
    for piece, of_piece in zip(pieces, rows, strict=True):
        if num := of_piece.numel():
            name, rank = shard.tables[piece.table].name, None if piece.shared else shard.rank
            columns, offset, begin = shard.columns, done * stride, 8 * done
            saved.append(SavedPiece(name, num, columns, file, offset, 0, 1, listed, begin, rank=rank))
            ids.append(piece.first_id + (of_piece - piece.first_row) * piece.id_step)
            done += num
    copies = _mapped_memory(done, stride)
    if done and records.device.type == "cpu":
        ops.copy_rows(records, torch.cat(list(rows)), copies, None)
    elif done:
        copies.copy_(records[torch.cat(list(rows)).to(records.device)])
    all_ids = torch.cat(ids) if ids else torch.empty(0).long()
    return RecordsFile(file, tuple(saved), (copies,), listed, all_ids)
