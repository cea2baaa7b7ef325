"""Models through `torch.compile`: one graph per size of batch, of plain tensors.

    vectors.leaves, dense  ->  Vectors  ->  model  ->  logits

The tracer sees neither plans nor ids, but the leaves of a lookup, to which gradients flow. Training and
evaluation have graphs of their own, and so has the last batch of an epoch, which is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hotrows.engine.vectors import Vectors, of_leaves
from hotrows.models import Model
from hotrows.planning.packing import Pack

Output = Tensor | tuple[Tensor, Tensor]


def compiled(
    model: Model, packs: Sequence[Pack], backend: str = "inductor"
) -> Callable[[Vectors, Tensor], Output]:
    """Returns `model`, (vectors, dense) -> logits, compiled when it is first called.

    packs: of the embedding that the vectors come from. backend: of `torch.compile`.
    A model of sequences is not compiled: the number of their elements differs in every batch, and each
    would be compiled again. Neither are batches whose samples share features, by requests.
    """
    if model.sequences:
        return model

    def run(leaves: tuple[Tensor, ...], dense: Tensor) -> Output:
        return model(of_leaves(packs, leaves, len(dense)), dense)

    traced = torch.compile(run, backend=backend, fullgraph=True, dynamic=False)

    def step(vectors: Vectors, dense: Tensor) -> Output:
        return traced(vectors.leaves, dense) if vectors.requests is None else model(vectors, dense)

    return step
