"""The code of docs/python.md runs as it stands, block by block."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hotrows

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()


class Trial:
    """A trial as Optuna has it, so far as the page uses it; the third one is pruned."""

    def __init__(self, number):
        self.number, self.reported = number, []

    def suggest_float(self, name, low, high, log):
        return low * (high / low) ** (self.number / 4)

    def report(self, value, step):
        self.reported.append((step, value))

    def should_prune(self):
        return self.number == 2


class Study:
    def __init__(self):
        self.trials = []

    def optimize(self, objective, n_trials):
        for number in range(n_trials):
            trial = Trial(number)
            self.trials.append(trial)
            try:
                trial.value = objective(trial)
            except Pruned:
                trial.value = None


class Pruned(Exception):
    pass


def optuna():
    """Optuna where it is installed, else what stands for it."""
    try:
        import optuna
    except ImportError:
        pruners = SimpleNamespace(MedianPruner=lambda n_startup_trials: None)
        return SimpleNamespace(
            TrialPruned=Pruned, pruners=pruners, create_study=lambda direction, pruner: Study()
        )
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@pytest.mark.usefixtures("one_thread", "no_pictures")
def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"optuna": optuna()}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert names["chances"].shape == (2000,) and names["one"].shape == (1,)
    assert names["classifier"].score(names["frame"], "click") > 0.7
    assert names["metrics"] == names["result"].test and names["metrics"].auc > 0.7
    assert list(names["evaluations"].step) and names["matrix"].shape == (50, 16)
    assert len(names["study"].trials) == 3
    assert len(names["biases"]) == len(names["items"]) == 50
    again = hotrows.load_run("runs/object", model=names["model"]).predict(names["frame"])
    assert np.isfinite(again).all()
