"""DIN, DIEN and CAN against their formulas, spelled out sample by sample and state by state."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from hotrows import models
from hotrows.models.interests import EVOLUTIONS
from hotrows.models.nn import samples_of
from hotrows.schema import Schema, Sequence, Sparse
from tests.models.looked_up import (
    DENSE,
    HISTORY,
    SPARSE,
    FakeVectors,
    build,
    logits_of,
    lookup,
    schema_of,
)
from tests.support.transduction import formula as transduced

INTEREST_MODELS = ("din", "dien", "can", "hstu")
LENGTHS = [3, 0, 1, 4, 0]
SHOP = Schema(
    features=(
        Sparse("item", rows=9),
        Sparse("category", rows=4),
        Sequence("items", vocabulary="item", rows=9),
        Sequence("categories", vocabulary="category", rows=4),
        Sequence("searches", rows=7),
    )
)
JOINED = [["items", "categories"]]
in_every_mode = pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
in_every_form = pytest.mark.parametrize("form", ["paper", "code"])


# ---- the formulas


def each_sample(offsets):
    """The positions of each sample."""
    return [slice(begin, end) for begin, end in itertools.pairwise(offsets.tolist())]


def scores_of(attention, target, past, offsets):
    """[N]: DIN's unit on [q, k, q - k, q * k]."""
    q = target[samples_of(offsets)]
    x = torch.cat([q, past, q - past, q * past], 1) @ attention.first.weight.t()
    return attention.rest(attention.activation(x + attention.first.bias)).squeeze(1)


def weighed(scores, past, offsets, softmax, scale=1.0):
    """[B, D]: each sample's sum of weight times element."""
    result = []
    for place in each_sample(offsets):
        weights = (scores[place] * scale).softmax(0) if softmax else scores[place] * scale
        result.append((weights[:, None] * past[place]).sum(0))
    return torch.stack(result)


def states_of(gru, past, attention, kind):
    """The states of one sample, from zeros."""
    h, states = torch.zeros(gru.hidden_size), []
    w, u = gru.weight_ih.chunk(3), gru.weight_hh.chunk(3)
    b, c = gru.bias_ih.chunk(3), gru.bias_hh.chunk(3)
    for x, a in zip(past, attention, strict=True):
        r = torch.sigmoid(w[0] @ x + b[0] + u[0] @ h + c[0])
        z = torch.sigmoid(w[1] @ x + b[1] + u[1] @ h + c[1])
        if gru.reset == "after":
            new = torch.tanh(w[2] @ x + b[2] + r * (u[2] @ h + c[2]))
        else:
            new = torch.tanh(w[2] @ x + b[2] + u[2] @ (r * h) + c[2])
        share = {"gru": 1 - z, "augru": a * z, "augru_code": 1 - (1 - a) * z, "agru": a}[kind]
        h = (1 - share) * h + share * new
        states.append(h)
    return torch.stack(states) if states else past.new_zeros(0, gru.hidden_size)


def evolved(interest, target, past, offsets):
    """The states of DIEN's first GRU, [N, D], and the last one of its second, [B, D]."""
    query, extracted, last = interest.query(target), [], []
    nothing = torch.zeros(len(past))
    for place in each_sample(offsets):
        extracted.append(states_of(interest.extraction, past[place], nothing[place], "gru"))
    states = torch.cat(extracted)
    if hasattr(interest.attention, "first"):
        scores = scores_of(interest.attention, query, states, offsets)
    else:
        scores = (states @ interest.attention.weight * query[samples_of(offsets)]).sum(1)
    for place in each_sample(offsets):
        a, x = scores[place].softmax(0), states[place]
        if interest.evolution == "aigru":
            h = states_of(interest.evolving, x * a[:, None], nothing[place], "gru")
        else:
            h = states_of(interest.evolving, x, a, interest.evolution)
        last.append(h[-1] if len(h) else torch.zeros(len(target[0])))
    return states, torch.stack(last)


def auxiliary_loss(interest, states, past, offsets):
    """What came next, told from an element that another place of the batch has."""
    others = past[1:][torch.randperm(len(past) - 1)]
    score = interest.tells or (lambda states, elements: (states * elements).sum(1))
    right, wrong = score(states[:-1], past[1:]), score(states[:-1], others)
    losses = [
        -torch.log(torch.sigmoid(right[n])) - torch.log(1 - torch.sigmoid(wrong[n]))
        for place in each_sample(offsets)
        for n in range(place.start, place.stop - 1)
    ]
    return torch.stack(losses).mean()


