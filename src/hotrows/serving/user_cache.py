"""What layers make of a user's list alone, kept for the user's next request.

An entry is found by what it was made of: the layer, whose parameters never change, and the vectors of the
list. So each version finds those that are right for it; the least recently used goes first.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Key = tuple[object, bytes]
_OF_ENTRY = 400  # bytes, beside the values


@dataclass(slots=True)
class _Entry:
    """created, read: when it was computed and last read, by `time.monotonic`."""

    values: np.ndarray
    created: float
    read: float


class UserCache:
    """Values by key, in at most `capacity` bytes. hits, misses: lists that were there, and were not."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a user cache has at least one byte, such as 256MiB, not {capacity}")
        self._capacity, self._lock = capacity, threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self.hits = self.misses = self.num_bytes = 0
        self._created = 0.0

    def find(self, keys: Mapping[int, Key]) -> dict[int, np.ndarray]:
        """The values that are there, by the places of their keys."""
        with self._lock:
            held = {place: key for place, key in keys.items() if key in self._entries}
            now = time.monotonic()
            for key in held.values():
                self._entries[key].read = now
                self._entries.move_to_end(key)
            self.hits += len(held)
            self.misses += len(keys) - len(held)
            return {place: self._entries[key].values for place, key in held.items()}

    def keep(self, key: Key, values: np.ndarray) -> None:
        """Takes values in, for which others go; none where they are larger than all that may be kept."""
        with self._lock:
            if key in self._entries or values.nbytes + _OF_ENTRY > self._capacity:
                return
            now = time.monotonic()
            self._entries[key] = _Entry(values, now, now)
            self._created += now
            self.num_bytes += values.nbytes + _OF_ENTRY
            while self.num_bytes > self._capacity:
                _, oldest = self._entries.popitem(last=False)
                self._created -= oldest.created
                self.num_bytes -= oldest.values.nbytes + _OF_ENTRY

    def ages(self) -> tuple[float, float]:
        """Seconds since what is kept was computed, in the mean, and since what goes next was read."""
        with self._lock:
            if not self._entries:
                return 0.0, 0.0
            now, oldest = time.monotonic(), next(iter(self._entries.values()))
            return now - self._created / len(self._entries), now - oldest.read


def key_of(layer: object, vectors: np.ndarray) -> Key:
    """The key of a list's vectors: a digest, which other vectors do not have."""
    return layer, hashlib.blake2b(vectors.tobytes(), digest_size=32).digest()
