"""A table as a model declares it: rows, dim, initial values; and crosses of features."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING

from hotrows.dynamic import GROWING

if TYPE_CHECKING:
    from hotrows.optim import RowOptimizer


BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "int4": 4}
"""Of a stored weight, by its dtype."""
TABLE_DTYPES = tuple(BITS)


def is_integer(dtype: str) -> bool:
    """True if weights of this dtype are integers, in units of a scale that each row has."""
    return BITS[dtype] <= 8


@dataclass(frozen=True)
class Uniform:
    """An initializer: weights are drawn uniformly from [-scale, scale).

    >>> hotrows.Table("user", rows=100, dim=8, features=("user",), initializer=Uniform(0.1)).initializer
    Uniform(scale=0.1)
    """

    scale: float = 0.01


@dataclass(frozen=True)
class Normal:
    """An initializer: weights are drawn from a normal distribution with mean 0.

    >>> hotrows.Table("user", rows=100, dim=8, features=("user",), initializer=Normal(0.1)).initializer
    Normal(std=0.1)
    """

    std: float = 0.01


@dataclass(frozen=True)
class Constant:
    """An initializer: all weights are equal to `value`.

    >>> hotrows.Table("bias", rows=100, dim=1, features=("user",), initializer=Constant(0.0)).initializer
    Constant(value=0.0)
    """

    value: float = 0.0


Initializer = Uniform | Normal | Constant


@dataclass(frozen=True)
class Table:
    """Rows of weights that a model reads by id.

    name: unique in the model; key of checkpoints and of the initial values of rows.
    rows: number of ids.
    dim: weights per row.
    features: the features that read it, in the order of the model's vectors.
    role: the model's name for these vectors; a feature may read several tables of different roles.
    dtype: of the stored weights, one of `TABLE_DTYPES`; float16 in host memory runs on the plain
        PyTorch ops; int8 and int4, of an even dim, have a scale for each row.
    optimizer: the row optimizer (default: the one passed to `Embedding`).
    reserved: of a table of dynamic ids, how many ids stand for no key; the rows of the others take memory
        once they get one. None: all rows are made at first.

    >>> Table("user", rows=100, dim=8, features=("user",)).role
    'vector'
    """

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    role: str = "vector"
    initializer: Initializer = field(default_factory=Uniform)
    dtype: str = "float32"
    optimizer: RowOptimizer | None = None
    reserved: int | None = None

    @property
    def grows(self) -> bool:
        """True if the table has room for so many keys that only those that come take any."""
        return self.reserved is not None and self.rows > GROWING

    def stored_as(self, dtype: str) -> Table:
        """The table with weights of this dtype; float32 in place of integers that would take no less, as
        the scale of a row is four bytes.

        >>> Table("bias", rows=100, dim=1, features=("user",)).stored_as("int8").dtype
        'float32'
        """
        return replace(self, dtype="float32" if is_integer(dtype) and self.dim < 3 else dtype)

    def __post_init__(self) -> None:
        sizes = (self.rows, self.dim)
        if not all(isinstance(size, Integral) and size >= 1 for size in sizes):
            raise ValueError(
                f"table {self.name!r} needs at least one row and one dimension, "
                f"not rows={self.rows!r}, dim={self.dim!r}"
            )
        if self.rows * self.dim >= 1 << 60:
            raise ValueError(
                f"table {self.name!r} has more weights than any memory: rows={self.rows}, dim={self.dim}"
            )
        if self.dtype not in TABLE_DTYPES:
            raise ValueError(
                f"table {self.name!r}: dtype must be one of {', '.join(TABLE_DTYPES)}, not {self.dtype!r}"
            )
        if self.dim * BITS[self.dtype] % 8:
            raise ValueError(
                f"table {self.name!r}: rows of {self.dtype} need an even dim, not {self.dim}, as two "
                f"weights are a byte; use dim {self.dim + 1} or int8"
            )
        if not self.features:
            raise ValueError(f"table {self.name!r} is read by no feature; name at least one")


@dataclass(frozen=True)
class Cross:
    """A feature made of others: an id from 0 to rows - 1, hashed from the ids of a sample, in order.

    features: two or more features with one id per sample.
    rows: number of buckets; pairs of ids may
    collide in one.
    name: default: the features' names joined by `*`, as in "user*item".

    >>> Cross(("user", "item"), rows=1000).name
    'user*item'
    """

    features: tuple[str, ...]
    rows: int
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        object.__setattr__(self, "name", self.name or "*".join(self.features))
        if len(set(self.features)) < max(len(self.features), 2) or self.rows < 1:
            raise ValueError(
                f"a cross needs two or more different features and at least one row, "
                f"not features={self.features}, rows={self.rows}"
            )
