"""Rows under dense optimizers: torch.optim over whole tables, with steps made when rows are read.

In memory, behind caches, in files and on ranks; evaluations, exports and checkpoints change nothing.
"""

import dataclasses
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from hotrows import Batch, DenseAdam, DenseAdamW, DenseSGD, Embedding, LazyAdam, Table, optim
from hotrows.engine import checkpoint
from hotrows.engine.distributed.in_process import run
from hotrows.engine.storage.cache import Cache
from hotrows.engine.storage.store import HostStore, MemoryStore
from hotrows.ops import deferred
from hotrows.ops.deferred import Target
from hotrows.ops.deferred.history import StepHistory
from hotrows.ops.plan import Moves
from hotrows.ops.record import RecordLayout
from tests.support import cached
from tests.support.cached import POLICIES, caching_of, same
from tests.support.embeddings import (
    batches_of,
    jagged_batch,
    loss_of,
    mixed_tables,
    placements,
    single_batch,
    train,
)
from tests.support.reference_engine import ReferenceEngine
from tests.support.sharded import whole_rows

OPTIMIZERS = [
    DenseAdam(lr=0.01, weight_decay=0.01),
    DenseAdam(lr=0.01, eps=1e-3),
    DenseAdamW(lr=0.01, weight_decay=0.1),
    DenseSGD(lr=0.001, momentum=0.9, weight_decay=0.01),
    DenseSGD(lr=0.001, momentum=0.8, nesterov=True),
    DenseSGD(lr=0.001, weight_decay=0.1),
]
L2 = OPTIMIZERS[0]


def plain_optimizer(kind, parameters):
    """The optimizer of PyTorch that a dense row optimizer stands for."""
    if isinstance(kind, DenseSGD):
        return torch.optim.SGD(
            parameters, kind.lr, kind.momentum, weight_decay=kind.weight_decay, nesterov=kind.nesterov
        )
    plain = torch.optim.AdamW if isinstance(kind, DenseAdamW) else torch.optim.Adam
    return plain(parameters, kind.lr, (kind.beta1, kind.beta2), kind.eps, kind.weight_decay)


class WholeTables(ReferenceEngine):
    """An `nn.EmbeddingBag` with dense gradients for each table, and one optimizer of PyTorch."""

    def __init__(self, tables, weights, dtype):
        lazy = [dataclasses.replace(table, optimizer=LazyAdam()) for table in tables]
        super().__init__(lazy, weights)
        for bag in self.bags.values():
            bag.sparse = False
            bag.to(dtype)
        self.kind = tables[0].optimizer
        parameters = [bag.weight for bag in self.bags.values()]
        self.optimizer = plain_optimizer(self.kind, parameters)

    def step(self, batch, scale):
        for group in self.optimizer.param_groups:
            group["lr"] = self.kind.lr * scale
        vectors = self.vectors(batch)
        vectors["user"] = vectors["user", "vector"]
        (10 * loss_of(vectors, 0) / max(batch.size, 1)).backward()
        self.optimizer.step()
        for bag in self.bags.values():  # as the engine: no gradient is a gradient of zero
            bag.weight.grad.zero_()


