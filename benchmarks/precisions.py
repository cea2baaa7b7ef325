"""How far are scores of a bundle from those of its model, in each precision, on three data sets?

    python -m benchmarks.precisions [SET ...] --raw FOLDER         twenty minutes

One user in eight of MovieLens-1M; a sample of Taobao, of 4,321 events; drawn short videos, whose
generator stands at an older commit. Each model is trained by `hotrows.Trainer` with its defaults
but for the number of epochs, and taken as it stands at the end, which for Taobao is fitted too closely.
All rows that it did not train on are scored by PyTorch and by the bundle: the largest difference of a
probability, and the differences of the AUC and of the mean prediction, as a share of it. HSTU has one
precision.
"""

import argparse
import dataclasses
import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.defaults_data import RAW, load
from benchmarks.evidence.records import STUDIES
from benchmarks.harness import add, conditions, git
from benchmarks.serving import auc_of
from benchmarks.workload import DATA
from hotrows.data import EncodedData, Loader, datasets
from hotrows.serving import Scorer
from hotrows.serving.bundle import PRECISIONS
from hotrows.serving.core_layers import open_core
from hotrows.serving.export.bundles import request_of
from hotrows.serving.export.whole import export
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.loop.evaluate import logits_of
from hotrows.train.loop.predictor import load_run

QUESTION = __doc__.split("\n")[0]
BATCH = 1000
MODELS: dict[str, tuple[str, dict]] = {
    "din, code": ("din", {"form": "code"}),  # with sigmoids
    "din, PReLU": ("din", {"form": "code", "attention_activation": "prelu"}),
    "dien": ("dien", {}),
    "hstu": ("hstu", {}),
}
SETS: dict[str, tuple[dict, dict]] = {  # options of models, settings of training
    "movielens": ({}, {"epochs": 1}),
    "taobao_userbehavior": ({}, {"epochs": 20}),
    "short_videos": (
        {"histories": [["past_video", "past_author", "past_category", "past_signal"]]},
        {"epochs": 1},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--models", nargs="+", choices=MODELS)
    parser.add_argument("--raw", type=Path, default=RAW)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.sets or SETS:
        data = data_of(name, args.raw)
        for model in args.models or MODELS:
            figures = compared(data, name, model)
            print(name, model, figures, flush=True)
            add("precisions", ["sets", name, model], figures, {"question": QUESTION, **conditions(1)})


def data_of(name: str, raw: Path) -> EncodedData:
    """The data, made where it is not there."""
    if name == "movielens":
        return load(name, 0, raw)
    folder = DATA / name
    if (folder / "data.json").exists():
        return EncodedData.open(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if name in datasets.BY_NAME:
        return datasets.prepare(datasets.BY_NAME[name], raw, folder)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{name}.py"
        path.write_text(git("show", f"{STUDIES}:benchmarks/{name}.py") or "")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module.make(folder, seed=0)


def compared(data: EncodedData, name: str, model: str) -> dict:
    """Trains, exports and scores: the rows, the AUC of the model, and differences by precision."""
    (kind, options), (more, settings) = MODELS[model], SETS[name]
    config = TrainConfig(model=kind, model_options=options | more, seed=0, **settings)
    with tempfile.TemporaryDirectory() as scratch:
        run, bundle = Path(scratch) / "run", Path(scratch) / "bundle"
        Trainer(data, config, run).fit()
        export(run, bundle, which="last", format="onnx")
        scorer, predictor = Scorer(bundle), load_run(run, "last")
        narrow = any(layer.can_be_narrow for layer in scorer.bundle.core_layers)
        ways = {way: _way(scorer, way) for way in (PRECISIONS if narrow else PRECISIONS[:1])}
        seen: dict[str, list[np.ndarray]] = {"label": [], "predict": [], **{way: [] for way in ways}}
        for part in ("validation", "test"):
            batches = Loader(data.parts[part], BATCH, shuffle=False).batches(0)
            for batch, logits in logits_of(predictor, batches):
                request = request_of(batch, scorer.bundle, predictor.schema)
                seen["label"].append(np.asarray(batch.labels).reshape(-1))
                seen["predict"].append(scorer.predictions(logits.numpy(), scorer.version))
                for way, version in ways.items():
                    (scores,) = scorer.logits_of([request], version)
                    seen[way].append(scorer.predictions(scores, version))
        predictor.embedding.close()
    of = {way: np.concatenate(parts).reshape(-1).astype(np.float64) for way, parts in seen.items()}
    label, before = of["label"], of["predict"]
    return {
        "rows": len(label),
        "auc": auc_of(before, label),
        "differences": {
            way: {
                "prediction": float(np.abs(of[way] - before).max()),
                "auc": abs(auc_of(of[way], label) - auc_of(before, label)),
                "mean": abs(float(of[way].mean() / before.mean()) - 1),
            }
            for way in ways
        },
    }


def _way(scorer: Scorer, precision: str):
    bundle = dataclasses.replace(scorer.bundle, precision=precision)
    core = open_core(bundle, scorer.version.program.content(), threads=1)
    assert core is not None, "no native core, or none of these layers"
    return dataclasses.replace(scorer.version, core=core)


if __name__ == "__main__":
    main()
