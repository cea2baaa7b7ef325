"""Equal submodules as one: a pass over the graph that `torch.compile` captures, in front of its backend.

Experts, towers, attentions, projections of fields: modules of equal shape that a model runs in a Python
loop launch as many small kernels as there are modules. Their calls become one call on stacked operands,
layer by layer; the model, its parameters and its state_dict are not touched.

    step = hotrows.nn.batched(model)
    loss = step(x).sum()

`scheduler` is the pass, `dependencies` what it may not reorder, `calls` what can be one call and
`batched_call` that call, `operands` and `views` what it reads, `grouping` when it pays, `gathering` what
its results become.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from hotrows.fx.batching.grouping import MAX_BYTES, MAX_FLOPS
from hotrows.fx.batching.scheduler import Batching, CallGroup, batch

__all__ = ["MAX_BYTES", "MAX_FLOPS", "Batching", "CallGroup", "batch", "batched", "describe"]


def batched(
    model: Callable[..., Any],
    backend: str | Callable[..., Any] = "eager",
    report: Callable[[Batching], None] | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """`torch.compile(model)` with equal calls of its graphs batched before `backend` sees them.

    backend: any of torch.compile's: "eager" runs the calls as they are, "inductor" compiles them.
    report: called with what was done to each graph; `print` shows it. options: of torch.compile.
    Where dynamo breaks the model into several graphs, each is batched by itself.
    """
    inner: Callable[..., Any] = torch._dynamo.lookup_backend(backend)

    def batch_first(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        done = batch(graph_module.graph)
        graph_module.recompile()
        if report is not None:
            report(done)
        return inner(graph_module, example_inputs)

    return torch.compile(model, backend=batch_first, **options)


def describe(graph_module: GraphModule) -> Batching:
    """Returns the result of the pass on a copy of a graph of dynamo's."""
    return batch(copy.deepcopy(graph_module.graph))
