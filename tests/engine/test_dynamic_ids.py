"""Dynamic features: the engine trains as the specification with rows in dicts does, bit for bit."""

import dataclasses
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from hotrows import Adagrad, Batch, Cross, DenseAdam, DenseAdamW, Embedding, LazyAdam, Table
from hotrows.dynamic import Dynamic
from hotrows.engine.caching import Caching
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.engine.stages import start
from hotrows.ops.record import layout_of, views
from hotrows.schema import MISSING_KEY, Schema, Sparse, Time
from tests.support import dynamic as support
from tests.support.cached import fast_memory
from tests.support.devices import KINDS, device_of


def train_in_stages(embedding, batches, plan_depth=2, end=None):
    with closing(start(embedding, enumerate(batches), plan_depth=plan_depth)) as runner:
        for step, work in enumerate(runner):
            if step == end:
                break
            support.train(embedding, work.item.batch, work.item.plan)
    return embedding


def train_in_line(embedding, batches):
    for step, batch in enumerate(embedding.resolved(batches)):
        support.train(embedding, batch, embedding.plan(batch, step))
    return embedding


@pytest.mark.few(3)
@pytest.mark.parametrize("name", support.POLICIES)
def test_training_in_memory_equals_rows_in_dicts(name):
    schema, batches = support.schema(support.POLICIES[name]), support.stream()
    expected = support.specification(name)
    support.assert_equal(train_in_line(support.engine(schema), batches), expected)
    support.assert_equal(train_in_stages(support.engine(schema, planning_threads=2), batches), expected)


@pytest.mark.few(3)
@pytest.mark.pairs
@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize("share", [0, 0.05, 0.3])
@pytest.mark.parametrize("plan_depth", [0, 2])
@pytest.mark.parametrize("name", ["lru", "ahead"])
def test_a_cache_changes_no_bit(name, plan_depth, share, store, tmp_path):
    """share 0: every batch bypasses the cache."""
    schema, batches = support.schema(support.POLICIES[name]), support.stream()
    size = fast_memory(support.engine(schema), share)
    caching = Caching(size, store if store == "memory" else f"file:{tmp_path}/rows")
    embedding = support.engine(schema, caching=caching)
    support.assert_equal(train_in_stages(embedding, batches, plan_depth), support.specification(name))
    embedding.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_trains_alike_with_a_cache_and_without(kind):
    schema, batches = support.schema(support.POLICIES["lru"]), support.stream(12)
    expected = support.DictTraining(schema).run(batches)
    with device_of(kind) as device:
        resident = train_in_stages(support.engine(schema, device=device), batches)
        rows = support.records_of(resident)
        host = support.engine(schema)
        for size in (8 * fast_memory(host, 0), fast_memory(host, 0.6)):
            embedding = support.engine(schema, device=device, caching=Caching(size))
            for name, records in support.records_of(train_in_stages(embedding, batches)).items():
                assert torch.equal(records, rows[name])
        state = resident.dynamic.state()
        assert torch.equal(state["item/keys"], expected.keys["item"].state()["keys"])
        for table in resident.tables:
            layout = layout_of(table).as_ints()
            for number, record in expected.records[table.name].items():
                pair = (views(r[None], layout).weights for r in (rows[table.name][number], record))
                torch.testing.assert_close(*pair)


@pytest.mark.parametrize("share", [None, 0.05, 0.3])
def test_micro_batches_change_sums_alone(share):
    schema, batches = support.schema(support.POLICIES["lru"]), support.stream()
    caching = None if share is None else Caching(fast_memory(support.engine(schema), share))
    whole = train_in_stages(support.engine(schema), batches)
    parts = train_in_stages(support.engine(schema, caching=caching, micro_batches=3), batches)
    assert torch.equal(*(e.dynamic.state()["item/keys"] for e in (whole, parts)))
    for table in whole.tables:
        torch.testing.assert_close(parts.weights(table.name), whole.weights(table.name))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_rounding_is_keyed_by_ids_and_steps_are_counted_from_a_birth(dtype):
    options = {"optimizer": LazyAdam(lr=0.01, per_row_step=True), "dtype": dtype}
    schema, batches = support.schema(support.POLICIES["lru"]), support.stream(12)
    expected = support.DictTraining(schema, **options).run(batches)
    support.assert_equal(train_in_stages(support.engine(schema, **options), batches), expected)


