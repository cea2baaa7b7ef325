"""Models on looked-up vectors: what they declare, what they compute, and that they learn."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hotrows import models, optim
from hotrows.nn import choose_linear_paths, use_linear_paths
from hotrows.schema import Constant, Dense, Schema, Sequence, Sparse

SPARSE = tuple(Sparse(f"C{n}", rows=10 + n) for n in range(4))
DENSE = tuple(Dense(f"I{n}") for n in range(3))
SCHEMA = Schema(features=DENSE + SPARSE)
SMALL = {
    "dlrm": {"bottom": (16,), "top": (16,)},
    "deepfm": {"hidden": (16, 16)},
    "wide_deep": {"hidden": (16, 16)},
    "dcnv2": {"hidden": (16, 16)},
}


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)  # small problems: a team of threads would only wait for each other


class FakeVectors:
    """Looked-up vectors of a batch as one leaf per role: [B, F, D]."""

    def __init__(self, **leaves):
        self.leaves = leaves

    def stack(self, role="vector", features=None):
        return self.leaves[role]


def build(name, **options):
    return models.build(name, SCHEMA, dim=8, **SMALL[name], **options)


def lookup(size=32, scale=0.1):
    vector = (torch.randn(size, 4, 8) * scale).requires_grad_()
    linear = (torch.randn(size, 4, 1) * scale).requires_grad_()
    return FakeVectors(vector=vector, linear=linear)


@pytest.mark.parametrize("name", models.BY_NAME)
@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
def test_a_model_gives_a_float32_logit_per_sample_and_gradients_to_all(name, bfloat16):
    model, vectors = build(name), lookup(7)
    use_linear_paths(model, {})
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model(vectors, torch.randn(7, 3))
    assert logits.shape == (7,) and logits.dtype == torch.float32
    logits.square().sum().backward()
    roles = {table.role for table in model.tables}
    assert all(vectors.leaves[role].grad.dtype == torch.float32 for role in roles)
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", models.BY_NAME)
@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
def test_a_model_learns(name, bfloat16):
    model = build(name)
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    use_linear_paths(model, choose_linear_paths(model, 64, dtype, seconds=0.02))
    vectors, dense = lookup(64), torch.rand(64, 3)
    labels = (torch.rand(64) < 0.5).float()
    optimizer = torch.optim.Adam([*model.parameters(), *vectors.leaves.values()], lr=0.01)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = model(vectors, dense)
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", models.BY_NAME)
def test_chosen_paths_change_rounding_alone(name):
    model, vectors, dense = build(name), lookup(), torch.randn(32, 3)
    expected = model(vectors, dense)
    names = list(dict(model.named_parameters()))
    use_linear_paths(model, choose_linear_paths(model, 32, seconds=0.02))
    torch.testing.assert_close(model(vectors, dense), expected, rtol=1e-4, atol=1e-5)
    assert list(dict(model.named_parameters())) == names


def test_dlrm_is_its_formula():
    model, vectors, dense = build("dlrm"), lookup(5), torch.rand(5, 3)
    bottom = model.bottom(dense)
    z = torch.cat([bottom[:, None], vectors.stack()], dim=1)
    products = z @ z.transpose(1, 2)
    pairs = [products[:, i, j] for i in range(5) for j in range(i)]
    expected = model.top(torch.cat([bottom, torch.stack(pairs, 1)], dim=1)).squeeze(1)
    torch.testing.assert_close(model(vectors, dense), expected)


def test_deepfm_is_its_formula():
    model, vectors, dense = build("deepfm"), lookup(5), torch.rand(5, 3)
    v = vectors.stack()
    pairs = sum((v[:, i] * v[:, j]).sum(1) for i in range(4) for j in range(i))
    first = vectors.stack("linear").sum((1, 2)) + model.linear(dense).squeeze(1)
    deep = model.deep(torch.cat([v.flatten(1), dense], dim=1)).squeeze(1)
    torch.testing.assert_close(model(vectors, dense), deep + first + pairs)


def test_both_structures_of_dcnv2_and_its_low_rank_run():
    for options in ({"structure": "stacked"}, {"structure": "parallel"}, {"rank": 2}):
        assert build("dcnv2", **options)(lookup(3), torch.rand(3, 3)).shape == (3,)


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


def test_the_wide_part_trains_under_ftrl_from_zero():
    wide = [table for table in build("wide_deep").tables if table.role == "linear"]
    assert len(wide) == 4
    assert all(t.optimizer == optim.FTRL() and t.initializer == Constant(0.0) for t in wide)


@pytest.mark.parametrize("name", models.BY_NAME)
def test_schemas_that_a_model_cannot_train_on_are_refused(name):
    with pytest.raises(ValueError, match="at least one feature with ids"):
        models.build(name, Schema(features=DENSE))


@pytest.mark.parametrize("name", models.BY_NAME)
def test_a_sequence_is_a_feature_among_others(name):
    features = (Sparse("item", rows=9), Sequence("history", vocabulary="item", rows=9))
    model = models.build(name, Schema(features=DENSE + features), dim=8, **SMALL[name])
    assert {table.features for table in model.tables} == {("item", "history")}
    vectors = FakeVectors(vector=torch.randn(5, 2, 8), linear=torch.randn(5, 2, 1))
    assert model(vectors, torch.randn(5, 3)).shape == (5,)


def test_models_without_dense_features():
    schema = Schema(features=SPARSE)
    for name in ("deepfm", "wide_deep", "dcnv2"):
        model = models.build(name, schema, dim=8)
        assert model(lookup(2), torch.empty(2, 0)).shape == (2,)
    with pytest.raises(ValueError, match="DLRM needs dense features"):
        models.build("dlrm", schema)


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="dcnv2, or your own as file.py:Class, not 'dlmr'"):
        models.build("dlmr", SCHEMA)


def test_models_are_ordinary_modules():
    assert all(isinstance(build(name), nn.Module) for name in models.BY_NAME)
