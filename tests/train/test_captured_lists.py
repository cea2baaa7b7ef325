"""Steps on lists of ids as CUDA graphs, on the pretended GPU: a few sizes, each with a graph of its own.

Lists are padded to one of these sizes wherever a step could be captured, so that captured or launched
steps have equal bits.
"""

import dataclasses

import pytest
import torch

from hotrows import data, nn
from hotrows.batch import Batch
from hotrows.config import TrainConfig
from hotrows.engine.embedding import Embedding
from hotrows.models.din import DIN
from hotrows.optim import Adagrad
from hotrows.plan import padded_size
from hotrows.schema import Dense, Schema, Sequence, Sparse
from hotrows.table import Table
from hotrows.train import Trainer, cuda_graph
from hotrows.train.cuda_graph import CapturedStep
from tests.support import pretend
from tests.support.clicks import SCHEMA, table
from tests.support.devices import assert_same, on_device
from tests.train.test_step import Captures

pytestmark = pytest.mark.usefixtures("no_pictures")

CONFIG = TrainConfig(
    model="din", model_options={"dim": 4, "hidden": [8]}, label="click", batch_size=64, epochs=2, seed=3,
    row_optimizer=Adagrad(lr=0.1), linear_paths="plain", warmup_steps=5, dense_lr=0.0123, device="cuda",
)  # fmt: skip
MODELS = {
    "din-paper": ("din", {"form": "paper"}),
    "din-code": ("din", {"form": "code"}),
    "dien-paper": ("dien", {}),
    "dien-code": ("dien", {"form": "code"}),
    "can": ("can", {}),
    "can-dien": ("can", {"base": "dien"}),
    "deepfm": ("deepfm", {}),
}


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return data.prepare(table(), SCHEMA, tmp_path_factory.mktemp("data"), split="position:0.8,0.1,0.1")


def config_of(name, **settings):
    model, options = MODELS[name]
    options = {"dim": 4, "hidden": [8], **options}
    return dataclasses.replace(CONFIG, model=model, model_options=options, **settings)


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_run_on_lists_has_the_bits_of_one_that_is_not(encoded, tmp_path, name, monkeypatch):
    captures = Captures()
    on_device(encoded, config_of(name, cuda_graph=False), tmp_path / "launched")
    monkeypatch.setattr(pretend.PretendDevice, "capture", pretend.PretendDevice.capture)  # and back
    captures.of(pretend.PretendDevice)
    on_device(encoded, config_of(name, cuda_graph=True), tmp_path / "captured")
    assert_same(tmp_path / "launched", tmp_path / "captured")
    assert 1 + (name != "deepfm") <= len(captures.launched) <= 8 and sum(captures.launched) > 8
