"""Runs the threads of a launch: which of them go on, until what, and where all of them wait.

Each thread has a place of its own. Of those that may go on, threads at the least place run together, as
arrays; so threads that have parted meet again where their ways do. With `mixed` a random half of the
warps runs for a random number of instructions, then another one.
"""

from __future__ import annotations

import itertools

import numpy as np

from tests.ptx import memory
from tests.ptx.memory import Fault, Memory, Region
from tests.ptx.parse import Kernel

READY, AT_BARRIER, WAITS_FOR_WARP, DONE = range(4)
SHARED = 1 << 24  # where shared memory of the first block begins
LANES = 32
_MOST_THREADS = 4096  # at once


class PtxError(Exception):
    """A kernel that does what it may not."""


class Machine:
    """One launch.

    arguments: of the kernel's parameters, numbers or None; regions: of global memory; shared: bytes of a
    block; program: what `instructions.build` returns.
    """

    def __init__(self, kernel: Kernel, program, grid, arguments, regions, shared, seed=0, mixed=True):
        self.kernel, self.program, self.arguments = kernel, program, arguments
        self.grid, self.shared_bytes = grid, -(-shared // 16) * 16
        self.random, self.mixed = np.random.default_rng(seed), mixed
        self.spaces = {"global": Memory(regions)}

    def run(self):
        blocks = np.array(list(itertools.product(*(range(n) for n in self.grid))), np.uint32).reshape(
            -1, 3
        )
        if self.mixed:
            blocks = self.random.permutation(blocks)
        at_once = max(_MOST_THREADS // self.kernel.threads, 1)
        with np.errstate(all="ignore"):
            for first in range(0, len(blocks), at_once):
                self._start(blocks[first : first + at_once], first)
                self._run_all()

    def _start(self, blocks, first):
        count, threads = len(blocks), self.kernel.threads
        self.n, self.idx = count * threads, None
        self.tid = np.tile(np.arange(threads, dtype=np.uint32), count)
        self.block = np.repeat(np.arange(count), threads)
        self.warp = np.arange(self.n) // LANES
        self.special = {"%tid.x": self.tid}
        for place, axis in enumerate("xyz"):
            self.special[f"%ctaid.{axis}"] = np.repeat(blocks[:, place], threads)
            self.special[f"%nctaid.{axis}"] = np.uint32(self.grid[place])
        self.registers = [None] * len(self.kernel.registers)
        self.place, self.status = np.zeros(self.n, np.int64), np.full(self.n, READY, np.int8)
        size = max(self.shared_bytes, 16)
        noise = self.random.integers(0, 256, count * size, np.uint8)
        shared = Region(SHARED, noise, self.program.granules["shared"], "shared memory")
        self.spaces["shared"] = Memory([shared])
        self.shared_start = np.uint64(SHARED) + self.block.astype(np.uint64) * np.uint64(size)
        self.keys = (
            ((self.block + first + 1).astype(np.uint64) << memory.BLOCK)
            | ((self.tid // LANES).astype(np.uint64) << memory.WARP)
            | (self.tid % LANES).astype(np.uint64)
        )
        self.copies, self.groups = [], np.zeros(self.n, np.int64)  # asynchronous ones that are under way

    def _run_all(self):
        while (self.status != DONE).any():
            ready = self.status == READY
            if not ready.any():
                self._pass_barriers()
                continue
            budget = 1 << 30
            if self.mixed and self.random.random() < 0.5:
                warps = self.random.random(self.n // LANES) < 0.5
                if (ready & warps[self.warp]).any():
                    ready &= warps[self.warp]
                    budget = int(self.random.integers(1, 200))
            chosen = np.flatnonzero(ready)
            places = self.place[chosen]
            here = places.min()
            ahead = places[places > here]
            limit = ahead.min() if len(ahead) else 1 << 60
            group = chosen[places == here]
            self._run_group(None if len(group) == self.n else group, int(here), limit, budget)

    def _pass_barriers(self):
        waiting = self.status == AT_BARRIER
        threads = waiting.reshape(-1, self.kernel.threads)
        through = np.repeat(threads.all(1), self.kernel.threads)
        if not through.any():
            stuck = np.flatnonzero(self.status != DONE)[0]
            self.now = int(self.place[stuck])
            raise self._error("threads of a block or warp never meet here")
        self.status[through] = READY
        self.place[through] += 1
        self._order(through, memory.PASSED)

    def _order(self, threads, what, bits=14):
        """Notes that these threads have passed a barrier of their block or warp."""
        one = np.uint64(1) << what
        mask = np.uint64((1 << bits) - 1) << what
        keys = self.keys[threads]
        self.keys[threads] = (keys & ~mask) | ((keys + one) & mask)

    def order_warps(self):
        self._order(slice(None) if self.idx is None else self.idx, memory.WARP_PASSED)

    def _run_group(self, group, here, limit, budget):
        """Runs these threads from `here` on, until they part, wait, or meet those at `limit`."""
        steps, self.idx = self.program.steps, group
        while here < limit and budget > 0:
            self.now, step = here, steps[here]
            budget -= 1
            try:
                if step.is_collective and not self._is_whole():
                    self.place[self.idx] = here
                    self.status[self.idx] = WAITS_FOR_WARP
                    self._wake()
                    return
                if step.kind == "branch":
                    here = self._branch(step, here)
                    if here is None:
                        return
                    continue
                if step.kind in ("barrier", "return"):
                    self._stop(here, AT_BARRIER if step.kind == "barrier" else DONE)
                    return
                if step.guard is None:
                    step.run(self)
                else:
                    self._run_guarded(step)
            except Fault as fault:
                raise self._error(str(fault)) from None
            here += 1
        self._stop(here, READY)

    def _stop(self, here, status):
        which = slice(None) if self.idx is None else self.idx
        self.place[which], self.status[which] = here, status

    def _is_whole(self):
        """True if all threads of each warp are here."""
        if self.idx is None:
            return True
        counts = np.bincount(self.warp[self.idx])
        return ((counts == 0) | (counts == LANES)).all()

    def _wake(self):
        """Lets whole warps go on whose threads all wait at one instruction, and others run first."""
        waits = (self.status == WAITS_FOR_WARP).reshape(-1, LANES)
        places = self.place.reshape(-1, LANES)
        met = waits.all(1) & (places == places[:, :1]).all(1)
        self.status[np.repeat(met, LANES)] = READY
        if not (self.status == READY).any() and not (self.status == AT_BARRIER).any():
            raise Fault("threads of a warp never meet here")

    def _taken(self, step):
        """Which threads of the group the guard is true for: an array, or all or none of them."""
        taken = self.registers[step.guard.number]
        if taken is None:
            raise Fault("a predicate that nothing has written")
        if taken.ndim and self.idx is not None:
            taken = taken[self.idx]
        return ~taken if step.guarded_by_false else taken

    def _branch(self, step, here):
        if step.guard is None:
            return step.target
        taken = self._taken(step)
        if taken.all():
            return step.target
        if not taken.any():
            return here + 1
        group = np.arange(self.n) if self.idx is None else self.idx
        self.place[group] = np.where(taken, step.target, here + 1)
        return None

    def _run_guarded(self, step):
        taken = self._taken(step)
        if not taken.any():
            return
        if taken.all():
            step.run(self)
            return
        group = self.idx
        self.idx = np.flatnonzero(taken) if group is None else group[taken]
        try:
            step.run(self)
        finally:
            self.idx = group

    def some(self, values):
        """Those of the group, of all threads' values."""
        return values if self.idx is None or not values.ndim else values[self.idx]

    def count(self):
        return self.n if self.idx is None else len(self.idx)

    def _error(self, message):
        instruction = self.kernel.instructions[self.now]
        return PtxError(
            f"{self.kernel.name}, line {instruction.line} of its PTX ({instruction.opcode}), "
            f"{instruction.source}: {message}"
        )