def co_actions(row, inputs, sizes, orders, shared):
    """One sample's small network, its weights in `row`, over the powers of its inputs."""
    matrices, outputs = iter([]), []
    split = [i * o for i, o in itertools.pairwise(sizes)] * (1 if shared else orders)
    parts = list(row.split(split))
    for order in range(1, orders + 1):
        if order == 1 or not shared:
            matrices = [parts.pop(0).view(pair) for pair in itertools.pairwise(sizes)]
        x = inputs**order
        for place, matrix in enumerate(matrices):
            x = x @ matrix if place == len(matrices) - 1 else torch.tanh(x @ matrix)
            outputs.append(x.sum(0))
    return torch.cat(outputs)


# ---- the models


def random_model(name, schema=None, training=False, **options):
    """A model whose parameters and running averages are all random."""
    model = models.build(name, schema or schema_of(name), dim=8, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    return model.train(training)


def common_parts(vectors, dense):
    return [vectors.stack("vector", ["C0", "C1", "C2", "C3"]).flatten(1), dense]


@in_every_mode
@in_every_form
def test_din_is_its_formula(form, training):
    model, dense = random_model("din", training=training, form=form), torch.randn(5, 3)
    vectors = lookup(model, 5, 1.0, LENGTHS)
    target, (past, offsets) = vectors["C0"], vectors.sequence("history")
    (unit,) = model.interests
    scores = scores_of(unit.attention, target, past, offsets)
    if form == "paper":
        interest = weighed(scores, past, offsets, softmax=False)
        logits = model.top(torch.cat([*common_parts(vectors, dense), interest], 1)).squeeze(1)
    else:
        norm, layer = unit.projection
        interest = layer(norm(weighed(scores, past, offsets, softmax=True, scale=8**-0.5)))
        x = torch.cat([*common_parts(vectors, dense), interest, interest * target], 1)
        logits = model.top(model.norm(x)).squeeze(1) + vectors["C0", "bias"].squeeze(1)
    assert_close(model(vectors, dense), logits, rtol=1e-4, atol=1e-4)


def test_the_forms_of_din_have_their_sizes():
    paper, code = (models.build("din", schema_of("din"), form=form) for form in ("paper", "code"))
    assert paper.interests[0].attention.first.weight.shape == (36, 64)
    assert code.interests[0].attention.first.weight.shape == (80, 64)
    assert [layer.out_features for layer in paper.top.layers] == [200, 80, 1]
    assert [layer.out_features for layer in code.top.layers] == [80, 40, 1]


@in_every_mode
@in_every_form
@pytest.mark.parametrize("evolution", EVOLUTIONS)
def test_dien_is_its_formula(form, evolution, training):
    options = {"form": form, "evolution": evolution, "auxiliary": 0.5}
    model, dense = random_model("dien", training=training, **options), torch.randn(5, 3)
    vectors = lookup(model, 5, 1.0, LENGTHS)
    target, (past, offsets) = vectors["C0"], vectors.sequence("history")
    (unit,) = model.interests
    torch.manual_seed(7)
    result, loss = models.logits_and_loss(model(vectors, dense))
    states, last = evolved(unit, target, past, offsets)
    parts = [*common_parts(vectors, dense), last]
    if form == "code":
        total = weighed(torch.ones(len(past)), past, offsets, softmax=False)
        parts += [total, total * target]
    assert_close(result, model.top(model.norm(torch.cat(parts, 1))).squeeze(1), rtol=1e-4, atol=1e-4)
    if training:
        torch.manual_seed(7)  # the negatives are drawn alike
        assert_close(loss, 0.5 * auxiliary_loss(unit, states, past, offsets))
    else:
        assert loss is None


def test_the_forms_of_dien_are_those_of_paper_and_code():
    paper, code = (random_model("dien", form=form).interests[0] for form in ("paper", "code"))
    assert (paper.evolution, paper.extraction.reset, paper.tells) == ("augru", "after", None)
    assert (code.evolution, code.extraction.reset, code.sums) == ("augru_code", "before", True)
    assert [layer.out_features for layer in code.tells.layers.layers] == [100, 50, 1]
    assert code.attention.first.weight.shape == (80, 32)


def test_the_auxiliary_loss_may_be_left_out():
    model = build("dien", auxiliary=0.0)
    assert isinstance(model(lookup(model, 5, lengths=LENGTHS), torch.randn(5, 3)), torch.Tensor)


@pytest.mark.parametrize("form", ["paper", "code"])
@pytest.mark.parametrize("lengths", [[0, 0], [1, 0], [1, 1], [2, 0]], ids=str)
def test_few_elements_without_a_next_make_no_loss_and_no_crash(form, lengths):
    model = build("dien", form=form)
    _, loss = model(lookup(model, 2, lengths=lengths), torch.randn(2, 3))
    assert loss.isfinite() and (loss > 0) == (max(lengths) > 1)
    loss.backward()


def test_the_auxiliary_loss_has_the_gradients_of_its_formula():
    (unit,) = random_model("dien", training=True).interests
    past, offsets = torch.randn(8, 8, requires_grad=True), torch.tensor([0, 3, 3, 4, 8])
    leaves, target = (past, *unit.extraction.parameters()), torch.randn(4, 8)
    torch.manual_seed(7)
    _, loss = unit(target, past, offsets)
    states, _ = evolved(unit, target, past, offsets)
    torch.manual_seed(7)
    expected = auxiliary_loss(unit, states, past, offsets)
    assert_close(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves))


