"""The page of prepared data: parts, numbers, vocabularies and their skew, lists, drift, what is odd."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hotrows.data import Description, EncodedData
from hotrows.data.description import DENSE_QUANTILES, STABLE, DenseUse, quantile_name
from hotrows.runtime.atomic_files import write_text
from hotrows.runtime.pages.drawing import Line, bar, chart, stacked
from hotrows.runtime.pages.markup import (
    Html,
    document,
    figure,
    grid,
    joined,
    named,
    note,
    shortened,
    table,
)
from hotrows.runtime.pages.numbers import number, percent
from hotrows.runtime.units import format_bytes
from hotrows.tools.report.facts import shown
from hotrows.train.telling.pictures import skew_chart

_FIGURES = 24  # histograms of dense columns
_KINDS = ("missing", "unknown")


def write_description(data: EncodedData, description: Description, out: Path) -> None:
    """Writes a page about prepared data that needs nothing but itself."""
    sections = {
        "Parts": joined((_parts(description), _source(data))),
        "Odd": joined(map(note, description.oddities)),
        "Numbers": _dense(description),
        "Vocabularies": _vocabularies(description),
        "Lists": _lists(description),
        "Missing and unknown values": _fields(description),
        "Drift": _drift(description),
        "Columns that go together": _together(description),
    }
    schema = data.schema
    listed = ", ".join(f"{len(features):,} {kind}" for kind, features in schema.by_kind.items())
    labels = ", ".join(label.name for label in schema.labels)
    write_text(out, document(shown(data.path), f"{schema.name}: {listed}; label {labels}", sections))


def _parts(description: Description) -> Html:
    labels = list(
        dict.fromkeys(name for part in description.parts.values() for name in part.positive_rates)
    )
    rows = []
    for name, part in description.parts.items():
        rates = [part.positive_rates.get(label) for label in labels]
        rows.append((name, f"{part.rows:,}", *("" if rate is None else f"{rate:.2%}" for rate in rates)))
    return table(("", "rows", *(f"positive rate of {label}" for label in labels)), rows)


def _source(data: EncodedData) -> Html:
    split = f"split by {data.split}, seed {data.seed}" if data.split else "parts as they came"
    extends = f"; extends {len(data.extends):,} earlier data" if data.extends else ""
    return note(f"Fingerprint {data.fingerprint[:12]}; {split}{extends}.")


def _dense(description: Description) -> Html:
    missing = {field.name: field.missing.get("train", 0.0) for field in description.fields}
    rows = []
    for used in description.dense:
        numbers = [used.mean, used.deviation, *(used.quantiles.get(share) for share in DENSE_QUANTILES)]
        count, absent = f"{used.count:,}", f"{missing[used.name]:.1%}"
        rows.append((used.name, used.transform, count, absent, *map(number, numbers)))
    about = (
        "Of the training part, in the units of the raw column; under log, numbers below 0 are 0. Means "
        "and quantiles are of at most 262,144 samples. Histograms are of the numbers that a "
        "model reads, from the 1 % to the 99 % quantile; what is beyond counts at the ends."
    )
    header = ("", "transform", "count", "missing", "mean", "std", *map(quantile_name, DENSE_QUANTILES))
    figures = grid(_histogram(used) for used in description.dense[:_FIGURES] if used.count)
    return joined((shortened(header, rows, "columns"), note(about), figures)) if rows else Html()


def _histogram(used: DenseUse) -> Html:
    edges, shares = used.histogram
    line = Line([(low + high) / 2 for low, high in pairwise(edges)], shares, 0, "steps")
    words = {"log": "log(1 + number)", "standard": "deviations from the mean"}
    x_label = words.get(used.transform, "number")
    return figure(used.name, chart([line], x_label, y_range=(0, 1.08 * max(shares)), y_format=percent))


def _vocabularies(description: Description) -> Html:
    largest = sorted(description.vocabularies, key=lambda used: -used.rows)
    if not largest:
        return Html()
    drawing, keys = skew_chart(description)
    about = "Share of a vocabulary's lookups that its hottest rows serve, in the training part."
    rows = [
        (
            used.name, f"{used.rows:,}", f"{used.num_distinct:,}", f"{used.top:.1%}",
            stacked([bar(used.hottest[0.01])]), f"{used.hottest[0.01]:.1%}",
            "" if used.zipf is None else f"{used.zipf:.2f}", format_bytes(used.table_bytes),
        )
        for used in largest
    ]  # fmt: skip
    header = ("", "rows", "seen", "top row", "hottest 1 %", "", "zipf", f"size at dim {description.dim}")
    size = note(
        f"All tables: {format_bytes(description.table_bytes)} in float32, without optimizer state."
    )
    skew = grid([figure("Skew of the lookups", drawing, about, keys)])
    return joined((skew, shortened(header, rows, "vocabularies"), size))


def _lists(description: Description) -> Html:
    rows = []
    for used in description.lists:
        lengths = [f"{length:,}" for length in used.quantiles.values()]
        rows.append((used.name, f"{used.mean:.1f}", *lengths, f"{used.longest:,}", f"{used.empty:.1%}"))
    shares = [f"{share:.0%} at most" for used in description.lists[:1] for share in used.quantiles]
    return table(("", "ids a sample", *shares, "longest", "empty"), rows)


def _fields(description: Description) -> Html:
    parts = [name for name, part in description.parts.items() if part.rows]
    rows = []
    for used in description.fields:
        by_kind = {"missing": used.missing, "unknown": used.unknown or {}}
        most = [max(shares.values(), default=0.0) for shares in by_kind.values()]
        if any(most):
            shares = [by_kind[kind].get(part) for kind in _KINDS for part in parts]
            texts = ["" if share is None else f"{share:.2%}" for share in shares]
            rows.append(
                (used.name, *texts, stacked([bar(share, color) for color, share in enumerate(most)]))
            )
    header = ("", *(f"{kind}: {part}" for kind in _KINDS for part in parts), joined(named(_KINDS)))
    return shortened(header, rows, "columns")


def _drift(description: Description) -> Html:
    parts = [name for name in ("validation", "test") if description.parts[name].rows]
    most = {name: max(by_part.values(), default=0.0) for name, by_part in description.drift.items()}
    rows = [
        (
            name,
            *(f"{description.drift[name].get(part, 0.0):.2f}" for part in parts),
            stacked([bar(value)]),
        )
        for name, value in sorted(most.items(), key=lambda item: -item[1])
        if value > STABLE
    ]
    about = (
        f"PSI (population stability index) of a part against training: up to {STABLE} is stable, above "
        f"0.25 a shift. "
        f"{len(most) - len(rows):,} columns are stable, and not listed."
    )
    return joined((table(("", *parts, ""), rows), note(about))) if parts else Html()


def _together(description: Description) -> Html:
    lines = [f"Missing together: {', '.join(names)}." for names in description.missing_together]
    lines += [f"{one} and {other} say the same; one of them would do." for one, other in description.same]
    return joined(map(note, lines))
