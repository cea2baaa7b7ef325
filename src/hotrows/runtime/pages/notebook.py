"""How values show themselves in notebooks: as small tables of HTML, in place of their `repr`.

A class says `_repr_html_ = notebook.schema`, and no more. Whatever comes from data or users is escaped;
colours and fonts are those of the notebook.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_MOST_ROWS = 40  # of a table; further ones are counted
_IN_COLUMNS = {"name", "column", "rows", "vocabulary"}


def schema(value: Any) -> str:
    """The labels and features of a `Schema`, a row each."""
    head = ("", "name", "column", "ids of", "rows", "settings")
    labels = [
        ("label", label.name, value.column_of(label), "", "", settings(label)) for label in value.labels
    ]
    features = [
        (
            type(feature).__name__.lower(),
            feature.name,
            value.column_of(feature),
            getattr(feature, "vocabulary", None) or (feature.name if hasattr(feature, "rows") else ""),
            _number(getattr(feature, "rows", None)),
            settings(feature),
        )
        for feature in value.features
    ]
    return table(f"Schema {value.name}", head, [*labels, *features])


def schema_line(value: Any) -> str:
    """The labels and features of a `Schema`, the first names of each kind."""
    listed = [f"{len(named):,} {kind}: {_first(named)}" for kind, named in value.by_kind.items()]
    return f"Schema({value.name!r}, {'; '.join([f'label {_first(value.labels)}', *listed])})"


def _first(named: Sequence[Any]) -> str:
    more = f" and {len(named) - 5:,} more" if len(named) > 5 else ""
    return ", ".join(one.name for one in named[:5]) + more


def draft(value: Any) -> str:
    """Of every column of a `Draft`, what it is read as, why, and examples; then its notes."""
    rows = [(c.column, c.read_as, c.why, ", ".join(c.examples)) for c in value.columns]
    notes = [(note,) for note in value.notes]
    head = ("column", "read as", "why", "examples")
    return table("Draft", head, rows, len(rows)) + table("Notes", (), notes, len(notes))


def data(value: Any) -> str:
    """The parts of an `EncodedData`, and its schema with the rows of every vocabulary."""
    means = [f"mean {label.name}" for label in value.schema.labels]
    rows = [
        (name, _number(part.rows), *(_number(mean) for mean in part.label_means()))
        for name, part in value.parts.items()
    ]
    return table(f"EncodedData {value.path}", ("part", "samples", *means), rows) + schema(value.schema)


def result(value: Any) -> str:
    """The metrics of a run's best checkpoint, by part."""
    parts = {"validation": value.validation, "test": value.test}
    shown = {part: metrics.shown() for part, metrics in parts.items() if metrics is not None}
    names = list(dict.fromkeys(name for metrics in shown.values() for name in metrics))
    rows = [(part, *(_number(metrics.get(name)) for name in names)) for part, metrics in shown.items()]
    speed = f", {value.samples_per_second:,.0f} samples/s" if value.samples_per_second else ""
    early = ", stopped early" if value.stopped_early else ""
    title = f"Run {value.run}: {value.steps:,} steps, the best after {value.best_step:,}{early}{speed}"
    return table(title, ("", *names), rows)


def plan(value: Any) -> str:
    """The ids that a `Plan` reads, a row for each pack, and how many rows it moves."""
    rows = [
        (number, *map(_number, (pack.inverse.numel(), pack.num_bags, pack.num_rows)))
        for number, pack in enumerate(value.packs)
    ]
    come, leave = (sum(len(getattr(m, side)) for m in value.moves) for side in ("rows_in", "rows_out"))
    moved = f", {come:,} rows come into fast memory and {leave:,} leave it" if value.moves else ""
    title = f"Plan of step {value.step}: {value.batch_size:,} samples{moved}"
    return table(title, ("pack", "ids", "vectors", "distinct rows"), rows)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], most: int = _MOST_ROWS) -> str:
    """A table with a caption, all text escaped; rows beyond `most` are counted."""
    rows = list(rows)
    more = len(rows) - most
    lines = [_line("th", head), *(_line("td", row) for row in rows[:most])]
    if more > 0:
        lines.append(_line("td", [f"and {more:,} more"]))
    caption = f'<caption style="text-align: left; font-weight: bold">{escape(title)}</caption>'
    return f"<table>{caption}{''.join(lines)}</table>"


def _line(tag: str, cells: Sequence[Any]) -> str:
    style = ' style="text-align: left"'
    return f"<tr>{''.join(f'<{tag}{style}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def settings(declared: Any) -> str:
    """The settings of a label or feature other than the defaults, such as `transform=log`."""
    changed = [
        f"{field.name}={getattr(declared, field.name)}"
        for field in dataclasses.fields(declared)
        if field.name not in _IN_COLUMNS and getattr(declared, field.name) != field.default
    ]
    return ", ".join(changed)
