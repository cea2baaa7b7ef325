"""Training behind a cache beside plain training: tables, batches, and how records are compared."""

from contextlib import closing

import torch

from hotrows import SGD, Adagrad, Batch, Constant, Embedding, Table
from hotrows.engine.caching import Caching
from hotrows.engine.planning.policy import Frequency, Hot, Lookahead, Newest
from hotrows.engine.stages import start

FEATURES = ("user", "item", "shop", "last_item")
ROWS = {"user": 60, "item": 300, "shop": 3, "last_item": 300}
POLICIES = [
    Lookahead("auto"), Lookahead(None), Lookahead(5), Lookahead(2), Lookahead(0), Newest(),
    Frequency(warmup=2, refresh_every=3), Hot(torch.empty(0, dtype=torch.int64)),
]  # fmt: skip


def tables(optimizer, dtype="float32"):
    """Two packs that read the same rows, so one group, and a group of its own."""
    return [
        Table("user", 60, 8, ("user",), optimizer=optimizer, dtype=dtype),
        Table("shop", 3, 8, ("shop",), optimizer=optimizer, dtype=dtype),
        Table("item", 300, 6, ("item", "last_item"), optimizer=optimizer, dtype=dtype),
        Table("user.linear", 60, 1, ("user",), "linear", Constant(0.0), optimizer=SGD(lr=0.1)),
        Table("shop.linear", 3, 1, ("shop",), "linear", Constant(0.0), optimizer=SGD(lr=0.1)),
    ]


def stream(batches=24, size=12, seed=0):
    """Skewed ids; the last batch is partial, one is empty, one reads each row once."""
    generator = torch.Generator().manual_seed(seed)
    made_batches = []
    for number in range(batches):
        n = {batches - 1: max(size // 3, 1), 7: 0}.get(number, size)
        columns = [(torch.rand(n, generator=generator) ** 3 * ROWS[name]).long() for name in FEATURES]
        made_batches.append(Batch(FEATURES, torch.cat(columns), torch.zeros(n, 2)))
    return made_batches


def hot_ids():
    """Of each table, a few ids: what a profile would say."""
    ids_of = {"user": range(12), "shop": range(3), "item": range(40)}
    named = {name: torch.tensor(ids) for name, ids in ids_of.items()}
    return {**named, "user.linear": named["user"], "shop.linear": named["shop"]}


def engine(caching=None, optimizer=None, dtype="float32"):
    return Embedding(tables(optimizer or Adagrad(lr=0.1), dtype), seed=3, caching=caching)


def train(embedding, step, batch, plan):
    """One step of a model whose gradients depend on every bit of what was looked up."""
    vectors = embedding.lookup(plan)
    loss = sum((k + 1) * leaf.sin().sum() for k, leaf in enumerate(vectors.leaves)) / 10
    loss.backward()
    embedding.update(plan, vectors)
    return loss.detach()


def train_plainly(embedding, batches):
    return [
        train(embedding, step, batch, embedding.plan(batch, step)) for step, batch in enumerate(batches)
    ]


def train_behind_a_cache(embedding, batches, plan_depth=2, warm=False, pause=lambda step: None):
    losses = []
    if warm:
        embedding.cached_tables.warm()
    with closing(start(embedding, enumerate(batches), plan_depth=plan_depth)) as runner:
        for step, work in enumerate(runner):
            losses.append(train(embedding, step, work.item.batch, work.item.plan))
            with runner.paused():
                pause(step)
    return losses


def records(embedding):
    """All records, weights and state, as they are at present."""
    if not embedding.cached_tables:
        stored = [store.records for store in embedding.stores]
        return [torch.cat([stored[p] for p in group.packs], 1) for group in embedding.groups]
    caches = [
        (cached.cache, torch.arange(cached.group.rows)) for cached in embedding.cached_tables.groups
    ]
    return [torch.cat(cache.of_packs(cache.read(rows)), 1) for cache, rows in caches]


def same(a, b):
    return len(a) == len(b) and all(map(torch.equal, a, b))


def fast_memory(embedding, share):
    """Bytes that hold so much of the tables: 0 is the least there can be, a record of each group."""
    least = sum(group.stride for group in embedding.groups)
    return max(int(embedding.num_bytes * share), least)


def caching_of(share, policy=POLICIES[0], in_flight=4, path=None, like=None, **options):
    store = "memory" if path is None else f"file:{path}"
    size = fast_memory(like or engine(), share)
    return Caching(size, store, policy, in_flight, hot_ids=hot_ids(), **options)
