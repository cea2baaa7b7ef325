"""What the tests of checkpoints save: tables, dense parameters and a trainer's state."""

import torch
from torch import nn

from hotrows.engine.checkpoint import State
from hotrows.optim import LazyAdam
from tests.support.embeddings import mixed_tables

TABLES = mixed_tables(LazyAdam(lr=0.01, per_row_step=True))


def dense():
    return nn.Linear(3, 2)


def state(step):
    return State(step, {"step": step}, {"random_state": torch.arange(9)})
