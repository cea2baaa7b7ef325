"""Memory of a launch: what lies where, and who touched each granule last.

Two accesses of one granule, one of them a write, need something between them that orders them: a barrier
of the block, one of the warp for threads of one warp. A thread's key says who it is and which of these
it has passed, so that two keys say whether their accesses are ordered:

    block + 1: 22 bits | barriers of the block: 14 | warp: 6 | barriers of the warp: 14 | lane: 6
"""

from __future__ import annotations

import numpy as np

BLOCK, PASSED, WARP, WARP_PASSED = (np.uint64(n) for n in (40, 26, 20, 6))
_OTHER_BLOCK, _OTHER_TIME, _OTHER_WARP, _OTHER_WARP_TIME = (np.uint64(1 << n) for n in (40, 26, 20, 6))
_MANY_BLOCKS = np.uint64(((1 << 22) - 1) << 40)
_MANY_WARPS, _MANY_LANES = np.uint64(63 << 20), np.uint64(63)
_ABOVE_WARP = np.uint64(0xFFFFFFFFFFFFFFFF ^ ((1 << 20) - 1))


class Fault(Exception):
    """What a kernel may not do; the machine adds where."""


def _unordered(before, now):
    x = before ^ now
    in_block = (x < _OTHER_TIME) & (x >= _OTHER_WARP)
    return (before != 0) & ((x >= _OTHER_BLOCK) | in_block | ((x > 0) & (x < _OTHER_WARP_TIME)))


def _readers(before, now):
    """The key that stands for all readers that nothing has come after."""
    x = before ^ now
    new = np.where(x < _OTHER_TIME, (now & _ABOVE_WARP) | _MANY_WARPS, now)
    new = np.where(x < _OTHER_WARP, now, new)
    new = np.where((x > 0) & (x < _OTHER_WARP_TIME), now | _MANY_LANES, new)
    return np.where(before == 0, now, np.where(x >= _OTHER_BLOCK, _MANY_BLOCKS, new))


class Region:
    """values: uint8; granule: bytes of the smallest access; name: for errors."""

    def __init__(self, start: int, values: np.ndarray, granule: int, name: str):
        self.start, self.end, self.values, self.name = start, start + len(values), values, name
        self.granule, self._typed = granule, {}
        self.written, self.read, self.atomic = (
            np.zeros(-(-(start % granule + len(values)) // granule), np.uint64) for _ in range(3)
        )

    def typed(self, size: int) -> tuple[np.ndarray, int]:
        """Its elements of so many bytes, and the address of the first."""
        if size not in self._typed:
            skip = -self.start % size
            usable = (len(self.values) - skip) // size * size
            elements = self.values[skip : skip + max(usable, 0)].view(f"u{size}")
            self._typed[size] = elements, self.start + skip
        return self._typed[size]

    def granules(self, addresses, size):
        first = (addresses - np.uint64(self.start - self.start % self.granule)) // np.uint64(self.granule)
        first = first.astype(np.int64)
        if size > self.granule:
            first = first[:, None] + np.arange(size // self.granule)
        return first


class Memory:
    """Regions of one space, none of which touches another."""

    def __init__(self, regions: list[Region]):
        self.regions = sorted(regions, key=lambda region: region.start)
        self.starts = np.array([region.start for region in self.regions], np.uint64)

    def _parts(self, addresses, size):
        """(region, which accesses) of all accesses of so many bytes each."""
        if (addresses & np.uint64(size - 1)).any():
            raise Fault(
                f"address {_worst(addresses, addresses & np.uint64(size - 1))} is no multiple of {size}"
            )
        places = np.searchsorted(self.starts, addresses, "right") - 1
        first = places[0]
        parts = [(first, slice(None))] if (places == first).all() else [
            (place, np.flatnonzero(places == place)) for place in np.unique(places)
        ]  # fmt: skip
        for place, which in parts:
            region, some = self.regions[max(place, 0)], addresses[which]
            outside = some > np.uint64(max(region.end - size, 0))
            if place < 0 or region.end - region.start < size or outside.any():
                bad = _worst(some, outside if outside.any() else some >= 0)
                raise Fault(f"address {bad} of {size} bytes is out of bounds: nearest is {region.name}")
            yield region, which

    def load(self, addresses, size, count, keys):
        """[count][n]: elements of `size` bytes side by side at each address."""
        out = np.empty((count, len(addresses)), f"u{size}")
        for region, which in self._parts(addresses, size * count):
            some = addresses[which]
            elements, start = region.typed(size)
            index = ((some - np.uint64(start)) // np.uint64(size)).astype(np.int64)
            for n in range(count):
                out[n, which] = elements[index + n]
            self.note_reads(region, some, size * count, keys[which])
        return out

    def store(self, addresses, values, size, keys):
        """values: [count][n] as `load` returns them."""
        count = len(values)
        for region, which in self._parts(addresses, size * count):
            some, new = addresses[which], values[:, which]
            elements, start = region.typed(size)
            index = ((some - np.uint64(start)) // np.uint64(size)).astype(np.int64)
            changes = np.zeros(len(some), bool)
            for n in range(count):
                changes |= elements[index + n] != new[n]
                elements[index + n] = new[n]
            for n in range(count):
                if (other := elements[index + n] != new[n]).any():
                    raise Fault(
                        f"two threads write other values at {_worst(some, other)} of {region.name}"
                    )
            self.note_writes(region, some, size * count, keys[which], changes)

    def element(self, address, kind, keys):
        """The value at one address, and where it is, to be changed by one who is noted."""
        for region, _ in self._parts(address, kind.itemsize):
            elements, start = region.typed(kind.itemsize)
            place = (int(address[0]) - start) // kind.itemsize
            self.note_writes(region, address, kind.itemsize, keys, atomic=True)
        one = elements[place : place + 1].view(kind)
        return one.copy(), one

    def note_reads(self, region, addresses, size, keys):
        places = region.granules(addresses, size)
        keys = np.broadcast_to(keys[:, None], places.shape) if places.ndim > 1 else keys
        for before in (region.written, region.atomic):
            if (bad := _unordered(before[places], keys)).any():
                raise Fault(f"a race: {_worst(places, bad, region)} was written by another thread")
        while True:  # several of these may read one
            new = _readers(now := region.read[places], keys)
            if not (differ := new != now).any():
                return
            region.read[places[differ]] = new[differ]

    def note_writes(self, region, addresses, size, keys, changes=None, atomic=False):
        """changes: where the value is another one: threads may write the same."""
        places = region.granules(addresses, size)
        if places.ndim > 1:
            keys = np.broadcast_to(keys[:, None], places.shape)
            changes = None if changes is None else np.broadcast_to(changes[:, None], places.shape)
        bad = _unordered(region.read[places], keys)
        if changes is not None:
            bad &= changes
        if not bad.any():
            bad = _unordered(region.written[places], keys)
            bad = bad if changes is None else bad & changes
        if not bad.any() and not atomic:
            bad = _unordered(region.atomic[places], keys)
        if bad.any():
            raise Fault(f"a race: {_worst(places, bad, region)} was touched by another thread")
        (region.atomic if atomic else region.written)[places] = keys


def _worst(addresses, bad, region=None):
    place = int(addresses[np.nonzero(bad)][0])
    if region is not None:
        place = region.start - region.start % region.granule + place * region.granule
        return f"{place:#x} (byte {place - region.start} of {region.name})"
    return f"{place:#x}"
