"""What the check asks of a library's model: how it is built, its batches, and its own training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

Batch = Any


@dataclass(frozen=True)
class Training:
    """The optimizer of one run, and the library's own step with it: forward, loss, backward, update."""

    optimizer: Optimizer
    step: Callable[[Batch], object]


@dataclass(frozen=True)
class Recipe:
    """build: the model, on the default dtype and the global seed.

    batches: made anew each time, of float64 or float32. training: an optimizer by its name, and a step.
    arguments: those of `model(...)` for a batch. remark: what the table says beside the model.
    """

    build: Callable[[], nn.Module]
    batches: Callable[[torch.dtype], list[Batch]]
    training: Callable[[nn.Module, str], Training]
    arguments: Callable[[nn.Module, Batch], tuple[Any, ...]]
    optimizers: tuple[str, ...] = ("sgd", "adagrad", "adam", "adamw", "rmsprop")
    remark: str = ""
    float64: bool = True  # whether it can run in it
    draws: bool = False  # random numbers in its forward, which differ between dtypes


@dataclass(frozen=True)
class Library:
    """recipes: of each model that it exports, or the reason why there is none."""

    name: str
    environment: str
    versions: Callable[[], dict[str, str]]
    recipes: dict[str, Recipe | str] = field(default_factory=dict)


# Large enough that twenty steps move the weights well above rounding.
RATES = {"sgd": 0.1, "adagrad": 0.05, "adam": 1e-3, "adamw": 1e-3, "rmsprop": 1e-3, "sparse_adam": 1e-3}
CLASSES: dict[str, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sparse_adam": torch.optim.SparseAdam,
}


def optimizer_of(model: nn.Module, name: str, **options: Any) -> Optimizer:
    return CLASSES[name](model.parameters(), lr=RATES[name], **options)


def place_of(model: nn.Module) -> str:
    """Where the model is, as the libraries' trainers are told it."""
    return str(next(model.parameters()).device)


def tell_place(model: nn.Module) -> None:
    """Tells a model and its parts where they are, which libraries note as they make them; brings tensors
    there that are no buffers."""
    place = torch.device(place_of(model))
    for module in model.modules():
        for name, value in vars(module).items():
            if name == "device":
                vars(module)[name] = place
            elif isinstance(value, torch.Tensor):
                vars(module)[name] = value.to(place)


def no_dropout(model: nn.Module) -> nn.Module:
    """The model with every dropout's probability at zero, for a mask depends on the dtype."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    return model
