"""Pictures of simulated caches and of predicted scaling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hotrows.runtime import figures
from hotrows.runtime.figures import BLUE, GRAY, GREEN, INK, ORANGE, percent, short
from hotrows.runtime.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hotrows.costs.step_cost import StepCost
    from hotrows.tuning.cache_simulation import Simulation
    from hotrows.tuning.scaling import Prediction


def draw_curves(simulation: Simulation, picture: Path, knee: int | None = None) -> Path | None:
    """Draws what each policy misses over fast memory; a line stands at the knee."""
    figure = figures.new_figure(9.5, 5.6)
    if figure is None:
        return None
    with figures.style():
        axes = figure.subplots()
        for name, (color, line) in _lines(simulation.policies).items():
            sizes = [cache.fast_memory for cache in simulation.results(name)]
            misses = [cache.misses for cache in simulation.results(name)]
            size = 8 if name == "belady" else 5  # seen behind a policy that comes up to it
            axes.plot(
                sizes, misses, line, color=color, linewidth=2, markersize=size, label=name,
                zorder=2 if name == "belady" else 3,
            )  # fmt: skip
        axes.axhline(simulation.untouched, color=GRAY, linewidth=1, linestyle=":", label="first touches")
        if knee is not None:
            axes.axvline(knee, color=GRAY, linewidth=1, linestyle="--")
            axes.annotate(f"knee {format_bytes(knee)}", (knee, 0), xytext=(-5, 9), color="#5b616a",
                          textcoords="offset points", ha="right")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda size, _: format_bytes(int(size)))
        axes.yaxis.set_major_formatter(short)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("fast memory")
        axes.set_ylabel("misses per batch (distinct rows)")
        axes.legend(loc="upper right")
        below = (
            f"{simulation.model}, {format_bytes(simulation.table_bytes)} of tables, "
            f"{simulation.rows:,.0f} distinct rows a batch of {simulation.batch_size:,}, batches "
            f"{simulation.skipped:,} to {simulation.batches:,}"
        )
        figures.set_title(figure, "Misses by fast memory", below)
        return figures.save(figure, picture)


def draw_scaling(prediction: Prediction, picture: Path) -> Path | None:
    """Draws samples a second over ranks, beside what the parts of a step take."""
    costs = [point.cost for point in prediction.points if point.cost is not None]
    figure = figures.new_figure(12.5, 5.0)
    if figure is None:
        return None
    with figures.style():
        speed, parts = figure.subplots(1, 2, width_ratios=(1, 1.25))
        _draw_speed(speed, costs)
        _draw_parts(parts, costs)
        step = prediction.workload.step
        below = (
            f"{prediction.machine.name}; {format_bytes(int(prediction.workload.table_bytes))} of tables, "
            f"batch {step.batch_size:,} of all ranks, {8 * step.wire_bytes}-bit numbers between them"
        )
        figures.set_title(figure, f"Predicted: {prediction.workload.name}", below)
        return figures.save(figure, picture)


def _draw_speed(axes: Axes, costs: Sequence[StepCost]) -> None:
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
    axes.plot(ranks, alone, "o:", color=ORANGE, linewidth=1.6, markersize=4, label="nothing overlaps")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ranks, [str(num) for num in ranks])
    axes.yaxis.set_major_formatter(short)
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel("ranks")
    axes.legend(loc="upper left")


def _draw_parts(axes: Axes, costs: Sequence[StepCost]) -> None:
    """Shares of the step itself, one above the other; lanes beside it as marks on the same scale."""
    axes.set_title("What a step consists of, as shares of its time")
    x = np.arange(len(costs))
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
        axes.bar(x, share, 0.66, bottom=bottom, color=color, label=name)
        bottom += share
    lanes = {"planning": ("v", "planning"), "loading": ("s", "loading"), "moving": ("D", "cache")}
    for name, (marker, label) in lanes.items():
        share = np.array([getattr(cost, name) for cost in costs]) / critical
        if share.any():
            axes.plot(x[share > 0], share[share > 0], marker, color=INK, markersize=6,
                      markerfacecolor="white", label=f"{label}, beside the step")  # fmt: skip
    axes.set_xticks(x, [str(cost.num_ranks) for cost in costs])
    axes.yaxis.set_major_formatter(percent)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("ranks")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _lines(policies: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and line of each policy: ours stands out, the bounds are gray."""
    known = {"lookahead": (BLUE, "o-"), "lru": (GRAY, "o--"), "belady": (INK, "s:")}
    others = iter([(ORANGE, "o-"), (GREEN, "o-"), ("#b8860b", "o-"), ("#8b5fbf", "o-")] * len(policies))
    return {name: known[name] if name in known else next(others) for name in policies}
