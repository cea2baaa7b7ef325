"""A stored row: its weights, its aligned float32 optimizer state, an optional int32 step.

    byte 0         state_offset          step_offset     stride
    | D weights    | S float32 of state  | int32 step    |

Weights may be bfloat16 or float16, or integers of 8 or 4 bits: the float32 before the state is then the
scale of the row, and a weight is scale * integer. Of 4 bits two are a byte, the first in the low ones.
State is always float32 and starts at a multiple of four bytes. Rows are fetched, cached, evicted and
saved together with their state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from hotrows.table import BITS, Table, is_integer

MAX_KERNEL_DIM = 1024
"""The widest row that the GPU's `update` holds whole: the mean over a row needs all of it. Wider ones are
summed by a kernel and updated by the reference, which reads numbers on the host."""
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "int4": torch.uint8,
}
"""The dtype in which weights lie in memory: int4 in pairs."""


@dataclass(frozen=True)
class RecordLayout:
    """Byte offsets of the parts of a record.

    dim: weights per row (D); dtype: of weights; state_width: float32 numbers of state (S);
    has_step: whether an int32 step of the row comes last.
    """

    FIELDS: ClassVar[list[str]] = ["dim", "bits", "state_offset", "state_width", "step_offset", "stride"]

    dim: int
    dtype: str = "float32"
    state_width: int = 0
    has_step: bool = False

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return BITS[self.dtype]

    @property
    def has_scale(self) -> bool:
        """True if weights are integers."""
        return is_integer(self.dtype)

    @property
    def state_offset(self) -> int:
        return -(-self.dim * self.bits // 32) * 4 + 4 * self.has_scale

    @property
    def step_offset(self) -> int:
        return self.state_offset + 4 * self.state_width

    @property
    def stride(self) -> int:
        """Bytes per record, a multiple of four."""
        return self.step_offset + 4 * self.has_step

    def to_json(self) -> dict:
        return {**asdict(self), "stride": self.stride}

    def as_ints(self) -> list[int]:
        """The numbers of `FIELDS`, step_offset -1 where there is no step, and the dtype: 0 float32,
        1 bfloat16, 2 float16, 3 int8, 4 int4."""
        step_offset = self.step_offset if self.has_step else -1
        sizes = [self.dim, self.bits, self.state_offset, self.state_width, step_offset, self.stride]
        return [*sizes, list(_DTYPES).index(self.dtype)]


def layout_of(table: Table) -> RecordLayout:
    """The record of a table whose optimizer is filled in."""
    assert table.optimizer is not None
    state_width = table.optimizer.state_width(table.dim)
    return RecordLayout(table.dim, table.dtype, state_width, table.optimizer.per_row_step)


class RecordViews(NamedTuple):
    """The parts of [R, stride] bytes of records, as views: writing to them writes the records."""

    weights: Tensor  # [R, D] float32, bfloat16, float16 or int8; of int4 [R, D / 2] uint8
    state: Tensor  # [R, S] float32
    step: Tensor | None  # [R] int32
    scale: Tensor | None  # [R] float32

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return 4 if self.weights.dtype == torch.uint8 else 8 * self.weights.itemsize

    def read(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """The weights of rows, [n, D]: as they are stored, or those that integers stand for."""
        weights = self.weights[rows]
        if self.bits == 4:
            pairs = weights.view(torch.int8)
            weights = torch.stack([pairs << 4 >> 4, pairs >> 4], 2).flatten(1)
        return weights if self.scale is None else weights * self.scale[rows, None]

    def write(self, weights: Tensor, rows: Tensor | slice = slice(None)) -> None:
        """Stores [n, D] weights, rounded to the nearest."""
        if self.scale is not None:
            scale = scale_of(weights.float(), self.bits)
            weights, self.scale[rows] = integers(weights.float(), scale).round(), scale
        self.put(weights, rows)

    def put(self, weights: Tensor, rows: Tensor | slice = slice(None)) -> None:
        """Stores [n, D] weights that are rounded, integers in units of the scale."""
        if self.bits == 4:
            codes = weights.to(torch.int8).view(torch.uint8)
            weights = codes[:, ::2] & 15 | codes[:, 1::2] << 4
        self.weights[rows] = weights.to(self.weights.dtype)


def scale_of(
    weights: Tensor, bits: int, before: Tensor | None = None, units: Tensor | None = None
) -> Tensor:
    """The scales [n] of rows [n, D] in float32: powers of two, the least with |weight| <= most * scale.

    The most that an integer is are 127 of 8 bits, 7 of 4. A row keeps its scale `before`, [n], while its
    largest weight is from a quarter of 127 to 127 of it: so few updates round weights that they do not
    move. Of 4 bits it keeps it from half of 7 on, and beyond 7 while no weight is rounded up to more by
    its part `units` of [0, 1), [n, D]: so a small step seldom doubles it. Scales are from 2^-100 to
    2^121; NaN, and the row with it, where a weight is no number or beyond.
    """
    most, digits = 2 ** (bits - 1) - 1, bits - 2  # most is nearly 2 * 2^digits
    largest = weights.abs().amax(1)  # exponents of float32 begin at bit 23
    exponent = (((largest.view(torch.int32) + (1 << 23 - digits) - 1) >> 23) - digits).clamp(min=27)
    scale = (exponent << 23).view(torch.float32)
    if before is not None:
        fits = largest <= most * before
        if bits == 4 and units is not None:
            fits = (weights.abs() - most * before[:, None] <= units * before[:, None]).all(1)
        scale = torch.where(fits & (bits // 2 * largest >= most * before), before, scale)
    return torch.where(largest <= most * 2.0**121, scale, torch.nan)


def integers(weights: Tensor, scale: Tensor) -> Tensor:
    """[n, D]: the weights of rows in units of their scale, to be rounded; 0 where a scale is NaN."""
    return torch.where(scale.isfinite()[:, None], weights / scale[:, None], 0)


def dtype_of(layout: list[int]) -> torch.dtype:
    """The dtype of the weights."""
    return tuple(_DTYPES.values())[layout[-1]]


def views(records: Tensor, layout: list[int]) -> RecordViews:
    """Splits [R, stride] uint8 records into their parts, without a copy."""
    dim, bits, state_offset, state_width, step_offset, *_ = layout
    dtype, numbers = dtype_of(layout), records.view(torch.float32)
    first = state_offset // 4
    state = numbers[:, first : first + state_width]
    step = records.view(torch.int32)[:, step_offset // 4] if step_offset >= 0 else None
    scale = None if dtype.is_floating_point else numbers[:, first - 1]
    width = dim * bits // (8 * dtype.itemsize)
    return RecordViews(records.view(dtype)[:, :width], state, step, scale)


@dataclass(frozen=True)
class TableSlice:
    """Row first_row + k of the store is id first_id + k * id_step of the table.

    table: its place in the pack; num_rows: number of rows (0: the rank has none of its ids).
    shared: every rank holds these rows, with equal values.
    """

    table: int
    first_row: int
    num_rows: int
    first_id: int = 0
    id_step: int = 1
    shared: bool = False

    @property
    def ids(self) -> range:
        return range(self.first_id, self.first_id + self.num_rows * self.id_step, self.id_step)

    def rows_of(self, ids: Tensor) -> Tensor:
        """The rows of those of the ids, [n] int64, that are in the slice."""
        distance = ids - self.first_id
        row = distance // self.id_step
        is_in = (distance >= 0) & (distance % self.id_step == 0) & (row < self.num_rows)
        return row[is_in] + self.first_row


def below(ids: range, end: int) -> range:
    """Cuts ascending ids off before `end`.

    >>> below(range(3, 20, 4), 12)
    range(3, 12, 4)
    """
    return range(ids.start, min(ids.stop, end), ids.step)


@dataclass(frozen=True)
class RankShard:
    """The part of a pack that one rank holds, in one store.

    tables: of the pack; slices: parts of them, end to end; columns: the first column that the rank
    holds of every row, and the end; rank, num_ranks: the rank among all.
    """

    tables: tuple[Table, ...]
    slices: tuple[TableSlice, ...]
    columns: tuple[int, int]
    rank: int = 0
    num_ranks: int = 1

    @property
    def rows(self) -> int:
        """Number of rows of the store."""
        return self.slices[-1].first_row + self.slices[-1].num_rows if self.slices else 0

    @property
    def dim(self) -> int:
        return self.columns[1] - self.columns[0]

    @property
    def is_whole(self) -> bool:
        """True if the rank holds all rows and columns of all tables."""
        return self.num_ranks == 1
