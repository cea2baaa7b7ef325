"""Dynamic features on ranks: keys and ids are those of one rank, rows up to the order of sums."""

import dataclasses
from contextlib import closing

import pytest
import torch
from torch import nn

from hotrows import Batch
from hotrows.batch import split
from hotrows.dynamic import Dynamic
from hotrows.engine import checkpoint
from hotrows.engine.caching import Caching
from hotrows.engine.checkpoint.write import State
from hotrows.engine.distributed.in_process import run
from hotrows.engine.keys.partitions import partition_of
from hotrows.engine.stages import start
from hotrows.schema import MISSING_KEY
from tests.support import dynamic as support
from tests.support.cached import fast_memory


def schema(policy, partitions):
    return support.schema(dataclasses.replace(support.POLICIES[policy], partitions=partitions))


def train(embedding, batches, ranks=None, plan_depth=2, counts=None):
    """counts: how many batches each rank has."""
    mine = [split(batch, ranks.num_ranks)[ranks.rank] if ranks else batch for batch in batches]
    mine = mine[: counts[ranks.rank] if counts else None]
    with closing(start(embedding, enumerate(mine), plan_depth=plan_depth)) as runner:
        for work in runner:
            support.train(embedding, work.item.batch, work.item.plan)
    return embedding


def seen(embedding, batches):
    """The leaves that all keys of a stream read, those of no key among them; and the growth."""
    keys = torch.cat([batch.ids.view(4, -1) for batch in batches], 1)
    batch = Batch(support.FEATURES, keys.reshape(-1), torch.zeros(keys.shape[1], 2))
    with torch.no_grad():
        leaves = embedding.lookup(embedding.plan(batch)).leaves
    return leaves, embedding.dynamic.growth()


def on_ranks(of, batches, num_ranks, counts=None, plan_depth=2, caching=None, **options):
    """What every rank sees in the end, and the key tables of all."""

    def work(ranks):
        embedding = support.engine(of, ranks=ranks, caching=caching, **options)
        train(embedding, batches, ranks, plan_depth, counts)
        return seen(embedding, batches), embedding.dynamic.state()

    results = run(work, num_ranks)
    return [looked for looked, _ in results], {k: v for _, state in results for k, v in state.items()}


def assert_alike(looked, state, alone, batches):
    expected, growth = seen(alone, batches)
    for leaves, of_rank in looked:
        assert of_rank == growth
        for leaf, wanted in zip(leaves, expected, strict=True):
            torch.testing.assert_close(leaf, wanted, rtol=1e-4, atol=1e-5)
    wanted = alone.dynamic.state()
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(state[name], value), name


@pytest.mark.few(7)
@pytest.mark.pairs
@pytest.mark.parametrize("sharding", ["rows", "columns", "replicated", "tables"])
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("policy", support.POLICIES)
def test_ranks_train_as_one_does(policy, partitions, num_ranks, sharding):
    of, batches = schema(policy, partitions), support.stream(14)
    alone = train(support.engine(of), batches)
    assert_alike(*on_ranks(of, batches, num_ranks, sharding=sharding), alone, batches)


@pytest.mark.parametrize("plan_depth, share", [(0, 0.3), (2, 0.3), (2, 0)])
def test_ranks_train_alike_behind_caches(plan_depth, share):
    of, batches = schema("lru", 2), support.stream(14)
    alone = train(support.engine(of), batches)
    caching = Caching(fast_memory(support.engine(of), share))
    assert_alike(*on_ranks(of, batches, 2, None, plan_depth, caching), alone, batches)


@pytest.mark.parametrize("policy", ["lru", "ahead"])
def test_a_rank_with_fewer_batches_serves_keys_until_all_end(policy):
    of, batches = schema(policy, 3), support.stream(12)
    parts = [split(batch, 2)[: 2 if number < 5 else 1] for number, batch in enumerate(batches)]
    joined = [join(part) for part in parts]
    alone = train(support.engine(of), joined)
    assert_alike(*on_ranks(of, batches, 2, counts=(12, 5)), alone, batches)


