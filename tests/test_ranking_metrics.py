"""Metrics within groups, of numbers, and of several kinds of labels, against plain Python."""

import itertools
import json
import math
import operator
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows import losses
from hotrows.tools.report.quality import measure
from hotrows.train.metrics import (
    Metrics,
    mean_of,
    metrics_by,
    ranking_metrics,
    regression_metrics,
    shortcomings,
)
from hotrows.train.telling.row_sample import ScoredRows
from tests.support.choice import examples


def over_all_orders(scores, labels, metric):
    """The mean of a metric of ranked labels over all orders of samples that fall by score."""
    samples = list(zip(scores, labels, strict=True))
    orders = [
        [label for _, label in order]
        for order in itertools.permutations(samples)
        if all(a[0] >= b[0] for a, b in itertools.pairwise(order))
    ]
    return statistics.fmean(map(metric, orders))


def dcg(ranked, k):
    return sum(label / math.log2(place + 2) for place, label in enumerate(ranked[:k]))


def slow(name, scores, labels, groups, weights):
    kind, _, k = name.partition("@")
    k = int(k) if k else len(scores)
    results, by_group = [], []
    for group in set(groups) - {losses.NO_GROUP}:
        of_group = [(s, y) for s, y, g in zip(scores, labels, groups, strict=True) if g == group]
        ours, theirs = zip(*of_group, strict=True)
        if not any(y > 0 for y in theirs):
            continue
        best = dcg(sorted(theirs, reverse=True), k)
        metric = {
            "ndcg": lambda ranked, best=best: dcg(ranked, k) / best,
            "hit": lambda ranked: float(any(y > 0 for y in ranked[:k])),
            "mrr": lambda ranked: 1 / (1 + next(i for i, y in enumerate(ranked) if y > 0)),
        }[kind]
        results.append(over_all_orders(ours, theirs, metric))
        by_group.append(statistics.fmean(w for w, g in zip(weights, groups, strict=True) if g == group))
    return sum(map(operator.mul, results, by_group)) / sum(by_group) if results else math.nan


NAMES = ("ndcg", "ndcg@1", "ndcg@3", "hit@1", "hit@2", "mrr")
samples = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from([-7, 0, 9, losses.NO_GROUP]),
        st.sampled_from([0.5, 1.0, 10.0]),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=examples(60), deadline=None)
@given(samples)
def test_ranking_equals_the_mean_over_all_orders_of_ties(rows):
    scores, labels, groups, weights = zip(*rows, strict=True)
    tensors = map(torch.tensor, (scores, labels, groups))
    found = ranking_metrics(*tensors, NAMES, torch.tensor(weights))
    for name in NAMES:
        expected = slow(name, scores, labels, groups, weights)
        assert found[name][0] == pytest.approx(expected, abs=1e-12, nan_ok=True), name


def test_ranking_of_a_small_case_by_hand():
    scores, labels = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.0, 1.0, 0.0])
    groups = torch.tensor([5, 5, 5])
    found = ranking_metrics(scores, labels, groups, ["mrr", "ndcg", "hit@1", "hit@2"])
    values = {name: value for name, (value, _) in found.items()}
    assert values == pytest.approx({"mrr": 0.5, "ndcg": 1 / math.log2(3), "hit@1": 0, "hit@2": 1})


def test_ranking_does_not_depend_on_the_order_of_samples():
    torch.manual_seed(0)
    scores, labels = torch.randn(5000).round(decimals=1), (torch.rand(5000) < 0.2).float()
    groups, shuffled = torch.randint(0, 300, (5000,)), torch.randperm(5000)
    one = ranking_metrics(scores, labels, groups, NAMES)
    other = ranking_metrics(scores[shuffled], labels[shuffled], groups[shuffled], NAMES)
    assert [v for v, _ in one.values()] == pytest.approx([v for v, _ in other.values()], rel=1e-12)


def test_groups_without_a_hit_do_not_count_and_negative_labels_have_no_ndcg():
    found = ranking_metrics(torch.zeros(2), torch.zeros(2), torch.tensor([0, 1]), ["mrr", "ndcg@3"])
    assert all(math.isnan(value) for value, _ in found.values())
    found = ranking_metrics(torch.zeros(2), torch.tensor([-1.0, 1.0]), torch.zeros(2).long(), ["ndcg"])
    assert math.isnan(found["ndcg"][0])


