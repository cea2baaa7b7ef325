"""The row optimizers: every one on every dtype, against the reference and the native core."""

import pytest
import torch
from torch.testing import assert_close

from hotrows import SGD, Adagrad, LazyAdam, RowWiseAdagrad
from hotrows.ops import triton as kernels
from hotrows.ops.record import MAX_KERNEL_DIM, RecordLayout, views
from hotrows.ops.rows import reference
from tests.ops.triton.cases import (
    DTYPES,
    FIRST_ROWS,
    IDS,
    OPTIMIZERS,
    hot_ids,
    layout_of,
    new_records,
    on,
    one_ulp,
    parts,
    pieces,
    runs_of,
)
from tests.support.row_rules import hyper_tensor, width


def updated(run, records, layout, optimizer, ids, grad, step=0, slots=None, decay=None, runs_of=runs_of):
    """The records after `run` has updated the rows of these ids, one bag per id."""
    rows, order, starts = runs_of(ids)
    slots = rows if slots is None else slots[rows.clamp(min=0)]
    args = on(
        records.device, slots, rows, order, starts, None, None, grad, optimizer.kind,
        hyper_tensor(optimizer, step), FIRST_ROWS, pieces(layout.dim), decay,
    )  # fmt: skip
    run(records, layout.as_ints(), *args)
    return records


def unpadded_runs_of(ids):
    rows, _, order, starts = reference.unique(ids)
    return rows, order, starts


@pytest.mark.few(8)
@pytest.mark.pairs
@pytest.mark.parametrize("dim", [1, 17, 512])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_two_steps_equal_the_reference(optimizer, dtype, dim, device):
    dim = width(dim, dtype)
    layout = layout_of(optimizer, dim, dtype)
    slow = new_records(layout, optimizer)
    fast = slow.to(device, copy=True)
    for step in range(2):
        ids, decay = hot_ids(), torch.rand(200) if step else None
        grad = torch.randn(200, dim)
        for run, records in ((kernels.update, fast), (reference.update, slow)):
            updated(run, records, layout, optimizer, ids, grad, step, decay=decay)
    result, expected = parts(fast, layout), parts(slow, layout)
    assert_close(result.state, expected.state, rtol=1e-4, atol=1e-5)
    # One ulp in float32 may tip a stochastic rounding to the next number.
    slack = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-2, "atol": 1e-3}
    if layout.has_scale:
        assert torch.equal(result.scale, expected.scale)
        slack = {"rtol": 0, "atol": float(expected.scale.max())}
    assert_close(result.read(), expected.read(), **slack)
    if layout.has_step:
        assert torch.equal(result.step, expected.step)


@pytest.mark.few(10)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize(
    "optimizer", [o for o in OPTIMIZERS if not isinstance(o, RowWiseAdagrad)], ids=repr
)
def test_runs_within_a_window_give_the_bits_of_the_native_core(optimizer, dtype, device):
    dim = width(17, dtype)
    layout = layout_of(optimizer, dim, dtype)
    ids, grad = torch.randint(0, 60, (64,)), torch.randn(64, dim)
    host = new_records(layout, optimizer)
    device_records = host.to(device, copy=True)
    for step in range(3):
        for run, records in ((torch.ops.hotrows.update, host), (kernels.update, device_records)):
            updated(run, records, layout, optimizer, ids, grad, step, runs_of=unpadded_runs_of)
    assert torch.equal(device_records.cpu(), host)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_only_the_rows_read_change(ids, device):
    layout = layout_of(Adagrad(), 3)
    records = new_records(layout, Adagrad())
    result = updated(
        kernels.update, records.to(device, copy=True), layout, Adagrad(), ids, torch.randn(len(ids), 3)
    )
    changed = (result.cpu() != records).any(1).nonzero()[:, 0]
    assert changed.tolist() == ids[ids >= 0].unique().tolist()


@pytest.mark.few(14)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_the_error_is_at_most_twice_that_of_plain_float32(optimizer, dtype, device):
    """Of the state and, where they are not rounded at random, of the weights."""
    layout = layout_of(optimizer, 16, dtype)
    ids, grad = hot_ids(), torch.randn(200, 16)
    records = new_records(layout, optimizer)
    exact = exactly(records, layout, optimizer, ids, grad)
    plain = updated(reference.update, records.clone(), layout, optimizer, ids, grad)
    result = updated(kernels.update, records.to(device, copy=True), layout, optimizer, ids, grad)
    for k, name in enumerate(("weights", "state")):
        if (name == "weights" and dtype != "float32") or not exact[k].numel():
            continue
        found_error, plain_error = (
            (getattr(parts(stored, layout), name).double() - exact[k]).abs().max()
            for stored in (result, plain)
        )
        assert found_error <= 2 * (plain_error + one_ulp(exact[k]))


