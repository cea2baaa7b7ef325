"""Machines by name, as their makers state them, for predictions without one at hand.

Makers state peaks; training reaches a share of them, and the shares here are assumptions. A machine
that is at hand is measured instead (`hotrows.train.costs.measure_machine`).

Sources. 10, 25 and 100 GbE: line rate over eight bits, of which 90 % are assumed. CPU node: two sockets
of 32 cores at 2.5 GHz with AVX-512 have 10 TFLOP/s of float32 at peak, 12 channels of DDR5-4800 each 920
GB/s together; training is assumed to get 30 % of the products and 60 % of the memory. H100 SXM (NVIDIA's
H100 datasheet and DGX H100 user guide): 3.35 TB/s of HBM3, 80 GB, 989 TFLOP/s of dense bfloat16 at peak,
NVLink 450 GB/s each way, one 400 Gb/s network port per GPU; eight GPUs, 2 TB of host memory and 8 NVMe
disks in a node; PCIe 5 x16 at 64 GB/s each way. Assumed: 35 % of that peak (products of a few hundred
columns, and the work between them), 75 % of memory and links, half of a host's memory free for tables.
Seconds per message are the cost of one more message in an all-to-all with many under way: 15 microseconds
through kernel TCP, 1.5 between H100 nodes and 0.5 inside one. Planning is one thread on a CPU (50 million
lookups a second) and a radix sort on a GPU. All of these are assumed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Link:
    """Connection of ranks: seconds per message, and bytes a second out of a rank (as many in)."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Machine:
    """Speed and memory of one rank of a machine.

    flops: floating-point operations a second in the products of dense layers, as training does them.
    memory_bandwidth: bytes copied a second, each counted where it is read and where it is written.
    row_seconds, row_bandwidth: a row at a random place takes row_seconds + its bytes / row_bandwidth.
    planning_rate: lookups a second that planning resolves and dedups.
    memory: bytes for tables in fast memory.
    inner, outer: links of ranks of a node, and of different nodes; None: not known, or there is none.
    reducing: link as an all-reduce measured it; None: computed from inner and outer.
    ranks_per_node: ranks of one node.
    disk_bandwidth: bytes a second that a node reads of its training data.
    far_memory: bytes for tables behind a cache (0: none).
    far_bandwidth: bytes a second to or from far memory, in both directions at once.
    on_host: whether its ranks train on processors.
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
    on_host: bool = True

    def to_json(self) -> dict[str, Any]:
        """All that is finite; what is not is a default."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != math.inf}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Machine:
        links = {n: Link(**v) for n, v in fields.items() if isinstance(v, Mapping)}
        return Machine(**{**fields, **links})


_CPU = Machine(
    name="cpu-25g",
    flops=3e12,
    memory_bandwidth=550e9,
    row_seconds=0.5e-9,  # 64 cores with ten reads each under way, 100 ns a read: 0.16 ns at best
    row_bandwidth=400e9,
    planning_rate=0.05e9,
    memory=400e9,
    outer=Link(15e-6, 25e9 / 8 * 0.9),
    disk_bandwidth=3e9,
)
_H100 = Machine(
    name="h100",
    flops=0.35 * 989e12,
    memory_bandwidth=0.75 * 3.35e12,
    row_seconds=0.02e-9,
    row_bandwidth=0.6 * 3.35e12,
    planning_rate=5e9,
    memory=70e9,
    inner=Link(0.5e-6, 0.75 * 450e9),
    outer=Link(1.5e-6, 0.75 * 50e9),
    ranks_per_node=8,
    disk_bandwidth=25e9,
    far_memory=128e9,
    far_bandwidth=0.75 * 64e9,
    on_host=False,
)


def _cpu(gigabits: int) -> Machine:
    link = Link(15e-6, gigabits * 1e9 / 8 * 0.9)
    return dataclasses.replace(_CPU, name=f"cpu-{gigabits}g", outer=link)


MACHINES = {machine.name: machine for machine in (_cpu(10), _cpu(25), _cpu(100), _H100)}
