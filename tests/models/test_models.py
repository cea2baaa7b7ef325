"""Models on looked-up vectors: what they declare, what they compute, and that they learn."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hotrows import Batch, Embedding, models, optim
from hotrows.nn import choose_linear_paths, use_linear_paths
from hotrows.schema import Constant, Cross, Dense, Schema, Sequence, Sparse

SPARSE = tuple(Sparse(f"C{n}", rows=10 + n) for n in range(4))
DENSE = tuple(Dense(f"I{n}") for n in range(3))
SCHEMA = Schema(features=DENSE + SPARSE, label=("click", "buy"))
SMALL = {
    "lr": {},
    "fm": {"dim": 8},
    "dnn": {"dim": 8, "hidden": (16, 16)},
    "wide_deep": {"dim": 8, "hidden": (16, 16)},
    "deepfm": {"dim": 8, "hidden": (16, 16)},
    "dlrm": {"dim": 8, "bottom": (16,), "top": (16,)},
    "dcnv2": {"dim": 8, "hidden": (16, 16)},
    "mmoe": {"dim": 8, "num_experts": 3, "expert_hidden": (16, 8), "tower_hidden": (8,)},
}
SHAPE = {"mmoe": (2,)}  # of a sample's logits


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)  # small problems: a team of threads would only wait for each other


class FakeVectors:
    """Looked-up vectors of a batch as one leaf per role: [B, F, D]."""

    def __init__(self, **leaves):
        self.leaves = leaves

    def stack(self, role="vector", features=None):
        return self.leaves[role]


def build(name, schema=SCHEMA, **options):
    return models.build(name, schema, **{**SMALL[name], **options})


def randomize(model):
    for parameter in model.parameters():
        nn.init.normal_(parameter)


def lookup(size=32, scale=0.1):
    vector = (torch.randn(size, 4, 8) * scale).requires_grad_()
    linear = (torch.randn(size, 4, 1) * scale).requires_grad_()
    return FakeVectors(vector=vector, linear=linear)


@pytest.mark.parametrize("name", models.BY_NAME)
@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
def test_a_model_gives_float32_logits_and_gradients_to_all(name, bfloat16):
    model, vectors = build(name), lookup(7)
    use_linear_paths(model, {})
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model(vectors, torch.randn(7, 3))
    assert logits.shape == (7, *SHAPE.get(name, ())) and logits.dtype == torch.float32
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
    labels = (torch.rand(64, *SHAPE.get(name, ())) < 0.5).float()
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


@pytest.mark.parametrize(
    "options",
    [{"structure": "stacked"}, {"structure": "parallel"}, {"rank": 2}, {"rank": 2, "experts": 3}],
    ids=str,
)
def test_variants_of_dcnv2_are_their_formula(options):
    model, vectors, dense = build("dcnv2", **options), lookup(3), torch.rand(3, 3)
    x = torch.cat([vectors.stack().flatten(1), dense], dim=1)
    crossed = model.cross(x)
    if options.get("structure") == "stacked":
        expected = model.last(model.deep(crossed))
    else:
        expected = model.last(torch.cat([crossed, model.deep(x)], dim=1))
    torch.testing.assert_close(model(vectors, dense), expected.squeeze(1))


def test_lr_is_its_formula():
    model, vectors, dense = build("lr"), lookup(5), torch.rand(5, 3)
    randomize(model)
    ids = sum(vectors.stack("linear")[:, f, 0] for f in range(4))
    expected = model.first.bias + ids + (dense * model.first.dense.weight).sum(1)
    torch.testing.assert_close(model(vectors, dense), expected)
    assert torch.equal(build("lr")(FakeVectors(linear=torch.zeros(5, 4, 1)), dense), torch.zeros(5))


def test_fm_is_lr_and_the_pairs():
    model, vectors, dense = build("fm"), lookup(5), torch.rand(5, 3)
    randomize(model)
    v = vectors.stack()
    pairs = sum((v[:, i] * v[:, j]).sum(1) for i in range(4) for j in range(i))
    first = model.first.bias + vectors.stack("linear").sum((1, 2))
    expected = first + dense @ model.first.dense.weight[0] + pairs
    torch.testing.assert_close(model(vectors, dense), expected)


def test_dnn_is_its_formula():
    model, vectors, dense = build("dnn"), lookup(5), torch.rand(5, 3)
    first, second, last = model.deep.layers
    x = torch.cat([vectors.stack().reshape(5, 32), dense], dim=1)
    expected = last(second(first(x).relu()).relu()).squeeze(1)
    torch.testing.assert_close(model(vectors, dense), expected)


def test_wide_deep_is_its_formula():
    model, dense = build("wide_deep", crosses=[["C0", "C1"]]), torch.rand(5, 3)
    randomize(model)
    vectors = FakeVectors(vector=torch.randn(5, 4, 8), linear=torch.randn(5, 5, 1))
    deep = model.deep(torch.cat([vectors.stack().flatten(1), dense], dim=1)).squeeze(1)
    wide = vectors.stack("linear").sum((1, 2)) + model.wide(dense).squeeze(1)
    torch.testing.assert_close(model(vectors, dense), deep + wide)


@pytest.mark.parametrize("gate_hidden", [(), (5,)])
def test_mmoe_is_its_formula(gate_hidden):
    model, vectors, dense = build("mmoe", gate_hidden=gate_hidden), lookup(5), torch.rand(5, 3)
    x = torch.cat([vectors.stack().flatten(1), dense], dim=1)
    experts = torch.stack([expert(x) for expert in model.mixture.experts.groups], 1)  # [B, E, N]
    logits = []
    for gate, tower in zip(model.mixture.gates.groups, model.towers.groups, strict=True):
        mixed = (gate(x).softmax(1)[:, :, None] * experts).sum(1)
        logits.append(tower(mixed).squeeze(1))
    torch.testing.assert_close(model(vectors, dense), torch.stack(logits, 1))


def test_mmoe_learns_the_labels_that_it_is_told():
    assert build("mmoe").labels == ("click", "buy")
    model = build("mmoe", labels=["buy"])
    assert model.labels == ("buy",)
    assert model(lookup(5), torch.rand(5, 3)).shape == (5, 1)
    for labels in (["share"], [], ["buy", "buy"]):
        with pytest.raises(ValueError, match="labels of the schema, each once: some of click, buy"):
            build("mmoe", labels=labels)


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


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("wide_deep", {"crosses": [["C0", "I0"]]}, "'I0' cannot be crossed: only sparse .* C0, C1"),
        ("wide_deep", {"crosses": [["C0", "tags"]]}, "'tags' cannot be crossed: only sparse"),
        ("wide_deep", {"crosses": ["C0", "C1"]}, "must be lists of features, such as .*, not .C0."),
        ("wide_deep", {"crosses": [["C0"]]}, "two or more different features"),
        ("wide_deep", {"l1": -1.0}, "l1 and l2 of at least 0 and wide_lr above 0"),
        ("dcnv2", {"experts": 2}, "needs a rank for its 2 experts"),
        ("dcnv2", {"experts": 0, "rank": 2}, "at least one layer and one expert"),
        ("mmoe", {"num_experts": 0}, "at least one expert with at least one layer"),
        ("mmoe", {"expert_hidden": ()}, "at least one expert with at least one layer"),
        ("lr", {"dim": 8}, "LR has no option 'dim'"),
    ],
)
def test_options_that_a_model_cannot_have_are_refused(name, options, said):
    schema = Schema(features=(*DENSE, *SPARSE, Sparse("tags", many=True, rows=5)))
    with pytest.raises(ValueError, match=said):
        build(name, schema, **options)


@pytest.mark.parametrize("name", models.BY_NAME)
def test_schemas_that_a_model_cannot_train_on_are_refused(name):
    with pytest.raises(ValueError, match="at least one feature with ids"):
        models.build(name, Schema(features=DENSE))


@pytest.mark.parametrize("name", models.BY_NAME)
def test_a_sequence_is_a_feature_among_others(name):
    features = (Sparse("item", rows=9), Sequence("history", vocabulary="item", rows=9))
    model = build(name, Schema(features=DENSE + features, label=("click", "buy")))
    assert {table.features for table in model.tables} == {("item", "history")}
    vectors = FakeVectors(vector=torch.randn(5, 2, 8), linear=torch.randn(5, 2, 1))
    assert model(vectors, torch.randn(5, 3)).shape == (5, *SHAPE.get(name, ()))


def test_models_without_dense_features():
    schema = Schema(features=SPARSE)
    for name in models.BY_NAME.keys() - {"dlrm"}:
        model = build(name, schema)
        assert model(lookup(2), torch.empty(2, 0)).shape == (2, *((1,) if name == "mmoe" else ()))
        assert list(model.parameters())
    with pytest.raises(ValueError, match="DLRM needs dense features"):
        models.build("dlrm", schema)


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="dcnv2, mmoe, or your own as file.py:Class, not 'dlmr'"):
        models.build("dlmr", SCHEMA)


def test_models_are_ordinary_modules():
    assert all(isinstance(build(name), nn.Module) for name in models.BY_NAME)
