"""What do equal bits cost, next to FBGEMM's two backward passes?

The claim aimed for, not measured yet: lookup and update of ours, whose runs always have equal bits, reach
at least 0.95 of the speed of FBGEMM's fastest mode and 1.5 times that of its deterministic one.

FBGEMM sums the gradients of a row that occurs often by atomics of several blocks, in any order; where
`torch.use_deterministic_algorithms` is on, one block sums them in turn. Row-wise Adagrad in float32, one
vector a lookup, 1.05 M lookups: dims 16, 64 and 128, Zipf exponents of 1.05, 1.1 and 1.2, 26 and 461
tables of 10 M rows together (of dim 128; 40 M at most). Where the package `fbgemm_gpu` is not installed,
ours stands alone.
"""

import importlib.util
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

import hotrows
from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import timed
from benchmarks.gpu_parts.workloads import ROW_LR, embedding_of, ready, scattered, tables_of

DIMS, EXPONENTS, TABLES = (16, 64, 128), (1.05, 1.1, 1.2), (26, 461)
_LOOKUPS = 1 << 20
Pass = Callable[[], object]


def run(findings: Findings, setting: Setting) -> bool:
    """Whether all was measured."""
    has_peer = setting.on_gpu and importlib.util.find_spec("fbgemm_gpu") is not None
    cases = itertools.product(*setting.pick((TABLES, DIMS, EXPONENTS), ((3,), (4,), (1.05, 1.2))))
    for num_tables, dim, exponent in cases:
        name = f"{num_tables} tables, dim {dim}, exponent {exponent}"
        if findings.has(name):
            continue
        if setting.seconds_left < setting.pick(5, 0):
            return False
        figures = _measure(findings, setting, num_tables, dim, exponent, has_peer, name)
        if figures is not None:
            findings.add(name, figures)
    return True


def _measure(
    findings: Findings, setting: Setting, num_tables: int, dim: int, exponent: float, has_peer: bool,
    name: str,
) -> dict | None:  # fmt: skip
    rows = setting.pick(10_000_000, 300) // num_tables
    batch_size = setting.pick(_LOOKUPS, 60) // num_tables
    ids = _ids(rows, num_tables, batch_size, exponent)
    gradient = torch.randn(batch_size * num_tables, dim, device=setting.device)
    ours = _ours([rows] * num_tables, ids, dim, gradient, setting)
    first, again = (_bits(make) for make in (ours, ours))
    if not findings.check(f"{name}: equal bits twice", torch.equal(first, again), arm=name):
        return None
    figures: dict = {"ms": timed(ours()[0], setting).ms}
    if has_peer:
        for mode in ("default", "deterministic"):
            figures[f"fbgemm_{mode}_ms"] = _peer([rows] * num_tables, ids, dim, gradient, setting, mode)
        figures["of_default"] = figures["fbgemm_default_ms"] / figures["ms"]
        figures["of_deterministic"] = figures["fbgemm_deterministic_ms"] / figures["ms"]
    else:
        figures["left_out"] = "fbgemm_gpu is not installed"
    return figures


def _ids(rows: int, num_tables: int, batch_size: int, exponent: float) -> Tensor:
    """[F, B]: ranks by Zipf's law of this exponent, spread over a table."""
    generator, weights = torch.Generator().manual_seed(0), torch.arange(1, rows + 1).double() ** -exponent
    ends = weights.cumsum(0)
    drawn = torch.rand(num_tables * batch_size, dtype=torch.float64, generator=generator) * ends[-1]
    ranks = torch.searchsorted(ends, drawn).clamp_(max=rows - 1)
    return scattered(ranks, rows).view(num_tables, batch_size)


def _ours(
    num_rows: list[int], ids: Tensor, dim: int, gradient: Tensor, setting: Setting
) -> Callable[[], tuple[Pass, Callable[[], Tensor]]]:
    """Makes tables anew: their lookup and update, and what reads the rows of the first one."""

    def make() -> tuple[Pass, Callable[[], Tensor]]:
        embedding = embedding_of(tables_of(num_rows, dim), "rowwise", setting.device)
        names = tuple(f"C{f}" for f in range(len(num_rows)))
        batch = hotrows.Batch(names, ids.reshape(-1), torch.zeros(ids.shape[1], 1))
        (work,) = ready(embedding, [batch])

        def both() -> None:
            vectors = embedding.lookup(work.item.plan)
            vectors.leaves[0].grad = gradient
            embedding.update(work.item.plan, vectors)

        return both, lambda: embedding.weights("C0")[ids[0].unique()].clone()

    return make


def _bits(make: Callable[[], tuple[Pass, Callable[[], Tensor]]]) -> Tensor:
    work, rows = make()
    for _ in range(3):
        work()
    return rows().cpu()


def _peer(
    num_rows: list[int], ids: Tensor, dim: int, gradient: Tensor, setting: Setting, mode: str
) -> float:
    """Milliseconds of lookup, backward and update by FBGEMM."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.DEVICE, ComputeDevice.CUDA) for rows in num_rows],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=ROW_LR,
    )
    tables.init_embedding_weights_uniform(-0.01, 0.01)
    indices = ids.reshape(-1).to(setting.device)
    offsets = torch.arange(len(indices) + 1, device=setting.device)
    num_tables, batch_size = ids.shape
    gradients = gradient.view(num_tables, batch_size, dim).transpose(0, 1).reshape(batch_size, -1)
    gradients = gradients.contiguous()
    torch.use_deterministic_algorithms(mode == "deterministic", warn_only=True)
    try:
        return timed(lambda: tables(indices, offsets).backward(gradients), setting).ms
    finally:
        torch.use_deterministic_algorithms(False)
