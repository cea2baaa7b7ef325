"""Models whose first layer reads distinct rows learn what they learn from the batch's vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from hotrows import models
from hotrows.engine.caching import Caching
from hotrows.engine.stages import start

BATCH, STEPS = 64, 6
SCHEMA = hotrows.Schema(
    (
        hotrows.Dense("price"),
        *(hotrows.Sparse(f"C{n}", rows=12) for n in range(5)),
        hotrows.Sparse("tags", rows=9, many=True, pooling="mean"),
    )
)


def batches() -> Iterator[hotrows.Batch]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        lengths = torch.cat(
            [torch.ones(5 * BATCH).long(), torch.randint(0, 4, (BATCH,), generator=generator)]
        )
        ids = torch.randint(2, 9, (int(lengths.sum()),), generator=generator)
        yield hotrows.Batch(
            tuple(feature.name for feature in SCHEMA.sparse),
            ids,
            torch.rand(BATCH, 1, generator=generator),
            (ids[:BATCH] > 5).float(),
            offsets=torch.cat([torch.zeros(1).long(), lengths.cumsum(0)]),
        )


def trained(name: str = "wide_deep", caching: Caching | None = None, **settings) -> dict[str, Tensor]:
    """All weights after some steps, and how many batches went by rows."""
    torch.manual_seed(0)
    model = models.build(name, SCHEMA, dim=16, hidden=(20, 8))
    embedding = hotrows.Embedding.for_model(model, SCHEMA, caching=caching, **settings)
    dense = torch.optim.Adam(model.parameters(), 0.01)
    by_rows = 0
    with closing(start(embedding, enumerate(batches()), plan_depth=0)) as runner:
        for work in runner:
            batch, plan = work.item.batch, work.item.plan
            vectors = embedding.lookup(plan)
            by_rows += bool(vectors.by_rows)
            binary_cross_entropy_with_logits(model(vectors, batch.dense), batch.labels).backward()
            embedding.update(plan, vectors)
            dense.step()
            dense.zero_grad()
    tables = {table.name: embedding.weights(table.name).clone() for table in embedding.tables}
    embedding.close()
    return {"by_rows": torch.tensor(by_rows), **tables, **model.state_dict()}


@pytest.mark.parametrize("name", ["wide_deep", "dnn"])
def test_training_by_rows_is_training_by_vectors_up_to_rounding(name: str) -> None:
    one, other = trained(name), trained(name, first_layer_roles=())
    assert one.pop("by_rows") == STEPS and other.pop("by_rows") == 0
    for key, value in one.items():
        torch.testing.assert_close(
            value, other[key], rtol=1e-4, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}"
        )


@pytest.mark.few(2)
@pytest.mark.parametrize("fast_memory", [1 << 20, 4096, 512])
def test_a_cache_changes_no_bit_of_training_by_rows(fast_memory: int) -> None:
    """The smallest has fewer slots than a batch has rows: they are read and written through it."""
    caching = Caching(fast_memory, in_flight=1)
    for key, value in trained(caching=caching).items():
        assert torch.equal(value, trained()[key]), key


def test_a_batch_of_rare_rows_goes_by_its_vectors() -> None:
    model = models.build("dnn", SCHEMA, dim=4)
    embedding = hotrows.Embedding.for_model(model, SCHEMA)
    plan = embedding.plan(next(batches()))
    assert not embedding.lookup(plan).by_rows  # at dim 4 nothing is saved


def test_vectors_that_went_by_rows_are_read_by_joined_alone() -> None:
    model = models.build("dnn", SCHEMA, dim=16)
    embedding = hotrows.Embedding.for_model(model, SCHEMA)
    vectors = embedding.lookup(embedding.plan(next(batches())))
    with pytest.raises(ValueError, match=r"first_layer_roles.*vectors\.joined"):
        vectors.stack()
