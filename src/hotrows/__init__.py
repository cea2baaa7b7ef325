"""hotrows: trains wide-and-deep recommender models at the speed of the fastest memory.

Importing it takes nothing: each name below, and each module of the package, is imported when it is
first used, and PyTorch with the first one that computes.
"""

import os
from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names
from hotrows.runtime.machine import limit_threads
from hotrows.runtime.moved import find_moved
from hotrows.version import VERSION

if TYPE_CHECKING:
    from hotrows import data as data
    from hotrows import models as models
    from hotrows import serving as serving
    from hotrows.acceleration.accelerate import accelerate, restore
    from hotrows.acceleration.dynamic_embedding import DynamicEmbedding
    from hotrows.acceleration.explain import explain
    from hotrows.acceleration.lookahead import lookahead
    from hotrows.batch import Batch
    from hotrows.batch import RequestFeatures as RequestFeatures
    from hotrows.data import datasets as datasets
    from hotrows.data.encode.prepare import prepare
    from hotrows.data.load.loader import Loader
    from hotrows.dynamic import Dynamic
    from hotrows.engine import checkpoint as checkpoint
    from hotrows.engine import distributed as distributed
    from hotrows.engine import planning as planning
    from hotrows.engine.caching import Caching
    from hotrows.engine.embedding import Embedding
    from hotrows.engine.pipeline.prefetch import prefetch
    from hotrows.engine.vectors import Vectors
    from hotrows.models import nn as nn
    from hotrows.ops.plan import PackPlan as PackPlan
    from hotrows.ops.plan import Plan as Plan
    from hotrows.optim import (
        FTRL,
        SGD,
        Adagrad,
        DenseAdam,
        DenseAdamW,
        DenseSGD,
        LazyAdam,
        RowWiseAdagrad,
    )
    from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
    from hotrows.serving.export.publisher import Publisher
    from hotrows.table import Constant, Cross, Normal, Table, Uniform
    from hotrows.tools import trackers as trackers
    from hotrows.tools import tuning as tuning
    from hotrows.train import Callback, Trainer, load_run
    from hotrows.train import metrics as metrics
    from hotrows.train.config import TrainConfig
    from hotrows.train.estimators import Classifier, Regressor

__version__ = VERSION

if "OMP_WAIT_POLICY" not in os.environ:
    # Threads of GNU's OpenMP that wait for one another spin before they sleep, 300,000 times by default:
    # beside other programs that makes two threads many times slower than one. Read by the library when
    # PyTorch loads it, so without effect where PyTorch was imported first (docs/reference/settings.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

limit_threads()
find_moved()

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Batch",
    "Caching",
    "Callback",
    "Classifier",
    "Constant",
    "Cross",
    "Dense",
    "DenseAdam",
    "DenseAdamW",
    "DenseSGD",
    "Dynamic",
    "DynamicEmbedding",
    "Embedding",
    "Label",
    "LazyAdam",
    "Loader",
    "Normal",
    "Publisher",
    "Regressor",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hotrows.acceleration.accelerate": ["accelerate", "restore"],
        "hotrows.acceleration.dynamic_embedding": ["DynamicEmbedding"],
        "hotrows.acceleration.explain": ["explain"],
        "hotrows.acceleration.lookahead": ["lookahead"],
        "hotrows.batch": ["Batch", "RequestFeatures"],
        "hotrows.train.config": ["TrainConfig"],
        "hotrows.data.encode.prepare": ["prepare"],
        "hotrows.data.load.loader": ["Loader"],
        "hotrows.dynamic": ["Dynamic"],
        "hotrows.engine.caching": ["Caching"],
        "hotrows.engine.embedding": ["Embedding"],
        "hotrows.engine.vectors": ["Vectors"],
        "hotrows.optim": [
            "FTRL",
            "SGD",
            "Adagrad",
            "Adam",
            "LazyAdam",
            "DenseAdam",
            "DenseAdamW",
            "DenseSGD",
            "RowWiseAdagrad",
        ],
        "hotrows.engine.pipeline.prefetch": ["prefetch"],
        "hotrows.ops.plan": ["PackPlan", "Plan"],
        "hotrows.schema": ["Dense", "Label", "Schema", "Sequence", "Sparse", "Time"],
        "hotrows.table": ["Constant", "Cross", "Normal", "Table", "Uniform"],
        "hotrows.train": ["Callback", "Trainer", "load_run"],
        "hotrows.train.estimators": ["Classifier", "Regressor"],
        "hotrows.serving.export.publisher": ["Publisher"],
    },
)
