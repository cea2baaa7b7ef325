"""A training step captured as a CUDA graph and replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.plan import PackPlan, Plan
from hotrows.runtime.transfer import map_tensors
from hotrows.train.step import Step, log

_WARM = 3  # steps of a form before it is captured: kernels are compiled and workspaces made in them


class CapturedStep:
    """A `Step` as a CUDA graph: launched at once, however many kernels it has.

    A graph reads batches of one form (sizes of all tensors), so every form has its own; plans are
    padded, so that all full batches have one form. The first steps of a form run kernel by kernel, and
    so do those whose form changes from batch to batch: lists of ids, batches in parts, and batches
    with more rows than fit.

    is_wanted: a step that cannot be captured is an error; else a warning, and steps are launched kernel
    by kernel.
    """

    def __init__(self, step: Step, is_wanted: bool = True) -> None:
        self._step, self._is_wanted = step, is_wanted
        self._failed = False
        self._seen: dict[Any, int] = {}
        self._forms: dict[Any, _Form] = {}
        self._has_warned = False

    def __call__(self, plan: Plan, batch: Batch, scale: float) -> Tensor:
        step = self._step
        if self._failed:
            return step(plan, batch, scale)
        if not self._is_capturable(plan):
            self._warn()
            return step(plan, batch, scale)
        tensors = _read(plan, batch)
        form = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        self._seen[form] = self._seen.get(form, 0) + 1
        if form not in self._forms and self._seen[form] <= _WARM:
            return step(plan, batch, scale)
        step.set_rate(scale)
        numbers = step.embedding.hyperparameters(plan.step, scale)
        if form not in self._forms:
            try:
                self._forms[form] = self._captured(plan, batch, numbers)
            except RuntimeError as error:
                self._fail(error)
                return step(plan, batch, scale)
        return self._forms[form].replay(plan, tensors, numbers, step.embedding)

    def _is_capturable(self, plan: Plan) -> bool:
        is_whole = not plan.micro_batches and not any(group.bypasses_cache for group in plan.moves)
        return is_whole and all(pack.bag_starts is None for pack in plan.packs)

    def _captured(self, plan: Plan, batch: Batch, numbers: Tensor) -> _Form:
        packs, (dense, labels, weights, groups) = map_tensors(_parts_of(plan, batch), torch.clone)
        plan = dataclasses.replace(plan, packs=packs)
        read = {"dense": dense, "labels": labels, "sample_weights": weights, "groups": groups}
        batch = dataclasses.replace(batch, **read)
        numbers = numbers.clone()
        launch = self._step.embedding.device.capture(lambda: self._step.run(plan, batch, numbers))
        return _Form(_read(plan, batch), numbers, launch)

    def _fail(self, error: RuntimeError) -> None:
        """A capture has been given up: the host waits for the device within a step, say."""
        self._failed = True
        self._step.optimizer.zero_grad(set_to_none=True)  # gradients lie in the memory of the capture
        reason = (str(error).strip().splitlines() or [""])[0]
        said = f"a step of this model cannot be captured as a CUDA graph ({reason})"
        if self._is_wanted:
            raise ValueError(
                f"{said}: leave out cuda_graph, or let its forward neither read values of the device "
                f"(item(), tolist(), print) nor make tensors on the host"
            ) from error
        log.warning("%s: steps are launched kernel by kernel", said)

    def _warn(self) -> None:
        if self._is_wanted and not self._has_warned:
            self._has_warned = True
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

    def replay(self, plan: Plan, tensors: Sequence[Tensor], numbers: Tensor, embedding: Any) -> Tensor:
        """Copies the tensors of a batch and the hyperparameters to what the graph reads; launches it."""
        pairs = [*zip(self.reads, tensors, strict=True), (self.numbers, numbers)]
        for dtype in {target.dtype for target, _ in pairs}:  # one launch for each dtype
            alike = [pair for pair in pairs if pair[0].dtype == dtype]
            torch._foreach_copy_([target for target, _ in alike], [source for _, source in alike])
        embedding.packed.note_update(plan)
        return self.launch()


def _parts_of(plan: Plan, batch: Batch) -> tuple[tuple[PackPlan, ...], tuple]:
    return plan.packs, (batch.dense, batch.labels, batch.sample_weights, batch.groups)


def _read(plan: Plan, batch: Batch) -> list[Tensor]:
    """The tensors of a plan and a batch that a step reads, in order."""
    tensors: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(_parts_of(plan, batch), take)
    return tensors
