"""How many micro-batches a step has: what PICASSO's rule demands, and beyond it what gains.

A batch is cut until its vectors and their gradients fit into the memory left (`micro_batch_size`). More
micro-batches hide exchanges behind work, and cost: rows that two of them read travel twice, and
each has messages of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hotrows.costs.pack_sizes import micro_batch_size
from hotrows.costs.step_cost import Machine, step_cost
from hotrows.costs.volumes import StepWork, TableLoad
from hotrows.planning.sharding import Placement

_MOST = 8
_LEAST_GAIN = 0.05  # of a step's predicted seconds, for which it is cut further


def step_seconds(
    machine: Machine,
    loads: Sequence[TableLoad],
    placements: Sequence[Placement],
    num_ranks: int,
    step: StepWork,
    num: int,
) -> float:
    """Predicts the seconds of a step in `num` micro-batches.

    Work is that of the batch, and the exchanges are those of `num` batches of a share of the samples.
    """
    part = dataclasses.replace(step, batch_size=max(step.batch_size // num, num_ranks))
    exchange = num * step_cost(machine, loads, placements, num_ranks, part).exchange
    one = dataclasses.replace(step, micro_batches=num)
    cost = step_cost(machine, loads, placements, num_ranks, one)
    return dataclasses.replace(cost, exchange=exchange).critical


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
    of_sample = 8.0 * sum(load.dim * (1.0 if load.pooled else load.lookups) for load in loads)
    samples = max(step.batch_size // num_ranks, 1)
    fitting = micro_batch_size({"memory": memory}, {"memory": of_sample}) if of_sample else samples
    least = math.ceil(samples / fitting)
    seconds = {
        num: step_seconds(machine, loads, placements, num_ranks, step, num)
        for num in sorted({least, *(n for n in (1, 2, 4, _MOST) if least <= n <= samples)})
    }
    best = least
    for num, predicted in seconds.items():
        if predicted < seconds[best] * (1 - _LEAST_GAIN):
            best = num
    steps = ", ".join(f"{num}: {1e3 * value:.2f} ms" for num, value in seconds.items())
    why = f"vectors of {fitting:,} samples fit into memory; " if least > 1 else ""
    return best, f"{best} micro-batches: {why}predicted steps {steps}"
