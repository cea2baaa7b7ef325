"""Sections of a report about predictions: metrics with intervals, curves, slices, importances."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from hotrows.data.stored.order import POOL_ROWS
from hotrows.runtime.pages.drawing import Line, chart, stacked, whisker
from hotrows.runtime.pages.markup import (
    Html,
    element,
    figure,
    folded,
    grid,
    joined,
    named,
    note,
    shortened,
    table,
)
from hotrows.runtime.pages.numbers import percent, short
from hotrows.tools.report.assess import Assessment
from hotrows.tools.report.curves import (
    even_edges,
    gains,
    precision_recall,
    ranked_counts,
    reliability,
    roc,
    shares_by,
    span,
    thresholds,
)
from hotrows.tools.report.facts import Facts
from hotrows.tools.report.quality import TIMES, MetricInterval
from hotrows.tools.report.slices import OTHERS
from hotrows.train.metrics import base_log_loss, shortcomings, word_of

_MEANINGS = {
    "auc": "the probability that a random positive sample scores above a random negative one",
    "gauc": "AUC within each group, averaged by the weight of its samples",
    "log_loss": "nats a sample; less is better",
    "calibration": "mean prediction over mean label; 1 is right",
    "calibration_error": "mean distance of prediction and label, over 20 bins of equal size",
    "rmse": "root of the mean squared error, in the label's units",
    "mae": "mean absolute error, in the label's units",
    "r2": "share of the label's variance that is explained",
    "poisson_deviance": "less is better",
}
_BINS = 12  # of reliability
_WHOLE = (0.0, 1.0)
_SHARES = (0.01, 0.05, *(tenth / 10 for tenth in range(1, 11)))  # of the samples, by their score
_GRAY = 6
_EXAMPLE_FEATURES = 8  # of a row
Keys = Sequence[tuple[str, int]]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # predictions, labels and weights


def _word(metric: str) -> str:
    return word_of(metric).replace("_", " ")


def _plus_minus(estimate: MetricInterval | None) -> str:
    """0.7412 ± 0.0031."""
    if estimate is None or math.isnan(estimate.value):
        return "–"
    value = f"{round(estimate.value, 4) + 0.0:.4f}"  # no -0.0
    return value if math.isnan(estimate.low) else f"{value} ± {estimate.high - estimate.value:.4f}"


def _by_label(sections: Sequence[tuple[str, Html]]) -> Html:
    """Content of each label: of several, the first below its name and the others folded."""
    (first, content), *others = sections
    title = element("h3", f"Label {first}") if others else ""
    return joined((title, content, *(folded(f"Label {label}", one) for label, one in others)))


def cards(facts: Facts, assessment: Assessment | None) -> Html:
    """The figures that are looked at first, of one run."""
    figures = []
    qualities = assessment.quality if assessment else {}
    for label, quality in qualities.items():
        of_label = f" of {label}" if len(qualities) > 1 else ""
        for name in [name for name in dict.fromkeys((quality.decisive, *quality.names)) if name][:2]:
            value, _, spread = _plus_minus(quality.estimate(name)).partition(" ")
            part = assessment.part.name if assessment else ""
            figures.append((value, f"{_word(name)}{of_label} in the {part} part {spread}".strip()))
    speeds = [line["samples_per_second"] for line in facts.steps]
    figures += [(short(float(np.median(speeds))), "samples a second in training")] if speeds else []
    if facts.windows:
        figures.append((short(sum(line["events"] for line in facts.windows)), "events of the stream"))
    elif facts.data is not None:
        figures.append((short(facts.data.parts["train"].rows), "training rows"))
    boxes = [
        element("div", element("b", value), element("span", name), kind="card") for value, name in figures
    ]
    return element("div", *boxes, kind="cards") if boxes else Html()


def results(names: Sequence[str], assessments: Sequence[Assessment]) -> Html:
    """Metrics with intervals, and the differences of runs from the first one."""
    first, several = assessments[0], len(assessments) > 1
    others = [f"{name} than {names[0]}" for name in names[1:]] if several else ["what it says"]
    parts: list[Html] = []
    for label, quality in first.quality.items():
        qualities = [one.quality[label] for one in assessments]
        rows: list[tuple[str | Html, ...]] = []
        for name in quality.names:
            values = [_plus_minus(q.estimate(name)) if name in q.names else "–" for q in qualities]
            last = _gains(assessments, label, name) if several else (_MEANINGS.get(name, ""),)
            rows.append((_word(name), *values, *last))
        if not math.isnan(quality.metrics.log_loss) and 0 < quality.metrics.positive_rate < 1:
            bases = [f"{base_log_loss(q.metrics.positive_rate):.4f}" for q in qualities]
            rows.append(("log loss of the mean label", *bases, *[""] * len(others)))
        parts += [element("h3", label)] if len(first.quality) > 1 else []
        parts.append(table(("", *names, *others), rows))
        pairs = zip(names, qualities, strict=True)
        parts += [note(f"{name}: {line}.") for name, q in pairs for line in shortcomings(q.metrics)]
    return joined([verdicts(names, assessments), *parts, note(_about(assessments))])


def _gains(assessments: Sequence[Assessment], label: str, name: str) -> Iterator[Html | str]:
    first = assessments[0]
    for other in assessments[1:]:
        is_known = other.is_paired(first) and name in other.quality[label].names
        if not is_known or name == "calibration":  # of which neither more nor less is better
            yield ""
            continue
        gain = other.quality[label].gain(first.quality[label], name)
        yield element("span", _in_words(gain), kind="clear differs" if gain.is_clear else "soft")


def _in_words(gain: MetricInterval) -> str:
    """better by 0.0031 ± 0.0010."""
    if math.isnan(gain.value):
        return "–"
    size = dataclasses.replace(gain, value=abs(gain.value))
    if not math.isnan(gain.low):
        spread = (gain.high - gain.low) / 2
        size = MetricInterval(size.value, size.value - spread, size.value + spread)
    if round(size.value, 4) == 0:
        return _plus_minus(size).replace("0.0000", "equal", 1)
    return f"{'better' if gain.value > 0 else 'worse'} by {_plus_minus(size)}"


def verdicts(names: Sequence[str], assessments: Sequence[Assessment]) -> Html:
    """A sentence for each other run and label: which is better, by how much, whether that is clear."""
    sentences = []
    first = assessments[0]
    for name, other in zip(names[1:], assessments[1:], strict=True):
        for label, quality in other.quality.items() if other.is_paired(first) else ():
            metric = quality.decisive
            if not metric or metric not in first.quality[label].names:
                continue
            gain = quality.gain(first.quality[label], metric)
            better, worse = (name, names[0]) if gain.value > 0 else (names[0], name)
            size = _in_words(MetricInterval(abs(gain.value)))
            of_label = f" of {label}" if len(other.quality) > 1 else ""
            clear = "" if gain.is_clear else ", which may be chance"
            in_what = f"{_word(metric)}{of_label}"
            line = f"{better} is {size} than {worse} in {in_what}{clear}."
            equal = f"{name} and {names[0]} are equal in {_word(metric)}{of_label}."
            sentences.append(element("p", equal if size == "equal" else line))
    return joined(sentences)


def _about(assessments: Sequence[Assessment]) -> str:
    """Says which samples the metrics are of, and what the intervals are."""
    sample, quality = assessments[0].sample, next(iter(assessments[0].quality.values()))
    drawn = "random samples" if sample.total <= POOL_ROWS else "samples in random blocks"
    rows = "all" if len(sample) == sample.total else f"{len(sample):,} {drawn} of the"
    kind = "samples" if sample.rows.groups is None else "groups"
    words = (
        f"Of {rows} {sample.total:,} samples of the {assessments[0].part.name} part. ± is 1.96 standard "
        f"deviations over {TIMES} bootstrap resamples of {quality.units:,} {kind}."
    )
    if len(assessments) == 1:
        return words
    if all(one.is_paired(assessments[0]) for one in assessments):
        return (
            f"{words} Runs are compared on equal samples; differences are marked where that leaves out 0."
        )
    return f"{words} The runs' samples are not the same, so their differences have no interval."


def predictions(names: Sequence[str], assessments: Sequence[Assessment]) -> Html:
    """Reliability, ROC, precision and recall, and the distribution of predictions, of each label."""
    keys = [(name, color) for color, name in enumerate(names)] if len(names) > 1 else []
    sections = []
    for label, first in assessments[0].scored.items():
        scored = [one.scored[label] for one in assessments]
        arrays: list[Arrays] = [
            (
                one.predictions.numpy(),
                one.labels.numpy(),
                None if one.weights is None else one.weights.numpy(),
            )
            for one in scored
        ]
        binary = all(set(np.unique(labels)) == {0.0, 1.0} for _, labels, _ in arrays)
        figures = [] if first.loss.is_order else [_reliability(arrays, keys)]
        figures.append(_distribution(arrays, keys, binary))
        if binary:
            figures += _rank_curves(arrays, keys)
        elif not first.loss.is_order:
            errors = [(predicted - labels, weights) for predicted, labels, weights in arrays]
            figures.append(_histogram("Errors", "prediction less label", errors, keys))
        tables = [_thresholds(*one) for one in arrays] if binary else []
        if len(tables) > 1:
            tables = [
                folded(f"Thresholds of {name}", one) for name, one in zip(names, tables, strict=True)
            ]
        sections.append((label, joined((grid(figures), *tables))))
    return _by_label(sections)


def _thresholds(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Html:
    rows = [
        (f"top {share:.1%}", f"{score:.4g}", f"{precision:.2%}", f"{recall:.1%}", f"{lift:.2f}")
        for score, share, precision, recall, lift in thresholds(predicted, labels, weights, _SHARES)
    ]
    about = (
        "Of the samples with at least that score: the positive rate, their share of all positives, and "
        "the positive rate over that of all samples."
    )
    return joined((table(("samples", "score from", "precision", "recall", "lift"), rows), note(about)))


def _reliability(arrays: Sequence[Arrays], keys: Keys) -> Html:
    edges = even_edges([predicted for predicted, _, _ in arrays], _BINS)
    lines, ends = [], []
    for color, (predicted, labels, weights) in enumerate(arrays):
        bins = reliability(predicted, labels, edges, weights)
        said = [f"{b.samples:,} samples: predicted {b.prediction:.4g}, label {b.label:.4g}" for b in bins]
        x, y, intervals = (
            [b.prediction for b in bins],
            [b.label for b in bins],
            [(b.low, b.high) for b in bins],
        )
        lines.append(Line(x, y, color, "bold", said, intervals))
        ends += [*x, *y]
    diagonal = Line([min(ends), max(ends)], [min(ends), max(ends)], _GRAY, "dashed")
    drawing = chart([diagonal, *lines], "mean prediction of a bin", x_range=(min(ends), max(ends)))
    about = f"Mean label by prediction, in {_BINS} bins of equal size; on the dashed line they agree."
    return figure("Reliability", drawing, about, keys)


def _distribution(arrays: Sequence[Arrays], keys: Keys, binary: bool) -> Html:
    """Predictions of each run; of one run those of each label, 0 and 1, or else beside the labels."""
    pieces = [(predicted, weights) for predicted, _, weights in arrays]
    if len(arrays) == 1:
        predicted, labels, weights = arrays[0]
        keys = [("predictions", 0), ("labels", 1)]
        pieces.append((labels, weights))
        if binary:
            keys = [("label 0", 0), ("label 1", 1)]
            chosen = [labels == 0, labels == 1]
            pieces = [(predicted[rows], None if weights is None else weights[rows]) for rows in chosen]
    return _histogram("Predictions", "prediction", pieces, keys)


def _histogram(
    title: str, x_label: str, pieces: Sequence[tuple[np.ndarray, np.ndarray | None]], keys: Keys
) -> Html:
    """Shares of values in bins of equal width. pieces: values and weights of each line."""
    edges = span([values for values, _ in pieces])
    middles = list((edges[:-1] + edges[1:]) / 2)
    lines = [
        Line(middles, list(shares_by(values, edges, weights)), color, "steps")
        for color, (values, weights) in enumerate(pieces)
    ]
    about = f"Shares of the samples in {len(middles)} bins of equal width."
    return figure(title, chart(lines, x_label, y_format=percent), about, keys)


def _rank_curves(arrays: Sequence[Arrays], keys: Keys) -> Iterator[Html]:
    counts = [ranked_counts(*one) for one in arrays]
    ones, zeros = (float(of_first[-1]) for of_first in counts[0])
    base = ones / (ones + zeros)
    drawing = _square([roc(*one) for one in counts], _WHOLE, "false positive rate")
    yield figure("ROC", drawing, "True over false positive rate; AUC is the area below.", keys)
    drawing = _square([precision_recall(*one) for one in counts], (base, base), "recall")
    yield figure("Precision and recall", drawing, f"Dashed: {base:.2%}, the positive rate.", keys)
    drawing = _square([gains(*one) for one in counts], _WHOLE, "share of the samples, highest first")
    yield figure(
        "Gains", drawing, "Recall by the share of samples that is taken; dashed: by chance.", keys
    )


def _square(
    curves: Sequence[tuple[np.ndarray, np.ndarray]], dashed: tuple[float, float], x_label: str
) -> Html:
    lines = [Line(x.tolist(), y.tolist(), color) for color, (x, y) in enumerate(curves)]
    return chart([Line(_WHOLE, dashed, _GRAY, "dashed"), *lines], x_label, x_range=_WHOLE, y_range=_WHOLE)


def slices(names: Sequence[str], assessments: Sequence[Assessment]) -> Html:
    """Metrics by slice of each column."""
    sections = []
    for label in assessments[0].scored:
        tables = [
            (element("h3", column), _slice_table(names, assessments, column, label))
            for column in assessments[0].slices
        ]
        sections.append((label, joined(one for pair in tables for one in pair)))
    about = (
        "The thin line is the metric over all samples. Slices of fewer than 30 samples have no metric."
    )
    return joined((_by_label(sections), note(about)))


def _slice_table(
    names: Sequence[str], assessments: Sequence[Assessment], column: str, label: str
) -> Html:
    overall = assessments[0].quality[label]
    metric, totals = overall.decisive, [len(a.scored[label]) for a in assessments]
    by_run = [{one.name: one for one in a.slices.get(column, {}).get(label, [])} for a in assessments]
    slice_names = dict.fromkeys(name for measured in by_run for name in measured)
    ordered = sorted(slice_names, key=lambda name: name == OTHERS)
    firsts = [next((run, m[name]) for run, m in enumerate(by_run) if name in m) for name in ordered]
    estimates = [
        [one.estimate(metric) if (one := measured.get(name)) else None for measured in by_run]
        for name in ordered
    ]
    cells = _whiskers(estimates, overall.metrics.value(metric))
    rows = []
    for (run, one), cell, of_runs in zip(firsts, cells, estimates, strict=True):
        mean, calibration = (
            "–" if one.quality is None else f"{one.quality.metrics.value(name):.3f}"
            for name in ("positive_rate", "calibration")
        )
        share = f"{one.samples:,} ({one.samples / totals[run]:.0%})"
        rows.append(
            (one.name, share, mean, cell, *map(_plus_minus, of_runs), *[calibration][: 2 - len(names)])
        )
    headers = named(names) if len(names) > 1 else [_word(metric), "calibration"]
    axis = _axis(estimates, overall.metrics.value(metric), _word(metric))
    return table(("", "rows", "mean label", axis, *headers), rows)


def _whiskers(estimates: Sequence[Sequence[MetricInterval | None]], zero: float) -> list[Html]:
    """A cell of dots and intervals for each row of estimates by run, to one scale; zero: a thin line."""
    ends = _ends(estimates, zero)
    return [
        stacked(
            [
                whisker(e.value, (e.low, e.high), min(ends), max(ends), run, zero)
                for run, e in enumerate(row)
                if e is not None
            ]
        )
        for row in estimates
    ]


def _ends(estimates: Sequence[Sequence[MetricInterval | None]], zero: float) -> list[float]:
    known = [e for row in estimates for e in row if e is not None]
    return [end for e in known for end in (e.value, e.low, e.high) if not math.isnan(end)] + [zero]


def _axis(estimates: Sequence[Sequence[MetricInterval | None]], zero: float, word: str) -> Html:
    """The ends of the scale of `_whiskers`, and what it is of."""
    ends = _ends(estimates, zero)
    texts = f"{min(ends):.3f}", f"{word}; line at {zero:.3f}", f"{max(ends):.3f}"
    return element("span", *(element("span", text) for text in texts), kind="ends")


def examples(assessment: Assessment) -> Html:
    """What the values of some rows add to their predictions."""
    parts = []
    for one in assessment.examples:
        for label, (prediction, typical, unit) in one.predictions.items():
            title = f"{one.title}: {label} {prediction:.3g}, of a typical sample {typical:.3g}"
            adds = [(names, value, of_labels[label]) for names, value, of_labels in one.adds]
            ends = [number for *_, number in adds] + [0.0]
            rows = [
                (
                    names,
                    value,
                    whisker(n, (min(n, 0.0), max(n, 0.0)), min(ends), max(ends), 0, 0.0),
                    f"{n:+.3f}",
                )
                for names, value, n in sorted(adds, key=lambda row: -abs(row[2]))[:_EXAMPLE_FEATURES]
            ]
            parts += [element("h3", title), table(("", "value", "lowers | raises", unit), rows)]
    about = (
        "How much the value of a feature raises or lowers the prediction, compared with the values of "
        "other samples. Log odds: +0.7 doubles the odds, -0.7 halves them. Features also act together, "
        "so that the numbers need not add up."
    )
    return joined([*parts, note(about)]) if parts else Html()


def importance(names: Sequence[str], assessments: Sequence[Assessment]) -> Html:
    """Features by how much worse predictions get without them."""
    sections = []
    for label in assessments[0].scored:
        by_run = [{one.name: one.losses.get(label) for one in a.importances} for a in assessments]
        features = list(dict.fromkeys(name for losses in by_run for name in losses))
        estimates = [[losses.get(name) for losses in by_run] for name in features]
        rows = []
        for name, cell, of_runs in zip(features, _whiskers(estimates, 0.0), estimates, strict=True):
            kinds = ["clear" if e is not None and e.is_clear else "soft" for e in of_runs]
            texts = [element("span", _plus_minus(e), kind=k) for e, k in zip(of_runs, kinds, strict=True)]
            rows.append((name, cell, *texts))
        metric = _word(assessments[0].quality[label].decisive)
        axis = _axis(estimates, 0.0, f"loss of {metric}")
        header = ("", axis, *(named(names) if len(names) > 1 else [f"loss of {metric}"]))
        sections.append((label, shortened(header, rows, "features")))
    about = (
        f"How much worse the metric gets where the values of a feature change places among "
        f"{assessments[0].permuted:,} samples; bold where the interval leaves out 0. Features that say "
        f"the same can replace one another, and seem less important than they are together."
    )
    return joined((_by_label(sections), note(about)))
