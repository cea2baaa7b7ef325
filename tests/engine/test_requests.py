"""Batches that have once what samples of a request share, against their expanded twins."""

import copy
from contextlib import closing

import pytest
import torch
from torch.testing import assert_close

from hotrows import SGD, Adagrad, Batch, Cross, Dynamic, Embedding, LazyAdam, Table, models
from hotrows.batch import RequestFeatures, samples, split
from hotrows.engine.caching import Caching
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.engine.stages import start
from hotrows.models import interests
from tests.models.looked_up import SMALL
from tests.support.requests import OWN, request_batch, schema, tables
from tests.support.sharded import whole_weights

POOLING = {"tags": "mean"}
CANDIDATES = {
    "eights": [8, 8, 8],
    "uneven": [3, 1, 5, 1, 2],
    "single samples": [1, 1, 1, 1],
    "one request": [4],
    "nothing": [],
}
SLOW = pytest.mark.slow
shapes = pytest.mark.parametrize("candidates", CANDIDATES.values(), ids=CANDIDATES)


def embedding(optimizer=None, dims=(8, 8), **options):
    return Embedding(
        tables(optimizer or Adagrad(lr=0.1), dims),
        seed=3,
        sequences=("history",),
        pooling=POOLING,
        **options,
    )


def test_an_expanded_batch_repeats_what_is_shared():
    shared = Batch(
        ("user", "history"), torch.tensor([5, 6, 1, 2, 3]), torch.empty(2, 0),
        offsets=torch.tensor([0, 1, 2, 4, 5]),
    )  # fmt: skip
    batch = Batch(
        ("item",), torch.tensor([7, 8, 9]), torch.zeros(3, 1),
        requests=RequestFeatures(shared, torch.tensor([0, 2, 3])),
    )  # fmt: skip
    expanded = batch.expanded()
    assert expanded.features == ("item", "user", "history") and expanded.requests is None
    assert expanded.ids.tolist() == [7, 8, 9, 5, 5, 6, 1, 2, 1, 2, 3]
    assert expanded.offsets.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 10, 11]
    assert batch.expanded(("user", "item", "history")).ids.tolist() == [5, 5, 6, 7, 8, 9, 1, 2, 1, 2, 3]


@shapes
def test_any_samples_of_a_batch_are_those_of_its_twin(candidates):
    batch = request_batch(candidates)
    twin = batch.expanded()
    for first in range(batch.size + 1):
        for end in range(first, batch.size + 1):
            part, expected = samples(batch, first, end).expanded(), samples(twin, first, end)
            assert torch.equal(part.ids, expected.ids) and torch.equal(part.offsets, expected.offsets)
            assert torch.equal(part.dense, expected.dense)
    assert sum(part.size for part in split(batch, 3)) == batch.size


def test_a_request_without_samples_is_refused():
    """Its vectors were silently those of the next request's samples."""
    with pytest.raises(ValueError, match="every request needs a sample, but request 2 has none"):
        request_batch([3, 1, 0, 2, 0])


def test_starts_of_requests_must_end_with_the_samples():
    shared = Batch(("user",), torch.tensor([5]), torch.empty(1, 0))
    with pytest.raises(ValueError, match="must end with the 3 samples of the batch, not with 2"):
        Batch(
            ("item",),
            torch.arange(3),
            torch.zeros(3, 1),
            requests=RequestFeatures(shared, torch.tensor([0, 2])),
        )


@shapes
@pytest.mark.pairs
@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("dims", [(8, 8), (8, 5)])
def test_all_vectors_have_the_bits_of_the_twin(candidates, lists, dims):
    engine, batch = embedding(dims=dims), request_batch(candidates, lists=lists)
    vectors, twin = engine.lookup(engine.plan(batch)), engine.lookup(engine.plan(batch.expanded()))
    assert vectors.requests is not None and twin.requests is None
    for feature in (*OWN, "user", "city", "tags"):
        assert torch.equal(vectors[feature], twin[feature]), feature
    assert torch.equal(vectors["user", "linear"], twin["user", "linear"])
    names = ["user", "item", "words", "tags"]
    assert torch.equal(vectors.stack("vector", names), twin.stack("vector", names))
    assert torch.equal(vectors.stack("linear"), twin.stack("linear"))
    assert torch.equal(vectors.joined(batch.dense), twin.joined(batch.dense))
    for one, expected in zip(vectors.sequence("history"), twin.sequence("history"), strict=True):
        assert torch.equal(one, expected)
    assert torch.equal(vectors.lengths("history"), twin.lengths("history"))
    users = vectors.requests["user"]
    assert len(users) == len(candidates) and torch.equal(vectors.repeated(users), twin["user"])
    if dims == (8, 8):
        assert torch.equal(vectors.stack("vector"), twin.stack("vector"))


