"""What a checkpoint is, in a few plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotrows.checkpoint.convert import verify
from hotrows.checkpoint.manifest import Manifest, bases, chain, check_files, read_manifest
from hotrows.checkpoint.pointer import FOLDER, pointed


def summary(folder: Path, verified: bool = False) -> dict[str, Any]:
    """A checkpoint's step, tables, pieces, files and what it is made on, for JSON.

    verified: reads every file, those of what it is made on too, and compares the checksums; without it
    sizes are compared.
    """
    found = chain(folder)
    (verify if verified else check_files)(found)
    manifest = found[-1][1]
    return {
        "name": folder.name,
        "step": manifest.step,
        "ranks": manifest.num_ranks,
        "base": manifest.base,
        "made_on": bases(folder),
        "rows_in": "file stores" if manifest.stores else "files",
        "stores": [list(of) for of in manifest.stores],
        "bytes": sum(of.bytes for of in manifest.files.values()),
        "verified": verified,
        "tables": [_table(manifest, k) for k in range(len(manifest.tables))],
        "files": {name: vars(of) for name, of in manifest.files.items()},
    }


def checkpoints_of(run: Path) -> list[dict[str, Any]]:
    """Name, step, bytes, base and roles (last, best, kept, base) of every checkpoint of a run."""
    pointer = pointed(run)
    if pointer is None:
        raise ValueError(f"run {run} has no checkpoint yet: train it first, or name another run")
    needed = {base for name in pointer.names for base in bases(run / FOLDER / name)}
    roles = {
        "last": {pointer.last},
        "best": {pointer.best},
        "kept": set(pointer.kept),
        "base": needed,
    }
    found = []
    for name in {**dict.fromkeys(pointer.names), **dict.fromkeys(needed)}:
        manifest = read_manifest(run / FOLDER / name)
        found.append({
            "name": name, "step": manifest.step, "base": manifest.base,
            "bytes": sum(of.bytes for of in manifest.files.values()),
            "roles": [role for role, names in roles.items() if name in names],
        })  # fmt: skip
    return sorted(found, key=lambda of: (of["step"], of["name"]))


def _table(manifest: Manifest, k: int) -> dict[str, Any]:
    table = manifest.tables[k]
    pieces = [of for of in manifest.pieces if of.table == table.name]
    num_bytes = sum(of.num_ids * manifest.cut(of).layout.stride for of in pieces)
    weights = sum(of.num_ids * manifest.cut(of).dim for of in pieces)
    return {
        "name": table.name, "rows": table.rows, "dim": table.layout.dim, "dtype": table.layout.dtype,
        "optimizer": table.optimizer, "pieces": len(pieces),
        "rows_here": weights // table.layout.dim, "bytes": num_bytes,
    }  # fmt: skip
