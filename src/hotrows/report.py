"""Pictures: how a run went, and how skewed the accesses of a data set are.

Drawn with matplotlib (`pip install hotrows[report]`) on its Agg canvas, without a display and
without touching pyplot's state. Where it is missing, one sentence is said and nothing is drawn.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotrows import run_folder
from hotrows.planning.budget import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hotrows.data.description import Description, VocabularyUse
    from hotrows.pipeline.trace import Event
    from hotrows.planning.cost import StepCost
    from hotrows.scale import Prediction
    from hotrows.simulate import Simulation

log = logging.getLogger("hotrows")

BLUE, ORANGE, GREEN, GRAY, INK = "#2563a8", "#d9730d", "#2f855a", "#8a8f98", "#22252a"
_NAMED = 8
_STYLE: dict[Any, Any] = {
    "font.size": 10.5,
    "font.family": "sans-serif",
    "axes.edgecolor": "#c4c8ce",
    "axes.labelcolor": INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e7e9ec",
    "xtick.color": "#5b616a",
    "ytick.color": "#5b616a",
    "text.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "hotrows",
}


def draw_run(run: Path, picture: Path | None = None) -> Path | None:
    """Draws loss, AUC and throughput of a run over its steps; into RUN/report.png by default."""
    records = run_folder.read_metrics(run)
    steps = [r for r in records if r["kind"] == "train"]
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    if not steps:
        return None
    figure = _figure(12.5, 4.6)
    if figure is None:
        return None
    with _style():
        loss, auc, speed = figure.subplots(1, 3)
        _draw_loss(loss, steps, evaluations)
        _draw_auc(auc, evaluations)
        _draw_speed(speed, steps)
        for axes in (loss, auc, speed):
            axes.set_xlim(0, steps[-1]["step"] * 1.02)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.xaxis.set_major_formatter(_short)
            axes.set_xlabel("step")
        _title(figure, *_run_title(run))
        return _save(figure, picture or run / "report.png")


_STAGES = (
    *(GRAY, BLUE, "#7fb0de", GREEN, ORANGE, "#b8860b"),
    *("#8e6bb0", "#5ca8a0", "#c4626b", "#9aa86b", "#4f5b8f"),
)  # fmt: skip


def draw_timeline(events: Sequence[Event], picture: Path, batches: int = 12) -> Path | None:
    """Draws when each stage of the last whole batches of a run was at work, a row per lane."""
    trained = [event.batch for event in events if event.stage == "train"][-batches - 4 :]
    shown = [event for event in events if event.batch in set(trained[2 : 2 + batches])]
    figure = _figure(12.5, 3.4) if shown else None
    if figure is None:
        return None
    with _style():
        axes = figure.subplots()
        lanes = list(dict.fromkeys(event.lane for event in events))
        stages = list(dict.fromkeys(event.stage for event in events))
        colors = dict(zip(stages, _STAGES, strict=False))
        first = min(event.begin for event in shown)
        for stage in stages:
            own = [event for event in shown if event.stage == stage]
            axes.barh(
                [lanes.index(event.lane) for event in own],
                [(event.end - event.begin) * 1e3 for event in own],
                left=[(event.begin - first) * 1e3 for event in own],
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
        _title(figure, "Timeline", "what each lane did; numbers are batches")
        return _save(figure, picture)


def draw_skew(description: Description, picture: Path) -> Path | None:
    """Draws, per vocabulary, which share of its lookups the hottest rows serve.

    A cache that holds the hottest 1 % of its rows serves the share that stands above 1 %.
    """
    figure = _figure(9.5, 6.2)
    if figure is None:
        return None
    with _style():
        _draw_skew(figure.subplots(), description.vocabularies)
        below = "share of a vocabulary's lookups that its hottest rows serve, in the training part"
        _title(figure, "Skew of the lookups", below)
        return _save(figure, picture)


def draw_curves(found: Simulation, picture: Path, knee: int | None = None) -> Path | None:
    """Draws what each policy misses over fast memory; a line stands at the knee."""
    figure = _figure(9.5, 5.6)
    if figure is None:
        return None
    with _style():
        axes = figure.subplots()
        for name, (color, line) in _lines(found.policies).items():
            sizes = [of.fast_memory for of in found.of(name)]
            misses = [of.misses for of in found.of(name)]
            size = 8 if name == "belady" else 5  # seen behind a policy that comes up to it
            axes.plot(
                sizes, misses, line, color=color, linewidth=2, markersize=size, label=name,
                zorder=2 if name == "belady" else 3,
            )  # fmt: skip
        axes.axhline(found.untouched, color=GRAY, linewidth=1, linestyle=":", label="first touches")
        if knee is not None:
            axes.axvline(knee, color=GRAY, linewidth=1, linestyle="--")
            axes.annotate(f"knee {format_bytes(knee)}", (knee, 0), xytext=(-5, 9), color="#5b616a",
                          textcoords="offset points", ha="right")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda size, _: format_bytes(int(size)))
        axes.yaxis.set_major_formatter(_short)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("fast memory")
        axes.set_ylabel("misses per batch (distinct rows)")
        axes.legend(loc="upper right")
        below = (
            f"{found.model}, {format_bytes(found.table_bytes)} of tables, {found.rows:,.0f} distinct "
            f"rows a batch of {found.batch_size:,}, batches {found.skipped:,} to {found.batches:,}"
        )
        _title(figure, "Misses by fast memory", below)
        return _save(figure, picture)


def draw_scaling(found: Prediction, picture: Path) -> Path | None:
    """Draws samples a second over ranks, beside what the parts of a step take."""
    costs = [point.cost for point in found.points if point.cost is not None]
    figure = _figure(12.5, 5.0)
    if figure is None:
        return None
    with _style():
        speed, parts = figure.subplots(1, 2, width_ratios=(1, 1.25))
        _draw_scaling(speed, costs)
        _draw_parts(parts, costs)
        step = found.shape.step
        below = (
            f"{found.machine.name}; {format_bytes(int(found.shape.table_bytes))} of tables, batch "
            f"{step.batch_size:,} of all ranks, {8 * step.wire_bytes}-bit numbers between them"
        )
        _title(figure, f"Predicted: {found.shape.name}", below)
        return _save(figure, picture)


def _draw_scaling(axes: Axes, costs: Sequence[StepCost]) -> None:
    ranks = [cost.num_ranks for cost in costs]
    first = costs[0].samples_per_second / ranks[0]
    axes.set_title("Samples/s")
    ideal = [first * num for num in ranks]
    axes.plot(ranks, ideal, "--", color=GRAY, linewidth=1.2, label="as many times as ranks")
    axes.plot(
        ranks, [cost.samples_per_second for cost in costs], "o-", color=BLUE, linewidth=2,
        markersize=5, label="predicted",
    )  # fmt: skip
    alone = [cost.batch_size / cost.serial_seconds for cost in costs]
    axes.plot(
        ranks, alone, "o:", color=ORANGE, linewidth=1.6, markersize=4, label="nothing overlaps"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ranks, [str(num) for num in ranks])
    axes.yaxis.set_major_formatter(_short)
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel("ranks")
    axes.legend(loc="upper left")


def _draw_parts(axes: Axes, costs: Sequence[StepCost]) -> None:
    """Shares of the step itself, one above the other; lanes beside it as marks on the same scale."""
    axes.set_title("What a step consists of, as shares of its time")
    at = np.arange(len(costs))
    bottom = np.zeros(len(costs))
    critical = np.array([cost.critical for cost in costs])
    shown: dict[str, tuple[str, list[float]]] = {
        "dense layers": (GRAY, [c.dense for c in costs]),
        "rows: gather, pool, update": (BLUE, [c.gather + c.pool + c.update for c in costs]),
        "exchange: bytes": (ORANGE, [c.exchange - c.latency for c in costs]),
        "exchange: messages": ("#b8860b", [c.latency for c in costs]),
        "all-reduces": (GREEN, [c.reduce + c.exposed_reduce for c in costs]),
    }
    for name, (color, seconds) in shown.items():
        share = np.array(seconds) / critical
        axes.bar(at, share, 0.66, bottom=bottom, color=color, label=name)
        bottom += share
    lanes = {"planning": ("v", "planning"), "loading": ("s", "loading"), "moving": ("D", "cache")}
    for name, (marker, label) in lanes.items():
        share = np.array([getattr(cost, name) for cost in costs]) / critical
        if share.any():
            axes.plot(at[share > 0], share[share > 0], marker, color=INK, markersize=6,
                      markerfacecolor="white", label=f"{label}, beside the step")  # fmt: skip
    axes.set_xticks(at, [str(cost.num_ranks) for cost in costs])
    axes.yaxis.set_major_formatter(_percent)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("ranks")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _lines(policies: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and line of each policy: ours stands out, the bounds are gray."""
    known = {"lookahead": (BLUE, "o-"), "lru": (GRAY, "o--"), "belady": (INK, "s:")}
    others = iter(
        [(ORANGE, "o-"), (GREEN, "o-"), ("#b8860b", "o-"), ("#8b5fbf", "o-")] * len(policies)
    )
    return {name: known[name] if name in known else next(others) for name in policies}