def join(parts):
    ids = torch.cat([part.ids.view(4, -1) for part in parts], 1)
    return Batch(support.FEATURES, ids.reshape(-1), torch.zeros(ids.shape[1], 2))


def test_a_rank_without_a_single_batch_is_refused():
    of, batches = schema("lru", 1), support.stream(3)
    with pytest.raises(ValueError, match="rank 1 has not a single batch"):
        on_ranks(of, batches, 2, counts=(3, 0))


@pytest.mark.parametrize("dynamic", [support.POLICIES["lfu after 2"], Dynamic(evict="idle:4")])
def test_a_checkpoint_of_three_ranks_is_read_by_two_and_by_one(tmp_path, dynamic):
    """Without a capacity, too, where tables have room for a billion rows."""
    of = support.schema(dataclasses.replace(dynamic, partitions=4))
    batches = support.stream(16)
    alone = train(support.engine(of), batches)

    def first(ranks):
        embedding = train(support.engine(of, ranks=ranks), batches[:9], ranks)
        return checkpoint.save(tmp_path, embedding, nn.Linear(1, 1), State(9, {}, {}))

    folder = tmp_path / "checkpoints" / run(first, 3)[0]
    assert {file.name for file in folder.glob("keys*")} == {
        "keys.safetensors",
        "keys-1.safetensors",
        "keys-2.safetensors",
    }
    (described, *_) = checkpoint.key_tables(folder)
    assert described["name"] == "item" and described["live"] > 10

    def second(ranks):
        embedding = support.engine(of, ranks=ranks)
        checkpoint.load(folder, embedding, nn.Linear(1, 1))
        return finish(embedding, ranks)

    def finish(embedding, ranks):
        mine = [(9 + n, split(b, ranks.num_ranks)[ranks.rank]) for n, b in enumerate(batches[9:])]
        with closing(start(embedding, iter(mine))) as runner:
            for work in runner:
                support.train(embedding, work.item.batch, work.item.plan)
        return seen(embedding, batches), embedding.dynamic.state()

    for num_ranks in (1, 2):
        results = run(second, num_ranks)
        state = {name: value for _, part in results for name, value in part.items()}
        assert_alike([looked for looked, _ in results], state, alone, batches)


def test_keys_are_spread_over_partitions_and_each_holds_its_share():
    of = support.schema(Dynamic(capacity=10, evict="lru", partitions=4))
    keys = torch.arange(400).view(4, -1)
    keys[2] = 0
    embedding = train(
        support.engine(of), [Batch(support.FEATURES, keys.reshape(-1), torch.zeros(100, 2))]
    )
    ids, live = embedding.dynamic.keys.live("item")
    assert ids.tolist() == list(range(4, 14)), "2 unknown ids, and all of the capacity in use"
    assert partition_of(live, 4).bincount().tolist() == [3, 3, 2, 2]
    assert partition_of(torch.arange(40_000), 4).bincount().min() > 9_700
    missing = dataclasses.replace(support.stream(1)[0], ids=torch.full((48,), MISSING_KEY))
    missing.ids[24:36] = 0
    assert embedding.dynamic.find(missing).ids[:24].eq(1).all()


def test_a_checkpoint_of_other_partitions_is_refused(tmp_path):
    batches = support.stream(2)
    embedding = train(support.engine(schema("lru", 2)), batches)
    name = checkpoint.save(tmp_path, embedding, nn.Linear(1, 1), State(2, {}, {}))
    with pytest.raises(
        ValueError, match="partitions=1; saved are item/0 of 2, item/1 of 2, user"
    ) as error:
        checkpoint.load(
            tmp_path / "checkpoints" / name, support.engine(schema("lru", 1)), nn.Linear(1, 1)
        )
    assert "\n" not in str(error.value)
