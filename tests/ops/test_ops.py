"""The native core against the reference: same results, on odd shapes, duplicates and nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from hotrows import FTRL, SGD, Adagrad, LazyAdam, RowWiseAdagrad, ops
from hotrows.ops.plan import PackPlan
from hotrows.ops.record import RecordLayout, views
from hotrows.ops.rows import reference
from hotrows.optim import initial_state
from tests.support.choice import examples
from tests.support.row_rules import hyper_tensor, width

OPTIMIZERS = [
    SGD(),
    SGD(weight_decay=0.1),
    Adagrad(initial_accumulator=0.1),
    RowWiseAdagrad(weight_decay=0.01),
    LazyAdam(),
    LazyAdam(per_row_step=True),
    FTRL(l1=0.01, l2=0.1),
]
DIMS = [1, 3, 8, 16, 17, 64, 130]
FIRST_ROWS = torch.tensor([0, 20, 60])
KEYS = (123456789, -987654321)


def pieces(dim):
    return torch.tensor([[key, 0, 1, 0, dim] for key in KEYS])


def layout_of(optimizer, dim, dtype="float32"):
    has_step = getattr(optimizer, "per_row_step", False)
    return RecordLayout(dim, dtype, optimizer.state_width(dim), has_step)


def new_records(layout, state, rows=60):
    records = torch.zeros(rows, layout.stride, dtype=torch.uint8)
    first_rows, keys = torch.tensor([0, rows]), torch.tensor([[42, 0, 1, 0, layout.dim]])
    keys_of = (torch.arange(rows), first_rows, keys)
    reference.initialize(records, layout.as_ints(), *keys_of, "uniform", 0.1, state)
    return records


def updated(records, layout, plan, grad, optimizer):
    """Records after the first step of the optimizer, in place."""
    rule = ops.RowRule(optimizer.kind, hyper_tensor(optimizer, 0))
    keys = ops.RowKeys(FIRST_ROWS, pieces(layout.dim))
    ops.update(ops.Records(records, layout.as_ints()), plan, grad, rule, keys)


def bags(lengths):
    """Lengths of bags to bag_starts [M + 1] and the bag of each id [N], both int32."""
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return starts, reference.bags_of(starts).int()


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.integers(0, 40) | st.integers(0, 2**40), max_size=300))
def test_unique_equals_the_reference(rows):
    rows = torch.tensor(rows, dtype=torch.int64)
    for fast, slow in zip(ops.unique(rows), reference.unique(rows), strict=True):
        assert torch.equal(fast, slow)


def test_unique_of_rows_too_wide_to_share_a_word_with_their_position():
    rows = torch.randint(2**61, 2**62, (5000,)).repeat(2)
    for fast, slow in zip(ops.unique(rows), reference.unique(rows), strict=True):
        assert torch.equal(fast, slow)


@pytest.mark.parametrize("batch_size", [0, 1, 300])
def test_unique_of_columns_equals_resolving_first(batch_size):
    num_rows = torch.tensor([5000, 7, 2**32, 5000, 2048, 2049, 3_000_000])  # one table is read twice
    first_rows = torch.tensor([2**33, 2**34, 0, 2**33, 2**35, 2**36, 2**37])
    features = torch.tensor([6, 0, 3, 1, 2, 4, 5])
    ids = torch.empty(7, batch_size, dtype=torch.int64)
    for feature, rows in zip(features, num_rows, strict=True):
        drawn = torch.rand(batch_size, dtype=torch.float64).pow(4) * rows
        ids[feature] = drawn.long().clamp(max=rows - 1)
        ids[feature, -1:] = rows - 1
    arguments = ids.flatten(), batch_size, features, first_rows, num_rows
    *fast, bad = ops.unique_of_columns(*arguments)
    *slow, first_bad = reference.unique_of_columns(*arguments)
    assert bad == first_bad == -1
    for one, other in zip(fast, slow, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("wrong", [-1, 7, 2**40])
def test_unique_of_columns_names_the_first_id_outside(wrong):
    ids = torch.tensor([[1, 2, 3], [4, wrong, 6], [2, 2, wrong]])
    columns = torch.tensor([[0, 2, 1], [0, 7, 14], [7, 7, 7]])  # features, first rows, numbers of rows
    arguments = ids.flatten(), 3, *columns
    assert ops.unique_of_columns(*arguments)[-1] == reference.unique_of_columns(*arguments)[-1] == 5


def test_unique_of_a_small_batch():
    distinct, inverse, order, starts = ops.unique(torch.tensor([7, 3, 7]))
    assert distinct.tolist() == [3, 7]
    assert inverse.tolist() == [1, 0, 1]
    assert order.tolist() == [1, 0, 2]
    assert starts.tolist() == [0, 1, 3]


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_resolve_equals_the_reference(data):
    batch_size, num_features = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 4))
    reads = data.draw(st.lists(st.integers(0, num_features - 1), max_size=5))
    num_columns = data.draw(st.integers(0, len(reads)))
    jagged = data.draw(st.booleans())
    count = num_features * batch_size
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    num_ids = sum(lengths) if jagged else count
    ids = torch.tensor(data.draw(st.lists(st.integers(-1, 20), min_size=num_ids, max_size=num_ids)))
    offsets = torch.tensor([0, *lengths]).cumsum(0) if jagged else None
    sizes = torch.tensor([19] * len(reads), dtype=torch.int64)
    first_rows = torch.arange(len(reads)) * 19
    args = (ids.long(), offsets, batch_size, torch.tensor(reads, dtype=torch.int64), first_rows)
    fast, slow = (module.resolve(*args, sizes, num_columns) for module in (ops, reference))
    assert int(fast[3]) == int(slow[3])
    for one, other in zip(fast[:3], slow[:3], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("dim", DIMS)
def test_pool_equals_the_reference(dim, dtype):
    dim = width(dim, dtype)
    layout = RecordLayout(dim, dtype, state_width=dim)
    records, ints = new_records(layout, [0.0] * dim), layout.as_ints()
    distinct, inverse, _, _ = reference.unique(torch.randint(0, 60, (90,)))
    starts, _ = bags([0, 5, 1, 0, 83, 1, 0])
    for bag_starts in (None, starts):
        for weights in (None, torch.rand(90)):
            args = (records, ints, distinct, inverse, bag_starts, weights)
            assert_close(ops.pool(*args), reference.pool(*args), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", DIMS)
def test_sum_gradients_equals_the_reference(dim):
    _, _, order, run_starts = reference.unique(torch.randint(0, 12, (90,)))
    _, bag = bags([0, 5, 1, 0, 83, 1, 0])
    for bag_of, grad in ((None, torch.randn(90, dim)), (bag, torch.randn(7, dim))):
        for weights in (None, torch.rand(90)):
            args = (grad, order, run_starts, bag_of, weights)
            assert_close(ops.sum_gradients(*args), reference.sum_gradients(*args))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: repr(o)[:24])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("dim", [1, 3, 16, 33])
def test_update_equals_the_reference(optimizer, dtype, dim):
    dim = width(dim, dtype)
    layout = layout_of(optimizer, dim, dtype)
    slow = new_records(layout, initial_state(optimizer, dim))
    fast = slow.clone()
    for step in range(4):
        rows, _, order, starts = reference.unique(torch.randint(0, 60, (90,)))
        bag_starts, bag = bags([0, 5, 1, 0, 83, 1, 0])
        grad = torch.randn(bag_starts.numel() - 1, dim)
        decay = torch.rand(rows.numel()) if step % 2 else None
        for run, records in ((torch.ops.hotrows.update, fast), (reference.update, slow)):
            run(
                records, layout.as_ints(), rows, rows, order, starts, bag, torch.ones(90),
                grad, optimizer.kind, hyper_tensor(optimizer, step),
                FIRST_ROWS, pieces(layout.dim), decay,
            )  # fmt: skip
    fast_parts, slow_parts = (views(records, layout.as_ints()) for records in (fast, slow))
    assert_close(fast_parts.state, slow_parts.state, rtol=1e-4, atol=1e-5)
    # One ulp in float32 may tip a stochastic rounding to the next bfloat16, or integer.
    slack = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-2, "atol": 1e-3}
    if layout.has_scale:
        assert torch.equal(fast_parts.scale, slow_parts.scale)
        assert (fast_parts.weights != slow_parts.weights).float().mean() < 0.01
        slack = {"rtol": 0, "atol": float(fast_parts.scale.max())}
    assert_close(fast_parts.read(), slow_parts.read(), **slack)
    if layout.has_step:
        assert torch.equal(fast_parts.step, slow_parts.step)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: repr(o)[:24])
def test_update_of_nothing_changes_nothing(optimizer):
    layout = layout_of(optimizer, 3)
    records = new_records(layout, initial_state(optimizer, 3))
    before = records.clone()
    rows, inverse, order, starts = reference.unique(torch.empty(0, dtype=torch.int64))
    plan = PackPlan(rows, rows, inverse, order, starts, 0)
    updated(records, layout, plan, torch.empty(0, 3), optimizer)
    assert torch.equal(records, before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: repr(o)[:24])
@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_any_number_of_threads_gives_the_same_bits(optimizer, dtype, threads):
    layout = layout_of(optimizer, 16, dtype)
    rows, inverse, order, starts = reference.unique(torch.randint(0, 60, (3000,)))
    grad, results = torch.randn(3000, 16), []
    for count in (1, 2, 3, 5):
        threads(count)
        records = new_records(layout, initial_state(optimizer, 16))
        updated(records, layout, PackPlan(rows, rows, inverse, order, starts, 3000), grad, optimizer)
        results.append(records)
    assert all(torch.equal(records, results[0]) for records in results)


@pytest.mark.parametrize("kind", ["constant", "uniform", "normal"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_initialize_equals_the_reference(kind, dtype):
    layout = RecordLayout(width(5, dtype), dtype, state_width=3, has_step=True)
    wider = layout.stride + 8  # records may be parts of longer ones
    fast = torch.zeros(30, wider, dtype=torch.uint8)
    slow = fast.clone()
    rows = torch.tensor([0, 59, 20, 19, 7])
    for module, records in ((ops, fast), (reference, slow)):
        part = records[3:8, 4 : 4 + layout.stride]
        module.initialize(
            part, layout.as_ints(), rows, FIRST_ROWS, pieces(layout.dim), kind, 0.5, [1.0, 2.0, 3.0]
        )
    fast_parts, slow_parts = (
        views(records[:, 4 : 4 + layout.stride], layout.as_ints()) for records in (fast, slow)
    )
    assert_close(fast_parts.read(), slow_parts.read(), rtol=1e-6, atol=1e-7)
    assert torch.equal(fast_parts.state, slow_parts.state)
    assert fast[3:8].any(1).all() and not fast[:3].any() and not fast[8:].any()
    assert not fast[:, :4].any() and not fast[:, -4:].any()


@pytest.mark.parametrize("size", [4, 60, 132])
def test_copy_rows_equals_the_reference(size):
    source = torch.randint(0, 256, (50, size + 12), dtype=torch.uint8)[:, 8 : 8 + size]
    chosen, to = torch.randperm(50)[:20], torch.randperm(40)[:20]
    for source_rows, target_rows in ((chosen, to), (chosen, None), (None, torch.randperm(50))):
        fast, slow = (torch.zeros(50, size + 4, dtype=torch.uint8) for _ in range(2))
        ops.copy_rows(source, source_rows, fast[:, 4:], target_rows)
        reference.copy_rows(source, source_rows, slow[:, 4:], target_rows)
        assert torch.equal(fast, slow) and fast.any()
    ops.copy_rows(source, chosen[:0], fast[:, 4:], None)  # nothing to copy
    assert torch.equal(fast, slow)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_new_row_depends_on_its_table_and_id_alone(kind):
    layout = RecordLayout(4)
    together = torch.zeros(20, layout.stride, dtype=torch.uint8)
    alone = torch.zeros(1, layout.stride, dtype=torch.uint8)
    two = torch.tensor([0, 5, 25]), torch.tensor([[8, 0, 1, 0, 4], [7, 0, 1, 0, 4]])
    one = torch.tensor([0, 20]), torch.tensor([[7, 0, 1, 0, 4]])
    ops.initialize(together, layout.as_ints(), torch.arange(5, 25), *two, kind, 0.1, [])
    ops.initialize(alone, layout.as_ints(), torch.tensor([13]), *one, kind, 0.1, [])
    assert torch.equal(together[13], alone[0])
    assert not torch.equal(together[12], alone[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_pieces_of_tables_hold_the_rows_and_columns_of_whole_ones(kind, dtype):
    full = torch.zeros(20, RecordLayout(6, dtype).stride, dtype=torch.uint8)
    keys_of = (torch.tensor([0, 20]), torch.tensor([[7, 0, 1, 0, 6]]))
    ops.initialize(full, RecordLayout(6, dtype).as_ints(), torch.arange(20), *keys_of, kind, 0.1, [])
    layout = RecordLayout(2, dtype)
    first_rows, keys_of = torch.tensor([0, 4, 6]), torch.tensor([[7, 2, 5, 3, 6], [7, 0, 1, 3, 6]])
    for initialize in (ops.initialize, reference.initialize):
        part = torch.zeros(6, layout.stride, dtype=torch.uint8)
        initialize(part, layout.as_ints(), torch.arange(6), first_rows, keys_of, kind, 0.1, [])
        expected = views(full, RecordLayout(6, dtype).as_ints()).weights
        expected = expected[[2, 7, 12, 17, 0, 1], 3:5]
        assert_close(views(part, layout.as_ints()).weights, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_row_wise_updates_of_some_columns_equal_those_of_whole_rows(dtype):
    optimizer, rows = RowWiseAdagrad(lr=0.1), torch.tensor([1, 3])
    grad = torch.randn(2, 6)
    runs = torch.arange(2).int(), torch.arange(3).int(), None, None
    wide, narrow = RecordLayout(6, dtype, 1), RecordLayout(2, dtype, 1)
    keys_of = torch.tensor([0, 5])
    full = new_records(wide, [0.0], 5)
    part = torch.zeros(5, narrow.stride, dtype=torch.uint8)
    pieces_of = {6: torch.tensor([[42, 0, 1, 0, 6]]), 2: torch.tensor([[42, 0, 1, 3, 6]])}
    ops.initialize(part, narrow.as_ints(), torch.arange(5), keys_of, pieces_of[2], "uniform", 0.1, [0.0])
    hyper = hyper_tensor(optimizer, 3)
    for update in (torch.ops.hotrows.update, reference.update):
        big, small = full.clone(), part.clone()
        update(big, wide.as_ints(), rows, rows, *runs, grad, optimizer.kind, hyper, keys_of, pieces_of[6])
        mean_squares = (grad * grad).mean(1)
        update(small, narrow.as_ints(), rows, rows, *runs, grad[:, 3:5].contiguous(), optimizer.kind,
               hyper, keys_of, pieces_of[2], None, mean_squares)  # fmt: skip
        expected = views(big, wide.as_ints())
        actual = views(small, narrow.as_ints())
        assert_close(actual.weights, expected.weights[:, 3:5], rtol=1e-5, atol=1e-6)
        assert_close(actual.state, expected.state, rtol=1e-5, atol=1e-6)


def test_initial_weights_have_the_declared_spread():
    layout = RecordLayout(50)
    records = torch.zeros(2000, layout.stride, dtype=torch.uint8)
    keys_of = (torch.arange(2000), torch.tensor([0, 2000]), torch.tensor([[7, 0, 1, 0, 50]]))
    ops.initialize(records, layout.as_ints(), *keys_of, "normal", 0.3, [])
    weights = views(records, layout.as_ints()).weights
    assert abs(float(weights.mean())) < 0.005 and abs(float(weights.std()) - 0.3) < 0.005
    ops.initialize(records, layout.as_ints(), *keys_of, "uniform", 0.3, [])
    assert float(weights.min()) < -0.299 and float(weights.max()) > 0.299
    assert abs(float(weights.mean())) < 0.005


def test_stochastic_rounding_keeps_the_mean():
    layout = RecordLayout(64, "bfloat16")
    records = torch.zeros(500, layout.stride, dtype=torch.uint8)
    weights = views(records, layout.as_ints()).weights
    rows, inverse, order, starts = reference.unique(torch.arange(500))
    plan = PackPlan(rows, rows, inverse, order, starts, 500)
    keys = ops.RowKeys(torch.tensor([0, 500]), torch.tensor([[5, 0, 1, 0, 64]]))
    move = 1e-3  # far below half a step of bfloat16 at 1
    for step in range(20):
        weights[:] = 1.0
        rule = ops.RowRule("sgd", hyper_tensor(SGD(lr=1.0), step))
        stored = ops.Records(records, layout.as_ints())
        ops.update(stored, plan, torch.full((500, 64), -move), rule, keys)
        assert abs(float(weights.float().mean()) - (1 + move)) < 2e-4


@pytest.mark.parametrize("update", [torch.ops.hotrows.update, reference.update])
@pytest.mark.parametrize(
    ("dtype", "lr", "scales"),
    [
        ("int8", 1e-4, [2.0**-6]),
        ("int8", 0.05, [2.0**-5]),
        ("int8", -0.02, [2.0**-9]),
        ("int4", 1e-4, [2.0**-2]),
        ("int4", 0.05, [2.0**-1]),
        ("int4", 0.02, [2.0**-2, 2.0**-1]),  # the largest weight comes to 7.2 of the scale
        ("int4", -0.02, [2.0**-4]),
    ],
    ids=["stays", "grows", "shrinks", "stays-4", "grows-4", "grows seldom-4", "shrinks-4"],
)
def test_the_mean_of_updates_of_integers_over_seeds_is_that_of_float32(update, dtype, lr, scales):
    """No step vanishes, far below the scale as it may be, while the scale stays, grows or shrinks."""
    num_seeds, layout = 20_000, RecordLayout(6, dtype)
    records = torch.zeros(num_seeds, layout.stride, dtype=torch.uint8)
    stored = views(records, layout.as_ints())
    stored.write(torch.tensor([0.2, -0.1, 0.1, 0.0, -0.14, 1.0]).expand(num_seeds, -1))
    before, grad = stored.read()[0], torch.tensor([1.0, -1.0, 0.3, 0.01, 2.0, -40.0])
    rows, runs = torch.arange(num_seeds), torch.arange(num_seeds + 1).int()
    keys = torch.tensor([[7919 * seed, 0, 1, 0, 6] for seed in range(num_seeds)])  # a table for each seed
    update(
        records, layout.as_ints(), rows, rows, runs[:-1], runs, None, None, grad.expand(num_seeds, -1),
        "sgd", torch.tensor([3.0, lr, 0.0], dtype=torch.float64), runs.long(), keys,
    )  # fmt: skip
    assert stored.scale.unique().tolist() == scales
    error = stored.read().double().mean(0) - (before - lr * grad)
    assert float(error.abs().max()) < 4 * scales[-1] / 2 / num_seeds**0.5


@pytest.mark.parametrize(("dim", "dtype", "most"), [(17, "int8", 127), (18, "int4", 7)])
def test_integers_of_any_size_equal_the_reference(dim, dtype, most):
    """The largest, smallest and no number at all, alone in a row and beside others."""
    layout = RecordLayout(dim, dtype)
    sizes = torch.tensor(
        [most * 2.0**121, 2.0**100, most, most + 1e-4, 0.0, 2.0**-100, 1e-30, 1e-42, 3.4e38, torch.inf]
    )
    grad = torch.randn(10, dim).clamp(-1, 1) * sizes[:, None]
    grad[:, 3] = -sizes
    rows, runs = torch.arange(10), torch.arange(11).int()
    results = []
    for update in (torch.ops.hotrows.update, reference.update):
        records = torch.zeros(10, layout.stride, dtype=torch.uint8)
        update(
            records, layout.as_ints(), rows, rows, runs[:-1], runs, None, None, grad, "sgd",
            torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64), FIRST_ROWS, pieces(dim),
        )  # fmt: skip
        results.append(records)
    assert torch.equal(*results)
    stored = views(records, layout.as_ints())
    assert stored.read()[8:].isnan().all()
    error = (stored.read()[:8] + grad[:8]).abs().amax(1)
    assert (error <= stored.scale[:8]).all() and (
        stored.scale[:7] <= (sizes[:7] / (most // 2)).clamp(min=2.0**-100)
    ).all()
