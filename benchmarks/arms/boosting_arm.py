"""Gradient boosting by its defaults: LightGBM or CatBoost, which stop early on the validation part.

    python -m benchmarks.arms.boosting_arm LIBRARY FILE.npz SEED

The file has ids [N, F] and numbers [N, D] of each part. Writes the probabilities of the test part into a
file beside it, and prints the processor seconds and the number of trees.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

MOST_TREES, PATIENCE = 1_000, 50
PARTS, KINDS = ("train", "validation", "test"), ("ids", "dense", "labels")


def main() -> None:
    library, file, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with np.load(file) as arrays:
        parts = {part: [arrays[f"{part}_{kind}"] for kind in KINDS] for part in PARTS}
    fit = {"lightgbm": _lightgbm, "catboost": _catboost}[library]
    begin = time.process_time()
    probabilities, trees = fit(parts, seed)
    seconds = time.process_time() - begin
    np.save(f"{file}.{library}.npy", probabilities)
    print(json.dumps({"cpu_seconds": round(seconds, 2), "trees": trees}))


Parts = dict[str, list[np.ndarray]]


def _lightgbm(parts: Parts, seed: int) -> tuple[np.ndarray, int]:
    import lightgbm

    inputs = {part: np.hstack([ids.astype(np.float64), dense]) for part, (ids, dense, _) in parts.items()}
    model = lightgbm.LGBMClassifier(n_estimators=MOST_TREES, random_state=seed, n_jobs=1, verbose=-1)
    model.fit(
        inputs["train"],
        parts["train"][2],
        eval_set=[(inputs["validation"], parts["validation"][2])],
        categorical_feature=list(range(parts["train"][0].shape[1])),
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    return model.predict_proba(inputs["test"])[:, 1], int(model.best_iteration_)


def _catboost(parts: Parts, seed: int) -> tuple[np.ndarray, int]:
    import catboost

    pools = {part: catboost.Pool(*_frame(*arrays)) for part, arrays in parts.items()}
    settings: dict[str, Any] = {"random_seed": seed, "thread_count": 1, "allow_writing_files": False}
    model = catboost.CatBoostClassifier(iterations=MOST_TREES, verbose=False, **settings)
    model.fit(pools["train"], eval_set=pools["validation"], early_stopping_rounds=PATIENCE)
    return model.predict_proba(pools["test"])[:, 1], int(model.tree_count_)


def _frame(ids: np.ndarray, dense: np.ndarray, labels: np.ndarray) -> tuple[Any, np.ndarray, list[str]]:
    import pandas as pd

    named = {f"id_{f}": ids[:, f] for f in range(ids.shape[1])}
    numbers = {f"number_{d}": dense[:, d] for d in range(dense.shape[1])}
    return pd.DataFrame({**named, **numbers}), labels, list(named)


if __name__ == "__main__":
    main()
