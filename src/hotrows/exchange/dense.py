"""SharedGradients: the dense part is on every rank whole, and its gradients are summed over ranks.

    shared = SharedGradients(model, ranks)
    with shared.summing():              # in slices: the last one's backward alone
        loss.backward()
    optimizer.step()

A bucket of gradients travels as soon as its last one is known, while backward goes on:

    backward   top layers ......  bottom layers ....
    ranks                 bucket 0 --->   bucket 1 --->

Buckets are filled from the last parameter to the first, as backward finds their gradients, and
travel in this order on every rank. DistributedDataParallel does the same; this one sums (ranks
may have different numbers of samples), leaves the model and its names as they are, and needs no
parameter to be used in every step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hotrows.ranks import Arriving, Note, Ranks

BUCKET_BYTES = 1 << 20


class SharedGradients:
    """The gradients of a model's parameters, summed over ranks during backward."""

    note: Note | None = None  # told when which bucket travelled

    def __init__(self, model: nn.Module, ranks: Ranks, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._ranks = ranks
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._buckets = [_Bucket(of) for of in _filled(parameters[::-1], bucket_bytes)]
        self._sums = False
        self._next = 0
        if ranks.num_ranks > 1:
            for number, bucket in enumerate(self._buckets):
                for parameter in bucket.parameters:
                    parameter.register_post_accumulate_grad_hook(self._hook(number))

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Gradients found within are final: they travel, and are summed when this ends."""
        if self._ranks.num_ranks == 1:
            yield
            return
        self._sums, self._next = True, 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
        try:
            yield
        finally:
            self._sums = False
        self._send(len(self._buckets))  # parameters without a gradient here may have one elsewhere
        for bucket in self._buckets:
            bucket.wait(self.note)

    def _hook(self, number: int):
        def found(parameter: Tensor) -> None:
            if self._sums:
                self._buckets[number].missing -= 1
                self._send(number + 1)

        return found

    def _send(self, end: int) -> None:
        """Starts the buckets that are complete, in order; all before `end` once backward is over."""
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if bucket.missing and self._sums:
                return
            bucket.send(self._ranks)
            self._next += 1


class _Bucket:
    """Parameters whose gradients travel together, as one block of numbers."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.missing = 0
        self._sizes = [parameter.numel() for parameter in parameters]
        self._arriving: Arriving | None = None
        self._begin = 0.0

    def send(self, ranks: Ranks) -> None:
        parts = [
            torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1)
            for p in self.parameters
        ]
        self._begin = time.perf_counter()
        self._arriving = ranks.all_reduce(torch.cat(parts))

    def wait(self, note: Note | None) -> None:
        assert self._arriving is not None
        sums = self._arriving.wait().split(self._sizes)
        if note is not None:
            end = getattr(self._arriving, "arrived_at", None) or time.perf_counter()
            note("dense gradients", "ranks", self._begin, end)
        self._arriving = None
        for parameter, of in zip(self.parameters, sums, strict=True):
            parameter.grad = of.view_as(parameter)


def _filled(parameters: Sequence[nn.Parameter], size: int) -> Iterator[list[nn.Parameter]]:
    """Parameters in order, so many together that they have `size` bytes at least, of one dtype."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and bucket[0].dtype != parameter.dtype:
            yield bucket
            bucket = []
        bucket.append(parameter)
        if sum(of.nbytes for of in bucket) >= size:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
