"""A training step captured as a CUDA graph and replayed, where it can be; what else a run on a GPU does
by default, in one line with the reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.embedding import Embedding
from hotrows.models import Model
from hotrows.ops.plan import PackPlan, Plan
from hotrows.ops.record import MAX_KERNEL_DIM
from hotrows.optim import DenseRowOptimizer
from hotrows.runtime.transfer import map_tensors
from hotrows.schema import Schema, is_list
from hotrows.train.config import TrainConfig
from hotrows.train.loop.step import Step, log

_PRODUCTS = {
    "float32": "in float32",
    "tf32": "in TF32 (float32 on tensor cores, which round its factors to 10 bits)",
    "bfloat16": "in bfloat16",
}
_WARM = 3  # steps of a form before it is captured: kernels are compiled and workspaces made in them
_MOST = 8  # graphs at a time


class CapturedStep:
    """A `Step` as a CUDA graph: launched at once, however many kernels it has.

    A graph reads batches of one form (sizes of all tensors), so every form has its own; plans are
    padded, so that all full batches have one form, and those with lists one of a few. The first steps of
    a form run kernel by kernel, and so do those of batches in parts, of batches with more rows than fit,
    and of a ninth form, until it has been met twice as often as one that has a graph and gives it up.

    is_wanted: a step that cannot be captured is an error; else a warning, and steps are launched kernel
    by kernel.
    """

    def __init__(self, step: Step, is_wanted: bool = True) -> None:
        self._step, self._is_wanted = step, is_wanted
        self._failed = False
        self._pool = step.embedding.device.graph_pool()
        self._seen: dict[Any, int] = {}
        self._forms: dict[Any, _Form] = {}
        self._has_warned = False

    def __call__(self, plan: Plan, batch: Batch, scale: float) -> Tensor:
        step = self._step
        if self._failed:
            return step(plan, batch, scale)
        if plan.micro_batches or any(group.bypasses_cache for group in plan.moves):
            self._warn()
            return step(plan, batch, scale)
        tensors = _read(plan, batch)
        form = _form(plan, tensors)
        self._seen[form] = self._seen.get(form, 0) + 1
        if form not in self._forms and (self._seen[form] < _WARM or not self._has_room(form)):
            return step(plan, batch, scale)
        if form not in self._forms and self._seen[form] == _WARM:
            with step.embedding.device.noting_waits() as places:
                loss = step(plan, batch, scale)
            if places:
                self._fail(RuntimeError(f"it waits for the device at {places[0]}"))
            return loss
        step.set_rate(scale)
        numbers = step.embedding.hyperparameters(plan.step, scale)
        if form not in self._forms:
            try:
                self._forms[form] = self._captured(plan, batch, numbers)
            except RuntimeError as error:
                self._fail(error)
                return step(plan, batch, scale)
        return self._forms[form].replay(plan, tensors, numbers, step.embedding)

    def _has_room(self, form: Any) -> bool:
        """Whether there may be one more graph, for which one may go that is used half as often."""
        if len(self._forms) == _MOST:
            least = min(self._forms, key=self._seen.__getitem__)
            if self._seen[form] < 2 * self._seen[least]:
                return False
            del self._forms[least]
        return True

    def _captured(self, plan: Plan, batch: Batch, numbers: Tensor) -> _Form:
        copies = {id(tensor): tensor.clone() for tensor in _read(plan, batch)}
        packs, (dense, labels, weights, groups) = map_tensors(
            _parts_of(plan, batch), lambda tensor: copies[id(tensor)]
        )
        plan = dataclasses.replace(plan, packs=packs)
        read = {"dense": dense, "labels": labels, "sample_weights": weights, "groups": groups}
        batch = dataclasses.replace(batch, **read)
        numbers = numbers.clone()
        launch = self._step.embedding.device.capture(
            lambda: self._step.run(plan, batch, numbers), self._pool
        )
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
                "cuda_graph: batches of this data differ in size (micro-batches, or more rows than fast "
                "memory holds), so their steps are launched kernel by kernel"
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
    """The tensors of a plan and a batch that a step reads, in order; one of several packs once."""
    tensors: dict[int, Tensor] = {}
    map_tensors(_parts_of(plan, batch), lambda tensor: tensors.setdefault(id(tensor), tensor))
    return [*tensors.values()]


def _form(plan: Plan, tensors: Sequence[Tensor]) -> Any:
    """What a graph is made for: sizes of all tensors and of sequences, and which sequences have lists of
    equal lengths, as the model checks on the host where it compares several."""
    starts = [s for pack in plan.host.packs for s in (pack.sequence_starts or {}).values()]
    equal = tuple(
        next(n for n, other in enumerate(starts) if one is other or torch.equal(one, other))
        for one in starts
    )
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
    return shapes, tuple(pack.sequence_sizes for pack in plan.packs), equal


def refusal_of_capture(embedding: Embedding, ranks: Ranks, model: Model) -> str | None:
    """Why a step cannot be captured as a CUDA graph, and what to do; None: it can."""
    if ranks.num_ranks > 1:
        return (
            f"how many rows {ranks.num_ranks} ranks exchange differs from batch to batch, and a captured "
            f"step cannot: leave it out, or start one rank"
        )
    if model.sequences and not model.takes_padding:
        return (
            f"sequences of batches differ in size, and {type(model).__name__} does not say that they may "
            f"be padded: leave it out, or set takes_padding in the model"
        )
    if embedding.dynamic.vocabularies:
        return "a captured step gives new keys no rows: leave it out for dynamic features"
    for table in embedding.tables:
        optimizer = table.optimizer
        if isinstance(optimizer, DenseRowOptimizer):
            return (
                f"how many steps rows of table {table.name!r} have missed under its optimizer "
                f"{optimizer.kind} differs from step to step, and a captured step cannot: leave it out, "
                f"or choose a lazy row optimizer such as adam"
            )
        if table.dim > MAX_KERNEL_DIM:
            return (
                f"table {table.name!r} has dim {table.dim:,}, and rows wider than {MAX_KERNEL_DIM:,} are "
                f"updated by numbers that the host reads: leave it out, or choose a smaller dim"
            )
    return None


def why_not_captured(config: TrainConfig, embedding: Embedding, refusal: str | None) -> str | None:
    """Why steps are not captured where the config leaves it open; None: they are.

    refusal: `refusal_of_capture`.
    """
    if config.device == "cpu":
        return "there is no GPU"
    if config.cuda_graph is False:
        return "cuda_graph is off"
    if config.dense_optimizer == "adagrad":
        return "PyTorch's Adagrad cannot be captured"
    if embedding.planner.micro_batches > 1:
        return "batches are trained in parts"
    return refusal


def described(config: TrainConfig, embedding: Embedding, schema: Schema, not_captured: str | None) -> str:
    """One line: number format, planning and launches of a run on a GPU, and why these."""
    planner = embedding.device_planner
    if planner is None:
        on_host: str | None = "asked for"
    elif any(map(is_list, schema.id_features)):
        on_host = "features are lists of ids"
    else:
        on_host = planner.refusal_of_all()
    plans = "on the GPU" if on_host is None else f"on the host ({on_host})"
    graph = "as one CUDA graph, after three that warm up"
    launches = graph if not_captured is None else f"kernel by kernel ({not_captured.split(':')[0]})"
    return (
        f"GPU: products {_PRODUCTS[config.precision or 'float32']}, batches planned {plans}, steps "
        f"launched {launches}; --precision, --planning and --cuda-graph choose"
    )
