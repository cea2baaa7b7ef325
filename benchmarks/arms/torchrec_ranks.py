"""TorchRec's DistributedModelParallel on several ranks: tables whole on one rank, fused optimizers.

FBGEMM's tables on CPUs refuse row-wise sharding; tables are dealt as in `plain_ranks`. TorchRec
exchanges ids and pooled vectors; what is left of the model is under its DistributedDataParallel.
`--pipeline sparse-dist` is its TrainPipelineSparseDist: ids of the next batch are exchanged early.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch as TorchRecBatch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan

from benchmarks.arms import rank_arm
from benchmarks.arms.fbgemm import FIRST_DIM
from benchmarks.arms.fbgemm import OPTIMIZERS as FUSED
from benchmarks.arms.plain_ranks import deal, shares, start_gloo
from benchmarks.arms.torch_models import Dlrm, dense_model
from benchmarks.arms.torch_step import OPTIMIZERS
from benchmarks.workload import DIM, LEARNING_RATE, Batch, Workload, batches

CPU = torch.device("cpu")


def main() -> None:
    args = rank_arm.parse(pipeline=("none", "sparse-dist"))
    rank_arm.report(args, make_step, "torch", "fbgemm-gpu-cpu", "torchrec")


def make_step(args: Namespace) -> rank_arm.Step:
    logging.disable(logging.WARNING)
    start_gloo(args)
    data = shares(batches(args.workload, args.batch_size), args)
    names = [f"field{field}" for field in range(len(args.workload.num_rows))]
    lengths = torch.ones(len(names) * len(data[0].labels), dtype=torch.int64)
    inputs = [_input(names, batch, lengths) for batch in data]
    layers = dense_model(args.model, args.workload)
    optimizer = OPTIMIZERS[args.optimizer](layers.parameters(), LEARNING_RATE)
    model = _parallel(Training(_tables(names, args), layers), args)
    if args.pipeline == "none":
        return _plain_step(model, optimizer, inputs)
    pipeline = TrainPipelineSparseDist(model, optimizer, CPU)
    endless: Iterator[TorchRecBatch] = (inputs[k % len(inputs)] for k in count())
    return lambda k: pipeline.progress(endless).item()


def _plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: list[TorchRecBatch]
) -> rank_arm.Step:
    def step(k: int) -> float:
        loss, _ = model(inputs[k % len(inputs)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


class Training(nn.Module):
    """Loss of a batch, twice: to go backward from, and to show."""

    def __init__(self, tables: EmbeddingBagCollection, layers: nn.Module) -> None:
        super().__init__()
        self.tables, self.layers = tables, layers
        self.num_fields = len({name for t in tables.embedding_bag_configs() for name in t.feature_names})
        self.has_first = len(tables.embedding_bag_configs()) > self.num_fields

    def forward(self, batch: TorchRecBatch) -> tuple[Tensor, Tensor]:
        arriving = self.tables(batch.sparse_features)
        loss = binary_cross_entropy_with_logits(self._logits(batch, arriving), batch.labels)
        return loss, loss.detach()

    def _logits(self, batch: TorchRecBatch, arriving) -> Tensor:
        """Bottom layers do not wait for the vectors, which `values` does."""
        if isinstance(self.layers, Dlrm):
            bottom = self.layers.bottom(batch.dense_features)
            return self.layers.interact(bottom, arriving.values().view(-1, self.num_fields, DIM))
        values = arriving.values()
        vectors, first = values.split([self.num_fields * DIM, values.shape[1] - self.num_fields * DIM], 1)
        if self.has_first:
            first = first.view(-1, self.num_fields, FIRST_DIM)[:, :, 0].sum(1)
        return self.layers(batch.dense_features, vectors.reshape(-1, self.num_fields, DIM), first)


def _input(names: list[str], batch: Batch, lengths: Tensor) -> TorchRecBatch:
    ids = torch.from_numpy(batch.ids).reshape(-1)
    return TorchRecBatch(
        torch.from_numpy(batch.dense),
        KeyedJaggedTensor(names, ids, lengths=lengths),
        torch.from_numpy(batch.labels),
    )


def _tables(names: list[str], args: Namespace) -> EmbeddingBagCollection:
    """A table per field; for DeepFM's first-order weights a second one: one of its columns is used."""
    dims = {"": DIM, "first_": FIRST_DIM} if args.model == "deepfm" else {"": DIM}
    return EmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=prefix + name, feature_names=[name], num_embeddings=rows, embedding_dim=dim
            )
            for prefix, dim in dims.items()
            for name, rows in zip(names, args.workload.num_rows, strict=True)
        ],
        device=torch.device("meta"),
    )


def _parallel(model: Training, args: Namespace) -> DistributedModelParallel:
    fused = {"optimizer": FUSED[args.optimizer], "learning_rate": LEARNING_RATE}
    sharder = EmbeddingBagCollectionSharder(fused_params=fused)
    owners = _owners(args.workload, args.ranks)
    plan = construct_module_sharding_plan(
        model.tables,
        {
            table.name: table_wise(owners[table.feature_names[0]], compute_kernel="fused")
            for table in model.tables.embedding_bag_configs()
        },
        sharder,
        local_size=args.ranks,
        world_size=args.ranks,
        device_type="cpu",
    )
    return DistributedModelParallel(
        model, device=CPU, plan=ShardingPlan({"tables": plan}), sharders=[sharder]
    )


def _owners(workload: Workload, num_ranks: int) -> dict[str, int]:
    dealt = deal(workload.num_rows, num_ranks)
    return {f"field{field}": rank for rank, fields in enumerate(dealt) for field in fields}


if __name__ == "__main__":
    main()