@in_every_mode
@pytest.mark.parametrize("shared", [True, False], ids=["shared orders", "orders apart"])
@pytest.mark.parametrize("base", ["pooled", "din", "dien"])
def test_can_is_its_formula(base, shared, training):
    sizes, orders = (4, 3, 2), 2
    options = {"base": base, "sizes": sizes, "orders": orders, "shared_orders": shared}
    model, dense = random_model("can", training=training, **options), torch.randn(5, 3)
    vectors = lookup(model, 5, 1.0, LENGTHS)
    target, (past, offsets) = vectors["C0"], vectors.sequence("history")
    (unit,) = model.interests
    if base == "pooled":
        interest = weighed(torch.ones(len(past)), past, offsets, softmax=False)
    elif base == "din":
        scores = scores_of(unit.attention, target, past, offsets)
        interest = weighed(scores, past, offsets, softmax=True, scale=8**-0.5)
    else:
        _, interest = evolved(unit, target, past, offsets)
    rows, (inputs, _) = (
        vectors["C0", "co_action_weights"],
        vectors.sequence("history", "co_action_inputs"),
    )
    acted = torch.stack(
        [
            co_actions(row, inputs[place], sizes, orders, shared)
            for row, place in zip(rows, each_sample(offsets), strict=True)
        ]
    )
    x = torch.cat([*common_parts(vectors, dense), interest, acted], 1)
    expected = model.top(model.norm(x)).squeeze(1)
    result, loss = models.logits_and_loss(model(vectors, dense))
    assert_close(result, expected, rtol=1e-4, atol=1e-4)
    assert (loss is not None) == (training and base == "dien")


def test_hstu_is_its_formula():
    """The state of each candidate as the last element of its list."""
    model, dense = random_model("hstu", layers=3, length=2), torch.randn(5, 3)
    vectors = lookup(model, 5, 1.0, LENGTHS)
    target, (past, offsets) = vectors["C0"], vectors.sequence("history")
    (unit,) = model.interests
    states = []
    for candidate, place in zip(target, each_sample(offsets), strict=True):
        x = torch.cat([past[place], candidate[None]])
        for layer in unit.layers:
            x = transduced(layer, x)
        states.append(x[-1])
    states = torch.stack(states)
    x = torch.cat([*common_parts(vectors, dense), states, states * target], 1)
    logits = model.top(model.norm(x)).squeeze(1) + vectors["C0", "bias"].squeeze(1)
    assert_close(model(vectors, dense), logits, rtol=1e-4, atol=1e-4)


def test_the_layers_of_hstu_reach_as_far_as_histories():
    def length_of(**options):
        features = (*SHOP.features[:3], Sequence("categories", vocabulary="category", rows=4, **options))
        model = models.build("hstu", Schema(features), histories=["categories"])
        return model.interests[0].layers[0].distances.shape[1] - 1

    assert (length_of(), length_of(max_length=7)) == (100, 7)
    with pytest.raises(ValueError, match="at least one layer, not layers=0"):
        build("hstu", layers=0)


def test_the_pairs_of_can_at_once_are_the_pairs_one_by_one():
    pairs = [["C0", "history"], ["C1", "history"], ["C2", "C3"], ["C0", "C1"]]
    model = build("can", pairs=pairs)
    vectors = lookup(model, 5, 1.0, LENGTHS)
    together = model.more(vectors)
    assert len(together) == 4
    for (giver, feed), result in zip(pairs, together, strict=True):
        if feed == "history":
            inputs, offsets = vectors.sequence(feed, "co_action_inputs")
        else:
            inputs, offsets = vectors[feed, "co_action_inputs"], torch.arange(6)
        expected = model.co_action(vectors[giver, "co_action_weights"], inputs, offsets)
        assert_close(result, expected)


def test_the_tables_of_can_are_as_wide_as_its_networks():
    model = build("can", pairs=[["C1", "history"], ["C2", "C3"]], shared_orders=False)
    wide = [(t.features, t.dim) for t in model.tables if t.role == "co_action_weights"]
    assert wide == [(("C1",), 2 * 18), (("C2",), 2 * 18)]
    narrow = [(t.name, t.dim) for t in model.tables if t.role == "co_action_inputs"]
    assert narrow == [("C3.co_action_inputs", 4), ("C0.co_action_inputs", 4)]


# ---- histories


