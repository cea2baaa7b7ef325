"""Two lines beside plain PyTorch: equal losses, and the time of a step, of three optimizers.

26 tables of 200,000 rows of 16 columns and an MLP, batches of 4,096. Losses after 40 steps must be equal
but for rounding.
"""

import torch
from torch import nn
from torch.nn.functional import softplus

import hotrows
from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import seconds_of

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
_FIELDS, _DIM = 26, 16


class Net(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, _DIM) for _ in range(_FIELDS))
        self.top = nn.Sequential(nn.Linear(_FIELDS * _DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat(vectors, 1)).squeeze(1)


def run(findings: Findings, setting: Setting) -> None:
    figures = {}
    for name, kind in OPTIMIZERS.items():
        (plain, plain_ms), (ours, ms) = (_train(setting, kind, fast) for fast in (False, True))
        same = abs(plain - ours) < 1e-4 * abs(plain) + 1e-6
        findings.check(f"{name}: the losses of plain PyTorch", same, f"{ours}, not {plain}")
        figures[name] = {"ms": ms, "pytorch_ms": plain_ms, "faster": plain_ms / ms}
    findings.demand_green()
    for name, figure in figures.items():
        findings.add(name, figure)


def _train(setting: Setting, kind: type[torch.optim.Optimizer], accelerates: bool) -> tuple[float, float]:
    """The last loss, and milliseconds of a step."""
    rows, batch_size = setting.pick((200_000, 4096), (50, 16))
    torch.manual_seed(0)
    model = Net(rows).to(setting.device)
    optimizer = kind(model.parameters(), lr=0.01)
    if accelerates:
        options = {} if setting.pick(True, False) else {"packing": False}  # which compiles
        hotrows.accelerate(model, optimizer, **options, always=True)
    draw, losses = torch.Generator().manual_seed(1), []

    def steps(num: int) -> None:
        for _ in range(num):
            ids = torch.randint(rows, (batch_size, _FIELDS), generator=draw).to(setting.device)
            optimizer.zero_grad()
            loss = softplus(model(ids)).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

    num = setting.pick(20, 3)
    steps(num)
    seconds = seconds_of(lambda: steps(num), setting)
    return losses[-1].item(), 1e3 * seconds / num
