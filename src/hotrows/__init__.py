"""hotrows: trains wide-and-deep recommender models at the speed of the fastest memory.

The names below are the engine, and importing them takes torch and numpy alone. `prepare`, `Trainer`,
`TrainConfig`, `load_run` and what packs other people's models (`accelerate`, `restore`, `explain`,
`lookahead`) are loaded when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hotrows.batch import Batch
from hotrows.embedding import Embedding
from hotrows.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from hotrows.plan import PackPlan, Plan
from hotrows.schema import (
    Constant,
    Cross,
    Dense,
    Label,
    Normal,
    Schema,
    Sequence,
    Sparse,
    Table,
    Time,
    Uniform,
)
from hotrows.tiers import Caching
from hotrows.vectors import Vectors
from hotrows.version import VERSION

if TYPE_CHECKING:
    from hotrows.capture import accelerate, explain, lookahead, restore
    from hotrows.config import TrainConfig
    from hotrows.data.prepare import prepare
    from hotrows.train import Trainer, load_run

__version__ = VERSION

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "Batch",
    "Caching",
    "Constant",
    "Cross",
    "Dense",
    "Embedding",
    "Label",
    "Normal",
    "PackPlan",
    "Plan",
    "RowWiseAdagrad",
    "Schema",
    "Sequence",
    "Sparse",
    "Table",
    "Time",
    "TrainConfig",
    "Trainer",
    "Uniform",
    "Vectors",
    "accelerate",
    "explain",
    "load_run",
    "lookahead",
    "prepare",
    "restore",
]

_LOADED_LATER = {
    "TrainConfig": "hotrows.config",
    "Trainer": "hotrows.train",
    "accelerate": "hotrows.capture",
    "explain": "hotrows.capture",
    "load_run": "hotrows.train",
    "lookahead": "hotrows.capture",
    "prepare": "hotrows.data.prepare",
    "restore": "hotrows.capture",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module 'hotrows' has no attribute {name!r}")
    return getattr(import_module(_LOADED_LATER[name]), name)