def _draw_loss(axes: Axes, steps: list[dict], evaluations: list[dict]) -> None:
    axes.set_title("Log loss")
    x, y = _column(steps, "loss")
    axes.plot(x, y, color=BLUE, alpha=0.25, linewidth=1)
    axes.plot(x, _smooth(y), color=BLUE, linewidth=2, label="training")
    x, y = _column(evaluations, "log_loss")
    if x:
        axes.plot(x, y, "o-", color=ORANGE, linewidth=2, markersize=5, label="validation")
    axes.legend(loc="upper right")


def _draw_auc(axes: Axes, evaluations: list[dict]) -> None:
    axes.set_title("AUC on validation")
    x, y = _column(evaluations, "auc")
    if not x:
        axes.text(0.5, 0.5, "no evaluation", transform=axes.transAxes, ha="center", color=GRAY)
        return
    axes.plot(x, y, "o-", color=ORANGE, linewidth=2, markersize=5)
    best = max(range(len(y)), key=lambda i: y[i])
    axes.plot(x[best], y[best], "o", color=GREEN, markersize=10, clip_on=False)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.margins(y=0.18)
    side = "right" if x[best] > x[-1] / 2 else "left"
    axes.annotate(
        f"best {y[best]:.4f}", (x[best], y[best]), xytext=(0, 11), textcoords="offset points",
        ha=side, color=GREEN, fontweight="bold",
    )  # fmt: skip


