"""Target attention of DIN (Zhou et al., KDD 2018): which of a user's past items speak for this one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn.dice import Dice
from hotrows.models.nn.jagged_products import (
    Lists,
    num_real,
    read_by_samples,
    softmax_jagged,
    weighted_sum,
    widened,
)
from hotrows.models.nn.mlp import MLP, Activation, activated, activation_layer
from hotrows.models.nn.prelu import PReLU
from hotrows.ops.layers import attention, padded
from hotrows.ops.layers.padded import PaddedLists
from hotrows.runtime.native import takes


class TargetAttention(nn.Module):
    """Attention of a target over a list.

    queries [B, D], keys [N, D] and offsets [B + 1] -> [B, D]: a weighted sum of each sample's keys.

    A key's score is an MLP of [q, k, q - k, q * k], its layers `hidden` and 1 wide. An empty list
    gives zeros.

    activation: after each hidden layer: "sigmoid" as in the authors' code
    (zhougr1993/DeepInterestNetwork), or "dice", "prelu", "relu", "tanh", "none".
    normalize: True takes the softmax of scores / sqrt(D) as weights, as the authors' code does; False
    takes the scores themselves, as the paper's text does, so that their sum tells how strong an
    interest is.
    scale: what scores are multiplied with, where it is neither 1 / sqrt(D) (normalized) nor 1 (else);
    the authors' DIEN (mouna99/dien) normalizes with scale=1.

    Nothing is padded. On the native core all of it is one function (`ops.attention.target_attention`) but
    with Dice: a batch holds one number for each key. Elsewhere layers follow one another, and the first
    never builds its input (`ops.attention.target_projection`); a batch then holds [N, H] values. Dice of
    a single hidden layer and the last layer are one function there, too.

    >>> attention = TargetAttention(dim=8)
    >>> attention(torch.zeros(2, 8), torch.zeros(5, 8), torch.tensor([0, 2, 5])).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (80, 40),
        activation: str = "sigmoid",
        normalize: bool = True,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if dim < 1 or not hidden:
            raise ValueError(
                "TargetAttention needs dim >= 1 and at least one hidden layer, "
                f"not dim={dim}, hidden={tuple(hidden)}"
            )
        self.first = TargetProjection(dim, hidden[0])
        self.activation = activation_layer(activation, hidden[0])
        self.add_module("rest", MLP((*hidden, 1), activation=activation))  # its name in checkpoints
        self.normalize = normalize
        self.scale = scale if scale is not None else dim**-0.5 if normalize else 1.0

    def forward(self, queries: Tensor, keys: Tensor, offsets: Lists | SharedLists) -> Tensor:
        if self._is_one_function(queries, keys, offsets):
            return self._at_once(queries, keys, offsets, pooled=True)
        first, keys = self.first.with_keys(queries, keys, offsets)
        return weighted_sum(self._scores(first, offsets), keys, offsets)

    def scores(self, queries: Tensor, keys: Tensor, offsets: Lists | SharedLists) -> Tensor:
        """The weight of each key, after normalisation: [N]."""
        if self._is_one_function(queries, keys, offsets):
            return self._at_once(queries, keys, offsets, pooled=False)
        return self._scores(self.first(queries, keys, offsets), offsets)

    def _scores(self, first: Tensor, offsets: Lists | SharedLists) -> Tensor:
        """first: what the first layer makes of each key, [N, H]."""
        real, last = num_real(offsets), self._last_behind_dice(first)
        if real is None and last is not None:
            scores = self.activation(first, weight=last.weight[0].contiguous()) + last.bias
        else:
            first = activated(first, self.activation, real)
            scores = widened(self.get_submodule("rest")(first, real)).flatten()  # [N]
        scores = scores if self.scale == 1 else scores * self.scale
        return softmax_jagged(scores, offsets) if self.normalize else scores

    def _is_one_function(self, queries: Tensor, keys: Tensor, offsets: Lists | SharedLists) -> bool:
        """True on the native core, unless Dice reads the statistics of a layer or a hook its values."""
        return (
            not isinstance(offsets, PaddedLists)
            and not isinstance(self.activation, Dice)
            and takes(widened(queries), widened(keys), *self.parameters())
            and not self._has_hooks()
        )

    def _last_behind_dice(self, first: Tensor) -> nn.Linear | None:
        """The last layer where Dice of the first stands before it: on the native core one function."""
        layers = [module for module in self.modules() if isinstance(module, nn.Linear)]
        if not isinstance(self.activation, Dice) or len(layers) > 1 or self._has_hooks():
            return None
        return layers[0] if takes(first, *self.parameters()) else None

    def _has_hooks(self) -> bool:
        layers = [module for child in self.children() for module in child.modules()]
        return any(module._forward_hooks or module._forward_pre_hooks for module in layers)

    def _at_once(
        self, queries: Tensor, keys: Tensor, offsets: Lists | SharedLists, pooled: bool
    ) -> Tensor:
        self.first.check(queries, keys)
        read, offsets, starts = read_by_samples(widened(keys), offsets)
        sizes, name, others, slopes = self.network()
        network = attention.TargetNetwork(torch.tensor(sizes), name, self.scale, self.normalize)
        return _TargetAttention.apply(
            network, pooled, widened(queries), read, offsets, starts, self.first.weight, self.first.bias,
            torch.cat([p.flatten() for p in others]),
            torch.cat(tuple(slopes)) if slopes else None,
        )  # fmt: skip

    def network(self) -> tuple[list[int], str, list[nn.Parameter], list[nn.Parameter]]:
        """The sizes of the hidden layers, their activation, the parameters of all layers behind the first
        and the slopes of PReLUs, as the core takes them."""
        layers = [m for m in self.modules() if isinstance(m, nn.Linear)]
        slopes = [m.weight for m in self.modules() if isinstance(m, PReLU)]
        name = self.activation.name if isinstance(self.activation, Activation) else "prelu"
        others = [p for layer in layers for p in layer.parameters()]
        return [layer.in_features for layer in layers], name, others, slopes


