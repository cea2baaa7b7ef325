"""AUC, log loss and calibration against their definitions."""

import dataclasses
import math
import pickle
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows import losses
from hotrows.train.metrics import (
    Metrics,
    auc,
    base_log_loss,
    compute_metrics,
    fitted,
    grouped_auc,
    metrics_by,
    shortcomings,
)
from hotrows.train.metrics.calibration import fit_scale
from hotrows.train.metrics.regression import regression_metrics
from tests.support.choice import examples


def slow_auc(scores, labels):
    """Every pair of a click and a non-click, one by one."""
    clicks = [s for s, y in zip(scores, labels, strict=True) if y]
    others = [s for s, y in zip(scores, labels, strict=True) if not y]
    if not clicks or not others:
        return math.nan
    wins = sum((c > o) + 0.5 * (c == o) for c in clicks for o in others)
    return wins / (len(clicks) * len(others))


@pytest.mark.parametrize("seed", range(40))
def test_auc_of_weighted_samples_in_perfect_order_is_1_and_has_no_error(seed):
    """Sums of weights round: AUC was 1.0000000000000002 here, and its error the root of less than 0."""
    chance = torch.Generator().manual_seed(seed)
    scores = torch.rand(300, generator=chance)
    weights = torch.rand(300, generator=chance) + 0.01
    found = compute_metrics(scores, (scores > 0.4).float(), weights)
    assert found.auc == pytest.approx(1, abs=1e-12) and found.auc <= 1
    assert 0 <= found.chance < 1e-6


def test_the_error_of_auc_is_that_of_hanley_and_mcneil():
    """Theirs, of 51 clicks and 58 others at an AUC of .893, is .032 (Radiology 143, 1982)."""
    found = Metrics(109, 0.893, 0.5, 51 / 109, 0.5, 1.0, 0.0)
    assert found.chance == pytest.approx(0.032, abs=1e-3)


samples = st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 1)), min_size=1, max_size=60)


@settings(max_examples=examples(200), deadline=None)
@given(samples)
def test_auc_equals_the_count_of_ordered_pairs(pairs):
    scores, labels = zip(*pairs, strict=True)
    found = auc(torch.tensor(scores, dtype=torch.float32), torch.tensor(labels).float())
    expected = slow_auc(scores, labels)
    assert found == pytest.approx(expected, abs=1e-15, nan_ok=True)


def test_auc_of_a_small_case_by_hand():
    assert auc(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([0, 0, 1, 1])) == 0.875


def test_auc_does_not_depend_on_the_order_of_samples():
    torch.manual_seed(0)
    scores, labels = torch.randn(10_000).round(decimals=1), (torch.rand(10_000) < 0.2).float()
    shuffled = torch.randperm(10_000)
    assert auc(scores, labels) == auc(scores[shuffled], labels[shuffled])


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_single_class_has_no_auc_but_a_log_loss(label):
    metrics = compute_metrics(torch.tensor([0.0, 1.0]), torch.full((2,), label))
    assert math.isnan(metrics.auc)
    assert metrics.score == -metrics.log_loss


def test_log_loss_is_that_of_torch_and_stays_finite_far_out():
    torch.manual_seed(0)
    logits, labels = torch.randn(1000) * 3, (torch.rand(1000) < 0.3).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double())
    assert compute_metrics(logits, labels).log_loss == pytest.approx(loss.item(), rel=1e-14)
    assert compute_metrics(torch.tensor([1000.0, -1000.0]), torch.tensor([0.0, 1.0])).log_loss == 1000.0


def test_calibration_of_true_probabilities_is_one():
    torch.manual_seed(0)
    logits = torch.randn(200_000) - 1
    metrics = compute_metrics(logits, (torch.rand(200_000) < logits.sigmoid()).float())
    assert metrics.calibration == pytest.approx(1, abs=0.02)
    assert metrics.calibration_error < 0.01


def test_calibration_names_twice_the_clicks():
    labels = torch.tensor([1.0, 0.0, 0.0, 0.0])
    metrics = compute_metrics(torch.zeros(4), labels)  # predicts 0.5 where the rate is 0.25
    assert metrics.calibration == 2
    assert metrics.mean_prediction == 0.5
    assert compute_metrics(torch.zeros(4), torch.zeros(4)).calibration != 1  # nan: no click at all


def test_calibration_error_sees_what_the_mean_hides():
    labels = torch.tensor([1.0] * 50 + [0.0] * 50)
    metrics = compute_metrics(torch.cat([torch.full((50,), -9.0), torch.full((50,), 9.0)]), labels)
    assert metrics.calibration == pytest.approx(1)
    assert metrics.calibration_error > 0.99


