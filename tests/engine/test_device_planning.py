"""Plans made on the device are those of the host, and training on them has the same bits.

On a pretended GPU whose lanes are late at random, and on a real one where there is one.
"""

import logging
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from hotrows import Adagrad, Batch, Embedding, LazyAdam
from hotrows.batch import samples
from hotrows.engine import checkpoint
from hotrows.engine.caching import Caching
from hotrows.engine.planning.policy import Newest
from hotrows.engine.stages import start
from hotrows.table import Cross
from hotrows.train.config import TrainConfig
from hotrows.train.run.data import TrainingBatches
from tests.support import pretend
from tests.support.cached import records, same, stream, tables
from tests.support.cached import train as learn
from tests.support.devices import CONFIG, KINDS, assert_same, device_of, on_device
from tests.support.runs import encode


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("data"))


def engine(device, planning="device", **options):
    optimizer = options.pop("optimizer", Adagrad(lr=0.1))
    return Embedding(tables(optimizer), seed=3, device=device, planning=planning, **options)


def train_there(embedding, batches, plan_depth=2):
    """Losses, and the records afterwards."""
    losses = []
    with closing(start(embedding, enumerate(batches), plan_depth=plan_depth)) as runner:
        for step, work in enumerate(runner):
            losses.append(learn(embedding, step, work.item.batch, work.item.plan))
    return [loss.cpu() for loss in losses], [rows.cpu() for rows in records(embedding)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [1, 2])
def test_the_device_plans_what_the_host_plans(kind, parts):
    with device_of(kind) as device:
        embedding = engine(device, pack_parts=parts)
        for step, batch in enumerate(stream(size=40)):
            ahead = embedding.plan_ahead(batch, step)
            assert not ahead.packs
            sent = embedding.upload(batch, ahead)
            sent.check()
            plan = sent.value[1]
            expected = embedding.plan(batch, step).padded([()] * len(embedding.packs))
            assert (plan.step, plan.batch_size) == (step, batch.size)
            for one, other in zip(plan.packs, expected.packs, strict=True):
                for name in ("rows", "slots", "inverse", "order", "starts"):
                    assert torch.equal(getattr(one, name).cpu(), getattr(other, name)), name
                assert one.num_bags == other.num_bags
            # Packs that read the same rows share one plan.
            assert len({id(part) for part in plan.packs}) == len(embedding.groups)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan_depth", [0, 2])
@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1), LazyAdam(lr=0.01, per_row_step=True)])
def test_training_has_the_bits_of_host_planning(kind, plan_depth, optimizer):
    with device_of(kind) as device:
        by_host = train_there(engine(device, "host", optimizer=optimizer), stream())
        by_device = train_there(engine(device, optimizer=optimizer), stream(), plan_depth)
    assert same(by_device[0], by_host[0]) and same(by_device[1], by_host[1])


def test_the_host_waits_for_no_value():
    with pretend.gpu(pretend.random_delay(0)) as device:
        embedding = engine(device)
        with closing(start(embedding, enumerate(stream()))) as runner:
            for step, work in enumerate(runner):
                if step == 0:  # before it the features are copied that all batches have
                    pretend.waits.clear()
                learn(embedding, step, work.item.batch, work.item.plan)
        assert not pretend.waits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan_depth", [0, 2])
def test_an_id_outside_is_named_and_nothing_is_trained_for_it(kind, plan_depth):
    batches = stream()
    ids, size = batches[5].ids.clone(), batches[5].size
    ids[2 * size + 4] = -7  # of `shop`
    ids[1 * size + 6] = 300  # of `item`
    bad = replace(batches[5], ids=ids, first_sample=1000)
    with device_of(kind) as device:
        with pytest.raises(ValueError, match="outside|holds ids") as expected:
            engine(device, "host").plan(bad)
        embedding = engine(device)
        steps, coming = [], enumerate([*batches[:5], bad, *batches[6:]])
        with (
            pytest.raises(ValueError) as error,
            closing(start(embedding, coming, plan_depth=plan_depth)) as runner,
        ):
            for step, work in enumerate(runner):
                learn(embedding, step, work.item.batch, work.item.plan)
                steps.append(step)
        assert str(error.value) == str(expected.value)
        assert "in sample 1,00" in str(error.value)
        assert steps == [0, 1, 2, 3, 4, 5]
        assert all(torch.isfinite(rows.cpu().view(torch.float32)).all() for rows in records(embedding))


