"""Inputs of the kernels' tests."""

import torch

from hotrows import FTRL, SGD, Adagrad, LazyAdam, RowWiseAdagrad
from hotrows.ops.record import RecordLayout, views
from hotrows.ops.rows import reference
from hotrows.optim import initial_state

DTYPES = ("float32", "int4", "bfloat16", "int8", "float16")
DIMS = (1, 3, 17, 128, 200)
OPTIMIZERS = (
    SGD(lr=0.1),
    SGD(weight_decay=0.1),
    Adagrad(initial_accumulator=0.1),
    RowWiseAdagrad(weight_decay=0.01),
    LazyAdam(lr=0.1),
    LazyAdam(per_row_step=True),
    FTRL(l1=0.01, l2=0.1),
)
FIRST_ROWS = torch.tensor([0, 20, 60])
IDS = {
    "none": torch.empty(0, dtype=torch.int64),
    "one": torch.tensor([41]),
    "padding": torch.full((5,), -1),
    "few, some equal, some padding": torch.tensor([7, -1, 3, 7, 59, 0, -1, 7]),
    "a window and one more": torch.full((65,), 3),
    "a run from the last id of a window on": torch.tensor([3] * 63 + [5] * 9),
    "long runs side by side": torch.tensor([4, 9, 11]).repeat_interleave(torch.tensor([100, 64, 140])),
}


def hot_ids(num_ids=200):
    """[N] of 60 rows: one in most places, more than two windows of it; the rest even; padding."""
    ids = torch.randint(-1, 60, (num_ids,))
    ids[torch.randperm(num_ids)[: num_ids * 2 // 3]] = 21
    return ids


def runs_of(ids):
    """rows, order and starts of `unique_padded`."""
    rows, _, order, starts = reference.unique_padded(ids)
    return rows, order, starts


def pieces(dim):
    return torch.tensor([[key, 0, 1, 0, dim] for key in (123456789, -987654321)])


def layout_of(optimizer, dim, dtype="float32"):
    has_step = getattr(optimizer, "per_row_step", False)
    return RecordLayout(dim, dtype, optimizer.state_width(dim), has_step)


def new_records(layout, optimizer=None, rows=60):
    """[rows, stride] bytes of new rows."""
    records = torch.empty(rows, layout.stride, dtype=torch.uint8)
    state = [0.0] * layout.state_width
    if optimizer is not None:
        state = initial_state(optimizer, layout.dim)
    keys = torch.arange(rows), torch.tensor([0, rows]), torch.tensor([[42, 0, 1, 0, layout.dim]])
    reference.initialize(records, layout.as_ints(), *keys, "uniform", 0.1, state)
    return records


def parts(records, layout):
    return views(records.cpu(), layout.as_ints())


def on(device, *args):
    """The arguments with all tensors there."""
    return [arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args]


def one_ulp(x):
    """Of the largest number in float32: no sum in it is nearer, except by luck."""
    return 2**-23 * x.abs().max()