def trained(engine, batches, weight_of=None):
    """The records after a step on each batch. weight_of: makes the gradient of every vector."""
    for step, batch in enumerate(batches):
        plan = engine.plan(batch, step)
        vectors = engine.lookup(plan)
        terms = [(k + 1) * vectors[name] for k, name in enumerate((*OWN, "user", "city", "tags"))]
        terms += [vectors["user", "linear"], vectors.sequence("history")[0]]
        loss = sum((weight_of or torch.ones_like)(term).mul(term).sum() for term in terms)
        loss.backward()
        engine.update(plan, vectors)
    return [store.records.clone() for store in engine.stores]


@shapes
@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.1), Adagrad(lr=0.1), LazyAdam(lr=0.01)], ids=lambda o: o.kind
)
def test_row_updates_have_the_bits_of_the_twin_where_sums_are_exact(candidates, optimizer):
    """Sums of small whole numbers have one result in any order: what is left is which rows they reach."""
    batches = [request_batch(candidates, seed) for seed in range(3)]
    records = trained(embedding(optimizer), batches)
    expected = trained(embedding(optimizer), [batch.expanded() for batch in batches])
    assert all(map(torch.equal, records, expected))


def test_row_updates_equal_the_twin_up_to_the_order_of_sums():
    candidates = CANDIDATES["uneven"]
    batches = [request_batch(candidates, seed) for seed in range(3)]
    engine, twin = embedding(), embedding()
    trained(engine, batches, torch.sin)
    trained(twin, [batch.expanded() for batch in batches], torch.sin)
    for table in engine.tables:
        assert_close(engine.weights(table.name), twin.weights(table.name), rtol=1e-5, atol=1e-6)


def test_an_id_outside_of_its_table_names_the_first_sample_of_the_request():
    batch = request_batch([3, 2, 4])
    batch.requests.shared.ids[1] = 99  # the user of request 1
    with pytest.raises(ValueError, match="'user' has id 99 in sample 3, but its table holds ids 0 to 39"):
        embedding().plan(batch)


def test_a_cache_changes_no_bit():
    batches = [request_batch([4, 1, 3, 4], seed) for seed in range(12)]
    expected, behind = embedding(), embedding(caching=Caching(fast_memory=4_000))

    def step(engine, batch, plan):
        vectors = engine.lookup(plan)
        sum((k + 1) * leaf.sin().sum() for k, leaf in enumerate(vectors.leaves)).backward()
        engine.update(plan, vectors)

    for number, batch in enumerate(batches):
        step(expected, batch, expected.plan(batch, number))
    fetched = 0
    with closing(start(behind, enumerate(batches), plan_depth=2)) as runner:
        for work in runner:
            step(behind, work.item.batch, work.item.plan)
            fetched += behind.cached_tables.traffic(work.item.plan).rows_in
    assert fetched > sum(group.rows for group in behind.groups)
    for table in expected.tables:
        assert torch.equal(expected.weights(table.name), behind.weights(table.name))


def test_crosses_and_dynamic_features_train_the_expanded_batch():
    cross = Cross(("user", "item"), rows=50)
    declared = [Table("pairs", 50, 4, ("user*item",)), Table("item", 60, 4, ("item",))]
    dynamic = schema(user=Dynamic(capacity=60))
    keyed = [Table("user", 63, 4, ("user",), reserved=dynamic.reserved_of("user"))]
    batch = request_batch([3, 1, 2])
    for make in (
        lambda: Embedding(declared, crosses=(cross,)),
        lambda: Embedding(keyed, dynamic=DynamicIds.of_schema(dynamic, keyed)),
    ):
        done = []
        for read in (batch, batch.expanded()):
            engine = make()
            for step, one in enumerate(engine.resolved([read])):
                plan = engine.plan(one, step)
                vectors = engine.lookup(plan)
                assert vectors.requests is None
                sum(leaf.sin().sum() for leaf in vectors.leaves).backward()
                engine.update(plan, vectors)
            done.append(engine.weights(engine.tables[0].name).clone())
        assert torch.equal(*done)


