"""The numbers of a report: curves, intervals, slices and permuted rows, beside plain references."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hotrows.batch import Batch
from hotrows.losses import Loss, parse
from hotrows.runtime.pages.drawing import ticks
from hotrows.tools.report import curves, facts
from hotrows.tools.report.quality import MetricInterval, measure
from hotrows.tools.report.result_sections import _slice_table
from hotrows.tools.report.slices import OTHERS, MeasuredSlice, _by_count, _fifths
from hotrows.train.metrics import auc, grouped_auc
from hotrows.train.telling.row_sample import RowSample, ScoredRows


def scored(rows=400, seed=0, shift=0.0, groups=None, loss=None):
    random = torch.Generator().manual_seed(seed)
    outputs = torch.randn(rows, generator=random).double()
    labels = (torch.rand(rows, generator=random) < (outputs + shift).sigmoid()).double()
    return ScoredRows("y", loss or Loss(), outputs, labels, None, groups, torch.arange(rows))


def test_the_curve_of_roc_has_the_area_of_auc_and_ties_are_one_point():
    one = scored()
    scores = one.outputs.mul(3).round()
    x, y = curves.roc(*curves.ranked_counts(scores.numpy(), one.labels.numpy()))
    assert (np.diff(x) >= 0).all() and (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    area = float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())
    assert area == pytest.approx(auc(scores, one.labels), abs=1e-3)  # of 200 points at most
    ones, zeros = curves.ranked_counts(np.array([3, 2, 2, 1]), np.array([1, 1, 0, 0]))
    assert (ones.tolist(), zeros.tolist()) == ([0, 1, 2, 2], [0, 0, 1, 2])


def test_precision_and_recall_of_a_threshold_are_those_counted_by_hand():
    recall, precision = curves.precision_recall(
        *curves.ranked_counts(np.array([4.0, 3, 2, 1]), np.array([1, 0, 1, 0]))
    )
    assert recall.tolist() == [0.5, 1, 1]  # of equal recalls the first, which is the most precise
    assert precision.tolist() == pytest.approx([1, 2 / 3, 2 / 4])


def test_thresholds_give_at_least_their_share_and_keep_equal_scores_together():
    scores, labels = np.array([0.1, 0.9, 0.5, 0.5, 0.2]), np.array([0.0, 1.0, 1.0, 0.0, 0.0])
    told = curves.thresholds(scores, labels, None, [0.2, 0.4, 0.8, 1.0])
    score, share, precision, recall, lift = map(list, zip(*told, strict=True))
    assert score == [0.9, 0.5, 0.2, 0.1] and share == pytest.approx([0.2, 0.6, 0.8, 1])
    assert precision == pytest.approx([1, 2 / 3, 0.5, 0.4]) and recall == [0.5, 1, 1, 1]
    assert lift == pytest.approx([2.5, 5 / 3, 1.25, 1])
    (weighed,) = curves.thresholds(scores, labels, np.array([1.0, 6.0, 1.0, 1.0, 1.0]), [0.5])
    assert weighed == pytest.approx((0.9, 0.6, 1, 6 / 7, 1 / 0.7))
    shares, recalls = curves.gains(*curves.ranked_counts(scores, labels))
    assert shares.tolist() == pytest.approx([0, 0.2, 0.6, 0.8, 1]) and recalls.tolist() == [
        0,
        0.5,
        1,
        1,
        1,
    ]


def test_reliability_compares_means_within_shared_bins():
    predictions, labels = np.array([0.1, 0.2, 0.6, 0.8]), np.array([0.0, 1, 1, 1])
    edges = curves.even_edges([predictions, predictions], 2)
    low, high = curves.reliability(predictions, labels, edges, np.array([1.0, 3, 1, 1]))
    assert (low.samples, low.prediction, low.label) == (2, pytest.approx(0.175), 0.75)
    assert (high.label, high.low, high.high) == (1, 1, 1)


def test_a_histogram_counts_what_is_beyond_at_its_ends():
    shares = curves.shares_by(np.array([-9.0, 0.1, 0.9, 9]), np.array([0, 0.5, 1]))
    assert shares.tolist() == [0.5, 0.5]


def test_an_interval_is_near_the_one_of_theory_and_groups_widen_it():
    one = scored(2000)
    quality = measure(one, times=200)
    estimate = quality.estimate("auc")
    assert estimate.high - estimate.value == pytest.approx(1.96 * quality.metrics.chance, rel=0.2)
    copies = torch.arange(2000) % 200  # ten rows each, all with one group's label and output
    same = ScoredRows(
        "y", Loss(), one.outputs[copies], one.labels[copies], None, copies, torch.arange(2000)
    )
    wide = measure(same, times=100).estimate("log_loss")
    alone = measure(ScoredRows("y", Loss(), same.outputs, same.labels, None, None, same.rows), times=100)
    narrow = alone.estimate("log_loss")
    assert wide.value == narrow.value
    assert 2.4 < (wide.high - wide.low) / (narrow.high - narrow.low) < 4  # the root of ten is 3.2


def test_the_gain_of_a_model_on_equal_rows_has_a_narrower_interval_than_its_metric():
    one = scored(4000)
    noise = 0.5 * torch.randn(4000, generator=torch.Generator().manual_seed(7))
    worse = ScoredRows("y", Loss(), one.outputs + noise, one.labels, None, None, one.rows)
    before, after = measure(one), measure(worse)
    for name in ("auc", "log_loss"):
        gain = before.gain(after, name)
        assert gain.value > 0 and gain.is_clear
    assert gain.high - gain.value < before.estimate("log_loss").high - before.metrics.log_loss
    assert before.gain(before, "auc") == MetricInterval(0.0, 0.0, 0.0)


def test_metrics_within_groups_are_resampled_by_group():
    groups = torch.arange(400) % 40
    quality = measure(scored(groups=groups), ["ndcg@5"])
    assert quality.units == 40
    for name in ("gauc", "ndcg@5"):
        estimate = quality.estimate(name)
        assert estimate.low < estimate.value < estimate.high
    one = scored(groups=groups)
    assert quality.metrics.gauc == grouped_auc(one.outputs, one.labels, groups)
    assert abs(quality.resamples["gauc"].mean() - quality.metrics.gauc) < 0.02
    ordered = measure(scored(groups=groups, loss=parse("bpr")))
    assert ordered.decisive == "ndcg@10" and "log_loss" not in ordered.names


def test_few_units_have_no_interval():
    quality = measure(scored(rows=40, groups=torch.zeros(40, dtype=torch.int64)))
    assert math.isnan(quality.estimate("auc").low) and not math.isnan(quality.metrics.auc)


def test_the_interval_of_few_samples_stays_within_what_a_metric_may_be():
    quality = measure(scored(rows=8))
    for name, high in (("auc", 1.0), ("calibration_error", 1.0), ("log_loss", math.inf)):
        estimate = quality.estimate(name)
        assert 0 <= estimate.low < estimate.high <= high, name


def sample():
    ids, offsets = torch.tensor([10, 11, 12, 1, 2, 3]), torch.tensor([0, 1, 2, 3, 5, 5, 6])
    weights, dense = torch.tensor([1, 1, 1, 0.5, 1.0, 2.0]), torch.tensor([[0.0], [1], [2]])
    return RowSample(Batch(("a", "list"), ids, dense, offsets=offsets, weights=weights), 3)


def test_permuting_a_feature_moves_its_values_and_nothing_else():
    others = sample().taken(torch.tensor([2, 0, 1]))
    (before,), (after,) = sample().batches(), sample().with_ids(("list",), others).batches()
    assert before.ids.tolist() == [10, 11, 12, 1, 2, 3] and before.offsets.tolist() == [
        0,
        1,
        2,
        3,
        5,
        5,
        6,
    ]
    assert before.weights.tolist() == [1, 1, 1, 0.5, 1, 2]
    assert after.weights.tolist() == [1, 1, 1, 2, 0.5, 1]
    assert after.ids.tolist() == [10, 11, 12, 3, 1, 2] and after.offsets.tolist() == [0, 1, 2, 3, 4, 6, 6]
    (numbers,) = sample().with_numbers(slice(0, 1), others).batches()
    assert numbers.dense[:, 0].tolist() == [2, 0, 1] and torch.equal(numbers.ids, before.ids)
    assert sorted(sample().drawn(9).rows.dense[:, 0].tolist()) == sorted(before.dense[:, 0].tolist())
    assert len(sample().drawn(2)) == 2


def test_a_slice_has_its_share_of_the_rows_of_its_own_run():
    """Runs on different data had shares of the first one's rows, and other values in the middle."""

    def run(rows, *names):
        slices = [MeasuredSlice(name, 30, None) for name in (*names, OTHERS)]
        metrics = SimpleNamespace(value=lambda name: 0.5)
        quality = SimpleNamespace(decisive="auc", metrics=metrics)
        return SimpleNamespace(
            quality={"y": quality}, scored={"y": range(rows)}, slices={"c": {"y": slices}}
        )

    table = str(_slice_table(("first", "second"), (run(300, "a"), run(60, "a", "b")), "c", "y"))
    shares = re.findall(r"<th[^>]*>([^<]+)</th><td>(30 \([^)]+\))", table)
    assert shares == [("a", "30 (10%)"), ("b", "30 (50%)"), (OTHERS, "30 (10%)")]


def test_slices_of_numbers_and_counts_hold_each_row_once():
    slices = list(_fifths(np.array([5.0, 1, 2, 3, 4, 1990, 1991, 1, 1, 2])))
    assert sorted(torch.cat([one.rows for one in slices]).tolist()) == list(range(10))
    assert len({one.name for one in slices}) == len(slices)
    counts = {one.name: one.rows.tolist() for one in _by_count(torch.tensor([0, 1, 3, 7, 250]), "ids")}
    assert counts["0 ids"] == [0] and counts["2 to 4 ids"] == [2] and counts["100 or more ids"] == [4]


def test_ticks_are_round_and_within_the_range():
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert ticks(1234, 5678) == [2000, 3000, 4000, 5000]


def test_a_long_list_of_an_option_is_counted():
    options = {"hidden": [128, 64], "dropout": 0.25, "effects": [["city", "hour"]] * 30}
    assert facts._options(options) == " (hidden=[128, 64], dropout=0.25, effects=[30 values])"
