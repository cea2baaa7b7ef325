"""hotrows: its training step; batches are planned on a background thread, or in line."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.arms import arm
from benchmarks.arms.hotrows_models import own_no_optimizers
from benchmarks.workload import (
    CROSSES,
    DEEPFM_DEEP,
    DIM,
    DLRM_BOTTOM,
    DLRM_TOP,
    LEARNING_RATE,
    MLP,
    Workload,
    batches,
)
from hotrows import models
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.models.nn import MLP as Perceptrons
from hotrows.models.nn import choose_linear_paths, use_linear_paths
from hotrows.runtime import native

ROW_OPTIMIZERS = {
    "adagrad": hotrows.Adagrad,
    "rowwise": hotrows.RowWiseAdagrad,
    "sgd": hotrows.SGD,
    "adam": hotrows.LazyAdam,
}
DENSE_OPTIMIZERS = {
    "adagrad": torch.optim.Adagrad,
    "rowwise": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}


class SmallMLP(nn.Module):
    """All vectors side by side, then a small MLP: workload B's model."""

    first_layer_roles = ("vector",)

    def __init__(self, schema: hotrows.Schema) -> None:
        super().__init__()
        self.tables = tuple(hotrows.Table(f.name, f.rows or 1, DIM, (f.name,)) for f in schema.sparse)
        self.sequences, self.crosses = (), ()
        self.layers = Perceptrons((len(self.tables) * DIM, *MLP))

    def forward(self, vectors: hotrows.Vectors, dense: Tensor) -> Tensor:
        return self.layers(vectors.joined(dense)).squeeze(1)


def main() -> None:
    args = arm.parse(**{"plan": ("ahead", "inline"), "first-layer": ("rows", "vectors")})
    arm.report(args, make_step(args), "torch")


def make_step(args: Namespace) -> Callable[[int], float | None]:
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    data = batches_of(args)
    model = model_of(args, schema_of(args.workload))
    own_no_optimizers(model)
    optimizer = ROW_OPTIMIZERS[args.optimizer](lr=LEARNING_RATE)
    roles = getattr(model, "first_layer_roles", ()) if args.precision == "float32" else ()
    roles = () if args.embedding_only or args.first_layer == "vectors" else roles
    embedding = hotrows.Embedding(
        model.tables,
        optimizer=optimizer,
        first_layer_roles=roles,
        pack_parts=getattr(args, "pack_parts", 1),
    )
    planned = _planned(args, data, embedding)
    step = _embedding_step if args.embedding_only else _training_step
    return step(args, model, embedding, planned)


def schema_of(workload: Workload) -> hotrows.Schema:
    dense = tuple(hotrows.Dense(f"I{i}") for i in range(workload.num_dense))
    sparse = tuple(hotrows.Sparse(f"C{f}", rows=n) for f, n in enumerate(workload.num_rows))
    return hotrows.Schema(dense + sparse)


def batches_of(args: Namespace) -> list[hotrows.Batch]:
    names = tuple(f"C{f}" for f in range(len(args.workload.num_rows)))
    return [
        hotrows.Batch(
            names,
            torch.from_numpy(batch.ids).reshape(-1),
            torch.from_numpy(batch.dense),
            torch.from_numpy(batch.labels),
        )
        for batch in batches(args.workload, args.batch_size)
    ]


def model_of(args: Namespace, schema: hotrows.Schema) -> nn.Module:
    if args.embedding_only:
        return models.build("dlrm", schema, dim=DIM)
    if args.model == "dlrm":
        return models.build("dlrm", schema, dim=DIM, bottom=DLRM_BOTTOM[:-1], top=DLRM_TOP[:-1])
    if args.model == "deepfm":
        return models.build("deepfm", schema, dim=DIM, hidden=DEEPFM_DEEP[:-1])
    if args.model == "dcnv2":
        return models.build("dcnv2", schema, dim=DIM, hidden=DEEPFM_DEEP[:-1], num_crosses=CROSSES)
    if args.model == "lr":
        return models.build("lr", schema)
    return SmallMLP(schema)


def _planned(args: Namespace, data: list, embedding: hotrows.Embedding) -> Iterator:
    def plan(k: int) -> tuple:
        batch = data[k % len(data)]
        return batch, embedding.plan(batch, k)

    return prefetch(map(plan, count()), depth=2 if args.plan == "ahead" else 0)


def _embedding_step(args: Namespace, model, embedding, planned: Iterator):
    gradient = 1e-4 * torch.randn(args.batch_size * len(args.workload.num_rows), DIM)

    def step(k: int) -> None:
        _, plan = next(planned)
        vectors = embedding.lookup(plan)
        vectors.leaves[0].grad = gradient  # a model's backward leaves its own here, uncopied
        embedding.update(plan, vectors)

    return step


def _training_step(args: Namespace, model, embedding, planned: Iterator):
    dtype = getattr(torch, args.precision)
    use_linear_paths(model, choose_linear_paths(model, dtype))
    optimizer = DENSE_OPTIMIZERS[args.optimizer](model.parameters(), LEARNING_RATE, fused=True)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bfloat16")

    def step(k: int) -> float:
        batch, plan = next(planned)
        vectors = embedding.lookup(plan)
        with autocast:
            logits = model(vectors, batch.dense)
        loss = binary_cross_entropy_with_logits(logits.float(), batch.labels)
        loss.backward()
        embedding.update(plan, vectors)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


if __name__ == "__main__":
    main()
