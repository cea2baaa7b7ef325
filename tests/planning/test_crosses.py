"""Crosses: features hashed from the ids of others, made before rows are resolved."""

import pytest
import torch

from hotrows import SGD, Batch, Cross, Embedding, Table
from hotrows.engine.planning.crosses import append_crosses, bucket_of
from hotrows.engine.planning.packing import pack_tables
from hotrows.engine.planning.planner import Planner

CROSS = Cross(("user", "item"), 1000)
FEATURES = ("item", "hour", "user")


def batch(item, hour, user, **fields):
    return Batch(FEATURES, torch.tensor([*item, *hour, *user]), torch.zeros(len(item), 0), **fields)


def table(name, rows, dim=2, **attributes):
    return Table(name, rows, dim, (name,), optimizer=SGD(), **attributes)


def splitmix(ids, rows):
    """The bucket by Python's own numbers, as the page of the generator has it."""
    state = 0
    for of_one in ids:
        x = (state + (of_one + 1) * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        state = x ^ (x >> 31)
    signed = state - 2**64 if state >= 2**63 else state
    return signed % rows


def test_a_bucket_is_the_same_for_good():
    assert bucket_of(torch.tensor([[3, 4], [4, 3]]), 1000).tolist() == [133, 418]
    for ids in ([3, 4], [0, 0], [2**62, 5, 1], [-7, 2**63 - 1]):
        got = bucket_of(torch.tensor(ids)[:, None], 99_991)
        assert got.tolist() == [splitmix(ids, 99_991)]


def test_all_pairs_fill_the_buckets_evenly_and_within():
    pairs = torch.cartesian_prod(torch.arange(200), torch.arange(200)).t()
    counts = bucket_of(pairs, 1000).bincount()
    assert counts.numel() == 1000  # 40 a bucket: Poisson's variance is its mean
    assert 0.85 < counts.float().var() / counts.float().mean() < 1.15


def test_a_cross_stands_behind_the_features_of_the_batch():
    got = append_crosses(batch([1, 2], [7, 8], [5, 6]), [CROSS])
    assert got.features == (*FEATURES, "user*item")
    expected = bucket_of(torch.tensor([[5, 6], [1, 2]]), 1000)
    assert got.ids.tolist() == [1, 2, 7, 8, 5, 6, *expected.tolist()]


def test_features_around_those_crossed_may_be_lists():
    single = append_crosses(batch([1, 2], [7, 8], [5, 6]), [CROSS])
    ids = torch.tensor([1, 2, 7, 7, 7, 5, 6])  # three hours, then none
    lists = Batch(FEATURES, ids, torch.zeros(2, 0), offsets=torch.tensor([0, 1, 2, 5, 5, 6, 7]))
    got = append_crosses(lists, [CROSS, Cross(("item", "user"), 1000)])
    assert got.ids[7:9].tolist() == single.ids[6:].tolist()
    assert got.offsets.tolist() == [0, 1, 2, 5, 5, 6, 7, 8, 9, 10, 11]


def test_weights_of_ids_multiply():
    weights = torch.tensor([2.0, 3.0, 9.0, 9.0, 5.0, 0.0])
    got = append_crosses(batch([1, 2], [7, 8], [5, 6], weights=weights), [CROSS])
    assert got.weights[6:].tolist() == [10.0, 0.0]


def test_a_batch_without_samples_has_crosses_without_ids():
    for offsets in (None, torch.zeros(1, dtype=torch.int64)):
        none = Batch(FEATURES, torch.empty(0).long(), torch.zeros(0, 0), offsets=offsets)
        assert append_crosses(none, [CROSS]).ids.numel() == 0


def test_a_list_is_refused_where_the_batch_has_one():
    ids = torch.tensor([1, 2, 7, 8, 5, 6, 6])
    lists = Batch(
        FEATURES, ids, torch.zeros(2, 0), offsets=torch.tensor([0, 1, 2, 3, 4, 5, 7]), first_sample=40
    )
    with pytest.raises(ValueError, match="one id of feature 'user' in each sample, but sample 41 "):
        append_crosses(lists, [CROSS])
    with pytest.raises(ValueError, match="made of feature 'ad', but the batch has only"):
        append_crosses(lists, [Cross(("item", "ad"), 10)])


def test_a_cross_needs_several_features_and_a_row():
    for features, rows in ((("user",), 9), (("user", "user"), 9), (("user", "item"), 0)):
        with pytest.raises(ValueError, match="two or more different features and at least one row"):
            Cross(features, rows)


def test_plans_and_look_ahead_read_the_rows_of_crosses():
    packs = pack_tables([table("item", 10), table("user*item", 1000)])
    planner = Planner(packs, crosses=[CROSS])
    samples = batch([1, 2], [7, 8], [5, 6])
    buckets = bucket_of(torch.tensor([[5, 6], [1, 2]]), 1000)
    expected = [1, 10 + int(buckets[0]), 2, 10 + int(buckets[1])]
    (plan,), (rows,) = planner.plan(samples).packs, planner.rows(samples)
    assert rows.tolist() == plan.rows[plan.inverse.long()].tolist() == expected


@pytest.mark.parametrize("with_offsets", [False, True])
def test_an_id_outside_is_told_of_the_feature_that_has_it(with_offsets):
    packs = pack_tables([table("user*item", 1000, dim=1), table("item", 10), table("user", 10)])
    offsets = torch.arange(7) if with_offsets else None
    samples = batch([1, 2], [7, 8], [5, 66], offsets=offsets)
    with pytest.raises(ValueError, match="feature 'user' has id 66 in sample 1"):
        Planner(packs, crosses=[CROSS]).plan(samples)


def test_rows_of_crosses_are_looked_up_and_trained():
    engine = Embedding([table("user*item", 1000)], crosses=[CROSS])
    samples = batch([1, 2, 1], [7, 8, 9], [5, 6, 5])
    plan = engine.plan(samples)
    vectors = engine.lookup(plan)
    seen = vectors["user*item"]
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])
    before = seen.detach().clone()
    seen.sum().backward()
    engine.update(plan, vectors)
    after = engine.lookup(plan)["user*item"]
    twice = torch.tensor([[2.0, 2.0], [1.0, 1.0], [2.0, 2.0]])  # as often as a bucket was read
    torch.testing.assert_close(before - after, SGD().lr * twice)


def test_without_crosses_the_batch_is_as_it_was():
    samples = batch([1], [2], [3])
    assert append_crosses(samples, []) is samples
