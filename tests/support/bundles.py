"""Bundles to test: runs of small models on clicks with histories, exported, and raw rows for them."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pyarrow as pa

from hotrows.optim import Adagrad
from hotrows.runtime.atomic_files import replaced
from hotrows.serving import programs
from hotrows.serving.export import program
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from tests.support.clicks import table

SMALL = {
    "lr": {},
    "fm": {"dim": 4},
    "dlrm": {"dim": 4, "bottom": [8], "top": [8]},
    "wide_deep": {"dim": 4, "hidden": [8], "crosses": [["user", "item"]], "cross_rows": 50},
    "deepfm": {
        "dim": 4,
        "hidden": [8],
        "crosses": [["user", "item"]],
        "cross_rows": 50,
        "effects": [["user"], ["user", "item"]],
        "effect_folds": ["user", "item"],
    },
    "din": {"dim": 4, "attention": [8], "hidden": [8]},
    "dien": {"dim": 4, "form": "code", "attention": [8], "hidden": [8]},
    "hstu": {"dim": 4, "layers": 1, "hidden": [8]},
    "can": {"dim": 4, "sizes": [4, 3, 2], "orders": 2, "hidden": [8]},
    "tbsm": {"dim": 4, "top": [8, 4], "length": 4, "attention": [4], "hidden": [8]},
    "mmoe": {"dim": 4, "num_experts": 2, "expert_hidden": [8], "tower_hidden": [8]},
    "ple": {"dim": 4, "num_levels": 2, "expert_hidden": [8], "tower_hidden": [8]},
}


def trained(encoded, run, model, **options):
    """A run of a few steps, whose logits are far from 0."""
    config = TrainConfig(
        model=model,
        model_options=SMALL.get(model, {"dim": 4, "hidden": [8]}) | options,
        steps=8,
        batch_size=32,
        row_optimizer=Adagrad(lr=0.1),
        dense_lr=0.05,
        seed=3,
        linear_paths="plain",
    )
    with mock.patch("hotrows.train.telling.pictures.draw_run", lambda run: None):
        Trainer(encoded, config, run).fit()
    return run


def raw_rows(rows, seed=5):
    """Rows with values that training never saw, empty lists, and all that may be missing missing."""
    random = np.random.default_rng(seed)
    features = ["price", "user", "item", "tags", "history"]
    columns = table(rows, seed).select(features).to_pydict()
    for name, odd in {"price": [None], "user": [None, 10**6], "item": [None, -3]}.items():
        columns[name] = [
            odd[random.integers(len(odd))] if random.random() < 0.15 else value for value in columns[name]
        ]
    for name in ("tags", "history"):
        columns[name] = [
            [None, [], [*value, 10**6, None]][random.integers(3)] if random.random() < 0.15 else value
            for value in columns[name]
        ]
    lists = pa.list_(pa.int64())
    types = {"price": pa.float64(), "tags": lists, "history": lists}
    return pa.table({n: pa.array(column, types.get(n, pa.int64())) for n, column in columns.items()})


def expected_logits(predictor, rows):
    return np.concatenate([z.numpy() for _, z in predictor.logits(predictor.encoder.encode(rows))])


def furthest(logits, expected):
    """The largest difference of logits, relative to those above 1."""
    return float((np.abs(logits - expected) / np.maximum(np.abs(expected), 1)).max())


class KnownProgram:
    """An ONNX file that was made before, with the parameters of another model of its kind."""

    def __init__(self, content, plain):
        tensors = dict([*plain.named_parameters(), *plain.named_buffers()])
        self._content, self._values = content, {n: t.detach().numpy() for n, t in tensors.items()}

    def SerializeToString(self):
        return programs.replaced(self._content, self._values)


@contextmanager
def known_program(path):
    """Makes the ONNX program of one model once, into a file, and then only replaces its parameters."""

    def onnx_program(plain, _):
        of_kind = path.with_suffix(f".{type(plain).__name__}.onnx")
        if not of_kind.exists():
            made = program.onnx_program(plain, program.torch_program(plain)).SerializeToString()
            with replaced(of_kind) as part:
                part.write_bytes(made)
        return KnownProgram(of_kind.read_bytes(), plain)

    with (
        mock.patch("hotrows.serving.export.bundles.torch_program", lambda plain: None),
        mock.patch("hotrows.serving.export.bundles.onnx_program", onnx_program),
    ):
        yield