def test_calibration_error_of_one_prediction_for_all_is_that_of_the_mean():
    """Bins cut ties in the order of the file: a perfect constant had an error of .5 where the file was
    sorted by label."""
    labels = torch.cat([torch.zeros(1000), torch.ones(1000)])
    assert compute_metrics(torch.zeros(2000), labels).calibration_error == 0
    weights = (torch.arange(2000) % 3 + 1).double()
    gap = 0.5 - float((labels * weights).sum() / weights.sum())
    found = compute_metrics(torch.zeros(2000), labels, weights).calibration_error
    assert found == pytest.approx(abs(gap), abs=1e-12)


def test_no_prediction_is_not_a_number():
    assert math.isnan(compute_metrics(torch.tensor([0.0, math.nan]), torch.tensor([0.0, 1.0])).auc)


def test_chance_is_the_spread_of_auc_over_samples_of_the_same_kind():
    torch.manual_seed(0)
    found = []
    for _ in range(300):
        labels = (torch.rand(800) < 0.25).float()
        found.append(compute_metrics(torch.randn(800) + labels, labels))
    spread = torch.tensor([metrics.auc for metrics in found]).std().item()
    assert found[0].chance == pytest.approx(spread, rel=0.2)
    assert compute_metrics(torch.zeros(3), torch.zeros(3)).chance == 0


def test_metrics_round_trip_through_json_with_nan_as_none():
    metrics = compute_metrics(torch.tensor([0.0, 1.0]), torch.ones(2))
    assert metrics.to_json()["auc"] is None
    for copy in (Metrics.from_json(metrics.to_json()), pickle.loads(pickle.dumps(metrics))):
        assert copy == metrics != dataclasses.replace(metrics, log_loss=math.nan)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"as many logits as labels.*\[2\] and \[3\]"):
        compute_metrics(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="at least one"):
        compute_metrics(torch.zeros(0), torch.zeros(0))


weighted = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(0, 1), st.integers(1, 3), st.integers(0, 3)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None)
@given(weighted)
def test_a_weight_counts_as_that_many_samples(rows):
    scores, labels, weights, groups = (torch.tensor(of) for of in zip(*rows, strict=True))
    repeated = [of.repeat_interleave(weights) for of in (scores.float(), labels, groups)]
    found = compute_metrics(scores.float(), labels.float(), weights.float(), groups)
    expected = compute_metrics(repeated[0], repeated[1].float(), None, repeated[2])
    for name in ("auc", "log_loss", "positive_rate", "mean_prediction", "gauc"):
        value = getattr(expected, name)
        assert getattr(found, name) == pytest.approx(value, abs=1e-9, nan_ok=True)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.integers(0, 1), st.sampled_from([0.1, 1, 3]), st.integers(0, 2)),
        min_size=30,  # more than there are bins
        max_size=60,
    ),
    st.integers(0, 1000),
    st.booleans(),
    st.sampled_from(["log_loss", "soft", "weighted:3", "focal", "squared", "huber", "poisson", "bpr"]),
)
def test_no_metric_depends_on_the_order_of_samples(rows, seed, is_weighted, loss):
    def measured(rows):
        outputs, labels, weights, groups = (torch.tensor(of) for of in zip(*rows, strict=True))
        ranking = ("ndcg@2", "ndcg", "hit@2", "mrr")
        weights = weights.float() if is_weighted else None
        return metrics_by(losses.parse(loss), outputs / 2, labels.float(), weights, groups, ranking)

    found, again = measured(rows), measured(random.Random(seed).sample(rows, len(rows)))
    names = (*set(Metrics.__dataclass_fields__) - {"decides", "ranking", "tasks"}, *found.ranking)
    for name in names:
        assert again.value(name) == pytest.approx(found.value(name), abs=1e-9, nan_ok=True), name


@settings(max_examples=examples(150), deadline=None)
@given(weighted)
def test_grouped_auc_is_the_mean_of_each_groups(rows):
    scores, labels, _, groups = (torch.tensor(of) for of in zip(*rows, strict=True))
    total, sizes = 0.0, 0
    for group in groups.unique():
        own = groups == group
        found = slow_auc(scores[own].tolist(), labels[own].tolist())
        if not math.isnan(found):
            total, sizes = total + found * int(own.sum()), sizes + int(own.sum())
    expected = total / sizes if sizes else math.nan
    found = grouped_auc(scores.float(), labels.float(), groups)
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_grouped_auc_by_hand():
    scores, labels = torch.tensor([1.0, 2, 5, 6, 7]), torch.tensor([0.0, 1, 1, 0, 1])
    assert grouped_auc(scores, labels, torch.tensor([0, 0, 1, 1, 1])) == pytest.approx(0.7)


