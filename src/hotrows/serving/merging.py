"""Merging: a base and the deltas after it become one base, with the tables and the program that an export
of then would have, bit for bit."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.stored.histories import EVENTS_FILE
from hotrows.runtime.atomic_files import json_text, new_folder
from hotrows.runtime.file_sums import FileSum, sum_of
from hotrows.runtime.json_file import value_of
from hotrows.runtime.tensor_file import EXPORT_FILE
from hotrows.serving import chain
from hotrows.serving.bundle import CORE_PROGRAM, ENCODERS, MANIFEST
from hotrows.serving.table_rows import TableRows
from hotrows.serving.version import Version, version_at

_ROWS = 1 << 16  # at a time


def merge(
    folder: Path | str,
    out: Path | str,
    number: int | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    trust: bool = False,
) -> Version:
    """Writes a version of the chain in `folder`, the newest by default, as a bundle into the new folder
    `out`; returns the version that was written.

    number: the version of a published model (default: the newest).
    trust: open a program whose reader runs what the file says (pt2).
    """
    version = version_at(folder, number, trust=trust)
    with new_folder(Path(out)) as part:
        write(version, part, progress)
    return version


def write(
    version: Version,
    out: Path,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> None:
    """Writes the files of a version as a base into the folder `out`."""
    source = version.bundle.path
    fields = EXPORT_FILE.read(source / MANIFEST)
    sums = value_of(dict[str, FileSum], fields["files"], "files of an export")
    tables = {table.file: version.tables[table.name] for table in version.bundle.tables}
    keys = {stored.file: version.keys[stored.vocabulary] for stored in version.bundle.keys}
    done, total = 0, sum(table.rows for table in tables.values())
    for name in sums:
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name in tables:
            _write_table(tables[name], source / name, target)
            done += tables[name].rows
            progress("merging", done, total)
        elif name in keys:
            np.save(target, keys[name].pairs())
        elif version.histories is not None and name == f"{ENCODERS}/{EVENTS_FILE}":
            version.histories.write(target)
        elif name == version.bundle.program:
            target.write_bytes(version.program.content())
        elif version.shared_program is not None and name == version.bundle.shared_program:
            target.write_bytes(version.shared_program.content())
        elif version.core is not None and name == CORE_PROGRAM:
            target.write_bytes(version.core.program.content())
        else:
            shutil.copyfile(source / name, target)
        sums[name] = sum_of(target)
    # Describe the files, without the errors, which were measured on the first base.
    fields["files"] = {name: dataclasses.asdict(of_file) for name, of_file in sums.items()}
    rows = [version.tables[entry["name"]].rows for entry in fields["tables"]]
    fields["tables"] = [
        _without_errors({**entry, "rows": n}) for entry, n in zip(fields["tables"], rows, strict=True)
    ]
    fields["losses"] = {n: dataclasses.asdict(x) for n, x in version.calibration.stored().items()}
    for measured in ("largest_difference", "held_out", "precisions"):
        fields.pop(measured, None)
    (out / MANIFEST).write_text(json_text(EXPORT_FILE.sign(fields)))
    if version.head is not None:
        chain.write_base_head(out, version.head)


def _write_table(table: TableRows, source: Path, target: Path) -> None:
    """Writes a table: the rows of its file, and over them those that changed, or are new."""
    shutil.copyfile(source, target)
    stored = np.lib.format.open_memmap(target, mode="r+")
    if table.rows > len(stored):
        before, shape = stored, (table.rows, stored.shape[1])
        grown = target.with_suffix(".grown")
        stored = np.lib.format.open_memmap(grown, mode="w+", dtype=before.dtype, shape=shape)
        for first in range(0, len(before), _ROWS):
            stored[first : min(first + _ROWS, len(before))] = before[first : first + _ROWS]
        grown.replace(target)
    ids = table.changed_ids()
    for first in range(0, len(ids), _ROWS):
        stored[ids[first : first + _ROWS]] = table.stored(ids[first : first + _ROWS])
    stored.flush()


def _without_errors(entry: dict[str, Any]) -> dict[str, Any]:
    """Drops from a table's entry the errors of rows that it may no longer have."""
    if entry["dtype"] == "float32":
        return entry
    return {name: value for name, value in entry.items() if name not in ("largest_error", "rms_error")}
