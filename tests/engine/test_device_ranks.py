"""Ranks with a pretended GPU each: the bits of ranks on processors."""

from contextlib import closing

import pytest
import torch

from hotrows import Adagrad, Adam, Embedding, RowWiseAdagrad
from hotrows.batch import split
from hotrows.distributed import in_process
from hotrows.engine import stages
from hotrows.engine.caching import Caching
from tests.support import pretend, pretend_ranks
from tests.support.embeddings import batches_of, mixed_tables, placements
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


def assert_same_bits(num_ranks, optimizer, **execution):
    expected = trained(in_process.run, num_ranks, "cpu", optimizer, **execution)
    with pretend_ranks.gpus(num_ranks, pretend.random_delay(num_ranks)):
        got = trained(pretend_ranks.run, num_ranks, "cuda", optimizer, **execution)
    assert_same_rows(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_ranks", "optimizer", "wire_dtype"),
    [(2, Adagrad(lr=0.05), "float32"), (3, Adam(), "bfloat16")],
    ids=["2", "3, 16 bits"],
)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("sharding", ["rows", "tables", "columns", "replicated", "mixed"])
def test_ranks_on_devices_have_the_bits_of_ranks_on_processors(
    sharding, cache, micro_batches, num_ranks, optimizer, wire_dtype
):
    assert_same_bits(
        num_ranks, optimizer, sharding=placements(sharding, num_ranks), micro_batches=micro_batches,
        caching=CACHES[cache], wire_dtype=wire_dtype,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sharding", "cache", "micro_batches"), [("rows", "cached", 2), ("columns", "in memory", 1)]
)
def test_ranks_on_devices_in_short(sharding, cache, micro_batches):
    execution = {"sharding": sharding, "caching": CACHES[cache], "micro_batches": micro_batches}
    assert_same_bits(2, RowWiseAdagrad(), **execution)


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
