"""How fast are lookup and update alone, and which share of the copy rate is that?

As published of FBGEMM on an H100: 10 tables of 1.68 M rows of 128 float32, 1,048,580 lookups by Zipf
1.05, one vector each. Bytes are those that must move (`must_move`), each once: the least that any
implementation reads and writes, so that a share of the copy rate is one of the floor.

`bags-`: PyTorch's `nn.EmbeddingBag(sparse=True)` per table with the `torch.optim` of that name.
`packed-`: PyTorch with care, one table for all (`plain`), whose `unique` waits for the host by its
nature. Times are those of kernels; `launch_ms` is what the host takes to launch them. `cuembed`: NVIDIA's
header-only library, lookups alone, of a checkout that `--cuembed` names. FBGEMM's times are others':
those published for an H100, also scaled by the memory bandwidth of that GPU over this one's, as the data
sheets have them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import hotrows
from benchmarks.gpu_parts import cuembed
from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.plain import PlainTable
from benchmarks.gpu_parts.timing import Timing, ceilings, timed
from benchmarks.gpu_parts.tuning import sweep
from benchmarks.gpu_parts.workloads import embedding_of, ready, tables_of, weights_in_place, zipf_ids
from hotrows.engine.embedding import Embedding
from hotrows.ops.record import RecordLayout

FIELDS, ROWS, BATCH, DIM = 10, 1_680_000, 104_858, 128
FBGEMM_MS = {"forward": 0.345, "sgd": 0.614, "adam": 1.005}  # H100, published
BANDWIDTH = {"H100": 3.35, "H200": 4.8}  # TB/s, data sheets
STATE = {"sgd": 0, "rowwise": 1, "adagrad": DIM, "adam": 2 * DIM}  # float32 numbers a row
PLAIN: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.SparseAdam,
}
TUNED = ("GATHER_ELEMENTS", "BAG_ELEMENTS", "UNROLL", "WINDOW", "num_warps")
_LR = 0.01


def run(findings: Findings, setting: Setting) -> None:
    num_rows = [setting.pick(ROWS, 500)] * FIELDS
    batch_size = setting.pick(BATCH, 64)
    batch = _batch(num_rows, batch_size, setting)
    gradient = torch.randn(batch_size * FIELDS, DIM, device=setting.device)
    for optimizer in STATE:
        _check(findings, setting, num_rows, batch, gradient, optimizer)
    findings.demand_green()
    rates = ceilings(setting)
    findings.add("ceilings", {f"{name}_gb_s": rate for name, rate in rates.items()})
    for optimizer in STATE:
        findings.add(optimizer, _ours(setting, num_rows, batch, gradient, optimizer, rates["copy"]))
    for optimizer in STATE:
        if optimizer in PLAIN:
            figures = _bags(setting, num_rows, batch, gradient, PLAIN[optimizer])
            findings.add(f"bags-{optimizer}", figures)
        figures = _packed(findings, setting, num_rows, batch, gradient, optimizer)
        findings.add(f"packed-{optimizer}", figures)
    findings.add("cuembed", _cuembed(findings, setting, num_rows, batch))
    ours = {arm: arm.partition("-")[2] for arm in findings.arms} | {"cuembed": "sgd"}
    findings.compare("forward_over_ours", "forward_ms", ours)
    findings.compare("update_over_ours", "update_ms", ours)
    if setting.tune and setting.on_gpu:
        _tune(findings, setting, num_rows, batch, gradient)


def must_move(distinct: int, lookups: int, optimizer: str) -> dict[str, int]:
    """Bytes that a forward pass, and a backward pass with its update, read and write at least.

    Forward: each distinct row's weights and slot once, each lookup's place among them (int32) and its
    vector. Update: a gradient and a place in the order (int32) for each lookup; for each distinct row
    its row, slot and start (20 B), and its whole record, read and written.
    """
    stride = RecordLayout(DIM, state_width=STATE[optimizer]).stride
    return {
        "forward": distinct * (4 * DIM + 8) + lookups * (4 + 4 * DIM),
        "update": lookups * (4 * DIM + 4) + distinct * (2 * stride + 20),
    }


def _batch(num_rows: list[int], batch_size: int, setting: Setting) -> hotrows.Batch:
    generator = torch.Generator(setting.device).manual_seed(0)
    ids = [zipf_ids(rows, batch_size, generator).cpu() for rows in num_rows]
    names = tuple(f"C{f}" for f in range(len(num_rows)))
    return hotrows.Batch(names, torch.cat(ids), torch.zeros(batch_size, 1))


def _planned(setting: Setting, num_rows: list[int], batch, optimizer: str) -> tuple[Embedding, Any]:
    embedding = embedding_of(tables_of(num_rows, DIM), optimizer, setting.device)
    (work,) = ready(embedding, [batch])
    return embedding, work.item.plan


def _check(findings, setting, num_rows, batch, gradient, optimizer: str) -> None:
    """Vectors are the rows' own bits; SGD's new rows are those of float64; equal runs, equal bits."""

    def both() -> None:
        embedding, plan = _planned(setting, num_rows, batch, optimizer)
        ids = batch.ids.view(FIELDS, -1)
        before = weights_in_place(embedding, "C0").clone()
        vectors = embedding.lookup(plan)
        looked_up = vectors["C0"].detach()
        assert torch.equal(looked_up, before[ids[0].to(setting.device)]), "vectors are not their rows"
        vectors.leaves[0].grad = gradient
        embedding.update(plan, vectors)
        after = weights_in_place(embedding, "C0")
        if optimizer == "sgd":
            row_gradients = gradient.view(-1, FIELDS, DIM)[:, 0].double().cpu()
            exact = before.double().cpu().index_add_(0, ids[0], row_gradients, alpha=-_LR)
            error = (after.cpu().double() - exact).abs().max().item()
            assert error < 1e-3, f"rows are off by {error}"
        again, plan = _planned(setting, num_rows, batch, optimizer)
        vectors = again.lookup(plan)
        weights_in_place(again, "C0").copy_(before)
        vectors.leaves[0].grad = gradient
        again.update(plan, vectors)
        assert torch.equal(weights_in_place(again, "C0"), after), "a second run has other bits"

    findings.check_runs(f"lookup and update, {optimizer}", both)


def _ours(setting, num_rows, batch, gradient, optimizer: str, copy_rate: float) -> dict:
    """Milliseconds, GB/s of the bytes that must move, and their share of the copy rate."""
    embedding, plan = _planned(setting, num_rows, batch, optimizer)
    distinct = int((plan.packs[0].rows >= 0).sum())  # a plan may be padded to a fixed size
    lookups = len(batch.ids)
    forward, update = _times(setting, embedding, plan, gradient)
    size = must_move(distinct, lookups, optimizer)
    figures = {"lookups": lookups, "distinct_rows": distinct}
    for name, timing in (("forward", forward), ("update", update)):
        rate = size[name] / timing.ms / 1e6
        figures |= {f"{name}_ms": timing.ms, f"{name}_bytes": size[name], f"{name}_gb_s": rate}
        figures |= {f"{name}_share": rate / copy_rate, f"{name}_lowest": timing.lowest}
        figures[f"{name}_launch_ms"] = timing.launch_ms
    return figures | _published(setting, optimizer)


def _published(setting: Setting, optimizer: str) -> dict:
    """FBGEMM's times on an H100, and scaled to the GPU at hand, where its data sheet is known."""
    name = torch.cuda.get_device_name() if setting.on_gpu else ""
    bandwidth = next((rate for gpu, rate in BANDWIDTH.items() if gpu in name), None)
    figures = {}
    for way, key in (("forward", "forward"), ("update", optimizer)):
        if key in FBGEMM_MS:
            figures[f"fbgemm_h100_{way}_ms"] = FBGEMM_MS[key]
            if bandwidth is not None:
                scaled = FBGEMM_MS[key] * BANDWIDTH["H100"] / bandwidth
                figures[f"fbgemm_scaled_to_{bandwidth}_tb_s_{way}_ms"] = scaled
    return figures


