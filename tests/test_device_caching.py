"""The master test on a device: behind a cache there, training has the bits of tables held whole.

On a pretended GPU whose lanes are late at random, so that whatever does not wait for what it needs
reads something else; and on a real one where there is one.
"""

from contextlib import contextmanager

import pytest
import torch

from hotrows import Adagrad, Adam, Embedding, RowWiseAdagrad
from hotrows.device import Cuda
from hotrows.planning.policy import Lookahead, Newest
from hotrows.storage.device_cache import DeviceCache
from tests import pretend
from tests.pretend_order import Race
from tests.test_caching import (
    caching_of,
    records,
    same,
    stream,
    tables,
    train,
    train_behind_a_cache,
    train_plainly,
)


@contextmanager
def device_of(kind, seed=0):
    if kind == "real":
        yield Cuda()
    else:
        with pretend.gpu(pretend.random_delay(seed)) as device:
            yield device


KINDS = ["pretended", pytest.param("real", marks=pytest.mark.gpu)]


def engine(device, caching=None, optimizer=None, dtype="float32"):
    return Embedding(
        tables(optimizer or Adagrad(lr=0.1), dtype), seed=3, caching=caching, device=device
    )


def losses_and_records(embedding, losses):
    found = [of.cpu() for of in records(embedding)]
    return [loss.cpu() for loss in losses], found


def train_there(embedding, batches):
    return [
        train(embedding, step, *embedding.here(batch, embedding.plan(batch, step)))
        for step, batch in enumerate(batches)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["direct", "staged"])
@pytest.mark.parametrize("plan_depth", [0, 2])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_cache_on_the_device_changes_no_bit(kind, way, plan_depth, share):
    with device_of(kind) as device:
        whole = engine(device)
        expected = losses_and_records(whole, train_there(whole, stream()))
        cached = engine(device, caching_of(share, way=way))
        found = losses_and_records(cached, train_behind_a_cache(cached, stream(), plan_depth))
        assert same(found[0], expected[0])
        assert same(found[1], expected[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "optimizer", [RowWiseAdagrad(lr=0.1, weight_decay=0.01), Adam(lr=0.01, per_row_step=True)]
)
def test_nor_do_files_policies_or_a_warm_start(kind, optimizer, tmp_path):
    with device_of(kind, seed=1) as device:
        whole = engine(device, optimizer=optimizer)
        expected = losses_and_records(whole, train_there(whole, stream()))
        for name, policy, path in (("a", Newest(), None), ("b", Lookahead(2), tmp_path / "rows")):
            cached = engine(device, caching_of(0.2, policy, path=path), optimizer)
            trained = train_behind_a_cache(cached, stream(), warm=True)
            found = losses_and_records(cached, trained)
            cached.close()
            assert same(found[0], expected[0]) and same(found[1], expected[1]), name


def test_the_pretended_device_computes_what_the_host_does():
    with device_of("pretended") as device:
        there = engine(device)
        found = losses_and_records(there, train_there(there, stream()))
    here = engine("cpu")
    losses, rows = losses_and_records(here, train_plainly(here, stream()))
    torch.testing.assert_close(torch.stack(found[0]), torch.stack(losses))
    for a, b in zip(found[1], rows, strict=True):
        torch.testing.assert_close(a.view(torch.float32), b.view(torch.float32))


@pytest.mark.parametrize(
    "missing",
    ["training waits", "moves wait", "writes wait for training", "plans are held", "rows are held"],
)
def test_what_is_left_out_is_noticed(missing, monkeypatch):
    """By the order that the pretended device keeps of waits and uses, whatever came first this time."""
    depart, leave = DeviceCache.depart, DeviceCache.leave
    launch = pretend.PretendDevice.launch
    left_out = {
        "training waits": ("hotrows.stages._OnDevice.begin", lambda self, work: None),
        "moves wait": (
            "hotrows.storage.device_cache.DeviceCache.depart",
            lambda self, moves, here, after: depart(self, moves, here, []),
        ),
        "writes wait for training": (
            "hotrows.storage.device_cache.DeviceCache.leave",
            lambda self, journey, after=(): leave(self, journey),
        ),
        "plans are held": ("hotrows.storage.device_cache._blocks", lambda here: []),
        "rows are held": (
            "tests.pretend.PretendDevice.launch",
            lambda self, lane, work, after=(), holds=(): launch(self, lane, work, after),
        ),
    }
    monkeypatch.setattr(*left_out[missing])
    with pytest.raises(Race), pretend.gpu() as device:
        cached = engine(device, caching_of(0.1))
        train_behind_a_cache(cached, stream(12))
