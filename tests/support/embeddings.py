"""Tables of several kinds, batches of them, their placements on ranks, and training steps on them."""

import torch

from hotrows import FTRL, SGD, Adagrad, Batch, Constant, LazyAdam, RowWiseAdagrad, Table
from hotrows.batch import split
from hotrows.engine.planning.sharding import BY_COLUMNS, Placement, replicated

OPTIMIZERS = [
    SGD(lr=0.1),
    SGD(lr=0.1, weight_decay=0.01),
    Adagrad(lr=0.1),
    Adagrad(lr=0.1, initial_accumulator=0.1, weight_decay=0.01),
    RowWiseAdagrad(lr=0.1),
    LazyAdam(lr=0.01),
    LazyAdam(lr=0.01, per_row_step=True, weight_decay=0.01),
    FTRL(lr=0.1, l1=0.001, l2=0.01),
]
FEATURES = ("user", "item", "shop", "last_item")


def mixed_tables(optimizer):
    """Two widths, a shared table, a second role: three packs."""
    return [
        Table("user", 50, 16, ("user",), optimizer=optimizer),
        Table("item", 300, 7, ("item", "last_item"), optimizer=optimizer),
        Table("shop", 3, 16, ("shop",), optimizer=optimizer),
        Table("user.linear", 50, 1, ("user",), "linear", Constant(0.0), optimizer=optimizer),
        Table("shop.linear", 3, 1, ("shop",), "linear", Constant(0.0), optimizer=optimizer),
    ]


def single_batch(size):
    columns = [torch.randint(0, rows, (size,)) for rows in (50, 300, 3, 300)]
    return Batch(FEATURES, torch.cat(columns), torch.zeros(size, 2))


def jagged_batch(size, weighted=False):
    """Bags of 0 to 4 ids, duplicates within bags included."""
    lengths = torch.randint(0, 5, (4, size))
    columns = [
        torch.randint(0, rows, (int(n.sum()),))
        for rows, n in zip((50, 300, 3, 300), lengths, strict=True)
    ]
    ids = torch.cat(columns)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    weights = torch.rand(ids.numel()) if weighted else None
    return Batch(FEATURES, ids, torch.zeros(size, 2), offsets=offsets, weights=weights)


MIXED = {
    "user": Placement(hot=20, num_ranks=2, first_rank=1),
    "item": Placement(hot=5, num_ranks=3, first_rank=2),
    "shop": replicated(3),
    "user.linear": Placement(hot=20, num_ranks=2, first_rank=1),
    "shop.linear": replicated(3),
}
BY_COLUMN = {name: BY_COLUMNS if name in ("user", "item", "shop") else Placement() for name in MIXED}
SHARDINGS = {"rows": "rows", "tables": "tables", "columns": "columns", "replicated": "replicated",
             "mixed": MIXED, "mixed columns": BY_COLUMN}  # fmt: skip
READS = [("user", "vector"), ("item", "vector"), ("shop", "vector"), ("last_item", "vector"),
         ("user", "linear"), ("shop", "linear")]  # fmt: skip


def placements(name, num_ranks):
    """The sharding of that name, as far as there are so many ranks."""
    sharding = SHARDINGS[name]
    if isinstance(sharding, str):
        return sharding
    return {
        table: Placement(p.hot, min(p.num_ranks, num_ranks), p.first_rank % num_ranks, p.columns)
        for table, p in sharding.items()
    }


def loss_of(vectors, first):
    """A sum over samples that tells them apart; first: the number of the first sample."""
    size = vectors["user"].shape[0]
    scale = torch.arange(first, first + size).float().add(1).cos()[:, None]
    return sum(((k + 1) * vectors[key] * scale).sin().sum() for k, key in enumerate(READS))


def train(embedding, batches, micro_batches=1):
    """Trains on this rank's share of every batch; every vector that was looked up, in order."""
    rank, num_ranks = embedding.ranks.rank, embedding.ranks.num_ranks
    seen = []
    for step, batch in enumerate(batches):
        mine = split(batch, num_ranks)[rank]
        plan = embedding.plan(mine, step)
        parts = split(mine, micro_batches)
        for s, part in enumerate(parts):
            vectors = embedding.lookup(plan, s)
            seen.append(torch.cat([vectors[key] for key in READS], 1).detach().clone())
            # Losses are means over the samples at hand, as users write them.
            mean = loss_of(vectors, part.first_sample) / max(part.size, 1)
            share = plan.micro_batches[s].share if plan.micro_batches else 1.0
            (10 * mean * share).backward()
            if s + 1 < len(parts):
                embedding.send_gradients(plan, s, vectors)
        embedding.update(plan, vectors)
    return torch.cat(seen) if seen else torch.empty(0)


def batches_of(kind, num, size=37, seed=0):
    torch.manual_seed(seed)
    make = {"single": single_batch, "jagged": jagged_batch}[kind]
    return [make(size) for _ in range(num)]
