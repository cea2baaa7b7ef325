"""What a training step costs the host beside a GPU: processor time of its thread, the device taking none.

    python -m benchmarks.host_step [--models M ...] [--quick]

Python, autograd, PyTorch's dispatcher and Triton's launcher run as they do beside a GPU. Kernels are
compiled for sm_90 and never launched. PyTorch's own ops compute, on the processor, on so few samples and
in layers so narrow that their arithmetic is next to nothing; a launch of theirs on a GPU costs the host
about as much, some microseconds. What the driver takes for a launch of Triton's is not in it, some 2 us
each.

    eager       lookup, model, loss, backward, update, dense step: each kernel launched by the host
    captured    all of them as one CUDA graph: what is left around it
    upload      on the thread that plans: ids of a batch, and what else it reads, to the device
    accelerate  a PyTorch model of 26 tables under `hotrows.accelerate`, Adam: the user's own loop
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pkgutil
import time
from collections import ChainMap
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import hotrows
from benchmarks.harness import RESULTS, conditions
from hotrows import Batch, Dense, Schema, Sparse, TrainConfig
from hotrows.ops import layers
from hotrows.ops.deferred import on_device
from hotrows.ops.layers import by_device, interaction
from hotrows.ops.rows import cuda
from hotrows.runtime.device import Device
from hotrows.schema import Sequence
from hotrows.train.loop.cuda_graph import CapturedStep
from hotrows.train.loop.recommender import Recommender
from hotrows.train.loop.step import Step, dense_optimizer

SAMPLES, STEPS, WARM = 8, 200, 20
AIMS = {"eager": 1.5, "captured": 0.3}  # ms
ACCELERATED = "accelerate"
FIELDS = Schema((*(Dense(f"I{i}") for i in range(13)), *(Sparse(f"C{f}", rows=1000) for f in range(26))))
HISTORIES = Schema(
    (
        Dense("price"),
        Sparse("user", rows=100),
        Sparse("item", rows=100),
        Sequence("history", vocabulary="item", rows=100),
    )
)
MODELS: dict[str, tuple[Schema, dict[str, Any]]] = {
    "dlrm": (FIELDS, {"bottom": (8, 8, 8), "top": (8, 8)}),
    "deepfm": (FIELDS, {"hidden": (8, 8, 8)}),
    "dcnv2": (FIELDS, {"hidden": (8, 8)}),
    "din": (HISTORIES, {"form": "paper", "hidden": (8, 8)}),
    "dien": (HISTORIES, {"hidden": (8, 8)}),
    "can": (HISTORIES, {"hidden": (8, 8)}),
}


class NoTime(Device):
    """A GPU for which everything is done at once; its memory is the host's."""

    on_host = False

    def capture(self, work: Callable[[], Tensor], pool: Any = None) -> Callable[[], Tensor]:
        result = work()
        return lambda: result


class _Driver:
    """Triton's, of a Hopper GPU that does nothing."""

    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 232_448},
        load_binary=lambda *_: (1, 1, 32, 0, 1024),
    )

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *_: None


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a step costs the host beside a GPU.")
    choices = [*MODELS, ACCELERATED]
    parser.add_argument("--models", nargs="*", choices=choices, default=choices)
    parser.add_argument("--quick", action="store_true", help="few steps, and no file")
    args = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "0"
    torch.set_num_threads(1)
    with ExitStack() as stack:
        _pretend_kernels(stack)
        steps = 20 if args.quick else STEPS
        figures = {name: measured(name, steps) for name in args.models if name != ACCELERATED}
        if ACCELERATED in args.models:
            figures[ACCELERATED] = {"eager": _accelerated_ms(steps)}
    if not args.quick:
        question = "What does a training step cost the host beside a GPU?"
        facts = {"question": question, "samples": SAMPLES, "steps": STEPS, "aims_ms": AIMS}
        path = RESULTS / "host-step.json"
        path.write_text(json.dumps(facts | conditions(1) | {"models": figures}, indent=1) + "\n")


