"""Arguments of the layers' ops, on odd shapes: empty lists, one sample, dims that are no power of two."""

import importlib
import itertools

import torch

from hotrows.ops.layers.by_device import OPS
from hotrows.ops.layers.recurrent import recurrent_reference

_NAMES = (
    "attention", "co_action", "hstu", "jagged", "recurrent",
)  # fmt: skip
LAYERS = [importlib.import_module(f"hotrows.ops.layers.{name}") for name in _NAMES]

LAUNCHES = {  # at most, of ops that have several: kernels, and calls of PyTorch that compute
    "target_projection_backward": 3, "recurrent_backward": 4,
    "pointwise_attention_backward": 4,
}  # fmt: skip
LISTS = ([3, 0, 1, 5, 0], [2], [0, 0], [70, 1, 0, 3])
RECURRENCES = (
    ([3, 0, 1, 5, 0], 5, "gru", "after"),
    ([2], 16, "gru", "before"),
    ([0, 0], 3, "augru", "before"),
    ([4] * 17 + [6], 3, "augru", "after"),
    ([3, 0, 2], 17, "augru_code", "before"),
    ([1, 2], 4, "agru", "after"),
)
CO_ACTIONS = (((5, 3, 2), 3, True), ((20, 1), 1, False), ((3, 17, 2, 4), 2, False))


def kernel(name):
    """The Triton function of an op."""
    return getattr(importlib.import_module(f"hotrows.ops.triton.{OPS[name]}"), name)


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def attention(lengths, dim, hidden):
    offsets = offsets_of(lengths)
    num, size = int(offsets[-1]), len(lengths)
    queries, keys = torch.randn(size, dim), torch.randn(num, dim)
    weight, bias = torch.randn(hidden, 4 * dim) / (4 * dim) ** 0.5, torch.randn(hidden)
    scores, weights = 3 * torch.randn(num), torch.rand(num)
    return {
        "target_projection": (queries, keys, offsets, weight, bias),
        "target_projection_backward": (
            torch.randn(num, hidden),
            queries,
            keys,
            offsets,
            weight,
            torch.randn(num, dim) if dim != 5 else None,
        ),
        "softmax_jagged": (scores, offsets),
        "softmax_jagged_backward": (scores, weights, offsets),
        "weighted_sum": (weights, keys, offsets),
        "weighted_sum_backward": (queries, weights, keys, offsets),
        "jagged_dot": (queries, keys, offsets),
        "jagged_dot_backward": (scores, queries, keys, offsets),
        "weighted_copies": (weights, queries, offsets),
    }


def co_action(lengths, sizes, orders, shared):
    offsets = offsets_of(lengths)
    width = sum(i * o for i, o in itertools.pairwise(sizes)) * (1 if shared else orders)
    weights = torch.randn(len(lengths), width) / 2
    inputs = torch.randn(int(offsets[-1]), sizes[0]) / 2
    network = offsets, sizes, orders, shared
    grad = torch.randn(len(lengths), orders * sum(sizes[1:]))
    return {
        "co_action": (weights, inputs, *network),
        "co_action_backward": (grad, weights, inputs, *network),
    }


def hstu(lengths, heads, width, places, counts=None):
    """Elements that read each other; counts: of candidates behind each list, which do in their place."""
    offsets = offsets_of(lengths)
    starts = None if counts is None else offsets_of(counts)
    num = int((offsets if starts is None else starts)[-1])
    queries, grad = torch.randn(num, heads * width), torch.randn(num, heads * width)
    keys, bias = torch.randn(int(offsets[-1]), 2 * heads * width), torch.randn(heads, places)
    inputs = queries, keys, starts, offsets, bias, None, None, None
    return {"pointwise_attention": inputs, "pointwise_attention_backward": (grad, *inputs)}


def recurrent(lengths, width, kind, reset):
    offsets = offsets_of(lengths)
    num = int(offsets[-1])
    attention = None if kind == "gru" else torch.rand(num)
    weight = torch.randn(3 * width, width) / width**0.5
    order = offsets.diff().argsort(descending=True, stable=True)
    parts, bias, options = torch.randn(num, 3 * width), torch.randn(3 * width), (kind, reset, None, order)
    states = recurrent_reference(parts, attention, offsets, weight, bias, *options)
    return {
        "recurrent": (parts, attention, offsets, weight, bias, *options),
        "recurrent_backward": (torch.randn(num, width), *states, attention, offsets, weight, *options),
        "last_of": (states[0], offsets),
        "last_of_backward": (torch.randn(len(lengths), width), offsets, num),
    }


def calls():
    """(op, arguments), each op several times."""
    torch.manual_seed(0)
    found = []
    for lengths, dim, hidden in zip(LISTS, (5, 16, 3, 33), (7, 36, 4, 40), strict=True):
        found += attention(lengths, dim, hidden).items()
    for lengths, network in zip(LISTS[:3], CO_ACTIONS, strict=True):
        found += co_action(lengths, *network).items()
    for lengths, size in zip(LISTS, ((2, 5, 3), (1, 16, 9), (3, 4, 2), (2, 17, 41)), strict=True):
        found += hstu(lengths, *size).items()
        found += hstu(lengths, *size, [n * 5 % 4 for n in range(len(lengths))]).items()
    for case in RECURRENCES:
        found += recurrent(*case).items()
    return found


def real_calls(size=1024, length=20):
    """(op, arguments) at sizes of real models: for registers, and for tests on a GPU."""
    torch.manual_seed(0)
    lengths = torch.randint(0, 2 * length, (size,)).tolist()
    found = [*attention(lengths, 32, 80).items(), *co_action(lengths, (16, 8, 4), 3, True).items()]
    found += [*co_action(lengths, (64, 32, 16), 2, False).items()]
    for width, (kind, reset) in {
        36: ("augru_code", "before"), 16: ("gru", "after"), 64: ("augru", "after"),
        128: ("augru", "after"),
    }.items():  # fmt: skip
        found += recurrent(lengths, width, kind, reset).items()
    found += [*hstu(lengths, 2, 16, 41).items(), *hstu(lengths, 2, 16, 41, [1] * size).items()]
    return found


def moved(arguments, change):
    """Arguments with every tensor changed."""
    return tuple(change(a) if isinstance(a, torch.Tensor) else a for a in arguments)
