"""The classic models against their formulas, spelled out."""

import pytest
import torch

from tests.models.looked_up import build, lookup, randomize
from tests.nn.groups import alone


def test_dlrm_is_its_formula():
    model, dense = build("dlrm"), torch.rand(5, 3)
    vectors = lookup(model, 5)
    bottom = model.bottom(dense)
    z = torch.cat([bottom[:, None], vectors.stack()], dim=1)
    products = z @ z.transpose(1, 2)
    pairs = [products[:, i, j] for i in range(5) for j in range(i)]
    expected = model.top(torch.cat([bottom, torch.stack(pairs, 1)], dim=1)).squeeze(1)
    torch.testing.assert_close(model(vectors, dense), expected)


def test_deepfm_is_its_formula():
    model, dense = build("deepfm"), torch.rand(5, 3)
    vectors = lookup(model, 5)
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
    model, dense = build("dcnv2", **options), torch.rand(3, 3)
    vectors = lookup(model, 3)
    x = torch.cat([vectors.stack().flatten(1), dense], dim=1)
    crossed = model.cross(x)
    if options.get("structure") == "stacked":
        expected = model.last(model.deep(crossed))
    else:
        expected = model.last(torch.cat([crossed, model.deep(x)], dim=1))
    torch.testing.assert_close(model(vectors, dense), expected.squeeze(1))


@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_dcnv2_adds_weights_of_single_features_where_it_is_asked_to(structure):
    model, dense = build("dcnv2", structure=structure, linear=True), torch.rand(3, 3)
    vectors = lookup(model, 3)
    plain = build("dcnv2", structure=structure)
    plain.load_state_dict({n: v for n, v in model.state_dict().items() if not n.startswith("linear.")})
    torch.nn.init.normal_(model.linear.dense.weight)
    first = vectors.stack("linear").sum((1, 2)) + (dense * model.linear.dense.weight).sum(1)
    torch.testing.assert_close(model(vectors, dense), plain(vectors, dense) + first)


def test_lr_is_its_formula():
    model, dense = build("lr"), torch.rand(5, 3)
    vectors = lookup(model, 5)
    randomize(model)
    ids = sum(vectors.stack("linear")[:, f, 0] for f in range(4))
    expected = model.first.bias + ids + (dense * model.first.dense.weight).sum(1)
    torch.testing.assert_close(model(vectors, dense), expected)


def test_lr_says_one_half_of_all_before_it_is_trained():
    model = build("lr")
    assert torch.equal(model(lookup(model, 5, scale=0), torch.rand(5, 3)), torch.zeros(5))


def test_fm_is_lr_and_the_pairs():
    model, dense = build("fm"), torch.rand(5, 3)
    vectors = lookup(model, 5)
    randomize(model)
    v = vectors.stack()
    pairs = sum((v[:, i] * v[:, j]).sum(1) for i in range(4) for j in range(i))
    first = model.first.bias + vectors.stack("linear").sum((1, 2))
    expected = first + dense @ model.first.dense.weight[0] + pairs
    torch.testing.assert_close(model(vectors, dense), expected)


def test_dnn_is_its_formula():
    model, dense = build("dnn"), torch.rand(5, 3)
    vectors = lookup(model, 5)
    first, second, last = model.deep.layers
    x = torch.cat([vectors.stack().reshape(5, 32), dense], dim=1)
    expected = last(second(first(x).relu()).relu()).squeeze(1)
    torch.testing.assert_close(model(vectors, dense), expected)


def test_wide_deep_is_its_formula():
    model, dense = build("wide_deep", crosses=[["C0", "C1"]]), torch.rand(5, 3)
    randomize(model)
    vectors = lookup(model, 5)
    deep = model.deep(torch.cat([vectors.stack().flatten(1), dense], dim=1)).squeeze(1)
    wide = vectors.stack("linear").sum((1, 2)) + model.wide(dense).squeeze(1)
    torch.testing.assert_close(model(vectors, dense), deep + wide)


@pytest.mark.parametrize("gate_hidden", [(), (5,)])
def test_mmoe_is_its_formula(gate_hidden):
    model, dense = build("mmoe", gate_hidden=gate_hidden), torch.rand(5, 3)
    vectors = lookup(model, 5)
    x = torch.cat([vectors.stack().flatten(1), dense], dim=1)
    experts = torch.stack(
        [expert(x) for expert in alone(model.mixture.experts, "relu", "relu")], 1
    )  # [B, E, N]
    logits = []
    gates, towers = alone(model.mixture.gates, "relu", "none"), alone(model.towers, "relu", "none")
    for gate, tower in zip(gates, towers, strict=True):
        mixed = (gate(x).softmax(1)[:, :, None] * experts).sum(1)
        logits.append(tower(mixed).squeeze(1))
    torch.testing.assert_close(model(vectors, dense), torch.stack(logits, 1))


def test_ple_is_its_formula():
    """Equations 4 to 7 of the paper: gates choose among a task's own experts and the shared ones; the
    shared gate of a level below the last chooses among all."""
    model, dense = build("ple", task_experts=2, shared_experts=3), torch.rand(5, 3)
    vectors = lookup(model, 5)
    x = torch.cat([vectors.stack().flatten(1), dense], dim=1)
    first, last = model.levels

    def outputs(level, inputs):
        experts = alone(level.experts, "relu", "relu")
        return [expert(inputs[min(n // 2, 2)]) for n, expert in enumerate(experts)]

    def mixed(gate, x, experts):
        return (gate(x).softmax(1)[:, :, None] * torch.stack(experts, 1)).sum(1)

    below = outputs(first, [x, x, x])
    gates = list(alone(first.gates, "relu", "none"))
    inputs = [mixed(gates[t], x, below[2 * t : 2 * t + 2] + below[4:]) for t in range(2)]
    inputs.append(mixed(first.shared_gate, x, below))
    above = outputs(last, inputs)
    gates = list(alone(last.gates, "relu", "none"))
    towers = list(alone(model.towers, "relu", "none"))
    logits = [
        towers[t](mixed(gates[t], inputs[t], above[2 * t : 2 * t + 2] + above[4:])).squeeze(1)
        for t in range(2)
    ]
    assert last.shared_gate is None
    torch.testing.assert_close(model(vectors, dense), torch.stack(logits, 1))


def test_esmm_is_its_formula():
    model, dense = build("esmm"), torch.rand(5, 3)
    vectors = lookup(model, 5)
    x = torch.cat([vectors.stack().flatten(1), dense], dim=1)
    click, after = (tower(x).squeeze(1).sigmoid() for tower in alone(model.towers, "relu", "none"))
    expected = torch.stack([click, click * after], 1)
    torch.testing.assert_close(model(vectors, dense).sigmoid(), expected)


def test_esmm_begins_at_the_rates_of_both_labels():
    model = build("esmm")
    rates = torch.tensor([0.2, 0.01])
    model.begin_at(rates.logit())
    for parameter in (*model.towers.first.parameters(), *model.towers.weights):
        torch.nn.init.zeros_(parameter)
    predicted = model(lookup(model, 5), torch.rand(5, 3)).sigmoid()
    torch.testing.assert_close(predicted, rates.expand(5, 2))
    with pytest.raises(ValueError, match="needs two labels, of clicks and of conversions, not buy: name"):
        build("esmm", labels=["buy"])


def test_mmoe_learns_the_labels_that_it_is_told():
    assert build("mmoe").labels == ("click", "buy")
    model = build("mmoe", labels=["buy"])
    assert model.labels == ("buy",)
    assert model(lookup(model, 5), torch.rand(5, 3)).shape == (5, 1)
