"""Ranks: tables under `DistributedDataParallel`, which takes care of the dense part.

Every rank holds all tables. DistributedDataParallel is told to leave them alone; before each step the
rows' gradients of all ranks are gathered and averaged, so every rank makes the same step:

    rank 0   rows 2 5 7     gradients        all_gather        rows 2 3 5 7 9
    rank 1   rows 3 5 9     gradients     ---------------->    sums / 2, in the order of ranks
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hotrows import ops
from hotrows.capture.gradient import RowGradient, of_rows
from hotrows.capture.table import Table

Stepped = list[tuple[Table, Tensor | None]]


def active_group() -> dist.ProcessGroup | None:
    """The ranks of the DistributedDataParallel that calls the model just now."""
    parallel = nn.parallel.DistributedDataParallel._get_active_ddp_module()
    return None if parallel is None else parallel.process_group


def share_weights(tables: list[Table], group: dist.ProcessGroup) -> None:
    """Every rank begins with the tables of the first, as DistributedDataParallel has it."""
    for table in tables:
        values = table.caught_up()
        dist.broadcast(values, group_src=0, group=group)
        table.write_whole(values)


def averaged(stepped: Stepped, group: dist.ProcessGroup) -> Stepped:
    """The same tables with the mean of their gradients over all ranks; collective.

    A table without a gradient on one rank counts as zeros there, as long as another has one.
    """
    num_ranks = dist.get_world_size(group)
    facts = torch.zeros(len(stepped), 3, dtype=torch.float64)  # has one, is dense, decay
    for t, (_, gradient) in enumerate(stepped):
        if isinstance(gradient, RowGradient):
            facts[t] = torch.tensor([1.0, float(gradient.dense is not None), gradient.decay])
        elif gradient is not None:
            facts[t, :2] = 1.0
    dist.all_reduce(facts, group=group)
    found: Stepped = []
    for (table, gradient), (has, dense, decay) in zip(stepped, facts.tolist(), strict=True):
        if not has:
            found.append((table, None))
        elif dense:
            found.append((table, _dense(table, gradient, num_ranks, group)))
        else:
            mine = gradient if isinstance(gradient, RowGradient) else RowGradient(table)
            rows, sums = _gathered(*mine.coalesced(), group)
            found.append((table, of_rows(table, rows, sums / num_ranks, decay / num_ranks)))
    return found


def _dense(
    table: Table, gradient: Tensor | None, num_ranks: int, group: dist.ProcessGroup
) -> Tensor:
    if isinstance(gradient, RowGradient):
        gradient = gradient.to_dense()
    total = torch.zeros_like(table.values) if gradient is None else gradient.clone()
    dist.all_reduce(total, group=group)
    return total / num_ranks


def _gathered(rows: Tensor, sums: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Distinct rows of all ranks, and the sum of their gradients in the order of ranks."""
    num_ranks = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(num_ranks)]
    dist.all_gather(sizes, torch.tensor([rows.numel()]), group=group)
    most = max(int(size) for size in sizes)
    all_rows, all_sums = _gather(_padded(rows, most), group), _gather(_padded(sums, most), group)
    rows = torch.cat([of[: int(size)] for of, size in zip(all_rows, sizes, strict=True)])
    sums = torch.cat([of[: int(size)] for of, size in zip(all_sums, sizes, strict=True)])
    distinct, inverse, _, _ = ops.unique(rows)
    total = sums.new_zeros(distinct.numel(), sums.shape[1])
    return distinct, total.index_add_(0, inverse.long(), sums)


def _padded(of: Tensor, size: int) -> Tensor:
    padded = of.new_zeros(size, *of.shape[1:])
    padded[: len(of)] = of
    return padded


def _gather(of: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    found = [torch.empty_like(of) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, of, group=group)
    return found
