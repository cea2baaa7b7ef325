"""Order on a pretended GPU: finds what is touched by two lanes of which neither waits for the other.

Every lane counts what it does, and knows how far each other lane had come when it last waited for it,
itself or through others: vector clocks (Fidge 1988, Mattern 1989). Of all memory it is known who read
and wrote which row last. Two accesses, one of them a write, that no wait puts in an order are a race,
whichever of them came first this time. So is memory that goes back to the lane which asked for it
while another may still be using it: PyTorch's allocator would hand it out again at once.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np

CALLER = "caller"  # the lane of threads that are in no launch: the default stream


class Race(AssertionError):
    """Something is not waited for."""


class Clock(dict):
    """How far each lane had come."""

    def join(self, other):
        for lane, tick in other.items():
            self[lane] = max(self.get(lane, 0), tick)


class Order:
    """The clocks of the lanes, and of the host: of what it has waited for itself."""

    def __init__(self):
        self.lock = threading.RLock()
        self.lanes = defaultdict(Clock)
        self.host = Clock()
        self.thread = threading.local()  # lane and clock of the launch that a thread is in
        self.failures = []
        self.page_locked = {}  # by storage: it, and its `Memory`
        self.locked = {}  # begins and ends of host memory that the device reads: what owns it

    def launched(self, lane, after):
        """The clock of what is launched now, after those clocks."""
        with self.lock:
            clock = self.lanes[lane]
            for other in (self.host, *after):
                clock.join(other)
            clock[lane] = clock.get(lane, 0) + 1
            return Clock(clock)

    def now(self):
        """The lane of the calling thread, and the clock of what it does now."""
        launch = getattr(self.thread, "launch", None)
        return launch or (self.caller, self.launched(self.caller, ()))

    @property
    def caller(self):
        """The lane of what the calling thread does itself; ranks that are threads have one each."""
        return getattr(self.thread, "caller", CALLER)

    def host_waits(self, clock):
        with self.lock:
            self.host.join(clock)

    def seen_by(self, lane):
        """What the lane's next launch comes after."""
        with self.lock:
            clock = Clock(self.lanes[lane])
            clock.join(self.host)
            return clock


class Memory:
    """Who used some memory last, row by row: for reads and writes, lane -> [R] ticks."""

    def __init__(self, order):
        self.order, self.owner = order, order.now()[0]
        self.held = set()  # lanes that the allocator was told of
        self.uses = {False: {}, True: {}}
        self.num_rows = 1

    def use(self, what, writes, rows=None, num_rows=None):
        """rows: of how many; None: all of them."""
        with self.order.lock:
            lane, clock = self.order.now()
            places = slice(None) if rows is None or not self._spreads(num_rows) else rows
            for kind in (True, False) if writes else (True,):
                for other, ticks in self.uses[kind].items():
                    if other != lane and (ticks[places] > clock.get(other, 0)).any():
                        raise Race(
                            f"{what} on lane {lane!r} and a {'write' if kind else 'read'} on lane "
                            f"{other!r} touch the same memory, and neither waits for the other"
                        )
            last = self.uses[writes].setdefault(lane, np.zeros(self.num_rows, np.int64))
            last[places] = clock[lane]

    def _spreads(self, num_rows):
        """Whether each of so many rows is known apart; a part of them counts as all."""
        if self.num_rows == 1:
            self.num_rows = num_rows
            for kind in self.uses.values():
                kind.update({lane: np.repeat(ticks, num_rows) for lane, ticks in kind.items()})
        return self.num_rows == num_rows

    def __del__(self):
        seen = self.order.seen_by(self.owner)
        for kind in self.uses.values():
            for lane, ticks in kind.items():
                is_safe = lane == self.owner or lane in self.held
                if not is_safe and ticks.max(initial=0) > seen.get(lane, 0):
                    self.order.failures.append(Race(
                        f"memory of lane {self.owner!r} was given back while lane {lane!r} may "
                        f"be using it: name it in `holds`"
                    ))  # fmt: skip
