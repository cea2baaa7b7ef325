"""One library trains one model on one data set, seed after seed; prints the AUC of each.

The same for all libraries: batches and their order, Adagrad on the rows, Adam on all else, first
values (rows evenly from +-0.001, linear weights 0, layers as `reset` says), no regularisation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks import accuracy_data
from benchmarks.recipes import DIM, EPOCHS_OF, RECIPES, ROW_LEARNING_RATE, Recipe
from benchmarks.samples import Features, Samples, batches, cut, take

LIBRARIES = ("hotrows", "deepctr-torch", "fuxictr")
TEST_BATCH_SIZE = 4096
DENSE_LEARNING_RATE = 1e-3

Step = Callable[[Samples], None]
Scores = Callable[[Samples], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--set", choices=accuracy_data.SETS, required=True)
    parser.add_argument("--model", choices=RECIPES, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, help="only the first ones")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = RECIPES[args.model]
    features, train, test = accuracy_data.load(args.set)
    features, train, test = recipe.seen(features, train, test)
    if args.samples:
        train = cut(train, 0, args.samples)
    start = time.perf_counter()
    aucs = [
        _run(args.library, recipe, features, train, test, seed, EPOCHS_OF[args.set])
        for seed in range(args.seeds)
    ]
    print(json.dumps({"auc": aucs, "seconds": time.perf_counter() - start}))


def _run(
    library: str,
    recipe: Recipe,
    features: Features,
    train: Samples,
    test: Samples,
    seed: int,
    epochs: int,
) -> float:
    """The AUC of the test samples; of several labels the mean."""
    torch.manual_seed(seed)
    begin = _hotrows if library == "hotrows" else _peer
    step, scores = begin(library, recipe, features, seed)
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(train.size)
        for first in range(0, train.size, recipe.batch_size):
            step(take(train, order[first : first + recipe.batch_size]))
    outputs = np.concatenate([scores(part).numpy() for part in batches(test, TEST_BATCH_SIZE)])
    columns = zip(outputs.reshape(test.size, -1).T, test.labels.reshape(test.size, -1).T, strict=True)
    return float(np.mean([auc(*column) for column in columns]))


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The chance that a positive scores higher than a negative; half of it where they are equal."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positives = labels.sum()
    negatives = len(labels) - positives
    return (ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives)


def _hotrows(library: str, recipe: Recipe, features: Features, seed: int) -> tuple[Step, Scores]:
    import hotrows
    from benchmarks.arms import hotrows_models

    model = hotrows_models.build(recipe.ours[0], features, DIM, **recipe.ours[1])
    rows = hotrows.Adagrad(lr=ROW_LEARNING_RATE)
    embedding = hotrows_models.embedding_of(model, features, rows, seed)
    optimizer = torch.optim.Adam(model.parameters(), DENSE_LEARNING_RATE)
    steps = 0

    def step(samples: Samples) -> None:
        nonlocal steps
        batch = hotrows_models.batch_of(features, samples)
        plan = embedding.plan(batch, steps)
        vectors = embedding.lookup(plan)
        loss = binary_cross_entropy_with_logits(model(vectors, batch.dense), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        embedding.update(plan, vectors)
        optimizer.step()
        steps += 1

    @torch.no_grad()
    def scores(samples: Samples) -> Tensor:
        model.eval()
        batch = hotrows_models.batch_of(features, samples)
        return model(embedding.lookup(embedding.plan(batch)), batch.dense)

    return step, scores


def _peer(library: str, recipe: Recipe, features: Features, seed: int) -> tuple[Step, Scores]:
    from benchmarks.arms import deepctr_models, fuxictr_models

    peer: Any = {"deepctr-torch": deepctr_models, "fuxictr": fuxictr_models}[library]
    name, options = recipe.theirs[library]
    model = peer.build(name, features, DIM, **options)
    torch.manual_seed(seed)  # DeepCTR-Torch sets one of its own
    tables = list(_reset(model, peer.tables(model)).values())
    in_tables = {id(table) for table in tables}
    others = [p for p in model.parameters() if id(p) not in in_tables]
    optimizers = [torch.optim.Adagrad(tables, ROW_LEARNING_RATE)]
    if others:
        optimizers.append(torch.optim.Adam(others, DENSE_LEARNING_RATE))
    model.train()

    def step(samples: Samples) -> None:
        logits = peer.logits(model, peer.inputs(features, samples))
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(samples.labels))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    @torch.no_grad()
    def scores(samples: Samples) -> Tensor:
        model.eval()
        return peer.logits(model, peer.inputs(features, samples))

    return step, scores


@torch.no_grad()
def _reset(model: nn.Module, tables: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """First values as ours; returns the tables.

    Matrices N(0, sqrt(2 / (in + out))), biases 0, recurrent layers evenly from +-1 / sqrt(H), the
    weights of dense values in a linear part 0.
    """
    in_tables = {id(table) for table in tables.values()}
    for name, parameter in model.named_parameters():
        if id(parameter) in in_tables:
            continue
        if name.startswith(("linear_model.", "lr.")):
            parameter.zero_()
        elif parameter.dim() == 2:
            nn.init.xavier_normal_(parameter)
        elif name.endswith("bias"):
            parameter.zero_()
    for module in model.modules():
        if type(module).__name__ in ("GRU", "AGRUCell", "AUGRUCell"):
            for parameter in module.parameters():
                bound = (parameter.shape[0] // 3) ** -0.5
                parameter.uniform_(-bound, bound)
    for name, table in tables.items():
        bound = 0.0 if name.endswith(".linear") else 0.001
        table.uniform_(-bound, bound)
    return tables


if __name__ == "__main__":
    main()
