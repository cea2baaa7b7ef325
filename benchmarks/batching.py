"""What does batching equal submodules save: launches of a training step, and its time on the CPU?

    python -m benchmarks.batching                   # every model; results/batching.json
    python -m benchmarks.batching --quick           # few steps; nothing is written

Each model is plain PyTorch with its modules in a Python loop. Launches are the ATen calls of one step,
views left out: on a GPU each is a kernel, or several. Both sides run through `torch.compile` with
backend "eager", so that only the batching differs. Times are medians of steps of both sides in turn, of
forward and backward; on a CPU there is no launch to save, so they say what batching costs there.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from tests.nn.launches import launches_of_step
from torch import Tensor, nn

from benchmarks.harness import conditions, write
from hotrows.nn import batched

BATCH = 2048


class Projections(nn.Module):
    """One linear layer for each field, ReLU, all joined: [B, F, 16] -> [B, 8 F].

    The fields are unbound, which is kind to the plain side: x[:, i] of each would cost as many times the
    whole gradient of x.
    """

    def __init__(self, num_fields: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 8) for _ in range(num_fields))

    def forward(self, x: Tensor) -> Tensor:
        fields = zip(self.layers, x.unbind(1), strict=True)
        return torch.cat([layer(field).relu() for layer, field in fields], 1)


class Experts(nn.Module):
    """A mixture of 8 experts of 64-32: [B, 128] -> [B, 32]."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(_mlp(128, 64, 32) for _ in range(num_experts))
        self.gate = nn.Linear(128, num_experts)

    def forward(self, x: Tensor) -> Tensor:
        experts = torch.stack([expert(x) for expert in self.experts], 1)
        return (self.gate(x).softmax(1).unsqueeze(2) * experts).sum(1)


class Towers(nn.Module):
    """A tower of 64-32-1 for each task, each with an input of its own: [B, T, 64] -> [B, T]."""

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(_mlp(64, 32), nn.Linear(32, 1)) for _ in range(num_tasks)
        )

    def forward(self, x: Tensor) -> Tensor:
        tasks = zip(self.towers, x.unbind(1), strict=True)
        return torch.cat([tower(rows) for tower, rows in tasks], 1)


class Attentions(nn.Module):
    """DIN's attention for each of several histories: [B, H, D] and [B, H, T, D] -> [B, H D]."""

    def __init__(self, num_histories: int) -> None:
        super().__init__()
        self.scores = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 36), nn.Sigmoid(), nn.Linear(36, 1)) for _ in range(num_histories)
        )

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        histories = zip(self.scores, queries.unbind(1), keys.unbind(1), strict=True)
        return torch.cat([_attend(*history) for history in histories], 1)


def _attend(score: nn.Module, query: Tensor, keys: Tensor) -> Tensor:
    queries = query.unsqueeze(1).expand(-1, keys.shape[1], -1)
    scores = score(torch.cat([queries, keys, queries - keys, queries * keys], -1)).squeeze(-1)
    return (scores.softmax(-1).unsqueeze(1) @ keys).squeeze(1)


def _mlp(*sizes: int) -> nn.Module:
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(m for pair in pairs for m in (nn.Linear(*pair), nn.ReLU())))


@dataclass(frozen=True)
class Setting:
    model: Callable[[int], nn.Module]
    num: int
    shapes: tuple[tuple[int, ...], ...]


SETTINGS = {
    "26 projections": Setting(Projections, 26, ((BATCH, 26, 16),)),
    "100 projections": Setting(Projections, 100, ((BATCH, 100, 16),)),
    "461 projections": Setting(Projections, 461, ((BATCH, 461, 16),)),
    "8 experts": Setting(Experts, 8, ((BATCH, 128),)),
    "4 towers": Setting(Towers, 4, ((BATCH, 4, 64),)),
    "6 attentions": Setting(Attentions, 6, ((256, 6, 16), (256, 6, 20, 16))),
}


def compare(setting: Setting, num_steps: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = setting.model(setting.num)
    inputs = [torch.randn(shape, requires_grad=True) for shape in setting.shapes]
    launches = {}
    for name, compiler in (("plain", torch.compile), ("batched", batched)):
        torch._dynamo.reset()
        launches[name] = launches_of_step(compiler, model, *inputs)
    torch._dynamo.reset()
    begin = time.perf_counter()
    sides = [torch.compile(model, backend="eager"), batched(model)]
    for side in sides:
        side(*inputs)
    seconds = time.perf_counter() - begin
    times = _times(sides, model, inputs, num_steps)
    return {
        **{f"{name}_launches": sum(both) for name, both in launches.items()},
        **{f"{name}_launches_forward": both[0] for name, both in launches.items()},
        "plain_ms": times[0],
        "batched_ms": times[1],
        "compile_both_s": seconds,
    }


def _times(
    sides: Sequence[Callable[..., Tensor]], model: nn.Module, inputs: Sequence[Tensor], num: int
) -> list[float]:
    seconds: list[list[float]] = [[] for _ in sides]
    for k in range(num + 2):
        for i in range(len(sides))[:: 1 if k % 2 else -1]:
            model.zero_grad()
            begin = time.perf_counter()
            sides[i](*inputs).sum().backward()
            seconds[i].append(time.perf_counter() - begin)
    return [median(times[2:]) * 1e3 for times in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--note", default="", help="what else the machine did, written into the result")
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    figures = {}
    for name, setting in SETTINGS.items():
        figures[name] = compare(setting, 3 if args.quick else 40)
        print(f"{name:16} {json.dumps({k: round(v, 2) for k, v in figures[name].items()})}", flush=True)
    if not args.quick:
        note = {"note": args.note} if args.note else {}
        question = __doc__.splitlines()[0]
        write("batching", {"question": question, **conditions(args.threads), **note, "models": figures})


if __name__ == "__main__":
    main()
