"""Rows of a table in a file that is mapped into memory: as they are, or in fewer bits, row by row.

    float32   [R, D]                       as trained; bfloat16 becomes float32, exactly
    float16   [R, D]                       rounded to nearest
    int8      [R, 8 + D] uint8             step and least weight of the row, float32; then a byte a weight
    int4      [R, 8 + ceil(D / 2)] uint8   the same; then four bits a weight, the first in the low ones

A weight is least + step * code, step = (greatest - least) / levels: within half a step of the trained
one, and equal to one that was trained in no more bits. The files are NumPy's own (.npy). A table that
fewer bits would not make smaller stays float32, such as the one weight a row of a linear part.
"""

from __future__ import annotations

import copy
import mmap
from pathlib import Path

import numpy as np

from hotrows.runtime import native
from hotrows.serving.overlay import Overlay

DTYPES = ("float32", "float16", "int8", "int4")
_LEVELS = {"int8": 255, "int4": 15}
_SCALE = 8  # bytes of step and least weight
_FLOAT16_MAX = 65504.0


def smallest_dtype(dtype: str, dim: int) -> str:
    """The dtype to store rows of `dim` weights in: `dtype`, or float32 where that is no larger."""
    return dtype if _width(dtype, dim) < 4 * dim else "float32"


def stored_shape(dtype: str, rows: int, dim: int) -> tuple[np.dtype, tuple[int, int]]:
    """The dtype and shape of the array that holds a table."""
    if dtype in _LEVELS:
        return np.dtype(np.uint8), (rows, _width(dtype, dim))
    return np.dtype(dtype), (rows, dim)


def encode(weights: np.ndarray, dtype: str) -> np.ndarray:
    """[n, D] float32 weights as they are stored."""
    if dtype not in _LEVELS:
        if dtype == "float16" and np.abs(weights).max(initial=0.0) > _FLOAT16_MAX:
            raise ValueError("a weight is beyond float16, whose largest is 65,504; store float32 or int8")
        return weights.astype(dtype)
    levels = _LEVELS[dtype]
    least = weights.min(1, keepdims=True, initial=np.inf)
    step = _steps(weights, weights.max(1, keepdims=True, initial=-np.inf) - least, levels)
    codes = np.rint((weights - least) / np.where(step > 0, step, 1)).clip(0, levels).astype(np.uint8)
    scale = np.concatenate([step, least], 1).astype("<f4").view(np.uint8)  # [n, 8]
    return np.concatenate([scale, _packed(codes) if dtype == "int4" else codes], 1)


def decode(stored: np.ndarray, dtype: str, dim: int) -> np.ndarray:
    """[n, D] float32 weights of stored rows."""
    if dtype not in _LEVELS:
        return stored.astype(np.float32, copy=False)
    scale = np.ascontiguousarray(stored[:, :_SCALE]).view("<f4")  # [n, 2]
    codes = stored[:, _SCALE:]
    if dtype == "int4":
        codes = np.stack([codes & 15, codes >> 4], 2).reshape(len(codes), 2 * codes.shape[1])[:, :dim]
    return codes.astype(np.float32) * scale[:, :1] + scale[:, 1:]