def test_scores_that_are_no_numbers_have_no_order():
    """NaN was sorted before all numbers: a model that diverged had the best of metrics."""
    values = ranking_metrics(
        torch.tensor([math.nan, 1.0]), torch.tensor([1, 0]), torch.zeros(2), ["ndcg", "hit@1", "mrr"]
    )
    assert all(math.isnan(number) for pair in values.values() for number in pair)


def test_one_large_tie_is_exact_enough():
    """100,000 equal scores, a tenth of them relevant: the first is at place 10 on average."""
    labels = (torch.arange(100_000) % 10 == 0).float()
    found = ranking_metrics(torch.zeros(100_000), labels, torch.zeros(100_000).long(), ["hit@1", "mrr"])
    assert found["hit@1"][0] == pytest.approx(0.1, rel=1e-6)
    assert found["mrr"][0] == pytest.approx(-math.log(0.1) * 0.1 / 0.9, rel=1e-3)  # of coin flips


@pytest.mark.parametrize("weighted", [False, True])
def test_regression_equals_its_definitions(weighted):
    torch.manual_seed(1)
    n = 200
    z, y = torch.randn(n).double() * 0.5, torch.poisson(torch.full((n,), 2.0)).double()
    w = torch.rand(n).double() + 0.1 if weighted else torch.ones(n).double()
    found = metrics_by(losses.parse("poisson"), z, y, w if weighted else None)
    rows = list(zip(z.exp().tolist(), y.tolist(), w.tolist(), strict=True))
    total = sum(w for _, _, w in rows)
    mean = sum(y * w for _, y, w in rows) / total
    squared = sum(w * (p - y) ** 2 for p, y, w in rows) / total
    spread = sum(w * (y - mean) ** 2 for _, y, w in rows) / total
    deviance = sum(w * 2 * ((y * math.log(y / p) if y else 0) - y + p) for p, y, w in rows) / total
    assert found.rmse == pytest.approx(math.sqrt(squared))
    assert found.mae == pytest.approx(sum(w * abs(p - y) for p, y, w in rows) / total)
    assert found.r2 == pytest.approx(1 - squared / spread)
    assert found.poisson_deviance == pytest.approx(deviance)
    assert found.calibration == pytest.approx(sum(p * w for p, _, w in rows) / total / mean)
    assert found.score == -found.poisson_deviance


@pytest.mark.parametrize("decides", ["rmse", "mae"])
def test_chance_is_the_spread_of_the_score_over_samples_of_the_same_kind(decides):
    torch.manual_seed(0)
    found = []
    for _ in range(300):
        labels = torch.randn(400)
        found.append(regression_metrics(labels + torch.randn(400), labels, None, decides))
    spread = torch.tensor([metrics.score for metrics in found]).std().item()
    assert found[0].chance == pytest.approx(spread, rel=0.2)


def test_a_count_of_0_that_is_predicted_exactly_deviates_by_0():
    for predictions, expected in (([0.0, 1.0], 0.0), ([0.0, 0.0], math.inf)):
        metrics = regression_metrics(
            torch.tensor(predictions), torch.tensor([0.0, 1.0]), decides="poisson_deviance"
        )
        assert metrics.poisson_deviance == expected


@pytest.mark.parametrize("weighted", [False, True])
def test_the_chance_of_a_log_loss_is_its_spread_over_samples_of_the_same_kind(weighted):
    torch.manual_seed(0)
    found, weights = [], torch.rand(400) + 0.1 if weighted else None
    for _ in range(300):
        found.append(metrics_by(losses.parse("soft"), torch.randn(400), torch.rand(400), weights))
    spread = torch.tensor([metrics.score for metrics in found]).std().item()
    assert found[0].chance == pytest.approx(spread, rel=0.2)


def test_a_perfect_fit_and_equal_labels():
    metrics = regression_metrics(torch.ones(3), torch.ones(3))
    assert (metrics.rmse, metrics.mae, metrics.score, metrics.chance) == (0, 0, 0, 0)
    assert math.isnan(metrics.r2)


@pytest.mark.parametrize("name", ["squared", "huber", "poisson", "soft", "bpr", "focal"])
def test_metrics_of_every_kind_round_trip_through_json(name):
    torch.manual_seed(0)
    labels = (torch.rand(50) < 0.5).float()
    groups = torch.randint(0, 5, (50,))
    metrics = metrics_by(losses.parse(name), torch.randn(50), labels, None, groups, ("hit@2",))
    assert Metrics.from_json(metrics.to_json()).to_json() == metrics.to_json()
    assert metrics.value(metrics.decides) == metrics.value(metrics.decides)  # it is there, not nan
    assert metrics.chance >= 0
    assert "Hit@2" in metrics.shown()


