"""The order in which an epoch reads a part: a function of sizes, seed and epoch alone.

Shuffling reads the data in large pieces and still mixes well. The part is cut into blocks of 4,096
consecutive rows; the epoch permutes the blocks; 64 blocks in that order are a pool, and the rows of
a pool are permuted. A part of one pool is shuffled completely. Where a file has blocks of its own
(the row groups of Parquet), a pool takes blocks until it has 262,144 rows. With `shards:N` an epoch
permutes the shards, and does all this within N of them at a time, so that it needs few of them at once.

    blocks of the part    0 1 2 3 4 5 6 7
    permuted              5 0 7 2 | 6 1 3 4         two pools of four blocks
    rows of a pool        permuted; pool after pool is the order of the epoch

Where groups stay together, the rows of a group follow one another within a pool, in a random order, and
so do the groups. So do the rows of a request that share features; blocks are then cut between requests.
Where a batch would hold fewer than 32 requests they are cut, so that it mixes as many parts: batch
normalisation over few users can cost quality (docs/evidence/quality.md).
Where rows are to be reused, a pool is read cluster after cluster (`clusters`), each in a random order.

Ranks share every batch, so that together they read the rows of one process, in its order:

    places of the epoch   0 1 2 3 4 5 6 7 8 9       batches of 8, three ranks
    read by rank          0 0 1 1 1 2 2 2 1 2       and of what is left
    with shares 1, 1, 2   0 0 1 1 2 2 2 2 1 2

**Clusters** are a pool's samples, dealt so that those which read equal rows come together.

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.values import mix64
from hotrows.data.rows import Rows, ends_of, lengths_of
from hotrows.data.stored.request_rows import RequestRows, numbered
from hotrows.losses import NO_GROUP
from hotrows.runtime.native import call
from hotrows.schema import vocabulary_of

BLOCK_ROWS = 4096
BLOCKS_PER_POOL = 64
POOL_ROWS = BLOCK_ROWS * BLOCKS_PER_POOL
FEWEST_REQUESTS = 32  # that a shuffled batch mixes, or parts of requests
MOST_CLUSTERS = 64
_CLUSTERS = 8  # of `reuse` alone
_MOST_RECENT = 32  # pools whose clusters are kept for the second reader, of 256 KiB each
_FEWEST_BITS = 12  # of places in `seen`, which has half a place to one for each lookup
_PRICE = 8  # of a full cluster, in lookups of a mean sample
_ONE = 1 << 16  # a row, in units of scores
# Ids, and int64 offsets from 0 on; None: one id per row.
_Column = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class Shuffle:
    """How the rows of an epoch are shuffled.

    keep_groups: rows of a group of the schema follow one another, those of a pool at a time.
    most_together: rows of a request that follow one another, at most.
    num_clusters: clusters of samples that read equal rows in a pool, which is read one after the other;
        1: the pool is permuted as it is.
    window: shards that are shuffled at a time, which an epoch reads in a random order; 0: all together.
    recent: clusters of the pools read last, by the seed of each, under `lock`: training behind a cache
        reads each pool twice, once to look ahead.
    """

    seed: int = 0
    keep_groups: bool = False
    most_together: int = POOL_ROWS
    num_clusters: int = 1
    window: int = 0
    recent: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    def __reduce__(self) -> Any:  # for workers that are not forked, which begin with none read
        kept = (self.seed, self.keep_groups, self.most_together, self.num_clusters, self.window)
        return type(self), kept


def parse_order(order: str) -> tuple[int, int]:
    """Returns the clusters of a pool, of reuse and reuse:N, else 1; and how many shards are shuffled at a
    time, of shards:N, else 0: all."""
    kind, _, number = order.partition(":")
    value = int(number) if number.isascii() and number.isdecimal() and len(number) < 7 else 0
    if order == "shuffle":
        return 1, 0
    if kind == "shards" and value:
        return 1, value
    if order == "reuse" or (kind == "reuse" and 2 <= value <= MOST_CLUSTERS):
        return value or _CLUSTERS, 0
    raise ValueError(
        f"order must be shuffle, shards:NUMBER to shuffle at a time, such as shards:16, reuse, or "
        f"reuse:CLUSTERS with 2 to {MOST_CLUSTERS} clusters in {POOL_ROWS:,} samples; not {order!r}"
    )


def parse_shares(shares: str | None) -> tuple[int, ...]:
    """Returns the shares of the ranks in a text such as 1,2; of None, equal and auto none."""
    if shares in (None, "equal", "auto"):
        return ()
    parts = [part.strip() for part in shares.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < int(part[:6]) <= 10**4 for part in parts):
        raise ValueError(
            f"shares must be equal, auto (by the speed of ranks), or a whole number from 1 to 10,000 for "
            f"each rank, such as 1,2; not {shares!r}"
        )
    return tuple(map(int, parts))


@dataclass(frozen=True)
class Pool:
    """Consecutive rows of an epoch.

    first: place of its first row in the epoch; blocks: (first row, end) in the part.
    seed: numbers that determine the order of its rows.
    """

    first: int
    blocks: tuple[tuple[int, int], ...]
    seed: tuple[int, ...]

    @property
    def number(self) -> int:
        """Which pool of its epoch it is."""
        return self.seed[-1]

    @property
    def rows(self) -> int:
        return sum(end - first for first, end in self.blocks)

    def order(self, groups: Sequence[np.ndarray] = (), clusters: np.ndarray | None = None) -> np.ndarray:
        """Returns the pool's rows, counted through its blocks, in their new order: [rows] int64.

        groups: [rows] integers, for rows of a group to follow one another: groups come in the order of
        their first rows; of several, groups of the first stay together in those of the next. clusters:
        [rows] integers, for clusters to come one after the other.
        """
        order = permutation(self.rows, *self.seed)
        if clusters is not None:
            order = order[np.argsort(clusters[order], kind="stable")]
        for numbers in groups:
            _, first, group = np.unique(numbers[order], return_index=True, return_inverse=True)
            order = order[np.argsort(first[group], kind="stable")]
        return order


def pools(
    rows: int,
    seed: int,
    epoch: int,
    first_row: int = 0,
    block_rows: int = BLOCK_ROWS,
    blocks_per_pool: int = BLOCKS_PER_POOL,
) -> Iterator[Pool]:
    """Returns the pools of an epoch, from the one that holds place `first_row` on."""
    num_blocks = -(-rows // block_rows)
    firsts = (permutation(num_blocks, seed, epoch) * block_rows).tolist()
    blocks = [(first, min(first + block_rows, rows)) for first in firsts]
    starts = range(0, num_blocks, blocks_per_pool)
    groups = (blocks[start : start + blocks_per_pool] for start in starts)
    return _from(groups, (seed, epoch), first_row)


def pools_of(
    bounds: Sequence[int], seed: int, epoch: int, first_row: int = 0, pool_rows: int = POOL_ROWS
) -> Iterator[Pool]:
    """Returns the pools of an epoch of blocks of any size, from the one with place `first_row` on.

    Block b has the rows bounds[b] .. bounds[b + 1] - 1. A pool takes blocks until it has at least
    `pool_rows` rows.
    """
    blocks = [(bounds[b], bounds[b + 1]) for b in permutation(len(bounds) - 1, seed, epoch).tolist()]
    return _from(_filled(blocks, pool_rows), (seed, epoch), first_row)


def pools_of_window(
    bounds: Iterable[Sequence[int]], seed: tuple[int, ...], first: int, first_row: int
) -> Iterator[Pool]:
    """Returns the pools of shards that are shuffled together, from the one with place `first_row` on.

    bounds: of each shard, the first row of each block and the end. first: the place of the first pool.
    """
    blocks = [pair for of_shard in bounds for pair in pairwise(of_shard)]
    shuffled = [blocks[b] for b in permutation(len(blocks), *seed).tolist()]
    return _from(_filled(shuffled, POOL_ROWS), seed, first_row, first)


def permutation(n: int, *seed: int) -> np.ndarray:
    """Returns 0 .. n - 1 in a random order, [n] int64: sorted by random bits above each number.

    Bits come straight from PCG64, so that no change of NumPy's own shuffling changes an order.
    """
    entropy = [number & (1 << 64) - 1 for number in seed]
    raw = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(n)
    bits = max(1, (n - 1).bit_length())
    if n >= 1 << 32:
        raise ValueError(f"expected fewer than 2^32 numbers to shuffle, not {n:,}")
    call("permutation", raw, bits, n, np.empty_like(raw))
    return raw.view(np.int64)


@dataclass(frozen=True)
class Share:
    """The share of one rank in an epoch: of each batch the samples in proportion to its weight.

    rows: samples of the epoch; batch_size: samples per batch of all ranks together. weights: one of each
    rank; (): all equal. Of a batch of b samples, a rank whose weight is w and before which ranks have s,
    of t in all, has those from floor(b * s / t) up to, and without, floor(b * (s + w) / t).
    """

    rows: int
    batch_size: int
    rank: int = 0
    num_ranks: int = 1
    weights: tuple[int, ...] = ()

    def _within(self, size: Any) -> tuple[Any, Any]:
        """The rank's first sample in batches of this size, and the end of its samples."""
        weights = self.weights or (1,) * self.num_ranks
        before, every = sum(weights[: self.rank]), sum(weights)
        return size * before // every, size * (before + weights[self.rank]) // every

    def of_batch(self, batch: int) -> tuple[int, int]:
        """Returns the first place of the rank in a batch, and the end of its places."""
        first = batch * self.batch_size
        size = min(self.batch_size, self.rows - first)
        low, high = self._within(size)
        return first + low, first + high

    def among(self, first: int, end: int) -> np.ndarray | range:
        """Returns the rank's places from `first` to `end` - 1, ascending."""
        if self.num_ranks == 1:
            return range(first, end)
        places = np.arange(first, end)
        within = places % self.batch_size
        size = np.minimum(self.batch_size, self.rows - (places - within))
        low, high = self._within(size)
        return places[(low <= within) & (within < high)]


