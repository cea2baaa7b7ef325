"""Pictures: how a run went, when its stages were at work, and how skewed the accesses of data are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotrows.metrics import Metrics, word_of
from hotrows.runtime import figures
from hotrows.runtime.figures import BLUE, GRAY, GREEN, INK, ORANGE, percent, short
from hotrows.train import metrics_log, run_folder
from hotrows.train.run_state import best_rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hotrows.data.description import Description, VocabularyUse
    from hotrows.pipeline.trace import Event

_NAMED = 8  # vocabularies in colour
_WHITE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}


def draw_run(run: Path, picture: Path | None = None) -> Path | None:
    """Draws a run over its steps; into RUN/report.png by default.

    Training loss (of several labels their sum, and what a model adds), the metric that decides and one
    more on validation (of several labels each, and their mean, which decides), and throughput.
    """
    records = metrics_log.read_metrics(run)
    steps = [r for r in records if r["kind"] == "train"]
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    windows = [r for r in records if r["kind"] == "window"]  # of a run on a stream, which has no others
    if not steps:
        return None
    figure = figures.new_figure(12.5, 8.2)
    if figure is None:
        return None
    with figures.style():
        (loss, first), (speed, second) = figure.subplots(2, 2)
        _draw_loss(loss, steps)
        for axes, name in zip((first, second), metrics_to_draw(evaluations or windows), strict=False):
            word, of_what = word_of(name), "of each window" if windows else "on validation"
            _draw_metric(axes, f"{word[:1].upper()}{word[1:]} {of_what}", evaluations or windows, name)
        _draw_speed(speed, steps)
        for axes in (loss, first, speed, second):
            axes.set_xlim(0, steps[-1]["step"] * 1.02)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.xaxis.set_major_formatter(short)
            axes.set_xlabel("step")
        if evaluations:
            decides = word_of(evaluations[-1].get("decides", "auc")) or "mean score"
            figure.supxlabel(best_rule(run_folder.read_config(run), decides), fontsize=10, color=GREEN)
        figures.set_title(figure, *_run_title(run))
        return figures.save(figure, picture or run / "report.png")


_STAGES = (
    *(GRAY, BLUE, "#7fb0de", GREEN, ORANGE, "#b8860b"),
    *("#8e6bb0", "#5ca8a0", "#c4626b", "#9aa86b", "#4f5b8f"),
)


def draw_timeline(events: Sequence[Event], picture: Path, batches: int = 12) -> Path | None:
    """Draws when each stage of the last whole batches of a run was at work, a row per lane."""
    trained = [event.batch for event in events if event.stage == "train"][-batches - 4 :]
    shown = [event for event in events if event.batch in set(trained[2 : 2 + batches])]
    figure = figures.new_figure(12.5, 3.4) if shown else None
    if figure is None:
        return None
    with figures.style():
        axes = figure.subplots()
        lanes = list(dict.fromkeys(event.lane for event in events))
        stages = list(dict.fromkeys(event.stage for event in events))
        colors = dict(zip(stages, _STAGES, strict=False))
        first = min(event.begin for event in shown)
        for stage in stages:
            spans = [event for event in shown if event.stage == stage]
            axes.barh(
                [lanes.index(event.lane) for event in spans],
                [(event.end - event.begin) * 1e3 for event in spans],
                left=[(event.begin - first) * 1e3 for event in spans],
                color=colors.get(stage, INK), height=0.62, linewidth=0.6, label=stage,
                edgecolor="white" if stage == "train" else colors.get(stage, INK),
            )  # fmt: skip
        for event in shown:
            if event.stage == "train":
                middle = (event.begin + event.end) / 2 - first
                axes.text(middle * 1e3, lanes.index(event.lane), str(event.batch), ha="center",
                          va="center", color="white", fontsize=9)  # fmt: skip
        axes.set_yticks(range(len(lanes)), lanes)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("milliseconds")
        axes.legend(ncols=min(len(stages), 6), loc="upper center", bbox_to_anchor=(0.5, -0.22))
        figures.set_title(figure, "Timeline", "what each lane did; numbers are batches")
        return figures.save(figure, picture)


def draw_skew(description: Description, picture: Path) -> Path | None:
    """Draws, per vocabulary, which share of its lookups the hottest rows serve.

    A cache that holds the hottest 1 % of its rows serves the share that stands above 1 %.
    """
    figure = figures.new_figure(9.5, 6.2)
    if figure is None:
        return None
    with figures.style():
        _draw_skew(figure.subplots(), description.vocabularies)
        below = "share of a vocabulary's lookups that its hottest rows serve, in the training part"
        figures.set_title(figure, "Skew of the lookups", below)
        return figures.save(figure, picture)


def draw_keys(run: Path, picture: Path) -> Path | None:
    """Draws how keys of a run's dynamic features came and went: live ones, births and deaths a step."""
    records = [r for r in metrics_log.read_metrics(run) if r["kind"] == "train" and r.get("keys")]
    if not records:
        raise ValueError(
            f"{run}: its log has no keys to draw: no feature is dynamic, or no step was logged so far"
        )
    figure = figures.new_figure(12.5, 4.2)
    if figure is None:
        return None
    steps, lengths = [r["step"] for r in records], _lengths([r["step"] for r in records])
    panels = {"live": "Live keys", "admitted": "Births a step", "evicted": "Deaths a step"}
    with figures.style():
        for axes, (count, title) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            for name, color in zip(records[-1]["keys"], (BLUE, ORANGE, GREEN, INK), strict=False):
                counts = [r["keys"].get(name, {}).get(count, 0) for r in records]
                shown = counts if count == "live" else np.diff(counts, prepend=0) / lengths
                axes.plot(steps, shown, color=color, label=name)
            axes.set_title(title)
            axes.set_xlim(0, steps[-1] * 1.02)
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_formatter(short)
            axes.yaxis.set_major_formatter(short)
            axes.set_xlabel("step")
        figure.axes[0].legend()
        figures.set_title(figure, *_run_title(run))
        return figures.save(figure, picture)


