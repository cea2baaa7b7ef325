"""Cost: what a step on many ranks takes, from what its ids are, where rows are and what a machine does.

    cost = step_cost(machine, loads, placements, num_ranks=8, step=Step(65_536, 1e8, 16e6))
    cost.seconds, cost.samples_per_second, cost.limit, cost.parts

A step of B samples on P ranks. Each rank reads b = B / P samples; of a table with L lookups a sample
it asks for u distinct rows, all ranks together for U.

    ahead     planning, loading and a cache's moves, each on a lane of its own
    step      gather -> exchange -> pool -> dense -> exchange back -> update
                                            dense gradients all-reduced beside the way back

Every part is the time of the slowest rank: collectives wait for it. Times are means over batches of
independent lookups; what waits for stragglers by chance, and what other jobs take, is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.planning.frequencies import Frequencies
from hotrows.planning.sharding import Placement

BACKWARD = 2 / 3  # of the dense work, during which gradients are all-reduced
_PAGE = 4096  # bytes that a read of the data brings at least
_NUMBER = 4  # bytes of a row's number on the wire


@dataclass(frozen=True)
class Link:
    """What connects ranks: seconds per message, and bytes a second out of a rank (as many in)."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Machine:
    """What each rank of a machine does in a second.

    flops: floating-point operations in the products of dense layers, as training does them.
    memory_bandwidth: bytes copied, each counted where it is read and where it is written.
    row_seconds, row_bandwidth: a row at a random place takes row_seconds + its bytes / row_bandwidth.
    planning_rate: lookups that planning resolves and dedups.
    memory: bytes for tables in fast memory; far_memory: more of them behind a cache (0: none);
        far_bandwidth: bytes a second to or from there, both at once.
    inner, outer: between ranks of a node, and of different nodes; None: not known, or there is none.
    reducing: what an all-reduce gets of them, where that was measured; None: the same.
    ranks_per_node; disk_bandwidth: bytes a second that a node reads of its training data.
    """

    name: str
    flops: float
    memory_bandwidth: float
    row_seconds: float
    row_bandwidth: float
    planning_rate: float
    memory: float
    inner: Link | None = None
    outer: Link | None = None
    reducing: Link | None = None
    ranks_per_node: int = 1
    disk_bandwidth: float = math.inf
    far_memory: float = 0.0
    far_bandwidth: float = math.inf

    def crowded(self, ranks: float) -> Machine:
        """The same with so many ranks sharing what one has: a rank does 1 / ranks of all but links."""
        rates = ("flops", "memory_bandwidth", "row_bandwidth", "planning_rate")
        slower = {name: getattr(self, name) / ranks for name in rates}
        return dataclasses.replace(self, row_seconds=self.row_seconds * ranks, **slower)


@dataclass(frozen=True)
class TableLoad:
    """What a table holds and what batches ask of it.

    record_bytes: of a row, weights and state; weight_bytes: of one of its dim weights.
    lookups: of a sample, on the mean; pooled: whether they are summed into one vector.
    ids: how often each is read.
    """

    name: str
    rows: int
    dim: int
    record_bytes: int
    lookups: float
    ids: Frequencies
    weight_bytes: int = 4
    pooled: bool = True

    @property
    def bytes(self) -> float:
        """Of all its records."""
        return float(self.rows) * self.record_bytes


@dataclass(frozen=True)
class Step:
    """What a step is made of beside tables.

    batch_size: B, of all ranks together. flops_per_sample: of dense layers, forward and backward.
    dense_parameters: float32 numbers that are all-reduced and updated. bytes_per_sample: on disk.
    wire_bytes: of a number of a row or of its gradient between ranks: 4, or 2 for 16 bits.
    micro_batches: slices whose exchange runs beside the work of others; 1: one after the other.
    send_sums: whether owners send sums of lists in place of rows, where that is less.
    """

    batch_size: int
    flops_per_sample: float
    dense_parameters: float
    bytes_per_sample: float = 0.0
    wire_bytes: int = 4
    micro_batches: int = 1
    send_sums: bool = True

    @property
    def dense_bytes(self) -> float:
        """Weights, gradients and two moments."""
        return 16.0 * self.dense_parameters


