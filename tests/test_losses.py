"""Losses against plain Python, and what they say of labels and predictions."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from hotrows import losses

OUTPUTS, LABELS = [-2.0, -0.3, 0.0, 0.7, 3.0], [0.0, 1.0, 0.25, 1.0, 2.0]


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def cross_entropy(z, y):
    return -y * math.log(sigmoid(z)) - (1 - y) * math.log(1 - sigmoid(z))


SLOW = {
    "log_loss": cross_entropy,
    "soft": cross_entropy,
    "weighted:5": lambda z, y: cross_entropy(z, y) * (5 if y else 1),
    "focal:2": lambda z, y: cross_entropy(z, y) * (1 - (sigmoid(z) if y else 1 - sigmoid(z))) ** 2,
    "squared": lambda z, y: (z - y) ** 2,
    "huber:0.5": lambda z, y: (z - y) ** 2 / 2 if abs(z - y) <= 0.5 else 0.5 * (abs(z - y) - 0.25),
    "poisson": lambda z, y: math.exp(z) - y * z,
}


def labels_of(loss):
    """The labels of which the loss is: rounded to 0 and 1, cut at 1, or as they are."""
    return [float(y >= 1) if loss.labels.binary else min(y, loss.labels.high) for y in LABELS]


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 0.0, 3.0]])
def test_a_loss_is_its_formula_and_so_is_its_gradient(name, weights):
    loss, slow = losses.parse(name), SLOW[name]
    outputs, labels = torch.tensor(OUTPUTS, requires_grad=True), labels_of(loss)
    found = loss(outputs, torch.tensor(labels), None if weights is None else torch.tensor(weights))
    found.backward()
    w = weights or [1.0] * 5
    assert found.dtype == torch.float32
    expected = sum(w * slow(z, y) for z, y, w in zip(OUTPUTS, labels, w, strict=True)) / 5
    assert found.item() == pytest.approx(expected, rel=1e-5)
    h = 1e-6
    slopes = [
        w * (slow(z + h, y) - slow(z - h, y)) / (2 * h) / 5
        for z, y, w in zip(OUTPUTS, labels, w, strict=True)
    ]
    assert outputs.grad.tolist() == pytest.approx(slopes, abs=1e-5)


def slow_bpr(outputs, labels, groups, weights, pairs):
    """Every sample with the next ones of its group, pair by pair; with the gradient."""
    order = sorted(range(len(groups)), key=lambda i: groups[i])  # stable
    total, count, slopes = 0.0, 0.0, [0.0] * len(outputs)
    for a, i in enumerate(order):
        for j in order[a + 1 : a + 1 + pairs]:
            if groups[i] != groups[j] or labels[i] == labels[j]:
                continue
            up, down = (i, j) if labels[i] > labels[j] else (j, i)
            weight = weights[i] * weights[j]
            total += weight * math.log1p(math.exp(outputs[down] - outputs[up]))
            count += weight
            slope = weight * sigmoid(outputs[down] - outputs[up])
            slopes[up] -= slope
            slopes[down] += slope
    return (total / count, [s / count for s in slopes]) if count else (0.0, slopes)


@pytest.mark.parametrize("pairs", [1, 2, 16])
@pytest.mark.parametrize("most", [None, 1.0, 1e-3, 1e-12])
def test_bpr_is_the_mean_over_pairs_of_a_group(pairs, most):
    """most: the greatest weight. However small all are, the mean is that of pairs: no test once saw that
    weights of a thousandth had a loss of a millionth."""
    torch.manual_seed(pairs)
    outputs, labels = torch.randn(40), torch.randint(0, 3, (40,)).float()
    groups = torch.randint(-3, 3, (40,))
    weights = None if most is None else most * torch.rand(40)
    outputs.requires_grad_()
    loss = losses.parse(f"bpr:{pairs}")(outputs, labels, weights, groups)
    loss.backward()
    plain = (torch.ones(40) if weights is None else weights).tolist()
    expected, slopes = slow_bpr(outputs.tolist(), labels.tolist(), groups.tolist(), plain, pairs)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert outputs.grad.tolist() == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_bpr_without_a_pair_is_zero_and_moves_nothing(size):
    outputs = torch.randn(size, requires_grad=True)
    loss = losses.parse("bpr")(outputs, torch.ones(size), None, torch.zeros(size).long())
    loss.backward()
    assert loss.item() == 0 and not outputs.grad.any()


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        *[("log_loss", 0.2), ("soft", 0.4), ("weighted:5", 0.2), ("squared", 3.5), ("poisson", 2.5)],
        *[("focal:2", 0.2), ("focal:0.5", 0.7), ("focal:5", 0.01)],
    ],
)
def test_the_first_output_is_the_best_constant_and_predicts_the_mean(name, mean):
    loss = losses.parse(name)
    first = torch.tensor(loss.first_output(mean))
    assert loss.predictions(first).item() == pytest.approx(mean, rel=1e-5)
    labels = torch.tensor([0.0, 1.0]) if loss.labels.high == 1 else torch.tensor([mean - 1, mean + 1])
    shares = torch.tensor([1 - mean, mean]) if loss.labels.high == 1 else torch.ones(2)
    at = first.clone().requires_grad_()
    loss(at.expand(2), labels, shares).backward()
    assert at.grad.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 1, 2, 5])
def test_probabilities_of_a_focal_loss_keep_the_order_of_outputs_and_are_finite(gamma):
    loss = losses.Focal(gamma)
    outputs = torch.cat([torch.linspace(-40, 40, 401), torch.tensor([-1e4, 1e4])])
    logits = loss.calibrated(outputs)
    assert logits.dtype == torch.float32 and logits.isfinite().all()
    assert logits[:401].diff().min() > 0
    assert torch.equal(logits, torch.tensor(loss.calibrated(outputs.numpy()), dtype=torch.float32))
    assert torch.allclose(logits[:401], -logits[:401].flip(0), atol=1e-5)  # 1 and 0 are alike


@pytest.mark.parametrize("name", losses.NAMES)
def test_a_first_output_is_finite_also_without_any_click(name):
    assert all(math.isfinite(losses.parse(name).first_output(mean)) for mean in (0.0, 1.0))


def test_a_loss_reads_as_it_is_written():
    for text in (
        "log_loss",
        "focal:2",
        "huber:0.5",
        "weighted:20",
        "bpr:4",
        "squared:79000",
        "huber:2:0.1",
    ):
        assert str(losses.parse(text)) == text
    assert (str(losses.parse("huber")), losses.parse("huber").text) == ("huber:1", "huber:1:1")
    assert losses.parse_by_label("rating=squared, click=focal:3") == {
        "rating": losses.Squared(),
        "click": losses.Focal(3.0),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hinge", "a loss must be one of log_loss, soft, .*, not 'hinge'"),
        ("soft:2", "the loss soft takes no number"),
        ("squared:2:3", "the loss squared takes unit"),
        ("huber:2:3:4", "the loss huber takes delta and unit"),
        ("huber:2:0", "the unit of the loss huber must be a number above 0"),
        ("huber:-1", "the delta of the loss huber must be a number above 0"),
        ("huber:nan", "must be a number above 0"),
        ("focal:", "the gamma of the loss focal must be a number above 0"),
        ("squared,huber", "give one loss, or one for each label"),
        ("a=squared,huber", "give one loss, or one for each label"),
        ("a=squared,a=huber", "give one loss, or one for each label"),
    ],
)
def test_what_is_no_loss_is_refused_in_a_line(text, message):
    with pytest.raises(ValueError, match=message):
        losses.parse_by_label(text)


@pytest.mark.parametrize("text", ["squared:50", "huber:100:50", "huber:25:50"])
def test_a_unit_changes_what_the_model_puts_out_and_not_what_is_least(text):
    loss, labels = losses.parse(text), torch.tensor([-40.0, 0.0, 700.0, 900.0, 1000.0])
    plain = losses.parse(text.removesuffix(":50"))
    predictions = torch.randn(5) * 1e3
    outputs = (predictions / 50).requires_grad_()
    assert torch.allclose(loss.predictions(outputs), predictions)
    assert loss.first_output(500.0) == 10 and plain.first_output(500.0) == 500
    gradient, of_plain = (
        torch.autograd.grad(kind(z, labels), z)[0]
        for kind, z in ((loss, outputs), (plain, predictions.requires_grad_()))
    )
    assert torch.allclose(gradient / gradient[0], of_plain / of_plain[0], rtol=1e-4)
    assert gradient.abs().max() <= of_plain.abs().max()


@pytest.mark.parametrize("text", ["auc", "hit", "ndcg@0", "mrr@3", "ndcg@", ""])
def test_what_is_no_metric_of_groups_is_refused_in_a_line(text):
    with pytest.raises(ValueError, match="metrics must be of ndcg, ndcg@K, hit@K and mrr"):
        losses.parse_ranking(f"mrr,{text}")


def test_ranges_of_labels():
    values = np.array([0.0, 1.0, 0.5, -1.0, 3.0, math.nan, math.inf, 1e39])
    wrong = {name: losses.parse(name).labels.wrong(values).tolist() for name in losses.NAMES}
    assert wrong["log_loss"] == [False, False, True, True, True, True, True, True]
    assert wrong["soft"] == [False, False, False, True, True, True, True, True]
    assert wrong["poisson"] == [False, False, False, True, False, True, True, True]
    assert wrong["squared"] == [False, False, False, False, False, True, True, True]
    assert losses.ANY_NUMBER.includes(losses.AT_LEAST_ZERO)
    assert losses.ZERO_TO_ONE.includes(losses.ZERO_OR_ONE)
    assert not losses.ZERO_OR_ONE.includes(losses.ZERO_TO_ONE)
    assert not losses.ZERO_TO_ONE.includes(losses.AT_LEAST_ZERO)


ALL = losses.Calibration(
    {
        name: losses.parse(name)
        for name in ("focal:2", "weighted:12.3456789", "poisson", "squared:30", "bpr")
    }
)
SCALED = ALL.with_scales([(0.4, -1.5), (2.0, 0.25), (1.0, 0.0), (1.0, 0.5), (3.0, 0.0)])


@pytest.mark.parametrize("calibration", [ALL, SCALED], ids=["as trained", "scaled"])
def test_a_calibration_answers_alike_in_pytorch_and_numpy_and_from_its_file(calibration):
    outputs = torch.randn(20, 5)
    answers = calibration.predictions(outputs)
    links = {"sigmoid": torch.sigmoid, "exp": torch.exp, "identity": lambda x: x}
    for t, loss in enumerate(calibration.losses.values()):
        logits = loss.unbiased(outputs[:, t]) * loss.scale + loss.shift
        assert torch.allclose(answers[:, t], links[loss.link](logits), atol=1e-6), loss
        assert torch.allclose(calibration.calibrated(outputs)[:, t], logits, atol=1e-6), loss
    of_numpy = calibration.predictions(outputs.numpy())
    assert of_numpy.dtype == np.float32 and np.abs(of_numpy - answers.numpy()).max() < 1e-6
    text = json.dumps({n: dataclasses.asdict(x) for n, x in calibration.stored().items()})
    stored = {n: losses.StoredLoss(**fields) for n, fields in json.loads(text).items()}
    assert losses.Calibration.of_stored(stored) == calibration != ALL.with_scales([(0.5, 0.0)] * 5)


def test_a_scale_goes_on_with_the_label_and_the_loss_that_it_was_fitted_to():
    parse = losses.parse
    old = losses.Calibration({"buy": parse("focal:2"), "click": parse("log_loss")})
    old = old.with_scales([(0.5, 0.1), (0.25, 0.2)])
    for by_label, expected in (
        ({"click": "log_loss", "buy": "focal:2"}, ((0.25, 0.2), (0.5, 0.1))),  # in another order
        ({"buy": "focal:3", "click": "soft"}, ((1, 0), (1, 0))),  # whose outputs mean other odds
        ({"like": "log_loss"}, ((1, 0),)),
    ):
        new = losses.Calibration({label: parse(text) for label, text in by_label.items()})
        assert new.scaled_as(old).scales == expected, by_label
