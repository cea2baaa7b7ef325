"""Interleaving: into how many micro-batches and packs a step is cut, by PICASSO's rules and by cost.

A batch is cut until its vectors and their gradients fit into the memory left (`micro_batch_size`). More
micro-batches hide exchanges behind work, and cost: rows that two of them read travel twice, each has
messages of its own, and operations are more and smaller. Tables of equal attributes in several packs
hide gather and update of one behind the wire of another, and cost messages and the joining of vectors:

    seconds of k packs in m micro-batches
        = seconds of one - (1 - 1 / k) / m  x (min(gather, wire there) + min(update, wire back))
                         + messages of k - 1 packs, m times + vectors joined, there and back
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hotrows.engine.planning.sharding import Placement
from hotrows.train.costs.pack_sizes import micro_batch_size, parts_of
from hotrows.train.costs.step_cost import Machine, StepCost, message_seconds, step_cost
from hotrows.train.costs.volumes import StepWork, TableLoad

OF_MEMORY = 0.7  # share of memory that tables may take; of the rest, vectors may take half
_MORE_WORK = 0.1  # share of the work that each further micro-batch adds on processors, as measured
_MOST = 8
_PACKS = (1, 2, 4)
_LEAST_GAIN = 0.05  # of a step's predicted seconds, for which it is cut further


def cost_of(
    machine: Machine,
    loads: Sequence[TableLoad],
    placements: Sequence[Placement],
    num_ranks: int,
    step: StepWork,
    num: int,
) -> StepCost:
    """Predicts a step in `num` micro-batches.

    Exchanges are those of `num` batches of a share of the samples. Work is that of the batch, and a tenth
    more for each further micro-batch, as operations are more and smaller (docs/evidence/papers.md, the
    ablation where the wire is fastest).
    """
    one = dataclasses.replace(step, micro_batches=num)
    cost = step_cost(machine, loads, placements, num_ranks, one)
    part = dataclasses.replace(one, batch_size=max(step.batch_size // num, num_ranks))
    of_part = step_cost(machine, loads, placements, num_ranks, part)
    more = 1 + _MORE_WORK * (num - 1) * machine.on_host
    work = {name: more * getattr(cost, name) for name in ("gather", "pool", "dense", "update")}
    exchange, latency = num * of_part.exchange, num * of_part.latency
    return dataclasses.replace(cost, exchange=exchange, latency=latency, **work)


def choose_micro_batches(
    machine: Machine,
    loads: Sequence[TableLoad],
    placements: Sequence[Placement],
    num_ranks: int,
    step: StepWork,
    memory: float,
) -> tuple[int, str]:
    """The number of micro-batches of a step, and a sentence on why.

    memory: bytes of a rank that the vectors of a micro-batch and their gradients may take.
    """
    of_sample = 2 * _vector_bytes(loads)
    samples = max(step.batch_size // num_ranks, 1)
    fitting = micro_batch_size({"memory": memory}, {"memory": of_sample}) if of_sample else samples
    least = math.ceil(samples / fitting)
    seconds = {
        num: cost_of(machine, loads, placements, num_ranks, step, num).critical
        for num in sorted({least, *(n for n in (1, 2, 4, _MOST) if least <= n <= samples)})
    }
    best = _best(seconds)
    why = f"vectors of {fitting:,} samples fit into memory; " if least > 1 else ""
    return best, f"{best} micro-batches: {why}{_predicted(seconds)}"


def choose_pack_parts(
    machine: Machine,
    loads: Sequence[TableLoad],
    placements: Sequence[Placement],
    num_ranks: int,
    step: StepWork,
    volumes: Sequence[float],
    tables: Sequence[int],
) -> tuple[tuple[int, ...], str]:
    """The number of packs of each set of tables of equal attributes, and a sentence on why.

    step: with the number of micro-batches that was chosen. volumes: numbers that a batch reads of each
    set. tables: number of tables of each set, which is the most packs that it can have.
    """
    parts = {num: parts_of(volumes, num, tables) for num in _PACKS}
    seconds = {
        num: seconds_in_packs(machine, loads, placements, num_ranks, step, of_num)
        for num, of_num in parts.items()
    }
    best = _best(seconds)
    nums = ", ".join(map(str, parts[best]))
    return parts[best], f"tables of equal attributes in {nums} packs: {_predicted(seconds)}"


def seconds_in_packs(
    machine: Machine,
    loads: Sequence[TableLoad],
    placements: Sequence[Placement],
    num_ranks: int,
    step: StepWork,
    parts: Sequence[int],
) -> float:
    """Predicts the seconds of a step whose sets of tables of equal attributes have so many packs each."""
    cost = cost_of(machine, loads, placements, num_ranks, step, step.micro_batches)
    one_way = (cost.exchange - cost.latency) / 2
    hidden = (min(cost.gather, one_way) + min(cost.update, one_way)) / step.micro_batches
    more = sum(parts) - len(parts)  # packs of other attributes are there in any case
    if not more:
        return cost.critical - (1 - 1 / sum(parts)) * hidden
    messages = 2 * more * step.micro_batches * message_seconds(machine, num_ranks)
    joined = 4 * _vector_bytes(loads) * step.batch_size / num_ranks / machine.memory_bandwidth
    return cost.critical - (1 - 1 / sum(parts)) * hidden + messages + joined


def _vector_bytes(loads: Sequence[TableLoad]) -> float:
    """Bytes of the vectors that a sample reads."""
    return 4.0 * sum(load.dim * (1.0 if load.pooled else load.lookups) for load in loads)


def _best(seconds: dict[int, float]) -> int:
    """The number that is predicted to gain; the first one where none gains enough."""
    best = next(iter(seconds))
    for num, predicted in seconds.items():
        if predicted < seconds[best] * (1 - _LEAST_GAIN):
            best = num
    return best


def _predicted(seconds: dict[int, float]) -> str:
    steps = ", ".join(f"{num}: {1e3 * value:.2f} ms" for num, value in seconds.items())
    return f"predicted steps {steps}"
