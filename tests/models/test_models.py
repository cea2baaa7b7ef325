"""What holds for every model: logits and gradients, that it learns, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hotrows import models
from hotrows.models.nn import choose_linear_paths, use_linear_paths
from hotrows.schema import Dense, Schema, Sequence, Sparse
from tests.models.looked_up import (
    DENSE,
    LABELS,
    SCHEMA,
    WITH_HISTORY,
    build,
    logits_of,
    lookup,
    schema_of,
)

SHAPE = {"mmoe": (2,), "ple": (2,), "esmm": (2,)}  # of a sample's logits
POOLING = [name for name in models.BY_NAME if name not in WITH_HISTORY]
every_model = pytest.mark.parametrize("name", models.BY_NAME)
both_precisions = pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])


@every_model
@both_precisions
def test_a_model_gives_float32_logits_and_gradients_to_all(name, bfloat16):
    model = build(name)
    vectors = lookup(model, 7)
    use_linear_paths(model, {})
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = logits_of(model, vectors, torch.randn(7, 3))
    assert logits.shape == (7, *SHAPE.get(name, ())) and logits.dtype == torch.float32
    logits.square().sum().backward()
    assert all(leaf.grad.dtype == torch.float32 for leaf in vectors.leaves.values())
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.few(16)  # each model in one precision
@every_model
@both_precisions
def test_a_model_learns(name, bfloat16):
    model = build(name)
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    use_linear_paths(model, choose_linear_paths(model, dtype))
    vectors, dense = lookup(model, 64), torch.rand(64, 3)
    labels = (torch.rand(64, *SHAPE.get(name, ())) < 0.5).float()
    optimizer = torch.optim.Adam([*model.parameters(), *vectors.leaves.values()], lr=0.01)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits, model_loss = models.logits_and_loss(model(vectors, dense))
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        (loss if model_loss is None else loss + model_loss).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@every_model
def test_chosen_paths_change_rounding_alone(name):
    model, dense = build(name), torch.randn(32, 3)
    vectors = lookup(model)
    expected = logits_of(model, vectors, dense)
    names = list(dict(model.named_parameters()))
    use_linear_paths(model, choose_linear_paths(model))
    actual = logits_of(model, vectors, dense)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert list(dict(model.named_parameters())) == names


@every_model
@pytest.mark.parametrize("size", [0, 1])
def test_a_batch_of_one_sample_or_none_is_a_batch(name, size):
    """The last batch of an epoch may hold one sample: batch normalisation used to stop there."""
    options = {"batch_norm": True} if name in ("dnn", "deepfm") else {}
    options |= {"form": "code"} if name in ("din", "dien") else {}
    model = build(name, **options)
    for training in (True, False):
        model.train(training)
        vectors = lookup(model, size, lengths=[2] * size)
        logits, model_loss = models.logits_and_loss(model(vectors, torch.randn(size, 3)))
        assert logits.shape == (size, *SHAPE.get(name, ())) and logits.isfinite().all()
        assert model_loss is None or model_loss.isfinite()
    for buffer in model.buffers():
        assert buffer.isfinite().all()


@every_model
def test_schemas_that_a_model_cannot_train_on_are_refused(name):
    needs_ids = name in ("dlrm", *WITH_HISTORY)
    what = "feature with ids" if needs_ids else "feature"
    with pytest.raises(ValueError, match=f"needs at least one {what}; the schema has none"):
        models.build(name, Schema(features=DENSE if needs_ids else ()))


@pytest.mark.parametrize("name", POOLING)
def test_a_sequence_is_a_feature_among_others(name):
    features = (Sparse("item", rows=9), Sequence("history", vocabulary="item", rows=9))
    model = build(name, Schema(features=DENSE + features, label=LABELS))
    assert {table.features for table in model.tables} == {("item", "history")}
    assert not model.sequences
    assert logits_of(model, lookup(model, 5), torch.randn(5, 3)).shape == (5, *SHAPE.get(name, ()))


@every_model
def test_models_without_dense_features(name):
    if name == "dlrm":
        with pytest.raises(ValueError, match="DLRM needs dense features"):
            build(name, schema_of(name, dense=()))
        return
    model = build(name, schema_of(name, dense=()))
    logits = logits_of(model, lookup(model, 2), torch.empty(2, 0))
    assert logits.shape == (2, *SHAPE.get(name, ()))
    assert list(model.parameters())


def test_parameter_names_are_those_of_checkpoints():
    assert list(build("dlrm").state_dict()) == [
        f"{part}.layers.{n}.{kind}"
        for part in ("bottom", "top")
        for n in (0, 1)
        for kind in ("weight", "bias")
    ]


def test_features_of_one_vocabulary_read_one_table():
    shared = (
        Sparse("item", vocabulary="items", rows=9),
        Sparse("user", rows=5),
        Sparse("last_item", vocabulary="items", rows=9),
    )
    tables = models.build("deepfm", Schema(features=DENSE + shared), dim=4).tables
    assert [(t.name, t.rows, t.dim, t.features, t.role) for t in tables] == [
        ("items", 9, 4, ("item", "last_item"), "vector"),
        ("user", 5, 4, ("user",), "vector"),
        ("items.linear", 9, 1, ("item", "last_item"), "linear"),
        ("user.linear", 5, 1, ("user",), "linear"),
    ]


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match="can, tbsm, hstu, mmoe, ple, esmm, or your own as file.py:Class, not 'dlmr'"
    ):
        models.build("dlmr", SCHEMA)


@every_model
def test_models_are_ordinary_modules(name):
    assert isinstance(build(name), nn.Module)


@every_model
def test_a_model_reads_vectors_among_the_dense_values(name):
    schema = schema_of(name, (*DENSE, Dense("image", width=20), Dense("tiny", width=2)))
    model = build(name, schema)
    vectors, dense = lookup(model, 7), torch.randn(7, schema.num_dense)
    logits = logits_of(model, vectors, dense)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    readers = [p.grad for p in model.parameters() if p.dim() > 1 and p.shape[-1] in (20, dense.shape[1])]
    assert readers and all(grad.abs().sum(0).min() > 0 for grad in readers)
