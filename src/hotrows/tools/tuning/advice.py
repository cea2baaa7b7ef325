"""Advice on fast memory: the speed to expect of each size, and where more memory stops to pay.

advice = advise(simulation, samples_per_second=300_000)
advice.speeds, advice.knee, advice.sentence
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotrows.runtime.units import format_bytes

if TYPE_CHECKING:
    from hotrows.tools.tuning.cache_simulation import PolicyResult, Simulation
    from hotrows.tools.tuning.file_speed import FileSpeed

_GAIN = 0.05  # least gain of twice the memory that pays
_PER_OCTAVE = 32  # sizes between one and twice it, at which the gain is looked at


@dataclass(frozen=True)
class SlowMemory:
    """Stated speed of slow memory.

    reads_per_second: rows that slow memory reads at random.
    bytes_per_second: bytes that slow memory writes in sequence.
    writes_per_second: rows that slow memory writes at random, if it does not write in sequence.
    """

    reads_per_second: float = 60_000
    bytes_per_second: float = 500e6
    writes_per_second: float | None = None

    def step(self, result: PolicyResult, in_memory: float) -> float:
        """Seconds of a step: of training, or of reads, or of writes, all at the same time."""
        reads = result.reads / self.reads_per_second
        if self.writes_per_second is not None:
            return max(in_memory, reads, result.writes / self.writes_per_second)
        return max(in_memory, reads, result.bytes_written / self.bytes_per_second)


@dataclass(frozen=True)
class Advice:
    """Expected speed of a policy, and the size of fast memory to choose.

    speeds: by size, the share of the speed in memory; None where that speed is not known.
    samples_per_second: with all rows in memory, where it is known.
    knee: smallest size after which twice the memory gains less than 5 % of speed, or, where speed is
        not known, saves misses of less than 5 % of a batch's rows; None: not within the sizes.
    fast_memory: size in the sentence: the first one from the knee on, or the last.
    """

    policy: str
    speeds: dict[int, float] | None
    knee: int | None
    fast_memory: int
    sentence: str
    samples_per_second: float | None = None

    def cheapest(self, samples_per_second: float) -> str:
        """Says which of the sizes is the smallest for so many samples a second."""
        assert self.speeds is not None and self.samples_per_second is not None
        reached = {size: share * self.samples_per_second for size, share in self.speeds.items()}
        wanted = f"{samples_per_second:,.0f} samples/s"
        enough = [size for size, speed in sorted(reached.items()) if speed >= samples_per_second]
        if not enough:
            return f"{wanted} are not reached by any of these sizes; expect {max(reached.values()):,.0f}"
        return (
            f"{wanted} take {format_bytes(enough[0])} of fast memory, the smallest of these sizes that "
            f"does: expect {reached[enough[0]]:,.0f}"
        )


def advise(
    simulation: Simulation,
    policy: str = "lookahead",
    *,
    samples_per_second: float | None = None,
    slow: SlowMemory | FileSpeed = SlowMemory(),
) -> Advice:
    """Expects a speed of each size, and finds where more memory stops to pay.

    samples_per_second: speed of training with all rows in memory; None: not known.
    slow: `SlowMemory`, or `FileSpeed` for a simulation with `in_file`.

    >>> from hotrows.tools.tuning.cache_simulation import simulate
    >>> advise(simulate(data, hotrows.TrainConfig(model="fm", batch_size=16))).fast_memory > 0
    True
    """
    # By size: the share of rows that hit or, where it is known, of the speed in memory.
    results = simulation.results(policy)
    assert results, f"no policy {policy!r} was simulated"
    points = {result.fast_memory: 1 - result.misses / simulation.rows for result in results}
    end = 1 - simulation.untouched / simulation.rows
    speeds = None
    if samples_per_second is not None:
        step = simulation.batch_size / samples_per_second
        points = speeds = {result.fast_memory: step / slow.step(result, step) for result in results}
        end = 1.0
    curve = {size: value for size, value in points.items() if size < simulation.table_bytes}
    curve[simulation.table_bytes] = end
    knee = _knee(curve, relative=speeds is not None)
    sizes = sorted(points)
    size = next((size for size in sizes if size >= (knee or 0)), sizes[-1])
    if speeds is not None:
        expect = f"training reaches {speeds[size]:.0%} of the speed with all rows in memory"
        expect = expect.replace("%", " %")
    else:
        misses = next(result.misses for result in results if result.fast_memory == size)
        expect = f"{misses:,.0f} of the {simulation.rows:,.0f} rows of a batch come from slow memory"
    gain = f"{_GAIN * 100:.0f} % of the {'rows' if speeds is None else 'speed'}"
    doubled = f"twice as much gains less than {gain}"
    if knee is not None and knee > size:
        doubled = f"twice as much gains {gain} or more, up to {format_bytes(knee)}"
    sentence = f"With {format_bytes(size)} of fast memory {expect}; {doubled}."
    return Advice(policy, speeds, knee, size, sentence, samples_per_second)


def _knee(curve: Mapping[int, float], relative: bool) -> int | None:
    """Smallest size from which no doubling gains 5 %; None where that is so from the first size on.

    Between sizes the curve is a straight line over log2.
    """
    sizes = sorted(curve)
    logs = [math.log2(size) for size in sizes]
    steps = [logs[0] + n / _PER_OCTAVE for n in range(int((logs[-1] - logs[0]) * _PER_OCTAVE) + 1)]

    def value(log_size: float) -> float:
        right = next((n for n, log in enumerate(logs) if log >= log_size), len(logs) - 1)
        left = max(right - 1, 0)
        span = logs[right] - logs[left]
        part = min((log_size - logs[left]) / span, 1.0) if span else 0.0
        return curve[sizes[left]] * (1 - part) + curve[sizes[right]] * part

    def pays(log_size: float) -> bool:
        gain = value(min(log_size + 1, logs[-1])) - value(log_size)
        return gain >= _GAIN * (value(log_size) if relative else 1)

    paying = [log_size for log_size in steps if pays(log_size)]
    return round(2 ** (paying[-1] + 1 / _PER_OCTAVE)) if paying else None
