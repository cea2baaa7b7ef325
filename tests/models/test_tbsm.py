"""TBSM against a plain twin: padded histories, a DLRM step by step, and autograd through all of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from hotrows.models.nn.jagged import ages_in_lists, copied_to_lists, latest_at_end
from hotrows.models.tbsm import INNER
from hotrows.ops.layers.padded import PaddedLists
from hotrows.schema import Dense, Schema, Sequence, Sparse
from tests.models.looked_up import DENSE, build, lookup

LENGTHS = [2, 0, 1, 5, 3]
SHOP = Schema(
    features=(
        Dense("price"),
        Sparse("user", rows=7),
        Sparse("item", rows=9),
        Sparse("category", rows=4),
        Sequence("items", vocabulary="item", rows=9),
        Sequence("categories", vocabulary="category", rows=4),
    )
)


def randomized(model):
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    return model


def twin(model, vectors, dense, length):
    """One sample after another, one step after another, as the authors' code has it."""
    logits = []
    for b in range(len(dense)):
        now = {name: vectors[name][b] for name in (*model.others, *model.history.targets)}
        first, end = vectors.offsets[model.history.sequences[0]][b : b + 2].tolist()
        steps = torch.zeros(length, model.head.layers[0].in_features // 2)
        kept = range(max(first, end - length), end)
        for place, n in zip(range(length - len(kept), length), kept, strict=True):
            pairs = zip(model.history.targets, model.history.sequences, strict=True)
            past = now | {target: vectors[name][n] for target, name in pairs}
            steps[place] = step(model, past, dense[b], place / (length + 1))
        w = step(model, now, dense[b], length / (length + 1))
        if model.inner == "dot":
            query = w
        elif model.inner == "indefinite":
            query = model.product @ w
        else:
            query = model.product.t() @ (model.product @ w)
        scores = steps @ query
        context = model.attention(scores[None])[0] @ steps
        logits.append(model.head(torch.cat([context, w])[None])[0, 0])
    return torch.stack(logits)


def step(model, vectors, dense, place):
    """z of one step: a DLRM, projected onto the sphere."""
    bottom = model.bottom(torch.cat([torch.tensor([place]), dense])[None])[0]
    rows = [bottom, *vectors.values()]
    dots = [rows[i] @ rows[j] for i in range(len(rows)) for j in range(i)]
    return functional.normalize(model.top(torch.cat([bottom, torch.stack(dots)])[None])[0], dim=0)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("attention", [(6,), ()], ids=["MLP", "scores"])
def test_tbsm_is_its_twin_forward_and_backward(inner, attention):
    model = randomized(build("tbsm", SHOP, inner=inner, attention=attention))
    vectors, dense = lookup(model, 5, 1.0, LENGTHS), torch.randn(5, 1)
    weights = torch.randn(5)
    inputs = [*model.parameters(), *vectors.leaves.values()]
    expected = twin(model, vectors, dense, 3)
    wanted = torch.autograd.grad((expected * weights).sum(), inputs)
    logits = model(vectors, dense)
    assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert all(grad.any() for grad in wanted)
    for grad, want in zip(torch.autograd.grad((logits * weights).sum(), inputs), wanted, strict=True):
        assert_close(grad, want, rtol=1e-3, atol=1e-5)


def test_padded_lists_give_the_logits_of_lists_end_to_end():
    model = randomized(build("tbsm", SHOP))
    vectors, dense = lookup(model, 5, 1.0, LENGTHS), torch.randn(5, 1)
    expected = model(vectors, dense)
    lists = PaddedLists(torch.tensor(LENGTHS), 6)
    for name in model.sequences:
        padded = torch.full((5, 6, 8), 7.0)  # what stands behind the end is nothing
        for b, values in enumerate(vectors[name].split(LENGTHS)):
            padded[b, : len(values)] = values
        vectors.leaves[name, "vector"], vectors.offsets[name] = padded.flatten(0, 1), lists
    assert_close(model(vectors, dense), expected, rtol=1e-5, atol=1e-5)


def test_an_empty_history_leaves_the_item_at_hand():
    model = randomized(build("tbsm"))
    vectors, dense = lookup(model, 4, 1.0, [0, 2, 0, 1]), torch.randn(4, len(DENSE))
    w = model._steps(
        torch.full((4, 1), 3.0),
        torch.cat([dense, vectors.stack("vector", model.others).flatten(1)], 1),
        vectors["C0"],
        len(DENSE),
    )
    alone = model.head(torch.cat([torch.zeros_like(w), w], 1))[:, 0]
    logits = model(vectors, dense)
    assert_close(logits[[0, 2]], alone[[0, 2]])
    assert (logits - alone)[[1, 3]].abs().min() > 1e-4


def test_lists_have_ages_copies_and_a_latest_part():
    offsets, values = torch.tensor([0, 3, 3, 4]), torch.tensor([[1.0], [3.0], [5.0], [7.0]])
    assert ages_in_lists(offsets, 4).tolist() == [2, 1, 0, 0]
    assert copied_to_lists(values[:3], offsets, 4).flatten().tolist() == [1, 1, 1, 5]
    assert latest_at_end(values, offsets, 2)[:, :, 0].tolist() == [[3, 5], [0, 0], [0, 7]]
    assert latest_at_end(values[:0], torch.zeros(3, dtype=torch.int64), 2).shape == (2, 2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": "cosine"}, "inner must be one of semidefinite, indefinite, dot, not 'cosine'"),
        ({"length": 0}, r"a length of at least 1 and layers in top, not 0 and \(16, 8\)"),
        ({"top": ()}, r"a length of at least 1 and layers in top, not 3 and \(\)"),
        ({"history": ["C1"]}, "TBSM: 'C1' is none of the sequences"),
    ],
    ids=str,
)
def test_options_that_say_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build("tbsm", **options)
