"""Where the rows of a pack live for good.

`MemoryStore` holds every record in host memory, so a row's slot is its row number. Stores obey
plans: they read and write records at slots, and know nothing of ids, batches or optimizers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows import native, ops
from hotrows.record import RecordLayout, RecordViews, views
from hotrows.schema import Constant, Initializer, Normal


@dataclass(frozen=True)
class NewRows:
    """How the rows of one table begin: `num_rows` of them, from the stream `key`."""

    num_rows: int
    key: int
    initializer: Initializer


class MemoryStore:
    """All records of a pack in host memory, [R, stride] bytes, on huge pages where there are any."""

    def __init__(
        self, layout: RecordLayout, tables: Sequence[NewRows], state: Sequence[float]
    ) -> None:
        self.layout = layout
        num_rows = sum(table.num_rows for table in tables)
        self.records = _empty(num_rows, layout.stride)
        first = 0
        for table in tables:
            kind, scale = _kind(table.initializer)
            ops.initialize(
                self.records, layout.as_ints(), first, table.num_rows, 0, table.key, kind, scale,
                list(state),
            )  # fmt: skip
            first += table.num_rows

    @property
    def views(self) -> RecordViews:
        """Weights [R, D], state [R, S] and step [R] of all rows, as views of the records."""
        return views(self.records, self.layout.as_ints())

    @property
    def num_bytes(self) -> int:
        return self.records.numel()


def _empty(num_rows: int, stride: int) -> Tensor:
    try:
        records = torch.empty(num_rows, stride, dtype=torch.uint8)
    except RuntimeError as error:
        raise ValueError(
            f"tables of {num_rows:,} rows of {stride} bytes need {num_rows * stride / 2**30:.1f} "
            f"GiB of memory, which this machine does not give; use a smaller dim, a row optimizer "
            f"with less state, or a larger min_count when preparing the data"
        ) from error
    library = native.load()
    if library is not None and records.numel():
        library.hotrows_advise_huge_pages(native.pointer(records), ctypes.c_int64(records.numel()))
    return records


def _kind(initializer: Initializer) -> tuple[str, float]:
    if isinstance(initializer, Constant):
        return "constant", initializer.value
    if isinstance(initializer, Normal):
        return "normal", initializer.std
    return "uniform", initializer.scale