@pytest.mark.parametrize("num_ranks, micro_batches", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize(
    "sharding", ["rows", *(pytest.param(s, marks=SLOW) for s in ("columns", "replicated"))]
)
def test_ranks_and_micro_batches_share_too(num_ranks, micro_batches, sharding):
    """Requests are cut between them; sums of small whole numbers are exact, so bits are the twin's."""
    batches = [request_batch([4, 1, 3, 2, 5], seed) for seed in range(2)]

    def work(ranks, batches=batches):
        engine = embedding(SGD(lr=0.5), ranks=ranks, micro_batches=micro_batches, sharding=sharding)
        for step, batch in enumerate(batches):
            plan = engine.plan(split(batch, ranks.num_ranks)[ranks.rank], step)
            for number in range(max(len(plan.micro_batches), 1)):
                vectors = engine.lookup(plan, number)
                assert (vectors.requests is None) == (batch.requests is None)
                (vectors["user"].sum() + 2 * vectors["item"].sum()).backward()
                vectors.sequence("history")[0].sum().backward()
                if number < micro_batches - 1:
                    engine.send_gradients(plan, number, vectors)
            engine.update(plan, vectors)
        return engine

    expanded = [batch.expanded() for batch in batches]
    twins = on_threads(lambda ranks: work(ranks, expanded), num_ranks)
    expected, weights = whole_weights(twins), whole_weights(on_threads(work, num_ranks))
    for table in ("user", "item"):
        assert torch.equal(weights[table], expected[table])


OPTIONS = {"dien": {"auxiliary": 0.0}, "deepfm": {"batch_norm": True}}
ON_THE_TWIN = [(name, "uneven") for name in sorted(SMALL)]
ON_THE_TWIN += [
    pytest.param(name, shape, marks=[SLOW] * (shape == "eights"))
    for name in ("din", "dien")
    for shape in CANDIDATES
    if shape != "uneven"
]


@pytest.mark.parametrize("name, shape", ON_THE_TWIN)
def test_every_model_trains_as_on_the_twin(name, shape):
    """Of what is looked up the logits; one step of rows, up to the order of sums; running statistics."""
    options = OPTIONS.get(name, {})
    declared = schema(("click", "buy") if name in ("mmoe", "ple", "esmm") else "click")
    torch.manual_seed(1)
    model = models.build(name, declared, **{**SMALL[name], **options}).train()
    batch = request_batch(CANDIDATES[shape], num_dense=1)
    done = []
    for read in (batch, batch.expanded()):
        engine = Embedding.for_model(model, declared, optimizer=SGD(lr=0.1), seed=2)
        plan = engine.plan(read)
        vectors = engine.lookup(plan)
        mine = copy.deepcopy(model)
        logits, loss = models.logits_and_loss(mine(vectors, read.dense))
        (logits.sin().sum() if loss is None else logits.sin().sum() + loss).backward()
        engine.update(plan, vectors)
        grads = [p.grad for p in mine.parameters() if p.grad is not None]
        rows = [engine.weights(t.name).float() for t in engine.tables]
        done.append((logits.detach(), grads, rows, list(mine.buffers())))
    (logits, grads, rows, averages), (expected, expected_grads, expected_rows, expected_averages) = done
    assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    assert_close(averages, expected_averages, rtol=1e-5, atol=1e-6)
    for one, other in zip([*grads, *rows], [*expected_grads, *expected_rows], strict=True):
        # Sums round by what is summed: of DIN's rows by 0.6e-5 layer by layer, by 1.5e-5 in the core.
        largest = max(1.0, float(other.abs().max()))
        assert_close(one / largest, other / largest, rtol=1e-4, atol=3e-5)


def test_the_auxiliary_loss_counts_a_request_for_each_of_its_samples(monkeypatch):
    """Negatives are drawn at random, once for a request: in their place, the same for both."""
    monkeypatch.setattr(interests._Shuffled, "apply", lambda elements, *_: torch.zeros_like(elements))
    declared, batch = schema(), request_batch([3, 1, 5, 2], seed=1, num_dense=1)
    torch.manual_seed(1)
    model = models.build("dien", declared, **SMALL["dien"]).train()
    losses = []
    for read in (batch, batch.expanded()):
        engine = Embedding.for_model(model, declared, seed=2)
        engine.weights("item").copy_(torch.linspace(-2, 2, 60 * 8).view(60, 8))
        losses.append(model(engine.lookup(engine.plan(read)), read.dense)[1])
    assert losses[0] > 0
    assert_close(*losses)
