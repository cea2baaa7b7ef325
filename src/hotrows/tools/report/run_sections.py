"""Sections of a report about runs: what was trained, curves, data, time, tiers, sharding, settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotrows.data import ValueRates
from hotrows.runtime.pages.drawing import Line, bar, chart, stacked
from hotrows.runtime.pages.markup import (
    Html,
    compared,
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
from hotrows.runtime.pages.numbers import percent
from hotrows.tools.report import facts as of_run
from hotrows.tools.report.facts import Facts, shown
from hotrows.train.metrics import word_of
from hotrows.train.telling.pictures import NUM_COLORS, loss_lines, metric_lines, metrics_to_draw, smooth

_LIVE = (
    "Training goes on: this page is written anew, and loads itself again. Predictions follow at the end."
)
Texts = Callable[[Facts], Mapping[str, str]]
Value = Callable[[Mapping[str, Any]], float]


def training(runs: Sequence[Facts]) -> Html:
    live = [element("p", _LIVE, kind="live")] if any(facts.writer for facts in runs) else []
    return joined([*live, side_by_side(runs, of_run.training, marked=True)])


def side_by_side(runs: Sequence[Facts], texts: Texts, marked: bool = False) -> Html:
    """A table with a column for each run. marked: whether differences are."""
    return compared([facts.name for facts in runs], [texts(facts) for facts in runs], marked=marked)


def _keys(runs: Sequence[Facts]) -> list[tuple[str, int]]:
    return [(facts.name, color) for color, facts in enumerate(runs)] if len(runs) > 1 else []


def _over_steps(
    runs: Sequence[Facts], title: str, name: str, value: Value | None = None, top: float = 0.0, **how: Any
) -> Html:
    """A figure of a number over the steps, from 0 to `top` at least; value: of a line that has `name`."""
    lines = []
    for color, facts in enumerate(runs):
        known = [line for line in facts.steps if line.get(name) is not None]
        values = smooth([value(line) if value else line[name] for line in known])
        lines.append(Line([line["step"] for line in known], values, color))
    most = 1.1 * max((y for line in lines for y in line.y), default=0.0)
    return figure(title, chart(lines, "step", y_range=(0, max(top, most) or 1.0), **how), "", _keys(runs))


def curves(runs: Sequence[Facts]) -> Html:
    """Loss and metrics over steps."""
    alone = len(runs) == 1
    lines = [line for k, facts in enumerate(runs) for line in loss_lines(facts.steps, k, faint=alone)]
    about = "A running mean over a thirtieth of the run."
    figures = [figure("Training loss", chart(lines, "step"), about, _keys(runs))]
    evaluations = [facts.evaluations or facts.windows for facts in runs]
    of_what = "of each window of the stream" if any(facts.windows for facts in runs) else "on validation"
    for name in dict.fromkeys(name for records in evaluations for name in metrics_to_draw(records)):
        drawn = [
            pair
            for color, records in enumerate(evaluations)
            for pair in metric_lines(records, name, color, labels=alone)
        ]
        keys = _keys(runs) or [(label, line.color) for label, line in drawn if label]
        drawing = chart([line for _, line in drawn], "step", y_format="{:.4g}".format)
        title = f"{word_of(name)} {of_what}"
        figures.append(
            figure(title[0].upper() + title[1:], drawing, "Larger: the best checkpoint.", keys)
        )
    return grid([*figures, *map(_live_keys, runs)])


def _live_keys(facts: Facts) -> Html:
    """Live keys of dynamic features over the steps of a run."""
    records = [line for line in facts.steps if line.get("keys")]
    names = list(records[-1]["keys"])[:NUM_COLORS] if records else []
    lines = [
        Line(
            [r["step"] for r in records], [r["keys"].get(name, {}).get("live", 0) for r in records], color
        )
        for color, name in enumerate(names)
    ]
    keys = [(name, color) for color, name in enumerate(names)]
    return figure(f"Live keys of {facts.name}", chart(lines, "step"), "", keys)


def data(runs: Sequence[Facts], part: str) -> Html:
    """Unknown and missing values in training and in a part, and the growth of vocabularies."""
    tables: dict[str, Html] = {}
    for facts in runs:
        if facts.data is not None and facts.data_path not in tables:
            tables[facts.data_path] = _rates(facts, part)
    titled = [content for path, one in tables.items() for content in (element("h3", shown(path)), one)]
    return joined([*(titled if len(tables) > 1 else tables.values()), *map(_growth, runs)])


def _rates(facts: Facts, part: str) -> Html:
    assert facts.data is not None
    before, now = (ValueRates.of_parts([facts.data.parts[p]], ()).features for p in ("train", part))
    names = sorted(now, key=lambda name: -now[name].rate("unknown") - now[name].rate("missing"))
    rows = []
    for name in (name for name in names if now[name].missing or now[name].unknown):
        shares = [
            f"{one[name].rate(kind):.2%}" for kind in ("unknown", "missing") for one in (before, now)
        ]
        bars = [bar(now[name].rate(kind), color) for color, kind in enumerate(("unknown", "missing"))]
        rows.append((name, *shares, stacked(bars)))
    if not rows:
        return note(f"No value of the {part} part is missing, and training has seen them all.")
    about = (
        "Shares of a feature's values, and of lists that are empty. Unknown: training has not seen them, "
        "or too rarely for an id."
    )
    legend = named(("unknown", "missing"))
    header = ("", "unknown: train", part, "missing: train", part, joined(legend))
    return joined((shortened(header, rows, "features"), note(about)))


def _growth(facts: Facts) -> Html:
    growth = of_run.growth(facts)
    most = max((now for _, now in growth.values()), default=0)
    rows = [
        (
            name,
            f"{then:,}",
            f"{now:,}",
            f"{now - then:+,}",
            stacked((bar(then / most, 6), bar(now / most))),
        )
        for name, (then, now) in growth.items()
    ]
    about = f"Rows of {facts.config.start_from}, with which {facts.name} began, and of {facts.name}."
    title = element("h3", "Growth of the vocabularies")
    return joined((title, table(("", "before", "now", "new", ""), rows), note(about))) if rows else Html()


def speed(runs: Sequence[Facts]) -> Html:
    """Throughput, and where the time of training went."""

    def waiting(line: Mapping[str, Any]) -> float:
        return line["stall_seconds"] / max(line["seconds"], 1e-9)

    figures = [
        _over_steps(runs, "Samples a second", "samples_per_second"),
        _over_steps(runs, "Time waiting for a batch", "stall_seconds", waiting, 0.05, y_format=percent),
        _over_steps(runs, "Cores busy with training", "cores_busy", top=1.0, y_format=percent),
    ]
    shares = [of_run.stage_shares(facts.steps) for facts in runs]
    names = sorted(
        dict.fromkeys(name for one in shares for name in one),
        key=lambda name: -max(one.get(name, (0.0, 0.0))[0] for one in shares),
    )
    rows = []
    for name in names:
        pairs = [one.get(name, (0.0, 0.0)) for one in shares]
        bars = [bar(busy, color) for color, (busy, _) in enumerate(pairs)]
        numbers = [f"{pair[kind]:.1%}" for kind in (0, 1) for pair in pairs]
        rows.append((name, stacked(bars), *numbers))
    keys = named([facts.name for facts in runs]) if len(runs) > 1 else [""]
    header = ("stage", "", *(joined((kind, key)) for kind in ("at work ", "waited for ") for key in keys))
    about = (
        "Shares of the time of training in which a stage was at work, and in which training waited for "
        "it. Stages work side by side."
    )
    stages = joined((table(header, rows), note(about))) if rows else Html()
    return joined((grid(figures), side_by_side(runs, of_run.time_used), stages))


def tiers(runs: Sequence[Facts]) -> Html:
    """The cache: settings, hits and moved bytes; empty where no run has one."""
    figures = [
        _over_steps(runs, "Rows found in fast memory", "hit_rate", top=1.0, y_format=percent),
        _over_steps(
            runs, "MB a second into fast memory", "bytes_in", lambda line: line["bytes_in"] / 1e6
        ),
        _over_steps(runs, "MB a second out of it", "bytes_out", lambda line: line["bytes_out"] / 1e6),
    ]
    return joined((grid(figures), side_by_side(runs, of_run.cache)))


def settings(runs: Sequence[Facts]) -> Html:
    """Settings that differ between runs, or of one run from their defaults; all others folded."""
    texts, names = [of_run.settings(facts) for facts in runs], [facts.name for facts in runs]
    several, changed = len(runs) > 1, of_run.changed_settings(runs[0])
    differ = [name for name in texts[0] if len({one[name] for one in texts}) > 1]
    shown = differ if several else [name for name in texts[0] if name in changed]
    others = [name for name in texts[0] if name not in shown]
    what = "Settings that differ." if several else "Settings with another value than their default."
    first = joined((note(what), compared(names, texts, shown)))
    return joined((first, folded(f"{len(others):,} more settings", compared(names, texts, others))))


def repeat(runs: Sequence[Facts]) -> Html:
    """The command of each run, and its settings to copy."""
    parts = []
    for facts in runs:
        stored = folded("config.json", element("pre", facts.config.to_json()))
        title = element("h3", facts.name) if len(runs) > 1 else ""
        parts += [title, element("pre", of_run.command(facts)), stored]
    return joined(parts)
