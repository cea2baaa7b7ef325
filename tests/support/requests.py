"""Rows and batches whose samples share features with the others of their request, tables for them."""

import dataclasses

import numpy as np
import torch

from hotrows import Batch, Dense, Schema, Sequence, Sparse, Table
from hotrows.batch import RequestFeatures

ROWS = {"user": 40, "city": 5, "tags": 30, "history": 60, "item": 60, "shop": 4, "words": 30}
SHARED, OWN = ("user", "city", "tags", "history"), ("item", "shop", "words")
LISTS = {"tags": 3, "history": 7, "words": 3}  # and the longest, less one


def tables(optimizer, dims=(8, 8)):
    """Vectors read by samples alone, by requests alone, and by both; a pack of a second role."""
    wide, narrow = dims
    return [
        Table("user", 40, wide, ("user",), optimizer=optimizer),
        Table("city", 5, narrow, ("city",), optimizer=optimizer),
        Table("item", 60, wide, ("item", "history"), optimizer=optimizer),
        Table("tag", 30, wide, ("tags", "words"), optimizer=optimizer),
        Table("shop", 4, narrow, ("shop",), optimizer=optimizer),
        Table("user.linear", 40, 1, ("user",), "linear", optimizer=optimizer),
        Table("shop.linear", 4, 1, ("shop",), "linear", optimizer=optimizer),
    ]


def schema(labels="click", user=None):
    """A user with a history, shared by the candidates of a request. user: dynamic, perhaps."""
    return Schema(
        features=(
            Dense("price"),
            Sparse("user", rows=ROWS["user"], dynamic=user),
            *(Sparse(name, rows=ROWS[name]) for name in ("city", "shop")),
            Sparse("item", rows=60),
            Sparse("tags", vocabulary="tag", rows=30, many=True, pooling="mean"),
            Sparse("words", vocabulary="tag", rows=30, many=True),
            Sequence("history", vocabulary="item", rows=60),
        ),
        label=labels,
    )


def request_batch(candidates, seed=0, num_dense=2, lists=True):
    """A batch of requests with so many samples each; lists of 0, 1, 2 or 4 ids, histories of up to 6."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *candidates]).cumsum(0)

    def drawn(features, size):
        ids, lengths = [], []
        for name in features:
            if name in LISTS and lists:
                few = torch.tensor([0, 1, 2, 4])[torch.randint(0, 4, (size,), generator=generator)]
                some = torch.randint(0, LISTS[name], (size,), generator=generator)
                lengths.append(some if name == "history" else few)
            else:
                lengths.append(torch.ones(size, dtype=torch.int64))
            ids.append(torch.randint(0, ROWS[name], (int(lengths[-1].sum()),), generator=generator))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), *lengths]).cumsum(0)
        return {"ids": torch.cat(ids), "offsets": offsets if lists else None}

    num = int(starts[-1])
    shared = Batch(SHARED, dense=torch.empty(len(candidates), 0), **drawn(SHARED, len(candidates)))
    return Batch(
        OWN,
        dense=torch.rand(num, num_dense, generator=generator),
        labels=(torch.rand(num, generator=generator) < 0.3).float(),
        requests=RequestFeatures(shared, starts),
        **drawn(OWN, num),
    )


COLUMNS = ("label", "request", "user", "age", "history", "tags", "item", "price")
PLAIN = Schema(
    features=(
        Dense("age", transform="none"), Dense("price", transform="none"), Sparse("user"), Sparse("item"),
        Sparse("tags", many=True), Sequence("history", vocabulary="item"),
    ),
    columns=COLUMNS, group="request",
)  # fmt: skip
SCHEMA = dataclasses.replace(
    PLAIN, group=None, request="request", shared=("user", "age", "history", "tags")
)
NAMES = tuple(feature.name for feature in SCHEMA.id_features)


def rows_of(num_requests, candidates=8, history=12, seed=0):
    """Rows of a log: the candidates that a request was answered with, one after the other."""
    draw = np.random.default_rng(seed)

    def items(most):
        return "|".join(f"i{n}" for n in draw.integers(0, 500, draw.integers(0, most + 1)))

    rows = []
    for request in range(num_requests):
        shared = f"u{draw.integers(0, 90)}", f"{draw.integers(0, 90)}", items(2 * history), items(3)
        for _ in range(candidates or draw.integers(1, 5)):
            item = f"i{draw.integers(0, 500)}", f"{draw.integers(0, 100)}"
            rows.append((str(draw.integers(0, 2)), f"r{request}", *shared, *item))
    return rows


def file_of(folder, rows):
    path = folder / "raw.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path
