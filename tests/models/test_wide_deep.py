"""Wide & Deep's wide part: FTRL from zero, crosses that learn what sums cannot, and l1."""

import torch
import torch.nn.functional as F

from hotrows import Batch, Embedding, optim
from hotrows.schema import Schema, Sparse
from hotrows.table import Constant, Cross
from tests.models.looked_up import build


def test_the_wide_part_trains_under_ftrl_from_zero():
    wide = [table for table in build("wide_deep").tables if table.role == "linear"]
    assert len(wide) == 4
    assert all(t.optimizer == optim.FTRL() and t.initializer == Constant(0.0) for t in wide)


def test_the_wide_part_takes_plain_options_and_reads_its_crosses():
    crosses = [["C0", "C1"], ["C3", "C0", "C2"]]
    model = build("wide_deep", crosses=crosses, cross_rows=50, l1=1.0, l2=2.0, wide_lr=0.1)
    assert model.crosses == (Cross(("C0", "C1"), 50), Cross(("C3", "C0", "C2"), 50))
    wide = [table for table in model.tables if table.role == "linear"]
    assert [t.features for t in wide[4:]] == [("C0*C1",), ("C3*C0*C2",)]
    assert {t.optimizer for t in wide} == {optim.FTRL(lr=0.1, l1=1.0, l2=2.0)}


def train_wide_alone(labels, ids, **options):
    """The wide logits of a Wide & Deep whose deep part is left out, and its engine, trained."""
    schema = Schema(features=(Sparse("a", rows=50), Sparse("b", rows=50)))
    model = build("wide_deep", schema, **options)
    engine = Embedding(model.tables, crosses=model.crosses)
    plan = engine.plan(Batch(("a", "b"), ids.flatten(), torch.zeros(ids.shape[1], 0)))
    for _ in range(60):
        vectors = engine.lookup(plan)
        logits = vectors.stack("linear").sum((1, 2))
        F.binary_cross_entropy_with_logits(logits, labels, reduction="sum").backward()
        engine.update(plan, vectors)
    return logits.detach(), engine


def test_the_wide_part_learns_a_xor_through_its_cross():
    ids = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]).repeat(1, 8)
    labels = (ids[0] ^ ids[1]).float()
    alone, _ = train_wide_alone(labels, ids)
    assert alone.abs().max() < 0.01  # no sum of two weights says more
    crossed, _ = train_wide_alone(labels, ids, crosses=[["a", "b"]], wide_lr=0.5)
    assert torch.equal(crossed > 0, labels.bool()) and crossed.abs().min() > 1


def test_l1_keeps_most_wide_weights_at_zero():
    ids = torch.randint(0, 50, (2, 400))
    ids[0, ::5] = 7
    labels = ((ids[0] == 7) | (torch.rand(400) < 0.5)).float()  # of id 7 alone there is a rule
    at_zero = []
    for l1 in (0.0, 300.0):  # gradients add up over 400 samples and 60 steps
        _, engine = train_wide_alone(labels, ids, crosses=[["a", "b"]], cross_rows=200, l1=l1)
        tables = [t.name for t in engine.tables if t.role == "linear"]
        weights = torch.cat([engine.weights(name) for name in tables])
        at_zero.append((weights == 0).float().mean())
        assert engine.weights("a.linear")[7] > 0.1
    assert at_zero[0] < 0.2 and at_zero[1] > 0.8
