"""A checkpoint as something else: as a full one of one rank, or as safetensors and JSON.

Both verify every file first, and go through the tables some rows at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from hotrows import optim
from hotrows.checkpoint import files
from hotrows.checkpoint.files import FileSum
from hotrows.checkpoint.manifest import (
    NAME,
    Manifest,
    SavedPiece,
    SavedTable,
    chain,
    check_files,
    to_json,
)
from hotrows.checkpoint.recut import Cut
from hotrows.checkpoint.saved import Saved, chunks_of, fill, in_files
from hotrows.data.aside import written_aside
from hotrows.storage.log import sync_folder
from hotrows.tensor_file import DTYPES, Stored, header
from hotrows.version import VERSION

Progress = Callable[[str, int, int], None]
EXPORT_FORMAT = 1
_DENSE = ("model.safetensors", "trainer.safetensors")


def merge(
    folder: Path, out: Path, progress: Progress = lambda stage, done, total: None
) -> Path:  # fmt: skip
    """Writes the checkpoint in `folder`, with all that it is made on, as a full one of one rank.

    out: a new folder, which `load` reads. progress: told "merging", and how many rows of how many
    are written.
    """
    found = _opened(folder)
    manifest, tables = found[-1][1], in_files(found)
    step = _counted(progress, "merging", manifest.tables)
    with written_aside(out) as part:
        sums: dict[str, FileSum] = {}
        pieces = []
        for k, table in enumerate(manifest.tables):
            file = f"table-{k}.records"
            records = step(_records(tables[table.name], table))
            sums[file] = files.write_file(part / file, map(_bytes, records))
            pieces.append(SavedPiece(table.name, table.rows, (0, table.layout.dim), file, 0))
        for name in _DENSE:
            content = files.read_file(folder / name, manifest.files[name])
            sums[name] = files.write_file(part / name, [content])
        full = replace(
            manifest, pieces=tuple(pieces), files=sums, num_ranks=1, placements=None, base=None,
            base_crc32=None,
        )  # fmt: skip
        files.write_file(part / NAME, [to_json(full)])
        sync_folder(part)
    return out


def export_tables(
    folder: Path, out: Path, state: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> Path:  # fmt: skip
    """Writes the checkpoint in `folder` as files that any reader of safetensors and JSON reads.

    out: a new folder: `checkpoint.json`, `model.safetensors`, and `tables/<table>.safetensors` with
    "weight" [rows, dim], as stored; with `state` the optimizer's numbers too, [rows, dim] or [rows].
    """
    found = _opened(folder)
    manifest, tables = found[-1][1], in_files(found)
    step = _counted(progress, "exporting", manifest.tables)
    with written_aside(out) as part:
        (part / "tables").mkdir()
        described = []
        for table in manifest.tables:
            file = f"tables/{quote(table.name, safe=' ')}.safetensors"
            columns = _columns(table) if state else _columns(table)[:1]
            _write_table(part / file, tables[table.name], table, columns, step)
            described.append(_described(table, file, columns))
        names = _DENSE if state else _DENSE[:1]
        for name in names:
            (part / name).write_bytes(files.read_file(folder / name, manifest.files[name]))
        fields = {
            "format": EXPORT_FORMAT, "hotrows": VERSION, "step": manifest.step,
            "fingerprint": manifest.fingerprint, "tables": described, "dense": list(names),
            "state": manifest.state,
        }  # fmt: skip
        (part / "checkpoint.json").write_text(json.dumps(fields, indent=2) + "\n")
    return out


def _opened(folder: Path) -> list[tuple[Path, Manifest]]:
    """The checkpoint with what it is made on, verified."""
    found = chain(folder)
    if found[-1][1].stores:
        raise ValueError(
            f"checkpoint {folder} has its rows in a file store; write the weights of its run with "
            f"`hotrows export RUN`"
        )
    verify(found)
    return found


def verify(found: Sequence[tuple[Path, Manifest]]) -> None:
    """Reads every file of a checkpoint and of those it is made on, and compares the checksums."""
    check_files(found)
    for folder, manifest in found:
        for name, expected in manifest.files.items():
            files.verify(folder / name, expected)


def _records(saved: Sequence[Saved], table: SavedTable) -> Iterator[np.ndarray]:
    """The records of a table, [n, stride], in order."""
    cut = Cut(table.layout, (0, table.layout.dim))
    for _, ids in chunks_of(range(table.rows), table.layout.stride):
        records = np.zeros((len(ids), table.layout.stride), np.uint8)
        fill(saved, ids, records, cut)
        yield records


Column = tuple[str, Stored, int]  # name, dtype and shape, first byte in a record


def _columns(table: SavedTable) -> list[Column]:
    """What a record of a table consists of."""
    rows, layout = table.rows, table.layout
    found = [("weight", Stored(DTYPES[layout.dtype], (rows, layout.dim)), 0)]
    at = layout.state_offset
    for name, per_column in _state(table):
        shape = (rows, layout.dim) if per_column else (rows,)
        found.append((name, Stored("F32", shape), at))
        at += 4 * (layout.dim if per_column else 1)
    if layout.has_step:
        found.append(("step", Stored("I32", (rows,)), layout.step_offset))
    return found


def _state(table: SavedTable) -> list[tuple[str, bool]]:
    """The names of an optimizer's numbers, and whether each column has one of its own."""
    kind = optim.BY_NAME.get(table.optimizer)
    if kind is None:  # format 1 does not say
        cut = Cut(table.layout, (0, table.layout.dim))
        each = [True] * cut.per_column + [False] * cut.per_row
        return [(f"state_{k}", per_column) for k, per_column in enumerate(each)]
    return [(name, kind is not optim.RowWiseAdagrad) for name in kind.state_names]  # type: ignore[attr-defined]


def _write_table(
    path: Path, saved: Sequence[Saved], table: SavedTable, columns: Sequence[Column],
    step: Callable[[Iterator[np.ndarray]], Iterator[np.ndarray]],
) -> None:  # fmt: skip
    """A pass over the records for each tensor: they stand one after the other in the file."""
    with open(path, "wb") as file:
        file.write(header({name: stored for name, stored, _ in columns}))
        for k, (_, stored, at) in enumerate(columns):
            width = stored.num_bytes // table.rows
            records = _records(saved, table)
            for part in step(records) if k == 0 else records:
                file.write(_bytes(part[:, at : at + width]))


def _bytes(records: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(records).data).cast("B")


def _described(table: SavedTable, file: str, columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "name": table.name, "rows": table.rows, "dim": table.layout.dim,
        "dtype": table.layout.dtype, "optimizer": table.optimizer, "file": file,
        "tensors": [name for name, _, _ in columns],
    }  # fmt: skip


def _counted(
    progress: Progress, stage: str, tables: Sequence[SavedTable]
) -> Callable[[Iterator[np.ndarray]], Iterator[np.ndarray]]:
    """Tells how many rows have gone by."""
    done, total = 0, sum(table.rows for table in tables)

    def step(records: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        nonlocal done
        for part in records:
            yield part
            done += len(part)
            progress(stage, done, total)

    return step