LISTS = Batch(
    ("user", "item", "shop", "last_item"), torch.tensor([1, 2, 3, 4, 1, 2, 5, 6]),
    torch.zeros(2, 2), offsets=torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8]),
)  # fmt: skip
SINGLE = samples(stream()[0], 0, 2)


@pytest.mark.parametrize(
    ("options", "batch", "reason"),
    [
        ({}, LISTS, "features are lists of ids"),
        ({}, replace(SINGLE, weights=torch.ones(8)), "ids have weights"),
        ({"micro_batches": 2}, SINGLE, "trained in micro-batches"),
        ({"crosses": [Cross(("user", "shop"), 50)]}, SINGLE, "crosses features"),
        ({"sequences": ["last_item"]}, SINGLE, "vectors of some features are not pooled"),
        ({"caching": Caching(4000, policy=Newest())}, SINGLE, "the policy"),
        ({"read_by": "increments (full_every)"}, SINGLE, "full_every"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_device_cannot_plan_the_host_plans_and_says_so_once(options, batch, reason, caplog):
    options = dict(options)
    reader = options.pop("read_by", None)
    with pretend.gpu() as device, caplog.at_level(logging.WARNING, "hotrows"):
        embedding = engine(device, **options)
        if reader:
            embedding.packed.changed.reader(reader)
        for step in range(2):
            plan = embedding.plan_ahead(batch, step)
            assert len(plan.packs) == len(embedding.packs)
    assert len(caplog.messages) == 1 and reason in caplog.messages[0]


CACHED = {"fast_memory": 1500}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"full_every": 2},
        CACHED,
        pytest.param(CACHED | {"full_every": 2}, marks=pytest.mark.slow),
        pytest.param(CACHED | {"micro_batches": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_run_planned_on_the_device_is_that_planned_on_the_host(encoded, tmp_path, settings):
    config = replace(CONFIG, device="cuda", **settings)
    on_device(encoded, config, tmp_path / "host")
    on_device(encoded, replace(config, planning="device"), tmp_path / "device")
    assert_same(tmp_path / "host", tmp_path / "device")


def test_a_captured_step_replays_such_plans(encoded, tmp_path, monkeypatch):
    captured, capture = [], pretend.PretendDevice.capture
    monkeypatch.setattr(
        pretend.PretendDevice,
        "capture",
        lambda *arguments: captured.append(arguments) or capture(*arguments),
    )
    on_device(encoded, CONFIG, tmp_path / "host")
    config = replace(CONFIG, device="cuda", planning="device", cuda_graph=True)
    on_device(encoded, config, tmp_path / "device")
    assert len(captured) == 1
    assert_same(tmp_path / "host", tmp_path / "device")


@pytest.mark.parametrize("plan_depth", [0, 2])
def test_an_id_outside_ends_a_run_with_its_name(encoded, tmp_path, monkeypatch, plan_depth):
    batches, trained = TrainingBatches.after, []

    def with_a_bad_one(training, state):
        for step, batch in batches(training, state):
            if step == training.total_steps - 1:
                batch.ids[0] = -1
            trained.append(step + 1)
            yield step, batch

    monkeypatch.setattr(TrainingBatches, "after", with_a_bad_one)
    config = replace(CONFIG, device="cuda", planning="device", plan_depth=plan_depth)
    with pytest.raises(ValueError, match="has id -1 in sample"):
        on_device(encoded, config, tmp_path / "run")
    steps = int(checkpoint.pointed(tmp_path / "run").last.rpartition("-")[2])
    assert steps < trained[-1]  # the last batch had it, and nothing is saved of that one


def test_without_a_device_there_is_none_to_plan_on():
    with pytest.raises(ValueError, match="needs device='cuda'"):
        TrainConfig(planning="device")
