"""How the arms of `gpu_cache` train: hotrows, a cache filled within the step, and plain PyTorch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, relu

from benchmarks.arms.gpu_arms import Arm
from benchmarks.gpu_parts.plain import PlainTable
from benchmarks.gpu_parts.step_cache import StepCache
from benchmarks.gpu_parts.timing import synchronize
from benchmarks.gpu_parts.workloads import DENSE_LR, OPTIMIZERS, ROW_LR, Training, ready
from hotrows.batch import Batch
from hotrows.engine.caching import CacheTraffic, Caching
from hotrows.engine.embedding import Embedding
from hotrows.engine.planning.threads import num_threads
from hotrows.engine.stages import start
from hotrows.runtime.device import aligned

if TYPE_CHECKING:
    from benchmarks.arms.gpu_cache import Rig

_BEFORE = 24  # batches planned before


class Run:
    """hotrows, all rows on the device or behind a cache."""

    def __init__(self, rig: Rig, arm: Arm) -> None:
        self.rig, self.arm, self.stalled = rig, arm, {}
        self.model = rig.model()
        self.hot_ids: list[Tensor] = []
        self.embedding = self._embedding()
        # Compiling is for a GPU: on the host it would only take a minute of a small run.
        compiles = arm.step == "compiled" and rig.setting.on_gpu
        graph = arm.step != "eager"
        self.training = Training(
            self.model, self.embedding, rig.setting.device, graph=graph, compiles=compiles
        )
        self._num_done = 0
        self._traffic, self._num_counted = CacheTraffic(), 0

    def _embedding(self) -> Embedding:
        caching, parts = None, 1
        if self.arm.share is not None:
            if self.arm.planning == "host":
                parts = num_threads(None, self.rig.setting.device == "cpu")  # as `Trainer` deals tables
            caching = self._caching(parts)
        with self.rig.memory.in_place_of_tables():
            return self._of_tables(caching, parts)

    def _of_tables(self, caching: Caching | None, parts: int = 1) -> Embedding:
        planning = "host" if self.arm.planning == "host" else "device"
        options = {} if self.rig.setting.device == "cpu" else {"device": self.rig.setting.device}
        optimizer = OPTIMIZERS[self.rig.request["optimizer"]](lr=ROW_LR)
        return Embedding(
            self.model.tables, optimizer=optimizer, caching=caching, pack_parts=parts,
            planning=planning, **options,
        )  # fmt: skip

    def _caching(self, parts: int) -> Caching:
        stride = self.rig.memory.block.shape[1]
        size = aligned(stride) if self.rig.setting.on_gpu else stride  # of a slot
        slots = max(int(self.arm.share * sum(self.rig.request["num_rows"])), parts)
        self.hot_ids = self.rig.hot_ids(slots)
        hot = dict(zip((table.name for table in self.model.tables), self.hot_ids, strict=True))
        return Caching(
            slots * size, "memory", self.arm.policy, in_flight=self.arm.in_flight, hot_ids=hot,
            lookahead_memory=4 << 30,  # so that the window decides how far a small cache looks
        )  # fmt: skip

    def restore(self) -> None:
        """Gives the rows of the checked steps their first values, and the cache the most popular rows."""
        self.rig.memory.restore(self.embedding, self.rig.ids)
        if self.embedding.cached_tables and self.arm.share:
            self.embedding.cached_tables.warm()

    def state(self) -> dict:
        """The rows of the checked steps as they are now, in two numbers."""
        if self.embedding.cached_tables:
            self.embedding.cached_tables.flush()
        synchronize(self.rig.setting)
        return self.rig.memory.state_of(self.embedding, self.rig.ids)

    @contextlib.contextmanager
    def steps(self, batches: list[Batch], forever: bool = False) -> Iterator[Iterator[Tensor]]:
        """Within, an iterator that trains a batch at each turn; its loss. forever: over and over."""
        cached = self.embedding.cached_tables
        near: Iterable[Batch] = itertools.cycle(batches) if forever else batches
        far = (itertools.cycle(batches) if forever else iter(batches)) if cached else None
        if self.arm.planning == "before":
            works = ready(self.embedding, batches[:_BEFORE])
            yield (self._step(work) for work in (itertools.cycle(works) if forever else works))
            return
        runner = start(
            self.embedding, enumerate(near, self._num_done), far,
            plan_depth=2 if self.arm.overlapped else 0, padded=self.arm.step != "eager",
        )  # fmt: skip
        self.stalled = runner.stalled
        with contextlib.closing(runner):
            yield (self._step(work) for work in runner)
        if self.arm.kind == "hot-cold" and forever:  # which trains twice
            synchronize(self.rig.setting)
            cached.forget_plans()  # batches that were planned and not trained
            cached.warm()

    def _step(self, work) -> Tensor:
        loss = self.training.step(work)
        self._num_done += 1
        if self.embedding.cached_tables:
            self._traffic += self.embedding.cached_tables.traffic(work.item.plan)
        self._num_counted += 1
        return loss

    def count(self) -> None:
        """Begins to count what moves."""
        self._traffic, self._num_counted = CacheTraffic(), 0

    def counted(self) -> dict:
        """What a batch has moved since, on the mean."""
        moved, num = self._traffic, self._num_counted
        if not self.embedding.cached_tables:
            return {}
        return {
            "rows": moved.rows / num,
            "misses": moved.rows_in / num,
            "hit_rate": 1 - moved.rows_in / moved.rows,
            "mb_in": moved.bytes_in / num / 1e6,
            "mb_out": moved.bytes_out / num / 1e6,
        }


class InStepRun(Run):
    """Slots by `StepCache`, on the stream of training; distinct rows are found ahead of it."""

    def _embedding(self) -> Embedding:
        request, block = self.rig.request, self.rig.memory.block
        slots = int(self.arm.share * len(block))
        most = min(len(request["num_rows"]) * request["batch_size"], len(block))
        self._cache = StepCache(block, slots, most, self.rig.setting.device)
        self._misses_before, self._num_rows = 0, 0
        with self.rig.memory.in_place_of_tables(self._cache.records):
            return self._of_tables(None)

    def _step(self, work) -> Tensor:
        staged = work.item
        (pack,) = staged.plan.packs
        slots = self._cache.fetch(pack.rows)
        staged.plan = replace(staged.plan, packs=(replace(pack, slots=slots),))
        loss = super()._step(work)
        self._cache.put_back()
        return loss

    def state(self) -> dict:
        self._cache.flush()
        return super().state()

    def count(self) -> None:
        super().count()
        self._misses_before = int(self._cache.num_misses)

    def counted(self) -> dict:
        misses = (int(self._cache.num_misses) - self._misses_before) / self._num_counted
        return {"misses": misses, "mb_in": misses * self.rig.memory.block.shape[1] / 1e6}


class PlainRun(Run):
    """PyTorch alone, with care: one table of all rows, of which a step reads and writes its own."""

    def __init__(self, rig: Rig, arm: Arm) -> None:
        assert rig.request["optimizer"] in ("sgd", "rowwise"), "as much memory as records have"
        self.rig, self.arm, self.stalled = rig, arm, {}
        num_rows, dim = rig.request["num_rows"], rig.request["dim"]
        total, flat = sum(num_rows), rig.memory.block.view(-1).view(torch.float32)
        self.weights = flat[: total * dim].view(total, dim)
        state = flat[total * dim : total * (dim + 1)]
        self.table = PlainTable(self.weights, rig.request["optimizer"], ROW_LR, state)
        sizes = torch.tensor(num_rows, device=self.weights.device)
        self.first_rows = (sizes.cumsum(0) - sizes)[:, None]
        ours = rig.model()
        self.model = PlainDlrm(ours).to(rig.setting.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), DENSE_LR, fused=True)
        compiles = arm.step == "compiled" and rig.setting.on_gpu
        self.forward = torch.compile(self.model, dynamic=False) if compiles else self.model

    def restore(self) -> None:
        for ids, rows in self._checked():
            self.weights[rows] = self.rig.memory.first_weights(ids)

    def state(self) -> dict:
        differences = [
            self.weights[rows] - self.rig.memory.first_weights(ids) for ids, rows in self._checked()
        ]
        return {"change": sum(d.abs().sum(dtype=torch.float64).item() for d in differences)}

    def _checked(self) -> Iterator[tuple[Tensor, Tensor]]:
        for ids, first in zip(self.rig.ids, self.first_rows[:, 0], strict=True):
            yield ids, ids.to(first.device) + first

    @contextlib.contextmanager
    def steps(self, batches: list[Batch], forever: bool = False) -> Iterator[Iterator[Tensor]]:
        yield (self._train(batch) for batch in (itertools.cycle(batches) if forever else batches))

    def _train(self, batch: Batch) -> Tensor:
        device = self.rig.setting.device
        ids, dense, labels = (
            t.to(device, non_blocking=True) for t in (batch.ids, batch.dense, batch.labels)
        )
        rows = (ids.view(len(self.first_rows), -1) + self.first_rows).t().reshape(-1)  # [B * F]
        vectors = self.table.lookup(rows).requires_grad_()
        enabled = self.rig.setting.on_gpu
        with torch.autocast("cuda" if enabled else "cpu", torch.bfloat16, enabled=enabled):
            logits = self.forward(dense, vectors.view(len(labels), -1, vectors.shape[1]))
        loss = binary_cross_entropy_with_logits(logits.float(), labels)
        loss.backward()
        self.table.update(rows, vectors.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def count(self) -> None: ...

    def counted(self) -> dict:
        return {}


class PlainDlrm(nn.Module):
    """DLRM as PyTorch's own layers, with the parameters of ours."""

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.bottom, self.top = (
            nn.ParameterList([p.detach().clone() for p in part.parameters()])
            for part in (ours.bottom, ours.top)
        )
        num = len(ours.tables) + 1
        row, column = torch.tril_indices(num, num, -1)
        self.register_buffer("pairs", row * num + column)

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        bottom = relu(_layers(dense, self.bottom))
        z = torch.cat([bottom.unsqueeze(1), vectors.to(bottom.dtype)], 1)
        products = torch.bmm(z, z.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return _layers(torch.cat([bottom, products], 1), self.top).squeeze(1)


def _layers(x: Tensor, parameters: nn.ParameterList) -> Tensor:
    """Linear layers with ReLU between them; parameters: weight, bias, weight, .."""
    pairs = [*pairwise(parameters)][::2]
    for n, (weight, bias) in enumerate(pairs):
        x = nn.functional.linear(relu(x) if n else x, weight, bias)
    return x
