"""The engine against an `nn.EmbeddingBag` per table and `torch.optim`: forward, backward, ten steps."""

import pytest
import torch
from torch.testing import assert_close

from hotrows import SGD, Adagrad, Batch, Constant, Embedding, LazyAdam, Normal, Table
from tests.support.embeddings import FEATURES, OPTIMIZERS, jagged_batch, mixed_tables, single_batch
from tests.support.reference_engine import ReferenceEngine


def engines(tables, pooling=None):
    engine = Embedding(tables, seed=3, pooling=pooling)
    weights = {table.name: engine.weights(table.name).float() for table in tables}
    return engine, ReferenceEngine(tables, weights, pooling)


def loss_of(vectors, reads):
    """Something that depends on every vector, each in its own way."""
    terms = [((k + 1) * vectors[key]).sin().sum() for k, key in enumerate(reads)]
    return torch.stack(terms).sum() / 100


def compare(engine, reference, batches):
    reads = [(feature, t.role) for t in reference.tables for feature in t.features]
    for step, batch in enumerate(batches):
        plan = engine.plan(batch, step)
        vectors, expected = engine.lookup(plan), reference.vectors(batch)
        for key in reads:
            assert_close(vectors[key], expected[key], rtol=1e-4, atol=1e-5)
        loss_of(vectors, reads).backward()
        loss_of(expected, reads).backward()
        engine.update(plan, vectors)
        reference.update()
    for table in reference.tables:
        trained = reference.bags[table.name].weight
        assert_close(engine.weights(table.name), trained.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: repr(o)[:40])
def test_ten_steps_equal_plain_pytorch(optimizer):
    engine, reference = engines(mixed_tables(optimizer))
    compare(engine, reference, [single_batch(size) for size in (33, 64, 1, 17, 64, 9, 64, 64, 5, 2)])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: repr(o)[:40])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_several_ids_or_none_equal_plain_pytorch(optimizer, weighted):
    engine, reference = engines(mixed_tables(optimizer), pooling={"item": "mean", "shop": "mean"})
    compare(engine, reference, [jagged_batch(size, weighted) for size in (20, 1, 33, 64)])


def test_an_empty_batch_changes_nothing():
    engine = Embedding(mixed_tables(LazyAdam()))
    before = [store.records.clone() for store in engine.stores]
    plan = engine.plan(single_batch(0))
    vectors = engine.lookup(plan)
    assert vectors.stack("vector", ["user", "shop"]).shape == (0, 2, 16)
    (vectors["user"].sum() + vectors["item"].sum()).backward()
    engine.update(plan, vectors)
    assert all(torch.equal(a, s.records) for a, s in zip(before, engine.stores, strict=True))


def test_what_was_not_looked_up_is_named():
    engine = Embedding(mixed_tables(SGD()))
    plan = engine.plan(single_batch(4))
    vectors = engine.lookup(plan)
    assert plan.step == 0 and set(engine.features) == set(FEATURES)
    with pytest.raises(LookupError, match="no sequence feature 'user' was looked up"):
        vectors.lengths("user")
    with pytest.raises(LookupError, match="'nobody'"):
        vectors["nobody"]


def test_tables_of_equal_attributes_share_a_pack_and_a_leaf():
    engine = Embedding(mixed_tables(SGD()))
    assert [[t.name for t in pack.tables] for pack in engine.packs] == [
        ["user", "shop"], ["item"], ["user.linear", "shop.linear"],
    ]  # fmt: skip
    vectors = engine.lookup(engine.plan(single_batch(8)))
    assert [list(leaf.shape) for leaf in vectors.leaves] == [[16, 16], [16, 7], [16, 1]]
    assert "pack-0: 2 tables, 53 rows, dim 16" in engine.describe()


def test_packs_that_read_the_same_rows_share_one_plan():
    features = ("a", "b")
    tables = [Table(f"{f}.{d}", 9, d, (f,), role=str(d)) for d in (4, 1) for f in features]
    engine = Embedding(tables)
    plan = engine.plan(Batch(features, torch.randint(0, 9, (6,)), torch.zeros(3, 0)))
    assert len(plan.packs) == 2 and plan.packs[0] is plan.packs[1]


def test_features_in_order_are_a_view_of_the_leaf():
    engine = Embedding(mixed_tables(SGD()))
    vectors = engine.lookup(engine.plan(single_batch(8)))
    together = vectors.stack("vector", ["user", "shop"])
    assert together.data_ptr() == vectors.leaves[0].data_ptr()
    swapped = vectors.stack("vector", ["shop", "user"])
    assert torch.equal(swapped, together.flip(1))


def test_lookup_under_no_grad_has_no_leaf_to_train():
    engine = Embedding(mixed_tables(SGD()))
    with torch.no_grad():
        vectors = engine.lookup(engine.plan(single_batch(8)))
    assert not any(leaf.requires_grad for leaf in vectors.leaves)


def test_a_pack_the_loss_does_not_use_keeps_its_rows():
    engine = Embedding(mixed_tables(LazyAdam()))
    before = engine.stores[1].records.clone()
    plan = engine.plan(single_batch(8))
    vectors = engine.lookup(plan)
    vectors["user"].sum().backward()
    engine.update(plan, vectors)
    assert torch.equal(engine.stores[1].records, before)


