"""The line that names bfloat16: said in long runs that would gain from it, and nowhere else."""

import dataclasses
import logging

import pytest

from hotrows import data
from hotrows.schema import Dense, Schema, Sparse
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.telling import reports
from tests.support.clicks import table

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

CONFIG = TrainConfig(
    model="dnn", model_options={"hidden": [8]}, epochs=1, batch_size=20, linear_paths="plain"
)


@pytest.fixture
def enc(tmp_path):
    schema = Schema((Dense("price", transform="log"), Sparse("user")), "click")
    return data.prepare(table(200), schema, tmp_path / "enc", split="position:0.6,0.2,0.2")


def lines(enc, run, caplog, config=CONFIG):
    caplog.clear()
    with caplog.at_level(logging.INFO, "hotrows"):
        Trainer(enc, config, run).fit()
    return [message for message in caplog.messages if "--precision bfloat16" in message]


def test_a_long_run_that_would_gain_says_so_once(enc, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(reports, "bfloat16_rate", lambda: 8.0)
    monkeypatch.setattr(reports, "_RATE", 1.0)  # operations a second: all of a step is products
    assert not lines(enc, tmp_path / "short", caplog)
    monkeypatch.setattr(reports, "_LONG", 0.0)
    (line,) = lines(enc, tmp_path / "long", caplog)
    assert "(precision='bfloat16') would be about" in line
    faster = dataclasses.replace(CONFIG, precision="bfloat16")
    assert not lines(enc, tmp_path / "faster", caplog, faster)
    monkeypatch.setattr(reports, "_RATE", 1e20)
    assert not lines(enc, tmp_path / "quick", caplog)  # nothing of a step would be shorter


def test_the_gain_counts_what_is_no_product(monkeypatch, caplog):
    """Of a step of 1 s half is products, which take no time at all in bfloat16: twice as fast."""
    monkeypatch.setattr(reports, "products_per_sample", lambda model: 1)
    monkeypatch.setattr(reports.torch, "get_num_threads", lambda: 1)
    for share, rate, expected in ((0.5, 1e9, "2.0"), (0.4, 1e9, "1.7"), (0.3, 1e9, None), (0.8, 1, None)):
        monkeypatch.setattr(reports, "_RATE", 6 * CONFIG.batch_size / share)
        monkeypatch.setattr(reports, "bfloat16_rate", lambda rate=rate: rate)
        caplog.clear()
        with caplog.at_level(logging.INFO, "hotrows"):
            reports.advise_bfloat16(_steps(CONFIG), samples_per_second=20.0)
        assert (f"{expected} times" in caplog.text) if expected else not caplog.messages


def _steps(config):
    from types import SimpleNamespace as Of

    device = Of(on_host=True)
    return Of(
        config=config,
        recommender=Of(device=device),
        batches=Of(total_steps=1000, known_steps=1000),
        state=Of(step=10),
        model=None,
        ranks=Of(num_ranks=1),
    )
