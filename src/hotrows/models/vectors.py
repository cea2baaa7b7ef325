"""What a model asks of looked-up vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Vectors(Protocol):
    """The vectors of a batch, by feature and role."""

    def stack(self, role: str = "vector", features: Sequence[str] | None = None) -> Tensor:
        """The vectors of a role, side by side: [B, F, D]."""
        ...
