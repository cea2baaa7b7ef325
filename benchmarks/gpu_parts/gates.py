"""Are our dense kernels, and streams of packs, worth their lines? Each gate was written down beforehand.

`dlrm`, `deepfm`, `dcnv2`: a step with our kernels and one whose model is compiled (in its graph stand the
references, fused with what is around them), both as one CUDA graph. `din`, `dien`: the same, where what
stands behind the lists is compiled, kernel by kernel. In TF32, the format of runs on a GPU, which our
kernels are for. Dense kernels stay if `gain` is 1.1 on one of them.
`streams`: lookup and update of 26 packs on 1 and on 4 streams; they stay if `gain` is 1.05. Slots mapped
on the device are a gate of part `cache` (`10%` over `10%-host`: 1.1, with its higher misses).
"""

import itertools
import math
from functools import partial

import torch
from torch import nn

import hotrows
from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import step_time, timed
from benchmarks.gpu_parts.workloads import (
    Training,
    batches_of,
    embedding_of,
    ready,
    schema_of,
    tables_of,
    zipf_stream,
)
from hotrows import models
from hotrows.models.nn import MLP

LEAST = {"dense kernels": 1.1, "streams": 1.05, "slots on the device": 1.1}
OF_SINGLE_IDS = {"dlrm": {"bottom": [512, 256, 128], "top": [1024, 512, 256]}, "deepfm": {}, "dcnv2": {}}
OF_LISTS = ("din", "dien")


def run(findings: Findings, setting: Setting) -> bool:
    """Whether all was measured."""
    works = {"streams": partial(_streams, setting)}
    works |= {name: partial(_single_ids, setting, name) for name in OF_SINGLE_IDS}
    works |= {name: partial(_lists, setting, name) for name in OF_LISTS}
    for name, work in works.items():
        if findings.has(name):
            continue
        if setting.seconds_left < setting.pick(15, 0):
            return False
        try:
            figures = work()
        except Exception as error:  # the next gate may be measured
            findings.check(f"{name}: runs", False, f"{type(error).__name__}: {error}"[:300], arm=name)
            continue
        losses = figures.pop("losses", None)
        same = losses is None or math.isclose(*losses, rel_tol=0.01)
        if losses is not None:
            findings.check(f"{name}: equal first losses", same, str(losses), arm=name)
        if same:
            findings.add(name, figures | {"gain": figures["other_ms"] / figures["ms"]})
    return True


def _single_ids(setting: Setting, name: str) -> dict:
    num_rows = [setting.pick(100_000, 50)] * 26
    batch_size, dim = setting.pick(16_384, 32), setting.pick(64, 4)
    stream = zipf_stream(num_rows, 8 * batch_size, setting.device)
    options = setting.pick(OF_SINGLE_IDS[name], {"bottom": [8], "top": [8]} if name == "dlrm" else {})
    figures: dict = {}
    losses: list[float] = []
    for kind, compiles in (("ms", False), ("other_ms", setting.pick(True, False))):
        torch.manual_seed(0)
        model = models.build(name, schema_of(num_rows), dim=dim, **options).to(setting.device)
        embedding = embedding_of(model.tables, "rowwise", setting.device)
        training = Training(
            model, embedding, setting.device, graph=setting.on_gpu, compiles=compiles, precision="tf32"
        )
        works = itertools.cycle(ready(embedding, batches_of(stream, batch_size), padded=setting.on_gpu))
        losses.append(training.step(next(works)).item())
        figures[kind] = step_time(lambda t=training, w=works: t.step(next(w)), setting).ms
    return {**figures, "losses": losses}


def _lists(setting: Setting, name: str) -> dict:
    items, batch_size, longest = setting.pick((400_000, 4096, 100), (50, 16, 5))
    schema = hotrows.Schema((
        hotrows.Sparse("item", rows=items),
        hotrows.Sequence("history", vocabulary="item", max_length=longest),
    ))  # fmt: skip
    figures: dict = {}
    losses: list[float] = []
    for kind, compiles in (("ms", False), ("other_ms", setting.pick(True, False))):
        torch.manual_seed(0)
        options = {"auxiliary": 0.0} if name == "dien" else {}
        model = models.build(name, schema, dim=setting.pick(36, 4), **options).to(setting.device)
        if compiles:
            _compile_behind_lists(model)
        embedding = embedding_of(model.tables, "rowwise", setting.device, sequences=model.sequences)
        training = Training(model, embedding, setting.device, precision="tf32")
        (work,) = ready(embedding, [_batch_of_lists(items, batch_size, longest)])
        losses.append(training.step(work).item())
        figures[kind] = timed(lambda t=training, w=work: t.step(w), setting).ms
    return {**figures, "losses": losses}


def _compile_behind_lists(model: nn.Module) -> None:
    """The layers whose sizes are those of the batch; lists differ in number from batch to batch."""
    for child in model.children():
        if isinstance(child, MLP):
            child.compile(fullgraph=True, dynamic=False)


def _batch_of_lists(items: int, batch_size: int, longest: int) -> hotrows.Batch:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (batch_size,), generator=draw)
    ids = torch.randint(items, (batch_size + int(lengths.sum()),), generator=draw)
    offsets = torch.cat([torch.arange(batch_size), batch_size + lengths.cumsum(0) - lengths])
    ends = torch.cat([offsets, torch.tensor([len(ids)])])
    labels = torch.randint(2, (batch_size,), generator=draw).float()
    return hotrows.Batch(("item", "history"), ids, torch.zeros(batch_size, 0), labels, ends)


def _streams(setting: Setting) -> dict:
    num_rows, batch_size = [setting.pick(400_000, 50)] * 26, setting.pick(16_384, 32)
    stream = zipf_stream(num_rows, batch_size, setting.device)
    figures = {}
    for kind, num in (("other_ms", 1), ("ms", 4)):
        embedding = embedding_of(
            tables_of(num_rows, setting.pick(64, 4)),
            "rowwise",
            setting.device,
            pack_parts=26,
            streams=num,
        )
        (work,) = ready(embedding, batches_of(stream, batch_size))

        def both(embedding=embedding, plan=work.item.plan) -> None:
            vectors = embedding.lookup(plan)
            for leaf in vectors.leaves:
                leaf.grad = leaf.detach()
            embedding.update(plan, vectors)

        figures[kind] = timed(both, setting).ms
    return figures
