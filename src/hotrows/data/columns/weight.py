"""The weight of a sample in the loss and in metrics: a number of at least 0, in `weights`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad
from hotrows.data.rows import Arrays, RawRows, Section
from hotrows.schema import Schema


class WeightColumn:
    """The column of weights, if a schema has one."""

    def __init__(self, schema: Schema) -> None:
        self.numeric = (schema.weight,) if schema.weight else ()
        self.sections = (Section("weights", np.dtype(np.float32)),) if schema.weight else ()

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad | None]:
        for column in filter(cells.has, self.numeric):
            numbers, _ = cells.number(column)
            with np.errstate(over="ignore"):  # values behind a bad one are not checked
                values["weights"] = numbers.astype(np.float32)
            if len(wrong := np.flatnonzero(~(numbers >= 0))):
                yield Bad(int(wrong[0]), column, "weight of at least 0")

    def encode(self, raw: RawRows, arrays: Arrays, threads: int) -> None:
        if (weights := raw.get("weights")) is not None:
            arrays["weights"] = weights