def test_a_binary_label_has_the_fields_it_always_had():
    metrics = metrics_by(losses.parse("log_loss"), torch.randn(9), (torch.rand(9) < 2).float())
    assert list(metrics.to_json()) == [
        *("samples", "auc", "log_loss", "positive_rate", "mean_prediction", "calibration"),
        *("calibration_error", "gauc"),
    ]
    assert list(metrics.shown()) == ["AUC", "log loss", "calibration"]


def test_metrics_within_groups_are_shown_before_the_calibration():
    outputs, labels = torch.tensor([1.0, 2, 3]), torch.tensor([1.0, 0, 1])
    metrics = metrics_by(
        losses.parse("log_loss"), outputs, labels, None, torch.zeros(3).long(), ("hit@2",)
    )
    assert list(metrics.shown()) == ["AUC", "gAUC", "log loss", "Hit@2", "calibration"]


@pytest.mark.parametrize("damage", [{"tasks": 3}, {"ranking": [1.0]}, {"tasks": 3, "ranking": 4}])
def test_json_that_holds_no_metrics_is_refused(damage):
    fields = regression_metrics(torch.ones(3), torch.ones(3)).to_json()
    for wrong in ({**fields, **damage}, 3, None):
        with pytest.raises(ValueError, match="expected an object of metrics"):
            Metrics.from_json(wrong)


def test_weighted_loss_is_judged_by_true_probabilities():
    """Outputs of a model that learned clicks as ten each are calibrated once that is taken back."""
    torch.manual_seed(0)
    logits = torch.randn(100_000) - 3
    clicks = (torch.rand(100_000) < logits.sigmoid()).float()
    metrics = metrics_by(losses.parse("weighted:10"), logits + math.log(10), clicks)
    assert metrics.calibration == pytest.approx(1, abs=0.03)


def test_predictions_beyond_all_numbers_are_the_worst_score_and_still_json():
    metrics = metrics_by(losses.parse("poisson"), torch.tensor([800.0, 0.0]), torch.tensor([1.0, 2.0]))
    assert math.isfinite(metrics.score) and metrics.score < -1e300 and metrics.chance == 0
    assert metrics.to_json()["rmse"] is None
    json.dumps(metrics.to_json(), allow_nan=False)


def test_rows_without_the_column_of_groups_have_no_such_metrics():
    """`predict` reads rows that may lack it."""
    with pytest.raises(ValueError, match="ndcg@10 is a metric within groups, and these samples have no"):
        metrics_by(losses.parse("bpr"), torch.zeros(2), torch.tensor([0.0, 1.0]))


def test_several_labels_of_different_kinds_are_decided_by_the_mean_of_their_scores():
    rating = regression_metrics(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0]))
    click = metrics_by(losses.parse("log_loss"), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    both = mean_of({"rating": rating, "click": click})
    assert both.score == pytest.approx((rating.score + click.score) / 2)
    assert both.auc == 1 and both.rmse == rating.rmse
    assert Metrics.from_json(both.to_json()).score == both.score


def test_samples_without_a_group_count_in_no_metric_within_groups():
    """They were one user, whose thousands of samples had the greatest part of gAUC."""
    torch.manual_seed(0)
    outputs, labels, groups = torch.randn(60), (torch.arange(60) % 3 == 0).float(), torch.arange(60) // 6
    groups[30:] = losses.NO_GROUP
    everything = metrics_by(losses.Loss(), outputs, labels, None, groups, ["ndcg@3", "mrr"])
    grouped = metrics_by(losses.Loss(), outputs[:30], labels[:30], None, groups[:30], ["ndcg@3", "mrr"])
    assert everything.gauc == pytest.approx(grouped.gauc)
    assert everything.ranking == pytest.approx(grouped.ranking)
    assert [line for line in shortcomings(everything) if "30 of 60 samples have no group" in line]
    assert math.isnan(grouped.ungrouped)
    scored = ScoredRows("y", losses.Loss(), outputs, labels, None, groups, torch.arange(60))
    quality = measure(scored, ["ndcg@3"])
    assert quality.units == 5 + 30  # each is drawn by itself
    assert abs(quality.resamples["ndcg@3"].mean() - grouped.ranking["ndcg@3"]) < 0.05
    bpr = losses.parse("bpr")
    assert bpr(outputs[30:], labels[30:], None, groups[30:]) == 0
    assert bpr(outputs, labels, None, groups) == bpr(outputs[:30], labels[:30], None, groups[:30]) > 0
