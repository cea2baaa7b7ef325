"""What the code of pages finds: raw rows, prepared data and a run on disk, and names in Python."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from hotrows import Dense, Label, Schema, Sequence, Sparse, Time, TrainConfig
from hotrows.data.datasets.product import synth_product
from hotrows.data.datasets.synthetic import synth_criteo
from hotrows.serving.export.whole import export
from tests.support.page_code import ROOT

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
    shutil.copy("yesterday.parquet", "train.parquet")
    lines = synth_criteo(500, Path("criteo"), cardinality_scale=1e-4).read_text().splitlines(True)
    Path("train.txt").write_text("".join(lines[:400]))
    Path("test.txt").write_text("".join(lines[400:]))


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
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(200_000, 8) for _ in range(2))
        self.mlp = torch.nn.Linear(16, 1)

    def forward(self, ids):
        return self.mlp(torch.cat([table(ids[:, f]) for f, table in enumerate(self.tables)], 1))


def plain() -> dict[str, Any]:
    model = Plain()
    loader = [torch.randint(1000, (16, 2)) for _ in range(4)]
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "loader": loader}


def renewed(page: str) -> dict[str, Any]:
    """Names that are new for every block of a page: its blocks are alternatives."""
    if page == "docs/requests.md":
        return loop()  # of the data that the page has made
    return plain() if page == "docs/any_model.md" else {}


def judge(page: str, names: dict[str, Any]) -> None:
    """What holds once a page has run."""
    if page == "docs/python.md":
        _judge_python(names)
    if page == "docs/tutorials/larger_than_memory.md":
        assert len(names["equal"]) == 26 and all(names["equal"])
    if page == "README.md":
        assert names["result"].test.auc > 0.92


def _judge_python(names: dict[str, Any]) -> None:
    assert names["probabilities"].shape == (2000,) and names["one"].shape == (1,)
    assert names["classifier"].score(names["frame"], "click") > 0.7
    assert names["metrics"] == names["result"].test and names["metrics"].auc > 0.7
    assert list(names["evaluations"].step) and names["matrix"].shape == (50, 16)
    assert len(names["biases"]) == len(names["items"]) == 50
    again = hotrows.load_run("runs/object", model=names["model"]).predict(names["frame"])
    assert np.isfinite(again).all()


def loop() -> dict[str, Any]:
    """What a loop of one's own has."""
    data = hotrows.data.EncodedData.open("enc")
    model = hotrows.models.DIN(data.schema, dim=4, hidden=(8,))
    loader = hotrows.Loader(data.parts["train"], 32)
    dense = torch.optim.Adam(model.parameters())
    batches = list(loader.batches(0))
    return {
        "data": data,
        "schema": data.schema,
        "model": model,
        "loader": loader,
        "epoch": 0,
        "batches": batches,
        "batch": batches[0],
        "step": 0,
        "dense": dense,
        "optimizer": dense,
        "loss_of": binary_cross_entropy_with_logits,
        "embedding": hotrows.Embedding.for_model(model, data.schema),
    }


def checkpoints() -> dict[str, Any]:
    """A run, and a writer's arguments for another one."""
    shutil.copytree("runs/a/checkpoints/step-4", "runs/a/checkpoints/step-1200")
    state = {"step": 1, "fields": {}, "tensors": {}}
    return {**loop(), "run": Path("runs/own"), "fingerprint": "0", **state}


def raw_rows() -> dict[str, Any]:
    """Frames without lists, as their CSV files are, and rows of a product."""
    synth_product(200, Path("raw"), num_fields=4)
    for day in (1, 2):
        Path(f"train/day={day}").mkdir(parents=True)
        shop(150, day, lists=False).to_parquet(f"train/day={day}/part.parquet")
    shutil.copy("train/day=1/part.parquet", "train/part.parquet")
    features = (Dense("price"), Sparse("user", rows=100), Sparse("item", rows=100))
    Schema(features, label="click").save("shop.json")
    return {"frame": shop(lists=False)}


def dynamic_ids() -> dict[str, Any]:
    """Batches whose ids are keys: two features of one id, and lists of one."""
    keys = [torch.randint(10**9, (8,)) for _ in range(3)]
    offsets = torch.arange(3 * 8 + 1)
    features = ("item", "country", "history")
    return {
        "model": SimpleNamespace(
            tables=(hotrows.Table("item", 10**6 + 6, 4, ("item", "history")),),
            sequences=(),
            crosses=(),
            first_layer_roles=(),
        ),
        "batches": [
            hotrows.Batch(features, torch.cat([k, k % 3, k]), torch.zeros(8, 0), offsets=offsets)
            for k in keys
        ],
        "keys": keys[0],
    }


def several_labels() -> dict[str, Any]:
    frame = shop().assign(buy=lambda f: f["click"] * (f["item"] < 4))
    return _prepared(frame, (Dense("price"), Sparse("user"), Sparse("item")), ("click", "buy"))


def movies() -> dict[str, Any]:
    frame = shop().rename(columns={"country": "gender", "item": "movie"})
    return _prepared(frame, (Sparse("gender"), Sparse("movie"), Sparse("age")), "click")


def _prepared(frame: pd.DataFrame, features: tuple, label: Any) -> dict[str, Any]:
    shutil.rmtree("enc")
    hotrows.prepare(frame, Schema(features, label=label), "enc")
    return {}


def requests() -> dict[str, Any]:
    """A log of requests, three candidates each, and events of its users."""
    log = shop().assign(request_id=lambda f: f.index // 3)
    shared = ["age", "user", "history"]
    log[shared] = log.loc[log["request_id"] * 3, shared].to_numpy()
    log.to_parquet("log.parquet")
    visits = {"user": log["user"], "item": log["item"], "at": log.index // 2}
    pd.DataFrame(visits).to_parquet("events.parquet")
    return loop()


def text_rows(path: str) -> dict[str, Any]:
    """A text file of the schema's rows."""
    frame = shop(50, 6)
    frame["history"] = ["|".join(map(str, items)) for items in frame["history"]]
    frame.to_csv(path, sep="\t", index=False)
    return {}


def training() -> dict[str, Any]:
    """A text file of the schema's rows, vectors of items, and settings."""
    text_rows("test.txt")
    vectors = [np.full(64, 0.1, np.float32).tolist() for _ in range(3)]
    pd.DataFrame({"item": [1, 2, 3], "vector": vectors}).to_parquet("vectors.parquet")
    export("runs/a", "model")
    Path("shop.toml").write_text('model = "deepfm"\n[model_options]\ndim = 32\n')
    return {"features": (Dense("price"), Sparse("user")), "Schema": Schema, "Label": Label}


def own_model() -> dict[str, Any]:
    shutil.copy(ROOT / "examples" / "own_model.py", "own_model.py")
    return {**loop(), "self": SimpleNamespace(), "dim": 8}


SETUP: dict[str, Any] = {
    "docs/any_model.md": plain,
    "docs/reference/formats.md": checkpoints,
    "docs/data.md": raw_rows,
    "docs/dynamic_ids.md": dynamic_ids,
    "docs/ranks.md": loop,
    "docs/requests.md": requests,
    "docs/training.md": training,
    "docs/tuning.md": partial(text_rows, "new.csv"),
    "docs/walkthrough.md": loop,
    "docs/your_own_model.md": own_model,
}
