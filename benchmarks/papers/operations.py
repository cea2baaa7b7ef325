"""How many operations a training step is, counted by dispatch: before and after packing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils._python_dispatch import TorchDispatchMode

import hotrows
from benchmarks import markdown
from benchmarks.arms import hotrows_models, plain_models
from benchmarks.arms.plain_models import SEQUENCE_MODELS
from benchmarks.gpu_parts.part import Findings
from benchmarks.papers.part import Part, Setting
from benchmarks.samples import Features, Samples, ends_of
from hotrows import models
from hotrows.engine.embedding import Embedding
from hotrows.runtime import native

DIM, ROWS, BATCH = 16, 60, 32
STAGES = ("planning", "forward", "backward", "update")
OPTIONS: dict[str, dict] = {
    "wide_deep": {"hidden": (64, 32)},
    "dlrm": {"bottom": (32,), "top": (64, 32)},
    "deepfm": {"hidden": (64, 32)},
    "mmoe": {"num_experts": 4, "expert_hidden": (64, 32), "tower_hidden": (32,)},
    "din": {"attention": (16,), "hidden": (64, 32)},
    "dien": {"attention": (16,), "hidden": (64, 32)},
    "can": {"hidden": (64, 32)},
}
A_PACK_PER_TABLE = 1 << 20
_NOTHING = ("empty", "empty_like", "new_empty", "detach", "_unsafe_view", "empty_strided")


class Operations(TorchDispatchMode):
    """Counts in `num` what computes something while it is entered.

    An ATen call that neither makes a view nor reserves memory is one operation, and so is a call of the
    native core. hotrows' own ops are counted as the calls of the core that they make.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        aliases = [returned.alias_info for returned in function._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        is_ours = function.namespace == "hotrows"
        self.num += not (is_view or is_ours or function.overloadpacket.__name__ in _NOTHING)
        return function(*args, **(kwargs or {}))


@contextmanager
def counted(stage: str, counts: dict[str, int]) -> Iterator[None]:
    """Adds to counts[stage] the operations that this thread calls for within."""
    operations = Operations()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        operations.num += event == "call" and frame.f_code is native.call.__code__

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        with operations:
            yield
    finally:
        sys.setprofile(before)
    counts[stage] = counts.get(stage, 0) + operations.num


def features_of(model: str, num_fields: int) -> Features:
    """As many fields of equal attributes; sequence models compare the last one with a history."""
    rows = {f"f{n}": ROWS for n in range(num_fields)}
    target = f"f{num_fields - 1}" if model in SEQUENCE_MODELS else None
    return Features(rows, 4, target, max_length=5, labels=("a", "b") if model == "mmoe" else ("label",))


def samples_of(features: Features, batch: int = BATCH) -> Samples:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 6, batch) if features.target else np.zeros(batch, np.int64)
    shape = (batch, 2) if len(features.labels) == 2 else (batch,)
    return Samples(
        rng.integers(2, ROWS, (len(features.rows), batch)),
        rng.standard_normal((batch, features.num_dense)).astype(np.float32),
        (rng.random(shape) < 0.5).astype(np.float32),
        rng.integers(2, ROWS, lengths.sum()),
        ends_of(lengths),
    )


def of_hotrows(name: str, num_fields: int, packing: bool) -> dict[str, int]:
    """Operations of a step of the library's model, by stage; packing: else a pack per table."""
    features = features_of(name, num_fields)
    samples = samples_of(features)
    torch.manual_seed(0)
    model = hotrows_models.build(name, features, DIM, **OPTIONS[name])
    hotrows_models.own_no_optimizers(model)
    embedding = Embedding.for_model(
        model,
        hotrows_models.schema_of(features),
        optimizer=hotrows.Adagrad(),
        pack_parts=1 if packing else A_PACK_PER_TABLE,
        first_layer_roles=(),
    )
    batch = hotrows_models.batch_of(features, samples)
    dense = torch.optim.Adam(model.parameters(), fused=True)
    counts: dict[str, int] = {}
    for step in range(2):  # the first makes what stays
        counts.clear()
        with counted("planning", counts):
            plan = embedding.plan(batch, step)
        with counted("forward", counts):
            vectors = embedding.lookup(plan)
            logits, own = models.logits_and_loss(model(vectors, batch.dense))
            loss = binary_cross_entropy_with_logits(logits, batch.labels)
            loss = loss if own is None else loss + own
        with counted("backward", counts):
            loss.backward()
        with counted("update", counts):
            embedding.update(plan, vectors)
            dense.step()
            dense.zero_grad()
    embedding.close()
    return counts


def of_plain_torch(name: str, num_fields: int) -> dict[str, int]:
    """Operations of a step of the same model in plain PyTorch: a table per field, sparse gradients."""
    features = features_of(name, num_fields)
    torch.manual_seed(0)
    plain = plain_models.build(name, features, DIM, BATCH, OPTIONS[name])
    batch = plain.inputs(samples_of(features))
    rows, dense = torch.optim.Adagrad(plain.tables), torch.optim.Adam(plain.layers, fused=True)
    counts: dict[str, int] = {}
    for _ in range(2):
        counts.clear()
        with counted("forward", counts):
            loss = plain.loss(batch)
        with counted("backward", counts):
            loss.backward()
        with counted("update", counts):
            for optimizer in (rows, dense):
                optimizer.step()
                optimizer.zero_grad()
    return {"planning": 0, **counts}


def run(findings: Findings, setting: Setting) -> None:
    for name in OPTIONS:
        for num_fields in setting.pick((26, 461), (4, 6)):
            arm = f"{name}, {num_fields} fields"
            if findings.has(arm):
                continue
            figures = {
                "model": name,
                "fields": num_fields,
                "plain": of_plain_torch(name, num_fields),
                "apart": of_hotrows(name, num_fields, packing=False),
                "packed": of_hotrows(name, num_fields, packing=True),
            }
            findings.add(arm, figures)
        least, most = (findings.arms[f"{name}, {n} fields"] for n in setting.pick((26, 461), (4, 6)))
        grown = f"{sum(least['packed'].values())} and {sum(most['packed'].values())}"
        findings.check(f"{name}: fields cost no operation", least["packed"] == most["packed"], grown)


def table(arms: dict[str, dict]) -> str:
    head = ["model, fields", "plain PyTorch", "a pack per table", "packed"]
    head += [f"of these {stage}" for stage in STAGES]
    lines = []
    for arm, figures in arms.items():
        totals = [f"{sum(figures[kind].values()):,}" for kind in ("plain", "apart", "packed")]
        lines.append([arm, *totals, *(f"{figures['packed'][stage]:,}" for stage in STAGES)])
    return markdown.table(head, lines)


PART = Part("How many operations is a training step, before packing and after?", run, table)
