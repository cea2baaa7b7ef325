"""A captured step does what the step does, from memory that the next batch is copied into.

Without a CUDA device the capture is a function that runs again on the same tensors: what must be
right here is what is copied where, and what the host remembers.
"""

import dataclasses
from itertools import islice

import pytest
import torch

from hotrows import data
from hotrows.engine import stages
from hotrows.optim import SGD, LazyAdam
from hotrows.train.config import TrainConfig
from hotrows.train.loop.cuda_graph import CapturedStep
from hotrows.train.loop.recommender import Recommender
from hotrows.train.loop.step import Step, dense_optimizer
from hotrows.train.start.defaults import settle
from tests.support import pretend
from tests.support.captures import Captures
from tests.support.runs import schema, write_rows

CONFIG = TrainConfig(
    model="deepfm", model_options={"dim": 4, "hidden": [8]}, batch_size=64, row_optimizer=LazyAdam(),
    device="cuda", cuda_graph=True, clip_norm=1.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    raw = write_rows(folder / "raw.csv", rows=700)
    return data.prepare([raw], schema(), folder / "enc", split="position:0.95,0,0.05")


def trained(encoded, config, captures=None, scales=(1.0, 0.5)):
    """Losses, rows and parameters after one epoch; every step has another learning rate."""
    with pretend.gpu() as device:
        if captures is not None:
            captures.of(device)
        config = settle(config, encoded)
        predictor = Recommender(config, encoded.schema)
        step = Step(predictor, dense_optimizer(config, predictor.model, is_captured=True), config)
        run = step if captures is None else CapturedStep(step)
        batches = enumerate(data.Loader(encoded.parts["train"], 64, shuffle=True, seed=0).batches(0))
        works = stages.start(predictor.embedding, batches, padded=captures is not None)
        losses = []
        for work in works:
            scale = scales[work.number % len(scales)]
            losses.append(run(work.item.plan, work.item.batch, scale).item())
        works.close()
        embedding = predictor.embedding
        if embedding.cached_tables:
            embedding.cached_tables.flush()
        rows = [embedding.weights(table.name).clone() for table in embedding.tables]
        return losses, rows + [of.detach().cpu() for of in predictor.model.parameters()]


@pytest.mark.parametrize(
    "settings",
    [{}, {"fast_memory": 1 << 14}, {"row_optimizer": SGD(), "dense_optimizer": "sgd"}],
    ids=["whole", "cache", "sgd"],
)
def test_a_captured_step_is_the_step(encoded, settings):
    config = dataclasses.replace(CONFIG, **settings)
    captures = Captures()
    losses, values = trained(encoded, config, captures)
    plain_losses, plain_values = trained(encoded, config)
    assert losses == plain_losses
    for value, plain in zip(values, plain_values, strict=True):
        torch.testing.assert_close(value, plain, rtol=0, atol=0)
    whole, rest = divmod(encoded.parts["train"].rows, 64)
    # Three steps as ever, then one graph; the last batch is smaller, and its form is met once.
    assert rest and captures.launched == [whole - 3]


def test_batches_that_differ_in_size_are_stepped_through(encoded, caplog):
    captures = Captures()
    trained(encoded, dataclasses.replace(CONFIG, micro_batches=2), captures)
    assert captures.launched == []
    assert "differ in size" in caplog.text


def test_a_graph_needs_a_device():
    with pytest.raises(ValueError, match="needs device='cuda'"):
        dataclasses.replace(CONFIG, device="cpu")


def test_padding_a_plan_changes_no_bit(encoded):
    config = settle(dataclasses.replace(CONFIG, cuda_graph=False), encoded)
    with pretend.gpu():
        found = []
        for padded in (False, True):
            embedding = Recommender(config, encoded.schema).embedding
            for step, batch in islice(
                enumerate(data.Loader(encoded.parts["train"], 64, shuffle=True, seed=0).batches(0)), 4
            ):
                sent = embedding.upload(batch, embedding.plan(batch, step), padded)
                embedding.device.wait(sent.mark, sent.blocks)
                _, plan = sent.value
                vectors = embedding.lookup(plan)
                sum(leaf.sin().sum() for leaf in vectors.leaves).backward()
                embedding.update(plan, vectors)
            found.append([embedding.weights(table.name).clone() for table in embedding.tables])
    for plain, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, plain, rtol=0, atol=0)


def test_more_rows_than_fit_are_stepped_through(encoded):
    config, captures = dataclasses.replace(CONFIG, fast_memory=1500), Captures()
    losses, values = trained(encoded, config, captures)
    plain_losses, plain_values = trained(encoded, config)
    assert captures.launched == [] and losses == plain_losses
    for value, plain in zip(values, plain_values, strict=True):
        torch.testing.assert_close(value, plain, rtol=0, atol=0)
