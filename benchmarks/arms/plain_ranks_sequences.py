"""Plain PyTorch on several ranks for DIN and DIEN: tables dealt over ranks, histories padded with care.

As `plain_ranks` has it for DLRM: a rank looks its tables up for the samples of all ranks, whose ids it
has from the data, and an all-to-all hands every rank the vectors of its own, histories without their
padding. Each rank sorts its samples by length and pads to its own longest; the dense part is data
parallel under DistributedDataParallel.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from benchmarks.arms import padded_models, rank_arm
from benchmarks.arms.malloc import keep_freed_memory
from benchmarks.arms.padded_models import Batch
from benchmarks.arms.plain_ranks import Pending, Receive, Send, deal, start_gloo
from benchmarks.samples import Samples, cut
from benchmarks.sequences import (
    ATTENTION,
    DENSE_LEARNING_RATE,
    FEATURES,
    HIDDEN,
    ROW_LEARNING_RATE,
    batches_of,
)

MODELS = ("din", "dien")


def main() -> None:
    rank_arm.report(_parse(), make_step, "torch")


def _parse() -> Namespace:
    parser = rank_arm.parser(models=MODELS, first=("concat", "decomposed"))
    parser.add_argument("--dim", type=int, default=16)
    return rank_arm.finish(parser.parse_args())


def make_step(args: Namespace) -> rank_arm.Step:
    start_gloo(args)
    keep_freed_memory()
    rank = dist.get_rank()
    data = [shares(part, args) for part in batches_of(batch_size=args.batch_size)]
    width = len(FEATURES.fields) * args.dim + FEATURES.num_dense
    kind = {"din": padded_models.DIN, "dien": padded_models.DIEN}[args.model]
    layers = kind(args.dim, width, ATTENTION, HIDDEN, args.first)
    owned = [
        [FEATURES.fields[number] for number in numbers]
        for numbers in deal(tuple(FEATURES.rows.values()), args.ranks)
    ]
    tables = {name: padded_models.table(FEATURES.rows[name], args.dim) for name in owned[rank]}
    ids = [[ids_of(batch, tables) for batch in of_ranks] for of_ranks in data]
    model = DistributedDataParallel(Late(layers, args.dim), broadcast_buffers=False)
    rows = torch.optim.Adagrad([table.weight for table in tables.values()], ROW_LEARNING_RATE)
    dense = torch.optim.Adam(model.parameters(), DENSE_LEARNING_RATE, fused=True)

    def step(k: int) -> float:
        k %= len(data)
        batch = data[k][rank]
        sent = look_up(tables, ids[k])
        sizes = [sum(map(len, ids_of(batch, names).values())) * args.dim for names in owned]
        pending = Pending(sent.shape, sizes, [sum(map(len, i.values())) * args.dim for i in ids[k]])
        loss = binary_cross_entropy_with_logits(
            model(Send.apply(sent, pending), pending, batch, owned), batch.labels
        )
        loss.backward()
        for optimizer in (rows, dense):
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return step


def shares(samples: Samples, args: Namespace) -> list[Batch]:
    """The samples of every rank, sorted by length: each rank knows which rows the others read."""
    parts = [rank_arm.share(args.batch_size, rank, args.ranks) for rank in range(args.ranks)]
    return [padded_models.inputs(FEATURES, cut(samples, part.start, part.stop)) for part in parts]


def ids_of(batch: Batch, names: Iterable[str]) -> dict[str, Tensor]:
    """The ids that a batch reads of each table: of the target's, also those of the histories."""
    return {name: batch.items if name == FEATURES.target else batch.ids[name] for name in names}


def look_up(tables: dict[str, nn.Embedding], ids: list[dict[str, Tensor]]) -> Tensor:
    """What all ranks read of these tables, rank after rank and in it table after table: [N, D].

    ids: by rank. Each table is looked up once.
    """
    parts = {
        name: table(torch.cat([of_rank[name] for of_rank in ids])).split([len(i[name]) for i in ids])
        for name, table in tables.items()
    }
    return torch.cat([parts[name][rank] for rank in range(len(ids)) for name in tables])


def by_table(received: Tensor, batch: Batch, owned: list[list[str]]) -> dict[str, Tensor]:
    """What a rank's samples read of each table, of what all ranks have sent: [N, D].

    owned: the tables of each rank.
    """
    names = [name for of_rank in owned for name in of_rank]
    sizes = [len(ids) for ids in ids_of(batch, names).values()]
    return dict(zip(names, received.split(sizes), strict=True))


class Late(nn.Module):
    """The dense model on the vectors that come from all ranks."""

    def __init__(self, model: nn.Module, dim: int) -> None:
        super().__init__()
        self.model, self.dim = model, dim

    def forward(self, ticket: Tensor, pending: Pending, batch: Batch, owned: list[list[str]]) -> Tensor:
        received = Receive.apply(ticket, pending).view(-1, self.dim)
        vectors = by_table(received, batch, owned)
        target, past = vectors[FEATURES.target].split([len(batch.lengths), len(batch.places)])
        vectors[FEATURES.target] = target
        others = torch.cat([*(vectors[name] for name in FEATURES.fields), batch.dense], 1)
        return self.model(others, target, padded_models.padded_vectors(past, batch), batch.lengths)


if __name__ == "__main__":
    main()
