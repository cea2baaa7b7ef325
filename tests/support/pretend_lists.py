"""Ops of lists on the pretended GPU, for which plain PyTorch takes the place of kernels.

Kernels skip padding: positions behind the last list add nothing and get zeros. PyTorch is given none.
"""

import torch
from torch.nn import functional

# Of each op: its arguments and its results that have a row for each position.
_POSITIONS = {
    "target_projection": ((1,), (0,)), "target_projection_backward": ((0, 2, 5), (1,)),
    "softmax_jagged": ((0,), (0,)), "softmax_jagged_backward": ((0, 1), (0,)),
    "weighted_sum": ((0, 1), ()), "weighted_sum_backward": ((1, 2), (0, 1)),
    "jagged_dot": ((1,), (0,)), "jagged_dot_backward": ((0, 2), (1,)), "weighted_copies": ((0,), (0,)),
    "co_action": ((1,), ()), "co_action_backward": ((2,), (1,)),
    "recurrent": ((0, 1), (0, 1, 2)), "recurrent_backward": ((0, 1, 2, 3, 4), (0, 1)),
    "last_of": ((0,), ()), "last_of_backward": ((), (0,)),
}  # fmt: skip


def _without_padding(name, arguments, results):
    def run(*args):
        op = getattr(torch.ops.hotrows, name)
        place = [argument.name for argument in op.default._schema.arguments].index("offsets")
        args, real = list(args), int(args[place][-1])
        num = args[2] if name == "last_of_backward" else len(args[arguments[0]])
        for position in arguments:
            args[position] = None if args[position] is None else args[position][:real]
        if name == "last_of_backward":
            args[2] = real
        out = op(*args)
        parts = list(out) if isinstance(out, tuple) else [out]
        for position in results:
            if parts[position] is not None:
                behind = (0, 0) * (parts[position].dim() - 1) + (0, num - real)
                parts[position] = functional.pad(parts[position], behind)
        return tuple(parts) if isinstance(out, tuple) else parts[0]

    return run


def _pointwise_attention(*args):
    """Queries are padded where they are the elements."""
    queries_too = args[2] is None
    positions = ((0, 1), (0,)) if queries_too else ((1,), ())
    return _without_padding("pointwise_attention", *positions)(*args)


def _pointwise_attention_backward(*args):
    queries_too = args[3] is None
    positions = ((0, 1, 2), (0, 1)) if queries_too else ((2,), (1,))
    return _without_padding("pointwise_attention_backward", *positions)(*args)


KERNELS = {f"hotrows::{name}": _without_padding(name, *where) for name, where in _POSITIONS.items()}
KERNELS["hotrows::pointwise_attention"] = _pointwise_attention
KERNELS["hotrows::pointwise_attention_backward"] = _pointwise_attention_backward
