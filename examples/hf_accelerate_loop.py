"""A plain model in a loop of Hugging Face Accelerate: `python examples/hf_accelerate_loop.py`.

`hotrows.accelerate` comes first, `Accelerator.prepare` then. Needs `pip install accelerate`.
"""

import copy
import sys

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import hotrows
from accelerate import Accelerator

ROWS = [20_000, 10_000, 5_000, 500]
DIM, BATCH, STEPS = 16, 512, 20


class Network(nn.Module):
    """Knows nothing of hotrows: one nn.Embedding per feature."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, DIM) for rows in ROWS)
        self.mlp = nn.Sequential(nn.Linear(len(ROWS) * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        vectors = [table(ids[:, f]) for f, table in enumerate(self.tables)]
        return self.mlp(torch.cat(vectors, 1)).squeeze(1)


def train(model, optimizer, data):
    """The loop of Accelerate's own guide: two batches make a step, the gradient's norm is clipped."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    loader = DataLoader(data, BATCH)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for ids, labels in loader:
        with accelerator.accumulate(model):
            loss = binary_cross_entropy_with_logits(model(ids), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model).state_dict()


if __name__ == "__main__":
    torch.manual_seed(1)
    plain = Network()
    fast = copy.deepcopy(plain)
    ids = torch.stack([torch.randint(0, rows, (STEPS * BATCH,)) for rows in ROWS], 1)
    data = TensorDataset(ids, (ids.sum(1) % 2).float())
    adam = torch.optim.Adam(fast.parameters(), lr=1e-3, weight_decay=1e-6)

    expected = train(plain, torch.optim.Adam(plain.parameters(), lr=1e-3, weight_decay=1e-6), data)
    weights = train(*hotrows.accelerate(fast, adam, always=True), data)

    apart = max(float((weights[name] - expected[name]).abs().max()) for name in expected)
    print(f"{STEPS} batches, plain and accelerated: weights differ by {apart:.1e}")
    sys.exit(apart > 1e-4)
