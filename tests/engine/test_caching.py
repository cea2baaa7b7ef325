"""The master test: behind a cache, training has the bits of tables held whole in fast memory.

Over policies, sizes of the cache, batches in flight, look ahead, optimizers, stores, runners and
random legal orders of stages; with evaluations in between; and wrong without either side of the pin.
"""

import random
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows import FTRL, SGD, Adagrad, LazyAdam, RowWiseAdagrad
from hotrows.engine.cached_group import CachedGroup
from hotrows.engine.planning.policy import Lookahead, Newest
from hotrows.engine.planning.slots import SlotMap
from hotrows.engine.stages import start
from hotrows.engine.storage.cache import Cache
from tests.support.cached import (
    POLICIES,
    caching_of,
    engine,
    records,
    same,
    stream,
    train,
    train_behind_a_cache,
    train_plainly,
)
from tests.support.choice import examples
from tests.support.stage_order import Coming, run_in_some_order

OPTIMIZERS = [
    SGD(lr=0.1), Adagrad(lr=0.1), RowWiseAdagrad(lr=0.1, weight_decay=0.01), LazyAdam(lr=0.01),
    LazyAdam(lr=0.01, per_row_step=True), FTRL(lr=0.1, l1=0.001),
]  # fmt: skip


_PLAIN = {}


def plain(optimizer, batches=24, size=12, dtype="float32"):
    """Losses and records of training with everything in fast memory."""
    key = (repr(optimizer), batches, size, dtype)
    if key not in _PLAIN:
        embedding = engine(optimizer=optimizer, dtype=dtype)
        _PLAIN[key] = train_plainly(embedding, stream(batches, size)), records(embedding)
    return _PLAIN[key]


def check(caching, optimizer=None, plan_depth=2, dtype="float32", **options):
    optimizer = optimizer or Adagrad(lr=0.1)
    losses, expected = plain(optimizer, dtype=dtype)
    embedding = engine(caching, optimizer, dtype)
    try:
        assert same(train_behind_a_cache(embedding, stream(), plan_depth, **options), losses)
        assert same(records(embedding), expected)
    finally:
        embedding.close()


@pytest.mark.few(11)
@pytest.mark.pairs
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.15, 0.4, 1.5])
@pytest.mark.parametrize(("in_flight", "plan_depth"), [(1, 0), (2, 1), (4, 2), (7, 5)])
def test_policies_sizes_and_runners(policy, share, in_flight, plan_depth):
    check(caching_of(share, policy, in_flight), plan_depth=plan_depth)


@pytest.mark.few(7)
@pytest.mark.pairs
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: repr(o)[:40])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("share", [0.0, 0.15])
def test_optimizers_and_stored_types(optimizer, dtype, share):
    like = engine(optimizer=optimizer, dtype=dtype)
    check(caching_of(share, like=like), optimizer, dtype=dtype)


@pytest.mark.few(5)
@pytest.mark.parametrize("policy", POLICIES[:2], ids=repr)
@pytest.mark.parametrize("share", [0.0, 0.15, 0.4])
@pytest.mark.parametrize("plan_depth", [0, 2])
def test_rows_in_a_file(policy, share, plan_depth, tmp_path):
    check(caching_of(share, policy, path=tmp_path / "store"), plan_depth=plan_depth)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("in_file", [False, True])
def test_evaluations_and_flushes_in_between_change_nothing(warm, in_file, tmp_path):
    """What is looked up while the pipeline rests is what plain training has at that step."""
    reference, batches = engine(), stream()
    probe = stream(1, 200, seed=9)[0]
    caching = caching_of(0.15, path=tmp_path / "store" if in_file else None)
    embedding = engine(caching)

    def pause(step):
        train(reference, step, batches[step], reference.plan(batches[step], step))
        with torch.no_grad():
            expected = reference.lookup(reference.plan(probe)).leaves
            assert same(embedding.lookup(embedding.plan(probe)).leaves, expected)
        if step % 5 == 3:
            embedding.cached_tables.flush()
        if in_file and step % 7 == 4:
            embedding.cached_tables.checkpoint()

    train_behind_a_cache(embedding, batches, warm=warm, pause=pause)
    assert same(records(embedding), records(reference))
    embedding.close()


