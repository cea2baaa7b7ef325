"""Summaries of checkpoints, as a few plain values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotrows.engine.checkpoint import files, key_state
from hotrows.engine.checkpoint.convert import verify
from hotrows.engine.checkpoint.manifest import (
    NAME,
    Manifest,
    SavedTable,
    bases,
    chain,
    check_files,
    read_manifest,
)
from hotrows.engine.checkpoint.pointer import FOLDER, pointed
from hotrows.engine.checkpoint.table_files import export_problems
from hotrows.engine.keys.table import COUNTERS


def summary(folder: Path | str, verified: bool = False) -> dict[str, Any]:
    """A checkpoint's step, tables, pieces, files and base checkpoints, for JSON.

    verified: read every file, those of the base checkpoints too, and compare the checksums; without
    it sizes are compared.
    """
    folder = Path(folder)
    checkpoints = chain(folder)
    (verify if verified else check_files)(checkpoints)
    manifest = checkpoints[-1][1]
    return {
        "name": folder.name,
        "step": manifest.step,
        "ranks": manifest.num_ranks,
        "base": manifest.base,
        "bases": bases(folder),
        "rows_in": "file stores" if manifest.stores else "files",
        "stores": [list(generations) for generations in manifest.stores],
        "bytes": sum(file.bytes for file in manifest.files.values()),
        "verified": verified,
        "tables": [_table(manifest, table) for table in manifest.tables],
        "files": {name: vars(file) for name, file in manifest.files.items()},
    }


def problems(folder: Path | str) -> list[str]:
    """Says of each damaged file of a checkpoint and of its base checkpoints what is wrong with it.

    Reads all of them. folder: of a checkpoint, or of what was exported from one.
    """
    folder = Path(folder)
    if (exported := folder / "export.json").exists() and not (folder / NAME).exists():
        return list(export_problems(exported))
    damaged: dict[str, None] = {}  # each once
    checkpoints: list[tuple[Path, Manifest]] = []

    def note(check: Callable[[], Any]) -> None:
        try:
            check()
        except ValueError as error:
            damaged[str(error)] = None

    note(lambda: checkpoints.extend(chain(folder)))
    if not checkpoints:  # perhaps it is a base that cannot be read
        note(lambda: checkpoints.append((folder, read_manifest(folder))))
    for place, manifest in checkpoints:
        for name, expected in manifest.files.items():
            note(partial(files.verify, place / name, expected))
    if not damaged:
        note(lambda: check_files(checkpoints))
    return list(damaged)


def checkpoints_of(run: Path | str) -> list[dict[str, Any]]:
    """Name, step, bytes, base and roles (last, best, kept, base) of every checkpoint of a run."""
    run = Path(run)
    pointer = pointed(run)
    if pointer is None:
        raise ValueError(f"run {run} has no checkpoint yet: train it first, or name another run")
    needed = {base for name in pointer.names for base in bases(run / FOLDER / name)}
    roles = {"last": {pointer.last}, "best": {pointer.best}, "kept": set(pointer.kept), "base": needed}
    manifests = {name: read_manifest(run / FOLDER / name) for name in {*pointer.names, *needed}}
    rows = [
        {
            "name": name,
            "step": manifest.step,
            "base": manifest.base,
            "bytes": sum(file.bytes for file in manifest.files.values()),
            "roles": [role for role, names in roles.items() if name in names],
        }
        for name, manifest in manifests.items()
    ]
    return sorted(rows, key=lambda row: (row["step"], row["name"]))


def key_tables(folder: Path | str) -> list[dict[str, Any]]:
    """The key tables of a checkpoint with dynamic features, for JSON.

    live: keys with a row; rows: used at most so far; load: live / rows; bytes: of the state; admitted,
    evicted: keys so far; refused: keys for which there was no room; waiting: keys that are read and not
    admitted; ages: of live keys, the batches since the last one that read them, [0, 50, 90, 100] percent
    of the keys have at most these.
    """
    folder = Path(folder)
    tensors = key_state.read(chain(folder))
    tables: dict[str, dict[str, Tensor]] = {}  # what each has
    for name, tensor in tensors.items():
        table, _, what = name.rpartition("/")
        tables.setdefault(table, {})[what] = tensor
    partitions: dict[str, list[dict[str, Tensor]]] = {}  # of each vocabulary
    for table in sorted(tables):
        partitions.setdefault(key_state.vocabulary_of(table), []).append(tables[table])
    return [_key_table(vocabulary, states) for vocabulary, states in partitions.items()]


def _key_table(name: str, states: list[dict[str, Tensor]]) -> dict[str, Any]:
    """states: of the partitions of a vocabulary."""
    sums = torch.stack([state["counters"] for state in states]).sum(0)
    counters = dict(zip(COUNTERS, sums.tolist(), strict=True))
    newest = int(states[0]["counters"][0]) - 1
    ages = (newest - torch.cat([state["last_use"] for state in states])).sort().values
    places = [round(share * (len(ages) - 1)) for share in (0, 0.5, 0.9, 1)] if len(ages) else []
    return {
        "name": name,
        "live": len(ages),
        **{what: counters[what] for what in ("rows", "admitted", "evicted", "refused")},
        "load": len(ages) / max(counters["rows"], 1),
        "bytes": sum(tensor.nbytes for state in states for tensor in state.values()),
        "waiting": sum(len(state["waiting_keys"]) for state in states),
        "ages": ages[places].tolist(),
    }


def _table(manifest: Manifest, table: SavedTable) -> dict[str, Any]:
    pieces = [piece for piece in manifest.pieces if piece.table == table.name]
    slices = [(piece.num_ids, manifest.column_slice(piece)) for piece in pieces]
    return {
        "name": table.name,
        "rows": table.rows,
        "dim": table.layout.dim,
        "dtype": table.layout.dtype,
        "optimizer": table.optimizer,
        "pieces": len(pieces),
        "rows_here": sum(num_ids * columns.dim for num_ids, columns in slices) // table.layout.dim,
        "bytes": sum(num_ids * columns.layout.stride for num_ids, columns in slices),
    }
