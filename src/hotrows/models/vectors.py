"""The face of looked-up vectors that models see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn.jagged_products import Lists
from hotrows.ops.layers.row_products import JoinedRows


class LookedUpVectors(Protocol):
    """The vectors of a batch, by feature and role: `hotrows.Vectors`, or a stand-in for it."""

    def __getitem__(self, key: str | tuple[str, str]) -> Tensor:
        """The vectors of a feature, or of (feature, role): [B, D]."""

    def stack(self, role: str = "vector", features: Sequence[str] | None = None) -> Tensor:
        """The vectors of a role, side by side: [B, F, D]."""

    def sequence(self, feature: str, role: str = "vector") -> tuple[Tensor, Lists]:
        """The vectors of a sequence that the model keeps apart, [N, D], and their offsets, [B + 1]."""

    def lengths(self, feature: str) -> Tensor:
        """The number of elements of each sample in a sequence, in host memory: [B] int64."""


def joined(vectors: LookedUpVectors, dense: Tensor) -> Tensor | JoinedRows:
    """All vectors and dense values side by side, [B, W]: what an `MLP` reads.

    A model that calls it for the vectors, and reads them in no other way, says so by
    `first_layer_roles = ("vector",)`: its first product may then go by distinct rows.
    """
    if hasattr(vectors, "joined"):
        return vectors.joined(dense)
    return torch.cat([vectors.stack().flatten(1), dense], dim=1)


def shared_lists(vectors: LookedUpVectors, feature: str, role: str) -> tuple[Tensor, SharedLists] | None:
    """The vectors of a sequence once for each request, [N, D], where samples of a request share it."""
    return vectors.shared_lists(feature, role) if hasattr(vectors, "shared_lists") else None
