"""All rows of a checkpoint, a chunk at a time, once every file is verified: as a full one of one rank, or
to see how many of their dims tables use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes

from hotrows.engine.checkpoint import files, key_state
from hotrows.engine.checkpoint.manifest import (
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
from hotrows.engine.checkpoint.reshard import ColumnSlice
from hotrows.engine.checkpoint.sources import SavedRecords, chunks_of, fill, in_files
from hotrows.engine.checkpoint.table_files import Progress
from hotrows.ops.record import views
from hotrows.runtime.atomic_files import new_folder
from hotrows.runtime.file_sums import FileSum
from hotrows.runtime.terminal import silent


def merge(folder: Path | str, out: Path | str, progress: Progress = silent) -> Path:
    """Writes the checkpoint in `folder`, with its base checkpoints, as a full one of one rank.

    out: a new folder, which `load` reads.
    progress: called with "merging", the number of rows written and that of all rows.

    >>> embedding = hotrows.Embedding([hotrows.Table("user", rows=100, dim=8, features=("user",))])
    >>> model = torch.nn.Linear(8, 1)
    >>> state = hotrows.engine.checkpoint.State(1, {}, {})
    >>> name = hotrows.engine.checkpoint.save(f"{folder}/run", embedding, model, state)
    >>> merge(f"{folder}/run/checkpoints/{name}", f"{folder}/merged").name
    'merged'
    """
    # Open the chain, and note where each table's rows are.
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

    # Write the newest record of every row, a file for each table, then the dense part.
    with new_folder(out) as part:
        sums: dict[str, FileSum] = {}
        pieces = []
        for k, table in enumerate(manifest.tables):
            file = f"table-{k}.records"
            sums[file] = files.write_file(part / file, counted(_records(tables[table.name], table)))
            pieces.append(SavedPiece(table.name, table.rows, (0, table.layout.dim), file, 0))
        for name, content in _dense(checkpoints):
            sums[name] = files.write_file(part / name, [content])
        full = replace(manifest, pieces=tuple(pieces), files=sums, num_ranks=1, placements=None)
        (part / NAME).write_text(to_json(replace(full, base=None, base_crc32=None)))
    return out


def dims_used(folder: Path | str) -> dict[str, float]:
    """How many of its dims each table uses, from 1 to all: its singular values' sum over the largest.

    That is the information abundance of Guo et al. 2024 (On the embedding collapse when scaling up
    recommendation models). 0: all weights are.
    """
    checkpoints = _opened(Path(folder))
    tables, used = in_files(checkpoints), {}
    for table in checkpoints[-1][1].tables:
        gram = torch.zeros(table.layout.dim, table.layout.dim, dtype=torch.float64)
        for records in _records(tables[table.name], table):
            weights = views(torch.from_numpy(records), table.layout.as_ints()).read().double()
            gram += weights.t() @ weights
        values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
        used[table.name] = float(values.sum() / values[-1]) if values[-1] > 0 else 0.0
    return used


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
