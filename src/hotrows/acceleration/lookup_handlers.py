"""Handlers of single lookups in a table: F.embedding, F.embedding_bag, weight[ids], index_select."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.acceleration.lookup import Lookup, lookup
from hotrows.acceleration.parameter import PLAIN, TableParameter, handles

_MODES = ("sum", "mean", "max")


@handles(functional.embedding)
def _embedding(
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not isinstance(weight, TableParameter) or type(input) not in PLAIN:
        return NotImplemented
    padding_idx = _not_negative(padding_idx, weight)
    options = Lookup(None, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    return lookup([options], [weight], [input], [None], [None])[0]


@handles(functional.embedding_bag)
def _embedding_bag(
    input: Tensor,
    weight: Any,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    if not isinstance(weight, TableParameter) or type(input) not in PLAIN or mode not in _MODES:
        return NotImplemented
    if (input.dim() == 2) == (offsets is not None) or input.dim() not in (1, 2):
        return NotImplemented  # PyTorch's own message
    padding, norm = _not_negative(padding_idx, weight), (max_norm, norm_type)
    options = Lookup(mode, padding, *norm, scale_grad_by_freq, sparse, include_last_offset)
    return lookup([options], [weight], [input], [offsets], [per_sample_weights])[0]


@handles(torch.Tensor.__getitem__)
def _getitem(weight: TableParameter, index: Any) -> Any:
    if type(index) not in PLAIN or index.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    if not index.dim():  # one number takes a view of its row, and no copy
        return NotImplemented
    index = torch.where(index < 0, index + weight.shape[0], index)
    return lookup([Lookup()], [weight], [index], [None], [None])[0]


@handles(torch.index_select, torch.Tensor.index_select)
def _index_select(weight: Any, dim: int, index: Tensor) -> Any:
    if not isinstance(weight, TableParameter) or dim not in (0, -2) or index.dim() != 1:
        return NotImplemented
    return lookup([Lookup()], [weight], [index], [None], [None])[0]


def _not_negative(padding_idx: int | None, weight: Tensor) -> int | None:
    if padding_idx is None or padding_idx >= 0:
        return padding_idx
    return padding_idx + weight.shape[0]
