"""Defaults of a run on a GPU, and the line that states them with the reason."""

from __future__ import annotations

from hotrows.config import TrainConfig
from hotrows.distributed.comm import Ranks
from hotrows.engine.embedding import Embedding
from hotrows.optim import DenseRowOptimizer
from hotrows.record import MAX_KERNEL_DIM
from hotrows.schema import Schema, is_list

_PRODUCTS = {
    "float32": "in float32",
    "tf32": "in TF32 (float32 on tensor cores, which round its factors to 10 bits)",
    "bfloat16": "in bfloat16",
}


def refusal_of_capture(embedding: Embedding, ranks: Ranks) -> str | None:
    """Why a step cannot be captured as a CUDA graph, and what to do; None: it can."""
    if ranks.num_ranks > 1:
        return (
            f"how many rows {ranks.num_ranks} ranks exchange differs from batch to batch, and a captured "
            f"step cannot: leave it out, or start one rank"
        )
    if embedding.dynamic is not None:
        return "a captured step gives new keys no rows: leave it out for dynamic features"
    for table in embedding.tables:
        optimizer = table.optimizer
        if isinstance(optimizer, DenseRowOptimizer):
            return (
                f"how many steps rows of table {table.name!r} have missed under its optimizer "
                f"{optimizer.kind} differs from step to step, and a captured step cannot: leave it out, "
                f"or choose a lazy row optimizer such as adam"
            )
        if table.dim > MAX_KERNEL_DIM:
            return (
                f"table {table.name!r} has dim {table.dim:,}, and rows wider than {MAX_KERNEL_DIM:,} are "
                f"updated by numbers that the host reads: leave it out, or choose a smaller dim"
            )
    return None


def why_not_captured(
    config: TrainConfig, embedding: Embedding, ranks: Ranks, schema: Schema
) -> str | None:
    """Why steps are not captured where the config leaves it open; None: they are."""
    if config.device == "cpu":
        return "there is no GPU"
    if config.cuda_graph is False:
        return "cuda_graph is off"
    if config.dense_optimizer == "adagrad":
        return "PyTorch's Adagrad cannot be captured"
    if any(map(is_list, schema.id_features)):
        return "batches of lists differ in size"
    if embedding.planner.micro_batches > 1:
        return "batches are trained in parts"
    return refusal_of_capture(embedding, ranks)


def described(config: TrainConfig, embedding: Embedding, schema: Schema, not_captured: str | None) -> str:
    """One line: number format, planning and launches of a run on a GPU, and why these."""
    planner = embedding.device_planner
    if planner is None:
        on_host: str | None = "asked for"
    elif any(map(is_list, schema.id_features)):
        on_host = "features are lists of ids"
    else:
        on_host = planner.refusal_of_all()
    plans = "on the GPU" if on_host is None else f"on the host ({on_host})"
    graph = "as one CUDA graph, after three that warm up"
    launches = graph if not_captured is None else f"kernel by kernel ({not_captured.split(':')[0]})"
    return (
        f"GPU: products {_PRODUCTS[config.precision or 'float32']}, batches planned {plans}, steps "
        f"launched {launches}; --precision, --planning and --cuda-graph choose"
    )
