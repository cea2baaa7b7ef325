"""What the parts train on: ids, tables that are filled fast, models, and the step.

Ids follow Zipf's law with exponent 1.05, or are drawn as those of Criteo Kaggle are
(`hotrows.data.datasets.synthetic`): the values of its largest field hashed into the largest table of
Criteo 1TB's published sizes, and so on down to the smallest.
"""

import concurrent.futures
import contextlib
import gc
import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.workload import CRITEO_KAGGLE
from hotrows import models
from hotrows.data.datasets import synthetic
from hotrows.engine.caching import Caching
from hotrows.engine.embedding import Embedding
from hotrows.engine.stages import start
from hotrows.engine.storage.store import InitialValues
from hotrows.ops.record import views
from hotrows.train.costs import workload
from hotrows.train.loop.cuda_graph import CapturedStep
from hotrows.train.loop.step import Step

ZIPF = 1.05
NUM_DENSE = 13
DENSE_LR, ROW_LR = 0.01, 0.01
BOTTOM, TOP = (512, 256), (1024, 1024, 512, 256)  # then the dim, and 1
OPTIMIZERS: dict[str, Callable[..., hotrows.optim.RowOptimizer]] = {
    "sgd": hotrows.SGD,
    "rowwise": hotrows.RowWiseAdagrad,
    "adagrad": hotrows.Adagrad,
    "adam": hotrows.LazyAdam,
}


# ---- ids


def zipf_ids(num_rows: int, count: int, generator: torch.Generator) -> Tensor:
    """[count] int64 on the generator's device: ids of [0, num_rows), the hot ones scattered."""
    device = generator.device
    ranks = torch.arange(1, num_rows + 1, dtype=torch.float64, device=device)
    cumulated = ranks.pow_(-ZIPF).cumsum_(0)
    points = torch.rand(count, dtype=torch.float64, generator=generator, device=device)
    drawn = torch.searchsorted(cumulated, points.mul_(cumulated[-1])).clamp_(max=num_rows - 1)
    return scattered(drawn, num_rows)


def scattered(ranks: Tensor, num_rows: int) -> Tensor:
    """The id of each rank of popularity: one to one, neighbours far apart."""
    candidates = itertools.count(int(0.618 * num_rows) + 1)
    step = next(step for step in candidates if math.gcd(step, num_rows) == 1)
    return ranks * step % num_rows


def zipf_stream(num_rows: list[int], count: int, device: str, seed: int = 0) -> np.ndarray:
    """[F, count] int32: ids of each table."""
    generator = torch.Generator(device).manual_seed(seed)
    stream = np.empty((len(num_rows), count), np.int32)
    for field, rows in enumerate(num_rows):
        for begin in range(0, count, 1 << 24):
            part = zipf_ids(rows, min(1 << 24, count - begin), generator)
            stream[field, begin : begin + len(part)] = part.int().cpu().numpy()
    return stream


