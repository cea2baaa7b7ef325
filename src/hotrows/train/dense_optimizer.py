"""The optimizer of a model's dense part, and its state in checkpoints."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor

from hotrows.config import TrainConfig


def dense_optimizer(
    config: TrainConfig, model: torch.nn.Module, is_captured: bool = False
) -> torch.optim.Optimizer:
    """Returns the optimizer that the config names, for the parameters of the model.

    is_captured: its learning rate is a tensor on the device, where a captured step reads it.
    """
    kinds = {"adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
    options: dict[str, Any] = {"lr": config.dense_lr, "fused": True}
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
