"""Training with dynamic features: tables, a stream of keys, and the specification, rows in dicts."""

from functools import cache

import torch

from hotrows import SGD, Adagrad, Batch, Constant, Embedding, Table, ops
from hotrows.dynamic import Dynamic
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.engine.packed_tables import _random_key
from hotrows.engine.storage.store import _kind
from hotrows.ops.plan import PackPlan
from hotrows.ops.record import layout_of
from hotrows.optim import initial_state
from hotrows.schema import MISSING_KEY, Schema, Sparse, vocabulary_of
from tests.reference.keys import ReferenceKeyTable
from tests.support.row_rules import hyper_tensor

FEATURES = ("user", "item", "shop", "last_item")
POLICIES = {
    "all": Dynamic(capacity=400),
    "lru": Dynamic(capacity=40, evict="lru"),
    "lfu after 2": Dynamic(capacity=40, admit="after:2", evict="lfu:5"),
    "idle": Dynamic(capacity=40, evict="idle:3"),
    "ahead": Dynamic(capacity=40, admit="ahead:2", evict="ahead", window=4),
    "half": Dynamic(capacity=60, admit="probability:0.5", evict="lru"),
}


def schema(items, users=None, unknown=2, time=None):
    """Two features share the keys of items; users have keys of their own; shops have a vocabulary."""
    return Schema(
        features=(
            Sparse("user", dynamic=users or items),
            Sparse("item", dynamic=items, num_unknown=unknown),
            Sparse("shop", rows=5),
            Sparse("last_item", vocabulary="item", dynamic=items, num_unknown=unknown),
        ),
        time=time,
    )


def tables(of, optimizer=None, dtype="float32"):
    """Linear weights are read by fewer features than vectors: some keys are new to them later."""
    stored = {"optimizer": optimizer or Adagrad(lr=0.1), "dtype": dtype}
    linear = {"role": "linear", "initializer": Constant(0.5), "optimizer": SGD(lr=0.1)}

    def table(name, dim, *features, **options):
        rows, reserved = of.rows_of(features[0]), of.reserved_of(features[0])
        return Table(name, rows, dim, features, reserved=reserved, **options)

    return [
        table("user", 8, "user", **stored),
        table("shop", 8, "shop", **stored),
        table("item", 6, "item", "last_item", **stored),
        table("user.linear", 1, "user", **linear),
        table("item.linear", 1, "item", **linear),
    ]


def engine(of, optimizer=None, dtype="float32", **settings):
    declared = tables(of, optimizer, dtype)
    return Embedding(declared, seed=3, dynamic=DynamicIds.of_schema(of, declared), **settings)