def criteo_stream(num_rows: list[int], count: int) -> np.ndarray:
    """[26, count] int32: ids of each table, 0 where a value is missing."""
    blocks = range(-(-count // synthetic.BLOCK))
    tasks = [(block, num_rows) for block in blocks]
    stream = np.empty((26, len(blocks) * synthetic.BLOCK), np.int32)
    with contextlib.ExitStack() as stack:
        all_ids = map(_criteo_block, tasks)
        if len(tasks) > 64:
            # Not forked: a process that has begun CUDA must not be.
            context = multiprocessing.get_context("spawn")
            pool = concurrent.futures.ProcessPoolExecutor(mp_context=context)
            all_ids = stack.enter_context(pool).map(_criteo_block, tasks, chunksize=8)
        for block, ids in zip(blocks, all_ids, strict=True):
            stream[:, block * synthetic.BLOCK : (block + 1) * synthetic.BLOCK] = ids
    return stream[:, :count]


def _criteo_block(task: tuple[int, list[int]]) -> np.ndarray:
    block, num_rows = task
    columns = synthetic.draw_columns(np.random.default_rng([0, block]), 0, synthetic.FIELDS)
    ids = np.empty((26, synthetic.BLOCK), np.int32)
    by_size = np.argsort(CRITEO_KAGGLE, kind="stable"), np.argsort(num_rows, kind="stable")
    for source, field in zip(*by_size, strict=True):
        places, rows = columns[f"C{source + 1}"], num_rows[field]
        hashed = synthetic.id_of(synthetic.key(0, "gpu", f"C{source + 1}"), places).astype(np.int64)
        ids[field] = np.where(places == synthetic.MISSING, 0, 1 + hashed % (rows - 1))
    return ids


def equal_tables(num_bytes: float, stride: int, fields: int = 26) -> list[int]:
    """Rows of tables that are all as large."""
    return [int(num_bytes / stride / fields)] * fields


def criteo_tables(num_bytes: float, stride: int) -> list[int]:
    """Rows of Criteo 1TB's tables (at most 40 M each), all cut alike to fit."""
    sizes = [load.rows for load in workload.named("criteo-1tb").loads]
    return [max(int(rows * num_bytes / stride / sum(sizes)), 3) for rows in sizes]


def batches_of(stream: np.ndarray, batch_size: int, seed: int = 0) -> Iterator[hotrows.Batch]:
    """The stream as batches; dense values and labels are random, and the same in all."""
    names = tuple(f"C{f}" for f in range(len(stream)))
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(batch_size, NUM_DENSE, generator=generator)
    labels = torch.rand(batch_size, generator=generator).lt(0.25).float()
    for begin in range(0, stream.shape[1] - batch_size + 1, batch_size):
        ids = torch.from_numpy(stream[:, begin : begin + batch_size]).long().reshape(-1)
        yield hotrows.Batch(names, ids, dense, labels)


# ---- tables and models


def schema_of(num_rows: Iterable[int]) -> hotrows.Schema:
    dense = tuple(hotrows.Dense(f"I{i}") for i in range(NUM_DENSE))
    sparse = tuple(hotrows.Sparse(f"C{f}", rows=rows) for f, rows in enumerate(num_rows))
    return hotrows.Schema(dense + sparse)


def dlrm(
    num_rows: Iterable[int], dim: int, device: str | torch.device, small: bool = False
) -> models.Model:
    bottom, top = ((16,), (16, 8)) if small else (BOTTOM, TOP)
    torch.manual_seed(0)
    model = models.build("dlrm", schema_of(num_rows), dim=dim, bottom=bottom, top=top)
    return model.to(device)


def tables_of(num_rows: Iterable[int], dim: int) -> list[hotrows.Table]:
    return [hotrows.Table(f"C{f}", rows, dim, (f"C{f}",)) for f, rows in enumerate(num_rows)]


def embedding_of(
    tables: Iterable[hotrows.Table],
    optimizer: str,
    device: str,
    caching: Caching | None = None,
    **options,
) -> Embedding:
    """Tables whose first values are copies of one random block: tens of gigabytes in seconds."""
    if device != "cpu":
        gc.collect()  # the tables before these
        options["device"] = device
    with mock.patch.object(InitialValues, "fill", _filler()):
        return Embedding(
            tuple(tables), optimizer=OPTIMIZERS[optimizer](lr=ROW_LR), caching=caching, **options
        )


def weights_in_place(embedding: Embedding, table: str) -> Tensor:
    """[rows, dim]: the weights of a table where they are, without a cache: writing writes them."""
    for pack, store in zip(embedding.packs, embedding.stores, strict=True):
        for t, candidate in enumerate(pack.tables):
            if candidate.name == table:
                return store.views.weights[pack.first_rows[t] : pack.first_rows[t + 1]]
    raise KeyError(table)


def _filler() -> Callable[[InitialValues, Tensor, Tensor], None]:
    """Fills chunks of records with the same block, equal on every device."""
    blocks: dict[tuple, Tensor] = {}

    def fill(first: InitialValues, records: Tensor, rows: Tensor) -> None:
        key = (first.layout, records.shape, records.device)
        if key not in blocks:
            block = torch.zeros(records.shape, dtype=torch.uint8)
            generator = torch.Generator().manual_seed(0)
            weights = views(block, first.layout.as_ints()).weights
            weights.uniform_(-0.01, 0.01, generator=generator)
            blocks[key] = block.to(records.device)
        records.copy_(blocks[key])

    return fill


# ---- the step


class Training:
    """The engine's own step: lookup, model, loss, backward, update, dense SGD; on a GPU in bfloat16, or
    as `precision` says.

    graph: as one CUDA graph; compiles: the model through `torch.compile`.
    """

    def __init__(
        self,
        model: nn.Module,
        embedding: Embedding,
        device: str,
        *,
        graph: bool = False,
        compiles: bool = False,
        precision: str = "bfloat16",
    ) -> None:
        precision = "float32" if device == "cpu" else precision
        config = hotrows.TrainConfig(
            model="dlrm", dense_lr=DENSE_LR, precision=precision, compile=compiles
        )
        parts = SimpleNamespace(model=model, embedding=embedding, loss=_loss, ranks=embedding.ranks)
        optimizer = torch.optim.SGD(model.parameters(), DENSE_LR, fused=True)
        step = Step(parts, optimizer, config)
        self._step = CapturedStep(step) if graph else step

    def step(self, work) -> Tensor:
        """One update; the loss, on the device."""
        return self._step(work.item.plan, work.item.batch, 1.0)


def _loss(logits: Tensor, batch: hotrows.Batch) -> Tensor:
    return binary_cross_entropy_with_logits(logits.float(), batch.labels)


def ready(embedding: Embedding, batches: Iterable[hotrows.Batch], padded: bool = False) -> list:
    """The works of batches, planned and on the device; of an embedding without a cache.

    padded: all of one form, as a graph needs them.
    """
    with contextlib.closing(start(embedding, enumerate(batches), plan_depth=0, padded=padded)) as runner:
        return list(runner)