def _times(setting: Setting, embedding: Embedding, plan, gradient: Tensor) -> tuple:
    vectors = embedding.lookup(plan)
    vectors.leaves[0].grad = gradient
    forward = timed(lambda: embedding.lookup(plan), setting)
    update = timed(lambda: embedding.update(plan, vectors), setting)
    return forward, update


def _bags(setting, num_rows, batch, gradient, kind: Callable) -> dict:
    bags = [nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True, device="meta") for rows in num_rows]
    for bag in bags:
        bag.to_empty(device=setting.device)
        bag.weight.data.uniform_(-0.01, 0.01)
    optimizer = kind([bag.weight for bag in bags], lr=_LR)
    ids = batch.ids.to(setting.device).view(FIELDS, -1, 1)
    gradients = gradient.view(-1, FIELDS, DIM).unbind(1)

    def forward() -> list[Tensor]:
        return [bag(bag_ids) for bag, bag_ids in zip(bags, ids, strict=True)]

    def update(vectors: list[Tensor]) -> None:
        torch.autograd.backward(vectors, gradients)
        optimizer.step()
        optimizer.zero_grad()

    repeats = setting.pick(10, 2)
    of_update = timed(update, setting, before=lambda: (forward(),), repeats=repeats)
    return _both(timed(forward, setting), of_update)