def _from(
    groups: Iterable[Sequence[tuple[int, int]]], seed: tuple[int, ...], first_row: int, first: int = 0
) -> Iterator[Pool]:
    """Yields a pool per group of blocks, from the one that holds place `first_row` on. first: place of
    the first one."""
    for number, blocks in enumerate(groups):
        pool = Pool(first, tuple(blocks), (*seed, number))
        first += pool.rows
        if first > first_row:
            yield pool


def _filled(blocks: Iterable[tuple[int, int]], pool_rows: int) -> Iterator[Sequence[tuple[int, int]]]:
    group: list[tuple[int, int]] = []
    for block in blocks:
        group.append(block)
        if sum(end - first for first, end in group) >= pool_rows:
            yield group
            group = []
    if group:
        yield group


def order_of(
    pool: Pool,
    pieces: Sequence[Rows | RequestRows],
    columns: SchemaColumns,
    shuffle: Shuffle,
    expanded: Callable[[Rows | RequestRows], Rows],
) -> np.ndarray:
    """Returns the rows of a pool, which are those of the pieces, in the order in which they are read.

    expanded: gives rows all of their features."""
    of_requests = [rows for rows in pieces if isinstance(rows, RequestRows)]
    together = [parts_of_requests(numbered(of_requests), shuffle.most_together)] if of_requests else []
    groups = [x for rows in pieces if (x := _groups(rows)) is not None] if shuffle.keep_groups else []
    if groups:  # a row without a group is by itself
        joined = np.concatenate(groups)
        together += [np.where(joined == NO_GROUP, NO_GROUP + np.arange(len(joined)), joined)]
    numbers = None
    if shuffle.num_clusters > 1:
        with shuffle.lock:
            numbers = shuffle.recent.pop(pool.seed, None)
            if numbers is None:
                numbers = clusters([*map(expanded, pieces)], columns, shuffle.num_clusters)
            shuffle.recent[pool.seed] = numbers
            if len(shuffle.recent) > _MOST_RECENT:
                del shuffle.recent[next(iter(shuffle.recent))]
    return pool.order(together, numbers)