def schedule(step):
    return (1.0, 0.3, 0.0, 2.0)[step // 3 % 4]


def check_against_pytorch(optimizer, batches):
    tables = mixed_tables(optimizer)
    embedding = Embedding(tables, seed=3)
    first = {table.name: embedding.weights(table.name).clone() for table in tables}
    references = [WholeTables(tables, first, dtype) for dtype in (torch.float64, torch.float32)]
    for step, batch in enumerate(batches):
        vectors = embedding.lookup(plan := embedding.plan(batch, step))
        (10 * loss_of(vectors, 0) / max(batch.size, 1)).backward()
        embedding.update(plan, vectors, schedule(step))
        for reference in references:
            reference.step(batch, schedule(step))
    exact, plain = (
        {name: bag.weight.detach().double() for name, bag in reference.bags.items()}
        for reference in references
    )
    for name, expected in exact.items():
        actual = embedding.weights(name).double()
        away = (plain[name] - expected).abs().max()
        assert (actual - expected).abs().max() <= 2 * away + 1e-6 * expected.abs().max(), name
        assert not torch.equal(actual, first[name].double())


@pytest.mark.few(5)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("make", [single_batch, jagged_batch])
def test_training_equals_pytorch_on_whole_tables(optimizer, make):
    """Few of 300 rows a batch, duplicates, empty bags, an empty batch, rates that change and vanish."""
    torch.manual_seed(1)
    check_against_pytorch(optimizer, [make(size) for size in (5, 3, 0, 7, 5, 1, 2, 6) * 2])


@pytest.mark.parametrize(("optimizer", "gap"), [*product(OPTIMIZERS[:3], (1, 2)), (L2, 1000)])
def test_a_row_that_is_not_read_for_long_catches_up(optimizer, gap):
    """Row 2 is read, then row 5 alone for a while, row 2 again; row 7 never."""
    embedding = Embedding([Table("a", 8, 3, ("a",), optimizer=optimizer)], seed=3)
    plain = torch.nn.Parameter(embedding.weights("a").double().clone())
    stepping, batches = plain_optimizer(optimizer, [plain]), {}
    for id in (2, 5):
        batches[id] = Batch(("a",), torch.tensor([id]), torch.zeros(1, 2))
    for step, id in enumerate([2, *[5] * gap, 2, 5]):
        vectors = embedding.lookup(plan := embedding.plan(batches[id], step))
        vectors["a"].sin().sum().backward()
        embedding.update(plan, vectors)
        assert_close(vectors["a"].detach()[0].double(), plain.detach()[id], rtol=1e-5, atol=1e-6)
        stepping.zero_grad()
        plain[id].sin().sum().backward()
        stepping.step()
    assert_close(embedding.weights("a").double(), plain.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_in_float64_the_steps_of_an_optimizer_are_those_of_pytorch_to_rounding(optimizer):
    """The numbers that the engine records, under the kernels of its rows, with a rate that changes."""
    torch.manual_seed(0)
    weights = torch.randn(40, 3, dtype=torch.float64)
    plain = torch.nn.Parameter(weights.clone())
    stepping = plain_optimizer(optimizer, [plain])
    states = tuple(torch.zeros_like(weights) for _ in range(optimizer.state_width(3) // 3))
    last, steps = torch.full((40,), -1, dtype=torch.int32), StepHistory()
    for step in range(60):
        rows = torch.randperm(20)[:4].sort().values  # half of the rows get no gradient
        grad = torch.randn(4, 3, dtype=torch.float64)
        steps.record(tuple(optim.hyper_parameters(optimizer, step, schedule(step))))
        target = Target(weights, states, last, steps.steps, steps.first, steps.now, steps.first_decay)
        order = torch.arange(5, dtype=torch.int32)
        deferred.update(
            optimizer.deferred, [target], rows, torch.tensor([0, 4]), order[:4], order, None, None, grad,
            torch.ones(1, dtype=torch.float64),
        )  # fmt: skip
        steps.now += 1
        plain.grad = torch.zeros_like(plain).index_copy(0, rows, grad)
        stepping.param_groups[0]["lr"] = optimizer.lr * schedule(step)
        stepping.step()
    target = Target(weights, states, last, steps.steps, steps.first, steps.now, steps.first_decay)
    deferred.catch_up_all(optimizer.deferred, [target])
    assert_close(weights, plain.detach(), rtol=1e-11, atol=1e-13)


# ---- reading changes nothing


def test_evaluations_and_reading_weights_change_no_bit():
    batches = batches_of("jagged", 12)
    quiet, read = (Embedding(mixed_tables(L2), seed=3) for _ in range(2))
    for step, batch in enumerate(batches):
        train(quiet, [batch])
        before = [store.records.clone() for store in read.stores]
        with torch.no_grad():
            vectors = read.lookup(read.plan(batches[step - 5]))
            present = read.weights("user")[batches[step - 5].ids[:1]]
        assert same([store.records for store in read.stores], before)
        assert present.shape[1] == vectors["user"].shape[1]
        train(read, [batch])
    assert same([s.records for s in quiet.stores], [s.records for s in read.stores])


def test_what_is_evaluated_is_what_the_next_training_lookup_reads():
    embedding, batches = Embedding(mixed_tables(L2), seed=3), batches_of("single", 9)
    train(embedding, batches[:8])
    plan = embedding.plan(batches[8], 8)
    with torch.no_grad():
        evaluated = [leaf.clone() for leaf in embedding.lookup(plan).leaves]
    assert same(evaluated, [leaf.detach() for leaf in embedding.lookup(plan).leaves])


def test_all_rows_may_catch_up_at_any_time():
    swept, plain = (Embedding(mixed_tables(L2), seed=3) for _ in range(2))
    for batch in batches_of("single", 10, size=4):
        train(swept, [batch])
        swept.catch_up()
        assert swept.packed.dense_rows.num_recorded == 0
        train(plain, [batch])
    for table in plain.tables:
        assert_close(swept.weights(table.name), plain.weights(table.name), rtol=1e-5, atol=1e-7)


# ---- where rows are


def _with(optimizer, dtype="float32"):
    kept = cached.tables(optimizer, dtype)
    return [dataclasses.replace(table, optimizer=optimizer) for table in kept]


def _behind(caching, plan_depth=2):
    embedding = Embedding(_with(L2), seed=3, caching=caching)
    try:

        def evaluate(step):
            with torch.no_grad():
                embedding.lookup(embedding.plan(cached.stream()[step - 3]))

        losses = cached.train_behind_a_cache(embedding, cached.stream(), plan_depth, pause=evaluate)
        embedding.packed.catch_up()
        return losses, cached.records(embedding)
    finally:
        embedding.close()


@pytest.fixture(scope="module")
def in_memory():
    embedding = Embedding(_with(L2), seed=3)
    losses = cached.train_plainly(embedding, cached.stream())
    embedding.packed.catch_up()
    return losses, cached.records(embedding)


@pytest.mark.few(5)
@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[5]], ids=repr)
@pytest.mark.parametrize("share", [0.0, 0.15, 1.5])
@pytest.mark.parametrize("store", ["memory", "file"])
def test_a_cache_changes_no_bit(in_memory, tmp_path, policy, share, store):
    """share 0: every batch has more rows than slots, and goes through the cache."""
    path = tmp_path / "store" if store == "file" else None
    like = Embedding(_with(L2), seed=3)
    losses, records = _behind(caching_of(share, policy, path=path, like=like))
    assert same(losses, in_memory[0])
    assert same(records, in_memory[1])


@pytest.mark.parametrize("optimizer", [DenseAdam(lr=0.01), OPTIMIZERS[3]], ids=str)
def test_a_cache_changes_no_bit_of_optimizers_without_decay(optimizer):
    batches, like = cached.stream(12), Embedding(_with(optimizer), seed=3)
    plain = cached.train_plainly(like, batches)
    behind = Embedding(_with(optimizer), seed=3, caching=caching_of(0.15, like=like))
    assert same(cached.train_behind_a_cache(behind, batches), plain)


@pytest.mark.parametrize("name", ["rows", "columns", "replicated", "mixed"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_ranks_equal_one_rank(name, micro_batches):
    tables, batches = mixed_tables(L2), batches_of("single", 6)
    alone = Embedding(tables, seed=3)
    train(alone, batches)
    alone.catch_up()

    def work(ranks):
        embedding = Embedding(
            tables, seed=3, ranks=ranks, sharding=placements(name, 2), micro_batches=micro_batches
        )
        train(embedding, batches, micro_batches)
        embedding.catch_up()
        return embedding

    actual, expected = whole_rows(run(work, 2)), whole_rows([alone])
    for table, parts in expected.items():
        for value, wanted in zip(actual[table], parts, strict=True):
            assert_close(value, wanted, rtol=3e-5, atol=3e-6)


def test_packs_in_parts_change_no_bit():
    whole, parts = (Embedding(mixed_tables(L2), seed=3, pack_parts=n) for n in (1, 2))
    batches = batches_of("jagged", 8)
    assert torch.equal(train(whole, batches), train(parts, batches))


# ---- checkpoints


def test_a_checkpoint_stores_rows_as_they_are_and_the_steps_that_they_miss(tmp_path):
    batches, model = batches_of("single", 16), torch.nn.Linear(1, 1)
    whole, cut, resumed = (Embedding(mixed_tables(L2), seed=3) for _ in range(3))
    train(whole, batches[:9])
    train(cut, batches[:9])
    name = checkpoint.save(tmp_path, cut, model, checkpoint.State(9, {}, {"0.step": torch.ones(1)}))
    state = checkpoint.load(tmp_path / "checkpoints" / name, resumed, model)
    assert set(state.tensors) == {"0.step"}
    for table in whole.tables:
        assert torch.equal(resumed.weights(table.name), whole.weights(table.name))
    assert torch.equal(train(resumed, batches[9:]), train(whole, batches[9:]))


def test_records_in_chunks_are_up_to_date():
    embedding = Embedding(mixed_tables(L2), seed=3)
    train(embedding, batches_of("single", 9, size=3))
    (records,) = embedding.packed.record_chunks("item")
    assert torch.equal(records.weights, embedding.weights("item"))
    assert (records.step == 9).all()


@pytest.mark.parametrize(
    ("saved", "loaded"), [(L2, LazyAdam(per_row_step=True)), (LazyAdam(per_row_step=True), L2)]
)
def test_lazy_and_dense_rows_are_not_taken_for_each_other(tmp_path, saved, loaded):
    model = torch.nn.Linear(1, 1)
    name = checkpoint.save(tmp_path, Embedding(mixed_tables(saved)), model, checkpoint.State(0, {}, {}))
    with pytest.raises(ValueError, match="were trained by .*, which counts the steps of a row"):
        checkpoint.load(tmp_path / "checkpoints" / name, Embedding(mixed_tables(loaded)), model)


def test_new_ids_begin_where_they_come_in():
    embedding = Embedding([Table("a", 10, 3, ("a",), optimizer=L2)], seed=3)
    first = embedding.weights("a").clone()
    for step in range(5):
        batch = Batch(("a",), torch.tensor([1]), torch.zeros(1, 2))
        vectors = embedding.lookup(plan := embedding.plan(batch, step))
        vectors["a"].sum().backward()
        embedding.update(plan, vectors)
    embedding.catch_up({"a": 6})
    assert torch.equal(embedding.weights("a")[6:], first[6:])
    assert (embedding.weights("a")[:6] != first[:6]).all()


# ---- what is refused


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int4"])
def test_weights_of_16_bits_are_refused(dtype):
    with pytest.raises(ValueError, match="'a': dense_adam needs float32 weights, not"):
        Embedding([Table("a", 10, 4, ("a",), dtype=dtype, optimizer=L2)])


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="nesterov needs a momentum"):
        DenseSGD(nesterov=True)
    with pytest.raises(ValueError, match="dense_adamw's beta2 must be from 0 to below 1"):
        DenseAdamW(beta2=1)


def test_a_row_that_is_written_on_its_way_into_a_slot_arrives_as_it_was_written():
    """All rows catch up while others are between the store and their slots."""
    store = HostStore([MemoryStore.empty(RecordLayout(1), 5)])
    store.stores[0].records.zero_()
    cache, none = Cache(2, (4,), store), torch.empty(0, dtype=torch.int64)
    transfer = cache.collect(Moves(torch.tensor([1, 3]), torch.tensor([0, 1]), none, none))
    cache.write(torch.tensor([3, 4]), torch.full((2, 4), 7, dtype=torch.uint8))
    cache.insert(transfer)
    for read in (cache.read(torch.arange(5)), store.stores[0].records):
        assert read[:, 0].tolist() == [0, 0, 0, 7, 7]
    assert cache.arenas[0][:, 0].tolist() == [0, 7]
