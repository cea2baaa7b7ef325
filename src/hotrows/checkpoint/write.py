"""Writing a checkpoint: every rank its records, rank 0 the rest; whole on all, or on none.

    rank 0      makes step-N.part                    manifest, rename
    every rank            | its records, synced |            |  done, or the same error on all
                 agreed ----------------------- agreed ---- agreed

What is written is a `Snapshot`: the records as they are, or copies of them, so that training may go
on meanwhile; all of them, or those of the rows touched.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from hotrows import ops
from hotrows.checkpoint import files
from hotrows.checkpoint.files import FileSum, bytes_of
from hotrows.checkpoint.manifest import (
    NAME,
    Manifest,
    SavedPiece,
    SavedTable,
    manifest_crc32,
    to_json,
)
from hotrows.checkpoint.pointer import FOLDER
from hotrows.checkpoint.together import gathered, of_rank_0
from hotrows.embedding import Embedding
from hotrows.piece import Piece, Shard
from hotrows.ranks import Ranks
from hotrows.record import layout_of
from hotrows.storage.log import sync_folder


@dataclass(frozen=True)
class State:
    """What a trainer keeps beside its model.

    fields: plain JSON values; tensors: optimizer and random state by name.
    """

    step: int
    fields: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """What goes into one file of records: pieces, end to end.

    records: [n, stride] uint8; ids: [n] int64, where they are listed, for the file `listed`.
    """

    file: str
    pieces: tuple[SavedPiece, ...]
    records: Tensor
    listed: str | None = None
    ids: Tensor | None = None


@dataclass(frozen=True)
class Snapshot:
    """All that this rank writes of a checkpoint, and what the manifest says of it.

    tensors: files of the dense part by name, on rank 0; stores: of this rank's file stores.
    base: of an increment, what it is made on.
    """

    step: int
    fingerprint: str
    fields: dict[str, Any]
    tables: tuple[SavedTable, ...]
    placements: dict[str, Any] | None
    parts: tuple[Part, ...]
    tensors: dict[str, bytes] = field(default_factory=dict)
    stores: tuple[int, ...] = ()
    base: str | None = None


def save(
    run: Path, embedding: Embedding, model: nn.Module, state: State, fingerprint: str = ""
) -> str:
    """Writes a checkpoint of `run` and returns its name; nothing points at it yet.

    Collective between the embedding's ranks, which see one folder `run`.
    fingerprint: of the data's schema and encoders; `load` refuses another one.
    """
    ranks = embedding.ranks.channel("checkpoint")
    return write(run, state.step, ranks, lambda: take(embedding, model, state, fingerprint))


def take(
    embedding: Embedding, model: nn.Module, state: State, fingerprint: str = "", *,
    base: str | None = None, copied: bool = False,
) -> Snapshot:  # fmt: skip
    """A checkpoint of the embedding and the model as they are.

    base: only the rows touched, on top of this checkpoint. copied: what is trained later does not
    change it. File stores make one of their own, here and now.
    """
    is_first = embedding.ranks.rank == 0
    tensors = {"model.safetensors": model.state_dict(), "trainer.safetensors": state.tensors}
    stores = embedding.tiers.checkpoint() if embedding.tiers else []
    return Snapshot(
        step=state.step,
        fingerprint=fingerprint,
        fields=dict(state.fields),
        tables=tuple(
            SavedTable(of.name, of.rows, layout_of(of), of.optimizer.kind if of.optimizer else "")
            for of in embedding.tables
        ),
        placements=placements_of(embedding),
        parts=_parts(embedding, touched=base is not None, copied=copied),
        tensors={name: _tensor_bytes(of) for name, of in tensors.items()} if is_first else {},
        stores=tuple(stores),
        base=base,
    )


def write(run: Path, step: int, ranks: Ranks, snapshot: Callable[[], Snapshot]) -> str:
    """Collective: writes what the ranks' snapshots hold as a checkpoint, and returns its name."""
    folder = run / FOLDER / f"step-{step}"
    part: Path | None = None
    try:
        folder = of_rank_0(ranks, lambda: _begin(run, step))
        part = _aside(folder)
        written = gathered(ranks, lambda: _write_records(_aside(folder), snapshot(), ranks.rank))
        of_rank_0(ranks, lambda: _publish(folder, written))
    except BaseException as error:
        if part is not None and ranks.rank == 0:
            shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise OSError(
                f"could not write checkpoint {folder}: {error.strerror or error}; "
                f"earlier checkpoints are whole; make room, then resume the run"
            ) from error
        raise
    return folder.name