def test_what_is_read_between_two_steps_pauses_the_moves(monkeypatch):
    """A callback that predicts, or reads all vectors: without a pause it found rows on their way."""
    embedding, batches, read = engine(caching_of(0.15)), stream(), Cache.read
    paused = []

    def noting(cache, rows):
        paused.append(runner._num_pauses > 0 and not runner._running)
        return read(cache, rows)

    monkeypatch.setattr(Cache, "read", noting)
    with closing(start(embedding, enumerate(batches))) as runner:
        for step, work in enumerate(runner):
            train(embedding, step, work.item.batch, work.item.plan)
            paused.clear()
            with torch.no_grad():
                embedding.lookup(embedding.plan(stream(1, 200, seed=9)[0]))
            assert paused and all(paused)
            embedding.weights(embedding.tables[0].name)
            assert all(paused)
    embedding.weights(embedding.tables[0].name)  # and once the lanes are gone
    embedding.close()


@pytest.mark.parametrize("chunk", [1, 7, 256])
def test_without_a_pipeline_rows_pass_through(chunk, monkeypatch):
    monkeypatch.setattr("hotrows.engine.read_through._LEAST_CHUNK", chunk)
    losses, expected = plain(Adagrad(lr=0.1))
    embedding = engine(caching_of(0.0))
    assert same(train_plainly(embedding, stream()), losses)
    assert same(records(embedding), expected)


def test_a_second_run_of_the_pipeline_goes_on_with_a_warm_cache():
    losses, expected = plain(Adagrad(lr=0.1))
    embedding, batches = engine(caching_of(0.3)), stream()
    trained = train_behind_a_cache(embedding, batches[:10])
    numbered = list(enumerate(batches))[10:]
    with closing(start(embedding, numbered)) as runner:
        trained += [train(embedding, 0, work.item.batch, work.item.plan) for work in runner]
    assert same(trained, losses) and same(records(embedding), expected)


# ---- orders of stages


@settings(max_examples=examples(30), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(POLICIES),
    share=st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.35]),
    in_flight=st.integers(1, 6),
)
def test_any_legal_order_equals_plain_training(seed, policy, share, in_flight):
    losses, expected = plain(Adagrad(lr=0.1))
    embedding = engine(caching_of(share, policy, in_flight))
    trained = run_in_some_order(embedding, stream(), random.Random(seed).choice)
    assert same(trained, losses) and same(records(embedding), expected)


@settings(max_examples=examples(8), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(POLICIES),
    share=st.sampled_from([0.1, 0.2, 0.35]),
    in_flight=st.integers(1, 6),
)
def test_batches_that_come_in_their_own_time_equal_plain_training(seed, policy, share, in_flight):
    """Of a stream: planning looks ahead as far as batches have come, and waits for none."""
    losses, expected = plain(Adagrad(lr=0.1))
    embedding, draw = engine(caching_of(share, policy, in_flight)), random.Random(seed)
    trained = run_in_some_order(embedding, stream(), draw.choice, Coming(stream(), draw))
    assert same(trained, losses) and same(records(embedding), expected)


@pytest.mark.parametrize("side", ["past_pins", "future_pins"])
def test_without_either_side_of_the_pin_training_is_wrong(side):
    """Stages that run as early as they may take victims before they are trained, and read rows before
    they were written back: legal, and harmless through both sides of the pin alone."""
    losses, _ = plain(Adagrad(lr=0.1))

    def is_wrong(policy, share, **pins):
        embedding = engine(caching_of(share, policy, 4))
        for cached in embedding.cached_tables.groups:
            cached.slots = SlotMap(cached.cache.num_slots, policy, 4, **pins)
        return not same(run_in_some_order(embedding, stream(), lambda ready: ready[0]), losses)

    cases = [(p, s) for p in (Newest(), Lookahead(2), Lookahead(0)) for s in (0.2, 0.3, 0.4, 0.6)]
    assert not any(is_wrong(*case) for case in cases)
    assert any(is_wrong(*case, **{side: 0}) for case in cases)


def test_rows_that_bypass_the_cache_come_in_twice_and_go_out_once():
    group = SimpleNamespace(group=SimpleNamespace(stride=10))
    part = SimpleNamespace(slots=torch.tensor([-1, -1, 0, 1]), num_rows=4)
    moves = SimpleNamespace(rows_in=torch.tensor([7]), rows_out=torch.tensor([3, 4]), bypasses_cache=True)
    bypassed = CachedGroup.traffic(group, part, moves)
    assert (bypassed.rows, bypassed.rows_in, bypassed.bytes_in, bypassed.bytes_out) == (4, 3, 50, 40)
    moves.bypasses_cache = False
    cached = CachedGroup.traffic(group, part, moves)
    assert (cached.rows_in, cached.bytes_in, cached.bytes_out) == (1, 10, 20)
