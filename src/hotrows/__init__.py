"""hotrows: trains wide-and-deep recommender models at the speed of the fastest memory.

The names below are the engine, and importing them takes torch and numpy alone. `prepare`, `Trainer`,
`TrainConfig`, `load_run`, `Loader`, `prefetch` and what packs other people's models (`accelerate`,
`restore`, `explain`, `lookahead`) are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hotrows.batch import Batch
from hotrows.engine.caching import Caching
from hotrows.engine.embedding import Embedding
from hotrows.engine.vectors import Vectors
from hotrows.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from hotrows.plan import PackPlan, Plan
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from hotrows.table import Constant, Cross, Normal, Table, Uniform
from hotrows.version import VERSION

if TYPE_CHECKING:
    from hotrows.acceleration.accelerate import accelerate, restore
    from hotrows.acceleration.explain import explain
    from hotrows.acceleration.lookahead import lookahead
    from hotrows.config import TrainConfig
    from hotrows.data.encode.prepare import prepare
    from hotrows.data.load.loader import Loader
    from hotrows.pipeline.prefetch import prefetch
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
    "Loader",
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
    "prefetch",
    "prepare",
    "restore",
]

_LOADED_LATER = {
    "Loader": "hotrows.data.load.loader",
    "TrainConfig": "hotrows.config",
    "Trainer": "hotrows.train",
    "accelerate": "hotrows.acceleration.accelerate",
    "explain": "hotrows.acceleration.explain",
    "load_run": "hotrows.train",
    "lookahead": "hotrows.acceleration.lookahead",
    "prefetch": "hotrows.pipeline.prefetch",
    "prepare": "hotrows.data.encode.prepare",
    "restore": "hotrows.acceleration.accelerate",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module 'hotrows' has no attribute {name!r}")
    return getattr(import_module(_LOADED_LATER[name]), name)
