"""The order in which an epoch reads a part: a function of sizes, seed and epoch alone.

Shuffling reads the data in large pieces and still mixes well. The part is cut into blocks of 4,096
consecutive rows; the epoch permutes the blocks; 64 blocks in that order are a pool, and the rows of
a pool are permuted. A part of one pool is shuffled completely.

    blocks of the part    0 1 2 3 4 5 6 7
    permuted              5 0 7 2 | 6 1 3 4         two pools of four blocks
    rows of a pool        permuted; pool after pool is the order of the epoch
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BLOCK_ROWS = 4096
BLOCKS_PER_POOL = 64


@dataclass(frozen=True)
class Pool:
    """Consecutive rows of an epoch.

    first: the place in the epoch of the first of them; blocks: (first row, end) in the part.
    seed: what its rows are permuted by.
    """

    first: int
    blocks: tuple[tuple[int, int], ...]
    seed: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(end - first for first, end in self.blocks)

    def order(self) -> np.ndarray:
        """[rows] int64: which of the pool's rows, counted through its blocks, comes when."""
        return permutation(self.rows, *self.seed)


def pools(
    rows: int,
    seed: int,
    epoch: int,
    first_row: int = 0,
    block_rows: int = BLOCK_ROWS,
    blocks_per_pool: int = BLOCKS_PER_POOL,
) -> Iterator[Pool]:
    """The pools of an epoch, from the one that holds place `first_row` on."""
    num_blocks = -(-rows // block_rows)
    blocks = permutation(num_blocks, seed, epoch)
    first = 0
    for pool, start in enumerate(range(0, num_blocks, blocks_per_pool)):
        firsts = (blocks[start : start + blocks_per_pool] * block_rows).tolist()
        bounds = tuple((at, min(at + block_rows, rows)) for at in firsts)
        of = Pool(first, bounds, (seed, epoch, pool))
        first += of.rows
        if first > first_row:
            yield of


def permutation(n: int, *seed: int) -> np.ndarray:
    """[n] int64, a random order of 0 .. n - 1: each number with random bits above it, sorted.

    Bits come straight from PCG64, so that no change of NumPy's own shuffling changes an order.
    """
    bits = np.uint64(max(1, (n - 1).bit_length()))
    numbers = np.arange(n, dtype=np.uint64)
    entropy = [number & (1 << 64) - 1 for number in seed]
    generator = np.random.PCG64(np.random.SeedSequence(entropy))
    keys = np.sort(generator.random_raw(n) << bits | numbers)
    return (keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