def first_values(embedding, p, new):
    return views(
        embedding.packed._initial_values[p].of_keys(new.ids, new.keys), embedding.packed._layouts[p]
    )


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("make", [DenseAdam, DenseAdamW], ids=lambda make: make.__name__)
def test_dense_optimizers_step_a_row_from_its_birth_on(make, share):
    """As PyTorch's optimizer of a whole table does, whose rows and moments begin anew with their keys."""
    optimizer = make(lr=0.01, weight_decay=0.1)
    schema, batches = support.schema(support.POLICIES["lru"]), support.stream(30)
    caching = None if share is None else Caching(fast_memory(support.engine(schema, optimizer), share))
    embedding = support.engine(schema, optimizer, caching=caching)
    (p,) = (p for p, pack in enumerate(embedding.packs) if pack.tables[0].name == "item")
    weights = embedding.weights("item").clone().requires_grad_()
    plain = getattr(torch.optim, make.__name__.removeprefix("Dense"))([weights], 0.01, weight_decay=0.1)
    num_born = 0
    for step, batch in enumerate(embedding.resolved(batches)):
        for new in (new for new in batch.new_ids if "item" in new.features):
            num_born += len(new.ids)
            with torch.no_grad():
                weights[new.ids] = first_values(embedding, p, new).weights
                for moment in ("exp_avg", "exp_avg_sq"):
                    plain.state[weights].get(moment, torch.zeros_like(weights))[new.ids] = 0
        columns = support.columns_of(batch)
        read = torch.stack([columns["item"], columns["last_item"]], 1).reshape(-1)
        plain.zero_grad(set_to_none=False)
        support.loss_of(p, weights[read]).backward()
        plain.step()
        support.train(embedding, batch, embedding.plan(batch, step))
        if step == 20:
            embedding.catch_up()
    assert num_born > 2 * len(embedding.dynamic.live(embedding.tables[2])[0]), "rows are used again"
    live = embedding.dynamic.live(embedding.packs[p].tables[0])[0]
    torch.testing.assert_close(embedding.weights("item")[live], weights.detach()[live])


@pytest.mark.parametrize("optimizer", [Adagrad(), DenseAdam(lr=0.01)], ids=lambda o: o.kind)
def test_where_nothing_is_evicted_a_key_trains_as_an_id_does(optimizer):
    """Keys 3 and up as ids of a table, and as keys: a row of the same bits for each."""
    draw = torch.Generator().manual_seed(0)
    batches = [
        Batch(("item",), torch.randint(3, 90, (15,), generator=draw), torch.zeros(15, 1))
        for _ in range(10)
    ]
    declared = [Table("item", 100, 6, ("item",), optimizer=optimizer)]
    static = Embedding(declared, seed=5)
    for step, batch in enumerate(batches):
        support.train(static, batch, static.plan(batch, step))
    of = support.Schema(features=(support.Sparse("item", dynamic=Dynamic(capacity=97)),))
    dynamic = Embedding(declared, seed=5, dynamic=support.DynamicIds.of_schema(of, declared))
    train_in_stages(dynamic, batches)
    state = dynamic.dynamic.state()
    keys, ids = state["item/keys"], state["item/ids"]
    assert set(keys.tolist()) == set(torch.cat([batch.ids for batch in batches]).tolist())
    assert torch.equal(dynamic.stores[0].records[ids], static.stores[0].records[keys])


def test_crosses_are_made_of_keys_whatever_ids_these_have():
    schema, cross = support.schema(support.POLICIES["lru"]), Cross(("user", "shop"), 50)
    batches = support.stream(12)
    table = Table("crossed", 50, 4, ("user*shop",))
    tables = [*support.tables(schema), table]
    ids = support.DynamicIds.of_schema(schema, tables)
    embedding = train_in_stages(Embedding(tables, seed=3, dynamic=ids, crosses=(cross,)), batches)
    static = Embedding([table], seed=3, crosses=(cross,))
    for step, batch in enumerate(batches):
        plan = static.plan(batch, step)
        vectors = static.lookup(plan)
        pack = len(embedding.packs) - 1
        support.loss_of(pack, vectors.leaves[0]).backward()
        static.update(plan, vectors)
    assert embedding.packs[pack].tables == (static.tables[0],)
    assert torch.equal(embedding.weights("crossed"), static.weights("crossed"))
    leaf = embedding.lookup(embedding.plan(batches[0])).leaves[pack]
    assert torch.equal(leaf, static.lookup(static.plan(batches[0])).leaves[0])


