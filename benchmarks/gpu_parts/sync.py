"""Does a step wait for the device, or take memory from it? Is it, as one CUDA graph, the same step?

A step in its steady state runs where PyTorch raises at any call that waits for the device, with every
row on the device and behind a cache. Afterwards the allocator must not have asked the driver for more.
A run of `Trainer` with `cuda_graph=True` must end with the very bits of one without.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.workloads import (
    Training,
    batches_of,
    dlrm,
    embedding_of,
    ready,
    schema_of,
    zipf_stream,
)
from hotrows import TrainConfig
from hotrows.data import EncodedData
from hotrows.data.encode.writing import write_encoded
from hotrows.engine.caching import Caching
from hotrows.engine.stages import start
from hotrows.ops.record import RecordLayout
from hotrows.train import Trainer

# Steps; what moves differs from batch to batch, so the largest block comes late.
_WARM_UP, _WARM_UP_SMALL = 30, 4
AS_GRAPH = {
    "as a graph": {"cuda_graph": True},
    "as a graph on streams behind a cache": {
        "cuda_graph": True,
        "streams": 3,
        "pack_parts": 3,
        "fast_memory": 1 << 20,
    },
    "staged": {"fast_memory": 1 << 20, "cache_transfer": "staged"},
    "compiled": {"cuda_graph": True, "compile": True},
}


def run(findings: Findings, setting: Setting) -> None:
    num_rows = [setting.pick(200_000, 300)] * 26
    batch_size, dim = setting.pick(65_536, 64), setting.pick(128, 4)
    num_batches = _warm_up(setting) + setting.pick(12, 2)
    stream = zipf_stream(num_rows, num_batches * batch_size, setting.device)
    figures = {}
    for where, step in (("resident", _resident), ("cached", _cached)):
        model = dlrm(num_rows, dim, setting.device, setting.small)
        figure = findings.check_runs(
            f"{where}: no step waits for the device",
            lambda model=model, step=step: step(model, stream, batch_size, setting),
        )
        if figure is not None:
            same = figure["segments_before"] == figure["segments_after"]
            findings.check(f"{where}: no memory is taken", same, str(figure))
            figures[where] = figure
    _check_graph(findings, setting)
    findings.demand_green()
    for where, figure in figures.items():
        findings.add(where, figure)


def _resident(model, stream, batch_size: int, setting: Setting) -> dict:
    embedding = embedding_of(model.tables, "rowwise", setting.device)
    training = Training(model, embedding, setting.device)
    works = ready(embedding, batches_of(stream, batch_size))
    num = _warm_up(setting)
    for work in works[:num]:
        training.step(work)
    before = _segments(setting)
    with _no_waiting(setting):
        for work in works[num:]:
            training.step(work)
    return _told(len(works) - num, before, setting)


def _warm_up(setting: Setting) -> int:
    return setting.pick(_WARM_UP, _WARM_UP_SMALL)


def _cached(model, stream, batch_size: int, setting: Setting) -> dict:
    """Stages in turn on this thread, which may wait, and between them steps, which may not."""
    record = RecordLayout(model.tables[0].dim, state_width=1).stride
    # A batch fits, with something to evict.
    share = setting.pick(0.5, 0.9)
    caching = Caching(int(share * record * sum(t.rows for t in model.tables)), in_flight=1)
    embedding = embedding_of(model.tables, "rowwise", setting.device, caching)
    training = Training(model, embedding, setting.device)
    before, steps = 0, 0
    runner = start(embedding, enumerate(batches_of(stream, batch_size)), plan_depth=0)
    with contextlib.closing(runner):
        for number, work in enumerate(runner):
            if number < _warm_up(setting):
                training.step(work)
                before = _segments(setting)
            else:
                with _no_waiting(setting):
                    training.step(work)
                steps += 1
    return _told(steps, before, setting)


def _told(steps: int, before: int, setting: Setting) -> dict:
    return {"steps": steps, "segments_before": before, "segments_after": _segments(setting)}


@contextlib.contextmanager
def _no_waiting(setting: Setting) -> Iterator[None]:
    """Where PyTorch raises at a call that waits for the device."""
    if not setting.on_gpu:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _segments(setting: Setting) -> int:
    """How often the allocator has asked the driver for memory so far."""
    return torch.cuda.memory_stats()["segment.all.allocated"] if setting.on_gpu else 0


def _check_graph(findings: Findings, setting: Setting) -> None:
    """Runs of equal settings, step by step and as graphs, end with equal results."""
    ways = AS_GRAPH if setting.on_gpu else {"again": {}}
    with tempfile.TemporaryDirectory() as folder:
        data = _data(Path(folder))
        plain = findings.check_runs(
            "a run, step by step", lambda: _run(data, Path(folder) / "plain", setting, {})
        )
        for way, options in ways.items() if plain else ():
            findings.check_runs(
                f"a run, {way}, ends as step by step",
                lambda to=Path(folder) / way, options=options: _compare(
                    plain, _run(data, to, setting, options), exactly="compile" not in options
                ),
            )


def _compare(expected: dict, values: dict, exactly: bool) -> None:
    """Compiling may round otherwise; a graph of the same kernels may not."""
    for name, value in expected.items():
        same = torch.equal(value, values[name])
        close = not exactly and torch.allclose(value, values[name], 1e-2, 1e-3)
        assert same or close, f"{name} differs by {(value - values[name]).abs().max().item()}"


def _data(folder: Path) -> EncodedData:
    num_rows, batch_size = [1000, 50, 7, 20_000], 512
    stream = zipf_stream(num_rows, 24 * batch_size, "cpu")
    path = folder / "data"
    write_encoded(path, schema_of(num_rows), {"train": batches_of(stream, batch_size)})
    return EncodedData.open(path)


def _run(data: EncodedData, folder: Path, setting: Setting, options: dict) -> dict:
    """The tables and parameters after a short run, step by step but where the options say otherwise."""
    options = {"cuda_graph": False, **options}
    if setting.on_gpu:
        options |= {"device": setting.device}
    config = TrainConfig(
        model="dlrm", model_options={"dim": 16, "bottom": [32], "top": [32]}, batch_size=512,
        steps=setting.pick(20, 3), linear_paths="plain", evaluate_every=1000, **options,
    )  # fmt: skip
    trainer = Trainer(data, config, folder)
    trainer.fit()
    embedding, parameters = trainer.embedding, trainer.model.named_parameters()
    weights = {table.name: embedding.weights(table.name) for table in embedding.tables}
    weights |= dict(parameters)
    return {name: value.detach().cpu().clone() for name, value in weights.items()}
