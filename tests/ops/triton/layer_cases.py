"""Arguments of the layers' ops, on odd shapes: empty lists, one sample, dims that are no power of two."""

import importlib
import itertools

import torch

from hotrows.ops.layers.by_device import OPS
from hotrows.ops.layers.next_element import next_element_loss_reference
from hotrows.ops.layers.recurrent import recurrent_reference

_NAMES = (
    "attention", "batch_norm", "co_action", "dice", "hstu", "jagged", "log_loss", "next_element", "prelu",
    "recurrent", "single_output",
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
SIZES = ((1, 5), (200, 36))  # rows and columns
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


def statistics(num, width):
    x, grad = 2 * torch.randn(num, width) + 3, torch.randn(num, width)
    mean, rstd, alpha, bias, weight = (torch.rand(width) + 0.5 for _ in range(5))
    sums = torch.randn(2, width)
    return {
        "moments": (x,),
        "moments_remembered": (torch.cat([x, -x]), mean, rstd, torch.tensor(3), 0.1, 1e-5),
        "remember": (mean, rstd, alpha, weight, torch.tensor(3), num + 1, 0.1, 1e-5),
        "dice": (x, mean, rstd, alpha),
        "dice_sums": (grad, x, mean, rstd, alpha),
        "dice_to_x": (grad, x, mean, rstd, alpha, sums, num + 5),
        "batch_norm": (x, mean, rstd, weight, bias),
        "batch_norm_sums": (grad, x, mean, rstd),
        "batch_norm_to_x": (grad, x, mean, rstd, weight, sums, num + 5),
        "prelu_backward": (grad, x - 3, alpha),
        "single_output_backward": (torch.randn(num, 1), x, alpha[None]),
    }


def statistics_of_the_first(real, num, width):
    """Of `real` rows, behind which are others that do not count."""
    cases = statistics(num, width)
    names = ("dice_to_x", "batch_norm_to_x")
    more = {"moments_remembered": (cases["moments"][0], *cases["moments_remembered"][1:])}
    more |= {name: cases[name] for name in names}
    return {name: (*arguments, torch.tensor([real])) for name, arguments in more.items()}


def losses(num, spread):
    """Logits from certain to certain, labels from 0 to 1, weights of each or spread over columns."""
    logits, labels, grad = 30 * torch.randn(num, 2), torch.rand(num, 2), torch.randn(())
    weights = torch.rand(2) if spread else None
    return {"log_loss": (logits, labels, weights), "log_loss_backward": (grad, logits, labels, weights)}


def next_element(lengths, dim, weighs):
    offsets = offsets_of(lengths)
    states, past = torch.randn(int(offsets[-1]), dim), torch.randn(int(offsets[-1]), dim)
    others = torch.randperm(max(len(past) - 1, 0))
    counts = torch.arange(len(lengths)) % 3 if weighs else None
    inputs = states, past, others
    _, *kept = next_element_loss_reference(*inputs[:2], offsets, others, counts)
    return {
        "next_element_loss": (*inputs[:2], offsets, others, counts),
        "next_element_loss_backward": (torch.tensor(0.7), *inputs, *kept),
    }


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
    for num, width in SIZES:
        found += statistics(num, width).items()
    for lengths, dim in zip((*LISTS, [3] * 400), (5, 16, 3, 33, 4), strict=True):
        found += next_element(lengths, dim, weighs=dim > 4).items()
    for case in RECURRENCES:
        found += recurrent(*case).items()
    for num, spread in ((1, False), (300, True)):
        found += losses(num, spread).items()
    x, *others = statistics(3, 2)["dice_to_x"]
    found.append(("dice_to_x", (x, *others[:-1], 0)))  # statistics of other rows
    for real in (8, 64, 137):
        found += statistics_of_the_first(real, 200, 36).items()
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
    return [
        *found,
        *statistics(20_000, 200).items(),
        *losses(20_000, True).items(),
        *next_element(lengths, 32, weighs=True).items(),
    ]


def moved(arguments, change):
    """Arguments with every tensor changed."""
    return tuple(change(a) if isinstance(a, torch.Tensor) else a for a in arguments)
