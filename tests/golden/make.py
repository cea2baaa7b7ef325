"""Writes the golden files of this version into tests/golden/VERSION: `python -m tests.golden.make`.

    rows.jsonl     raw rows that are scored: values never seen, missing ones and empty lists among them
    data/          prepared data: numbers, ids, lists, a history, dynamic ids
    run/           a run stopped in the middle, with a full checkpoint and an increment
    published/     a bundle, and a delta of it
    expected.json  what this version predicts and serves of them

Every later commit reads them (test_golden.py). A change of a format adds a folder; those of before stay.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

import hotrows
from hotrows import Dense, Dynamic, Schema, Sequence, Sparse, TrainConfig, Trainer
from hotrows.runtime.atomic_files import write_json
from hotrows.serving import Scorer
from hotrows.train.run import folder as run_folder
from hotrows.version import VERSION

FOLDER = Path(__file__).parent
STEPS, STOPPED = 20, 12
SCHEMA = Schema(
    label="click",
    features=(
        Dense("price"),
        Sparse("user"),
        Sparse("item"),
        Sparse("shop", dynamic=Dynamic(capacity=64)),
        Sparse("tags", many=True, pooling="mean"),
        Sequence("history", vocabulary="item", max_length=4),
    ),
)
CONFIG = TrainConfig(
    model="din",
    model_options={"dim": 4, "attention": [4], "hidden": [8]},
    steps=STEPS,
    batch_size=16,
    evaluate_every=STEPS,
    checkpoint_every=2,
    full_every=4,
    keep_last=2,
    seed=3,
    linear_paths="plain",
)


class Stop(hotrows.Callback):
    """Ends the run in its middle, with a checkpoint, as a signal would."""

    def on_step_end(self, trainer: Trainer, progress: object) -> None:
        if trainer.state.step == STOPPED:
            trainer.stop()


def rows(number: int, seed: int, *, odd: bool = False) -> list[dict[str, object]]:
    """Rows of a shop; odd: some with values that training never saw, and without others."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        user, item = int(rng.integers(200)), int(rng.integers(16))
        row = {
            "click": int(rng.random() < 1 / (1 + np.exp((user % 16 - item) / 4))),
            "price": round(float(rng.exponential(5)), 3),
            "user": user,
            "item": f"i{item}",
            "shop": int(rng.integers(40)) * 10**15 + 7,
            "tags": [f"t{t}" for t in rng.integers(5, size=rng.integers(3))],
            "history": [f"i{i}" for i in rng.integers(16, size=rng.integers(6))],
        }
        if odd:
            name = ("price", "user", "item", "shop", "tags", "history", "click")[int(rng.integers(7))]
            row[name] = {"user": 999, "item": "never", "tags": [], "click": 1}.get(name)
        made.append(row)
    return made


def as_columns(samples: list[dict[str, object]]) -> dict[str, list[object]]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def make(out: Path) -> None:
    """Writes the folder in a place of its own, with relative paths: none of this machine is in a file."""
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        data = hotrows.prepare(as_columns(rows(320, 1)), SCHEMA, "data", split="position:0.8,0.1,0.1")
        trainer = Trainer(data, CONFIG, "run")
        trainer.fit(callbacks=[hotrows.Publisher("published", every=f"{STOPPED // 2}b"), Stop()])
        odd = rows(40, 2, odd=True)
        Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in odd))
        expected = {
            "rows": {name: part.rows for name, part in data.parts.items()},
            "stopped_at": trainer.state.step,
            **answers(Path()),
        }
        shutil.copytree("run", "resumed")
        expected["resumed"] = resumed(Path("resumed"), Path("data"))
        shutil.rmtree("resumed")
        named = json.loads(Path("run", "data.json").read_text())
        named = {name: value for name, value in named.items() if name not in ("format", "crc32")}
        write_json(Path("run", "data.json"), run_folder._JSON.sign({**named, "path": "data"}))
        for name in ("report.svg", "report.html", "trace.json", "environment.json", "tensorboard"):
            path = Path("run", name)
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(temporary, out)
    print(f"{sum(file.stat().st_size for file in out.rglob('*') if file.is_file()):,} bytes in {out}")


def answers(folder: Path) -> dict[str, object]:
    """What the files of a folder predict and serve."""
    samples = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    features = [{name: value for name, value in row.items() if name != "click"} for row in samples]
    predicted = hotrows.load_run(folder / "run", "last").predict(as_columns(features))
    (base,) = (folder / "published").glob("base-*")
    served = Scorer.watch(folder / "published", every=None)
    newest = {"version": served.version.number, "scores": np.asarray(served.score(features)).tolist()}
    served.close()
    return {
        "predicted": np.asarray(predicted).tolist(),
        "base": np.asarray(Scorer(base).score(features)).tolist(),
        "newest": newest,
    }


def resumed(run: Path, data: Path) -> dict[str, float]:
    """The metrics of the test part after the rest of the run."""
    result = Trainer(data, run_folder.read_config(run), run, resume=True).fit()
    return {"steps": result.steps, "auc": result.test.auc, "log_loss": result.test.log_loss}


if __name__ == "__main__":
    argparse.ArgumentParser(prog="tests.golden.make", description=__doc__.splitlines()[0]).parse_args()
    make(FOLDER / VERSION)
