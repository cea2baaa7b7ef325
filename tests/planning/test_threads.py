"""Planning on several threads: what one thread plans, and the error that it would raise."""

import threading
import time
from contextlib import closing
from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from hotrows import Adagrad, Embedding
from hotrows.engine.planning import threads as planning_threads
from hotrows.engine.planning.threads import Threads, num_threads
from hotrows.engine.stages import start
from tests.support.cached import caching_of, same, stream, tables, train_behind_a_cache, train_plainly


def test_results_come_in_the_order_of_the_items():
    def late(n):
        time.sleep(0.002 * (5 - n))
        return n, threading.current_thread().name

    results = Threads(3).map(late, range(5))
    assert [n for n, _ in results] == [0, 1, 2, 3, 4]
    assert len({name for _, name in results}) == 3


def test_the_first_error_in_order_is_raised_once_nothing_runs():
    running = []

    def fail(n):
        running.append(n)
        time.sleep(0.01 * (3 - n))
        running.remove(n)
        raise ValueError(f"item {n}")

    with pytest.raises(ValueError, match="item 0"):
        Threads(3).map(fail, range(3))
    assert not running


def test_one_thread_is_the_callers():
    assert Threads(1).map(lambda _: threading.current_thread(), range(2)) == 2 * [
        threading.current_thread()
    ]


def test_threads_end_when_closed_and_begin_again_when_asked():
    threads, others = Threads(2), set(threading.enumerate())
    for _ in range(2):
        assert threads.map(abs, [-1, -2]) == [1, 2]
        threads.close()
        assert set(threading.enumerate()) <= others


def test_a_thread_of_planning_has_no_team():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert set(Threads(2).map(lambda _: torch.get_num_threads(), range(4))) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_beside_a_device_two_cores_are_left(monkeypatch):
    cores = {1: 1, 2: 1, 3: 1, 6: 4, 64: 8}
    for of_machine, expected in cores.items():
        monkeypatch.setattr(planning_threads, "num_cores", lambda n=of_machine: n)
        assert num_threads(None, on_host=False) == expected
        assert num_threads(None, on_host=True) == 1
    assert num_threads(5, on_host=True) == 5


def parts_of(num, share=0.2):
    """Five packs; share: of the rows, how many are in fast memory."""
    return Embedding(
        tables(Adagrad(lr=0.1)), seed=3, pack_parts=3, planning_threads=num,
        caching=caching_of(share) if share else None,
    )  # fmt: skip


def test_any_number_of_threads_plans_the_same_moves():
    plans = {}
    for num in (1, 4):
        embedding = parts_of(num)
        batches = stream()
        for batch in batches:
            embedding.cached_tables.feed(embedding.planner.rows(batch))
        embedding.cached_tables.feed_end()
        plans[num] = [
            embedding.cached_tables.take(embedding.plan(batch, step))
            for step, batch in enumerate(batches)
        ]
    assert len(plans[1][0].packs) == 5
    for one, four in zip(plans[1], plans[4], strict=True):
        assert_same(one, four)


def assert_same(a, b):
    """Every number of two plans."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, tuple):
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif is_dataclass(a):
        for field in fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name))
    else:
        assert a == b


def test_batches_are_loaded_beside_planning_in_their_order():
    readers = set()

    def read(batches):
        for batch in batches:
            readers.add(threading.current_thread().name)
            yield batch

    batches, embedding = stream(), parts_of(2)
    with closing(start(embedding, enumerate(read(batches)), read(batches))) as runner:
        assert all(work.item.batch is batch for work, batch in zip(runner, batches, strict=True))
    assert readers == {"hotrows-ahead"}


@pytest.mark.parametrize("plan_depth", [0, 2])
def test_several_threads_change_no_bit(plan_depth):
    expected = train_plainly(parts_of(1, share=None), stream())
    assert same(train_plainly(parts_of(4, share=None), stream()), expected)
    assert same(train_behind_a_cache(parts_of(4), stream(), plan_depth), expected)


def test_the_error_is_that_of_one_thread():
    batch = stream()[0]
    bad = replace(batch, ids=batch.ids.clone())
    bad.ids[[3, 17, 30]] = 10_000  # of users, items and shops, which are in packs of their own
    messages = set()
    for num in (1, 4):
        with pytest.raises(ValueError, match="has id 10,000") as error:
            parts_of(num).plan(bad)
        messages.add(str(error.value))
    assert len(messages) == 1
