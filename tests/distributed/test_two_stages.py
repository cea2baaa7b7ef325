"""All-to-alls in two stages are those in one, in fewer messages: as threads, and as processes by Gloo."""

import os
import socket
import time

import pytest
import torch

from hotrows import Adagrad, Embedding
from hotrows.distributed import in_process, process_group, two_stages
from hotrows.distributed.comm import OneRank
from hotrows.distributed.job import RankLost
from tests.support import forked
from tests.support.embeddings import batches_of, mixed_tables, placements, train

NODES = [(2, 2), (2, 3), (3, 2), (4, 2)]  # nodes, ranks of each


def counts_of(num_ranks, kind):
    """[P, P]: what each rank sends to each."""
    random = torch.Generator().manual_seed(num_ranks)
    counts = torch.randint(0, 5, (num_ranks, num_ranks), generator=random)
    if kind == "nothing":
        return counts * 0
    if kind == "gaps":  # a rank that sends nothing, one that gets nothing, a node apart from all others
        counts[1], counts[:, 0] = 0, 0
        counts[:2, 2:] = 0
    return counts


@pytest.mark.parametrize("kind", ["uneven", "gaps", "nothing"])
@pytest.mark.parametrize(("nodes", "ranks_of_node"), NODES)
def test_ranks_receive_what_they_receive_in_one_stage(monkeypatch, nodes, ranks_of_node, kind):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks_of_node))
    counts = counts_of(nodes * ranks_of_node, kind)

    def work(ranks):
        two = two_stages.over(ranks, required=True)
        sent, received = counts[ranks.rank].tolist(), counts[:, ranks.rank].tolist()
        rows = torch.randn(sum(sent), 3, generator=torch.Generator().manual_seed(ranks.rank))
        expected = ranks.all_to_all(rows, sent, received).wait()
        planning = two.channel("planning")
        assert two.channel("planning") is planning  # each has groups of its own
        relayed = planning.relayed(counts[ranks.rank][:, None])[:, 0].tolist()
        found = [
            two.all_to_all(rows, sent, received).wait(),
            two.all_to_all(rows, sent, received, relayed).wait(),
        ]
        return all(torch.equal(one, expected) for one in found), relayed

    results = in_process.run(work, nodes * ranks_of_node)
    assert all(equal for equal, _ in results)
    for rank, (_, relayed) in enumerate(results):
        node, place = divmod(rank, ranks_of_node)
        neighbours = slice(node * ranks_of_node, (node + 1) * ranks_of_node)
        assert relayed == counts[neighbours, place::ranks_of_node].flatten().tolist()


@pytest.mark.parametrize("here", ["1", "3", "4"])
def test_one_node_or_one_rank_each_or_unequal_ones_go_in_one_stage(monkeypatch, here):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert all(in_process.run(lambda ranks: two_stages.over(ranks) is ranks, 4))
    with pytest.raises(ValueError, match="two_stages' needs several hosts with equally many ranks"):
        in_process.run(lambda ranks: two_stages.over(ranks, required=True), 4)


def test_ranks_that_are_not_numbered_host_by_host_go_in_one_stage(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")  # so of all threads, in place of 0 1 0 1
    assert all(in_process.run(lambda ranks: two_stages.over(ranks) is ranks, 4))


def test_one_rank_relays_nothing():
    assert OneRank().relayed(torch.ones(1, 3, dtype=torch.int64)).shape == (0, 3)


def work_of_a_rank(environment):
    os.environ.update(environment)
    torch.set_num_threads(1)
    ranks = process_group.start(timeout=20)
    two = two_stages.over(ranks, required=True)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for kind in ("gaps", "nothing"):
            counts = counts_of(4, kind)
            sent, received = counts[ranks.rank].tolist(), counts[:, ranks.rank].tolist()
            rows = (torch.arange(3 * sum(sent)).view(-1, 3) + 100 * ranks.rank).to(dtype)
            expected = ranks.all_to_all(rows, sent, received).wait()
            assert torch.equal(two.all_to_all(rows, sent, received).wait(), expected)
    full = [5] * 4
    rows, messages = torch.ones(20, 8), []
    for exchange, relayed in ((ranks, ()), (two, full)):
        before = ranks.sent.messages
        exchange.all_to_all(rows, full, full, relayed).wait()
        messages.append(ranks.sent.messages - before)
    assert messages == [3, 1 + 1], messages

    weights = []
    for exchange in (ranks, two):
        embedding = Embedding(
            mixed_tables(Adagrad(lr=0.05)), seed=3, ranks=exchange, sharding=placements("mixed", 4),
            micro_batches=2, wire_dtype="bfloat16",
        )  # fmt: skip
        train(embedding, batches_of("single", 2), 2)
        weights.append([store.records.clone() for store in embedding.stores])
    assert all(map(torch.equal, *weights))

    ranks.barrier()
    if ranks.rank == 3:
        os._exit(0)
    with pytest.raises(RankLost, match="^lost another of the 4 ranks") as lost:
        while True:
            two.all_to_all(rows, full, full, full).wait()
    assert "\n" not in str(lost.value)
    os._exit(1)  # what Gloo has left cannot be ended in order


def test_by_gloo_four_processes_on_two_nodes_have_equal_bits_and_miss_one_that_is_lost():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "4"}
    places = [{"RANK": str(r), "LOCAL_RANK": str(r % 2), "LOCAL_WORLD_SIZE": "2"} for r in range(4)]
    ranks = [forked.Forked(work_of_a_rank, meet | place) for place in places]
    begun = time.monotonic()
    assert [rank.end() for rank in ranks] == [1, 1, 1, 0]
    assert not any(rank.error for rank in ranks), [rank.error for rank in ranks]
    assert time.monotonic() - begun < 100
