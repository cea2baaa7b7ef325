"""Plain PyTorch on several ranks, in the style of the DLRM repository: model parallel tables.

Tables are dealt over the ranks. Each rank looks its tables up for the whole global batch, whose ids it
has from the data, as there; an all-to-all hands every rank the vectors of its own samples while the
bottom layers run. Dense layers are data parallel under DistributedDataParallel.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.arms import rank_arm
from benchmarks.arms.plain_torch import OPTIMIZERS, Bags
from benchmarks.arms.torch_models import Dlrm
from benchmarks.arms.torch_step import training_step
from benchmarks.workload import DIM, LEARNING_RATE, Batch, batches

Looked = tuple[Tensor, Tensor | None]  # vectors [B/P, F, D], sums of first-order weights [B/P]


def main() -> None:
    rank_arm.report(rank_arm.parse(), make_step, "torch")


def make_step(args: Namespace) -> rank_arm.Step:
    start_gloo(args)
    rank = dist.get_rank()
    owned = deal(args.workload.num_rows, args.ranks)
    mine = [args.workload.num_rows[field] for field in owned[rank]]
    data = batches(args.workload, args.batch_size)
    ids = [torch.from_numpy(batch.ids[owned[rank]]) for batch in data]
    tables = Bags(mine, DIM, args.batch_size)
    first = Bags(mine, 1, args.batch_size) if args.model == "deepfm" else None
    parameters = [*tables.parameters(), *(first.parameters() if first else ())]
    fields = [len(of_rank) for of_rank in owned]

    def lookup(k: int) -> tuple[Callable[[], Looked], None]:
        columns = ids[k % len(ids)]
        looked_up = tables(columns).flatten(1)  # [B, F of this rank * D]
        if first is not None:
            looked_up = torch.cat([looked_up, first(columns).sum(1)], 1)
        return exchange(looked_up, fields, first is not None), None

    return training_step(
        args,
        shares(data, args),
        lookup,
        (OPTIMIZERS[args.optimizer](parameters, LEARNING_RATE),),
        wrap=lambda model: DistributedDataParallel(Late(model), broadcast_buffers=False),
    )


def start_gloo(args: Namespace) -> None:
    torch.set_num_threads(args.threads // args.ranks)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=rank_arm.COLLECTIVE_TIMEOUT))


def shares(data: list[Batch], args: Namespace) -> list[Batch]:
    """This rank's samples of every batch."""
    part = rank_arm.share(args.batch_size, dist.get_rank(), args.ranks)
    return [
        Batch(batch.dense[part], np.ascontiguousarray(batch.ids[:, part]), batch.labels[part])
        for batch in data
    ]


def deal(num_rows: Sequence[int], num_ranks: int) -> list[list[int]]:
    """The fields of each rank: as many each, the largest first to who has the fewest rows.

    num_rows = [5, 1, 4, 2], two ranks  ->  [[0, 1], [2, 3]]
    """
    most = -(-len(num_rows) // num_ranks)
    owned: list[list[int]] = [[] for _ in range(num_ranks)]
    rows = [0] * num_ranks
    for field in sorted(range(len(num_rows)), key=lambda field: -num_rows[field]):
        open_ones = [rank for rank in range(num_ranks) if len(owned[rank]) < most]
        rank = min(open_ones, key=lambda rank: (rows[rank], rank))
        owned[rank].append(field)
        rows[rank] += num_rows[field]
    return [sorted(fields) for fields in owned]


class Late(nn.Module):
    """The dense model on vectors that may still be on their way: the bottom layers do not wait."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, dense: Tensor, arrive: Callable[[], Looked], first: None) -> Tensor:
        if isinstance(self.model, Dlrm):
            bottom = self.model.bottom(dense)
            return self.model.interact(bottom, arrive()[0])
        return self.model(dense, *arrive())


def exchange(looked_up: Tensor, fields: list[int], has_first: bool) -> Callable[[], Looked]:
    """Sends what was looked up to the ranks of the samples; the function returned waits for it.

    looked_up: [B, F of this rank * D, or one more]. fields: how many each rank has.
    """
    widths = [num * DIM + has_first for num in fields]
    pending = Pending(looked_up.shape, [len(looked_up) // len(fields) * width for width in widths])
    ticket = Send.apply(looked_up, pending)

    def arrive() -> Looked:
        received = Receive.apply(ticket, pending).split(pending.sizes)
        parts = [part.view(-1, width) for part, width in zip(received, widths, strict=True)]
        if not has_first:
            return torch.cat(parts, 1).view(len(parts[0]), -1, DIM), None
        vectors = torch.cat([part[:, :-1] for part in parts], 1)
        return vectors.view(len(vectors), -1, DIM), sum(part[:, -1] for part in parts)

    return arrive


@dataclass
class Pending:
    """An all-to-all on its way: of vectors, later of their gradients."""

    shape: torch.Size  # of what this rank sends
    sizes: list[int]  # elements that come from each rank
    sent_sizes: list[int] | None = None  # elements that go to each rank; None: as many to each
    work: dist.Work | None = None
    sent: Tensor | None = None  # kept until it is
    out: Tensor | None = None


class Send(torch.autograd.Function):
    """Starts the all-to-all; backward waits for the gradients."""

    @staticmethod
    def forward(ctx, looked_up: Tensor, pending: Pending) -> Tensor:
        ctx.pending = pending
        pending.sent, pending.out = looked_up, looked_up.new_empty(sum(pending.sizes))
        pending.work = dist.all_to_all_single(
            pending.out, looked_up.flatten(), pending.sizes, pending.sent_sizes, async_op=True
        )
        return looked_up.new_empty(0)

    @staticmethod
    def backward(ctx, _: Tensor) -> tuple[Tensor, None]:
        pending = ctx.pending
        pending.work.wait()
        # Each rank's loss is a mean over its samples: that of all is the mean of theirs.
        return pending.out.div_(len(pending.sizes)).view(pending.shape), None


class Receive(torch.autograd.Function):
    """Waits for the vectors; backward starts the all-to-all of their gradients."""

    @staticmethod
    def forward(ctx, ticket: Tensor, pending: Pending) -> Tensor:
        ctx.pending = pending
        pending.work.wait()
        return pending.out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        pending = ctx.pending
        pending.sent, pending.out = grad.contiguous(), grad.new_empty(pending.shape.numel())
        pending.work = dist.all_to_all_single(
            pending.out, pending.sent, pending.sent_sizes, pending.sizes, async_op=True
        )
        return grad.new_empty(0), None


if __name__ == "__main__":
    main()
