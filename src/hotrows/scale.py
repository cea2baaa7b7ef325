"""Scale: how fast a workload would train on so many ranks, what limits it, and how tables are dealt.

    found = predict(shapes.named("criteo-1tb"), MACHINES["h100"], ranks=[1, 8, 64])
    found.points[1].cost.samples_per_second, found.points[1].choice.reasons

The batch is that of all ranks together, whatever their number: what more ranks win is a shorter step,
not a larger batch. Nothing is run; see `planning.cost` for the formulas and docs/scale.md for what
they say.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotrows.planning.cost import Machine, StepCost, TableLoad, step_cost
from hotrows.planning.sharding import Placement
from hotrows.planning.sharding_choice import Choice, choose
from hotrows.shapes import Shape


@dataclass(frozen=True)
class Point:
    """What came of a number of ranks; cost and choice are None where the tables do not fit."""

    num_ranks: int
    cost: StepCost | None
    choice: Choice | None
    refused: str = ""

    def sharding(self, loads: Sequence[TableLoad]) -> str:
        """How many tables went which way."""
        if self.choice is None:
            return "does not fit"
        pairs = zip(self.choice.placements, loads, strict=True)
        kinds = Counter(kind_of(place, load, self.num_ranks) for place, load in pairs)
        hot = sum(place.hot > 0 for place in self.choice.placements) - kinds["replicated"]
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return words + (f" ({hot} with hot rows)" if hot else "")


@dataclass(frozen=True)
class Prediction:
    """A workload on a machine, by number of ranks."""

    shape: Shape
    machine: Machine
    points: tuple[Point, ...]

    def efficiency(self, point: Point) -> float | None:
        """Samples a second per rank, relative to the fewest ranks that fit."""
        fitting = [of for of in self.points if of.cost is not None]
        if point.cost is None:
            return None
        first = fitting[0].cost
        assert first is not None
        per_rank = point.cost.samples_per_second / point.num_ranks
        return per_rank / (first.samples_per_second / first.num_ranks)

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape.name,
            "note": self.shape.note,
            "tables": len(self.shape.loads),
            "table_rows": sum(load.rows for load in self.shape.loads),
            "table_bytes": self.shape.table_bytes,
            "lookups": self.shape.lookups,
            "step": dataclasses.asdict(self.shape.step),
            "machine": dataclasses.asdict(self.machine),
            "points": [self._point_to_json(point) for point in self.points],
        }

    def _point_to_json(self, point: Point) -> dict[str, Any]:
        found: dict[str, Any] = {"num_ranks": point.num_ranks}
        if point.cost is None or point.choice is None:
            return found | {"refused": point.refused}
        return found | {
            "efficiency": self.efficiency(point),
            "cost": point.cost.to_json(),
            "sharding": point.sharding(self.shape.loads),
            "placements": [dataclasses.asdict(place) for place in point.choice.placements],
            "reasons": list(point.choice.reasons),
        }


def kind_of(place: Placement, load: TableLoad, num_ranks: int) -> str:
    """The way a table is placed, in a word or two."""
    if place.columns:
        return "by columns"
    if place.hot >= load.rows:
        return "replicated"
    return "on one rank" if place.num_ranks == 1 else "dealt"


def predict(
    shape: Shape,
    machine: Machine,
    ranks: Sequence[int],
    *,
    sharding: str = "auto",
    memory: float | None = None,
) -> Prediction:
    """The cost of a step on each number of ranks, ascending.

    sharding: as `choose` takes it. memory: bytes for tables on a rank; None: what the machine has.
    """
    if not ranks or min(ranks) < 1:
        raise ValueError(f"ranks must be numbers of at least 1, such as 1,8,64, not {list(ranks)}")
    points = [_point(shape, machine, num, sharding, memory) for num in sorted(set(ranks))]
    if all(point.cost is None for point in points):
        raise ValueError(points[-1].refused)
    return Prediction(shape, machine, tuple(points))


def _point(
    shape: Shape, machine: Machine, num_ranks: int, sharding: str, memory: float | None
) -> Point:
    try:
        choice = choose(shape.loads, machine, num_ranks, shape.step, memory, sharding)
    except ValueError as refused:
        return Point(num_ranks, None, None, str(refused))
    cost = step_cost(machine, shape.loads, choice.placements, num_ranks, shape.step)
    return Point(num_ranks, cost, choice)