def placements_of(embedding: Embedding) -> dict[str, Any] | None:
    """Where the rows of each table are among ranks, as JSON; None: on one rank."""
    if embedding.ranks.num_ranks == 1:
        return None
    return {
        table.name: asdict(placement)
        for pack in embedding.packs
        for table, placement in zip(pack.tables, pack.placements, strict=True)
    }


def _begin(run: Path, step: int) -> Path:
    """Where the checkpoint goes: step-1200, or step-1200-2 where one of that step stands that was
    made before an evaluation. Its folder aside is made anew."""
    folder, number = run / FOLDER / f"step-{step}", 1
    while folder.exists():
        number += 1
        folder = run / FOLDER / f"step-{step}-{number}"
    part = _aside(folder)
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return folder


def _aside(folder: Path) -> Path:
    return folder.with_name(folder.name + ".part")


@dataclass(frozen=True)
class _Written:
    """What a rank has written: its snapshot without the records, and the sums of its files."""

    snapshot: Snapshot
    pieces: tuple[SavedPiece, ...]
    sums: dict[str, FileSum]


def _write_records(folder: Path, snapshot: Snapshot, rank: int) -> _Written:
    sums = {}
    for part in snapshot.parts:
        (folder / part.file).parent.mkdir(exist_ok=True)
        sums[part.file] = files.write_file(folder / part.file, _bytes_of(part.records))
        if part.listed is not None and part.ids is not None:
            sums[part.listed] = files.write_file(folder / part.listed, [bytes_of(part.ids)])
    for own in {(folder / part.file).parent for part in snapshot.parts}:
        sync_folder(own)
    for name, content in snapshot.tensors.items():
        sums[name] = files.write_file(folder / name, [content])
    pieces = tuple(piece for part in snapshot.parts for piece in part.pieces)
    small = replace(snapshot, parts=(), tensors={})  # travels to the other ranks
    return _Written(small, pieces, sums)