def _lengths(steps: list[int]) -> np.ndarray:
    """The number of steps that each record of a log is about."""
    return np.maximum(np.diff(steps, prepend=0), 1)


def metrics_to_draw(evaluations: list[dict]) -> list[str]:
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


def _draw_loss(axes: Axes, steps: list[dict]) -> None:
    axes.set_title("Training loss")
    x, y = column(steps, "loss")
    axes.plot(x, y, color=BLUE, alpha=0.25, linewidth=1)
    axes.plot(x, smooth(y), color=BLUE, linewidth=2)


def _draw_metric(axes: Axes, title: str, evaluations: list[dict], name: str) -> None:
    """Draws a metric of the evaluations, of several labels each one's, too; marks the best checkpoint."""
    import matplotlib

    axes.set_title(title)
    evaluations = [{**record, **record.get("ranking", {})} for record in evaluations]
    x, y = column(evaluations, name)
    if not x:
        axes.text(0.5, 0.5, "no evaluation", transform=axes.transAxes, ha="center", color=GRAY)
        return
    labels = list(dict.fromkeys(label for r in evaluations for label in r.get("tasks", {})))
    colors = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.88, len(labels)))
    for label, color in zip(labels, colors, strict=True):
        tasks = [(r["step"], r.get("tasks", {}).get(label, {})) for r in evaluations]
        of_label = [{"step": step, **task, **task.get("ranking", {})} for step, task in tasks]
        axes.plot(*column(of_label, name), ".-", color=color, linewidth=1, label=label)
    axes.plot(x, y, "o-", color=ORANGE, linewidth=2, markersize=5, label="mean")
    if labels:
        axes.legend(loc="best")
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.margins(y=0.18)
    best = column([r for r in evaluations if r.get("is_best")], name)
    if best[0]:
        point = best[0][-1], best[1][-1]
        axes.plot(*point, "o", color=GREEN, markersize=10, clip_on=False)
        value, side = f"best checkpoint {point[1]:.4f}", "right" if point[0] > x[-1] / 2 else "left"
        bold: dict[str, Any] = {"ha": side, "color": GREEN, "fontweight": "bold", "bbox": _WHITE}
        axes.annotate(value, point, xytext=(0, 11), textcoords="offset points", **bold)


def _draw_speed(axes: Axes, steps: list[dict]) -> None:
    axes.set_title("Throughput, samples/s")
    x, y = column(steps, "samples_per_second")
    axes.plot(x, y, color=BLUE, linewidth=1.6)
    median = float(np.median(y))
    axes.axhline(median, color=GRAY, linewidth=1, linestyle="--")
    axes.set_ylim(0, max(y) * 1.22)
    axes.yaxis.set_major_formatter(short)
    stalled = sum(r["stall_seconds"] for r in steps) / max(sum(r["seconds"] for r in steps), 1e-9)
    used = metrics_log.utilization(steps)
    cores = f"\ncores {used['cores_busy']:.0%} busy with training" if used else ""
    axes.text(
        0.98, 0.96, f"median {short(median)}, {stalled:.1%} waiting for data{cores}",
        transform=axes.transAxes, ha="right", va="top", color="#5b616a",
    )  # fmt: skip


def _draw_skew(axes: Axes, vocabularies: Sequence[VocabularyUse]) -> None:
    """The largest ones in colour and by name: they are what memory is spent on."""
    import matplotlib

    largest = sorted(vocabularies, key=lambda used: -used.rows)
    named, others = largest[:_NAMED], largest[_NAMED:]
    colors = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.88, max(len(named), 1)))
    for used in others:
        axes.plot(*_points(used), color="#d3d7dc", linewidth=1)
    for used, color in zip(named, colors, strict=False):
        label = f"{used.name}  {short(used.rows)} rows"
        axes.plot(*_points(used), color=color, linewidth=2, label=label)
    if others:
        axes.plot([], [], color="#d3d7dc", label=f"{len(others)} smaller ones")
    axes.set_xscale("log")
    axes.set_xlim(min(used.curve[0][0] for used in vocabularies), 1)
    axes.set_ylim(0, 1.01)
    axes.xaxis.set_major_formatter(percent)
    axes.yaxis.set_major_formatter(percent)
    axes.set_xlabel("share of the rows, hottest first")
    axes.set_ylabel("share of the lookups")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _points(used: VocabularyUse) -> tuple[list[float], list[float]]:
    return [rows for rows, _ in used.curve], [lookups for _, lookups in used.curve]


def smooth(values: list[float]) -> list[float]:
    """A running mean over a thirtieth of the run, shorter at its beginning."""
    width = max(len(values) // 30, 1)
    sums = np.cumsum([0.0, *values])
    first = np.maximum(np.arange(len(values)) + 1 - width, 0)
    last = np.arange(len(values)) + 1
    return list((sums[last] - sums[first]) / (last - first))


def column(records: list[dict], name: str) -> tuple[list[int], list[float]]:
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
