"""The engine on BARS' recipe: FuxiCTR's DeepFM, Wide & Deep and DLRM as models of one's own.

FuxiCTR multiplies each dense value with a vector of its own, and its L2 term covers these too; so do
these models. Rows train under `DenseAdam`, and the norm of all gradients is clipped, as there. Batches
come from prepared data, shuffled, as in `hotrows train`.
"""

from __future__ import annotations

import time
import zlib
from argparse import Namespace
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import hotrows
from benchmarks.workload import DATA, Batch, Workload
from hotrows.config import TrainConfig
from hotrows.data import EncodedData, write_encoded
from hotrows.models.model import Model
from hotrows.nn import MLP, DotInteraction, FactorizationMachine
from hotrows.train.evaluate import evaluate
from hotrows.train.step_trainer import StepTrainer, keep_freed_memory

FIRST = hotrows.Normal(1e-4)  # FuxiCTR's initial values


@dataclass(frozen=True)
class Shape:
    """What BARS' logs say of a model, and what an equality check changes of it."""

    model: str
    dropout: float
    dim: int = 10
    hidden: tuple[int, ...] = (400, 400, 400)
    l2: float = 1e-5
    lr: float = 1e-3
    clip_norm: float = 10.0


SHAPES = {name: Shape(name, 0.2 if name == "dlrm" else 0.1) for name in ("deepfm", "widedeep", "dlrm")}


class RecipeModel(Model):
    """FuxiCTR's DeepFM, WideDeep and DLRM with batch normalisation."""

    def __init__(self, schema: hotrows.Schema, shape: Shape) -> None:
        super().__init__()
        names = [feature.name for feature in schema.sparse]
        rows = {feature.name: feature.rows for feature in schema.sparse}
        dim, num_dense = shape.dim, len(schema.dense)
        self.shape = shape
        self.tables = tuple(hotrows.Table(n, rows[n], dim, (n,), initializer=FIRST) for n in names)
        if shape.model == "dlrm":
            num_pairs = DotInteraction.num_outputs(len(names), dim)
            self.bottom = MLP((num_dense, *shape.hidden, dim), batch_norm=True, last_activation="relu")
            self.interaction = DotInteraction()
            self.deep = MLP((num_pairs, *shape.hidden, 1), dropout=shape.dropout, batch_norm=True)
            return
        self.tables += tuple(
            hotrows.Table(f"{n}.linear", rows[n], 1, (n,), "linear", FIRST) for n in names
        )
        self.numeric = nn.Parameter(torch.randn(num_dense, dim) * 0.3)
        self.linear = nn.Parameter(torch.randn(num_dense))
        self.bias = nn.Parameter(torch.zeros(())) if shape.model == "deepfm" else None
        self.pairs = FactorizationMachine() if shape.model == "deepfm" else None
        width = (len(names) + num_dense) * dim
        self.deep = MLP((width, *shape.hidden, 1), dropout=shape.dropout, batch_norm=True)

    def forward(self, vectors: hotrows.Vectors, dense: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        ids = vectors.stack()  # [B, F, D]
        if self.shape.model == "dlrm":
            return self.deep(self.interaction(self.bottom(dense), ids)).squeeze(1)
        fields = torch.cat([dense[:, :, None] * self.numeric, ids], 1)
        logits = self.deep(fields.flatten(1)).squeeze(1)
        logits = logits + vectors.stack("linear").sum((1, 2)) + dense @ self.linear
        if self.pairs is not None:
            logits = logits + self.bias + self.pairs(fields)
        squares = self.numeric.square().sum() + self.linear.square().sum()
        return logits, self.shape.l2 / 2 * squares

    def begin_at(self, logits: Tensor) -> None:
        """Begins where FuxiCTR does: with a bias of 0."""


def schema_of(workload: Workload) -> hotrows.Schema:
    dense = tuple(hotrows.Dense(f"I{n}", transform="none") for n in range(workload.num_dense))
    sparse = tuple(hotrows.Sparse(f"C{f}", rows=rows) for f, rows in enumerate(workload.num_rows))
    return hotrows.Schema(dense + sparse)


def trainer_of(
    shape: Shape, workload: Workload, parts: dict[str, list[Batch]], **settings: object
) -> StepTrainer:
    """A trainer of the recipe on these batches. settings: of its `TrainConfig`."""
    schema = schema_of(workload)
    data = _encoded(workload, schema, parts)
    torch.manual_seed(0)
    config = TrainConfig(
        row_optimizer=hotrows.DenseAdam(lr=shape.lr, l2=shape.l2),
        dense_lr=shape.lr,
        clip_norm=shape.clip_norm,
        clip_rows=True,
        batch_size=len(parts["train"][0].labels),
        steps=len(parts["train"]),
        **settings,
    )
    return StepTrainer(data, config, model=RecipeModel(schema, shape))


def train_epoch(args: Namespace, parts: dict[str, list[Batch]], warm_up: int) -> dict:
    """Trains, lets all rows catch up, and evaluates; all but the first `warm_up` steps count."""
    keep_freed_memory()
    steps = trainer_of(SHAPES[args.model], args.workload, parts, linear_paths="measured")
    steps.choose_linear_paths()
    losses, begin, cpu, count = [], 0.0, 0.0, 0
    with closing(steps.start()) as runner:
        for work in runner:
            if count == warm_up:
                begin, cpu = time.perf_counter(), time.process_time()
            losses.append(float(steps.train(work)))
            count += 1
    trained = time.perf_counter()
    steps.embedding.catch_up()
    caught_up = time.perf_counter()
    metrics = evaluate(steps.recommender, steps.data.parts["validation"])
    end = time.perf_counter()
    return {
        "train_seconds": trained - begin, "catch_up_seconds": caught_up - trained,
        "evaluation_seconds": end - caught_up, "cpu_time": time.process_time() - cpu,
        "losses": losses, "auc": metrics.auc,
    }  # fmt: skip


def _encoded(workload: Workload, schema: hotrows.Schema, parts: dict[str, list[Batch]]) -> EncodedData:
    """The batches as prepared data; made once."""
    sizes = {name: [len(batch.labels) for batch in batches] for name, batches in parts.items()}
    path = Path(DATA) / f"bars-{zlib.crc32(repr((workload, sizes)).encode()):08x}"
    if not path.exists():
        names = tuple(feature.name for feature in schema.sparse)
        write_encoded(
            path,
            schema,
            {part: [_batch(names, batch) for batch in batches] for part, batches in parts.items()},
        )
    return EncodedData.open(path)


def _batch(names: tuple[str, ...], batch: Batch) -> hotrows.Batch:
    ids, dense = torch.from_numpy(batch.ids).reshape(-1), torch.from_numpy(batch.dense)
    return hotrows.Batch(names, ids, dense, torch.from_numpy(batch.labels))