def exactly(records, layout, optimizer, ids, grad):
    """Weights and state after an update in float64, from the formulas of `optim`."""
    stored = parts(records, layout)
    w, s = stored.read().double(), stored.state.double()
    real = ids >= 0
    g = torch.zeros_like(w).index_add_(0, ids[real], grad[real].double())
    read = torch.zeros(len(w), dtype=torch.bool).index_fill_(0, ids[real], True)[:, None]
    g = torch.where(read, g + getattr(optimizer, "weight_decay", 0.0) * w, 0)
    dim, lr = layout.dim, optimizer.lr
    if optimizer.kind == "sgd":
        return w - lr * g, s
    if optimizer.kind == "adagrad":
        s = s + g * g
        new = w - lr * g / (s.sqrt() + optimizer.eps)
    elif optimizer.kind == "rowwise_adagrad":
        s = s + (g * g).mean(1, keepdim=True)
        new = w - lr * g / (s.sqrt() + optimizer.eps)
    elif optimizer.kind == "adam":
        m, v = (1 - optimizer.beta1) * g, (1 - optimizer.beta2) * g * g
        s = torch.cat([m, v], 1)
        hat_m, hat_v = m / (1 - optimizer.beta1), v / (1 - optimizer.beta2)
        new = w - lr * hat_m / (hat_v.sqrt() + optimizer.eps / (1 - optimizer.beta2) ** 0.5)
    else:
        n, z = s[:, :dim], s[:, dim:]
        z = z + g - ((n + g * g).sqrt() - n.sqrt()) / lr * w
        n = n + g * g
        new = (z.sign() * optimizer.l1 - z) / ((optimizer.beta + n.sqrt()) / lr + optimizer.l2)
        new, s = torch.where(z.abs() <= optimizer.l1, 0, new), torch.cat([n, z], 1)
    return torch.where(read, new, w), s


@pytest.mark.few(6)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_where_the_rows_stand_changes_no_bit(optimizer, device):
    layout = layout_of(optimizer, 16, "bfloat16")
    records, moved = new_records(layout, optimizer), torch.randperm(60)
    elsewhere = torch.empty_like(records)
    elsewhere[moved] = records
    ids, grad = hot_ids(), torch.randn(200, 16)
    result = [
        updated(
            kernels.update, stored.to(device, copy=True), layout, optimizer, ids, grad, slots=slots
        ).cpu()
        for stored, slots in ((records, torch.arange(60)), (elsewhere, moved), (elsewhere, moved))
    ]
    assert torch.equal(result[0], result[1][moved]) and torch.equal(result[1], result[2])


def test_means_over_a_row_may_come_from_elsewhere(device):
    optimizer, layout = RowWiseAdagrad(lr=0.1), RecordLayout(3, state_width=1)
    rows, runs = torch.tensor([1, 3]), (torch.arange(2).int(), torch.arange(3).int(), None, None)
    slow = new_records(layout, optimizer)
    fast = slow.to(device, copy=True)
    args = (
        rows, rows, *runs, torch.randn(2, 3), optimizer.kind, hyper_tensor(optimizer, 0), FIRST_ROWS,
        pieces(3), None, torch.tensor([2.0, 5.0]),
    )  # fmt: skip
    reference.update(slow, layout.as_ints(), *args)
    kernels.update(fast, layout.as_ints(), *on(device, *args))
    assert_close(parts(fast, layout), parts(slow, layout))


def test_rows_wider_than_a_tile_equal_the_reference(device):
    layout = layout_of(SGD(), MAX_KERNEL_DIM + 1)
    records, grad = new_records(layout, SGD(), rows=2), torch.randn(3, MAX_KERNEL_DIM + 1)
    ids = torch.tensor([1, 0, 1])
    result = updated(kernels.update, records.to(device, copy=True), layout, SGD(), ids, grad)
    assert_close(result.cpu(), updated(reference.update, records, layout, SGD(), ids, grad))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int4"])
def test_stochastic_rounding_keeps_the_mean(dtype, device):
    layout = RecordLayout(64, dtype)
    records = new_records(layout).to(device)
    move = 1e-4  # far below half a step of either dtype at 1
    stored = views(records, layout.as_ints())
    means = []
    for step in range(4):
        stored.write(torch.ones(60, 64, device=device))
        ids, grad = torch.arange(60), torch.full((60, 64), -move)
        updated(kernels.update, records, layout, SGD(lr=1.0), ids, grad, step)
        means.append(float(stored.read().float().mean()))
    assert abs(sum(means) / 4 - (1 + move)) < 5e-5


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("weight", [torch.inf, -torch.inf, torch.nan])
def test_rows_of_integers_with_a_weight_that_is_not_finite_are_nan(weight, dtype, device):
    layout, grad = RecordLayout(6, dtype), torch.ones(2, 6)
    grad[1, 3] = weight
    results = [
        updated(run, new_records(layout).to(where), layout, SGD(), torch.tensor([0, 1]), grad).cpu()
        for run, where in (
            (kernels.update, device), (reference.update, "cpu"), (torch.ops.hotrows.update, "cpu"),
        )
    ]  # fmt: skip
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    found = parts(results[0], layout).read()
    assert found[1].isnan().all() and not found[0].isnan().any()


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy, of infinities in the interpreter
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_of_any_size_are_rounded_as_the_reference_rounds(dtype, device):
    x = torch.cat([torch.randn(56) * 10.0 ** torch.randint(-9, 6, (56,)), torch.tensor(
        [65519.0, -1e30, float("inf"), 2.0**-14, -(2.0**-24), 1e-8, 0.0, -0.0]
    )])  # fmt: skip
    layout = RecordLayout(64, dtype)
    slow = new_records(layout, rows=1)
    views(slow, layout.as_ints()).weights[:] = 0
    fast = slow.to(device, copy=True)
    for run, records in ((kernels.update, fast), (reference.update, slow)):
        updated(run, records, layout, SGD(lr=1.0), torch.tensor([0]), -x[None])
    assert torch.equal(fast.cpu(), slow)


def test_the_steps_of_rows_count_alone(device):
    optimizer = LazyAdam(per_row_step=True)
    layout = layout_of(optimizer, 4)
    records = new_records(layout, optimizer).to(device)
    for ids in ([3, 5, 5], [5], [-1, 5, 9]):
        updated(kernels.update, records, layout, optimizer, torch.tensor(ids), torch.randn(len(ids), 4))
    steps = parts(records, layout).step
    assert steps[[3, 5, 9]].tolist() == [1, 3, 1] and int(steps.sum()) == 5
