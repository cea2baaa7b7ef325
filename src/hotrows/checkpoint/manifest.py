"""The manifest of a checkpoint: which records of which tables stand where, and how to verify them.

A table's rows stand in pieces: ids first_id, first_id + id_step, ... or ids that are listed in a
file, with some or all of its columns. The pieces of a full checkpoint hold every row; those of an
increment the rows touched since its `base`, which is the checkpoint beside it of that name.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotrows.checkpoint.files import FileSum, check_size, damaged
from hotrows.checkpoint.recut import Cut
from hotrows.record import RecordLayout

FORMAT = 2
NAME = "manifest.json"


@dataclass(frozen=True)
class SavedTable:
    """A table as it was: its rows, the record with all its columns, the kind of its row optimizer."""

    name: str
    rows: int
    layout: RecordLayout
    optimizer: str = ""


@dataclass(frozen=True)
class SavedPiece:
    """Records of ids of a table, one after the other, from byte `offset` of a file on.

    first_id, id_step, num_ids: which; listed: the file of int64 that lists them instead, from byte
    `listed_at` on. columns: the first of the records', and their end.
    rank: who wrote it; None where all ranks held these rows.
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
    """What a checkpoint holds.

    num_ranks: how many wrote it; placements: where each had its rows, as JSON; None: one rank.
    stores: of each rank, the numbers of its file stores' own checkpoints; none where records are here.
    base: of an increment, the checkpoint below it, with the crc32 of its manifest.
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

    def cut(self, piece: SavedPiece) -> Cut:
        """The records of a piece."""
        return Cut(self.layouts[piece.table], piece.columns)

    @functools.cached_property
    def layouts(self) -> dict[str, RecordLayout]:
        return {table.name: table.layout for table in self.tables}

    @property
    def generations(self) -> tuple[int, ...]:
        """Of the file stores of a run on one rank."""
        return self.stores[0] if self.stores else ()


def to_json(manifest: Manifest) -> bytes:
    fields = asdict(manifest)
    for table in fields["tables"]:
        table["layout"] = RecordLayout(**table["layout"]).to_json()
    fields["pieces"] = [_without_defaults(piece) for piece in fields["pieces"]]
    return json_bytes({"format": FORMAT, **fields})


def json_bytes(fields: dict) -> bytes:
    return (json.dumps(fields, indent=2, allow_nan=False) + "\n").encode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the checkpoint in `folder`."""
    path = folder / NAME
    try:
        fields = json.loads(path.read_bytes())
        written_by = fields["format"]
    except FileNotFoundError:
        raise ValueError(f"{folder} is no checkpoint: it has no {NAME}") from None
    except (ValueError, KeyError, TypeError):
        raise damaged(path, "it is no manifest") from None
    if written_by not in (1, FORMAT):
        raise ValueError(
            f"checkpoint {folder} has format {written_by}, this hotrows reads formats 1 and "
            f"{FORMAT}; load it with the version of hotrows that wrote it"
        )
    try:
        return _of_format_1(fields) if written_by == 1 else _of_format_2(fields)
    except (KeyError, TypeError, ValueError):
        raise damaged(path, "it is no manifest") from None


def manifest_crc32(folder: Path) -> int:
    return zlib.crc32((folder / NAME).read_bytes())


def chain(folder: Path) -> list[tuple[Path, Manifest]]:
    """What the checkpoint in `folder` is made of: a full one, then increments, that in `folder` last."""
    manifest = read_manifest(folder)
    found = [(folder, manifest)]
    while manifest.base is not None:
        below, above = folder.parent / manifest.base, folder
        if not (below / NAME).exists():
            raise ValueError(
                f"checkpoint {above} holds only what changed since {manifest.base}, which is not in "
                f"{folder.parent}; bring it back, or use a checkpoint that is full"
            )
        if manifest_crc32(below) != manifest.base_crc32:
            raise damaged(
                below / NAME, f"it is not of the checkpoint that {above.name} was made on"
            )
        manifest, folder = read_manifest(below), below
        found.append((folder, manifest))
        if len(found) > len({of for of, _ in found}):
            raise damaged(folder / NAME, "its bases run in a circle")
    return found[::-1]