def measured(name: str, steps: int) -> dict[str, float]:
    """Medians of a step's milliseconds, by the way of the step."""
    schema, options = MODELS[name]
    config = TrainConfig(
        model=name, model_options=options, batch_size=SAMPLES, device="cuda", dense_lr=0.01,
        precision="tf32", row_optimizer=hotrows.Adagrad(),
    )  # fmt: skip
    with mock.patch("hotrows.train.loop.recommender.find", lambda _: NoTime()):
        recommender = Recommender(config, schema)
    step = Step(recommender, dense_optimizer(config, recommender.model), config)
    batch, embedding = _batch(schema), recommender.embedding
    plan = embedding.plan(batch)
    uploaded = embedding.upload(batch, plan, padded=True).value[::-1]
    ways = {
        "eager": (step, uploaded),
        "upload": (lambda *_: embedding.upload(batch, embedding.plan_ahead(batch), True), uploaded),
        "captured": (CapturedStep(step), uploaded),
    }
    times = {way: _ms(lambda run=run, of=of: run(*of, 1.0), steps) for way, (run, of) in ways.items()}
    print(f"{name}: " + ", ".join(f"{way} {ms:.3f} ms" for way, ms in times.items()), flush=True)
    return times


class _Plain(nn.Module):
    """26 tables and an MLP in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(26))
        self.top = nn.Sequential(nn.Linear(26 * 16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Tensor:
        rows = [table(of_table) for table, of_table in zip(self.tables, ids.unbind(1), strict=True)]
        return self.top(torch.cat(rows, 1)).squeeze(1)


def _accelerated_ms(steps: int) -> float:
    model = _Plain()
    optimizer = torch.optim.Adam(model.parameters())
    hotrows.accelerate(model, optimizer, always=True)
    ids, labels = torch.randint(0, 1000, (SAMPLES, 26)), torch.rand(SAMPLES)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(ids), labels).backward()
        optimizer.step()

    ms = _ms(step, steps)
    print(f"{ACCELERATED}: eager {ms:.3f} ms", flush=True)
    return ms


def _ms(call: Callable[[], object], steps: int) -> float:
    for _ in range(WARM):
        call()
    gc.collect()
    times = []
    for _ in range(steps):
        begin = time.thread_time()  # of its thread: others may use the processor meanwhile
        call()
        times.append(time.thread_time() - begin)
    return 1e3 * median(times)


def _batch(schema: Schema) -> Batch:
    torch.manual_seed(0)
    names = tuple(f.name for f in schema.id_features)
    lists = [isinstance(f, Sequence) for f in schema.id_features]
    dense, labels = torch.randn(SAMPLES, len(schema.dense)), torch.rand(SAMPLES).round()
    lengths = torch.tensor([3 if many else 1 for many in lists]).repeat_interleave(SAMPLES)
    ids = torch.randint(0, 100, (int(lengths.sum()),))
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]) if any(lists) else None
    return Batch(names, ids, dense, labels, offsets=offsets)


def _pretend_kernels(stack: ExitStack) -> None:
    """Lets tensors of the host take the ways of those of a GPU, to kernels that are never launched."""
    from triton.runtime import driver

    from hotrows.ops import triton as kernels

    driver.set_active(_Driver())
    stack.enter_context(mock.patch.object(torch.Tensor, "is_cuda", property(lambda _: True), create=True))
    stack.enter_context(mock.patch("torch.cuda.is_current_stream_capturing", lambda: False))
    library = torch.library.Library("hotrows", "IMPL")
    for name in cuda._TRITON:
        library.impl(name, getattr(kernels, name), "CPU", allow_override=True)
    of_tables = on_device._Ops("hotrows.ops.triton.deferred")
    for name in ("catch_up_tables", "step_tables", "look_up_tables"):
        library.impl(name, getattr(of_tables, name), "CPU", allow_override=True)
    for name in interaction._SCHEMAS:
        library.impl(name, getattr(interaction, f"{name}_reference"), "CPU", allow_override=True)
    names = [m.name for m in pkgutil.iter_modules(layers.__path__, "hotrows.ops.layers.")]
    modules = [importlib.import_module(name) for name in names]
    for module in (m for m in modules if hasattr(m, "takes")):  # nothing goes to the native core
        stack.enter_context(mock.patch.object(module, "takes", lambda *_, **__: False))
    references = ChainMap(*map(vars, modules))
    for name, module in by_device.OPS.items():
        reference = references[f"{name}_reference"]
        library.impl(name, by_device._in_triton(name, module, reference), "CPU")
    stack.callback(library._destroy)


if __name__ == "__main__":
    main()