def test_the_log_loss_of_the_base_rate_is_that_of_one_constant():
    labels = (torch.arange(1_000) % 40 == 0).float()
    rate = float(labels.mean())
    metrics = compute_metrics(torch.full((1_000,), math.log(rate / (1 - rate))), labels)
    assert metrics.log_loss == pytest.approx(base_log_loss(rate)) == pytest.approx(0.1169, abs=1e-4)
    assert not list(shortcomings(metrics))
    assert str(base_log_loss(0.0)) == str(base_log_loss(1.0)) == "0.0"


@pytest.mark.parametrize(
    ("shift", "pieces"),
    [(0.0, ()), (0.5, ()), (3.0, ("above 0.1169", "times the labels")), (-1.5, ("times the labels",))],
)
def test_predictions_worse_than_a_constant_or_far_from_calibrated_are_said(shift, pieces):
    """Logits that rank well, but are shifted: 25 times the labels were promised without a word."""
    labels = (torch.arange(1_000) % 40 == 0).float()
    logits = torch.where(labels > 0, -1.0, -4.0) + 0.01 * (torch.arange(1_000) % 7) + shift
    said = list(shortcomings(compute_metrics(logits, labels)))
    assert len(said) == len(pieces) and all(p in line for p, line in zip(pieces, said, strict=True)), said


