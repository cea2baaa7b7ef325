"""Batch normalisation (Ioffe and Szegedy 2015) that a last batch of one sample does not stop."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` of [M, H], whose training takes batches of any size.

    Fewer than two rows have no variance, where PyTorch's own raises: they are normalised by the
    running averages, and leave these as they are.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or len(input) > 1:
            return super().forward(input)
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )
