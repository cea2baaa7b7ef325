"""Steps on lists of ids as CUDA graphs, on the pretended GPU: a few sizes, each with a graph of its own.

Lists are padded to one of these sizes wherever a step could be captured, so that captured or launched
steps have equal bits.
"""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import torch

from hotrows import data, ops
from hotrows.models.din import DIN
from hotrows.ops.plan import PackPlan, padded_size
from hotrows.optim import Adagrad
from hotrows.schema import Schema, Sequence, Sparse
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.loop import cuda_graph
from tests.support import pretend
from tests.support.captures import Captures
from tests.support.clicks import SCHEMA, table
from tests.support.devices import assert_same, on_device

pytestmark = pytest.mark.usefixtures("no_pictures")

CONFIG = TrainConfig(
    model="din", model_options={"dim": 4, "hidden": [8]}, label="click", batch_size=64, epochs=2, seed=3,
    row_optimizer=Adagrad(lr=0.1), linear_paths="plain", warmup_steps=5, dense_lr=0.0123, device="cuda",
)  # fmt: skip
MODELS = {  # of four in eight, each layer is in one
    "din-code": ("din", {"form": "code"}),
    "din-paper": ("din", {"form": "paper"}),
    "can-dien": ("can", {"base": "dien"}),
    "dien-paper": ("dien", {}),
    "dien-code": ("dien", {"form": "code"}),
    "hstu": ("hstu", {}),
    "can": ("can", {}),
    "deepfm": ("deepfm", {}),
}


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return data.prepare(table(), SCHEMA, tmp_path_factory.mktemp("data"), split="position:0.8,0.1,0.1")


def config_of(name, **settings):
    model, options = MODELS[name]
    options = {"dim": 4, "hidden": [8], **options}
    return dataclasses.replace(CONFIG, model=model, model_options=options, **settings)


@pytest.fixture
def captures(monkeypatch):
    monkeypatch.setattr(pretend.PretendDevice, "capture", pretend.PretendDevice.capture)  # and back
    counted = Captures()
    counted.of(pretend.PretendDevice)
    return counted


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_captured_run_on_lists_has_the_bits_of_one_that_is_not(encoded, tmp_path, name, captures):
    on_device(encoded, config_of(name, cuda_graph=False), tmp_path / "launched")
    assert not captures.launched
    on_device(encoded, config_of(name, cuda_graph=True), tmp_path / "captured")
    assert_same(tmp_path / "launched", tmp_path / "captured")
    assert 1 + (name != "deepfm") <= len(captures.launched) <= 8 and sum(captures.launched) > 8


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_on_a_real_device_a_captured_run_on_lists_has_the_bits_of_its_steps(encoded, tmp_path, name):
    on_device(encoded, config_of(name, cuda_graph=False), tmp_path / "launched", "real")
    on_device(encoded, config_of(name, cuda_graph=True), tmp_path / "captured", "real")
    assert_same(tmp_path / "launched", tmp_path / "captured")


def histories(lengths, others=None):
    """Rows with a history of items and one of shops, of these lengths."""
    random, num = np.random.default_rng(0), len(lengths)
    others = lengths if others is None else others
    columns = {name: random.integers(9, size=num) for name in ("item", "shop")}
    lists = {
        "items": [random.integers(9, size=n).tolist() for n in lengths],
        "shops": [random.integers(9, size=n).tolist() for n in others],
    }
    kind = pa.list_(pa.int64())
    return pa.table(
        {"click": random.integers(2, size=num), **columns}
        | {name: pa.array(values, kind) for name, values in lists.items()}
    )


def prepared(rows, folder):
    features = (
        *(Sparse("item"), Sparse("shop")),
        *(Sequence("items", vocabulary="item"), Sequence("shops", vocabulary="shop")),
    )
    schema = Schema(features, label="click")
    return data.prepare(rows, schema, folder / "enc", split="position:0.9,0,0.1")


JOINED = {"dim": 4, "hidden": [8], "form": "paper", "histories": [["items", "shops"]]}


def test_of_more_sizes_those_met_most_often_have_graphs(tmp_path, monkeypatch, captures):
    """With room for one graph, another size takes the place of the first once it is twice as frequent."""
    lengths = np.full((16, 32), 2)
    lengths[:4] = 1  # of 15 batches, the last of which is smaller
    encoded = prepared(histories(lengths.flatten()), tmp_path)
    config = dataclasses.replace(CONFIG, model_options=JOINED, batch_size=32, shuffle=False, epochs=1)
    on_device(encoded, dataclasses.replace(config, cuda_graph=False), tmp_path / "launched")
    monkeypatch.setattr(cuda_graph, "_MOST", 1)
    on_device(encoded, config, tmp_path / "captured")
    assert captures.launched == [1, 3]
    assert_same(tmp_path / "launched", tmp_path / "captured")


def test_batches_without_a_history_and_sizes_never_met_before(tmp_path, captures):
    """Of 12 batches two have no element at all, one has a single one, and one is of another size."""
    lengths = np.random.default_rng(1).integers(4, size=(14, 32))
    lengths[[2, 9]] = 0
    lengths[5], lengths[5, 7] = 0, 1
    lengths[11] *= 7
    encoded = prepared(histories(lengths.flatten()), tmp_path)
    config = dataclasses.replace(CONFIG, model_options=JOINED, batch_size=32, shuffle=False)
    on_device(encoded, dataclasses.replace(config, cuda_graph=False), tmp_path / "launched")
    on_device(encoded, config, tmp_path / "captured")
    assert_same(tmp_path / "launched", tmp_path / "captured")
    assert sum(captures.launched) > 4


def test_lists_of_a_history_that_differ_are_told_when_steps_are_captured_too(tmp_path, captures):
    """The host compares them in a forward pass, of which a graph has no part."""
    lengths = np.full((12, 32), 2)
    others = lengths.copy()
    others[9, 4:6] = 1, 3  # in the same number of elements
    encoded = prepared(histories(lengths.flatten(), others.flatten()), tmp_path)
    config = dataclasses.replace(
        CONFIG, model_options=JOINED, batch_size=32, shuffle=False, epochs=1, evaluate_every=99
    )
    with pytest.raises(ValueError, match=r"'items' and 'shops' of one history differ in length"):
        on_device(encoded, config, tmp_path / "run")
    assert sum(captures.launched) > 2


def test_an_interrupted_captured_run_on_lists_goes_on_to_the_same_bits(encoded, tmp_path):
    config = config_of("dien-paper", checkpoint_every=9, epochs=1, fast_memory=4000)

    def stop(progress):
        if progress.stage == "train" and progress.done == 11:
            raise RuntimeError("stopped")

    on_device(encoded, config, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped"):
        on_device(encoded, config, tmp_path / "parts", progress=stop)
    on_device(encoded, config, tmp_path / "parts", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


class OfAllElements(DIN):
    """A model of a user's own that reads all vectors of a sequence, whoever they belong to."""

    takes_padding = False

    def forward(self, vectors, dense):
        values, offsets = vectors.sequence("history")
        assert int(offsets[-1]) == len(values)
        return super().forward(vectors, dense)


def test_sequences_are_padded_for_models_alone_that_say_so(encoded, tmp_path, caplog, captures):
    config = dataclasses.replace(CONFIG, epochs=1)
    with pretend.gpu(), caplog.at_level("INFO", "hotrows"):
        Trainer(encoded, config, tmp_path / "open", model=OfAllElements).fit()
        with pytest.raises(ValueError, match="cuda_graph: sequences .* OfAllElements .* takes_padding"):
            wanted = dataclasses.replace(config, cuda_graph=True)
            Trainer(encoded, wanted, tmp_path / "wanted", model=OfAllElements)
    assert not captures.launched
    assert "launched kernel by kernel (sequences of batches differ in size" in caplog.text


def test_a_layer_that_follows_lengths_on_the_host_is_never_in_a_graph(tmp_path, caplog, captures):
    encoded = prepared(histories([2] * 320), tmp_path)
    options = {"dim": 132, "hidden": [8], "histories": ["items"]}
    config = dataclasses.replace(CONFIG, model="dien", model_options=options, epochs=1)
    on_device(encoded, config, tmp_path / "run")
    assert "cannot be captured as a CUDA graph (states wider than 128 follow lengths" in caplog.text
    assert sum(captures.launched) == 0


def test_sizes_of_lists_are_near_and_few():
    assert [padded_size(n) for n in (0, 1, 7, 8, 9, 16, 17, 1000, 1025)] == [
        *(0, 1, 7, 8, 10, 16, 20, 1024, 1280)
    ]
    sizes = {padded_size(n) for n in range(1, 200_000)}
    assert all(n <= padded_size(n) <= 1.25 * n for n in range(1, 5000)) and len(sizes) < 70


def test_a_padded_plan_has_empty_bags_behind_each_sequence():
    """Two samples with a list that is pooled and two sequences, of nine and of one element."""
    rows = torch.tensor([5, 5, 6, *range(9), 7])
    distinct, inverse, order, runs = ops.unique(rows)
    bag_starts = torch.tensor([0, 2, *range(3, 14)], dtype=torch.int32)
    bags = torch.tensor([0, 0, *range(1, 12)], dtype=torch.int32)
    starts = {"a": torch.tensor([0, 4, 9]), "b": torch.tensor([0, 1, 1])}
    plan = PackPlan(distinct, distinct, inverse, order, runs, 12, bag_starts, bags, None, starts)
    padded = plan.padded(["a", "b"])
    assert padded.sequence_sizes == (10, 1) and padded.num_bags == 2 + 10 + 1
    assert padded.bag_starts.tolist() == [0, 2, *range(3, 12), 12, 12, 13]
    assert padded.bags.tolist() == [0, 0, *range(1, 11), 12, 0]
    assert padded.inverse[:13].equal(inverse) and len(padded.inverse) == len(padded.rows) == 3 + 10 + 1
    assert padded.starts.tolist() == [*runs.tolist(), *[13] * (14 - len(distinct))]
