"""Conversion of checkpoints: into a full one of one rank, or into safetensors and JSON.

Both verify every file first, and copy the tables a chunk of rows at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from hotrows import optim
from hotrows.checkpoint import files, key_state
from hotrows.checkpoint.manifest import (
    DENSE,
    KEYS,
    NAME,
    Chain,
    SavedPiece,
    SavedTable,
    chain,
    check_files,
    to_json,
)
from hotrows.checkpoint.reshard import ColumnSlice
from hotrows.checkpoint.sources import SavedRecords, chunks_of, fill, in_files
from hotrows.checkpoint.table_files import Progress, TableFiles, table_file
from hotrows.engine.dense_rows import catch_up_all, saved_histories
from hotrows.ops.deferred.history import StepHistory
from hotrows.runtime.atomic_files import new_folder
from hotrows.runtime.file_sums import FileSum
from hotrows.runtime.tensor_file import DTYPES, Stored
from hotrows.version import VERSION

EXPORT = "checkpoint.json"


def merge(
    folder: Path | str, out: Path | str, progress: Progress = lambda stage, done, total: None
) -> Path:
    """Writes the checkpoint in `folder`, with its base checkpoints, as a full one of one rank.

    out: a new folder, which `load` reads. progress: called with "merging", the number of rows written
    and that of all rows.
    """
    # 1. Open the chain, and note where each table's rows are.
    folder, out = Path(folder), Path(out)
    checkpoints = _opened(folder)
    manifest, tables = checkpoints[-1][1], in_files(checkpoints)
    done, num_rows = 0, sum(table.rows for table in manifest.tables)

    def counted(records: Iterator[np.ndarray]) -> Iterator[memoryview]:
        nonlocal done
        for chunk in records:
            yield memoryview(np.ascontiguousarray(chunk).data).cast("B")
            done += len(chunk)
            progress("merging", done, num_rows)

    # 2. Write the newest record of every row, a file for each table, then the dense part.
    with new_folder(out) as part:
        sums: dict[str, FileSum] = {}
        pieces = []
        for k, table in enumerate(manifest.tables):
            file = f"table-{k}.records"
            sums[file] = files.write_file(part / file, counted(_records(tables[table.name], table)))
            pieces.append(SavedPiece(table.name, table.rows, (0, table.layout.dim), file, 0))
        for name, content in _dense(checkpoints):
            sums[name] = files.write_file(part / name, [content])
        # 3. Write the manifest last.
        full = replace(manifest, pieces=tuple(pieces), files=sums, num_ranks=1, placements=None)
        (part / NAME).write_text(to_json(replace(full, base=None, base_crc32=None)))
    return out


def export_tables(
    folder: Path | str, out: Path | str, state: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> Path:  # fmt: skip
    """Writes the checkpoint in `folder` as files that any reader of safetensors and JSON reads.

    out: a new folder: `checkpoint.json`, `model.safetensors`, and `tables/<table>.safetensors` with
    "weight" [rows, dim], as stored; with `state` the optimizer's numbers too, [rows, dim] or [rows].
    Rows under a dense optimizer are up to date.
    """
    folder, out = Path(folder), Path(out)
    checkpoints = _opened(folder)
    manifest, tables = checkpoints[-1][1], in_files(checkpoints)
    num_rows = sum(table.rows for table in manifest.tables)
    trainer = tensors_from_bytes(files.read_file(folder / DENSE[1], manifest.files[DENSE[1]]))
    names = [table.name for table in manifest.tables]
    histories = saved_histories(trainer, names)
    with new_folder(out) as part:
        table_files, described = TableFiles(part, num_rows, progress), []
        for table in manifest.tables:
            file = table_file(table.name, names)
            columns = _columns(table) if state else _columns(table)[:1]
            tensors = {name: stored for name, stored, _ in columns}
            history = histories.get(table.name)
            chunks = [_chunks(tables[table.name], table, column, history) for column in columns]
            table_files.write(file, tensors, chunks)
            form = {"rows": table.rows, "dim": table.layout.dim, "dtype": table.layout.dtype}
            contents = {"file": file, "tensors": list(tensors)}
            described.append({"name": table.name, **form, "optimizer": table.optimizer, **contents})
        dense = list(itertools.islice(_dense(checkpoints), None if state else 1))
        for name, content in dense:
            table_files.sums[name] = files.write_file(part / name, [content])
        source = {"hotrows": VERSION, "step": manifest.step, "fingerprint": manifest.fingerprint}
        dense_files = [name for name, _ in dense]
        table_files.describe(
            EXPORT, {**source, "tables": described, "dense": dense_files, "state": manifest.state}
        )
    return out


def _dense(checkpoints: Chain) -> Iterator[tuple[str, bytes]]:
    """The files of a checkpoint beside its records: the dense part, and the key tables of all ranks."""
    folder, manifest = checkpoints[-1]
    for name in DENSE:
        yield name, files.read_file(folder / name, manifest.files[name])
    if state := key_state.read(checkpoints):
        yield KEYS, tensors_to_bytes(state)


def _opened(folder: Path) -> Chain:
    """The checkpoint with its base checkpoints, verified."""
    checkpoints = chain(folder)
    if checkpoints[-1][1].stores:
        raise ValueError(
            f"checkpoint {folder} has its rows in a file store; write the weights of its run with "
            f"`hotrows export RUN`"
        )
    verify(checkpoints)
    return checkpoints


def verify(checkpoints: Chain) -> None:
    """Reads every file of a checkpoint and of its base checkpoints, and compares the checksums."""
    check_files(checkpoints)
    for folder, manifest in checkpoints:
        for name, expected in manifest.files.items():
            files.verify(folder / name, expected)


def _records(saved: Sequence[SavedRecords], table: SavedTable) -> Iterator[np.ndarray]:
    """The records of a table, [n, stride] uint8, in the order of their ids."""
    columns = ColumnSlice(table.layout, (0, table.layout.dim))
    for _, ids in chunks_of(range(table.rows), table.layout.stride):
        records = np.zeros((len(ids), table.layout.stride), np.uint8)
        fill(saved, ids, records, columns)
        yield records


Column = tuple[str, Stored, int]  # name, dtype and shape, first byte in a record


def _columns(table: SavedTable) -> list[Column]:
    """The tensors that the records of a table consist of."""
    rows, layout = table.rows, table.layout
    columns = [("weight", Stored(DTYPES[layout.dtype], (rows, layout.dim)), 0)]
    first = layout.state_offset
    kind = optim.BY_NAME.get(table.optimizer)  # None: the table has no optimizer
    has_state = kind is not None and layout.state_width > 0
    for name in kind.state_names if has_state else ():  # type: ignore[union-attr]
        shape = (rows,) if kind is optim.RowWiseAdagrad else (rows, layout.dim)
        columns.append((name, Stored("F32", shape), first))
        first += columns[-1][1].num_bytes // rows
    if layout.has_step:
        columns.append(("step", Stored("I32", (rows,)), layout.step_offset))
    return columns


def _chunks(
    saved: Sequence[SavedRecords], table: SavedTable, column: Column, history: StepHistory | None
) -> Iterator[np.ndarray]:
    """The bytes of a column of the records, [n, bytes of a row] uint8 at a time.

    history: of a table under a dense optimizer.
    """
    _, stored, first = column
    width = stored.num_bytes // table.rows
    for records in _records(saved, table):
        if history is not None:
            kind = optim.BY_NAME[table.optimizer].deferred  # type: ignore[attr-defined]
            catch_up_all(kind, history, torch.from_numpy(records), table.layout.as_ints())
        yield records[:, first : first + width]
