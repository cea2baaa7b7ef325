"""Ranks with a pretended GPU each: the bits of ranks on processors."""

import time
from contextlib import closing

import pytest
import torch

from hotrows import SGD, Adagrad, Embedding, LazyAdam, RowWiseAdagrad
from hotrows.batch import split
from hotrows.engine import stages
from hotrows.engine.caching import Caching
from hotrows.engine.distributed import in_process
from hotrows.runtime.device import find
from tests.support import pretend, pretend_ranks
from tests.support.embeddings import SHARDINGS, batches_of, mixed_tables, placements
from tests.support.pretend_order import Race
from tests.support.sharded import assert_same_rows, whole_rows

pytestmark = pytest.mark.usefixtures("one_thread")

CACHES = {
    "in memory": None,
    "cached": Caching(fast_memory=4000, in_flight=2),
    "bypassed": Caching(fast_memory=700, in_flight=3),
}


def learn(embedding, plan, micro_batches):
    """With gradients of single products, which have equal bits everywhere."""
    for number in range(micro_batches):
        vectors = embedding.lookup(plan, number)
        for leaf in vectors.leaves:
            leaf.grad = (leaf.detach() * 0.25 + 0.5) / 16
        if number < micro_batches - 1:
            embedding.send_gradients(plan, number, vectors)
    embedding.update(plan, vectors)


def trained(run, num_ranks, device, optimizer, **execution):
    """The rows of all tables after some batches, and the optimizers' states."""
    batches = batches_of("single", 8)

    def work(ranks):
        tables = mixed_tables(optimizer)
        embedding = Embedding(tables, seed=3, ranks=ranks, device=device, **execution)
        if embedding.cached_tables:
            maps_there = device == "cuda" and execution["planning"] != "host"
            assert embedding.cached_tables.maps_on_device == maps_there
        mine = [(step, split(b, ranks.num_ranks)[ranks.rank]) for step, b in enumerate(batches)]
        with closing(stages.start(embedding, iter(mine), plan_depth=2)) as runner:
            for work in runner:
                learn(embedding, work.item.plan, execution.get("micro_batches", 1))
        if embedding.cached_tables:
            embedding.cached_tables.flush()
        return embedding

    embeddings = run(work, num_ranks)
    rows = whole_rows(embeddings)
    for embedding in embeddings:
        embedding.close()
    return rows


def assert_same_bits(num_ranks, optimizer, planning=None, **execution):
    """Those of processors."""
    expected = trained(in_process.run, num_ranks, "cpu", optimizer, **execution)
    with pretend_ranks.gpus(num_ranks, pretend.random_delay(num_ranks)):
        got = trained(pretend_ranks.run, num_ranks, "cuda", optimizer, planning=planning, **execution)
    assert_same_rows(got, expected)


RANKS = {  # number, optimizer, wire, and where slots are mapped
    "2": (2, Adagrad(lr=0.05), "float32", "device"),
    "3, 16 bits": (3, LazyAdam(), "bfloat16", "host"),
    "4, 16 bits": (4, Adagrad(lr=0.05), "float16", "device"),
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_ranks_on_devices_have_the_bits_of_ranks_on_processors(
    monkeypatch, sharding, cache, micro_batches, ranks
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    num_ranks, optimizer, wire_dtype, planning = RANKS[ranks]
    assert_same_bits(
        num_ranks, optimizer, planning=planning, sharding=placements(sharding, num_ranks),
        micro_batches=micro_batches, caching=CACHES[cache], wire_dtype=wire_dtype,
    )  # fmt: skip


def test_rows_decay_on_a_rank_that_has_some_of_their_columns(monkeypatch):
    """Their means of squares take in the weights, which the host's core cannot read on a device."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert_same_bits(
        2, RowWiseAdagrad(weight_decay=0.01), planning="host", sharding=placements("columns", 2)
    )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("sharding", "cache", "micro_batches", "num_ranks", "planning"),
    [
        ("rows", "cached", 2, 2, "device"),
        ("rows", "cached", 1, 2, "host"),
        ("columns", "in memory", 1, 2, "device"),
        ("mixed", "cached", 2, 4, "device"),  # with hot rows on every rank
        ("mixed columns", "bypassed", 1, 4, "device"),
    ],
)
def test_ranks_on_devices_in_short(monkeypatch, sharding, cache, micro_batches, num_ranks, planning):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert_same_bits(
        num_ranks, RowWiseAdagrad(), planning=planning, sharding=placements(sharding, num_ranks),
        caching=CACHES[cache], micro_batches=micro_batches,
    )  # fmt: skip


def test_a_collective_that_waits_for_nobody_is_found():
    """What one rank's step reads of another's must be passed marks."""

    def work(ranks):
        pretend_ranks.be(ranks.rank)
        mine = torch.zeros(4).to(pretend.CUDA).add_(ranks.rank)
        return sum(ranks._swap("swap", mine)).cpu()

    with pretend_ranks.gpus(2), pytest.raises(Race, match="neither waits for the other"):
        in_process.run(work, 2)
    with pretend_ranks.gpus(2):
        sums = pretend_ranks.run(work, 2)
    assert torch.equal(sums[0], torch.ones(4)) and torch.equal(*sums)


def test_what_is_sent_before_its_lane_is_waited_for_is_found():
    def work(ranks, waits):
        pretend_ranks.be(ranks.rank)
        device = find("cuda")
        rows = device.empty("move", 4)
        mark = device.launch("move", lambda: rows.fill_(ranks.rank), holds=[rows])
        if waits:
            device.wait(mark, [rows])
        received = ranks.all_to_all(rows, [2, 2], [2, 2]).wait().cpu().tolist()
        device.finish(mark)  # raises what the lane has found, if it comes later
        return received

    with pretend_ranks.gpus(2):
        assert pretend_ranks.run(lambda ranks: work(ranks, True), 2) == [[0, 0, 1, 1]] * 2
    with pytest.raises(Race, match="neither waits for the other"), pretend_ranks.gpus(2):
        pretend_ranks.run(lambda ranks: work(ranks, False), 2)


def test_a_rank_that_fails_ends_all_whatever_their_devices_do():
    """In the midst of a step, with rows on their way: the first error is that of the run."""

    def work(ranks):
        embedding = Embedding(
            mixed_tables(SGD(lr=0.1)), seed=3, ranks=ranks, device="cuda", caching=CACHES["cached"]
        )
        batches = [(n, split(b, 2)[ranks.rank]) for n, b in enumerate(batches_of("single", 6))]
        with closing(stages.start(embedding, iter(batches), plan_depth=2)) as runner:
            try:
                for step, staged in enumerate(runner):
                    if ranks.rank == 1 and step == 2:
                        raise OSError("this rank's disk is gone")
                    learn(embedding, staged.item.plan, 1)
            except BaseException:
                runner.abandon()  # as `Trainer` does
                raise

    begun = time.monotonic()
    with pretend_ranks.gpus(2), pytest.raises(OSError, match="this rank's disk is gone"):
        pretend_ranks.run(work, 2)
    assert time.monotonic() - begun < 30
