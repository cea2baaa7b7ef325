"""SharedGradients: every rank has the whole dense part, and its gradients are summed over ranks.

    shared = SharedGradients(model, ranks)
    with shared.summing():              # of several micro-batches: in the last one's backward
        loss.backward()
    optimizer.step()

A bucket of gradients is all-reduced as soon as its last one is known, while backward continues:

    backward   top layers ......  bottom layers ....
    ranks                 bucket 0 --->   bucket 1 --->

Buckets are filled from the last parameter to the first, in the order of backward, and are all-reduced
in this order on every rank. Unlike DistributedDataParallel, this one sums (ranks may have different
numbers of samples), does not change the model and its names, and lets steps use only some parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hotrows.engine.distributed.comm import Arriving, Note, Ranks

BUCKET_BYTES = 1 << 20


class SharedGradients:
    """The gradients of a model's parameters, summed over ranks during backward.

    >>> model = torch.nn.Linear(4, 1)
    >>> shared = SharedGradients(model, hotrows.engine.distributed.process_group.start())
    >>> model(torch.ones(2, 4)).sum().backward()
    >>> model.bias.grad
    tensor([2.])
    """

    note: Note | None = None  # called with the begin and end of each bucket's all-reduce

    def __init__(self, model: nn.Module, ranks: Ranks, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._ranks = ranks
        several = ranks.num_ranks > 1  # else gradients are sums already
        parameters = [p for p in model.parameters() if p.requires_grad and several]
        self._buckets = [_Bucket(some) for some in _filled(parameters[::-1], bucket_bytes)]
        self._sums = False
        self._next = 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Gradients computed within are final: they are sent, and are sums when this ends."""
        self._sums, self._next = True, 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
        try:
            yield
        finally:
            self._sums = False
        self._send()  # parameters without a gradient may have one on another rank
        for bucket in self._buckets:
            bucket.wait(self.note)

    def _hook(self, bucket: _Bucket) -> Callable[[Tensor], None]:
        def gradient_is_ready(parameter: Tensor) -> None:
            if self._sums:
                bucket.missing -= 1
                self._send()

        return gradient_is_ready

    def _send(self) -> None:
        """Starts the buckets that are complete, in order; all of them once backward is over."""
        for bucket in self._buckets[self._next :]:
            if bucket.missing and self._sums:
                return
            bucket.send(self._ranks)
            self._next += 1


class _Bucket:
    """Parameters whose gradients are all-reduced together, as one block of numbers."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.missing = 0
        self._sizes = [parameter.numel() for parameter in parameters]
        self._arriving: Arriving | None = None
        self._begin = 0.0

    def send(self, ranks: Ranks) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        parts = [gradient.reshape(-1) for gradient in gradients]
        self._begin = time.perf_counter()
        self._arriving = ranks.all_reduce(torch.cat(parts))

    def wait(self, note: Note | None) -> None:
        assert self._arriving is not None
        sums = self._arriving.wait().split(self._sizes)
        if note is not None:
            end = self._arriving.arrived_at or time.perf_counter()
            note("dense gradients", "ranks", self._begin, end)
        self._arriving = None
        for parameter, gradient in zip(self.parameters, sums, strict=True):
            parameter.grad = gradient.view_as(parameter)


def _filled(parameters: Sequence[nn.Parameter], size: int) -> Iterator[list[nn.Parameter]]:
    """Divides parameters, in order, into lists of one dtype and `size` bytes at least."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and bucket[0].dtype != parameter.dtype:
            yield bucket
            bucket = []
        bucket.append(parameter)
        if sum(parameter.nbytes for parameter in bucket) >= size:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
