"""Lookup and update in PyTorch alone, with care: one table of all rows, of which a step uses its own.

Rows are gathered by `index_select`; their gradients are summed over the distinct ones (`unique`,
`index_add_`) and the optimizer's formula is a few operators on these, not on tables.
"""

import torch
from torch import Tensor

EPSILON = {"rowwise": 1e-10, "adagrad": 1e-10, "adam": 1e-8}


class PlainTable:
    """weights: [R, D] float32. state: what the optimizer keeps: [R] for `rowwise`, [R, D] for
    `adagrad`, [2, R, D] for `adam`."""

    def __init__(self, weights: Tensor, optimizer: str, lr: float, state: Tensor | None = None) -> None:
        self.weights, self._optimizer, self._lr, self.state = weights, optimizer, lr, state
        self._step = 0

    @classmethod
    def random(cls, rows: int, dim: int, optimizer: str, lr: float, device: str) -> "PlainTable":
        weights = torch.empty(rows, dim, device=device).uniform_(-0.01, 0.01)
        shape = {"rowwise": (rows,), "adagrad": (rows, dim), "adam": (2, rows, dim)}.get(optimizer)
        return cls(weights, optimizer, lr, None if shape is None else torch.zeros(shape, device=device))

    def lookup(self, rows: Tensor) -> Tensor:
        """[N, D] for rows [N] int64."""
        return self.weights.index_select(0, rows)

    def update(self, rows: Tensor, gradients: Tensor) -> None:
        """One step, from the gradients [N, D] of what was looked up."""
        self._step += 1
        distinct, inverse = rows.unique(return_inverse=True)
        g = gradients.new_zeros(len(distinct), gradients.shape[1]).index_add_(0, inverse, gradients)
        self.weights.index_add_(0, distinct, self._change(distinct, g), alpha=-self._lr)

    def _change(self, rows: Tensor, g: Tensor) -> Tensor:
        """[U, D], and the new state of these rows."""
        if self._optimizer == "sgd":
            return g
        epsilon = EPSILON[self._optimizer]
        if self._optimizer == "rowwise":
            sums = self.state[rows] + g.square().mean(1)
            self.state[rows] = sums
            return g / (sums.sqrt() + epsilon)[:, None]
        if self._optimizer == "adagrad":
            sums = self.state[rows].addcmul_(g, g)
            self.state[rows] = sums
            return g / (sums.sqrt() + epsilon)
        mean = torch.lerp(self.state[0][rows], g, 0.1)
        squares = torch.lerp(self.state[1][rows], g.square(), 0.001)
        self.state[0][rows], self.state[1][rows] = mean, squares
        least = (squares / (1 - 0.999**self._step)).sqrt_().add_(epsilon)
        return mean / (1 - 0.9**self._step) / least
