"""The master test on a device: behind a cache there, training has the bits of tables held whole.

On a pretended GPU whose lanes are late at random, so that whatever does not wait for what it needs
reads something else; and on a real one where there is one.
"""

import random
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows import Adagrad, DenseAdam, Embedding, LazyAdam, RowWiseAdagrad
from hotrows.engine.planning.device_slots import DeviceSlots
from hotrows.engine.planning.policy import Lookahead, Newest
from hotrows.engine.storage.cache import Cache
from tests.support import pretend
from tests.support.cached import (
    caching_of,
    records,
    same,
    stream,
    tables,
    train,
    train_behind_a_cache,
    train_plainly,
)
from tests.support.devices import KINDS, device_of
from tests.support.pretend_order import Race
from tests.support.stage_order import Coming, run_in_some_order


def engine(device, caching=None, optimizer=None, dtype="float32", **options):
    all_tables = tables(optimizer or Adagrad(lr=0.1), dtype)
    return Embedding(all_tables, seed=3, caching=caching, device=device, **options)


def losses_and_records(embedding, losses):
    return [loss.cpu() for loss in losses], [rows.cpu() for rows in records(embedding)]


def train_there(embedding, batches):
    return [
        train(embedding, step, *embedding.to_device(batch, embedding.plan(batch, step)))
        for step, batch in enumerate(batches)
    ]


