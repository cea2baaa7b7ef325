"""The manifest of a checkpoint: which records of which tables are where, and how to verify them.

A table's rows are stored in pieces: ids first_id, first_id + id_step, ... or ids that are listed in
a file, with some or all of its columns. The pieces of a full checkpoint hold every row; those of an
increment the rows touched since its base checkpoint, which is in the same folder under that name.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotrows.engine.checkpoint.fetch import MANIFEST as NAME
from hotrows.engine.checkpoint.fetch import bring
from hotrows.engine.checkpoint.files import REMEDY, check_size, damaged
from hotrows.engine.checkpoint.reshard import ColumnSlice, common_range
from hotrows.engine.planning.sharding import Placement
from hotrows.ops.record import RecordLayout
from hotrows.runtime.atomic_files import json_text
from hotrows.runtime.file_sums import FileSum
from hotrows.runtime.json_file import JsonFile, build, is_name
from hotrows.table import BITS

DENSE = ("model.safetensors", "trainer.safetensors")
KEYS = "keys.safetensors"  # the key tables of dynamic features; of rank R > 0 keys-R.safetensors
FILE = JsonFile(REMEDY, "load it with the version of hotrows that wrote it", number=3, editable=False)


def keys_file(rank: int) -> str:
    """The file with the key tables of a rank."""
    return f"keys-{rank}.safetensors" if rank else KEYS


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

    @property
    def keys_files(self) -> tuple[str, ...]:
        """The files of key tables, one for each rank that has any."""
        return tuple(name for r in range(self.num_ranks) if (name := keys_file(r)) in self.files)

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
    for piece in content["pieces"]:  # the ids are regular, or listed
        for unused in ("first_id", "id_step") if piece["listed"] else ("listed", "listed_at"):
            del piece[unused]
    return json_text(FILE.sign(content))


def read_manifest(folder: Path | str) -> Manifest:
    """The manifest of the checkpoint in `folder`."""
    folder = Path(folder)
    path = folder / NAME
    try:
        content = FILE.read(path)
    except FileNotFoundError:
        raise ValueError(f"{folder} is no checkpoint: it has no {NAME}") from None
    with naming(folder):
        manifest = build(Manifest, content)
        if problem := next(_problems(manifest), None):
            raise ValueError(problem)
    return manifest


def naming(folder: Path) -> AbstractContextManager[None]:
    """Makes a ValueError about what stands in the manifest of a checkpoint say so."""
    return FILE.naming(folder / NAME)


def manifest_crc32(folder: Path) -> int:
    return zlib.crc32((folder / NAME).read_bytes())


def chain(folder: Path | str) -> Chain:
    """The full checkpoint below the one in `folder`, then the increments up to that in `folder`; their
    files are fetched where they are those of a copy."""
    checkpoints = manifests(folder)
    for path, manifest in checkpoints:
        bring(path, manifest.files)
    return checkpoints


def manifests(folder: Path | str) -> Chain:
    """The full checkpoint below the one in `folder`, then the increments; files may be missing."""
    folder = Path(folder)
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


def check_files(checkpoints: Chain, read: Chain | None = None) -> None:
    """Finds missing and truncated files, tables of other records than before, and rows that no piece
    holds or several do, before anything is read. read: the files that are (default: all)."""
    for folder, manifest in read or checkpoints:
        for name, expected in manifest.files.items():
            check_size(folder / name, expected)
    for folder, manifest in checkpoints:
        with naming(folder):
            _check_pieces(manifest)
            if not _are_of(manifest.tables, checkpoints[-1][1].tables):
                raise ValueError(f"its tables are not those of {checkpoints[-1][0].name}, which needs it")
    folder, full = checkpoints[0]
    if not full.stores:
        for table in full.tables:
            _check_complete(folder, full, table)


def _are_of(below: Sequence[SavedTable], above: Sequence[SavedTable]) -> bool:
    """True if tables of a base checkpoint are those of one made on it, which may have grown since."""
    known = {table.name: table for table in above}
    return len(below) == len(above) and all(
        (now := known.get(table.name)) and now.layout == table.layout and now.rows >= table.rows
        for table in below
    )


def _check_pieces(manifest: Manifest) -> None:
    """Raises ValueError unless the pieces lie end to end in their files, and no two have a weight in
    common."""
    rows = {table.name: table.rows for table in manifest.tables}
    places: dict[str, list[tuple[int, int, str]]] = {}  # by file: first byte, end and table of its pieces
    for piece in manifest.pieces:
        table = piece.table
        if table not in rows:
            raise ValueError(f"it has a piece of table {table!r}, which is none of its tables")
        layout, (first, end) = manifest.layouts[table], piece.columns
        last = piece.ids[-1] if piece.listed is None and piece.num_ids > 0 else piece.num_ids - 1
        steps = piece.id_step > 0 and piece.first_id >= 0
        if not (steps and -1 <= last < rows[table] and 0 <= first < end <= layout.dim):
            raise ValueError(f"a piece of table {table!r} has other ids or columns than the table")
        size = piece.num_ids * manifest.column_slice(piece).layout.stride
        places.setdefault(piece.file, []).append((piece.offset, piece.offset + size, table))
        if piece.listed is not None:
            ids = (piece.listed_at, piece.listed_at + piece.num_ids * 8, table)
            places.setdefault(piece.listed, []).append(ids)
    for name, in_file in places.items():
        _check_end_to_end(name, manifest.files[name].bytes, sorted(in_file))
    by_table = itertools.groupby(sorted(manifest.pieces, key=_table), _table)
    for table, pieces in by_table:
        begun: list[SavedPiece] = []  # whose ids have not ended; lists of ids are not looked into
        regular = (piece for piece in pieces if piece.listed is None and piece.num_ids > 0)
        for a in sorted(regular, key=lambda piece: piece.first_id):
            begun = [b for b in begun if b.ids[-1] >= a.first_id]
            for b in begun:
                if a.columns[0] < b.columns[1] and b.columns[0] < a.columns[1] and _share_ids(a, b):
                    raise ValueError(f"two of its pieces of table {table!r} hold the same ids")
            begun.append(a)


def _table(piece: SavedPiece) -> str:
    return piece.table


def _share_ids(a: SavedPiece, b: SavedPiece) -> bool:
    """True if two pieces, of regular ids, have some in common."""
    if a.id_step == b.id_step and (a.first_id - b.first_id) % a.id_step:
        return False  # as ranks deal them; `common_range` takes longer to say so
    return len(common_range(a.ids, b.ids)) > 0


def _check_end_to_end(name: str, size: int, places: Sequence[tuple[int, int, str]]) -> None:
    """Raises ValueError unless pieces, (first byte, end, table), fill a file without gap or overlap."""
    done = 0
    for begin, end, table in places:
        if begin != done or end > size:
            raise ValueError(f"table {table!r} does not fit into {name}")
        done = end
    if done != size:
        raise ValueError(f"its pieces are {done:,} of the {size:,} bytes of {name}")


def _check_complete(folder: Path, manifest: Manifest, table: SavedTable) -> None:
    """Checks that the pieces of a table, no two of which overlap, hold as many weights as it has."""
    pieces = [piece for piece in manifest.pieces if piece.table == table.name]
    weights = sum(piece.num_ids * (piece.columns[1] - piece.columns[0]) for piece in pieces)
    total = table.rows * table.layout.dim
    if weights != total:
        words = f"its pieces of table {table.name!r} hold {weights:,} of {total:,} weights"
        raise damaged(folder / NAME, words)


def _problems(manifest: Manifest) -> Iterator[str]:
    """The impossible statements of a manifest whose fields are of the right types."""
    names = [table.name for table in manifest.tables]
    if len(set(names)) < len(names):
        yield "several of its tables have one name"
    for table in manifest.tables:
        layout = table.layout
        bits = BITS.get(layout.dtype)
        fills_bytes = bits is not None and layout.dim * bits % 8 == 0
        if table.rows < 1 or layout.dim < 1 or layout.state_width < 0 or not fills_bytes:
            yield f"rows or layout of table {table.name!r} are impossible: {table.rows:,}, {layout}"
    for name, of_file in manifest.files.items():
        if not all(map(is_name, name.split("/"))) or of_file.bytes < 0:
            yield f"{name!r} of {of_file.bytes:,} bytes is no file of a checkpoint"
    used = [name for piece in manifest.pieces for name in (piece.file, piece.listed) if name is not None]
    if lacking := sorted({*used, *DENSE} - manifest.files.keys()):
        yield f"it lacks the checksum of {lacking[0]!r}"
    for piece in manifest.pieces:
        if piece.num_ids < 0 or not (piece.rank is None or 0 <= piece.rank < manifest.num_ranks):
            yield f"a piece of table {piece.table!r} has rank {piece.rank} and {piece.num_ids:,} ids"
    if (manifest.stores and len(manifest.stores) != manifest.num_ranks) or manifest.num_ranks < 1:
        yield f"it names the stores of {len(manifest.stores):,} of {manifest.num_ranks:,} ranks"
    if manifest.base is not None and not is_name(manifest.base):
        yield f"its base is named {manifest.base!r}"
    for fields in (manifest.placements or {}).values():
        build(Placement, fields)
