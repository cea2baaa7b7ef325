"""A plain model trained by PyTorch Lightning: `python examples/lightning_loop.py`.

One line in `configure_optimizers` accelerates it. Needs `pip install pytorch-lightning`.
"""

import sys
import tempfile

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import hotrows

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


class Clicks(lightning.LightningModule):
    def __init__(self, accelerated):
        super().__init__()
        self.network, self.accelerated = Network(), accelerated

    def training_step(self, batch, number):
        ids, labels = batch
        loss = binary_cross_entropy_with_logits(self.network(ids), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3, weight_decay=1e-6)
        if self.accelerated:
            hotrows.accelerate(self.network, optimizer, always=True)  # both stay the same objects
        return optimizer


def train(accelerated):
    """Returns the trained module."""
    lightning.seed_everything(1, verbose=False)
    module = Clicks(accelerated)
    ids = torch.stack([torch.randint(0, rows, (STEPS * BATCH,)) for rows in ROWS], 1)
    loader = DataLoader(TensorDataset(ids, (ids.sum(1) % 2).float()), BATCH)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", default_root_dir=folder, gradient_clip_val=1.0,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, loader)
    return module


if __name__ == "__main__":
    plain, fast = train(False).state_dict(), train(True).state_dict()
    apart = max(float((fast[name] - plain[name]).abs().max()) for name in plain)
    print(f"{STEPS} steps of Lightning, plain and accelerated: weights differ by {apart:.1e}")
    sys.exit(apart > 1e-4)