def test_keys_of_batches_that_were_not_trained_are_unknown():
    schema, batches = support.schema(support.POLICIES["all"]), support.stream(6)
    embedding = support.engine(schema)
    looked_at = []
    with closing(start(embedding, enumerate(batches))) as runner:
        for number, work in enumerate(runner):
            ids = embedding.dynamic.find(batches[number]).ids.view(4, -1)
            looked_at.append((ids[1] < 4).sum().item())
            vectors = embedding.lookup(embedding.plan(batches[number]))
            assert all(vector.isfinite().all() for vector in vectors.leaves)
            support.train(embedding, work.item.batch, work.item.plan)
            ids = embedding.dynamic.find(batches[number]).ids.view(4, -1)
            assert (ids[1] >= 4).all(), "trained, so known"
            present = batches[number].ids.view(4, -1)[3] != MISSING_KEY
            assert ((ids[3] == 1) != present).all()
    assert looked_at[0] == 12 > looked_at[-1] > 0


def test_training_that_was_left_goes_on_where_it_was():
    """Batches that were planned and not trained come again."""
    schema, batches = support.schema(support.POLICIES["lru"]), support.stream()
    embedding = train_in_stages(support.engine(schema), batches, end=9)
    with closing(start(embedding, list(enumerate(batches))[9:])) as runner:
        for work in runner:
            support.train(embedding, work.item.batch, work.item.plan)
    support.assert_equal(embedding, support.specification("lru"))


def test_keys_in_lists_of_one_get_the_ids_of_single_keys():
    batch = support.stream(1)[0]
    lists = dataclasses.replace(batch, offsets=torch.arange(4 * batch.size + 1))
    schema = support.schema(support.POLICIES["all"])
    (expected,), (resolved,) = (list(support.engine(schema).resolved([b])) for b in (batch, lists))
    assert torch.equal(expected.ids, resolved.ids)
    assert torch.equal(resolved.ids.view(4, -1)[2], batch.ids.view(4, -1)[2]), "shops have no keys"


def test_what_dynamic_features_cannot_do_is_refused():
    schema = support.schema(support.POLICIES["all"])
    embedding, (batch,) = support.engine(schema), support.stream(1)
    with pytest.raises(ValueError, match=r"loop over embedding.resolved\(batches\)"):
        support.train(embedding, batch, embedding.plan(batch))
    tables = [Table("both", 500, 4, ("user", "shop"))]
    with pytest.raises(ValueError, match="'both' is read by features of several vocabularies"):
        Embedding(tables, dynamic=support.DynamicIds.of_schema(schema, tables))
    growing = support.schema(Dynamic())
    with device_of("pretended") as device:
        for caching in (None, Caching(1 << 20)):
            with pytest.raises(
                ValueError, match="'user': a table without a capacity grows in host memory or"
            ):
                support.engine(growing, device=device, caching=caching)
    tables = [Table(f"user.{n}", support.schema(Dynamic()).rows_of("user"), 4, ("user",)) for n in "ab"]
    with pytest.raises(ValueError, match="tables user.a, user.b may have 2\\^31 rows and more on a rank"):
        dynamic = support.DynamicIds.of_schema(growing, tables)
        Embedding(tables, dynamic=dynamic, micro_batches=2)
    tables = [Table("user", 500, 4, ("user",), optimizer=LazyAdam(decay_by_count=True))]
    with pytest.raises(ValueError, match="decay_by_count needs the counts of ids"):
        Embedding(tables, dynamic=support.DynamicIds.of_schema(schema, tables))
    dense = support.engine(schema, DenseAdam(l2=0.1))
    with pytest.raises(ValueError, match="table 'user': a norm that is clipped counts the L2 terms"):
        dense.count_squares()


