"""Tables as safetensors files, one each, written some rows at a time: they may be larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from hotrows.runtime.tensor_file import Stored, header

Progress = Callable[[str, int, int], None]


def table_file(table: str) -> str:
    """The file of a table, whose name comes from a column's and may hold any character."""
    return f"tables/{quote(table, safe=' ')}.safetensors"


class TableFiles:
    """Writes the tables of an export into `folder`.

    num_rows: of all tables; progress: called with "exporting", the rows written and num_rows.
    """

    def __init__(self, folder: Path, num_rows: int, progress: Progress) -> None:
        self._folder, self._num_rows, self._progress = folder, num_rows, progress
        self._done = 0
        (folder / "tables").mkdir()

    def write(
        self, table: str, tensors: Mapping[str, Stored], chunks: Sequence[Iterable[np.ndarray]]
    ) -> None:
        """Writes the tensors of a table, one after the other.

        chunks: of each tensor its rows in order, [n, bytes of a row] uint8 at a time.
        """
        with open(self._folder / table_file(table), "wb") as file:
            file.write(header(tensors))
            for number, chunks_of_tensor in enumerate(chunks):
                for rows in chunks_of_tensor:
                    file.write(np.ascontiguousarray(rows).data)
                    if number == 0:
                        self._done += len(rows)
                        self._progress("exporting", self._done, self._num_rows)
