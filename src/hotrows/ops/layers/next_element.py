"""DIEN's auxiliary loss by the inner product: each state tells the element after it from another."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.ops.layers.by_device import by_device, gpu_op
from hotrows.ops.layers.jagged import samples_of


def next_element_loss(
    states: Tensor, past: Tensor, offsets: Tensor, others: Tensor, num_samples: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean cross-entropy over all elements n that have a next one in their list; 0 where none has.

    states, past: [N, D]; offsets: [B + 1]; others: [N - 1], a permutation. State n is multiplied with
    past[n + 1], for the label 1, and with past[others[n] + 1], for 0. num_samples: [B], how much each
    list counts; None: 1. Returns the loss, and for the way back what it was divided by, the slopes
    [2, N - 1] of both products and the inverse of `others`.
    """
    return by_device(next_element_loss_reference, states, past, offsets, others, num_samples)


def next_element_loss_backward(
    grad: Tensor,
    states: Tensor,
    past: Tensor,
    others: Tensor,
    total: Tensor,
    slopes: Tensor,
    back: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of states and past; total, slopes and back as `next_element_loss` returns them."""
    reads = states, past, others, total, slopes, back
    return by_device(next_element_loss_backward_reference, grad, *reads)


@gpu_op("next_element")
def next_element_loss_reference(
    states: Tensor, past: Tensor, offsets: Tensor, others: Tensor, num_samples: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sample = samples_of(offsets, len(past))
    is_next = (sample[1:] == sample[:-1]) & (sample[1:] < len(offsets) - 1)
    weight = is_next.to(states.dtype)  # [N - 1]
    if num_samples is not None:
        weight = weight * num_samples[sample[1:]]
    total = weight.sum().clamp(min=1)
    positive = (states[:-1] * past[1:]).sum(1)
    negative = (states[:-1] * past[1:][others]).sum(1)
    losses = functional.softplus(-positive) + functional.softplus(negative)
    slopes = torch.stack([-weight * torch.sigmoid(-positive), weight * torch.sigmoid(negative)])
    back = torch.empty_like(others)
    back[others] = torch.arange(len(others), device=others.device)
    return (losses * weight).sum() / total, total, slopes, back


@gpu_op("next_element")
def next_element_loss_backward_reference(
    grad: Tensor,
    states: Tensor,
    past: Tensor,
    others: Tensor,
    total: Tensor,
    slopes: Tensor,
    back: Tensor,
) -> tuple[Tensor, Tensor]:
    by_next, by_other = (slopes * (grad / total))[:, :, None]  # [N - 1, 1]
    grad_states, grad_past = torch.zeros_like(states), torch.zeros_like(past)
    grad_states[:-1] = by_next * past[1:] + by_other * past[1:][others]
    grad_past[1:] = by_next * states[:-1] + (by_other * states[:-1])[back]
    return grad_states, grad_past