def _bytes_of(records: Tensor) -> Iterator[memoryview]:
    """All records; those on a device are copied some at a time."""
    if records.device.type == "cpu":
        yield bytes_of(records)
        return
    for own in records.split(max(files.CHUNK // max(records.shape[1], 1), 1)):
        yield bytes_of(own.cpu().contiguous())


def _publish(folder: Path, written: Sequence[_Written]) -> None:
    """The manifest, then the rename that makes the checkpoint one."""
    first, part = written[0].snapshot, _aside(folder)
    base = None if first.base is None else folder.with_name(first.base)
    manifest = Manifest(
        step=first.step,
        fingerprint=first.fingerprint,
        tables=first.tables,
        pieces=tuple(piece for of in written for piece in of.pieces),
        files={name: found for of in written for name, found in of.sums.items()},
        state=first.fields,
        num_ranks=len(written),
        placements=first.placements,
        stores=tuple(of.snapshot.stores for of in written) if first.stores else (),
        base=first.base,
        base_crc32=None if base is None else manifest_crc32(base),
    )
    files.write_file(part / NAME, [to_json(manifest)])
    sync_folder(part)
    os.replace(part, folder)
    sync_folder(folder.parent)


# ---- records


def _parts(embedding: Embedding, touched: bool, copied: bool) -> tuple[Part, ...]:
    """What this rank writes; of rows that all ranks hold, rank 0 writes every one."""
    found: list[Part] = []
    for p, store in enumerate(embedding.stores):
        shard, name = embedding.shards[p], embedding.packs[p].name
        shared = tuple(piece for piece in shard.pieces if piece.shared)
        own = tuple(piece for piece in shard.pieces if not piece.shared)
        sides = [(own, _file(name, shard.rank, shard.num_ranks))]
        if shard.rank == 0:
            sides.append((shared, f"shared/{name}.records"))
        for pieces, file in sides:
            if touched:
                rows = _touched(embedding, p, pieces)
                part = _listed(file, shard, pieces, rows, store.records)
            else:
                part = _whole(file, shard, pieces, store.records, copied)
            found += [part] if part.pieces else []
    return tuple(found)


def _file(pack: str, rank: int, num_ranks: int) -> str:
    return f"{pack}.records" if num_ranks == 1 else f"rank-{rank}/{pack}.records"


def _whole(
    file: str, shard: Shard, pieces: Sequence[Piece], records: Tensor, copied: bool
) -> Part:  # fmt: skip
    """All rows of pieces that stand end to end."""
    found, offset = [], 0
    for piece in pieces:
        found.append(
            SavedPiece(
                shard.tables[piece.table].name, piece.num_rows, shard.columns, file, offset,
                piece.first_id, piece.id_step, rank=None if piece.shared else shard.rank,
            )
        )  # fmt: skip
        offset += piece.num_rows * records.shape[1]
    first = pieces[0].first_row if pieces else 0
    own = records[first : first + sum(piece.num_rows for piece in pieces)]
    return Part(file, tuple(found), _copy(own) if copied else own)


def _copy(records: Tensor) -> Tensor:
    return _memory_of_its_own(*records.shape).copy_(records)


def _memory_of_its_own(num_rows: int, stride: int) -> Tensor:
    """[num_rows, stride] bytes that go back to the system once they are written: malloc may keep
    what is freed. On huge pages, where there are any: fresh memory costs more than copying."""
    if num_rows == 0:
        return torch.empty(0, stride, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_rows * stride)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(num_rows, stride)


def _touched(embedding: Embedding, p: int, pieces: Sequence[Piece]) -> list[Tensor]:
    """The rows of each piece that were touched, ascending."""
    group = next(g for g, of in enumerate(embedding.groups) if p in of.packs)
    touched = embedding.touched[group]
    return [
        touched[of.first_row : of.first_row + of.num_rows].nonzero().squeeze(1) + of.first_row
        for of in pieces
    ]


def _listed(
    file: str, shard: Shard, pieces: Sequence[Piece], rows: Sequence[Tensor], records: Tensor
) -> Part:  # fmt: skip
    """Copies of some rows of pieces, ascending, with their ids."""
    listed = str(Path(file).with_suffix(".ids"))
    found, ids, done, stride = [], [], 0, records.shape[1]
    for piece, own in zip(pieces, rows, strict=True):
        if own.numel():
            found.append(
                SavedPiece(
                    shard.tables[piece.table].name, own.numel(), shard.columns, file, done * stride,
                    listed=listed, listed_at=8 * done, rank=None if piece.shared else shard.rank,
                )
            )  # fmt: skip
            ids.append(piece.first_id + (own - piece.first_row) * piece.id_step)
            done += own.numel()
    copies = _memory_of_its_own(done, stride)
    if done and records.device.type == "cpu":
        ops.copy_rows(records, torch.cat(list(rows)), copies, None)
    elif done:
        copies.copy_(records[torch.cat(list(rows)).to(records.device)])
    return Part(
        file, tuple(found), copies, listed, torch.cat(ids) if ids else torch.empty(0).long()
    )


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return tensors_to_bytes({name: of.detach().cpu().contiguous() for name, of in tensors.items()})