@dataclass(frozen=True)
class Volumes:
    """What tables ask of each rank in a step, [P] each unless a number.

    gathered: (rows, bytes) read at random places; copied: bytes through memory in front of the wire
        and behind it. updated: (rows, bytes) read and written at random places.
    sent, received: bytes of rows on the wire; back go as many bytes of gradients.
    numbers_sent, numbers_received: bytes of row numbers; looked_up: lookups and numbers to plan.
    pooled: bytes through memory of pooling and of its way back, on every rank.
    reduced: bytes of gradients of hot rows, summed over all ranks.
    held: bytes of records.
    """

    gathered_rows: np.ndarray
    gathered_bytes: np.ndarray
    copied: np.ndarray
    updated_rows: np.ndarray
    updated_bytes: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    numbers_sent: np.ndarray
    numbers_received: np.ndarray
    looked_up: np.ndarray
    held: np.ndarray
    pooled: float = 0.0
    reduced: float = 0.0

    @staticmethod
    def none(num_ranks: int) -> Volumes:
        no = np.zeros(num_ranks)
        return Volumes(no, no, no, no, no, no, no, no, no, no, no)

    def __add__(self, other: Volumes) -> Volumes:
        names = [of.name for of in dataclasses.fields(Volumes)]
        return Volumes(*(getattr(self, name) + getattr(other, name) for name in names))

    def from_rank(self, first: int) -> Volumes:
        """The same, with what rank 0 has on rank `first`, and so on."""
        names = [of.name for of in dataclasses.fields(Volumes)]
        arrays = [name for name in names if isinstance(getattr(self, name), np.ndarray)]
        turned: dict[str, Any] = {name: np.roll(getattr(self, name), first) for name in arrays}
        return dataclasses.replace(self, **turned)


