"""Pictures: how a run went, when its stages were at work, and how skewed the accesses of data are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotrows.runtime.atomic_files import write_picture
from hotrows.runtime.pages.drawing import Box, Line, Panel, chart, picture
from hotrows.runtime.pages.numbers import percent, short
from hotrows.train.metrics import Metrics, word_of
from hotrows.train.run import folder as run_folder
from hotrows.train.run.state import best_rule
from hotrows.train.telling import metrics_log

if TYPE_CHECKING:
    from hotrows.data.description import Description
    from hotrows.engine.pipeline.trace import Event

NUM_COLORS = 6
GRAY = 6
_BATCHES = 12  # of a timeline


def draw_run(run: Path) -> Path | None:
    """Draws a run over its steps into RUN/report.svg. None where it has no step.

    Training loss (of several labels their sum, and what a model adds), the metric that decides and one
    more on validation (of several labels each, and their mean, which decides), and throughput.
    """
    records = metrics_log.read_metrics(run)
    steps = [r for r in records if r["kind"] == "train"]
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    windows = [r for r in records if r["kind"] == "window"]  # of a run on a stream, which has no others
    if not steps:
        return None
    on_axis: dict[str, Any] = {"x_range": (0, steps[-1]["step"] * 1.02)}
    of_what = "of each window" if windows else "on validation"
    metrics = [
        metric_panel(evaluations or windows, name, of_what, **on_axis)
        for name in metrics_to_draw(evaluations or windows)
    ]
    loss: Panel = ("Training loss", chart(loss_lines(steps), "step", **on_axis), ())
    panels = [loss, *metrics[:1], _speed_panel(steps, **on_axis), *metrics[1:]]
    decides = word_of(evaluations[-1].get("decides", "auc")) or "mean score" if evaluations else ""
    last = best_rule(run_folder.read_config(run), decides) if evaluations else "no evaluation"
    return write_picture(run / "report.svg", picture(*_run_title(run), panels, last))


def draw_timeline(events: Sequence[Event], to: Path) -> Path | None:
    """Draws when each stage of the last whole batches of a run was at work, a row per lane."""
    trained = [event.batch for event in events if event.stage == "train"][-_BATCHES - 4 :]
    shown = [event for event in events if event.batch in set(trained[2 : 2 + _BATCHES])]
    if not shown:
        return None
    lanes = list(dict.fromkeys(event.lane for event in events))[::-1]  # the first one is at the top
    stages = list(dict.fromkeys(event.stage for event in events))
    first = min(event.begin for event in shown)
    boxes = [
        Box(
            *((event.begin - first) * 1e3, (event.end - first) * 1e3),
            *(lanes.index(event.lane) - 0.4, lanes.index(event.lane) + 0.4),
            stages.index(event.stage) % (NUM_COLORS + 1),
            f"{event.stage} of batch {event.batch:,}: {(event.end - event.begin) * 1e3:.2f} ms",
        )
        for event in shown
    ]
    drawing = chart(
        [], "milliseconds", boxes=boxes, y_range=(-0.5, len(lanes) - 0.5), y_ticks=range(len(lanes)),
        y_format=lambda lane: lanes[int(lane)][:8],
    )  # fmt: skip
    names = [(stage, n % (NUM_COLORS + 1)) for n, stage in enumerate(stages)]
    return write_picture(to, picture("Timeline", "what each lane did", [("", drawing, names)]))


def draw_skew(description: Description, to: Path) -> Path | None:
    """Draws, per vocabulary, which share of its lookups the hottest rows serve.

    A cache that holds the hottest 1 % of its rows serves the share that stands above 1 %.
    """
    return write_picture(
        to, picture("Skew of the lookups", "", [("Share of the lookups", *skew_chart(description))])
    )


def skew_chart(description: Description) -> tuple[Any, list[tuple[str, int]]]:
    """The chart of `draw_skew`, and its legend: the largest vocabularies are in colour and by name."""
    largest = sorted(description.vocabularies, key=lambda used: -used.rows)
    lines = []
    for place, used in enumerate(largest):
        (x, y), is_named = zip(*used.curve, strict=True), place < NUM_COLORS
        lines.append(Line(x, y, place if is_named else GRAY, "bold" if is_named else "faint"))
    first = min((used.curve[0][0] for used in largest), default=0.5)
    drawing = chart(
        lines[::-1], "share of the rows, hottest first", x_range=(min(first, 0.5), 1.0),
        y_range=(0.0, 1.0), log_x=True, x_format=percent, y_format=percent,
    )  # fmt: skip
    named = enumerate(largest[:NUM_COLORS])
    names = [(f"{used.name}, {short(used.rows)} rows", color) for color, used in named]
    more = len(largest) - NUM_COLORS
    return drawing, [*names, *([(f"{more} smaller ones", GRAY)] if more > 0 else [])]


def draw_keys(run: Path, to: Path) -> Path | None:
    """Draws how keys of a run's dynamic features came and went: live ones, births and deaths a step."""
    records = [r for r in metrics_log.read_metrics(run) if r["kind"] == "train" and r.get("keys")]
    if not records:
        raise ValueError(
            f"{run}: its log has no keys to draw: no feature is dynamic, or no step was logged so far"
        )
    steps = [r["step"] for r in records]
    names = [(name, color) for color, name in enumerate(list(records[-1]["keys"])[:NUM_COLORS])]
    panels = []
    titles = {"live": "Live keys", "admitted": "Births a step", "evicted": "Deaths a step"}
    for count, title in titles.items():
        lines = [Line(steps, list(key_counts(records, name, count)), color) for name, color in names]
        panels.append((title, chart(lines, "step"), names if count == "live" else ()))
    return write_picture(to, picture(*_run_title(run), panels, columns=3))


