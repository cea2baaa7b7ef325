"""One epoch of BARS' recipe, its validation counted: FuxiCTR's own model and step, or the engine.

The logs of BARS count the samples trained in an epoch over its whole time, the validation on a quarter as
many samples included; so does this. `--check` prints loss curves of all arms in small instead.
"""

import dataclasses
import json
import logging
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import workload
from benchmarks.any_model.check import precision
from benchmarks.arms import arm
from benchmarks.peers import source_of
from benchmarks.workload import Batch, Workload, batches

sys.path.append(str(Path(__file__).parents[2] / "src"))  # this environment has no hotrows
WARM_UP = 5
CLASSES = {
    "deepfm": "DeepFM.DeepFM_torch.src.DeepFM",
    "widedeep": "WideDeep.WideDeep_torch.src.WideDeep",
    "dlrm": "DLRM.src.DLRM",
}
SMALL = Workload((50, 7, 300, 3), num_dense=13, batch_size=128, num_batches=40)


def main() -> None:
    logging.disable(logging.WARNING)
    parser = arm.parser(models=tuple(CLASSES), library=("fuxictr", "accelerate", "hotrows"))
    parser.add_argument("--epoch-steps", type=int, default=200)
    parser.add_argument("--check", action="store_true", help="print loss curves of all arms in small")
    args = arm.finish(parser.parse_args())
    torch.set_num_threads(args.threads)
    if args.check:
        print(json.dumps(check(args.model)))
        return
    data = [_scaled(batch) for batch in batches(args.workload, args.batch_size)]
    num = args.epoch_steps + WARM_UP
    parts = {"train": data[:num], "validation": data[num : num + args.epoch_steps // 4]}
    train = _engine if args.library == "hotrows" else _fuxictr
    others, begin = workload.cpu_seconds_of_others(), time.perf_counter()
    epoch = train(args, parts)
    wall = time.perf_counter() - begin
    _print(args, epoch, max(0.0, workload.cpu_seconds_of_others() - others) / wall)


def _scaled(batch: Batch) -> Batch:
    """A batch with dense values from 0 to about 1, as Criteo_x1 has them."""
    return batch._replace(dense=batch.dense / 5)


def _print(args: Namespace, epoch: dict, other_cores: float) -> None:
    losses = epoch.pop("losses")
    seconds = sum(value for name, value in epoch.items() if name.endswith("_seconds"))
    packages = ("torch",) if args.library == "hotrows" else ("torch", "fuxictr")
    figures = {
        "samples_per_s": args.epoch_steps * args.batch_size / seconds,
        "samples_per_cpu_second": args.epoch_steps * args.batch_size / epoch["cpu_time"],
        "ms": epoch["train_seconds"] / args.epoch_steps * 1e3,
        "peak_rss_mb": arm.peak_rss_mb(),
        "other_cores": other_cores,
        "epoch_steps": args.epoch_steps,
        **epoch,
        "loss": [losses[0], losses[-1]],
        "versions": {package: version(package) for package in packages},
    }
    print(json.dumps(figures))


def _engine(args: Namespace, parts: dict[str, list[Batch]]) -> dict:
    from benchmarks.arms import bars_engine

    return bars_engine.train_epoch(args, parts, WARM_UP)


def _fuxictr(args: Namespace, parts: dict[str, list[Batch]]) -> dict:
    """FuxiCTR's step and evaluation; its batches are in memory, no loader counts."""
    model = model_of(args.model, args.workload)
    columns = {part: [columns_of(args.model, batch) for batch in data] for part, data in parts.items()}
    if args.library == "accelerate":
        import hotrows

        hotrows.accelerate(model, model.optimizer)
    model.train()
    losses = [model.train_step(batch).item() for batch in columns["train"][:WARM_UP]]
    begin, cpu = time.perf_counter(), time.process_time()
    losses += [model.train_step(batch).item() for batch in columns["train"][WARM_UP:]]
    trained = time.perf_counter()
    if args.library == "accelerate":
        model._hotrows.catch_up()
    caught_up = time.perf_counter()
    with open(os.devnull, "w"):
        metrics = model.evaluate(columns["validation"])
    end = time.perf_counter()
    return {
        "train_seconds": trained - begin, "catch_up_seconds": caught_up - trained,
        "evaluation_seconds": end - caught_up, "cpu_time": time.process_time() - cpu,
        "losses": losses, "auc": float(metrics["AUC"]),
    }  # fmt: skip


def model_of(name: str, data: Workload, dropout: float | None = None) -> nn.Module:
    """FuxiCTR's class, unmodified, with what BARS' configuration says. dropout: in place of its own."""
    from fuxictr.features import FeatureMap

    from benchmarks.arms.bars_engine import SHAPES

    sys.path.insert(0, str(source_of("fuxictr-zoo")))
    shape = SHAPES[name]
    dropout = shape.dropout if dropout is None else dropout
    features = FeatureMap("criteo_x1", tempfile.mkdtemp())
    features.features = OrderedDict(
        (f"I{n}", {"source": "", "type": "numeric"}) for n in range(data.num_dense)
    )
    for f, rows in enumerate(data.num_rows):
        features.features[f"C{f}"] = {"source": "", "type": "categorical", "vocab_size": rows}
    features.labels = ["label"]
    features.num_fields = features.get_num_fields()
    features.default_emb_dim = shape.dim
    features.total_features = data.num_dense + sum(data.num_rows)
    features.set_column_index()
    hidden = list(shape.hidden)
    deep = {"hidden_units": hidden, "hidden_activations": "relu", "net_dropout": dropout}
    towers = {"top_mlp_units": hidden, "bottom_mlp_units": hidden, "top_mlp_dropout": dropout}
    module = CLASSES[name]
    torch.manual_seed(0)
    model = getattr(import_module(f"model_zoo.{module}"), module.split(".")[-1])(
        features,
        embedding_dim=shape.dim,
        batch_norm=True,
        embedding_regularizer=shape.l2,
        learning_rate=shape.lr,
        optimizer="adam",
        loss="binary_crossentropy",
        metrics=["AUC", "logloss"],
        verbose=0,
        model_root=tempfile.mkdtemp(),
        **(towers if name == "dlrm" else deep),
    )
    model._max_gradient_norm = shape.clip_norm  # what its fit() sets
    return model


def columns_of(name: str, batch: Batch, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    dense = torch.from_numpy(np.ascontiguousarray(batch.dense.T)).to(dtype)
    if name == "dlrm":  # which takes them as [B, 1]
        dense = dense[:, :, None]
    columns = {f"I{n}": values for n, values in enumerate(dense)}
    columns |= {f"C{f}": ids for f, ids in enumerate(torch.from_numpy(batch.ids))}
    return columns | {"label": torch.from_numpy(batch.labels).to(dtype)}


# ---- equal loss curves


def check(name: str) -> dict[str, list[float]]:
    """Log losses of the batches of a small epoch: FuxiCTR in float64 and float32, accelerated in float64,
    and the engine, all from the same weights and without dropout."""
    data = [_scaled(batch) for batch in batches(SMALL, SMALL.batch_size)]
    first = model_of(name, SMALL, dropout=0.0).state_dict()
    for key, value in first.items():
        if "embedding_layers.C" in key:
            value.mul_(100)  # at 1e-4 the gradients of the pairs would be rounding alone
    curves = {
        "fuxictr, float64": _curve(name, first, data, torch.float64),
        "fuxictr, float32": _curve(name, first, data, torch.float32),
        "accelerate, float64": _curve(name, first, data, torch.float64, accelerates=True),
    }
    return curves | {"hotrows, float32": _curve_of_engine(name, first, data)}


def _curve(
    name: str, first: dict[str, Tensor], data: list[Batch], dtype: torch.dtype, accelerates: bool = False
) -> list[float]:
    model = model_of(name, SMALL, dropout=0.0)
    model.load_state_dict(first)
    model.to(dtype)
    model.compile("adam", "binary_crossentropy", 1e-3)
    if accelerates:
        import hotrows

        hotrows.accelerate(model, model.optimizer)
    losses: list[float] = []
    plain: Callable = model.add_loss

    def add_loss(*arguments: object) -> Tensor:
        loss = plain(*arguments)
        losses.append(float(loss))
        return loss

    model.add_loss = add_loss  # the task's loss, without the term over tables
    model.train()
    with precision(dtype):
        for batch in data:
            model.train_step(columns_of(name, batch, dtype))
    return losses


def _curve_of_engine(name: str, first: dict[str, Tensor], data: list[Batch]) -> list[float]:
    from benchmarks.arms import bars_engine

    shape = dataclasses.replace(bars_engine.SHAPES[name], dropout=0.0)
    settings = {"shuffle": False, "linear_paths": "plain", "plan_depth": 0}
    steps = bars_engine.trainer_of(shape, SMALL, {"train": data}, **settings)
    _copy_weights(first, steps)
    losses: list[float] = []
    plain = steps.recommender.loss

    def loss_of(output: object, batch: object) -> Tensor:
        own = output[1] if isinstance(output, tuple) else 0.0
        loss = plain(output, batch)
        losses.append(float(loss - own))
        return loss

    steps.recommender.loss = loss_of
    for work in steps.start():
        steps.train(work)
    return losses


@torch.no_grad()
def _copy_weights(first: dict[str, Tensor], steps: object) -> None:
    """Gives the engine's model and tables the weights of FuxiCTR's."""
    model, embedding = steps.model, steps.embedding
    of_linear = {key: value for key, value in first.items() if "lr_layer" in key}
    of_vectors = {
        key.rsplit(".", 2)[1]: value
        for key, value in first.items()
        if "embedding_layers" in key and key not in of_linear
    }
    linear = {key.rsplit(".", 2)[1]: value for key, value in of_linear.items() if "layers" in key}
    for store, pack in zip(embedding.stores, embedding.packs, strict=True):
        for t, table in enumerate(pack.tables):
            saved = linear if table.role == "linear" else of_vectors
            rows = slice(pack.first_rows[t], pack.first_rows[t + 1])
            store.views.weights[rows] = saved[table.name.removesuffix(".linear")].float()
    numeric = [f"I{n}" for n in range(SMALL.num_dense)]
    if hasattr(model, "numeric"):
        model.numeric.copy_(torch.stack([of_vectors[key][:, 0] for key in numeric]))
        model.linear.copy_(torch.cat([linear[key][:, 0] for key in numeric]))
    for mlp, prefixes in (("deep", ("mlp.", "dnn.", "top_mlp.")), ("bottom", ("bottom_mlp.",))):
        if hasattr(model, mlp):
            _copy_mlp(getattr(model, mlp), {k: v for k, v in first.items() if k.startswith(prefixes)})
    if hasattr(model, "bottom"):
        weight = model.deep.layers[0].weight
        weight.copy_(weight[:, _places_of_pairs(len(SMALL.num_rows), model.shape.dim)])


def _copy_mlp(mlp: nn.Module, saved: dict[str, Tensor]) -> None:
    weights = [value for key, value in saved.items() if key.endswith("weight")]
    linears = [weight for weight in weights if weight.dim() == 2]
    biases = {key.removesuffix("weight"): value for key, value in saved.items() if value.dim() == 2}
    for layer, weight, key in zip(mlp.layers, linears, biases, strict=True):
        layer.weight.copy_(weight)
        layer.bias.copy_(saved[f"{key}bias"])


def _places_of_pairs(num_vectors: int, dim: int) -> Tensor:
    """Where each input of our top layers is among FuxiCTR's: its pairs are i < j with the dense vector
    last, then that vector; ours the dense vector, then pairs with it first."""
    num = num_vectors + 1
    pairs = {pair: n for n, pair in enumerate((i, j) for i in range(num) for j in range(i + 1, num))}
    theirs = [num_vectors, *range(num_vectors)]  # our vectors by their numbers
    ours = [tuple(sorted((theirs[i], theirs[j]))) for i in range(num) for j in range(i)]
    places = [len(pairs) + d for d in range(dim)] + [pairs[pair] for pair in ours]
    return torch.tensor(places)


if __name__ == "__main__":
    main()
