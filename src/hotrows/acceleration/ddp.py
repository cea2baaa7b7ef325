"""Tables under `DistributedDataParallel`, which averages the gradients of the dense part.

Every rank holds all tables, and DistributedDataParallel ignores them. Where it averages gradients, at the
end of a backward pass, those of rows are gathered from all ranks and averaged, too. So what follows, such
as clipping or `GradScaler`, sees equal gradients on every rank, and all make equal steps:

    rank 0   rows 2 5 7     gradients        all_gather        rows 2 3 5 7 9
    rank 1   rows 3 5 9     gradients     ---------------->    sums / 2, in the order of ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel.distributed import _find_tensors

from hotrows.acceleration.gradient import RowGradient, gradient_of_rows, summed_by_row
from hotrows.acceleration.parameter import NO_TORCH_FUNCTION
from hotrows.acceleration.table import RowTable

TableGradients = list[tuple[RowTable, Tensor | None]]


class Averaging:
    """Averages gradients of tables over the ranks of a `DistributedDataParallel` that calls the model."""

    def __init__(self, tables: Sequence[RowTable]) -> None:
        self._tables = list(tables)
        self._ranks: dist.ProcessGroup | None = None  # whose tables are equal
        self._backward = -1  # number of the latest backward pass that averages

    def begin(self) -> bool:
        """Makes tables equal before the first forward; returns whether there are ranks."""
        parallel = nn.parallel.DistributedDataParallel._get_active_ddp_module()
        join = getattr(parallel, "_join_config", None)  # of ranks with unequal numbers of batches
        if join is not None and join.enable and not join.throw_on_early_termination:
            raise RuntimeError(
                "tables of hotrows.accelerate are averaged over all ranks, and one that has run out of "
                "batches takes no part in it: give every rank as many batches, or let all end with the "
                "first one, model.join(throw_on_early_termination=True)"
            )
        if parallel is not None and self._ranks is not parallel.process_group:
            self._ranks = parallel.process_group
            share_weights(self._tables, self._ranks)
        return parallel is not None

    def follow(self, output: Any) -> None:
        """Averages at the end of the backward pass of what a forward has returned; not in `no_sync`."""
        parallel = nn.parallel.DistributedDataParallel._get_active_ddp_module()
        assert parallel is not None
        if torch.is_grad_enabled() and parallel.require_backward_grad_sync:
            for tensor in _find_tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._in_backward)

    def _in_backward(self, grad: Tensor) -> None:
        if self._backward != (number := torch._C._current_graph_task_id()):
            self._backward = number
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        assert self._ranks is not None
        with NO_TORCH_FUNCTION(), torch.no_grad():
            gradients = [(table, table.weight.grad) for table in self._tables]
            for table, mean in averaged(gradients, self._ranks):
                table.weight.grad = mean


def share_weights(tables: list[RowTable], group: dist.ProcessGroup) -> None:
    """Copies the tables of the first rank to all ranks, as DistributedDataParallel does at its start."""
    for table in tables:
        values = table.caught_up()
        shared = values.to(_place(values, group))
        dist.broadcast(shared, group_src=0, group=group)
        table.write_weights(shared.to(values.device))


def averaged(gradients: TableGradients, group: dist.ProcessGroup) -> TableGradients:
    """Returns the tables with the mean of their gradients over all ranks; collective.

    A table without a gradient on one rank counts as zeros there, as long as another has one.
    """
    num_ranks = dist.get_world_size(group)
    facts = torch.zeros(len(gradients), 3, dtype=torch.float64)  # has one, is dense, decay
    place = _place(gradients[0][0].values, group) if gradients else facts.device
    for t, (_, gradient) in enumerate(gradients):
        if isinstance(gradient, RowGradient):
            facts[t] = torch.tensor([1.0, float(gradient.dense is not None), gradient.decay])
        elif gradient is not None:
            facts[t, :2] = 1.0
    facts = facts.to(place)
    dist.all_reduce(facts, group=group)
    means: TableGradients = []
    for (table, gradient), (has, dense, decay) in zip(gradients, facts.cpu().tolist(), strict=True):
        if not has:
            means.append((table, None))
        elif dense:
            means.append((table, _dense(table, gradient, num_ranks, group)))
        else:
            mine = gradient if isinstance(gradient, RowGradient) else RowGradient(table)
            rows, sums = mine.coalesced()
            rows, sums = _gathered(rows.to(place), sums.to(place), group)
            rows, sums = rows.to(table.values.device), sums.to(table.values.device)
            means.append((table, gradient_of_rows(table, rows, sums / num_ranks, decay / num_ranks)))
    return means


def _dense(table: RowTable, gradient: Tensor | None, num_ranks: int, group: dist.ProcessGroup) -> Tensor:
    if isinstance(gradient, RowGradient):
        gradient = gradient.to_dense()
    total = torch.zeros_like(table.values) if gradient is None else gradient
    total = total.to(_place(table.values, group), copy=True)
    dist.all_reduce(total, group=group)
    return (total / num_ranks).to(table.values.device)


def _place(values: Tensor, group: dist.ProcessGroup) -> torch.device:
    """Where ranks exchange tensors: beside the tables if the group can, else on the host."""
    on_device = values.is_cuda and "nccl" in str(dist.get_backend_config(group))
    return values.device if on_device else torch.device("cpu")


def _gathered(rows: Tensor, sums: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Distinct rows [U] of all ranks, and the sums [U, D] of their gradients, in the order of ranks."""
    num_ranks = dist.get_world_size(group)
    sizes = [rows.new_zeros(1) for _ in range(num_ranks)]
    dist.all_gather(sizes, rows.new_tensor([rows.numel()]), group=group)
    most = max(int(size) for size in sizes)
    rows, sums = (
        torch.cat([part[: int(size)] for part, size in zip(parts, sizes, strict=True)])
        for parts in (_gather(rows, most, group), _gather(sums, most, group))
    )
    return summed_by_row(rows, sums)


def _gather(tensor: Tensor, size: int, group: dist.ProcessGroup) -> list[Tensor]:
    padded = tensor.new_zeros(size, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    gathered = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, padded, group=group)
    return gathered
