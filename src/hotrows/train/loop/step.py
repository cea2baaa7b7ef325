"""Step: one update of tables and model on a planned batch.

    step = Step(recommender, optimizer, config)
    loss = step(plan, batch, scale)          # lookup, model, loss, backward, update, dense optimizer

On a device nothing in it waits for the device. `CapturedStep` launches it as one CUDA graph.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotrows import models
from hotrows.batch import Batch, split
from hotrows.engine.clipping import Clip
from hotrows.engine.distributed.comm import Note, OneRank
from hotrows.engine.distributed.dense_gradients import SharedGradients
from hotrows.engine.planning.packing import Pack
from hotrows.engine.vectors import Vectors, of_leaves
from hotrows.models import Model
from hotrows.ops.plan import Plan
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import Recommender

log = logging.getLogger("hotrows")

Output = Tensor | tuple[Tensor, Tensor]
_OF_SAMPLES, _PACES = ("forward", "backward"), 40


class Step:
    """Trains `recommender` in place.

    paces: of the last steps, the seconds of forward and backward for each of this rank's samples, without
    waits for other ranks.
    optimizer: of the dense part. shared: sums its gradients over ranks. note: called with the begin and
    the end of each part of a step; on a device, of its launch. scored: called with the logits of samples,
    [B] or [B, T], before they change the model.
    """

    note: Note | None = None
    scored: Callable[[Tensor, Batch], None] | None = None
    _own = 0.0

    def __init__(
        self,
        recommender: Recommender,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        shared: SharedGradients | None = None,
    ) -> None:
        self.recommender, self.optimizer, self.config = recommender, optimizer, config
        self.model, self.embedding = recommender.model, recommender.embedding
        self._shared = shared or SharedGradients(self.model, OneRank())
        self._waits = recommender.ranks.sent.waits
        self.paces: deque[float] = deque(maxlen=_PACES)
        self._rate: Callable[[float], float] = float
        self._gradient_of: Callable[[Tensor], Tensor | None] = _of_pytorch
        if not self.embedding.device.on_host:  # as a captured step reads it, so that bits are equal
            self._rate, self._gradient_of = _in_float32, _Ones()
        self._forward: Callable = self.model
        if config.compile:
            self._forward = compiled(self.model, self.embedding.packs)

    def __call__(self, plan: Plan, batch: Batch, scale: float) -> Tensor:
        """Trains on a batch; returns the loss of this rank's samples, times their share of all.

        scale: of both learning rates.
        """
        self.set_rate(scale)
        try:
            return self.run(plan, batch, self.embedding.hyperparameters(plan.step, scale))
        except torch.OutOfMemoryError as error:
            parts = 2 * max(len(plan.micro_batches), 1)
            raise ValueError(
                f"step {plan.step:,}, of {batch.size:,} samples, needs more of the device's memory than "
                f"is left: train batches in parts (micro_batches={parts}), with a smaller batch_size, or "
                f"with fewer rows on the device (fast_memory); PyTorch: {str(error).splitlines()[0]}"
            ) from error

    def set_rate(self, scale: float) -> None:
        """Sets the learning rate of the dense part, in place where a captured step reads it."""
        assert self.config.dense_lr is not None
        rate = self._rate(self.config.dense_lr * scale)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def run(self, plan: Plan, batch: Batch, numbers: Tensor) -> Tensor:
        """One step with the rows' `numbers` (`Embedding.hyperparameters`), the dense rate being set."""
        is_tf32 = self.config.precision == "tf32"
        with self.embedding.device.products_in_tf32() if is_tf32 else nullcontext():
            return self._run(plan, batch, numbers)

    def _run(self, plan: Plan, batch: Batch, numbers: Tensor) -> Tensor:
        parts = split(batch, max(len(plan.micro_batches), 1))
        self._own = 0.0
        losses, last = [], len(parts) - 1
        for number, part in enumerate(parts):
            vectors = self.embedding.lookup(plan, number)
            with self._noted("forward"), self._autocast():
                output = self._forward(vectors, part.dense)
            if self.scored is not None:
                self.scored(models.logits_and_loss(output)[0].detach(), part)
            loss = self.recommender.loss(output, part)
            if plan.micro_batches:
                loss = loss * plan.micro_batches[number].share
            with self._shared.summing() if number == last else nullcontext(), self._noted("backward"):
                loss.backward(self._gradient_of(loss))
            if number < last:
                self.embedding.send_gradients(plan, number, vectors)
            losses.append(loss.detach() if part.size else torch.zeros_like(loss.detach()))
        if batch.size:
            self.paces.append(self._own / batch.size)
        with self._noted("update"):
            factor = self.embedding.update(plan, vectors, hyperparameters=numbers, clip=self._clip())
        with self._noted("dense step"):
            self._dense_step(factor)
        return losses[0] if last == 0 else torch.stack(losses).sum()

    def _clip(self) -> Clip | None:
        """The largest norm of all gradients, where rows count in it."""
        if not self.config.clip_rows or self.config.clip_norm is None:
            return None
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return Clip(self.config.clip_norm, float(torch.nn.utils.get_total_norm(grads)) ** 2)

    def _dense_step(self, factor: float) -> None:
        """Steps the dense part. factor: of its gradients, where they are clipped with those of rows."""
        if factor != 1:
            torch._foreach_mul_([p.grad for p in self.model.parameters() if p.grad is not None], factor)
        if self.config.clip_norm is not None and not self.config.clip_rows:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> AbstractContextManager:
        if self.config.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.embedding.device.name, dtype=torch.bfloat16)

    @contextmanager
    def _noted(self, stage: str) -> Iterator[None]:
        begin, waited = time.perf_counter(), self._waits.seconds
        yield
        end = time.perf_counter()
        if stage in _OF_SAMPLES:
            self._own += end - begin - (self._waits.seconds - waited)
        if self.note is not None:
            self.note(stage, "model", begin, end)


