"""NextUses: which batch uses each row next, of a range of batches to come, found in files.

    uses = NextUses(folder / "next", num_rows)
    for rows in batches: uses.add(rows)              # of every batch of the range
    first_uses = uses.finish(rows_in_slots)
    uses.of_batch(0, num_distinct_rows)              # as the range is planned

The native core writes the uses to a file by range of rows, finds in each range the next use of every
use, and writes these to a file by range of batches: 16 bytes of disk a use at most, 8 from `finish` on,
and some 50 MB of memory. The files have no names, so a crash leaves none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotrows.engine.planning.slots import NEVER
from hotrows.runtime import native
from hotrows.runtime.shapes import Int32, Int64

MOST_BATCHES, MOST_ROWS = 65_000, 1 << 32  # of a range; of a table


class NextUses:
    """The next uses of a range of batches. path: where files are made."""

    def __init__(self, path: Path, num_rows: int) -> None:
        if num_rows > MOST_ROWS:
            raise ValueError(f"next uses are found among {MOST_ROWS:,} rows at most, not {num_rows:,}")
        self.path, self.num_batches, self.num_uses = path, 0, 0
        self._core = native.Object("next_uses", os.fsencode(path), num_rows)
        if not self._core:
            raise OSError(f"{path}: no file can be made there for the next uses of rows")

    def add(self, rows: Int64[Tensor, "N"]) -> None:
        """Adds the rows of the next batch, in any order, with repeats."""
        self.num_uses += self._call("add", rows.contiguous(), rows.numel())
        self.num_batches += 1

    def finish(self, rows: Int64[Tensor, "m"]) -> Int32[Tensor, "m"]:
        """Finds the next uses; returns the batches that first use these rows, ascending, NEVER where none
        does. Batches are numbered within the range."""
        first_uses = torch.empty(rows.numel(), dtype=torch.int32)
        self._call("finish", rows, rows.numel(), first_uses)
        return first_uses.masked_fill_(first_uses < 0, NEVER)

    def of_batch(self, batch: int, num_rows: int) -> Int32[Tensor, "{num_rows}"] | None:
        """The batches that use the distinct rows of a batch next, in the order of rows, NEVER where none
        does within the range; None: other rows were added."""
        next_uses = torch.empty(num_rows, dtype=torch.int32)
        return next_uses if self._call("read", batch, num_rows, next_uses) else None

    @property
    def num_bytes(self) -> int:
        """Bytes of files."""
        return self._call("bytes")

    def _call(self, name: str, *arguments: Any) -> int:
        result = self._core.call(name, *arguments)
        if result < 0:
            raise OSError(-result, f"{self.path}: next uses of rows: {os.strerror(-result)}")
        return result
