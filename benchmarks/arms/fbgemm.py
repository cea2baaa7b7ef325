"""FBGEMM's table-batched embedding, which fuses backward and update: bare, or under TorchRec."""

from argparse import Namespace

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

from benchmarks.arms import arm
from benchmarks.arms.torch_step import WITH_FIRST, Lookup, make_step
from benchmarks.workload import DIM, LEARNING_RATE, Batch, batches

OPTIMIZERS = {
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
}
FIRST_DIM = 4  # of the first-order weights: FBGEMM has no narrower rows; one column is used


def main() -> None:
    args = arm.parse(api=("tbe", "torchrec"))
    torch.set_num_threads(args.threads)
    data = batches(args.workload, args.batch_size)
    make_lookup = {"tbe": tbe_lookup, "torchrec": torchrec_lookup}[args.api]
    lookup = make_lookup(args, data)
    arm.report(args, make_step(args, data, lookup), "torch", "fbgemm-gpu-cpu", "torchrec")


def tbe_lookup(args: Namespace, data: list[Batch]) -> Lookup:
    num_fields = len(args.workload.num_rows)
    ids = [torch.from_numpy(batch.ids).reshape(-1) for batch in data]
    offsets = torch.arange(num_fields * args.batch_size + 1)
    tables = _tables(args, DIM) if args.model != "lr" else None
    first = _tables(args, FIRST_DIM) if args.model in WITH_FIRST else None

    def lookup(k: int) -> tuple[Tensor | None, Tensor | None]:
        k %= len(ids)
        vectors = None if tables is None else tables(ids[k], offsets).view(-1, num_fields, DIM)
        if first is None:
            return vectors, None
        return vectors, first(ids[k], offsets).view(-1, num_fields, FIRST_DIM)[:, :, 0].sum(1)

    return lookup


def torchrec_lookup(args: Namespace, data: list[Batch]) -> Lookup:
    from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    if args.model in WITH_FIRST:
        raise ValueError("the torchrec arm has no first-order weights; use --api tbe")
    num_fields = len(args.workload.num_rows)
    names = [f"field{field}" for field in range(num_fields)]
    optimizers = {"adagrad": torch.optim.Adagrad, "rowwise": RowWiseAdagrad, "sgd": torch.optim.SGD}
    tables = FusedEmbeddingBagCollection(
        [
            EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=n, embedding_dim=DIM)
            for name, n in zip(names, args.workload.num_rows, strict=True)
        ],
        optimizer_type=optimizers[args.optimizer],
        optimizer_kwargs={"lr": LEARNING_RATE},
        device=torch.device("cpu"),
    )
    lengths = torch.ones(num_fields * args.batch_size, dtype=torch.int64)
    ids = [torch.from_numpy(batch.ids).reshape(-1) for batch in data]
    features = [KeyedJaggedTensor(names, values, lengths=lengths) for values in ids]

    def lookup(k: int) -> tuple[Tensor, None]:
        return tables(features[k % len(features)]).values().view(-1, num_fields, DIM), None

    return lookup


def _tables(args: Namespace, dim: int) -> SplitTableBatchedEmbeddingBagsCodegen:
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(n, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in args.workload.num_rows],
        optimizer=OPTIMIZERS[args.optimizer],
        learning_rate=LEARNING_RATE,
    )
    tables.init_embedding_weights_uniform(-0.01, 0.01)
    return tables


if __name__ == "__main__":
    main()
