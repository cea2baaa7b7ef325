"""The line that names bfloat16: said in long runs that would gain from it, and nowhere else."""

import dataclasses
import logging

import pytest

from hotrows import data
from hotrows.models import nn
from hotrows.models.nn import linear_paths
from hotrows.runtime import measurements
from hotrows.schema import Dense, Schema, Sparse
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.telling import reports
from tests.support.clicks import table

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

CONFIG = TrainConfig(
    model="dnn", model_options={"hidden": [8]}, epochs=1, batch_size=20, linear_paths="plain"
)
SLOW, QUICK = {"float32": 3600.0, "bfloat16": 1800.0}, {"float32": 1e-9, "bfloat16": 1e-9}


@pytest.fixture(autouse=True)
def no_measurements(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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
    monkeypatch.setattr(linear_paths, "_seconds_by_format", lambda model, size: SLOW)
    assert not lines(enc, tmp_path / "short", caplog)
    monkeypatch.setattr(reports, "_LONG", 0.0)
    (line,) = lines(enc, tmp_path / "long", caplog)
    assert "(precision='bfloat16') would be about" in line
    faster = dataclasses.replace(CONFIG, precision="bfloat16")
    assert not lines(enc, tmp_path / "faster", caplog, faster)
    measurements.forget()
    monkeypatch.setattr(linear_paths, "_seconds_by_format", lambda model, size: QUICK)
    assert not lines(enc, tmp_path / "quick", caplog)  # nothing of a step would be shorter


def test_formats_are_measured_once_and_scaled_to_the_step(monkeypatch):
    model = nn.MLP((40, 64, 64, 1))
    monkeypatch.setattr(linear_paths, "_MOST_PRODUCTS", 1 << 22)  # of 614 samples
    kept = linear_paths.kept_seconds_by_format(model, 4096)
    assert kept["float32"] > 0 and kept["bfloat16"] > 0
    monkeypatch.setattr(linear_paths, "_seconds_by_format", lambda model, size: 1 / 0)
    assert linear_paths.kept_seconds_by_format(model, 4096) == kept
    twice = linear_paths.kept_seconds_by_format(model, 8192)
    assert twice["float32"] == pytest.approx(2 * kept["float32"])


def test_a_format_that_takes_long_is_measured_once_for_each_layer(monkeypatch):
    timed = []
    monkeypatch.setattr(linear_paths, "_time", lambda run: timed.append(run) or 0.2)
    kept = linear_paths.kept_seconds_by_format(nn.MLP((4, 8, 1)), 256)
    assert len(timed) == 2 * 2  # layers, formats
    assert kept == {"float32": pytest.approx(0.4), "bfloat16": pytest.approx(0.4)}


def test_the_gain_counts_what_is_no_product(monkeypatch, caplog):
    """Of a step of 1 s half is products, which take no time at all in bfloat16: twice as fast."""
    gains = {0.5: "2.0 times", 0.4: "1.7 times", 0.3: None}
    for share, expected in gains.items():
        seconds = {"float32": share, "bfloat16": 0.0}
        monkeypatch.setattr(reports, "kept_seconds_by_format", lambda model, size, s=seconds: s)
        monkeypatch.setattr(reports, "products_per_sample", lambda model: 1)
        caplog.clear()
        with caplog.at_level(logging.INFO, "hotrows"):
            reports.advise_bfloat16(_steps(CONFIG), samples_per_second=20.0)
        assert (expected in caplog.text) if expected else not caplog.messages


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