class TableRows:
    """The rows of a table, mapped from its file: nothing is read until an id asks for it.

    path: of a file that `encode` filled; dtype, rows, dim: of the table, which the file must fit.
    most_rows: that later versions may have (default: rows). at_random: read the pages that are asked for
    alone, and none ahead: for tables that are larger than memory.
    """

    def __init__(
        self,
        path: Path,
        dtype: str,
        rows: int,
        dim: int,
        most_rows: int | None = None,
        at_random: bool = False,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"{path}: a table is one of {', '.join(DTYPES)}, not {dtype!r}")
        try:
            mapped = np.lib.format.open_memmap(path, mode="r")
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is damaged: {error}; export again") from None
        self._at_random = at_random and hasattr(mmap, "MADV_RANDOM")
        if self._at_random:
            mapped._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
        stored = mapped.view(np.ndarray)
        if (stored.dtype, stored.shape) != stored_shape(dtype, rows, dim):
            raise ValueError(
                f"{path} is damaged: expected {stored_shape(dtype, rows, dim)}, found "
                f"{(stored.dtype, stored.shape)}; export again"
            )
        self.path, self.dtype, self.rows, self.dim = path, dtype, rows, dim
        self._stored, self._number = stored, 0
        self._most_rows = most_rows or rows
        self._overlay: Overlay | None = None

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """[n] ids -> [n, D] float32."""
        return decode(self.stored(ids), self.dtype, self.dim)

    def read_ahead(self, ids: np.ndarray) -> None:
        """Begins to read the pages of rows that are needed soon, all at once, where tables are larger
        than memory; one by one they would be waited for."""
        if self._at_random:
            width = self._stored.shape[1] * self._stored.itemsize
            native.call("read_ahead", self._stored, width, len(self._stored), ids, len(ids))

    def stored(self, ids: np.ndarray) -> np.ndarray:
        """[n] ids -> [n, _] rows as they are stored."""
        if self._overlay is None:
            return self._stored.take(ids, 0)
        return self._overlay.read(ids, self._number, self._bytes).view(self._stored.dtype)

    def _bytes(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the file; behind its end, of rows that nothing has read yet, zeros."""
        rows = self._stored.take(ids, 0, mode="clip").view(np.uint8)
        if self.rows > len(self._stored):
            rows[ids >= len(self._stored)] = 0
        return rows

    # ---- later versions of the table

    def changed(self, ids: np.ndarray, rows: np.ndarray, number: int) -> TableRows:
        """The table with other rows [n, _], as stored, as of version `number`; this one stays as it is.

        Of one table the versions are made one after the other. ValueError where they do not fit it.
        """
        fits = (rows.dtype, rows.shape[1:]) == (self._stored.dtype, self._stored.shape[1:])
        if not fits or (len(ids) and not 0 <= ids[0] <= ids[-1] < self._most_rows):
            raise ValueError(
                f"expected rows of {self._most_rows:,} {self._stored.shape[1:]} {self._stored.dtype}, "
                f"found {rows.shape[1:]} {rows.dtype} of ids up to {ids[-1] if len(ids) else 0:,}"
            )
        overlay = self._overlay
        if overlay is None:
            width = self._stored.shape[1] * self._stored.itemsize
            overlay = Overlay(self.rows, width, 1024 + 2 * len(ids))
        by_byte = np.ascontiguousarray(rows).view(np.uint8)
        later = self._with(self._stored, self.path, overlay.write(ids, by_byte, number), number)
        later.rows = max(self.rows, 1 + int(ids.max(initial=0)))
        return later

    def on(self, base: TableRows, number: int) -> TableRows:
        """This table with its unchanged rows read from `base`, the table as of version `number`: only
        rows that changed later take memory."""
        overlay = self._overlay and self._overlay.since(number, self._number, max(base.rows, self.rows))
        return self._with(base._stored, base.path, overlay, self._number)

    def changed_ids(self) -> np.ndarray:
        """The ids of rows that are in memory, ascending."""
        if self._overlay is None:
            return np.zeros(0, np.int64)
        return self._overlay.changed_ids(self._number)

    @property
    def overlay_bytes(self) -> int:
        """Bytes of memory for rows that changed."""
        return 0 if self._overlay is None else self._overlay.num_bytes

    def _with(self, stored: np.ndarray, path: Path, overlay: Overlay | None, number: int) -> TableRows:
        table = copy.copy(self)
        table._stored, table.path, table._overlay, table._number = stored, path, overlay, number
        return table


def _steps(weights: np.ndarray, span: np.ndarray, levels: int) -> np.ndarray:
    """[n, 1]: the step of each row, its span over the levels; the next power of two where the row is then
    exact, as rows are that were trained as integers."""
    step = span / np.float32(levels)
    fraction, exponent = np.frexp(step)
    power = np.ldexp(np.float32(1), exponent - (fraction == 0.5))
    is_exact = (np.rint(weights / power) * power == weights).all(1, keepdims=True)
    return np.where(is_exact & (step > 0), power, step)


def _packed(codes: np.ndarray) -> np.ndarray:
    """[n, D] codes below 16 as [n, ceil(D / 2)] bytes."""
    if codes.shape[1] % 2:
        codes = np.concatenate([codes, np.zeros((len(codes), 1), np.uint8)], 1)
    return codes[:, ::2] | codes[:, 1::2] << 4


def _width(dtype: str, dim: int) -> int:
    """Bytes of a stored row."""
    return {"float32": 4 * dim, "float16": 2 * dim, "int8": _SCALE + dim}.get(
        dtype, _SCALE + -(-dim // 2)
    )
