"""Careful PyTorch: sparse gradients, row-sparse Adagrad and fused Adam; histories padded, sorted.

malloc keeps freed memory, as in hotrows.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.arms import arm, padded_models, sequence_arm
from benchmarks.arms.malloc import keep_freed_memory
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


def main() -> None:
    args = sequence_arm.parse(first=("concat", "decomposed"))
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    keep_freed_memory()
    arm.report(args, _step(args), "torch")


def _options(args: Namespace) -> dict[str, Any]:
    if args.model == "can":
        return {"sizes": CO_ACTION, "orders": ORDERS, "hidden": CAN_HIDDEN}
    if args.model == "hstu":
        return LAYERS | {"hidden": HIDDEN}
    return {"attention": ATTENTION, "hidden": HIDDEN, "first": args.first}


def _step(args: Namespace) -> Callable[[int], float]:
    samples = batches_of(batch_size=args.batch_size)
    data = [padded_models.inputs(FEATURES, part) for part in samples]
    model = padded_models.build(args.model, FEATURES, args.dim, **_options(args))
    rows = torch.optim.Adagrad(padded_models.tables(model).values(), ROW_LEARNING_RATE)
    dense = torch.optim.Adam(model.model.parameters(), DENSE_LEARNING_RATE, fused=True)

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bfloat16")

    def step(k: int) -> float:
        batch = data[k % len(data)]
        with autocast:
            logits = model(batch)
        loss = binary_cross_entropy_with_logits(logits.float(), batch.labels)
        loss.backward()
        for optimizer in (rows, dense):
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return step


if __name__ == "__main__":
    main()
