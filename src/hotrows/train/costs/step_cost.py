"""Step cost: seconds of a training step on many ranks, from its tables, their placements and a machine.

    cost = step_cost(machine, loads, placements, num_ranks=8, step=StepWork(65_536, 1e8, 16e6))
    cost.seconds, cost.samples_per_second, cost.limit, cost.parts

A step of B samples on P ranks, b = B / P samples each (`hotrows.train.costs.volumes` counts its rows):

    ahead     planning, loading and a cache's moves, each on a thread of its own
    step      gather -> exchange -> pool -> dense -> exchange back -> update
                                            dense gradients all-reduced during the exchange back

Every part is the time of the slowest rank: collectives wait for it. Times are means over batches of
independent lookups; waiting for chance stragglers, and the load of other jobs, are left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.engine.planning.sharding import Placement
from hotrows.train.costs.machines import Link, Machine
from hotrows.train.costs.volumes import StepWork, TableLoad, Volumes, volumes_of

BACKWARD = 2 / 3  # of the dense work, during which gradients are all-reduced
_PAGE = 4096  # least bytes of a read of the data
_MORE_WORK = 0.1  # share of the work that each further micro-batch adds on processors, as measured


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step on the slowest rank, by part.

    gather: owners read rows and write them for the wire.
    exchange: all-to-alls of rows, and of their gradients back.
    latency: seconds of the exchange that its messages take, rather than its bytes.
    pool: rows to vectors of samples, and their gradients back.
    reduce: all-reduce of the gradients of hot rows.
    dense: dense layers and their update.
    dense_reduce: all-reduce of the dense gradients.
    update: update of rows.
    planning, loading, moving: work ahead of the step, on threads beside it.
    micro_batches: slices of a batch, whose exchanges overlap the work of other slices.
    held: bytes of tables on the fullest rank, those behind its cache included.
    dense_bytes: bytes of dense weights, their gradients and two moments.
    sent: bytes of rows that the busiest rank sends, without gradients.
    messages: messages that a rank sends in the exchanges of a step.
    imbalance: owner work of the busiest rank, relative to the mean.
    """

    num_ranks: int
    batch_size: int
    gather: float
    exchange: float
    latency: float
    pool: float
    reduce: float
    dense: float
    dense_reduce: float
    update: float
    planning: float
    loading: float
    moving: float
    micro_batches: int
    held: float
    dense_bytes: float
    sent: float
    messages: int
    imbalance: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part; the exchange is split into its messages and its bytes."""
        names = ("gather", "pool", "reduce", "dense", "dense_reduce", "update")
        parts = {name: getattr(self, name) for name in names}
        parts["messages"], parts["bytes"] = self.latency, self.exchange - self.latency
        return parts | {name: getattr(self, name) for name in ("planning", "loading", "moving")}

    @property
    def exposed_reduce(self) -> float:
        """Seconds of the dense all-reduce that the backward pass does not hide."""
        return max(0.0, self.dense_reduce - BACKWARD * self.dense)

    @property
    def critical(self) -> float:
        """Seconds of the training thread: work and wires, overlapped by micro-batches.

        max(work, wires) + min(work, wires) / micro_batches + the dense all-reduce that is not hidden
        """
        work = self.gather + self.pool + self.dense + self.update
        wires = self.exchange + self.reduce
        overlapped = max(work, wires) + min(work, wires) / self.micro_batches
        return overlapped + self.exposed_reduce

    @property
    def seconds(self) -> float:
        """Seconds of a step with overlap: those of its slowest thread."""
        return max(self.critical, self.planning, self.loading, self.moving)

    @property
    def serial_seconds(self) -> float:
        """Seconds of a step without any overlap: the sum of all parts."""
        return sum(self.parts.values())

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.seconds

    @property
    def limit(self) -> str:
        """Name of the slowest thread; where that is the training thread, of its largest part."""
        lanes = {name: getattr(self, name) for name in ("planning", "loading", "moving")}
        slowest = max(lanes, key=lambda name: lanes[name])
        if lanes[slowest] > self.critical:
            return slowest
        parts = {n: s for n, s in self.parts.items() if n not in lanes}
        parts["dense_reduce"] = self.exposed_reduce
        return max(parts, key=lambda name: parts[name])

    def to_json(self) -> dict[str, Any]:
        more = ("critical", "seconds", "serial_seconds", "samples_per_second", "limit")
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in more}


def work_seconds(machine: Machine, volumes: Volumes, num_ranks: int) -> np.ndarray:
    """[P]: seconds of each rank for the rows of a step: reading, copying, updating, and the wires.

    Of the wires only the bytes that a rank sends count, twice: it receives as many on the mean, and
    these depend on placements hardly at all. So the work of several tables is the sum of theirs.
    """
    on_wire = volumes.sent * wire_seconds(machine, 1.0, num_ranks)
    return (
        gather_seconds(machine, volumes)
        + update_seconds(machine, volumes)
        + 2 * on_wire
        + reduce_seconds(machine, volumes.reduced, num_ranks, messages=0)
    )


def gather_seconds(machine: Machine, volumes: Volumes) -> np.ndarray:
    """[P]: seconds to read rows at random places, and to write them for the wire."""
    in_rows = volumes.gathered_rows * machine.row_seconds
    in_bytes = volumes.gathered_bytes / machine.row_bandwidth
    return in_rows + in_bytes + volumes.copied / 2 / machine.memory_bandwidth


def update_seconds(machine: Machine, volumes: Volumes) -> np.ndarray:
    """[P]: seconds to read gradients from the wire, then to read and write records at random places."""
    in_rows = volumes.updated_rows * machine.row_seconds
    in_bytes = volumes.updated_bytes / machine.row_bandwidth
    return in_rows + in_bytes + volumes.copied / 2 / machine.memory_bandwidth


def wire_seconds(machine: Machine, num_bytes: float, num_ranks: int) -> float:
    """Seconds of an all-to-all in which the busiest rank sends so many bytes, without its messages.

    Of the others, n - 1 of P - 1 are on the same node. Both links are used at once; the slower one
    counts: max(bytes (n - 1) / (P - 1) / inner, bytes (P - n) / (P - 1) / outer).
    """
    inside, others = min(machine.ranks_per_node, num_ranks), max(num_ranks - 1, 1)
    near, far = (inside - 1) / others, (num_ranks - inside) / others
    inner, outer = _links(machine, num_ranks)
    return max(num_bytes * near / inner.bandwidth, num_bytes * far / outer.bandwidth)


def message_seconds(machine: Machine, num_ranks: int) -> float:
    """Seconds of the messages of an all-to-all: one to each other rank, over both links at once.

    max((n - 1) latency of inner, (P - n) latency of outer)
    """
    inside = min(machine.ranks_per_node, num_ranks)
    inner, outer = _links(machine, num_ranks)
    return max((inside - 1) * inner.latency, (num_ranks - inside) * outer.latency)


def reduce_seconds(machine: Machine, num_bytes: float, num_ranks: int, messages: float = 1.0) -> float:
    """Seconds of an all-reduce of so many bytes: rings of a node's n ranks, and trees over N nodes.

    inside a node   2 (n - 1) / n  x bytes / inner       2 (n - 1) messages
    between nodes   2 (N - 1) / N  x bytes / n / outer   2 ceil(log2 N) messages

    Pieces go through both at once, so of the bytes the slower one counts; messages add up. Where an
    all-reduce was measured: one ring of 2 (P - 1) messages, each of bytes / P.
    """
    if num_bytes == 0:
        return 0.0
    if machine.reducing is not None:
        piece = num_bytes / num_ranks / machine.reducing.bandwidth
        return 2 * (num_ranks - 1) * (piece + messages * machine.reducing.latency)
    inside = min(machine.ranks_per_node, num_ranks)
    nodes = -(-num_ranks // inside)
    inner, outer = _links(machine, num_ranks)
    near = 2 * (inside - 1) / inside * num_bytes / inner.bandwidth
    far = 2 * (nodes - 1) / nodes * num_bytes / inside / outer.bandwidth
    hops = 2 * (inside - 1) * inner.latency + 2 * math.ceil(math.log2(nodes)) * outer.latency
    return max(near, far) + messages * hops


def _links(machine: Machine, num_ranks: int) -> tuple[Link, Link]:
    nothing = Link(0.0, math.inf)
    inside = min(machine.ranks_per_node, num_ranks)
    if (inside > 1 and machine.inner is None) or (num_ranks > inside and machine.outer is None):
        raise ValueError(
            f"what connects {num_ranks} ranks of {machine.name!r} is not known; measure it on that "
            f"many ranks, or name a machine whose links are stated"
        )
    return machine.inner or nothing, machine.outer or nothing


def step_cost(
    machine: Machine,
    loads: Sequence[TableLoad],
    placements: Sequence[Placement],
    num_ranks: int,
    step: StepWork,
) -> StepCost:
    """Predicts the seconds of a training step, by part.

    dense     b flops_per_sample / flops + 28 bytes of each dense parameter through memory (Adam)
    exchange  twice an all-to-all per pack: rows, and their gradients back
    planning  lookups and requested rows / planning_rate + two all-to-alls: counts, and row numbers
    loading   of a node: bytes of min(its samples x samples of a page, B) samples / disk_bandwidth
    moving    records that are not in fast memory, read and written back / far_bandwidth
    """
    volumes = Volumes.zero(num_ranks)
    for load, place in zip(loads, placements, strict=True):
        volumes = volumes + volumes_of(load, place, num_ranks, step)
    placed = list(zip(loads, placements, strict=True))
    packs = {(load.dim, load.record_bytes) for load, place in placed if place.hot < load.rows}
    work = work_seconds(machine, volumes, num_ranks)
    samples = step.batch_size / num_ranks
    latency = 2 * len(packs) * message_seconds(machine, num_ranks)
    most_bytes = float(np.maximum(volumes.sent, volumes.received).max())
    return StepCost(
        num_ranks=num_ranks,
        batch_size=step.batch_size,
        gather=float(gather_seconds(machine, volumes).max()),
        exchange=latency + 2 * wire_seconds(machine, most_bytes, num_ranks),
        latency=latency,
        pool=volumes.pooled / machine.memory_bandwidth,
        reduce=reduce_seconds(machine, volumes.reduced, num_ranks),
        dense=samples * step.flops_per_sample / machine.flops
        + 28 * step.dense_parameters / machine.memory_bandwidth,
        dense_reduce=reduce_seconds(machine, 4 * step.dense_parameters, num_ranks),
        update=float(update_seconds(machine, volumes).max()),
        planning=_planning_seconds(machine, volumes, num_ranks),
        loading=_loading_seconds(machine, num_ranks, step),
        moving=_moving_seconds(machine, loads, placements, volumes, num_ranks, step),
        micro_batches=step.micro_batches,
        held=float(volumes.held.max()),
        dense_bytes=step.dense_bytes,
        sent=float(volumes.sent.max()),
        messages=2 * len(packs) * (num_ranks - 1),
        imbalance=float(work.max() / work.mean()) if work.any() else 1.0,
    )


def cost_in_parts(
    machine: Machine,
    loads: Sequence[TableLoad],
    placements: Sequence[Placement],
    num_ranks: int,
    step: StepWork,
) -> StepCost:
    """Predicts a step in its micro-batches.

    Rows that two of them read travel twice: exchanges are those of as many batches of a share of the
    samples. Work is that of the batch, and a tenth more for each further one, as operations are more and
    smaller (docs/evidence/papers.md, the ablation where the wire is fastest).
    """
    num, cost = step.micro_batches, step_cost(machine, loads, placements, num_ranks, step)
    if num == 1:
        return cost
    part = dataclasses.replace(step, batch_size=max(step.batch_size // num, num_ranks))
    of_part = step_cost(machine, loads, placements, num_ranks, part)
    more = 1 + _MORE_WORK * (num - 1) * machine.on_host
    work = {name: more * getattr(cost, name) for name in ("gather", "pool", "dense", "update")}
    return dataclasses.replace(
        cost, exchange=num * of_part.exchange, latency=num * of_part.latency, **work
    )


def _planning_seconds(machine: Machine, volumes: Volumes, num_ranks: int) -> float:
    """Seconds to plan a batch: ranks exchange counts, then the row numbers of all packs at once."""
    numbers = float(np.maximum(volumes.numbers_sent, volumes.numbers_received).max())
    on_wire = wire_seconds(machine, numbers, num_ranks)
    messages = 2 * message_seconds(machine, num_ranks)
    return float(volumes.looked_up.max()) / machine.planning_rate + on_wire + messages


def _loading_seconds(machine: Machine, num_ranks: int, step: StepWork) -> float:
    """Seconds in which a node reads its share of a batch: whole pages, never more than the batch."""
    inside = min(machine.ranks_per_node, num_ranks)
    page = max(1.0, _PAGE / step.bytes_per_sample) if step.bytes_per_sample else 0.0
    samples = min(step.batch_size * inside / num_ranks * page, step.batch_size)
    return samples * step.bytes_per_sample / machine.disk_bandwidth


def _moving_seconds(
    machine: Machine,
    loads: Sequence[TableLoad],
    placements: Sequence[Placement],
    volumes: Volumes,
    num_ranks: int,
    step: StepWork,
) -> float:
    """Seconds to read from far memory the rows that a batch misses in fast memory.

    Where tables outgrow the memory of a rank, it holds equal shares of all, the most read rows. As
    many records as are read are written back at the same time.
    """
    fits = max(machine.memory - step.dense_bytes, 0.0) / max(float(volumes.held.max()), 1.0)
    if fits >= 1:
        return 0.0
    missed = 0.0
    for load, place in zip(loads, placements, strict=True):
        far = load.ids.tail(max(place.hot, fits * load.ids.rows))
        missed += far.distinct(load.lookups * step.batch_size) * load.record_bytes
    return missed / num_ranks / machine.far_bandwidth
