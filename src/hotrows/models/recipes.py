"""Recipes: settings of a training by name, `hotrows train DATA --config rmc2`.

RMC1 to RMC3 are the models of FAE (VLDB 2022); sizes, optimizers and batches are those of the scripts
that are published with TBSM and DLRM for the same data sets (tbsm_bench.sh, dlrm_s_criteo_kaggle.sh and
dlrm_s_criteo_terabyte.sh).
"""

from __future__ import annotations

from typing import Any

_SGD = {"row_optimizer": {"kind": "sgd", "lr": 0.1}, "dense_optimizer": "sgd", "dense_lr": 0.1}
RECIPES: dict[str, dict[str, Any]] = {
    "rmc1": {  # Taobao UserBehavior
        "model": "tbsm",
        "model_options": {
            "dim": 16,
            "bottom": [],
            "top": [15, 15],
            "length": 20,
            "attention": [15, 15],
            "hidden": [60],
        },
        "row_optimizer": {"kind": "adagrad", "lr": 0.05},
        "dense_optimizer": "adagrad",
        "dense_lr": 0.05,
        "batch_size": 256,
        "epochs": 1,
    },
    "rmc2": {  # Criteo Kaggle
        "model": "dlrm",
        "model_options": {"dim": 16, "bottom": [512, 256, 64], "top": [512, 256]},
        "batch_size": 128,
        "epochs": 1,
        **_SGD,
    },
    "rmc3": {  # Criteo Terabyte
        "model": "dlrm",
        "model_options": {"dim": 64, "bottom": [512, 256], "top": [512, 512, 256]},
        "batch_size": 2048,
        "epochs": 1,
        **_SGD,
    },
}
