"""What does `hotrows.accelerate` cost a model with one small table, where there is nothing to gain?

    python -m benchmarks.overhead [--quick]

The same model plain and accelerated, in turn, step by step, in one process: medians of many steps.
"""

import argparse
import copy
import json
import time
from statistics import median

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.harness import conditions, write

OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
LR = 1e-3


class OneTable(nn.Module):
    def __init__(self, rows: int, dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        widths = (dim, *hidden)
        layers = [
            layer
            for wide, narrow in zip(widths, hidden, strict=False)
            for layer in (nn.Linear(wide, narrow), nn.ReLU())
        ]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.table(ids)).squeeze(1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids, labels) -> float:
    begin = time.perf_counter()
    optimizer.zero_grad()
    binary_cross_entropy_with_logits(model(ids), labels).backward()
    optimizer.step()
    return time.perf_counter() - begin


def compare(kind: str, rows: int, batch_size: int, num_steps: int) -> dict:
    torch.manual_seed(0)
    plain = OneTable(rows, 16, (128, 64))
    fast = copy.deepcopy(plain)
    pairs = [(model, OPTIMIZERS[kind](model.parameters(), lr=LR)) for model in (plain, fast)]
    hotrows.accelerate(*pairs[1], always=True)
    seconds: list[list[float]] = [[], []]
    for k in range(num_steps + 20):
        ids, labels = torch.randint(0, rows, (batch_size,)), torch.rand(batch_size)
        order = (0, 1) if k % 2 else (1, 0)
        for i in order:
            seconds[i].append(step(*pairs[i], ids, labels))
    slow, quick = (median(times[20:]) * 1e6 for times in seconds)
    ratios = [b / a for a, b in zip(seconds[0][20:], seconds[1][20:], strict=True)]
    return {"plain_us": slow, "accelerated_us": quick, "overhead": median(ratios) - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    figures = {}
    for kind in OPTIMIZERS:
        for rows, batch_size in ((100, 1024), (1_000, 1024), (1_000, 8192), (10_000, 8192)):
            name = f"{kind}, {rows:,} rows, batch {batch_size:,}"
            figures[name] = compare(kind, rows, batch_size, 60 if args.quick else 600)
            print(f"{name:36} {json.dumps({k: round(v, 3) for k, v in figures[name].items()})}")
    if not args.quick:
        write(
            "overhead",
            {"question": __doc__.splitlines()[0], **conditions(args.threads), "models": figures},
        )


if __name__ == "__main__":
    main()
