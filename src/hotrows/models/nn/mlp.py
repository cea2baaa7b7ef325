"""Layers of perceptrons: Linear, batch normalisation, activation, dropout, again and again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hotrows.models.nn.batch_norm import BatchNorm
from hotrows.models.nn.dice import Dice
from hotrows.models.nn.dropout import Dropout
from hotrows.models.nn.linear import can_chain, chain
from hotrows.models.nn.prelu import PReLU
from hotrows.ops.layers.row_products import JoinedRows

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "none": lambda x: x,
}
LEARNED: dict[str, Callable[[int], nn.Module]] = {"dice": Dice, "prelu": PReLU}


class Activation(nn.Module):
    """One of `ACTIVATIONS`, by its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.name](x)

    def extra_repr(self) -> str:
        return self.name


def activation_layer(name: str, width: int) -> nn.Module:
    """The activation of that name for `width` features; some have parameters of their own."""
    check_activations(name)
    return LEARNED[name](width) if name in LEARNED else Activation(name)


class MLP(nn.Module):
    """A multilayer perceptron, linear layers of the given sizes: [B, sizes[0]] -> [B, sizes[-1]].

    activation: after every layer but the last.
    last_activation: after the last: "relu", "sigmoid", "tanh", "none", or, with parameters of their own
    for each layer, "prelu" and "dice".
    dropout: the share of hidden activations dropped in training.
    batch_norm: before activations. Weights start at N(0, sqrt(2 / (in + out))) as in DLRM, biases at 0.

    Where `use_linear_paths` was called, a layer and its ReLU are one function, and so are all
    layers together where nothing else is between them; else every part is PyTorch's own.

    >>> MLP([6, 16, 1])(torch.zeros(4, 6)).shape
    torch.Size([4, 1])
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
        last_activation: str = "none",
    ) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"MLP needs at least two positive sizes, not {tuple(sizes)}")
        check_activations(activation, last_activation)
        pairs = list(itertools.pairwise(sizes))
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.norms = nn.ModuleList(BatchNorm(size) for size in sizes[1:-1] if batch_norm)
        self.dropout = Dropout(dropout)
        self.activations = (activation,) * (len(pairs) - 1) + (last_activation,)
        self.after = nn.ModuleList(
            activation_layer(name, size) for name, size in zip(self.activations, sizes[1:], strict=True)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor | JoinedRows, real: Tensor | None = None) -> Tensor:
        """x: [B, sizes[0]], or the rows that it is made of; on a GPU, in 16 bits, with zeros behind.
        real: as in `Dice`."""
        if not isinstance(x, JoinedRows):
            return self._layers_from(x, 0, real)
        layer = self.layers[0]
        assert isinstance(layer, nn.Linear)
        return self._layers_from(self._after_first(x.product(layer.weight) + layer.bias), 1)

    def _layers_from(self, x: Tensor, first: int, real: Tensor | None = None) -> Tensor:
        """The layers from that place on."""
        layers = list(self.layers)
        if first == len(layers):
            return x
        if self._is_chain() and can_chain(x, layers[first:]):
            return chain(x, layers[first:], [name == "relu" for name in self.activations[first:]])
        for place in range(first, len(layers)):
            norm = self.norms[place] if self.norms and place < len(layers) - 1 else None
            x = perceptron(x, layers[place], norm, self.after[place], real)
            if place < len(layers) - 1:
                x = self.dropout(x)
        return x

    def _after_first(self, x: Tensor) -> Tensor:
        """What follows the first linear layer."""
        if len(self.layers) == 1:
            return self.after[0](x)
        return self.dropout(self.after[0](self.norms[0](x) if self.norms else x))

    def _is_chain(self) -> bool:
        drops = self.training and self.dropout.p > 0
        return not drops and not self.norms and set(self.activations) <= {"relu", "none"}


def perceptron(
    x: Tensor, layer: nn.Module, norm: nn.Module | None, after: nn.Module, real: Tensor | None = None
) -> Tensor:
    """One layer, its normalisation and its activation, in one function where there is one."""
    is_relu = isinstance(after, Activation) and after.name == "relu"
    if norm is None and is_relu and can_chain(x, [layer]):
        return chain(x, [layer], relu=[True])
    if isinstance(layer, nn.Linear) and (padding := padding_of(x, layer.in_features)):
        x = _linear_of_padded(x, layer, padding)
    else:
        x = layer(x)
    return activated(x if norm is None else norm(x, real), after, real)


def activated(x: Tensor, after: nn.Module, real: Tensor | None) -> Tensor:
    """The activation of x. real: as in `Dice`, the one activation that asks how many rows count."""
    return after(x, real) if isinstance(after, Dice) else after(x)


def padding_of(x: Tensor, width: int) -> int:
    """How many columns of zeros are to follow `width` columns of x's dtype: on a GPU, matrices of 16 bits
    whose rows begin at multiples of 16 bytes are multiplied faster."""
    is_narrow = x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)
    return -width % 8 if is_narrow and not torch.compiler.is_compiling() else 0


def _linear_of_padded(x: Tensor, layer: nn.Linear, padding: int) -> Tensor:
    """The layer's outputs; x: its inputs, with `padding` columns of zeros behind or without them."""
    if x.shape[-1] == layer.in_features:
        x = nn.functional.pad(x, (0, padding))
    return nn.functional.linear(x, nn.functional.pad(layer.weight, (0, padding)), layer.bias)


def linear_from_zero(num_inputs: int) -> MLP:
    """One linear layer, [B, K] -> [B, 1], that says nothing before it is trained.

    For linear parts that are added to a logit: their inputs are not scaled, and weights drawn at
    random would be noise that few steps cannot undo.
    """
    layer = MLP((num_inputs, 1))
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def check_activations(*names: str) -> None:
    known = sorted((*ACTIVATIONS, *LEARNED))
    for name in names:
        if name not in known:
            raise ValueError(f"activation must be one of {known}, not {name!r}")