@pytest.mark.few(3)
@pytest.mark.pairs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache_transfer", ["zero_copy", "staged"])
@pytest.mark.parametrize("plan_depth", [0, 2])
@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("planning", ["host", "device"])
def test_a_cache_on_the_device_changes_no_bit(kind, cache_transfer, plan_depth, share, planning):
    with device_of(kind) as device:
        resident = engine(device)
        expected = losses_and_records(resident, train_there(resident, stream()))
        cached = engine(device, caching_of(share, cache_transfer=cache_transfer), planning=planning)
        trained = losses_and_records(cached, train_behind_a_cache(cached, stream(), plan_depth))
        assert same(trained[0], expected[0])
        assert same(trained[1], expected[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "optimizer",
    [
        RowWiseAdagrad(lr=0.1, weight_decay=0.01),
        DenseAdam(lr=0.01, weight_decay=0.01),
        pytest.param(LazyAdam(lr=0.01, per_row_step=True), marks=pytest.mark.slow),
    ],
)
def test_nor_do_files_policies_or_a_warm_start(kind, optimizer, tmp_path):
    with device_of(kind, seed=1) as device:
        resident = engine(device, optimizer=optimizer)
        expected = losses_and_records(resident, train_there(resident, stream()))
        for name, policy, path in (("a", Newest(), None), ("b", Lookahead(2), tmp_path / "rows")):
            cached = engine(device, caching_of(0.2, policy, path=path), optimizer)
            trained = train_behind_a_cache(cached, stream(), warm=True)
            result = losses_and_records(cached, trained)
            cached.close()
            assert same(result[0], expected[0]) and same(result[1], expected[1]), name


_RESIDENT = {}


def resident():
    """Losses and records of training with all rows on a pretended GPU."""
    if not _RESIDENT:
        with pretend.gpu() as device:
            embedding = engine(device)
            _RESIDENT["all"] = losses_and_records(embedding, train_there(embedding, stream(14)))
    return _RESIDENT["all"]


def check_some_order(seed, share, in_flight, window, arrives=False, **options):
    draw = random.Random(seed)
    expected = resident()
    with pretend.gpu(pretend.random_delay(seed, 0.0003)) as device:
        caching = caching_of(share, Lookahead(window), in_flight, **options)
        cached = engine(device, caching, planning="device")
        assert cached.cached_tables.maps_on_device
        coming = Coming(stream(14), draw) if arrives else None
        trained = run_in_some_order(cached, stream(14), draw.choice, coming)
        result = losses_and_records(cached, trained)
        slots = cached.cached_tables.device_slots[0]
        cached.close()
    assert same(result[0], expected[0]) and same(result[1], expected[1])
    return slots


@pytest.mark.parametrize("examples", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_any_legal_order_where_the_device_maps_slots(examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        seed=st.integers(0, 10**6),
        share=st.sampled_from([0.01, 0.1, 0.2, 0.35, 0.7]),
        in_flight=st.integers(1, 5),
        window=st.sampled_from([0, 3, "auto"]),
        arrives=st.booleans(),
    )
    def check(**case):
        check_some_order(**case)

    check()


_SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("nothing", "pins after")]


@pytest.mark.parametrize("without", ["pins before", *_SLOW])
def test_without_either_side_of_the_pin_it_is_noticed(without, monkeypatch):
    """Rows would be evicted that are not trained yet, or read before they were written."""
    expected, wrong = resident()[0], pytest.raises((Race, RuntimeError, AssertionError))
    if without == "pins after":
        monkeypatch.setattr(DeviceSlots, "touch", lambda slots, rows: None)
    with nullcontext() if without == "nothing" else wrong, pretend.gpu() as device:
        for share in (0.2, 0.4):
            cached = engine(device, caching_of(share, Lookahead(0), 4))
            if without == "pins before":
                for slots in cached.cached_tables.device_slots:
                    slots.in_flight = 1
            trained = run_in_some_order(cached, stream(14), lambda ready: ready[0])
            assert same(losses_and_records(cached, trained)[0], expected)


def test_batches_are_drained_where_few_slots_are_free_and_else_are_not():
    few, many = (check_some_order(1, share, 3, "auto") for share in (0.1, 0.7))
    assert few.num_drained > 5 and few.num_resident > 0 and many.num_drained == 0


@pytest.mark.parametrize("share", [0.3, pytest.param(0.01, marks=pytest.mark.slow)])
def test_rows_of_files_move_as_the_device_says(share, tmp_path):
    check_some_order(2, share, 2, 3, path=tmp_path / "rows")


def test_the_records_of_a_row_lie_side_by_side_for_the_device():
    """So a weight of four bytes is moved with its vector, in vectors of 16 bytes."""
    with pretend.gpu() as device:
        embedding = engine(device, caching_of(0.3))
        first, of_items, second = embedding.stores
        assert first.block is second.block and first.block.shape == (63, 64 + 16)
        assert second.records.data_ptr() == first.records.data_ptr() + 64
        assert of_items.block.shape == (300, 48)
        sizes = [cached.cache.store.stride for cached in embedding.cached_tables.groups]
        assert sizes == [80, 48]


def test_the_pretended_device_computes_what_the_host_does():
    with device_of("pretended") as device:
        on_gpu = engine(device)
        trained = losses_and_records(on_gpu, train_there(on_gpu, stream()))
    on_host = engine("cpu")
    losses, rows = losses_and_records(on_host, train_plainly(on_host, stream()))
    torch.testing.assert_close(torch.stack(trained[0]), torch.stack(losses))
    for a, b in zip(trained[1], rows, strict=True):
        torch.testing.assert_close(a.view(torch.float32), b.view(torch.float32))


@pytest.mark.parametrize(
    "missing",
    ["training waits", "moves wait", "writes wait for training", "plans are held", "rows are held"],
)
def test_what_is_left_out_is_noticed(missing, monkeypatch):
    """By the order that the pretended device keeps of waits and uses, whatever came first this time."""
    collect, write_back = Cache.collect, Cache.write_back
    launch = pretend.PretendDevice.launch
    left_out = {
        "training waits": ("hotrows.engine.stages._Stages.begin_training", lambda self, work: None),
        "moves wait": (
            "hotrows.engine.storage.cache.Cache.collect",
            lambda self, moves, device_moves, after: collect(self, moves, device_moves, []),
        ),
        "writes wait for training": (
            "hotrows.engine.storage.cache.Cache.write_back",
            lambda self, transfer, after=(): write_back(self, transfer),
        ),
        "plans are held": ("hotrows.engine.storage.cache._blocks", lambda moves: []),
        "rows are held": (
            "tests.support.pretend.PretendDevice.launch",
            lambda self, lane, work, after=(), holds=(): launch(self, lane, work, after),
        ),
    }
    monkeypatch.setattr(*left_out[missing])
    with pytest.raises(Race), pretend.gpu() as device:
        cached = engine(device, caching_of(0.1))
        train_behind_a_cache(cached, stream(12))
