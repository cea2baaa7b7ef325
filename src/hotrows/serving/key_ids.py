"""KeyIds: the ids that keys of dynamic features have in one version of a model.

    BUNDLE/keys/VOCABULARY.npy    [2, n] int64: the live keys, ascending, and below each its id

    version 7     keys of the file       -4  12  90        ids  3  7  4
                  changed since          12  55            ids -1  7         12 has lost its row to 55

A version is never changed: the next one has its own array of changes, and the file with it.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np

from hotrows.data.raw.values import mix64
from hotrows.schema import FIRST_UNKNOWN, MISSING, MISSING_KEY

GONE = -1  # in place of an id: the key has no row


class KeyIds:
    """The ids of the keys of a vocabulary, from a file that `pairs_of` says the content of.

    num_unknown: ids that keys without a row are hashed over. ValueError where the file holds no keys.
    """

    def __init__(self, path: Path, num_unknown: int) -> None:
        try:
            pairs = np.lib.format.open_memmap(path, mode="r").view(np.ndarray)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is damaged: {error}; export again") from None
        fits = pairs.dtype == np.int64 and pairs.ndim == 2 and len(pairs) == 2
        if not fits or not (np.diff(pairs[0]) > 0).all() or pairs[1].min(initial=0) < 0:
            raise ValueError(f"{path} is damaged: expected keys that rise, and their ids; export again")
        self.num_unknown = num_unknown
        self.rows = max(FIRST_UNKNOWN + num_unknown, 1 + int(pairs[1].max(initial=0)))
        self._stored = pairs
        self._changed = np.zeros((3, 0), np.int64)  # keys, ascending; ids or GONE; versions

    def __getitem__(self, keys: np.ndarray) -> np.ndarray:
        """[n] keys -> [n] ids; of keys without a row unknown ids."""
        hashed = mix64(keys.view(np.uint64)) % np.uint64(self.num_unknown)
        unknown = np.where(keys == MISSING_KEY, MISSING, FIRST_UNKNOWN + hashed.astype(np.int64))
        ids = _found(self._stored, keys, GONE)
        if self._changed.shape[1]:
            ids = _found(self._changed, keys, ids)
        return np.where(ids == GONE, unknown, ids)

    def changed(self, keys: np.ndarray, ids: np.ndarray, number: int) -> KeyIds:
        """The keys of version `number`, the next one, in which keys [n] have these ids, or are `GONE`."""
        news = np.stack([keys, ids, np.full(len(keys), number)])
        other = copy.copy(self)
        other._changed = last_of_each(np.concatenate([self._changed, news], 1))
        other.rows = max(self.rows, 1 + int(ids.max(initial=0)))
        return other

    def on(self, base: KeyIds, number: int) -> KeyIds:
        """These keys, those that did not change after version `number` read from it, `base`."""
        other = copy.copy(self)
        other._stored, other._changed = base._stored, self._changed[:, self._changed[2] > number]
        return other

    def pairs(self) -> np.ndarray:
        """[2, n]: all keys that have rows, ascending, and their ids."""
        zeros = np.zeros((1, self._stored.shape[1]), np.int64)
        joined = np.concatenate([np.concatenate([self._stored, zeros]), self._changed], 1)
        pairs = last_of_each(joined)[:2]
        return np.ascontiguousarray(pairs[:, pairs[1] != GONE])


def _found(pairs: np.ndarray, keys: np.ndarray, others: np.ndarray | int) -> np.ndarray:
    """The ids of keys [n] by `pairs` of ascending keys and ids; of keys that are not in it, `others`."""
    if not pairs.shape[1]:
        return np.broadcast_to(np.int64(others), keys.shape)
    places = np.minimum(pairs[0].searchsorted(keys), pairs.shape[1] - 1)
    return np.where(pairs[0].take(places) == keys, pairs[1].take(places), others)


def last_of_each(columns: np.ndarray) -> np.ndarray:
    """The last column of each key, by ascending key."""
    backwards = columns[:, ::-1]
    return backwards[:, np.unique(backwards[0], return_index=True)[1]]
