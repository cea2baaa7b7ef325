"""Merging: a base and the deltas after it become one base, with the tables and the program that an export
of then would have, bit for bit."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.json_file import value_of
from hotrows.runtime.atomic_files import json_text, new_folder
from hotrows.runtime.file_sums import FileSum, sum_of
from hotrows.runtime.tensor_file import EXPORT_FILE
from hotrows.serving import chain
from hotrows.serving.bundle import MANIFEST
from hotrows.serving.version import Version, version_at


def merge(
    folder: Path | str,
    out: Path | str,
    number: int | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    trust: bool = False,
) -> Version:
    """Writes a version of the chain in `folder`, the newest by default, as a bundle into the new folder
    `out`; returns the version that was written."""
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
    done, total = 0, sum(table.rows for table in version.bundle.tables)
    for name in sums:
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target)
        if name in tables:
            table = tables[name]
            stored = np.lib.format.open_memmap(target, mode="r+")
            ids = table.changed_ids()
            for first in range(0, len(ids), 1 << 16):
                stored[ids[first : first + (1 << 16)]] = table.stored(ids[first : first + (1 << 16)])
            stored.flush()
            del stored
            done += table.rows
            progress("merging", done, total)
        elif name == version.bundle.program:
            target.write_bytes(version.program.content())
        sums[name] = sum_of(target)
    fields["files"] = {name: dataclasses.asdict(of_file) for name, of_file in sums.items()}
    fields["tables"] = [_without_errors(entry) for entry in fields["tables"]]
    fields.pop("largest_difference", None)
    (out / MANIFEST).write_text(json_text(EXPORT_FILE.sign(fields)))
    if version.head is not None:
        chain.write_base_head(out, version.head)


def _without_errors(entry: dict[str, Any]) -> dict[str, Any]:
    """What is said of a table, without the errors of rows that it may no longer have."""
    if entry["dtype"] == "float32":
        return entry
    return {name: value for name, value in entry.items() if name not in ("largest_error", "rms_error")}
