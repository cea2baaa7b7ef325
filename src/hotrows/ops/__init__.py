"""The ops of the engine, registered once with PyTorch's dispatcher as `torch.ops.hotrows.*`.

The tensor's device picks the kernel: CPU tensors go to the native core where it was built, and to
the reference everywhere else. Users never choose.
"""

from __future__ import annotations

import torch

from hotrows import native
from hotrows.ops import cpu, reference

_SCHEMAS = (
    "resolve(Tensor ids, Tensor? offsets, int batch_size, Tensor features, Tensor first_rows, "
    "Tensor num_rows, int num_columns, Tensor? routes=None) -> (Tensor, Tensor, Tensor, Tensor)",
    "unique(Tensor rows) -> (Tensor, Tensor, Tensor, Tensor)",
    "pool(Tensor records, int[] layout, Tensor slots, Tensor inverse, Tensor? bag_starts, "
    "Tensor? weights) -> Tensor",
    "sum_gradients(Tensor grad, Tensor order, Tensor starts, Tensor? bags, Tensor? weights) "
    "-> Tensor",
    "update(Tensor(a!) records, int[] layout, Tensor slots, Tensor rows, Tensor order, "
    "Tensor starts, Tensor? bags, Tensor? weights, Tensor grad, str kind, Tensor hyper, "
    "Tensor first_rows, Tensor pieces, Tensor? decay=None, Tensor? mean_squares=None) -> ()",
    "initialize(Tensor(a!) records, int[] layout, Tensor rows, Tensor first_rows, Tensor pieces, "
    "str kind, float scale, float[] state) -> ()",
    "copy_rows(Tensor source, Tensor? source_rows, Tensor(a!) target, Tensor? target_rows) -> ()",
)

_library = torch.library.Library("hotrows", "DEF")
for _schema in _SCHEMAS:
    _name = _schema.split("(")[0]
    _library.define(_schema)
    _library.impl(_name, getattr(reference, _name), "CompositeExplicitAutograd")
    if native.load() is not None:
        _library.impl(_name, getattr(cpu, _name), "CPU")

resolve = torch.ops.hotrows.resolve
unique = torch.ops.hotrows.unique
pool = torch.ops.hotrows.pool
sum_gradients = torch.ops.hotrows.sum_gradients
update = torch.ops.hotrows.update
initialize = torch.ops.hotrows.initialize
copy_rows = torch.ops.hotrows.copy_rows