@pytest.mark.parametrize("name", INTEREST_MODELS)
def test_an_item_and_the_past_share_a_table(name):
    model = build(name)
    assert model.sequences == ("history",)
    of_items = [t for t in model.tables if t.role == "vector" and "history" in t.features]
    assert [(t.name, t.features) for t in of_items] == [("C0", ("C0", "history"))]


def test_a_sequence_without_a_target_is_pooled_with_the_others():
    model = build("din", SHOP)
    assert model.sequences == ("items", "categories")
    assert model.others == ("item", "category", "searches")
    logits = logits_of(model, lookup(model, 5, lengths=LENGTHS), torch.empty(5, 0))
    assert logits.shape == (5,)


def test_the_target_is_the_first_feature_of_one_id():
    liked = Sparse("liked", vocabulary="C0", rows=10, many=True)
    also = Sparse("also", vocabulary="C0", rows=10)
    model = build("din", Schema(features=(*DENSE, liked, *SPARSE, also, HISTORY)))
    assert [(h.targets, h.sequences) for h in model.histories] == [(("C0",), ("history",))]


def test_joined_sequences_are_one_history_of_wider_vectors():
    model = random_model("din", SHOP, form="paper", histories=JOINED)
    vectors = lookup(model, 5, 1.0, LENGTHS)
    target = torch.cat([vectors["item"], vectors["category"]], 1)
    past = torch.cat([vectors[name] for name in JOINED[0]], 1)
    _, offsets = vectors.sequence("items")
    (unit,) = model.interests
    scores = scores_of(unit.attention, target, past, offsets)
    interest = weighed(scores, past, offsets, softmax=False)
    x = [vectors["item"], vectors["category"], vectors["searches"], interest]
    logits = model.top(torch.cat(x, 1)).squeeze(1)
    assert_close(model(vectors, torch.empty(5, 0)), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", INTEREST_MODELS)
def test_histories_of_any_number_and_joined_ones_give_logits(name):
    for histories in (None, JOINED, ["items"], ["items", ["categories", "items"]]):
        model = build(name, SHOP, histories=histories)
        logits = logits_of(model, lookup(model, 5, lengths=LENGTHS), torch.empty(5, 0))
        assert logits.shape == (5,) and logits.isfinite().all()


@pytest.mark.parametrize("name", INTEREST_MODELS)
def test_joined_sequences_of_unequal_lengths_are_refused(name):
    model = build(name, SHOP, histories=JOINED)
    vectors = lookup(model, 2, lengths=[2, 1])
    vectors.offsets["categories"] = torch.tensor([0, 1, 3])
    with pytest.raises(ValueError, match="'items' and 'categories' of one history differ in length"):
        model(vectors, torch.empty(2, 0))


# ---- empty histories, and samples beside each other

VARIANTS = [
    ("din", {"form": "paper"}),
    ("din", {"form": "code"}),
    ("dien", {"form": "paper"}),
    ("dien", {"form": "code"}),
    ("can", {"base": "pooled"}),
    ("can", {"base": "din"}),
    ("can", {"base": "dien"}),
]
every_variant = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)


@every_variant
@in_every_mode
def test_empty_histories_give_finite_logits_and_no_interest(name, options, training):
    model = build(name, **options).train(training)
    vectors = lookup(model, 5, 1.0, lengths=[0] * 5)
    logits, loss = models.logits_and_loss(model(vectors, torch.randn(5, 3)))
    assert logits.isfinite().all() and (loss is None or loss == 0)
    (unit,) = model.interests
    if name == "din":
        unit.projection = torch.nn.Identity()  # which would shift what is zero
    interest, _ = unit(vectors["C0"], *vectors.sequence("history"))
    assert not interest.any()
    if name == "can":
        assert not any(acted.any() for acted in model.more(vectors))
    logits.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def chosen(vectors, samples):
    """The vectors of some samples alone, in that order."""
    leaves, offsets = {}, {}
    for (feature, role), leaf in vectors.leaves.items():
        if feature in vectors.offsets:
            lists = [leaf[place] for place in each_sample(vectors.offsets[feature])]
            lengths = torch.tensor([0, *(len(lists[b]) for b in samples)])
            leaves[feature, role] = torch.cat([lists[b] for b in samples])
            offsets[feature] = lengths.cumsum(0)
        else:
            leaves[feature, role] = leaf[samples]
    return FakeVectors(leaves, offsets)


@every_variant
def test_neither_order_nor_company_changes_a_samples_logit(name, options):
    model = random_model(name, **options)
    vectors, dense = lookup(model, 5, 1.0, LENGTHS), torch.randn(5, 3)
    logits = model(vectors, dense)
    for samples in ([4, 2, 0, 3, 1], [3], [1], [2, 1], [0, 0, 0]):
        alone = model(chosen(vectors, samples), dense[samples])
        assert_close(alone, logits[samples], rtol=1e-4, atol=1e-5)