def stream(batches=20, size=12, seed=0, keys=150):
    """Skewed keys whose popularity moves, some of them missing; one batch is empty."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for number in range(batches):
        n = 0 if number == 7 else size

        def some(spread, number=number, n=n):
            ids = (torch.rand(n, generator=draw) ** 3 * spread).long() + number * spread // 40
            return ids * 0x9E3779B97F4A7C1 - 5  # far apart, and below zero too

        columns = [some(60), some(keys), torch.randint(0, 5, (n,), generator=draw), some(keys)]
        for column in (columns[0], columns[3]):
            column[torch.rand(n, generator=draw) < 0.1] = MISSING_KEY
        made.append(Batch(FEATURES, torch.cat(columns), torch.zeros(n, 2)))
    return made


def loss_of(pack, leaf):
    """A loss whose gradients depend on every bit of a leaf, by steps that round alike in any shape."""
    return (pack + 1) * (leaf * leaf + leaf).sum() / 8


def train(embedding, batch, plan):
    vectors = None
    for number in range(max(len(plan.micro_batches), 1)):
        vectors = embedding.lookup(plan, number)
        sum(loss_of(pack, leaf) for pack, leaf in enumerate(vectors.leaves)).backward()
        if number + 1 < len(plan.micro_batches):
            embedding.send_gradients(plan, number, vectors)
    embedding.update(plan, vectors)


class DictTraining:
    """The specification: a dict of records for each table, each made when its id gets a key.

    It trains as `train` does.
    """

    def __init__(self, of, optimizer=None, dtype="float32", seed=3):
        self.tables, self.seed = tables(of, optimizer, dtype), seed
        self.vocabulary = {f.name: vocabulary_of(f) for f in of.id_features}
        self.keys = {
            vocabulary_of(f): ReferenceKeyTable(f.dynamic, f.num_unknown)
            for f in of.id_features
            if f.dynamic
        }
        self.records = {table.name: {} for table in self.tables}

    def run(self, batches):
        ahead = max(keys.dynamic.batches_ahead for keys in self.keys.values())
        for step, batch in enumerate(batches):
            for name, keys in self.keys.items():
                while keys.num_fed < min(step + ahead + 1, len(batches)):
                    keys.feed(self.keys_of(batches[keys.num_fed], name))
                if keys.num_fed == len(batches):
                    keys.end()
            self.step(step, batch)
        return self

    def keys_of(self, batch, vocabulary):
        columns = [c for f, c in columns_of(batch).items() if self.vocabulary[f] == vocabulary]
        keys = torch.cat(columns)
        return keys[keys != MISSING_KEY]

    def step(self, step, batch):
        columns = columns_of(batch)
        for name, keys in self.keys.items():
            time = None if batch.times is None or not len(batch.times) else int(batch.times.max())
            resolved = keys.resolve(self.keys_of(batch, name), None if time == MISSING_KEY else time)
            for table in self.tables:
                if self.vocabulary[table.features[0]] == name:
                    for number, key in zip(
                        resolved.born.tolist(), resolved.born_keys.tolist(), strict=True
                    ):
                        self.records[table.name][number] = self.first_values(table, key)
            ids = iter(resolved.ids.tolist())
            for feature, column in columns.items():
                if self.vocabulary[feature] == name:
                    numbers = [1 if key == MISSING_KEY else next(ids) for key in column.tolist()]
                    columns[feature] = torch.tensor(numbers, dtype=torch.int64)
            keys.trained()
        for table in self.tables:
            ids = torch.stack([columns[feature] for feature in table.features], 1).reshape(-1)
            if len(ids):
                self.train(step, table, ids)

    def first_values(self, table, number):
        """The record of an id, or of a key, before it is trained."""
        layout = layout_of(table)
        record = torch.zeros(1, layout.stride, dtype=torch.uint8)
        pieces = torch.tensor([[_random_key(self.seed, table.name), number, 1, 0, table.dim]])
        state = initial_state(table.optimizer, table.dim)
        ops.reference.initialize(
            record, layout.as_ints(), torch.tensor([0]), torch.tensor([0, 1]), pieces,
            *_kind(table.initializer), state,
        )  # fmt: skip
        return record[0]

    def train(self, step, table, ids):
        records, layout = self.records[table.name], layout_of(table).as_ints()
        rows, inverse, order, starts = ops.reference.unique(ids)
        for number in rows.tolist():
            if number not in records:  # a reserved one, or of a static table
                records[number] = self.first_values(table, number)
        block = torch.stack([records[number] for number in rows.tolist()])
        slots = torch.arange(len(rows))
        leaf = ops.reference.pool(block, layout, slots, inverse, None, None).requires_grad_()
        pack = list(dict.fromkeys(other.dim for other in self.tables)).index(table.dim)
        loss_of(pack, leaf).backward()
        pieces = torch.tensor([[_random_key(self.seed, table.name), 0, 1, 0, table.dim]])
        plan = PackPlan(rows, slots, inverse, order, starts, len(ids))
        rule = ops.RowRule(table.optimizer.kind, hyper_tensor(table.optimizer, step))
        keys = ops.RowKeys(torch.tensor([0, table.rows]), pieces)
        ops.update(ops.Records(block, layout), plan, leaf.grad, rule, keys)
        records.update(zip(rows.tolist(), block.unbind(), strict=True))


@cache
def specification(policy, batches=20, **options):
    """What training on the stream ends with."""
    return DictTraining(schema(POLICIES[policy]), **options).run(stream(batches))


def columns_of(batch):
    return dict(zip(batch.features, batch.ids.view(len(batch.features), -1), strict=True))


def records_of(embedding):
    """By table: the records of all rows that it has used, weights and state, as they are at present."""
    of_tables, used = {}, embedding.num_rows()
    for p, pack in enumerate(embedding.packs):
        for table, first in zip(pack.tables, pack.first_rows, strict=False):
            end = first + used[table.name]
            of_tables[table.name] = embedding.packed.memory.span(p, first, end).clone()
    return of_tables


def assert_equal(embedding, specification):
    """The same keys with the same ids, and the same bits in every row that stands for something."""
    state = embedding.dynamic.state()
    expected = {f"{v}/{what}": x for v, k in specification.keys.items() for what, x in k.state().items()}
    assert state.keys() == expected.keys()
    for what in expected:
        assert torch.equal(state[what], expected[what]), what
    for name, records in records_of(embedding).items():
        for number, record in specification.records[name].items():
            assert torch.equal(records[number], record), (name, number)
