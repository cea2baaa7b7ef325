"""hotrows: trains wide-and-deep recommender models at the speed of the fastest memory."""

from hotrows.batch import Batch
from hotrows.embedding import Embedding, Vectors
from hotrows.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from hotrows.plan import PackPlan, Plan
from hotrows.schema import (
    Constant,
    Dense,
    Normal,
    Schema,
    Sequence,
    Sparse,
    Table,
    Uniform,
)
from hotrows.version import VERSION

__version__ = VERSION

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "Batch",
    "Constant",
    "Dense",
    "Embedding",
    "Normal",
    "PackPlan",
    "Plan",
    "RowWiseAdagrad",
    "Schema",
    "Sequence",
    "Sparse",
    "Table",
    "Uniform",
    "Vectors",
]