def _groups(rows: Rows | RequestRows) -> np.ndarray | None:
    return rows.groups if isinstance(rows, RequestRows) else rows.get("groups")


def parts_of_requests(request: np.ndarray, most: int) -> np.ndarray:
    """Numbers parts of up to `most` rows of requests, whose rows follow one another: [rows] int64.

    request = [4, 4, 4, 7], most = 2  ->  [1, 1, 2, 3]
    """
    rows = np.arange(len(request))
    firsts = np.concatenate([np.ones(min(len(request), 1), bool), request[1:] != request[:-1]])
    place = rows - np.maximum.accumulate(np.where(firsts, rows, 0))
    return np.cumsum(place % most == 0)


def clusters(pieces: Sequence[Rows], columns: SchemaColumns, num_clusters: int) -> np.ndarray:
    """Returns the cluster of each row of some pieces, counted through all of them, [rows] uint8.

    num_clusters: from 1 to 64; each has at most rows / num_clusters rows, rounded up.
    """
    sections = [f"ids/{column.name}" for column in columns.ids]
    rows = sum(map(len, pieces))
    lookups = sum(len(piece.values(section)) for piece in pieces for section in sections)
    state = _State.empty(rows, lookups, num_clusters)
    names = [vocabulary_of(column.feature) for column in columns.ids]
    salts = mix64(np.array([names.index(name) + 1 for name in names], np.uint64))
    numbers = [_dealt(state, _columns(piece, sections), salts, len(piece)) for piece in pieces]
    return np.concatenate(numbers) if numbers else np.empty(0, np.uint8)


