"""hotrows: DIN, DIEN and CAN, in the step of `hotrows.train`; batches are planned ahead."""

from argparse import Namespace
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.arms import arm, sequence_arm
from benchmarks.arms.hotrows_models import batch_of, build, embedding_of
from benchmarks.sequences import (
    ATTENTION,
    BATCH_SIZE,
    CAN_HIDDEN,
    CO_ACTION,
    DENSE_LEARNING_RATE,
    FEATURES,
    HIDDEN,
    ORDERS,
    ROW_LEARNING_RATE,
    batches_of,
)
from hotrows import native
from hotrows.models import logits_and_loss
from hotrows.nn import choose_linear_paths, use_linear_paths
from hotrows.pipeline.stream import ahead


def main() -> None:
    args = sequence_arm.parse(auxiliary=("off", "on"))
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    arm.report(args, _step(args), "torch")


def _options(args: Namespace) -> dict[str, Any]:
    if args.model == "can":
        return {"sizes": CO_ACTION, "orders": ORDERS, "hidden": CAN_HIDDEN}
    options: dict[str, Any] = {"attention": ATTENTION, "hidden": HIDDEN, "activation": "relu"}
    if args.model == "din":
        return options | {"form": "paper", "attention_activation": "sigmoid", "normalize": True}
    return options | {"auxiliary": float(args.auxiliary == "on")}


def _step(args: Namespace) -> Callable[[int], float]:
    data = [batch_of(FEATURES, samples) for samples in batches_of()]
    model = build(args.model, FEATURES, args.dim, **_options(args))
    embedding = embedding_of(model, FEATURES, hotrows.Adagrad(lr=ROW_LEARNING_RATE))
    use_linear_paths(model, choose_linear_paths(model, BATCH_SIZE))
    optimizer = torch.optim.Adam(model.parameters(), DENSE_LEARNING_RATE, fused=True)

    def plan(k: int) -> tuple:
        batch = data[k % len(data)]
        return batch, embedding.plan(batch, k)

    planned = iter(ahead(count(), plan, depth=2))

    def step(k: int) -> float:
        batch, plan = next(planned)
        vectors = embedding.lookup(plan)
        logits, own = logits_and_loss(model(vectors, batch.dense))
        loss = binary_cross_entropy_with_logits(logits, batch.labels)
        (loss if own is None else loss + own).backward()
        embedding.update(plan, vectors)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


if __name__ == "__main__":
    main()
