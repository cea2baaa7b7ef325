"""What the code of pages finds: raw rows, prepared data and a run on disk, and names in Python."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from hotrows import Dense, Schema, Sequence, Sparse, Time, TrainConfig
from hotrows.datasets.synthetic import synth_criteo

SHOP = Schema(
    (
        Dense("price"), Dense("age"), Sparse("user"), Sparse("item"), Sparse("country"),
        Sequence("history", vocabulary="item", max_length=20),
    ),
    label="click",
    time=Time("time", format="%Y-%m-%d %H:%M:%S"),
)  # fmt: skip
SMALL = {"model_options": {"dim": 4, "hidden": (8,)}}


def shop(rows: int = 300, seed: int = 0, lists: bool = True) -> pd.DataFrame:
    """Clicks of a shop over ten days: some items are liked."""
    rng = np.random.default_rng(seed)
    item = rng.integers(30, size=rows)
    frame = pd.DataFrame(
        {
            "user": rng.integers(40, size=rows),
            "item": item,
            "country": rng.choice(["de", "fr", "it"], rows),
            "price": rng.gamma(2, 5, rows).round(2),
            "age": rng.integers(18, 80, rows),
            "time": pd.Timestamp("2024-03-01") + pd.to_timedelta(np.arange(rows) * 2880, "s"),
            "click": (rng.random(rows) < np.where(item < 8, 0.7, 0.2)).astype(int),
        }
    )
    if lists:
        history = [rng.integers(30, size=n).tolist() for n in rng.integers(6, size=rows)]
        return frame.assign(history=history)
    return frame


def fill(folder: Path) -> None:
    """Writes what pages name: files of raw rows, the data `enc` and the run `runs/a`."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        _write_rows()
        SHOP.save("shop.json")
        data = hotrows.prepare(shop(), SHOP, "enc", split="fraction:0.7,0.15,0.15")
        config = TrainConfig(steps=4, linear_paths="plain", seed=1, **SMALL)
        hotrows.Trainer(data, config, run="runs/a").fit(verbose=False)
    finally:
        os.chdir(before)


def _write_rows() -> None:
    shop(lists=False).to_csv("clicks.csv", index=False)
    for name, seed in (("new", 1), ("tuesday", 2), ("yesterday", 3), ("test", 4), ("val", 5)):
        shop(120, seed).to_parquet(f"{name}.parquet")
        shop(120, seed, lists=False).to_csv(f"{name}.csv", index=False)
    for day in (1, 2):
        Path(f"clicks/day={day}").mkdir(parents=True)
        shop(150, day).to_parquet(f"clicks/day={day}/part.parquet")
    for name, seed in (("train.txt", 0), ("test.txt", 1), ("new_rows.txt", 2)):
        shutil.move(synth_criteo(400, Path("criteo"), seed=seed, cardinality_scale=1e-4), name)


def names(page: str, prepared: Path, folder: Path) -> dict[str, Any]:
    """Copies the files into the page's folder, and gives its Python what it takes as there."""
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    before = os.getcwd()
    os.chdir(folder)
    try:
        scope = {"__name__": "page", "hotrows": hotrows, "torch": torch, "np": np, "frame": shop()}
        scope["binary_cross_entropy_with_logits"] = binary_cross_entropy_with_logits
        return {**scope, **SETUP.get(page, dict)()}
    finally:
        os.chdir(before)


class Plain(torch.nn.Module):
    """A model of plain PyTorch: two tables, and an MLP."""

    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(1000, 8) for _ in range(2))
        self.mlp = torch.nn.Linear(16, 1)

    def forward(self, ids):
        return self.mlp(torch.cat([table(ids[:, f]) for f, table in enumerate(self.tables)], 1))


def plain() -> dict[str, Any]:
    model = Plain()
    loader = [torch.randint(1000, (16, 2)) for _ in range(4)]
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "loader": loader}


SETUP: dict[str, Any] = {"README.md": plain, "docs/any_model.md": plain}


class Trial:
    """A trial as Optuna has it, so far as docs/python.md uses it; the third one is pruned."""

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


def optuna() -> dict[str, Any]:
    """Optuna where it is installed, else what stands for it."""
    try:
        import optuna
    except ImportError:
        pruners = SimpleNamespace(MedianPruner=lambda n_startup_trials: None)
        study = SimpleNamespace(
            TrialPruned=Pruned, pruners=pruners, create_study=lambda direction, pruner: Study()
        )
        return {"optuna": study}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return {"optuna": optuna}


def judge(page: str, names: dict[str, Any]) -> None:
    """What holds once a page has run."""
    if page == "docs/python.md":
        _judge_python(names)
    if page == "README.md":
        assert names["chances"].shape == (300,)


def _judge_python(names: dict[str, Any]) -> None:
    assert names["chances"].shape == (2000,) and names["one"].shape == (1,)
    assert names["classifier"].score(names["frame"], "click") > 0.7
    assert names["metrics"] == names["result"].test and names["metrics"].auc > 0.7
    assert list(names["evaluations"].step) and names["matrix"].shape == (50, 16)
    assert len(names["study"].trials) == 3
    assert len(names["biases"]) == len(names["items"]) == 50
    again = hotrows.load_run("runs/object", model=names["model"]).predict(names["frame"])
    assert np.isfinite(again).all()


SETUP["docs/python.md"] = optuna
