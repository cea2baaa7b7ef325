"""A plain PyTorch model, with and without hotrows, side by side: `python examples/any_model.py`."""

import copy
import time

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows

ROWS = [200_000, 100_000, 50_000, 10_000, 500, 20]
DIM, BATCH, STEPS = 16, 2048, 30


class Plain(nn.Module):
    """Knows nothing of hotrows: one nn.Embedding per feature."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, DIM) for rows in ROWS)
        self.mlp = nn.Sequential(nn.Linear(len(ROWS) * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids):
        vectors = [table(ids[:, f]) for f, table in enumerate(self.tables)]
        return self.mlp(torch.cat(vectors, 1)).squeeze(1)


def train(model, optimizer):
    """The loop is the user's, too. Returns milliseconds a step."""
    draw = torch.Generator().manual_seed(1)
    for step in range(STEPS + 3):
        if step == 3:
            begin = time.perf_counter()
        ids = torch.stack([torch.randint(0, n, (BATCH,), generator=draw) for n in ROWS], 1)
        loss = binary_cross_entropy_with_logits(model(ids), (ids.sum(1) % 2).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - begin) / STEPS * 1e3


if __name__ == "__main__":
    torch.manual_seed(0)
    plain = Plain()
    fast = copy.deepcopy(plain)
    adam = torch.optim.Adam(fast.parameters(), weight_decay=1e-6)
    fast, adam = hotrows.accelerate(fast, adam, always=True)
    print(hotrows.explain(fast, torch.zeros(4, len(ROWS), dtype=torch.int64)))

    slow_ms = train(plain, torch.optim.Adam(plain.parameters(), weight_decay=1e-6))
    fast_ms = train(fast, adam)
    weights, expected = fast.state_dict(), plain.state_dict()
    apart = max(float((weights[name] - expected[name]).abs().max()) for name in expected)
    print(f"plain {slow_ms:.1f} ms a step, accelerated {fast_ms:.1f} ms; weights differ by {apart:.1e}")
