"""Scaling: predicts the speed of a workload on several numbers of ranks, its limits and its sharding.

    prediction = predict_scaling(workload.named("criteo-1tb"), MACHINES["h100"], ranks=[1, 8, 64])
    prediction.points[1].cost.samples_per_second, prediction.points[1].choice.reasons

The batch is that of all ranks together, whatever their number: more ranks make a step shorter, not a
batch larger. Nothing is run; see `hotrows.train.costs.step_cost` for the formulas and
docs/explanation/ranks.md for results.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotrows.engine.planning.sharding import Placement
from hotrows.train.costs.choose_sharding import ChosenSharding, choose_sharding
from hotrows.train.costs.step_cost import Machine, StepCost, cost_in_parts
from hotrows.train.costs.volumes import TableLoad
from hotrows.train.costs.workload import Workload


@dataclass(frozen=True)
class Point:
    """Prediction for a number of ranks; cost and choice are None where the tables do not fit."""

    num_ranks: int
    cost: StepCost | None
    choice: ChosenSharding | None
    refused: str = ""

    def sharding(self, loads: Sequence[TableLoad]) -> str:
        """Number of tables placed in each way, in words."""
        if self.choice is None:
            return "does not fit"
        pairs = zip(self.choice.placements, loads, strict=True)
        kinds = Counter(kind_of(place, load) for place, load in pairs)
        hot = sum(place.hot > 0 for place in self.choice.placements) - kinds["replicated"]
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return words + (f" ({hot} with hot rows)" if hot else "")


@dataclass(frozen=True)
class Prediction:
    """A workload on a machine, by number of ranks."""

    workload: Workload
    machine: Machine
    points: tuple[Point, ...]

    def efficiency(self, point: Point) -> float | None:
        """Samples a second per rank, relative to the fewest ranks that fit."""
        if point.cost is None:
            return None
        first = next(fitting.cost for fitting in self.points if fitting.cost is not None)
        per_rank = point.cost.samples_per_second / point.num_ranks
        return per_rank / (first.samples_per_second / first.num_ranks)

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": self.workload.name,
            "note": self.workload.note,
            "tables": len(self.workload.loads),
            "table_rows": sum(load.rows for load in self.workload.loads),
            "table_bytes": self.workload.table_bytes,
            "lookups": self.workload.lookups,
            "step": dataclasses.asdict(self.workload.step),
            "machine": dataclasses.asdict(self.machine),
            "points": [self._point_to_json(point) for point in self.points],
        }

    def _point_to_json(self, point: Point) -> dict[str, Any]:
        fields: dict[str, Any] = {"num_ranks": point.num_ranks}
        if point.cost is None or point.choice is None:
            return fields | {"refused": point.refused}
        return fields | {
            "efficiency": self.efficiency(point),
            "cost": point.cost.to_json(),
            "sharding": point.sharding(self.workload.loads),
            "placements": [dataclasses.asdict(place) for place in point.choice.placements],
            "reasons": list(point.choice.reasons),
        }


def kind_of(place: Placement, load: TableLoad) -> str:
    """The way in which a table is placed, in a word or two."""
    if place.columns:
        return "by columns"
    if place.hot >= load.rows:
        return "replicated"
    return "on one rank" if place.num_ranks == 1 else "dealt"


def predict_scaling(
    workload: Workload,
    machine: Machine,
    ranks: Sequence[int],
    *,
    sharding: str = "auto",
    memory: float | None = None,
) -> Prediction:
    """Predicts the cost of a step on each number of ranks, ascending.

    sharding: `auto`, `rows`, `tables`, `columns` or `replicated`, as `choose_sharding` takes it.
    memory: bytes for tables on a rank; None: memory of the machine beside dense layers.
    """
    if not ranks or min(ranks) < 1:
        raise ValueError(f"ranks must be numbers of at least 1, such as 1,8,64, not {list(ranks)}")
    points = [_point(workload, machine, num, sharding, memory) for num in sorted(set(ranks))]
    if all(point.cost is None for point in points):
        raise ValueError(points[-1].refused)
    return Prediction(workload, machine, tuple(points))


def _point(
    workload: Workload, machine: Machine, num_ranks: int, sharding: str, memory: float | None
) -> Point:
    loads, step = workload.loads, workload.step
    try:
        choice = choose_sharding(loads, machine, num_ranks, step, memory, sharding)
    except ValueError as refused:
        return Point(num_ranks, None, None, str(refused))
    return Point(num_ranks, cost_in_parts(machine, loads, choice.placements, num_ranks, step), choice)
