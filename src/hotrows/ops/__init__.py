"""The ops of the engine, registered once with PyTorch's dispatcher as `torch.ops.hotrows.*`.

The tensor's device picks the kernel: CPU tensors go to the native core where it was built, CUDA
tensors to Triton where it is installed, and all other tensors to the reference. Users never choose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.ops.plan import PackPlan
from hotrows.ops.rows import cpu, cuda, fake, reference
from hotrows.runtime.shapes import Float, Float32, Int64, UInt8

_SCHEMAS = (
    "resolve(Tensor ids, Tensor? offsets, int batch_size, Tensor features, Tensor first_rows, "
    "Tensor num_rows, int num_columns, Tensor? routes=None) -> (Tensor, Tensor, Tensor, Tensor)",
    "unique(Tensor rows) -> (Tensor, Tensor, Tensor, Tensor)",
    "unique_padded(Tensor rows, int? num_rows=None) -> (Tensor, Tensor, Tensor, Tensor)",
    "pool(Tensor records, int[] layout, Tensor slots, Tensor inverse, Tensor? bag_starts, "
    "Tensor? weights, bool narrow=False) -> Tensor",
    "sum_gradients(Tensor grad, Tensor order, Tensor starts, Tensor? bags, Tensor? weights) -> Tensor",
    "update(Tensor(a!) records, int[] layout, Tensor slots, Tensor rows, Tensor order, "
    "Tensor starts, Tensor? bags, Tensor? weights, Tensor grad, str kind, Tensor hyper, "
    "Tensor first_rows, Tensor pieces, Tensor? decay=None, Tensor? mean_squares=None) -> ()",
    "initialize(Tensor(a!) records, int[] layout, Tensor rows, Tensor first_rows, Tensor pieces, "
    "str kind, float scale, float[] state) -> ()",
    "copy_rows(Tensor source, Tensor? source_rows, Tensor(a!) target, Tensor? target_rows) -> ()",
    "feed_rows(Tensor(a!) coming, Tensor rows, int batch) -> ()",
    "touch_slots(Tensor slot_of, Tensor(a!) last_use, Tensor rows, int batch) -> ()",
    "rank_slots(Tensor row_of, Tensor last_use, Tensor coming, Tensor(a!) ranking, "
    "Tensor(b!) progress, int batch, int in_flight) -> ()",
    "take_slots(Tensor(a!) slot_of, Tensor(b!) row_of, Tensor(c!) last_use, Tensor coming, "
    "Tensor ranking, Tensor(d!) progress, Tensor rows, int batch, int in_flight, Tensor(e!) slots, "
    "Tensor(f!) moves, Tensor(g!) counts) -> ()",
)

_library = torch.library.Library("hotrows", "DEF")
_on_cpu = cpu.kernels()
_on_cuda = cuda.kernels()
for _schema in _SCHEMAS:
    _name = _schema.split("(")[0]
    _library.define(_schema)
    _library.impl(_name, getattr(reference, _name), "CompositeExplicitAutograd")
    if _name in _on_cpu:
        _library.impl(_name, _on_cpu[_name], "CPU")
    if _name in _on_cuda:
        _library.impl(_name, _on_cuda[_name], "CUDA")
    torch.library.register_fake(f"hotrows::{_name}", getattr(fake, _name), lib=_library)

resolve = torch.ops.hotrows.resolve
unique = torch.ops.hotrows.unique
unique_padded = torch.ops.hotrows.unique_padded
pool = torch.ops.hotrows.pool
sum_gradients = torch.ops.hotrows.sum_gradients
initialize = torch.ops.hotrows.initialize
copy_rows = torch.ops.hotrows.copy_rows
feed_rows = torch.ops.hotrows.feed_rows
touch_slots = torch.ops.hotrows.touch_slots
rank_slots = torch.ops.hotrows.rank_slots
take_slots = torch.ops.hotrows.take_slots
collect = cpu.collect  # of rows in host memory
unique_of_columns = cpu.unique_of_columns  # of ids in host memory


@dataclass(frozen=True)
class Records:
    """Stored rows, and where their parts are (`RecordLayout.as_ints`)."""

    values: UInt8[Tensor, "C _"]
    layout: list[int]


@dataclass(frozen=True)
class RowRule:
    """A row optimizer's step.

    kind: `RowOptimizer.kind`; hyper: [1 + H] float64, the step, then `optim.hyper_parameters`: in memory,
        as a captured CUDA graph then reads those of the step that it replays.
    decay: what weight_decay is multiplied with; None: 1.
    mean_squares: of the gradient (decay included) over all columns of a row, where the records have
        only some of them; only row-wise optimizers read it.
    """

    kind: str
    hyper: Float[Tensor, "_"]
    decay: Float32[Tensor, "U"] | None = None
    mean_squares: Float32[Tensor, "U"] | None = None


@dataclass(frozen=True)
class RowKeys:
    """The tables that a store is made of, as in `initialize`; they key stochastic rounding."""

    first_rows: Int64[Tensor, "{len(pieces)}+1"]
    pieces: Int64[Tensor, "K 5"]


def update(
    records: Records,
    pack: PackPlan,
    grad: Float[Tensor, "M D"],
    rule: RowRule,
    keys: RowKeys,
    slots: Int64[Tensor, "{pack.num_rows}"] | None = None,
) -> None:
    """Sums the gradients of equal rows, then applies the row optimizer to their records, in place.

    grad: of the vectors that `pack` looks up; rows of -1 are padding and skipped.
    slots: the places of its rows in `records`; None: `pack.slots`.
    """
    torch.ops.hotrows.update(
        records.values, records.layout, pack.slots if slots is None else slots, pack.rows,
        pack.order, pack.starts, pack.bags, pack.weights,
        grad, rule.kind, rule.hyper, keys.first_rows, keys.pieces, rule.decay, rule.mean_squares,
    )  # fmt: skip
