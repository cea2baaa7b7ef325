"""The first product of a network on the distinct rows of a batch, in place of its vectors.

A batch reads a frequent row many times. Here each row is multiplied once with the weights of its
feature, and the product is added to the samples that read it; on the way back the gradients of these
samples are summed first. Neither the matrix of all vectors nor its gradient is ever in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotrows.runtime.native import call, takes
from hotrows.runtime.shapes import Float32, Int32, Int64

_WIDTH_OF_CHUNK = 256  # columns of the vectors whose products are summed apart
_MOST_CHUNKS = 16


class RowReads(NamedTuple):
    """Which samples of a batch read each distinct row, as in `PackPlan`; ids are in no sequence.

    bounds: the rows of feature f are those from bounds[f] to bounds[f + 1]: no row is of two features.
    """

    bounds: Int64[Tensor, "F+1"]
    starts: Int32[Tensor, "U+1"]
    order: Int32[Tensor, "N"]
    bags: Int32[Tensor, "N"] | None
    weights: Float32[Tensor, "N"] | None
    batch_size: int

    @property
    def num_features(self) -> int:
        return len(self.bounds) - 1


@dataclass(frozen=True)
class JoinedRows:
    """Vectors and dense values side by side, [B, W], known by their rows: a first layer reads it.

    parts: what stands side by side: rows [U, D] and the samples that read them, F D columns; or
    values [B, w] with None.
    """

    parts: Sequence[tuple[Tensor, RowReads | None]]

    def __len__(self) -> int:
        """B, the number of samples."""
        values, reads = self.parts[0]
        return len(values) if reads is None else reads.batch_size

    def product(self, weight: Float32[Tensor, "H W"]) -> Float32[Tensor, "B H"]:
        """X W^T, X being what stands side by side.

        rows = [[1., 2.]], read by samples 0 and 1; values = [[5.], [6.]]; weight = [[1., 1., 10.]]
            ->  [[53.], [63.]]
        """
        values, reads = zip(*self.parts, strict=True)
        if takes(weight, *values):
            return _Product.apply(weight, reads, *values)
        return torch.cat([pooled_reference(*part) for part in self.parts], 1) @ weight.t()


def pooled_reference(values: Tensor, reads: RowReads | None) -> Tensor:
    """The columns of a part, [B, F D]."""
    if reads is None:
        return values
    num_bags = reads.batch_size * reads.num_features
    ids = reads.order.long()
    runs = torch.arange(len(values)).repeat_interleave(reads.starts.long().diff())
    read = values[runs] if reads.weights is None else values[runs] * reads.weights[ids][:, None]
    bags = ids if reads.bags is None else reads.bags.long()[ids]
    pooled = values.new_zeros(num_bags, values.shape[1]).index_add(0, bags, read)
    return pooled.view(reads.batch_size, -1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, reads: Sequence[RowReads | None], *values: Tensor) -> Tensor:
        ctx.save_for_backward(weight, *values)
        ctx.reads = reads
        batch_size = len(values[0]) if reads[0] is None else reads[0].batch_size
        y = weight.new_zeros(batch_size, len(weight))
        for part, read, columns in _columns(weight, reads, values):
            if read is None:
                y.addmm_(part, columns.t())
                continue
            chunks = min(max(columns.shape[1] // _WIDTH_OF_CHUNK, 1), _MOST_CHUNKS, read.num_features)
            scratch = weight.new_empty(chunks, batch_size, -(-len(weight) // 16) * 16)
            call(
                "row_products", *_arguments(part, read), columns, weight.stride(0), len(weight), chunks,
                scratch, y,
            )  # fmt: skip
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *values = ctx.saved_tensors
        grad = grad.contiguous()
        grad_weight = torch.empty_like(weight)
        gradients: list[Tensor | None] = []
        needed = ctx.needs_input_grad[2:]
        split = zip(
            _columns(weight, ctx.reads, values), _columns(grad_weight, ctx.reads, values), strict=True
        )
        for wanted, ((part, read, columns), (_, _, grad_columns)) in zip(needed, split, strict=True):
            if read is None:
                gradients.append(grad @ columns if wanted else None)
                grad_columns.copy_(grad.t() @ part)
                continue
            of_rows = torch.empty_like(part)
            call(
                "row_products_backward", *_arguments(part, read), columns, weight.stride(0), len(weight),
                grad, of_rows, grad_columns,
            )  # fmt: skip
            gradients.append(of_rows)
        return grad_weight, None, *gradients


def _columns(
    weight: Tensor, reads: Sequence[RowReads | None], values: Sequence[Tensor]
) -> Iterator[tuple[Tensor, RowReads | None, Tensor]]:
    """Each part with the columns of the weight that it is multiplied with."""
    pairs = list(zip(values, reads, strict=True))
    widths = [part.shape[1] * (1 if read is None else read.num_features) for part, read in pairs]
    if sum(widths) != weight.shape[1]:
        raise ValueError(f"expected a weight of {sum(widths):,} columns, not of {weight.shape[1]:,}")
    yield from zip(values, reads, weight.split(widths, 1), strict=True)


def _arguments(rows: Tensor, reads: RowReads) -> tuple[Any, ...]:
    runs = reads.bounds, reads.starts, reads.order, reads.bags, reads.weights
    return rows.contiguous(), rows.shape[1], *runs, reads.num_features, reads.batch_size
