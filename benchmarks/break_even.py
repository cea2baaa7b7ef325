"""Which models of several tables does `hotrows.accelerate` make faster, and which slower?

    python -m benchmarks.break_even [--quick]

Tables of one size under an MLP, plain and accelerated in turn, always=True: medians of rounds, the first
call, and what the forecast of `acceleration/forecast.py` says, whose numbers come from here.
"""

import argparse
import copy
import time
from statistics import median

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.harness import conditions, write
from hotrows.acceleration.accelerate import acceleration_of

OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
LR, DIM = 1e-3, 16
STEPS, ROUNDS = 12, 5


class Tables(nn.Module):
    def __init__(self, tables: int, rows: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, DIM) for _ in range(tables))
        self.mlp = nn.Sequential(nn.Linear(tables * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        return self.mlp(torch.cat(vectors, 1)).squeeze(1)


def seconds(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> float:
    begin = time.perf_counter()
    for ids, labels in batches:
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(ids), labels).backward()
        optimizer.step()
    return (time.perf_counter() - begin) / len(batches)


def compare(kind: str, tables: int, rows: int, batch_size: int) -> dict:
    """rows: of all tables together."""
    torch.manual_seed(0)
    plain = Tables(tables, rows // tables)
    fast = copy.deepcopy(plain)
    pairs = [(model, OPTIMIZERS[kind](model.parameters(), lr=LR)) for model in (plain, fast)]
    ids = torch.randint(rows // tables, (STEPS, batch_size, tables))
    batches = list(zip(ids, torch.rand(STEPS, batch_size).round(), strict=True))
    begin = time.perf_counter()
    hotrows.accelerate(*pairs[1], always=True)
    seconds(*pairs[1], batches[:1])
    first = time.perf_counter() - begin
    times = [[seconds(*pair, batches) for pair in pairs] for _ in range(ROUNDS + 1)][1:]
    forecast = acceleration_of(fast).forecast
    return {
        "times_as_fast": median(slow / quick for slow, quick in times),
        "first_call_over_a_plain_step": first / median(slow for slow, _ in times),
        "forecast_times_as_fast": 1 / forecast.ratio,
        "is_left_plain": not forecast.pays,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few cells; nothing is written")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    figures = {}
    for tables in (12,) if args.quick else (4, 12, 26):
        for kind in OPTIMIZERS:
            for batch_size in (256, 2048):
                for rows in (20_000, 100_000, 400_000):
                    name = f"{tables} tables, {rows:,} rows, {kind}, batch {batch_size:,}"
                    figures[name] = compare(kind, tables, rows, batch_size)
                    shown = {key: round(value, 2) for key, value in figures[name].items()}
                    print(f"{name:44} {shown}", flush=True)
    if not args.quick:
        question = __doc__.splitlines()[0]
        write("break_even", {"question": question, **conditions(args.threads), "models": figures})


if __name__ == "__main__":
    main()
