"""hotrows: DIN, DIEN, CAN and HSTU, in the step of the Trainer; batches are planned ahead."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

import hotrows
from benchmarks.arms import arm, sequence_arm
from benchmarks.arms.hotrows_models import batch_of, build, embedding_of, training_step
from benchmarks.sequences import (
    ATTENTION,
    CAN_HIDDEN,
    CO_ACTION,
    DENSE_LEARNING_RATE,
    FEATURES,
    HIDDEN,
    LAYERS,
    ORDERS,
    ROW_LEARNING_RATE,
    batches_of,
)
from hotrows.models.nn import choose_linear_paths, use_linear_paths
from hotrows.runtime import native


def main() -> None:
    args = sequence_arm.parse(auxiliary=("off", "on"))
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    arm.report(args, _step(args), "torch")


def options(args: Namespace) -> dict[str, Any]:
    if args.model == "can":
        return {"sizes": CO_ACTION, "orders": ORDERS, "hidden": CAN_HIDDEN}
    if args.model == "hstu":
        return LAYERS | {"hidden": HIDDEN, "activation": "relu"}
    options: dict[str, Any] = {"attention": ATTENTION, "hidden": HIDDEN, "activation": "relu"}
    if args.model == "din":
        return options | {"form": "paper", "attention_activation": "sigmoid", "normalize": True}
    return options | {"auxiliary": float(args.auxiliary == "on")}


def _step(args: Namespace) -> Callable[[int], float]:
    data = [batch_of(FEATURES, samples) for samples in batches_of(batch_size=args.batch_size)]
    model = build(args.model, FEATURES, args.dim, **options(args))
    embedding = embedding_of(model, FEATURES, hotrows.Adagrad(lr=ROW_LEARNING_RATE))
    precision = getattr(torch, args.precision)
    use_linear_paths(model, choose_linear_paths(model, precision))
    return training_step(model, embedding, data, DENSE_LEARNING_RATE, precision)


if __name__ == "__main__":
    main()
