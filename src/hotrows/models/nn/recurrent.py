"""Gated recurrent units over lists of uneven length, plain and steered by attention (DIEN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn.jagged_products import Lists
from hotrows.ops.layers import padded, recurrent
from hotrows.ops.layers.jagged import repeat_lists, sum_lists
from hotrows.ops.layers.padded import PaddedLists
from hotrows.ops.layers.recurrent import KINDS, RESETS


class _Cell(nn.Module):
    """The parameters of `nn.GRU`'s only layer, so its weights load as they are."""

    def __init__(
        self, input_size: int, hidden_size: int, reset: str = "after", gate_bias: float | None = None
    ) -> None:
        super().__init__()
        if min(input_size, hidden_size) < 1:
            raise ValueError(
                f"input_size and hidden_size must be positive, not {input_size} and {hidden_size}"
            )
        if reset not in RESETS:
            raise ValueError(f"reset must be one of {', '.join(RESETS)}, not {reset!r}")
        self.input_size, self.hidden_size = input_size, hidden_size
        self.reset, self.gate_bias = reset, gate_bias
        num = 3 * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(num, input_size))
        self.weight_hh = nn.Parameter(torch.empty(num, hidden_size))
        self.bias_ih, self.bias_hh = nn.Parameter(torch.empty(num)), nn.Parameter(torch.empty(num))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.hidden_size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        if self.gate_bias is not None:
            nn.init.zeros_(self.bias_ih)
            nn.init.zeros_(self.bias_hh)
            nn.init.constant_(self.bias_ih[: 2 * self.hidden_size], self.gate_bias)

    def _states(
        self,
        x: Tensor,
        attention: Tensor | None,
        offsets: Lists | SharedLists,
        kind: str,
        lengths: Tensor | None,
    ) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self.input_size:
            raise ValueError(f"x must be [N, {self.input_size}], one row a position, not {list(x.shape)}")
        if isinstance(offsets, SharedLists) and offsets.one_sample_each:
            offsets = offsets.offsets
        num = int(offsets.sample_offsets[-1]) if isinstance(offsets, SharedLists) else x.shape[0]
        if attention is not None and attention.shape != (num,):
            raise ValueError(
                f"attention must be [N], one weight for each of the {num} positions, "
                f"not {list(attention.shape)}"
            )
        dtype = self.weight_hh.dtype
        attention = None if attention is None else attention.to(dtype)
        if isinstance(offsets, PaddedLists):
            parts = nn.functional.linear(x.to(dtype), self.weight_ih, self.bias_ih)
            return padded.recurrent(
                parts, attention, offsets, self.weight_hh, self.bias_hh, kind, self.reset
            )
        return _Recurrence.apply(
            x.to(dtype), attention, offsets, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh,
            kind, self.reset, lengths,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, reset={self.reset!r}"


class GRU(_Cell):
    """A GRU over lists of any length.

    x [N, D] and offsets [B + 1] -> the states [N, H] at every position, from zeros (Cho et al. 2014).

    reset: whether the reset gate meets the state "after" its product with the candidate's weights,
    as in PyTorch and cuDNN, or "before" it, as in the first paper and TensorFlow's GRUCell.
    gate_bias: None draws everything from U(-1/sqrt(H), 1/sqrt(H)) as `nn.GRU` does; a number starts
    the biases of both gates there and the candidate's at 0 (TensorFlow: 1.0). z keeps the old state
    here as in TensorFlow, so 1.0 has the same meaning.

    Computes in the parameters' dtype, float32 as a rule, under autocast too. lengths: [B], how long each
    list is, in host memory where that is known there; without it a GPU is waited for.

    >>> GRU(input_size=4, hidden_size=6)(torch.zeros(5, 4), torch.tensor([0, 2, 5])).shape
    torch.Size([5, 6])
    """

    def forward(self, x: Tensor, offsets: Lists, lengths: Tensor | None = None) -> Tensor:
        return self._states(x, None, offsets, "gru", lengths)


class AttentionalGRU(_Cell):
    """x [N, D], attention [N] and offsets [B + 1] -> states [N, H] (DIEN, Zhou et al. 2019).

    The new state is h + share * (n - h), n the candidate. kind says how the attention a of a
    position enters the share:

        "augru"       a * z            the paper's AUGRU (FuxiCTR, DeepCTR-Torch)
        "augru_code"  1 - (1 - a) * z  its authors' code, VecAttGRUCell: z keeps the old state
        "agru"        a                the paper's AGRU; z and its parameters stay unused

    Where lists are shared, x is [N, D] of R requests, attention and states are of every sample's list.

    The authors' code is kind="augru_code", reset="before", gate_bias=1.0; the paper's formulas are
    the defaults. Where a is 0, "augru" and "agru" leave the state as it was; "augru_code" is then
    a plain GRU without attention. reset, gate_bias, lengths and dtypes: as in `GRU`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        kind: str = "augru",
        reset: str = "after",
        gate_bias: float | None = None,
    ) -> None:
        others = [name for name in KINDS if name != "gru"]
        if kind not in others:
            raise ValueError(f"kind must be one of {', '.join(others)}, not {kind!r}")
        super().__init__(input_size, hidden_size, reset, gate_bias)
        self.kind = kind

    def forward(
        self, x: Tensor, attention: Tensor, offsets: Lists | SharedLists, lengths: Tensor | None = None
    ) -> Tensor:
        return self._states(x, attention, offsets, self.kind, lengths)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kind={self.kind!r}"


class _Recurrence(torch.autograd.Function):
    """Input products and recurrence in one, so that the gates may take the products' place."""

    @staticmethod
    def forward(ctx, x, attention, lists, weight_ih, weight_hh, bias_ih, bias_hh, kind, reset, lengths):
        shared = lists if isinstance(lists, SharedLists) else None
        offsets = lists if shared is None else shared.sample_offsets
        with torch.autocast(x.device.type, enabled=False):
            parts = torch.addmm(bias_ih, x, weight_ih.t())
            if shared is not None:
                parts = repeat_lists(parts, shared.offsets, shared.starts)
            order = recurrent.longest_first(offsets, weight_hh.shape[1])
            states, gates, inner = recurrent.recurrent(
                parts, attention, offsets, weight_hh, bias_hh, kind, reset, lengths, order
            )
        ctx.save_for_backward(x, attention, offsets, weight_ih, weight_hh, states, gates, inner, order)
        ctx.kind, ctx.reset, ctx.lengths, ctx.shared = kind, reset, lengths, shared
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, attention, offsets, weight_ih, weight_hh, states, gates, inner, order = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            grad_parts, grad_attention, grad_weight_hh, *grad_biases = recurrent.recurrent_backward(
                grad, states, gates, inner, attention, offsets, weight_hh,
                ctx.kind, ctx.reset, ctx.lengths, order,
            )  # fmt: skip
            if ctx.shared is not None:
                grad_parts = sum_lists(grad_parts, ctx.shared.offsets, ctx.shared.starts)
            grad_x = grad_parts.mm(weight_ih) if ctx.needs_input_grad[0] else None
            grad_weight_ih = grad_parts.t().mm(x)
        grads = grad_x, grad_attention, None, grad_weight_ih, grad_weight_hh, *grad_biases
        return *grads, None, None, None
