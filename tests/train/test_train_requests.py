"""Runs on data that has once what rows of a request share: beside its expanded twin, and resumed."""

import dataclasses

import pytest

from hotrows.data import prepare
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.optim import SGD, Adagrad
from hotrows.train import Trainer, load_run
from hotrows.train.config import TrainConfig
from tests.support.requests import PLAIN, SCHEMA, file_of, rows_of

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")
CONFIG = TrainConfig(
    model="din",
    model_options={"dim": 4, "attention": [8], "hidden": [8]},
    epochs=2,
    batch_size=64,
    row_optimizer=Adagrad(lr=0.1),
    checkpoint_every=3,
    linear_paths="plain",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same rows with requests, and without."""
    folder = tmp_path_factory.mktemp("data")
    path, split = file_of(folder, rows_of(90, candidates=0)), "position:0.7,0.15,0.15"
    return [
        prepare(path, one, folder / name, split=split)
        for one, name in ((SCHEMA, "once"), (PLAIN, "plain"))
    ]


def test_a_run_behind_a_cache_is_that_on_the_expanded_rows(data, tmp_path):
    once, plain = data
    config = dataclasses.replace(CONFIG, shuffle=False, row_optimizer=SGD(lr=0.1))
    cached = dataclasses.replace(config, fast_memory=6_000)
    ours = Trainer(once, cached, tmp_path / "once").fit()
    expected = Trainer(plain, config, tmp_path / "plain").fit()
    for name in ("auc", "gauc", "log_loss"):
        assert getattr(ours.test, name) == pytest.approx(getattr(expected.test, name), abs=1e-5), name
    assert load_run(tmp_path / "once").evaluate(once.parts["test"]).auc == ours.test.auc


@pytest.mark.slow
def test_two_ranks_train_as_one(data, tmp_path):
    config = dataclasses.replace(CONFIG, epochs=1)
    alone = Trainer(data[0], config, tmp_path / "one").fit()
    both = on_threads(lambda ranks: Trainer(data[0], config, tmp_path / "two", ranks=ranks).fit(), 2)
    assert both[0].test.log_loss == pytest.approx(alone.test.log_loss, abs=1e-4)
