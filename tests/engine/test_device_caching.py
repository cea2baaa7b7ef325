"""The master test on a device: behind a cache there, training has the bits of tables held whole.

On a pretended GPU whose lanes are late at random, so that whatever does not wait for what it needs
reads something else; and on a real one where there is one.
"""

import pytest
import torch

from hotrows import Adagrad, Adam, Embedding, RowWiseAdagrad
from hotrows.planning.policy import Lookahead, Newest
from hotrows.storage.cache import Cache
from tests.support import pretend
from tests.support.cached import (
    caching_of,
    records,
    same,
    stream,
    tables,
    train,
    train_behind_a_cache,
    train_plainly,
)
from tests.support.devices import KINDS, device_of
from tests.support.pretend_order import Race


def engine(device, caching=None, optimizer=None, dtype="float32"):
    return Embedding(tables(optimizer or Adagrad(lr=0.1), dtype), seed=3, caching=caching, device=device)


def losses_and_records(embedding, losses):
    return [loss.cpu() for loss in losses], [rows.cpu() for rows in records(embedding)]


def train_there(embedding, batches):
    return [
        train(embedding, step, *embedding.to_device(batch, embedding.plan(batch, step)))
        for step, batch in enumerate(batches)
    ]


@pytest.mark.pairs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache_transfer", ["zero_copy", "staged"])
@pytest.mark.parametrize("plan_depth", [0, 2])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_cache_on_the_device_changes_no_bit(kind, cache_transfer, plan_depth, share):
    with device_of(kind) as device:
        resident = engine(device)
        expected = losses_and_records(resident, train_there(resident, stream()))
        cached = engine(device, caching_of(share, cache_transfer=cache_transfer))
        trained = losses_and_records(cached, train_behind_a_cache(cached, stream(), plan_depth))
        assert same(trained[0], expected[0])
        assert same(trained[1], expected[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "optimizer", [RowWiseAdagrad(lr=0.1, weight_decay=0.01), Adam(lr=0.01, per_row_step=True)]
)
def test_nor_do_files_policies_or_a_warm_start(kind, optimizer, tmp_path):
    with device_of(kind, seed=1) as device:
        resident = engine(device, optimizer=optimizer)
        expected = losses_and_records(resident, train_there(resident, stream()))
        for name, policy, path in (("a", Newest(), None), ("b", Lookahead(2), tmp_path / "rows")):
            cached = engine(device, caching_of(0.2, policy, path=path), optimizer)
            trained = train_behind_a_cache(cached, stream(), warm=True)
            result = losses_and_records(cached, trained)
            cached.close()
            assert same(result[0], expected[0]) and same(result[1], expected[1]), name


def test_the_pretended_device_computes_what_the_host_does():
    with device_of("pretended") as device:
        on_gpu = engine(device)
        trained = losses_and_records(on_gpu, train_there(on_gpu, stream()))
    on_host = engine("cpu")
    losses, rows = losses_and_records(on_host, train_plainly(on_host, stream()))
    torch.testing.assert_close(torch.stack(trained[0]), torch.stack(losses))
    for a, b in zip(trained[1], rows, strict=True):
        torch.testing.assert_close(a.view(torch.float32), b.view(torch.float32))


@pytest.mark.parametrize(
    "missing",
    ["training waits", "moves wait", "writes wait for training", "plans are held", "rows are held"],
)
def test_what_is_left_out_is_noticed(missing, monkeypatch):
    """By the order that the pretended device keeps of waits and uses, whatever came first this time."""
    collect, write_back = Cache.collect, Cache.write_back
    launch = pretend.PretendDevice.launch
    left_out = {
        "training waits": ("hotrows.engine.stages._Stages.begin_training", lambda self, work: None),
        "moves wait": (
            "hotrows.storage.cache.Cache.collect",
            lambda self, moves, device_moves, after: collect(self, moves, device_moves, []),
        ),
        "writes wait for training": (
            "hotrows.storage.cache.Cache.write_back",
            lambda self, transfer, after=(): write_back(self, transfer),
        ),
        "plans are held": ("hotrows.storage.cache._blocks", lambda moves: []),
        "rows are held": (
            "tests.support.pretend.PretendDevice.launch",
            lambda self, lane, work, after=(), holds=(): launch(self, lane, work, after),
        ),
    }
    monkeypatch.setattr(*left_out[missing])
    with pytest.raises(Race), pretend.gpu() as device:
        cached = engine(device, caching_of(0.1))
        train_behind_a_cache(cached, stream(12))
