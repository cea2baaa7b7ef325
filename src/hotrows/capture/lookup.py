"""Several lookups at once: what a call of F.embedding or F.embedding_bag asks for, and its answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Lookup:
    """What a call of F.embedding or F.embedding_bag asks for, without its tensors."""

    mode: str | None = None  # None: the vector of each id (F.embedding); "sum", "mean", "max"
    padding_idx: int | None = None  # already non-negative
    max_norm: float | None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False
    sparse: bool = False
    include_last_offset: bool = False


def look_up(
    lookups: Sequence[Lookup],
    weights: Sequence[Tensor],
    ids: Sequence[Tensor],
    offsets: Sequence[Tensor | None],
    per_sample_weights: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """The results of several lookups: [*ids.shape, D], or [bags, D], one after the other."""
    return tuple(
        _one(*each) for each in zip(lookups, weights, ids, offsets, per_sample_weights, strict=True)
    )


def _one(
    lookup: Lookup, weight: Tensor, ids: Tensor, offsets: Tensor | None, scales: Tensor | None
) -> Tensor:
    rule = (lookup.max_norm, lookup.norm_type, lookup.scale_grad_by_freq)
    if lookup.mode is None:
        return F.embedding(ids, weight, lookup.padding_idx, *rule, lookup.sparse)
    last, padding = lookup.include_last_offset, lookup.padding_idx
    return F.embedding_bag(
        ids, weight, offsets, *rule, lookup.mode, lookup.sparse, scales, last, padding
    )