def _in_float32(rate: float) -> float:
    return float(np.float32(rate))


def _of_pytorch(loss: Tensor) -> None:
    """PyTorch makes the gradient of a loss by itself. One that is passed it checks, and imports sympy for
    that: more than a second."""


class _Ones:
    """The gradient of a loss by itself, on a device, where making one is a launch: made once."""

    _ones: Tensor | None = None

    def __call__(self, loss: Tensor) -> Tensor:
        if self._ones is None or (self._ones.shape, self._ones.dtype) != (loss.shape, loss.dtype):
            self._ones = torch.ones_like(loss)
        return self._ones


def compiled(
    model: Model, packs: Sequence[Pack], backend: str = "inductor"
) -> Callable[[Vectors, Tensor], Output]:
    """Returns `model`, (vectors, dense) -> logits, compiled when it is first called, by size of batch.

        vectors.leaves, dense  ->  Vectors  ->  model  ->  logits

    The tracer sees neither plans nor ids, but the leaves of a lookup, to which gradients flow. Training
    and evaluation have graphs of their own, and so has the last batch of an epoch, which is smaller.

    packs: of the embedding that the vectors come from. backend: of `torch.compile`.
    A model of sequences is not compiled: the number of their elements differs in every batch, and each
    would be compiled again. Neither are batches whose samples share features, by requests.
    """
    if model.sequences:
        return model

    def run(leaves: tuple[Tensor, ...], dense: Tensor) -> Output:
        return model(of_leaves(packs, leaves, len(dense)), dense)

    traced = torch.compile(run, backend=backend, fullgraph=True, dynamic=False)

    def step(vectors: Vectors, dense: Tensor) -> Output:
        return traced(vectors.leaves, dense) if vectors.requests is None else model(vectors, dense)

    return step


def dense_optimizer(
    config: TrainConfig, model: torch.nn.Module, is_captured: bool = False
) -> torch.optim.Optimizer:
    """Returns the optimizer that the config names, for the parameters of the model.

    is_captured: its learning rate is a tensor on the device, where a captured step reads it.
    """
    kinds = {"adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
    decay = config.dense_weight_decay
    options: dict[str, Any] = {"lr": config.dense_lr, "fused": True, "weight_decay": decay}
    if config.device != "cpu" and config.dense_optimizer == "adagrad":
        options["fused"] = False  # PyTorch has none on a GPU
    if is_captured:
        assert config.dense_lr is not None
        options["lr"] = torch.full((), config.dense_lr, device=next(model.parameters()).device)
        if config.dense_optimizer == "adam":
            options["capturable"] = True
    return _without_compiler(kinds[config.dense_optimizer])(model.parameters(), **options)


@functools.cache
def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The optimizer, with methods that do not import `torch._dynamo`.

    PyTorch wraps them so that `torch.compile` leaves them alone, and the first call imports the compiler:
    three seconds, more than PyTorch itself takes. A training's own optimizer is never compiled.
    """
    names = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    methods["step"] = torch.no_grad()(methods["step"])
    return type(kind.__name__, (kind,), methods)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Returns the optimizer's state on the host, by `parameter number.name`."""
    return {
        f"{parameter}.{name}": value.cpu()
        for parameter, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Puts the tensors of `optimizer_tensors` into an optimizer of equal parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        parameter, name = key.split(".", 1)
        state.setdefault(int(parameter), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