@dataclass(frozen=True)
class StepCost:
    """What a step takes: seconds of the slowest rank by part.

    gather: owners read rows and lay them out for the wire; exchange: rows there, gradients back;
    latency: how much of that is messages rather than bytes; pool: rows to vectors of samples, and
    back; reduce: gradients of hot rows; dense: dense layers and their update; dense_reduce: their
    gradients; update: of rows. planning, loading, moving: ahead, beside the step.

    held: bytes of tables on each rank, and behind its cache where memory is full; sent: bytes of
    rows that the busiest rank sends, once; messages: that it sends in the step. imbalance: of the
    busiest rank's owner work to the mean.
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
        found = {name: getattr(self, name) for name in names}
        found["messages"], found["bytes"] = self.latency, self.exchange - self.latency
        return found | {name: getattr(self, name) for name in ("planning", "loading", "moving")}

    @property
    def exposed_reduce(self) -> float:
        """What the dense all-reduce takes longer than the way back that it runs beside."""
        return max(0.0, self.dense_reduce - BACKWARD * self.dense)

    @property
    def critical(self) -> float:
        """What one thread does after the other: work and wires, overlapped by micro-batches.

        max(work, wires) + min(work, wires) / micro_batches + the dense all-reduce that is not hidden
        """
        work = self.gather + self.pool + self.dense + self.update
        wires = self.exchange + self.reduce
        overlapped = max(work, wires) + min(work, wires) / self.micro_batches
        return overlapped + self.exposed_reduce

    @property
    def seconds(self) -> float:
        """With overlap: the slowest lane."""
        return max(self.critical, self.planning, self.loading, self.moving)

    @property
    def serial_seconds(self) -> float:
        """Without any overlap: the sum of all parts."""
        return sum(self.parts.values())

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.seconds

    @property
    def limit(self) -> str:
        """The lane that is the slowest; where that is the step, its largest part."""
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


def volumes_of(load: TableLoad, place: Placement, num_ranks: int, step: Step) -> Volumes:
    """What a table placed like this asks of each rank."""
    if place.hot > load.rows or place.num_ranks > num_ranks or place.first_rank >= num_ranks:
        raise ValueError(
            f"table {load.name!r} has {load.rows:,} rows and there are {num_ranks} ranks; it cannot "
            f"be placed as {place}"
        )
    alike = dataclasses.replace(load, name=""), dataclasses.replace(place, first_rank=0)
    return _volumes(*alike, num_ranks, step).from_rank(place.first_rank)


@functools.lru_cache(maxsize=1024)
def _volumes(load: TableLoad, place: Placement, num_ranks: int, step: Step) -> Volumes:
    """Of a table whose first rank is 0: the same for all tables that are alike."""
    cold = load.ids.tail(place.hot)
    asked = _columns if place.columns else _dealt
    found = _hot(load, load.ids.head(place.hot), num_ranks, step)
    found = found + asked(load, cold, place, num_ranks, step)
    lookups = load.lookups * step.batch_size / num_ranks
    vectors = step.batch_size / num_ranks if load.pooled else lookups
    through = 2 * (lookups + vectors) * load.dim * load.weight_bytes
    looked_up = found.looked_up + lookups
    return dataclasses.replace(found, pooled=through, looked_up=looked_up)


def _dealt(
    load: TableLoad, cold: Frequencies, place: Placement, num_ranks: int, step: Step
) -> Volumes:
    """Ids dealt over owners from rank 0 on: id j on owner o = j % num_ranks of them.

    A rank with n = L b lookups asks owner o for u[o] = sum of 1 - (1 - p)^n over its ids; all ranks
    for U[o] = sum of 1 - (1 - p)^(n P). The owner reads U[o] rows, writes P u[o] of them for the
    wire, gets as many gradients, and updates U[o] rows.
    Where lookups are summed, it may send sums instead: b (1 - (1 - m[o])^L) vectors for each rank,
    m[o] being the share of lookups that are its own. Whichever is less goes.
    """
    n = load.lookups * step.batch_size / num_ranks
    owners = np.arange(place.num_ranks)
    asked = cold.dealt(cold.read(n), place.num_ranks)  # [owners]
    union = cold.dealt(cold.read(n * num_ranks), place.num_ranks)
    share = np.minimum(cold.dealt(cold.chances, place.num_ranks), 1 - 1e-16)
    sums = -np.expm1(load.lookups * np.log1p(-share)) * step.batch_size / num_ranks
    as_sums = load.pooled and step.send_sums and sums.sum() < asked.sum() and num_ranks > 1
    answers, numbers = (sums, n * share) if as_sums else (asked, asked)
    row = load.dim * load.weight_bytes
    wire = load.dim * step.wire_bytes
    others = num_ranks - 1
    copies = num_ranks * answers * (row + wire) * 2 if others else 0.0 * answers

    def at(values: np.ndarray) -> np.ndarray:
        found = np.zeros(num_ranks)
        found[owners] = values
        return found

    def elsewhere(values: np.ndarray) -> np.ndarray:
        """What each rank exchanges with owners other than itself."""
        return values.sum() - at(values) if others else np.zeros(num_ranks)

    return Volumes(
        gathered_rows=at(union),
        gathered_bytes=at(union * row),
        copied=at(copies),
        updated_rows=at(union),
        updated_bytes=at(union * 2 * load.record_bytes),
        sent=at(others * answers * wire),
        received=elsewhere(answers) * wire,
        numbers_sent=elsewhere(numbers) * _NUMBER,
        numbers_received=at(others * numbers * _NUMBER),
        looked_up=at(num_ranks * numbers) if others else np.zeros(num_ranks),
        held=at(cold.dealt(np.ones(len(cold.ids)), place.num_ranks) * load.record_bytes),
    )


def _columns(
    load: TableLoad, cold: Frequencies, place: Placement, num_ranks: int, step: Step
) -> Volumes:
    """Columns: every rank is asked by all for u rows, and answers with its w of D columns."""
    n = load.lookups * step.batch_size / num_ranks
    width = np.diff(load.dim * np.arange(num_ranks + 1) // num_ranks)  # [P], as `columns_of` deals
    asks = width > 0
    asked, union = cold.distinct(n), cold.distinct(n * num_ranks)
    vectors = step.batch_size / num_ranks if load.pooled and step.send_sums else math.inf
    answers = min(asked, vectors)
    numbers = n if answers < asked else asked
    others = num_ranks - 1
    row, wire = width * load.weight_bytes, width * step.wire_bytes
    record = load.record_bytes * width / load.dim
    return Volumes(
        gathered_rows=union * asks,
        gathered_bytes=union * row,
        copied=num_ranks * answers * (row + wire) * 2.0 * (others > 0),
        updated_rows=union * asks,
        updated_bytes=union * 2 * record,
        sent=others * answers * wire * 1.0,
        received=answers * (load.dim * step.wire_bytes - wire) * 1.0,
        numbers_sent=numbers * _NUMBER * (asks.sum() - asks),
        numbers_received=others * numbers * _NUMBER * asks,
        looked_up=num_ranks * numbers * asks * (others > 0),
        held=cold.rows * record,
    )


def _hot(load: TableLoad, hot: Frequencies, num_ranks: int, step: Step) -> Volumes:
    """Rows on every rank: read there; gradients summed over the U that any rank has read.

    Which these are, every rank tells every other by number; each dedups what it is told.
    """
    n = load.lookups * step.batch_size / num_ranks
    asked, union = hot.distinct(n), hot.distinct(n * num_ranks)
    others = num_ranks - 1
    told = _NUMBER * asked * others
    each = np.ones(num_ranks)
    return Volumes(
        gathered_rows=asked * each,
        gathered_bytes=asked * load.dim * load.weight_bytes * each,
        copied=2 * union * load.dim * step.wire_bytes * each if others else 0 * each,
        updated_rows=union * each,
        updated_bytes=union * 2 * load.record_bytes * each,
        sent=0 * each,
        received=0 * each,
        numbers_sent=told * each,
        numbers_received=told * each,
        looked_up=num_ranks * asked * each if others else 0 * each,
        held=hot.rows * load.record_bytes * each,
        reduced=union * load.dim * step.wire_bytes if others else 0.0,
    )


def work_seconds(machine: Machine, of: Volumes, num_ranks: int) -> np.ndarray:
    """[P]: what rows cost each rank in a step: reading, copying, updating, and the wires.

    Of the wires only what a rank sends counts, twice: what it receives is as much on the mean, and
    hangs on placements hardly at all. So the work of several tables is the sum of theirs.
    """
    on_wire = of.sent * wire_seconds(machine, 1.0, num_ranks)
    return (
        gather_seconds(machine, of)
        + update_seconds(machine, of)
        + 2 * on_wire
        + reduce_seconds(machine, of.reduced, num_ranks, messages=0)
    )


def gather_seconds(machine: Machine, of: Volumes) -> np.ndarray:
    """[P]: rows at random places, then their copies."""
    rows = of.gathered_rows * machine.row_seconds + of.gathered_bytes / machine.row_bandwidth
    return rows + of.copied / 2 / machine.memory_bandwidth


def update_seconds(machine: Machine, of: Volumes) -> np.ndarray:
    """[P]: gradients from the wire, then records at random places, read and written."""
    rows = of.updated_rows * machine.row_seconds + of.updated_bytes / machine.row_bandwidth
    return rows + of.copied / 2 / machine.memory_bandwidth


def wire_seconds(machine: Machine, num_bytes: float, num_ranks: int) -> float:
    """An all-to-all in which the busiest rank sends so many bytes, without its messages.

    Of the others, n - 1 of P - 1 are on the same node. Both links are used at once; the slower one
    counts: max(bytes (n - 1) / (P - 1) / inner, bytes (P - n) / (P - 1) / outer).
    """
    if num_ranks == 1:
        return 0.0
    inside = min(machine.ranks_per_node, num_ranks)
    near, far = (inside - 1) / (num_ranks - 1), (num_ranks - inside) / (num_ranks - 1)
    inner, outer = _links(machine, num_ranks)
    return max(num_bytes * near / inner.bandwidth, num_bytes * far / outer.bandwidth)


def message_seconds(machine: Machine, num_ranks: int) -> float:
    """The messages of an all-to-all: one to each other rank; both links are used at once.

    max((n - 1) latency of inner, (P - n) latency of outer)
    """
    inside = min(machine.ranks_per_node, num_ranks)
    inner, outer = _links(machine, num_ranks)
    return max((inside - 1) * inner.latency, (num_ranks - inside) * outer.latency)


def reduce_seconds(
    machine: Machine, num_bytes: float, num_ranks: int, messages: float = 1.0
) -> float:
    """An all-reduce of so many bytes: rings of the n ranks of a node, and trees over N nodes.

    inside a node   2 (n - 1) / n  x bytes / inner       2 (n - 1) messages
    between nodes   2 (N - 1) / N  x bytes / n / outer   2 ceil(log2 N) messages

    Pieces go through both at once, so of the bytes the slower one counts; messages add up. Where an
    all-reduce was measured: one ring of 2 (P - 1) messages, each of bytes / P.
    """
    if num_ranks == 1 or num_bytes == 0:
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
    step: Step,
) -> StepCost:
    """What a step takes.

    dense     b flops_per_sample / flops + 28 bytes of each dense parameter through memory (Adam)
    exchange  twice, there and back: an all-to-all per pack
    planning  lookups and numbers asked / planning_rate + two all-to-alls: counts, and numbers
    loading   of a node: bytes of min(its samples x samples of a page, B) samples / disk_bandwidth
    moving    records that are not in fast memory, read and written back / far_bandwidth
    """
    of = Volumes.none(num_ranks)
    for load, place in zip(loads, placements, strict=True):
        of = of + volumes_of(load, place, num_ranks, step)
    packs = {
        (load.dim, load.record_bytes)
        for load, place in zip(loads, placements, strict=True)
        if place.hot < load.rows
    }
    rounds = len(packs) if num_ranks > 1 else 0
    latency = 2 * rounds * message_seconds(machine, num_ranks)
    on_wire = 2 * wire_seconds(machine, float(np.maximum(of.sent, of.received).max()), num_ranks)
    work = work_seconds(machine, of, num_ranks)
    samples = step.batch_size / num_ranks
    return StepCost(
        num_ranks=num_ranks,
        batch_size=step.batch_size,
        gather=float(gather_seconds(machine, of).max()),
        exchange=latency + on_wire,
        latency=latency,
        pool=of.pooled / machine.memory_bandwidth,
        reduce=reduce_seconds(machine, of.reduced, num_ranks),
        dense=samples * step.flops_per_sample / machine.flops
        + 28 * step.dense_parameters / machine.memory_bandwidth,
        dense_reduce=reduce_seconds(machine, 4 * step.dense_parameters, num_ranks),
        update=float(update_seconds(machine, of).max()),
        planning=_planning_seconds(machine, of, num_ranks),
        loading=_loading_seconds(machine, num_ranks, step),
        moving=_moving_seconds(machine, loads, placements, of, num_ranks, step),
        micro_batches=step.micro_batches,
        held=float(of.held.max()),
        dense_bytes=step.dense_bytes,
        sent=float(of.sent.max()),
        messages=rounds * 2 * (num_ranks - 1),
        imbalance=float(work.max() / work.mean()) if work.any() else 1.0,
    )


def _planning_seconds(machine: Machine, of: Volumes, num_ranks: int) -> float:
    """Ranks tell one another how many numbers come, then the numbers of all packs at once."""
    numbers = float(np.maximum(of.numbers_sent, of.numbers_received).max())
    on_wire = wire_seconds(machine, numbers, num_ranks)
    messages = 2 * message_seconds(machine, num_ranks) if num_ranks > 1 else 0.0
    return float(of.looked_up.max()) / machine.planning_rate + on_wire + messages


def _loading_seconds(machine: Machine, num_ranks: int, step: Step) -> float:
    """A node reads its share of every batch, whole pages of it, and never more than the batch."""
    inside = min(machine.ranks_per_node, num_ranks)
    page = max(1.0, _PAGE / step.bytes_per_sample) if step.bytes_per_sample else 0.0
    samples = min(step.batch_size * inside / num_ranks * page, step.batch_size)
    return samples * step.bytes_per_sample / machine.disk_bandwidth


def _moving_seconds(
    machine: Machine, loads: Sequence[TableLoad], placements: Sequence[Placement],
    of: Volumes, num_ranks: int, step: Step,
) -> float:  # fmt: skip
    """Where a rank's tables outgrow its memory, it holds the same share of each, the most read rows.

    The others that a batch reads come from far memory, and as many go back at the same time.
    """
    fits = max(machine.memory - step.dense_bytes, 0.0) / max(float(of.held.max()), 1.0)
    if fits >= 1:
        return 0.0
    missed = 0.0
    for load, place in zip(loads, placements, strict=True):
        away = load.ids.tail(max(place.hot, fits * load.ids.rows))
        missed += away.distinct(load.lookups * step.batch_size) * load.record_bytes
    return missed / num_ranks / machine.far_bandwidth
