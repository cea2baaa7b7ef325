"""Hyperparameters by Optuna, which ends bad trials early: `python examples/optuna_pruning.py`.

Each evaluation of a run is reported to its trial; a trial below the median of the earlier ones at the
same step ends there. Needs `pip install optuna`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import optuna

import hotrows

TRIALS = int(sys.argv[1]) if len(sys.argv) > 1 else 8


class Prune(hotrows.Callback):
    def __init__(self, trial):
        self.trial = trial

    def on_evaluation_end(self, trainer, metrics):
        self.trial.report(metrics.score, trainer.state.step)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"score {metrics.score:.4f} at step {trainer.state.step}")


def clicks(rows=20_000, seed=0):
    """Clicks that depend on user and item, and on noise."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(500, size=rows), rng.integers(200, size=rows)
    taste = rng.normal(size=500)[user] + rng.normal(size=200)[item]
    click = (rng.random(rows) < 1 / (1 + np.exp(-taste))).astype(np.int8)
    return {"user": user, "item": item, "click": click}


def search(folder):
    schema = hotrows.Schema((hotrows.Sparse("user"), hotrows.Sparse("item")), label="click")
    data = hotrows.prepare(clicks(), schema, folder / "enc")

    def objective(trial):
        rows = hotrows.Adagrad(lr=trial.suggest_float("lr", 1e-4, 0.3, log=True))
        dim = trial.suggest_categorical("dim", [4, 8, 16])
        config = hotrows.TrainConfig(model="fm", model_options={"dim": dim}, row_optimizer=rows, epochs=1)
        trainer = hotrows.Trainer(data, config, folder / f"trial-{trial.number}")
        return trainer.fit(callbacks=[Prune(trial)], verbose=False).validation.score

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
    )
    study.optimize(objective, n_trials=TRIALS)
    return study


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        study = search(Path(folder))
    for trial in study.trials:
        score = max(trial.intermediate_values.values())
        print(f"trial {trial.number}: {trial.state.name.lower()}, score {score:.4f}, {trial.params}")
    print(f"best score {study.best_value:.4f} with {study.best_params}")