def _draw_speed(axes: Axes, steps: list[dict]) -> None:
    axes.set_title("Throughput, samples/s")
    x, y = _column(steps, "samples_per_second")
    axes.plot(x, y, color=BLUE, linewidth=1.6)
    median = float(np.median(y))
    axes.axhline(median, color=GRAY, linewidth=1, linestyle="--")
    axes.set_ylim(0, max(y) * 1.22)
    axes.yaxis.set_major_formatter(_short)
    stalled = sum(r["stall_seconds"] for r in steps) / max(sum(r["seconds"] for r in steps), 1e-9)
    axes.text(
        0.98, 0.96, f"median {_short(median)}, {stalled:.1%} waiting for data",
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
        label = f"{used.name}  {_short(used.rows)} rows"
        axes.plot(*_points(used), color=color, linewidth=2, label=label)
    if others:
        axes.plot([], [], color="#d3d7dc", label=f"{len(others)} smaller ones")
    axes.set_xscale("log")
    axes.set_xlim(min(used.curve[0][0] for used in vocabularies), 1)
    axes.set_ylim(0, 1.01)
    axes.xaxis.set_major_formatter(_percent)
    axes.yaxis.set_major_formatter(_percent)
    axes.set_xlabel("share of the rows, hottest first")
    axes.set_ylabel("share of the lookups")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _points(used: VocabularyUse) -> tuple[list[float], list[float]]:
    return [rows for rows, _ in used.curve], [lookups for _, lookups in used.curve]


def _smooth(values: list[float]) -> list[float]:
    """A running mean over a thirtieth of the run, shorter at its beginning."""
    width = max(len(values) // 30, 1)
    sums = np.cumsum([0.0, *values])
    first = np.maximum(np.arange(len(values)) + 1 - width, 0)
    last = np.arange(len(values)) + 1
    return list((sums[last] - sums[first]) / (last - first))


def _column(records: list[dict], name: str) -> tuple[list[int], list[float]]:
    present = [(r["step"], r[name]) for r in records if r.get(name) is not None]
    return [step for step, _ in present], [value for _, value in present]


def _run_title(run: Path) -> tuple[str, str]:
    config = run_folder.read_config(run)
    words = [f"batch {config.batch_size:,}", f"{config.precision}", f"seed {config.seed}"]
    if (run / "result.json").exists():
        test = run_folder.read_json(run / "result.json")["test"] or {}
        if test.get("auc") is not None:
            words.insert(0, f"test AUC {test['auc']:.4f}, log loss {test['log_loss']:.4f}")
    return f"{run.name}: {config.model}", "   ·   ".join(words)


def _title(figure: Figure, title: str, below: str) -> None:
    height = figure.get_figheight()
    figure.text(0.012, 1 - 0.24 / height, title, fontsize=15, fontweight="bold", va="center")
    figure.text(0.012, 1 - 0.54 / height, below, fontsize=10.5, va="center", color="#5b616a")
    layout = {"rect": (0.006, 0.01, 0.988, 1 - 0.84 / height), "w_pad": 0.12}
    figure.get_layout_engine().set(**layout)  # type: ignore[union-attr]


def _figure(width: float, height: float) -> Figure | None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("matplotlib is not installed, so no picture is drawn: pip install hotrows[report]")
        return None
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _style() -> Any:
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def _save(figure: Figure, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=130)
    return path


def _short(value: float, place: float | None = None) -> str:
    """1,234 as 1.2k, 45,000,000 as 45M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}"


def _percent(value: float, place: float | None = None) -> str:
    digits = max(0, -math.floor(math.log10(value * 100))) if 0 < value < 0.01 else 0
    return f"{value * 100:.{digits}f} %"
