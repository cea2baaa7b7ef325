"""The manifest of a checkpoint: which records of which tables are where, and how to verify them.

A table's rows are stored in pieces: ids first_id, first_id + id_step, ... or ids that are listed in
a file, with some or all of its columns. The pieces of a full checkpoint hold every row; those of an
increment the rows touched since its base checkpoint, which is in the same folder under that name.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hotrows.checkpoint.files import FileSum, check_size, damaged
from hotrows.checkpoint.reshard import ColumnSlice
from hotrows.record import RecordLayout
from hotrows.runtime.atomic_files import json_text

FORMAT = 2
NAME = "manifest.json"


@dataclass(frozen=True)
class SavedTable:
    """A table when it was saved; layout: of all its columns; optimizer: the kind of its row optimizer."""

    name: str
    rows: int
    layout: RecordLayout
    optimizer: str = ""


@dataclass(frozen=True)
class SavedPiece:
    """Records of ids of a table, one after the other, from byte `offset` of a file on.

    first_id, id_step, num_ids: the ids, where they are regular; listed: the file of int64 that lists
    them otherwise, from byte `listed_at` on. columns: the first column of the records, and the end.
    rank: the one that wrote the piece; None where all ranks held these rows.
    """

    table: str
    num_ids: int
    columns: tuple[int, int]
    file: str
    offset: int
    first_id: int = 0
    id_step: int = 1
    listed: str | None = None
    listed_at: int = 0
    rank: int | None = 0

    @property
    def ids(self) -> range:
        assert self.listed is None, "its ids are listed in a file"
        return range(self.first_id, self.first_id + self.num_ids * self.id_step, self.id_step)


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint.

    num_ranks: how many ranks wrote it; placements: where each had its rows, as JSON; None: one rank.
    stores: by rank, the generations of its file stores; empty where records are in this checkpoint.
    base: of an increment, the name of the checkpoint that it builds on; base_crc32: of its manifest.
    """

    step: int
    fingerprint: str
    tables: tuple[SavedTable, ...]
    pieces: tuple[SavedPiece, ...]
    files: dict[str, FileSum]
    state: dict[str, Any]
    num_ranks: int = 1
    placements: dict[str, Any] | None = None
    stores: tuple[tuple[int, ...], ...] = ()
    base: str | None = None
    base_crc32: int | None = None

    def column_slice(self, piece: SavedPiece) -> ColumnSlice:
        """The columns that the records of a piece have."""
        return ColumnSlice(self.layouts[piece.table], piece.columns)

    @functools.cached_property
    def layouts(self) -> dict[str, RecordLayout]:
        return {table.name: table.layout for table in self.tables}

    @property
    def generations(self) -> tuple[int, ...]:
        """The generations of the file stores of a run on one rank."""
        return self.stores[0] if self.stores else ()


Chain = Sequence[tuple[Path, Manifest]]  # a full checkpoint, then the increments on it


def to_json(manifest: Manifest) -> str:
    content = asdict(manifest)
    for table in content["tables"]:
        table["layout"] = RecordLayout(**table["layout"]).to_json()
    for piece in content["pieces"]:  # the ids are regular, or listed
        for unused in ("first_id", "id_step") if piece["listed"] else ("listed", "listed_at"):
            del piece[unused]
    return json_text({"format": FORMAT, **content})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the checkpoint in `folder`."""
    path = folder / NAME
    try:
        content = json.loads(path.read_bytes())
        written_by = content["format"]
    except FileNotFoundError:
        raise ValueError(f"{folder} is no checkpoint: it has no {NAME}") from None
    except (ValueError, KeyError, TypeError):
        raise damaged(path, "it is no manifest") from None
    if written_by != FORMAT:
        raise ValueError(
            f"checkpoint {folder} has format {written_by}, this hotrows reads format {FORMAT}; load "
            f"it with the version of hotrows that wrote it"
        )
    try:
        return _manifest(content)
    except (KeyError, TypeError, ValueError):
        raise damaged(path, "it is no manifest") from None


def manifest_crc32(folder: Path) -> int:
    return zlib.crc32((folder / NAME).read_bytes())


def chain(folder: Path) -> Chain:
    """The full checkpoint below the one in `folder`, then the increments up to that in `folder`."""
    manifest = read_manifest(folder)
    checkpoints = [(folder, manifest)]
    while manifest.base is not None:
        below, above = folder.parent / manifest.base, folder
        if not (below / NAME).exists():
            raise ValueError(
                f"checkpoint {above} holds only what changed since {manifest.base}, which is not in "
                f"{folder.parent}; bring it back, or use a checkpoint that is full"
            )
        if manifest_crc32(below) != manifest.base_crc32:
            raise damaged(below / NAME, f"it is not the manifest of {above.name}'s base checkpoint")
        manifest, folder = read_manifest(below), below
        checkpoints.append((folder, manifest))
        if len(checkpoints) > len({path for path, _ in checkpoints}):
            raise damaged(folder / NAME, "its bases run in a circle")
    return checkpoints[::-1]


def bases(folder: Path) -> list[str]:
    """The names of the base checkpoints of the one in `folder`, the next one first."""
    names: list[str] = []
    base = read_manifest(folder).base
    while base is not None and base not in names and (folder.parent / base / NAME).exists():
        names.append(base)
        base = read_manifest(folder.parent / base).base
    return names


def check_files(checkpoints: Chain) -> None:
    """Finds missing and truncated files, and rows that no piece holds, before anything is read."""
    for folder, manifest in checkpoints:
        for name, expected in manifest.files.items():
            check_size(folder / name, expected)
        for piece in manifest.pieces:
            _check_inside(folder, manifest, piece)
    folder, full = checkpoints[0]
    if not full.stores:
        for table in full.tables:
            _check_complete(folder, full, table)


def _check_inside(folder: Path, manifest: Manifest, piece: SavedPiece) -> None:
    """Checks that a piece ends inside its files."""
    ends = {piece.file: piece.offset + piece.num_ids * manifest.column_slice(piece).layout.stride}
    if piece.listed is not None:
        ends[piece.listed] = piece.listed_at + piece.num_ids * 8
    for name, end in ends.items():
        if name not in manifest.files or end > manifest.files[name].bytes:
            raise damaged(folder / NAME, f"table {piece.table!r} does not fit into {name}")


def _check_complete(folder: Path, manifest: Manifest, table: SavedTable) -> None:
    """Checks that the pieces of a table hold as many weights as it has."""
    pieces = [piece for piece in manifest.pieces if piece.table == table.name]
    weights = sum(piece.num_ids * (piece.columns[1] - piece.columns[0]) for piece in pieces)
    total = table.rows * table.layout.dim
    if weights != total:
        words = f"its pieces of table {table.name!r} hold {weights:,} of {total:,} weights"
        raise damaged(folder / NAME, words)


def _manifest(content: dict[str, Any]) -> Manifest:
    values = {field.name: content[field.name] for field in fields(Manifest)}
    for table in values["tables"]:
        table["layout"] = RecordLayout(**{f.name: table["layout"][f.name] for f in fields(RecordLayout)})
    pieces = [{**piece, "columns": tuple(piece["columns"])} for piece in values["pieces"]]
    values["tables"] = tuple(SavedTable(**table) for table in values["tables"])
    values["pieces"] = tuple(SavedPiece(**piece) for piece in pieces)
    values["files"] = {name: FileSum(**file) for name, file in values["files"].items()}
    values["stores"] = tuple(tuple(generations) for generations in values["stores"])
    return Manifest(**values)
