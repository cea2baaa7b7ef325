"""Step: one update of tables and model on a planned batch.

    step = Step(predictor, optimizer, config)
    loss = step(plan, batch, scale)          # lookup, model, loss, backward, update, dense optimizer

On a device nothing in it waits for the device. `CapturedStep` does the same as one CUDA graph.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotrows.batch import Batch, split
from hotrows.compiled import compiled
from hotrows.config import TrainConfig
from hotrows.exchange.dense import SharedGradients
from hotrows.plan import PackPlan, Plan
from hotrows.predict import Predictor
from hotrows.ranks import Note, OneRank
from hotrows.upload import map_tensors

log = logging.getLogger("hotrows")

_WARM = 3  # steps of a form before it is captured: kernels are compiled and workspaces made in them


class Step:
    """Trains `predictor` in place.

    optimizer: of the dense part. shared: sums its gradients over ranks. note: told when which part
    of a step ran; on a device, when it was launched.
    """

    note: Note | None = None

    def __init__(
        self,
        predictor: Predictor,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        shared: SharedGradients | None = None,
    ) -> None:
        self.predictor, self.optimizer, self.config = predictor, optimizer, config
        self.model, self.embedding = predictor.model, predictor.embedding
        self._shared = shared or SharedGradients(self.model, OneRank())
        self._forward: Callable = self.model
        if config.compile:
            batches = not self.embedding.device.on_host
            self._forward = compiled(self.model, self.embedding.packs, batches=batches)

    def __call__(self, plan: Plan, batch: Batch, scale: float) -> Tensor:
        """The loss of this rank's samples, times its share of all; scale: of both learning rates."""
        self.set_rate(scale)
        return self.run(plan, batch, self.embedding.numbers_here(plan.step, scale))

    def set_rate(self, scale: float) -> None:
        """Sets the dense part's rate, in place where a captured step reads it."""
        assert self.config.dense_lr is not None
        rate = self.config.dense_lr * scale
        if not self.embedding.device.on_host:  # as a captured step reads it, so that bits are equal
            rate = float(np.float32(rate))
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def run(self, plan: Plan, batch: Batch, numbers: Tensor) -> Tensor:
        """One step with the rows' `numbers` (`Embedding.numbers`), the dense rate being set."""
        parts = split(batch, max(len(plan.slices), 1))
        losses, last = [], len(parts) - 1
        for number, part in enumerate(parts):
            vectors = self.embedding.lookup(plan, number)
            with self._noted("forward"), self._autocast():
                output = self._forward(vectors, part.dense)
            share = plan.slices[number].share if plan.slices else 1.0
            loss = self.predictor.loss(output, part) * share
            with (
                self._shared.summing() if number == last else nullcontext(),
                self._noted("backward"),
            ):
                loss.backward()
            if number < last:
                self.embedding.give_back(plan, number, vectors)
            losses.append(loss.detach() if part.size else torch.zeros_like(loss.detach()))
        with self._noted("update"):
            self.embedding.update(plan, vectors, numbers=numbers)
        with self._noted("dense step"):
            self._dense_step()
        return losses[0] if last == 0 else torch.stack(losses).sum()

    def _dense_step(self) -> None:
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> AbstractContextManager:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.embedding.device.name, dtype=torch.bfloat16)

    @contextmanager
    def _noted(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if self.note is not None:
            self.note(stage, "model", begin, time.perf_counter())


class CapturedStep:
    """A `Step` as a CUDA graph: launched at once, however many kernels it has.

    The graph reads a batch of one form, so every form (sizes of all tensors) has its own; plans are
    padded, so that whole batches have one (`Embedding.upload(..., padded=True)`). The first steps of
    a form run as ever, and so do those whose form changes from batch to batch: lists of ids, batches
    in parts, and batches with more rows than fit.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._seen: dict[Any, int] = {}
        self._forms: dict[Any, _Form] = {}
        self._told = False

    def __call__(self, plan: Plan, batch: Batch, scale: float) -> Tensor:
        step = self._step
        if not self._is_capturable(plan):
            self._tell()
            return step(plan, batch, scale)
        given = _read(plan, batch)
        form = tuple((tuple(of.shape), of.dtype) for of in given)
        self._seen[form] = self._seen.get(form, 0) + 1
        if form not in self._forms and self._seen[form] <= _WARM:
            return step(plan, batch, scale)
        step.set_rate(scale)
        numbers = step.embedding.numbers_here(plan.step, scale)
        if form not in self._forms:
            self._forms[form] = self._captured(plan, batch, numbers)
        return self._forms[form].replay(plan, given, numbers, step.embedding)

    def _is_capturable(self, plan: Plan) -> bool:
        moves = plan.moves or ()
        return (
            not plan.slices
            and not any(of.passes_through for of in moves)
            and all(of.bag_starts is None for of in plan.packs)
        )

    def _captured(self, plan: Plan, batch: Batch, numbers: Tensor) -> _Form:
        packs, (dense, labels, weights) = map_tensors(_parts_of(plan, batch), torch.clone)
        plan = dataclasses.replace(plan, packs=packs)
        batch = dataclasses.replace(batch, dense=dense, labels=labels, sample_weights=weights)
        numbers = numbers.clone()
        device = self._step.embedding.device
        launch = device.capture(lambda: self._step.run(plan, batch, numbers))
        return _Form(_read(plan, batch), numbers, launch)

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "cuda_graph: batches of this data differ in size (lists of ids, micro-batches, or more "
                "rows than fast memory holds), so their steps are launched kernel by kernel"
            )


@dataclass
class _Form:
    """A captured step: the tensors that it reads, and what launches it."""

    reads: Sequence[Tensor]
    numbers: Tensor
    launch: Callable[[], Tensor]

    def replay(
        self, plan: Plan, given: Sequence[Tensor], numbers: Tensor, embedding: Any
    ) -> Tensor:
        pairs = [*zip(self.reads, given, strict=True), (self.numbers, numbers)]
        for dtype in {of.dtype for of, _ in pairs}:  # of one dtype it is one launch
            alike = [pair for pair in pairs if pair[0].dtype == dtype]
            torch._foreach_copy_([to for to, _ in alike], [of for _, of in alike])
        embedding.note_update(plan)
        return self.launch()


def _parts_of(plan: Plan, batch: Batch) -> tuple[tuple[PackPlan, ...], tuple]:
    return plan.packs, (batch.dense, batch.labels, batch.sample_weights)


def _read(plan: Plan, batch: Batch) -> list[Tensor]:
    """What a step reads of them, in order."""
    found: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(_parts_of(plan, batch), take)
    return found
