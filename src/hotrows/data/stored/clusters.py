"""Clusters: a pool's samples dealt so that those which read equal rows come together.

A cache fetches a row again whenever the order of samples returns to it after too long. Shuffling leaves
that order free, and Bélády's optimum is one of a given order. So a pool is divided into clusters of equal
size, and is read cluster after cluster, each in random order: a row that few samples read is then
fetched for few clusters.

    rows of samples     a x | b y | a z | b w | a y | b x        two clusters
    in random order     a x | b w | a y | b y | a z | b x
    clusters            a x   a y   a z | b w   b x   b y        each permuted

This divides a hypergraph in one pass (Alistarh, Iglesias, Vojnovic, NIPS 2015), with the balance of
Fennel (Tsourakakis et al., WSDM 2014). A sample goes where most of its rows were seen, less a price for
size:

    score(g) = rows of the sample seen in g - price * size(g)

The price of a full cluster is 8 times the rows of a mean sample, in whole 1/65,536: the same on every
machine. A full cluster takes no more, and of equal scores the first wins. Rows have bits by cluster in
a table of bytes, placed by a multiplicative hash without a check for collisions: a row that
shares its place seems to be seen where it is not, which costs a fetch and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotrows.data.raw.values import mix64
from hotrows.data.stored.gather import ends_of, lengths_of
from hotrows.data.stored.order import MOST_CLUSTERS, Pool, Shuffle
from hotrows.data.stored.requests import RequestRows, numbered
from hotrows.data.stored.rows import Rows
from hotrows.runtime.native import call
from hotrows.schema import Schema, vocabulary_of

_MOST_RECENT = 32  # pools whose clusters are kept for the second reader, of 256 KiB each
_FEWEST_BITS = 12  # of places in `seen`, which has half a place to one for each lookup
_PRICE = 8  # of a full cluster, in lookups of a mean sample
_ONE = 1 << 16  # a row, in units of scores


def order_of(
    pool: Pool, pieces: Sequence[Rows | RequestRows], schema: Schema, shuffle: Shuffle
) -> np.ndarray:
    """Returns the rows of a pool, which are those of the pieces, in the order in which they are read."""
    of_requests = [rows for rows in pieces if isinstance(rows, RequestRows)]
    together = [numbered(of_requests)] if of_requests else []
    groups = [rows.groups for rows in pieces if rows.groups is not None] if shuffle.keep_groups else []
    together += [np.concatenate(groups)] if groups else []
    numbers = None
    if shuffle.num_clusters > 1:
        with shuffle.lock:
            numbers = shuffle.recent.pop(pool.seed, None)
            if numbers is None:
                expanded = [p.expanded() if isinstance(p, RequestRows) else p for p in pieces]
                numbers = clusters(expanded, schema, shuffle.num_clusters)
            shuffle.recent[pool.seed] = numbers
            if len(shuffle.recent) > _MOST_RECENT:
                del shuffle.recent[next(iter(shuffle.recent))]
    return pool.order(together, numbers)


def clusters(pieces: Sequence[Rows], schema: Schema, num_clusters: int) -> np.ndarray:
    """Returns the cluster of each row of some pieces, counted through all of them, [rows] uint8.

    num_clusters: from 1 to 64; each has at most rows / num_clusters rows, rounded up.
    """
    rows = sum(map(len, pieces))
    lookups = sum(len(piece.values(f)) for piece in pieces for f in range(len(piece.ids)))
    state = _State.empty(rows, lookups, num_clusters)
    names = [vocabulary_of(feature) for feature in schema.id_features]
    salts = mix64(np.array([names.index(name) + 1 for name in names], np.uint64))
    numbers = [_dealt(state, _columns(piece), salts, len(piece)) for piece in pieces]
    return np.concatenate(numbers) if numbers else np.empty(0, np.uint8)


@dataclass
class _State:
    """What is known of the clusters so far.

    seen: [places, num_bytes] uint8, a bit for each cluster; sizes: [num_clusters].
    step: what a sample adds to the price of its cluster; most: samples of a full cluster.
    """

    seen: np.ndarray
    sizes: np.ndarray
    step: int
    most: int

    @staticmethod
    def empty(rows: int, lookups: int, num_clusters: int) -> _State:
        assert 1 <= num_clusters <= MOST_CLUSTERS
        most = max(-(-rows // num_clusters), 1)
        bits = max((lookups // 2).bit_length(), _FEWEST_BITS)
        num_bytes = next(size for size in (1, 2, 4, 8) if num_clusters <= 8 * size)
        seen = np.zeros((1 << bits, num_bytes), np.uint8)
        step = _PRICE * lookups * _ONE // max(rows * most, 1)
        return _State(seen, np.zeros(num_clusters, np.int64), step, most)

    @property
    def bits(self) -> int:
        return len(self.seen).bit_length() - 1


# Ids, and int64 offsets from 0 on; None: one id per row.
_Column = tuple[np.ndarray, np.ndarray | None]


def _columns(rows: Rows) -> list[_Column]:
    columns: list[_Column] = []
    for f, offsets in enumerate(rows.offsets):
        values = np.ascontiguousarray(rows.values(f))
        if offsets is None:
            columns.append((values, None))
        else:
            columns.append((values, ends_of(lengths_of(offsets, len(rows.ids[f])))))
    return columns


def _dealt(state: _State, columns: Sequence[_Column], salts: np.ndarray, rows: int) -> np.ndarray:
    """Deals the rows of one piece: [rows] uint8."""
    described = np.empty((len(columns), 4), np.int64)
    for f, (ids, offsets) in enumerate(columns):
        described[f, :3] = ids.ctypes.data, ids.itemsize, 0 if offsets is None else offsets.ctypes.data
    described[:, 3] = salts.view(np.int64)
    numbers = np.empty(rows, np.uint8)
    num, num_bytes = len(state.sizes), state.seen.shape[1]
    sizes = (len(columns), rows, num, num_bytes, state.bits, state.step, state.most)
    call("clusters", described, *sizes, state.seen, state.sizes, numbers)
    return numbers