@pytest.mark.parametrize(("factor", "is_said"), [(1.0, False), (1.2, False), (2.0, True), (0.3, True)])
def test_a_reliability_curve_that_is_not_straight_is_said_though_the_mean_is_right(factor, is_said):
    """Logits times a factor about 0: half of the labels are 1, as predicted on average."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, generator=generator)
    labels = (torch.rand(20_000, generator=generator) < logits.sigmoid()).float()
    said = list(shortcomings(compute_metrics(logits * factor, labels)))
    assert len(said) == is_said and all("not straight" in line for line in said), said


def test_numbers_that_are_worse_than_their_mean_are_said():
    """Ratings were predicted at an R2 of -.14 without a word, where clicks had a warning."""
    ratings = torch.tensor([1.0, 2, 3, 4, 5])
    (said,) = shortcomings(regression_metrics(ratings.flip(0).double(), ratings, None, "rmse"))
    assert said.startswith("R2 -3.0000 is below 0, that of the mean of the labels")
    assert not list(shortcomings(regression_metrics(ratings.double() + 0.1, ratings, None, "rmse")))


def test_of_labels_that_are_all_equal_nothing_is_said():
    assert not list(shortcomings(compute_metrics(torch.zeros(10), torch.zeros(10))))


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_weights_that_are_no_numbers_above_0_are_refused(weight):
    """Weights of 0 alone ended in "float division by zero"."""
    weights = torch.tensor([1.0, weight])
    for metrics in (compute_metrics, regression_metrics):
        with pytest.raises(ValueError, match="weights must be numbers above 0"):
            metrics(torch.zeros(2), torch.tensor([0.0, 1.0]), weights)


def log_loss(logits, labels):
    return compute_metrics(logits, labels).log_loss


@pytest.mark.parametrize("factor", [0.2, 0.7, 1.0, 3.0])
def test_the_scale_of_logits_is_that_of_the_least_log_loss(factor):
    chance = torch.Generator().manual_seed(1)
    logits = torch.randn(20_000, generator=chance)
    labels = (torch.rand(20_000, generator=chance) < logits.sigmoid()).float()
    scale, _ = fit_scale(logits / factor, labels)
    assert scale == pytest.approx(factor, rel=0.05)
    if factor != 1:
        least = log_loss(scale * logits / factor, labels)
        assert all(least <= log_loss(s * scale * logits / factor, labels) for s in (0.99, 1.01))
    repeats = torch.arange(20_000) % 3 + 1
    logits, weights = 3 * logits, repeats.float()
    repeated, _ = fit_scale(logits.repeat_interleave(repeats), labels.repeat_interleave(repeats))
    assert fit_scale(logits, labels, weights)[0] == pytest.approx(repeated, abs=2e-4)
    # Weights that sum to 1 smoothed the labels as if they were of one sample.
    assert fit_scale(logits, labels, weights / weights.sum()) == fit_scale(logits, labels, weights)


def test_a_scale_is_about_the_base_rate():
    """Of a rare label a factor about 0 moves the mean prediction more than it mends the spread."""
    chance = torch.Generator().manual_seed(3)
    logits = -4 + torch.randn(50_000, generator=chance)
    labels = (torch.rand(50_000, generator=chance) < logits.sigmoid()).float()
    too_sure = -4 + 2 * (logits + 4)
    scale, shift = fit_scale(too_sure, labels, base=-4)
    assert scale == pytest.approx(0.5, rel=0.05) and shift == pytest.approx(-4 * (1 - scale), abs=1e-4)
    about_zero, _ = fit_scale(too_sure, labels)
    assert log_loss(scale * too_sure + shift, labels) < log_loss(about_zero * too_sure, labels)


def test_few_samples_in_perfect_order_have_a_finite_scale():
    """Without smoothed labels the least log loss is that of an infinite factor."""
    labels = (torch.arange(40) >= 20).float()
    assert 1 < fit_scale(labels - 0.5, labels)[0] < 10


def test_a_scale_that_chance_explains_is_none():
    """On a validation part of 1,000 samples a factor of 1.02 made the log loss of the test part worse."""
    scales, of_too_sure = [], []
    for seed in range(20):
        chance = torch.Generator().manual_seed(seed)
        logits = torch.randn(1_000, generator=chance)
        labels = (torch.rand(1_000, generator=chance) < logits.sigmoid()).float()
        scales.append(fit_scale(logits, labels)[0])
        of_too_sure.append(fit_scale(2 * logits, labels)[0])
    assert scales.count(1.0) >= 12 and max(of_too_sure) < 0.7


@pytest.mark.parametrize(
    ("labels", "base", "sure", "kept"),
    [
        ([1] * 30, 0.0, 6.0, True),
        ([0, 1, 1, 0, 1], 0.4, 0.5, True),
        ([0] * 29 + [1], -2.0, 0.5, True),
        ([0, 1] * 500, 0.0, 6.0, False),
    ],
    ids=["one kind", "five samples", "one click", "a thousand"],
)
def test_the_scale_that_a_run_begins_with_stays_where_few_samples_speak(labels, base, sure, kept):
    """`partial_fit` on five rows lost a scale of .25, and a mean prediction of .31 became .46."""
    labels = torch.tensor(labels).float()
    logits = base + sure * (2 * labels - 1) + 4 * (1 + 0.9 * torch.arange(len(labels))).sin()
    before = dataclasses.replace(losses.Loss(), scale=0.25, shift=0.75 * base)
    other = fitted(before, logits, labels, None, base)
    assert other != before
    assert fitted(before, logits, labels, None, base, anew=False) == (before if kept else other)


def test_of_rare_labels_that_are_told_no_better_than_by_their_base_rate_logits_shrink_to_it():
    """One in 500 is 1: a model that learned by heart was above the log loss of the base rate."""
    labels, base = torch.zeros(5000), math.log(0.002 / 0.998)
    labels[:10] = 1
    noise = base + torch.randn(5000, generator=torch.Generator().manual_seed(0))
    scale, shift = fit_scale(noise, labels, base=base)
    assert (scale, shift) == (0.01, round(0.99 * base, 4))
    assert fit_scale(noise + 4 * labels, labels, base=base)[0] > 0.1


def test_logits_of_rare_labels_shrink_the_less_the_more_samples_say_that_they_are_better():
    base, scales = math.log(0.002 / 0.998), []
    for num in (10_000, 100_000, 1_000_000):
        chance = torch.Generator().manual_seed(2)
        logits = base - 0.18 + 0.6 * torch.randn(num, generator=chance)
        labels = (torch.rand(num, generator=chance) < logits.sigmoid()).float()
        scales.append(fit_scale(logits, labels, base=base)[0])
    assert scales[0] < 0.9 < scales[1] < 0.98 < scales[2] < 1


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (torch.randn(50), torch.ones(50)),
        (torch.randn(50), torch.zeros(50)),
        (torch.arange(50.0) - 25, (torch.arange(50) < 25).float()),  # ranked the wrong way round
        (torch.zeros(50), (torch.arange(50) < 25).float()),
    ],
)
def test_where_no_scale_is_better_logits_stay_as_they_are(logits, labels):
    assert fit_scale(logits, labels) == (1.0, 0.0)


def test_a_model_too_sure_is_not_advised_to_train_longer():
    """The warning advised to train longer where the log loss rose because training had been too long."""
    labels = (torch.arange(1_000) % 2).float()
    logits = torch.where(torch.arange(1_000) % 5 == 0, -9.0, 9.0) * (2 * labels - 1)
    (said,) = shortcomings(compute_metrics(logits, labels))
    assert "too sure: train fewer epochs" in said and "longer" not in said