@dataclass
class _State:
    """The clusters as far as they are known.

    seen: [places, num_bytes] uint8, a bit for each cluster; sizes: [num_clusters].
    step: what a sample adds to the price of its cluster; most: samples of a full cluster.
    """

    seen: np.ndarray
    sizes: np.ndarray
    step: int
    most: int

    @staticmethod
    def empty(rows: int, lookups: int, num_clusters: int) -> _State:
        if not 1 <= num_clusters <= MOST_CLUSTERS:
            raise ValueError(f"expected 1 to {MOST_CLUSTERS} clusters, not {num_clusters}")
        most = max(-(-rows // num_clusters), 1)
        bits = max((lookups // 2).bit_length(), _FEWEST_BITS)
        num_bytes = next(size for size in (1, 2, 4, 8) if num_clusters <= 8 * size)
        seen = np.zeros((1 << bits, num_bytes), np.uint8)
        step = _PRICE * lookups * _ONE // max(rows * most, 1)
        return _State(seen, np.zeros(num_clusters, np.int64), step, most)

    @property
    def bits(self) -> int:
        return len(self.seen).bit_length() - 1


def _columns(rows: Rows, sections: Sequence[str]) -> list[_Column]:
    columns: list[_Column] = []
    for section in sections:
        values, bounds = np.ascontiguousarray(rows.values(section)), rows.bounds_of(section)
        ends = None if bounds is None else ends_of(lengths_of(bounds, len(rows.arrays[section])))
        columns.append((values, ends))
    return columns


def _dealt(state: _State, columns: Sequence[_Column], salts: np.ndarray, rows: int) -> np.ndarray:
    """Deals the rows of one piece: the cluster of each, [rows] uint8."""
    described = np.empty((len(columns), 4), np.int64)
    for f, (ids, offsets) in enumerate(columns):
        described[f, :3] = ids.ctypes.data, ids.itemsize, 0 if offsets is None else offsets.ctypes.data
    described[:, 3] = salts.view(np.int64)
    numbers = np.empty(rows, np.uint8)
    num, num_bytes = len(state.sizes), state.seen.shape[1]
    sizes = (len(columns), rows, num, num_bytes, state.bits, state.step, state.most)
    call("clusters", described, *sizes, state.seen, state.sizes, numbers)
    return numbers