def _both(forward: Timing, update: Timing) -> dict:
    return {
        "forward_ms": forward.ms, "forward_launch_ms": forward.launch_ms,
        "update_ms": update.ms, "update_launch_ms": update.launch_ms,
    }  # fmt: skip


def _packed_rows(num_rows: list[int], batch, setting: Setting) -> Tensor:
    """[B * F]: the rows in one table of all, sample after sample."""
    sizes = torch.tensor(num_rows)
    rows = batch.ids.view(FIELDS, -1) + (sizes.cumsum(0) - sizes)[:, None]
    return rows.t().reshape(-1).to(setting.device)


def _packed(findings, setting, num_rows, batch, gradient, optimizer: str) -> dict:
    rows = _packed_rows(num_rows, batch, setting)
    table = PlainTable.random(sum(num_rows), DIM, optimizer, _LR, setting.device)
    before = table.weights[rows[0]].clone()
    repeats = setting.pick(10, 2)
    forward = timed(lambda: table.lookup(rows), setting)
    update = timed(lambda: table.update(rows, gradient), setting, repeats=repeats)
    changed = not torch.equal(table.weights[rows[0]], before)
    findings.check(f"packed-{optimizer} trains", changed, "a row is as it was")
    return _both(forward, update)


def _cuembed(findings: Findings, setting: Setting, num_rows: list[int], batch) -> dict:
    reason = cuembed.why_not(setting.cuembed, setting.on_gpu)
    if reason is not None:
        return {"left_out": reason}
    try:
        look_up = cuembed.build(setting.cuembed)
    except RuntimeError as error:
        return {"left_out": str(error)}
    rows = _packed_rows(num_rows, batch, setting)
    table = torch.rand(sum(num_rows), DIM, device=setting.device)
    out = torch.empty(len(rows), DIM, device=setting.device)
    look_up(table, rows, out)
    same = torch.equal(out, table[rows])
    if not findings.check("cuembed: vectors are their rows", same, arm="cuembed"):
        return {"left_out": "other vectors"}
    return {"forward_ms": timed(lambda: look_up(table, rows, out), setting).ms}


def _tune(findings, setting, num_rows, batch, gradient) -> None:
    embedding, plan = _planned(setting, num_rows, batch, "rowwise")

    def measure() -> dict:
        forward, update = _times(setting, embedding, plan, gradient)
        return _both(forward, update)

    for name, figures in sweep(TUNED, measure):
        findings.add(name, figures)
