"""What an update of rows reads of a row optimizer."""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.optim import RowOptimizer, hyper_parameters


def hyper_tensor(optimizer: RowOptimizer, step: int) -> Tensor:
    """[1 + H] float64: the step, then `hyper_parameters`."""
    return torch.tensor([step, *hyper_parameters(optimizer, step)], dtype=torch.float64)


def width(dim: int, dtype: str) -> int:
    """The dim, or the next even one where two weights are a byte."""
    return dim + dim % 2 if dtype == "int4" else dim
