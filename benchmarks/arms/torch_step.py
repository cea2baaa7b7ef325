"""One step as all arms built on PyTorch take it; they differ in lookup, update and linear layer."""

from argparse import Namespace
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer

from benchmarks.arms.torch_models import Layer, dense_model, linear
from benchmarks.workload import DIM, LEARNING_RATE, Batch

Lookup = Callable[[int], tuple[Tensor | None, Tensor | None]]  # k -> vectors [B, F, D], first [B]
WITH_FIRST = ("deepfm", "lr")  # models that have first-order weights
Step = Callable[[int], float | None]

# Of the dense layers. What is row-wise for tables is element-wise for them.
OPTIMIZERS = {
    "adagrad": torch.optim.Adagrad,
    "rowwise": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}


def make_step(
    args: Namespace, batches: list[Batch], lookup: Lookup, *optimizers: Optimizer, layer: Layer = linear
) -> Step:
    """The step that `args` ask for. Tables are updated by `optimizers`, or by lookup's backward."""
    if args.embedding_only:
        return embedding_step(args, lookup, optimizers)
    return training_step(args, batches, lookup, optimizers, layer)


def embedding_step(args: Namespace, lookup: Lookup, optimizers: tuple[Optimizer, ...]) -> Step:
    """Lookup, backward from a fixed gradient, and update: no model."""
    gradient = 1e-4 * torch.randn(args.batch_size, len(args.workload.num_rows), DIM)

    def step(k: int) -> None:
        vectors, _ = lookup(k)
        vectors.backward(gradient)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def training_step(
    args: Namespace,
    batches: list[Batch],
    lookup: Lookup,
    optimizers: tuple[Optimizer, ...],
    layer: Layer = linear,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Step:
    """wrap: makes of the dense model what is called with dense values and what lookup returns."""
    layers = dense_model(args.model, args.workload, layer)
    optimizers = (*optimizers, OPTIMIZERS[args.optimizer](layers.parameters(), LEARNING_RATE))
    model = wrap(layers)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bfloat16")
    dense = [torch.from_numpy(batch.dense) for batch in batches]
    labels = [torch.from_numpy(batch.labels) for batch in batches]

    def step(k: int) -> float:
        k %= len(batches)
        vectors, first = lookup(k)
        with autocast:
            logits = model(dense[k], vectors, first)
        loss = binary_cross_entropy_with_logits(logits.float(), labels[k])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return step
