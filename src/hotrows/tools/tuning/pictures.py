"""Pictures of simulated caches and of predicted scaling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotrows.runtime.atomic_files import write_picture
from hotrows.runtime.pages.drawing import Box, Line, Panel, chart, picture
from hotrows.runtime.pages.numbers import percent
from hotrows.runtime.units import format_bytes
from hotrows.train.telling.pictures import GRAY, NUM_COLORS

if TYPE_CHECKING:
    from hotrows.tools.tuning.cache_simulation import Simulation
    from hotrows.tools.tuning.scaling import Prediction
    from hotrows.train.costs.step_cost import StepCost

_STEP = {
    "dense layers": lambda cost: cost.dense,
    "rows: gather, pool, update": lambda cost: cost.gather + cost.pool + cost.update,
    "exchange: bytes": lambda cost: cost.exchange - cost.latency,
    "exchange: messages": lambda cost: cost.latency,
    "all-reduces": lambda cost: cost.reduce + cost.exposed_reduce,
}


def draw_curves(simulation: Simulation, to: Path | str, knee: int | None = None) -> Path | None:
    """Draws what each policy misses over fast memory; a line stands at the knee.

    >>> from hotrows.tools.tuning.cache_simulation import simulate
    >>> config = hotrows.TrainConfig(model="fm", batch_size=16)
    >>> draw_curves(simulate(data, config), f"{folder}/misses.svg").name
    'misses.svg'
    """
    sizes = sorted({cache.fast_memory for cache in simulation.measured})
    lines, names = [], []
    for number, policy in enumerate(simulation.policies):
        results = simulation.results(policy)
        x, y = [cache.fast_memory for cache in results], [cache.misses for cache in results]
        color = GRAY if policy in ("lru", "belady") else number % NUM_COLORS
        kind = {"belady": "dashed", "lru": "thin"}.get(policy, "bold")
        lines.append(Line(x, y, color, kind, [f"{policy}: {misses:,.0f}" for misses in y]))
        names.append((policy, color))
    first = simulation.untouched
    lines.append(Line([sizes[0], sizes[-1]], [first, first], NUM_COLORS - 2, "dashed"))
    names.append(("first touches", NUM_COLORS - 2))
    top = 1.06 * max(cache.misses for cache in simulation.measured)
    if knee is not None:
        lines.append(Line([knee, knee], [0, top], NUM_COLORS - 1, "dashed"))
        names.append((f"knee {format_bytes(knee)}", NUM_COLORS - 1))
    drawing = chart(
        lines, "fast memory", log_x=True, y_range=(0, top or 1), x_ticks=sizes,
        x_format=lambda size: format_bytes(int(size)).replace(" ", ""),
    )  # fmt: skip
    below = (
        f"{simulation.model}, {format_bytes(simulation.table_bytes)} of tables, "
        f"{simulation.rows:,.0f} distinct rows a batch of {simulation.batch_size:,}, batches "
        f"{simulation.skipped:,} to {simulation.batches:,}"
    )
    title = "misses per batch (distinct rows)"
    return write_picture(Path(to), picture("Misses by fast memory", below, [(title, drawing, names)]))


def draw_scaling(prediction: Prediction, to: Path) -> Path | None:
    """Draws samples a second over ranks, beside what the parts of a step take."""
    costs = [point.cost for point in prediction.points if point.cost is not None]
    step = prediction.workload.step
    below = (
        f"{prediction.machine.name}; {format_bytes(int(prediction.workload.table_bytes))} of tables, "
        f"batch {step.batch_size:,} of all ranks, {8 * step.wire_bytes}-bit numbers between them"
    )
    panels = [_speed_panel(costs), _parts_panel(costs)] if costs else []
    return write_picture(to, picture(f"Predicted: {prediction.workload.name}", below, panels))


def _speed_panel(costs: Sequence[StepCost]) -> Panel:
    ranks = [cost.num_ranks for cost in costs]
    first = costs[0].samples_per_second / ranks[0]
    alone = [cost.batch_size / cost.serial_seconds for cost in costs]
    lines = [
        Line(ranks, [first * num for num in ranks], GRAY, "dashed"),
        Line(ranks, [cost.samples_per_second for cost in costs], 0),
        Line(ranks, alone, 1, "thin"),
    ]
    names = [("predicted", 0), ("nothing overlaps", 1), ("as many times as ranks", GRAY)]
    drawing = chart(
        lines, "ranks", x_ticks=ranks, x_format="{:.0f}".format, log_x=True, log_y=True
    )  # fmt: skip
    return "Samples/s", drawing, names


def _parts_panel(costs: Sequence[StepCost]) -> Panel:
    """Shares of the step itself, one above the other; lanes beside it as dots on the same scale."""
    boxes, dots = [], []
    for x, cost in enumerate(costs):
        low = 0.0
        for color, (name, seconds) in enumerate(_STEP.items()):
            high = low + seconds(cost) / cost.critical
            boxes.append(Box(x - 0.33, x + 0.33, low, high, color, f"{name} {high - low:.1%}"))
            low = high
        for name in ("planning", "loading", "moving"):
            share = getattr(cost, name) / cost.critical
            if share > 0:
                dots.append(Line([x], [share], GRAY, "dots", [f"{name}, beside the step: {share:.1%}"]))
    top = max([box.high for box in boxes] + [line.y[0] for line in dots])
    drawing = chart(
        dots, "ranks", boxes=boxes, x_range=(-0.5, len(costs) - 0.5), y_range=(0, 1.04 * top),
        x_ticks=range(len(costs)), x_format=lambda x: str(costs[int(x)].num_ranks), y_format=percent,
    )  # fmt: skip
    names = [(name, color) for color, name in enumerate(_STEP)]
    return "Shares of a step", drawing, [*names, ("planning, loading, cache beside it", GRAY)]
