"""PyTorch as it comes: an `nn.EmbeddingBag` with sparse gradients per field, a sparse optimizer."""

from argparse import Namespace

import torch
from torch import Tensor, nn

from benchmarks.arms import arm
from benchmarks.arms.torch_step import WITH_FIRST, Step, make_step
from benchmarks.workload import DIM, LEARNING_RATE, batches

OPTIMIZERS = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD, "adam": torch.optim.SparseAdam}


class Bags(nn.Module):
    def __init__(self, num_rows: tuple[int, ...], dim: int, batch_size: int) -> None:
        super().__init__()
        bags = (nn.EmbeddingBag(n, dim, mode="sum", sparse=True) for n in num_rows)
        self.bags = nn.ModuleList(bags)
        self.offsets = torch.arange(batch_size)
        for bag in self.bags:
            nn.init.uniform_(bag.weight, -0.01, 0.01)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [F, B] -> vectors [B, F, D]."""
        pooled = [
            bag(column, self.offsets[: len(column)]) for bag, column in zip(self.bags, ids, strict=True)
        ]
        return torch.stack(pooled, 1)


def main() -> None:
    args = arm.parse()
    arm.report(args, step_of(args), "torch")


def step_of(args: Namespace) -> Step:
    torch.set_num_threads(args.threads)
    data = batches(args.workload, args.batch_size)
    ids = [torch.from_numpy(batch.ids) for batch in data]
    tables = first = None
    parameters: list[Tensor] = []
    if args.model != "lr":
        tables = Bags(args.workload.num_rows, DIM, args.batch_size)
        parameters += tables.parameters()
    if args.model in WITH_FIRST and not args.embedding_only:
        first = Bags(args.workload.num_rows, 1, args.batch_size)
        parameters += first.parameters()
    optimizer = OPTIMIZERS[args.optimizer](parameters, LEARNING_RATE)

    def lookup(k: int) -> tuple[Tensor | None, Tensor | None]:
        columns = ids[k % len(ids)]
        return tables and tables(columns), first and first(columns).sum((1, 2))

    return make_step(args, data, lookup, optimizer)


if __name__ == "__main__":
    main()
