"""Ranks in step: batches planned together, pauses and ends that no rank waits for in vain."""

import dataclasses
import time
from contextlib import closing

import pytest
import torch

from hotrows import Adagrad, Embedding
from hotrows.batch import split
from hotrows.engine import stages
from hotrows.engine.caching import Caching
from hotrows.engine.distributed.in_process import run
from hotrows.engine.planning.routing import RankSignals
from tests.support.embeddings import loss_of, mixed_tables, single_batch, train
from tests.support.sharded import whole_weights

CACHES = {
    "in memory": None,
    "cached": Caching(fast_memory=4000, in_flight=2),
    "small": Caching(fast_memory=700, in_flight=3),
}


def learn(embedding, plan, batch):
    vectors = embedding.lookup(plan)
    mean = loss_of(vectors, batch.first_sample) / max(batch.size, 1)
    (10 * mean * plan.share).backward()
    embedding.update(plan, vectors)


def mine(batches, ranks):
    return [(step, split(batch, ranks.num_ranks)[ranks.rank]) for step, batch in enumerate(batches)]


@pytest.fixture
def batches():
    torch.manual_seed(0)
    return [single_batch(24) for _ in range(12)]


@pytest.mark.few(4)
@pytest.mark.pairs
@pytest.mark.parametrize("plan_depth", [0, 1, 3])
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_planning_ahead_with_pauses_equals_training_in_turn(batches, num_ranks, kind, plan_depth):
    alone = Embedding(mixed_tables(Adagrad(lr=0.05)), seed=3)
    train(alone, batches)

    def work(ranks):
        embedding = Embedding(mixed_tables(Adagrad(lr=0.05)), seed=3, ranks=ranks, caching=CACHES[kind])
        runner = stages.start(embedding, iter(mine(batches, ranks)), plan_depth=plan_depth)
        with closing(runner):
            for step, work in enumerate(runner):
                time.sleep(0.002 * ranks.rank)  # ranks are never at the same place
                learn(embedding, work.item.plan, work.item.batch)
                if step in (3, 4, 8):
                    with runner.paused():
                        ranks.barrier()  # as an evaluation would
        return embedding

    for table, weights in whole_weights(run(work, num_ranks)).items():
        torch.testing.assert_close(weights, alone.weights(table), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("plan_depth", [0, 2])
def test_ranks_with_fewer_batches_go_on_with_empty_ones_until_all_end(batches, plan_depth, kind):
    """Rank 0 has 12 batches, rank 1 has 5, rank 2 one: as one rank with what they have together."""

    def work(ranks):
        embedding = Embedding(mixed_tables(Adagrad(lr=0.05)), seed=3, ranks=ranks, caching=CACHES[kind])
        numbered = mine(batches, ranks)[: (12, 5, 1)[ranks.rank]]
        trained = []
        with closing(stages.start(embedding, iter(numbered), plan_depth=plan_depth)) as runner:
            for work in runner:
                trained.append((work.item.batch.size, work.item.plan.global_size, work.item.plan.step))
                learn(embedding, work.item.plan, work.item.batch)
        return embedding, trained

    embeddings, trained = zip(*run(work, 3), strict=True)
    assert [len(steps) for steps in trained] == [12, 12, 12]
    assert trained[1][4] == (8, 16, 4) and trained[1][5:] == [(0, 8, step) for step in range(5, 12)]
    alone = Embedding(mixed_tables(Adagrad(lr=0.05)), seed=3)
    for step, batch in enumerate(batches):
        size = (24, 16, 8)[(step >= 1) + (step >= 5)]
        learn(alone, alone.plan(one := first(batch, size), step), one)
    for table, weights in whole_weights(embeddings).items():
        torch.testing.assert_close(weights, alone.weights(table), rtol=3e-5, atol=3e-6)


def first(batch, size):
    from hotrows.batch import samples

    return samples(batch, 0, size)


def test_a_rank_without_a_single_batch_says_so(batches):
    def work(ranks):
        embedding = Embedding(mixed_tables(Adagrad()), ranks=ranks)
        numbered = mine(batches, ranks) if ranks.rank == 0 else []
        with closing(stages.start(embedding, iter(numbered), plan_depth=0)) as runner:
            list(runner)

    with pytest.raises(ValueError, match="rank 1 has not a single batch"):
        run(work, 2)


@pytest.mark.parametrize("plan_depth", [0, 2])
def test_all_ranks_stop_before_the_same_batch(batches, plan_depth):
    def work(ranks):
        embedding = Embedding(mixed_tables(Adagrad()), ranks=ranks)
        signals = [0]
        runner = stages.start(
            embedding, iter(mine(batches, ranks)), plan_depth=plan_depth, signals=lambda: signals[0]
        )
        with closing(runner):
            for step, work in enumerate(runner):
                if work.item.plan.signals & RankSignals.STOP:
                    return step
                if step == 2 and ranks.rank == 1:
                    signals[0] = RankSignals.STOP
                learn(embedding, work.item.plan, work.item.batch)
        return None

    stopped = run(work, 2)
    assert stopped[0] == stopped[1] and 3 <= stopped[0] <= 2 + 1 + plan_depth + 1


def test_an_error_of_one_rank_ends_all(batches):
    def work(ranks):
        embedding = Embedding(mixed_tables(Adagrad()), ranks=ranks)
        numbered = mine(batches, ranks)
        if ranks.rank == 1:
            bad = dataclasses.replace(numbered[6][1], ids=numbered[6][1].ids + 1000)
            numbered[6] = (6, bad)
        runner = stages.start(embedding, iter(numbered), plan_depth=2)
        with closing(runner):
            try:
                for work in runner:
                    learn(embedding, work.item.plan, work.item.batch)
            except BaseException:
                runner.abandon()
                raise

    begun = time.perf_counter()
    with pytest.raises(ValueError, match="feature 'user' has id"):
        run(work, 2)
    assert time.perf_counter() - begun < 30