class _TargetAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, network, pooled, queries, keys, offsets, starts, *parameters):
        inputs = queries.contiguous(), keys.contiguous(), offsets, starts
        weights, out = attention.target_attention(network, parameters, *inputs, pooled)
        ctx.network = network
        ctx.save_for_backward(*inputs, weights, out, *parameters)
        return weights if out is None else out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        queries, keys, offsets, starts, weights, out, *parameters = ctx.saved_tensors
        gradients = attention.target_attention_backward(
            ctx.network, parameters, queries, keys, offsets, starts, grad.contiguous(), weights, out
        )
        return None, None, *gradients[:2], None, None, *gradients[2:]


class TargetProjection(nn.Module):
    """weight [q, k, q - k, q * k] + bias for each key: [B, D], [N, D], [B + 1] -> [N, H], float32.

    The weight, [H, 4D], starts as that of an MLP's layer on these 4D inputs.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 4 * dim))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, queries: Tensor, keys: Tensor, offsets: Lists | SharedLists) -> Tensor:
        return self.with_keys(queries, keys, offsets)[0]

    def with_keys(
        self, queries: Tensor, keys: Tensor, offsets: Lists | SharedLists
    ) -> tuple[Tensor, Tensor]:
        """Also returns the keys, for what reads them next: both gradients are then added in one pass."""
        self.check(queries, keys)
        queries, keys = widened(queries), widened(keys)
        if isinstance(offsets, PaddedLists):
            return padded.target_projection(queries, keys, offsets, self.weight, self.bias), keys
        read, offsets, starts = read_by_samples(keys, offsets)
        out, same = _TargetProjection.apply(queries, read, offsets, self.weight, self.bias, starts)
        return out, same if read is keys else keys

    def check(self, queries: Tensor, keys: Tensor) -> None:
        dim = self.weight.shape[1] // 4
        if queries.dim() != 2 or keys.dim() != 2 or {queries.shape[1], keys.shape[1]} != {dim}:
            raise ValueError(
                f"TargetAttention of dim={dim} needs queries [B, {dim}] and keys [N, {dim}], "
                f"not {list(queries.shape)} and {list(keys.shape)}"
            )


class _TargetProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries, keys, offsets, weight, bias, starts):
        ctx.save_for_backward(queries, keys, offsets, weight, starts)
        ctx.set_materialize_grads(False)
        with torch.autocast(keys.device.type, enabled=False):
            out = attention.target_projection(queries, keys, offsets, weight, bias, starts)
        return out, keys.view_as(keys)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, more):
        if grad is None:
            return None, more, None, None, None, None
        queries, keys, offsets, weight, starts = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            gradients = attention.target_projection_backward(
                grad, queries, keys, offsets, weight, more, starts
            )
        return *gradients[:2], None, *gradients[2:], None
