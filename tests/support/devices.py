"""Devices that tests train on, pretended or real, and runs on them."""

import dataclasses
from contextlib import contextmanager, nullcontext

import pytest
import torch

from hotrows.optim import Adagrad
from hotrows.runtime.device import Cuda
from hotrows.train import Trainer, load_run
from hotrows.train.config import TrainConfig
from tests.support import pretend


@contextmanager
def device_of(kind, seed=0):
    if kind == "real":
        yield Cuda()
    else:
        with pretend.gpu(pretend.random_delay(seed)) as device:
            yield device


KINDS = ["pretended", pytest.param("real", marks=pytest.mark.gpu)]

CONFIG = TrainConfig(
    model="deepfm",
    model_options={"dim": 4, "hidden": [8], "dropout": 0.0},
    epochs=1,
    batch_size=128,
    row_optimizer=Adagrad(lr=0.1),
    seed=3,
    linear_paths="plain",
    cuda_graph=False,
)


def on_device(encoded, config, run, kind="pretended", **options):
    with pretend.gpu() if kind == "pretended" else nullcontext() as device:
        result = Trainer(encoded, dataclasses.replace(config, device="cuda"), run, **options).fit()
    return result, device


def weights(run):
    predictor = load_run(run, "last")
    tables = {t.name: predictor.embedding.weights(t.name).clone() for t in predictor.embedding.tables}
    return {**tables, **predictor.model.state_dict()}


def assert_same(a, b, error=0.0):
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=error, atol=error)
