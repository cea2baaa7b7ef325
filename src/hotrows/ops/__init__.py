"""The ops of the engine, registered once with PyTorch's dispatcher as `torch.ops.hotrows.*`.

The tensor's device picks the kernel: CPU tensors go to the native core where it was built, CUDA
tensors to Triton where it is installed, and the rest to the reference. Users never choose.
"""

from __future__ import annotations

import torch

from hotrows.ops import cpu, cuda, fake, reference

_SCHEMAS = (
    "resolve(Tensor ids, Tensor? offsets, int batch_size, Tensor features, Tensor first_rows, "
    "Tensor num_rows, int num_columns, Tensor? routes=None) -> (Tensor, Tensor, Tensor, Tensor)",
    "unique(Tensor rows) -> (Tensor, Tensor, Tensor, Tensor)",
    "unique_padded(Tensor rows, int? num_rows=None) -> (Tensor, Tensor, Tensor, Tensor)",
    "find_slots(Tensor held_rows, Tensor held_slots, Tensor rows) -> Tensor",
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
find_slots = torch.ops.hotrows.find_slots
pool = torch.ops.hotrows.pool
sum_gradients = torch.ops.hotrows.sum_gradients
update = torch.ops.hotrows.update
initialize = torch.ops.hotrows.initialize
copy_rows = torch.ops.hotrows.copy_rows