def key_counts(records: Sequence[dict], name: str, count: str) -> np.ndarray:
    """Live keys of a feature at each record, or how many were admitted or evicted in a step before it."""
    counts = np.array([r["keys"].get(name, {}).get(count, 0) for r in records], float)
    if count == "live":
        return counts
    return np.diff(counts, prepend=0) / np.maximum(np.diff([r["step"] for r in records], prepend=0), 1)


def metrics_to_draw(evaluations: Sequence[dict]) -> list[str]:
    """Two metrics to draw, the second of which decides; of several labels those that decide of each."""
    last = evaluations[-1] if evaluations else {}
    if last.get("decides", "auc") == "auc":
        return ["log_loss", "auc"]
    tasks = [task.get("decides", "auc") for task in last.get("tasks", {}).values()]
    decide = list(dict.fromkeys(tasks)) if tasks else [last["decides"]]
    others = [
        name
        for name in (*last.get("ranking", {}), "auc", "mae", "rmse", "log_loss")
        if name not in decide and {**last, **last.get("ranking", {})}.get(name) is not None
    ]
    return [*others[:1], *decide][-2:]


def loss_lines(steps: Sequence[dict], color: int = 0, faint: bool = True) -> list[Line]:
    """The running mean of the loss and, where `faint`, the loss itself."""
    x, y = column(steps, "loss")
    return [*([Line(x, y, color, "faint")] if faint else []), Line(x, smooth(y), color)]


def metric_lines(
    records: Sequence[dict], name: str, color: int = 0, labels: bool = True
) -> Iterator[tuple[str, Line]]:
    """Yields names and lines of a metric: of each label if there are several, of all, of the best."""
    flat = [{**record, **record.get("ranking", {})} for record in records]
    tasks = dict.fromkeys(label for record in records for label in record.get("tasks", {}))
    for number, label in enumerate(tasks if labels else (), 1):
        of_label = [{"step": r["step"], **r.get("tasks", {}).get(label, {})} for r in records]
        x, y = column([{**task, **task.get("ranking", {})} for task in of_label], name)
        yield label, Line(x, y, number % NUM_COLORS, "thin")
    x, y = column(flat, name)
    names = [f"step {step:,}: {value:.5g}" for step, value in zip(x, y, strict=True)]
    yield "mean" if tasks else "", Line(x, y, color, "bold", names)
    x, y = column([record for record in flat if record.get("is_best")], name)
    yield "", Line(x[-1:], y[-1:], color, "dots best", ["best checkpoint"])


def metric_panel(records: Sequence[dict], name: str, of_what: str, **how: Any) -> Panel:
    """A metric of the evaluations, of several labels each one's, too; a dot is the best checkpoint."""
    word, drawn = word_of(name), list(metric_lines(records, name))
    drawing = chart([line for _, line in drawn], "step", y_format="{:.4g}".format, **how)
    names = [(label, line.color) for label, line in drawn if label]
    best = drawn[-1][1].y
    if len(best):
        names.append((f"best checkpoint {best[-1]:.4f}", drawn[-1][1].color))
    return f"{word[:1].upper()}{word[1:]} {of_what}", drawing, names


def _speed_panel(steps: Sequence[dict], **how: Any) -> Panel:
    x, y = column(steps, "samples_per_second")
    median = float(np.median(y))
    lines = [Line(x, y, 0, "thin"), Line([x[0], x[-1]], [median, median], GRAY, "dashed")]
    stalled = sum(r["stall_seconds"] for r in steps) / max(sum(r["seconds"] for r in steps), 1e-9)
    used = metrics_log.utilization(steps)
    names = [(f"median {short(median)}, {stalled:.1%} waiting for data", GRAY)]
    if used:
        names.append((f"cores {used['cores_busy']:.0%} busy with training", GRAY))
    return "Throughput, samples/s", chart(lines, "step", y_range=(0, max(y) * 1.22), **how), names


def smooth(values: list[float]) -> list[float]:
    """A running mean over a thirtieth of the run, shorter at its beginning."""
    width = max(len(values) // 30, 1)
    sums = np.cumsum([0.0, *values])
    first = np.maximum(np.arange(len(values)) + 1 - width, 0)
    last = np.arange(len(values)) + 1
    return list((sums[last] - sums[first]) / (last - first))


def column(records: Sequence[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps and numbers of the records that have a number of this name."""
    present = [(r["step"], r[name]) for r in records if r.get(name) is not None]
    return [step for step, _ in present], [value for _, value in present]


def _run_title(run: Path) -> tuple[str, str]:
    config = run_folder.read_config(run)
    words = [f"batch {config.batch_size:,}", f"{config.precision}", f"seed {config.seed}"]
    if (run / "result.json").exists():
        test = run_folder.read_json(run / "result.json").get("test")
        metrics = None if test is None else Metrics.from_json(test)
        if metrics is not None and not math.isnan(metrics.value(metrics.decides)):
            first = list(metrics.shown().items())[:2]
            words.insert(0, "test " + ", ".join(f"{name} {value:.4f}" for name, value in first))
    return f"{run.name}: {config.model}", "   ·   ".join(words)