def test_one_thread_and_many_give_the_same_bits(threads):
    results = []
    for count in (1, 2, 4):
        threads(count)
        torch.manual_seed(0)
        engine = Embedding(mixed_tables(Adagrad()))
        for step in range(5):
            plan = engine.plan(single_batch(300), step)
            vectors = engine.lookup(plan)
            sum(leaf.square().sum() for leaf in vectors.leaves).backward()
            engine.update(plan, vectors)
        results.append([store.records for store in engine.stores])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_sequences_stay_apart_and_share_their_items_table():
    table = Table("item", 40, 4, ("item", "history"), optimizer=SGD(lr=1.0))
    engine = Embedding([table], sequences=["history"])
    ids = torch.tensor([5, 6, 7, 5, 5, 9])  # item: 5 6 7; history: [5, 5], [], [9]
    offsets = torch.tensor([0, 1, 2, 3, 5, 5, 6])
    plan = engine.plan(Batch(("item", "history"), ids, torch.zeros(3, 0), offsets=offsets))
    before = engine.weights("item").clone()
    vectors = engine.lookup(plan)
    values, starts = vectors.sequence("history")
    assert starts.tolist() == [0, 2, 2, 3]
    assert torch.equal(values, before[[5, 5, 9]])
    assert torch.equal(vectors["item"], before[[5, 6, 7]])
    (values.sum() + vectors["item"].sum()).backward()
    engine.update(plan, vectors)
    times_read = {5: 3, 6: 1, 7: 1, 9: 1}
    for row, times in times_read.items():
        assert_close(engine.weights("item")[row], before[row] - times)


@pytest.mark.parametrize("narrow", ["bfloat16", "float16", "int8", "int4"])
def test_narrow_weights_train_close_to_float32(narrow):
    runs = []
    for dtype in ("float32", narrow):
        torch.manual_seed(1)
        engine = Embedding([Table("t", 20, 16, ("f",), dtype=dtype, optimizer=Adagrad(lr=0.05))])
        for step in range(200):
            plan = engine.plan(Batch(("f",), torch.randint(0, 20, (64,)), torch.zeros(64, 0)), step)
            vectors = engine.lookup(plan)
            (vectors["f"] - 0.7).square().mean().backward()
            engine.update(plan, vectors)
        runs.append(engine.weights("t").float())
    # The weights of a row of integers have one step, here of 2^-7 or 2^-3.
    atol = {"int8": 0.06, "int4": 0.6}.get(narrow, 0.02)
    assert_close(runs[0], runs[1], atol=atol, rtol=0.02)
    assert (runs[0] - runs[1]).abs().mean() < 0.15


def test_tables_begin_the_same_however_they_are_packed():
    alone = Embedding([Table("b", 9, 4, ("b",), initializer=Normal(0.1))], seed=5)
    packed = Embedding([Table(n, 9, 4, (n,), initializer=Normal(0.1)) for n in ("a", "b")], seed=5)
    assert torch.equal(alone.weights("b"), packed.weights("b"))
    assert not torch.equal(packed.weights("a"), packed.weights("b"))


@pytest.mark.parametrize("jagged", [False, True])
def test_an_id_outside_its_table_is_named(jagged):
    engine = Embedding([Table("a", 9, 4, ("a",)), Table("b", 5, 4, ("b",))])
    ids = torch.tensor([0, 8, 3, 4, 5, 1])
    offsets = torch.arange(7) if jagged else None
    batch = Batch(("a", "b"), ids, torch.zeros(3, 0), offsets=offsets, first_sample=1000)
    with pytest.raises(ValueError, match=r"'b' has id 5 in sample 1,001, .* holds ids 0 to 4"):
        engine.plan(batch)
    ids[4] = -1
    with pytest.raises(ValueError, match=r"'b' has id -1 in sample 1,001"):
        engine.plan(batch)


def test_a_feature_that_the_batch_lacks_is_named():
    engine = Embedding([Table("a", 9, 4, ("a",))])
    with pytest.raises(ValueError, match=r"reads features \['a'\], but the batch has only \['b'\]"):
        engine.plan(Batch(("b",), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 0)))


def test_ids_of_the_wrong_type_or_number_are_refused():
    with pytest.raises(ValueError, match=r"ids must be int64, not torch.float32"):
        Batch(("a",), torch.zeros(2), torch.zeros(2, 0))
    with pytest.raises(ValueError, match=r"offsets must be int64, not torch.int32: use offsets.long"):
        Batch(("a",), torch.zeros(2).long(), torch.zeros(2, 0), offsets=torch.tensor([0, 1, 2]).int())
    with pytest.raises(ValueError, match=r"1 features of 2 samples need 2 ids, not 3"):
        Batch(("a",), torch.zeros(3, dtype=torch.int64), torch.zeros(2, 0))


def test_plans_carry_size_and_step_on_one_rank():
    engine = Embedding(mixed_tables(SGD()))
    plan = engine.plan(single_batch(8), step=7)
    assert (plan.step, plan.batch_size, plan.share) == (7, 8, 1.0)
    for part in plan.packs:
        assert torch.equal(part.slots, part.rows)


def test_weight_decay_by_count_is_divided_by_how_often_an_id_stands_in_the_data():
    table = Table("t", rows=4, dim=3, features=("a",), initializer=Constant(1.0))
    engine = Embedding([table], optimizer=SGD(lr=1.0, weight_decay=0.5, decay_by_count=True))
    batch = Batch(("a",), torch.tensor([1, 3, 3]), torch.empty(3, 0))
    plan = engine.plan(batch)
    vectors = engine.lookup(plan)
    (vectors["a"].sum() * 0).backward()
    with pytest.raises(ValueError, match="call set_counts first"):
        engine.update(plan, vectors)
    engine.set_counts({"t": torch.tensor([7, 5, 9, 2])})
    engine.update(plan, vectors)
    assert engine.weights("t")[:, 0].tolist() == pytest.approx([1, 1 - 0.5 / 5, 1, 1 - 0.5 / 2])
    with pytest.raises(ValueError, match="no counts of table 't'"):
        engine.set_counts({})
