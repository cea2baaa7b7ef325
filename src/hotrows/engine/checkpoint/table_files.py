"""Tables as safetensors files, one each, written some rows at a time: they may be larger than memory.

The JSON file that describes an export has the sizes and checksums of its files, and one of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.engine.checkpoint import files
from hotrows.runtime.atomic_files import json_text
from hotrows.runtime.file_names import file_name
from hotrows.runtime.file_sums import FileSum
from hotrows.runtime.json_file import value_of
from hotrows.runtime.tensor_file import EXPORT_FILE, Stored, entries, header

Progress = Callable[[str, int, int], None]


def table_file(table: str, tables: Iterable[str] = ()) -> str:
    """The file of a table; tables: the names of all of them."""
    return f"tables/{file_name(table, tables)}.safetensors"


class TableFiles:
    """Writes the tables of an export into `folder`.

    num_rows: of all tables; progress: called with "exporting", the rows written and num_rows.
    sums: sizes and checksums of the files so far; those of other files of the export are added to them.
    """

    def __init__(self, folder: Path, num_rows: int, progress: Progress) -> None:
        self._folder, self._num_rows, self._progress = folder, num_rows, progress
        self._done = 0
        self.sums: dict[str, FileSum] = {}
        (folder / "tables").mkdir()

    def write(
        self, name: str, tensors: Mapping[str, Stored], chunks: Sequence[Iterable[np.ndarray]]
    ) -> None:
        """Writes the tensors of a table into the file `name`, one after the other.

        chunks: of each tensor its rows in order, [n, bytes of a row] uint8 at a time.
        """
        self.sums[name] = files.write_file(self._folder / name, self._content(tensors, chunks))

    def describe(self, name: str, fields: Mapping[str, Any]) -> None:
        """Writes the JSON file of the export, with the sums of its files."""
        describe(self._folder / name, fields, self.sums)

    def _content(
        self, tensors: Mapping[str, Stored], chunks: Sequence[Iterable[np.ndarray]]
    ) -> Iterator[bytes | memoryview]:
        yield header(entries(tensors))
        for number, chunks_of_tensor in enumerate(chunks):
            for rows in chunks_of_tensor:
                yield memoryview(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
                if number == 0:
                    self._done += len(rows)
                    self._progress("exporting", self._done, self._num_rows)


def describe(path: Path, fields: Mapping[str, Any], sums: Mapping[str, FileSum]) -> None:
    """Writes the JSON file of an export, with the sums of its files."""
    by_file = {file: asdict(of_file) for file, of_file in sums.items()}
    path.write_text(json_text(EXPORT_FILE.sign({**fields, "files": by_file})))


def export_problems(path: Path) -> Iterator[str]:
    """Says of each damaged file of an export, which the file `path` describes, what is wrong with it."""
    try:
        fields = EXPORT_FILE.read(path)
        with EXPORT_FILE.naming(path):
            sums = value_of(dict[str, FileSum], fields.get("files"), "files of an export")
    except ValueError as error:
        yield str(error)
        return
    for name, expected in sums.items():
        try:
            files.verify(path.parent / name, expected)
        except ValueError as error:
            yield str(error)