def bases(folder: Path) -> list[str]:
    """The names of the checkpoints that the one in `folder` is made on, without reading further."""
    found: list[str] = []
    base = read_manifest(folder).base
    while base is not None and base not in found and (folder.parent / base / NAME).exists():
        found.append(base)
        base = read_manifest(folder.parent / base).base
    return found


def check_files(found: Sequence[tuple[Path, Manifest]]) -> None:
    """Sees missing and truncated files, and rows that no piece holds, before anything is read."""
    for folder, manifest in found:
        for name, expected in manifest.files.items():
            check_size(folder / name, expected)
        for piece in manifest.pieces:
            _check_room(folder, manifest, piece)
    folder, full = found[0]
    if not full.stores:
        for table in full.tables:
            _check_whole(folder, full, table)


def _check_room(folder: Path, manifest: Manifest, piece: SavedPiece) -> None:
    """Whether a piece is inside its files."""
    ends = {piece.file: piece.offset + piece.num_ids * manifest.cut(piece).layout.stride}
    if piece.listed is not None:
        ends[piece.listed] = piece.listed_at + piece.num_ids * 8
    for name, end in ends.items():
        if name not in manifest.files or end > manifest.files[name].bytes:
            raise damaged(folder / NAME, f"table {piece.table!r} does not fit into {name}")


def _check_whole(folder: Path, manifest: Manifest, table: SavedTable) -> None:
    """Whether the pieces of a table hold as many numbers as it has."""
    own = [piece for piece in manifest.pieces if piece.table == table.name]
    found = sum(piece.num_ids * (piece.columns[1] - piece.columns[0]) for piece in own)
    if found != table.rows * table.layout.dim:
        raise damaged(
            folder / NAME,
            f"its pieces of table {table.name!r} hold {found:,} of "
            f"{table.rows * table.layout.dim:,} weights",
        )


def _of_format_2(fields: dict[str, Any]) -> Manifest:
    return Manifest(
        step=fields["step"],
        fingerprint=fields["fingerprint"],
        tables=tuple(_table(of) for of in fields["tables"]),
        pieces=tuple(SavedPiece(**{**of, "columns": tuple(of["columns"])}) for of in fields["pieces"]),
        files=_files(fields),
        state=fields["state"],
        num_ranks=fields["num_ranks"],
        placements=fields["placements"],
        stores=tuple(tuple(of) for of in fields["stores"]),
        base=fields["base"],
        base_crc32=fields["base_crc32"],
    )  # fmt: skip


def _of_format_1(fields: dict[str, Any]) -> Manifest:
    """Of one rank: tables are whole, and the number of a file store's checkpoint is in a plain list."""
    tables = [
        _table({"name": of["name"], "rows": of["num_ids"], "layout": of["layout"]})
        for of in fields["tables"]
    ]
    pieces = [
        SavedPiece(of["name"], of["num_ids"], (0, of["layout"]["dim"]), of["file"], of["offset"])
        for of in fields["tables"]
    ]
    stores = fields.get("stores") or ()
    return Manifest(
        fields["step"], fields["fingerprint"], tuple(tables), tuple(pieces), _files(fields),
        fields["state"], stores=(tuple(stores),) if stores else (),
    )  # fmt: skip


def _table(fields: dict[str, Any]) -> SavedTable:
    names = ("dim", "dtype", "state_width", "has_step")
    layout = RecordLayout(**{name: fields["layout"][name] for name in names})
    return SavedTable(**{**fields, "layout": layout})


def _files(fields: dict[str, Any]) -> dict[str, FileSum]:
    return {name: FileSum(**of) for name, of in fields["files"].items()}


def _without_defaults(piece: dict[str, Any]) -> dict[str, Any]:
    """Ids are listed or regular: what does not concern a piece is left out."""
    unused = ("first_id", "id_step") if piece["listed"] else ("listed", "listed_at")
    return {name: value for name, value in piece.items() if name not in unused}
