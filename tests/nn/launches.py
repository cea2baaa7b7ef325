"""What PyTorch would launch on a GPU: its ATen calls that compute something."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """Counts ATen calls but views while it is entered, in `names`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not _is_view(function):
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def _is_view(function: Any) -> bool:
    """Whether its result is its argument's memory, unchanged."""
    aliases = [returned.alias_info for returned in function._schema.returns]
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    return is_view or function in (torch.ops.aten._unsafe_view.default, torch.ops.aten.detach.default)


def launches_of_step(
    compiler: Callable[..., Any], model: torch.nn.Module, *inputs: Tensor
) -> tuple[int, int]:
    """The launches forward and backward of `compiler(model, backend=...)`; the loss is the sum."""
    counted = Launches()

    def backend(graph_module, example_inputs):
        def run(*inputs):
            with counted:  # around the graph alone: dynamo compiles nothing under such a mode
                return graph_module.forward(*inputs)

        return run

    out = compiler(model, backend=backend)(*inputs)
    forward = len(counted.names)
    loss = out.sum()
    with counted:
        torch.autograd.grad(loss, [x for x in (*inputs, *model.parameters()) if x.requires_grad])
    return forward, len(counted.names) - forward