def timed(batches):
    """Event times that rise, fall back, stand still, and of one batch are all missing."""
    draw = torch.Generator().manual_seed(1)
    made = []
    for number, batch in enumerate(batches):
        late = torch.randint(0, 40, (batch.size,), generator=draw) + 30 * (number % 5 == 0)
        times = 10 * (number // 2) - late + 10**9
        made.append(
            dataclasses.replace(batch, times=torch.full_like(times, -(2**63)) if number == 4 else times)
        )
    return made


def test_keys_expire_by_event_time_alone():
    schema = support.schema(Dynamic(capacity=60, evict="time:35"), time=Time("at"))
    batches = timed(support.stream(30))
    expected = support.DictTraining(schema).run(batches)
    assert expected.keys["item"].growth()["evicted"] > 20
    support.assert_equal(train_in_stages(support.engine(schema), batches), expected)
    half = train_in_stages(support.engine(schema), batches, end=13)
    state = half.dynamic.state()
    assert len(state["item/clock_times"]) > 1
    with closing(start(half, list(enumerate(batches))[13:])) as runner:
        for work in runner:
            support.train(half, work.item.batch, work.item.plan)
    support.assert_equal(half, expected)
    with pytest.raises(ValueError, match=r"keys of 'user', 'item' expire by .* Batch\(times=SECONDS\)"):
        next(support.engine(schema).resolved(support.stream(1)))


@pytest.mark.parametrize("share", [0, 1 / 5000])
def test_a_file_grows_with_the_rows_that_come_and_uses_them_again(tmp_path, share):
    """share 0: every batch bypasses the cache."""
    schema = support.schema(Dynamic(evict="idle:4"))
    batches = support.stream(40)
    expected = support.DictTraining(schema).run(batches)
    size = fast_memory(support.engine(support.schema(Dynamic(capacity=10**6))), share)
    embedding = support.engine(schema, caching=Caching(size, f"file:{tmp_path}"))
    assert embedding.num_bytes > 100 << 30
    train_in_stages(embedding, batches)
    support.assert_equal(embedding, expected)
    embedding.cached_tables.checkpoint()
    embedding.close()
    growth = embedding.dynamic.growth()["item"]
    assert growth["rows"] < growth["admitted"] / 2
    assert sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file()) < 2 << 20


def test_a_table_without_a_capacity_takes_memory_as_it_grows():
    schema = support.schema(Dynamic(evict="idle:4"))
    batches = support.stream()
    expected = support.DictTraining(schema).run(batches)
    embedding = support.engine(schema)
    assert embedding.num_bytes > 100 << 30
    train_in_stages(embedding, batches)
    support.assert_equal(embedding, expected)
    assert all(rows < 200 for rows in embedding.num_rows().values())


@pytest.mark.few(2)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("evict", ["lru", "lfu:4", "ahead", "idle:20"])
def test_with_a_capacity_the_process_stays_within_it(evict):
    """Keys of ten capacities, each read in two batches; the first two capacities fill the tables."""
    capacity, size, dim = 100_000, 5_000, 16
    keys = torch.randperm(10 * capacity, generator=torch.Generator().manual_seed(0)) * 0x9E3779B97F4A7C1
    schema = Schema(features=(Sparse("item", dynamic=Dynamic(capacity, evict=evict, window=2)),))
    table = Table("item", schema.rows_of("item"), dim, ("item",), reserved=schema.reserved_of("item"))
    ids = DynamicIds.of_schema(schema, [table])
    embedding = Embedding([table], optimizer=Adagrad(lr=0.1), dynamic=ids)
    used, page = [], os.sysconf("SC_PAGE_SIZE")

    def batches():
        for begin in range(0, len(keys), size):
            used.append(page * int(Path("/proc/self/statm").read_text().split()[1]))
            read = keys[max(begin - size, 0) : begin + size]
            yield Batch(("item",), read, torch.zeros(len(read), 0))

    train_in_stages(embedding, batches())
    assert embedding.dynamic.growth()["item"]["evicted"] > 7 * capacity
    # Rows and keys of eight capacities come after these; what other tests left in the process moves too.
    assert max(used) - max(used[: 2 * capacity // size]) < capacity * (8 * dim + 24)
