"""Vectors: lists of numbers of one length, such as embeddings, side by side in `vectors`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hotrows.data.columns.number import MISSING
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad
from hotrows.data.rows import Arrays, RawRows, Section
from hotrows.schema import Schema, column_of


class VectorColumns:
    """The vectors of a schema: float32, or float16 where all say so; a missing one is zeros."""

    numeric: tuple[str, ...] = ()

    def __init__(self, schema: Schema) -> None:
        self.features, self._first = schema.vectors, len(schema.dense)
        is_half = {feature.stored for feature in self.features} == {"float16"}
        self._dtype = np.dtype("float16" if is_half else "float32")
        self.width = sum(feature.width or 0 for feature in self.features)
        self.sections = (Section("vectors", self._dtype, self.width),) if self.features else ()

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad | None]:
        blocks, problems = [], []
        for feature in self.features:
            block, bad = np.full((cells.num_rows, feature.width or 0), np.nan, np.float32), None
            if cells.has(column := column_of(feature)):
                block, bad = cells.vectors(column, feature)
            blocks.append(block)
            problems.append(bad)
        values["vectors"] = blocks
        return problems

    def encode(self, raw: RawRows, arrays: Arrays, threads: int) -> None:
        if not self.features:
            return
        blocks = raw.values["vectors"]
        absent = np.stack([np.isnan(block[:, 0]) for block in blocks], 1)
        arrays[MISSING] = np.concatenate([arrays[MISSING], absent], 1)
        joined = np.concatenate(blocks, 1, dtype=self._dtype, casting="same_kind")
        arrays["vectors"] = np.nan_to_num(joined, copy=False)
