"""The same command twice on one machine has the same bits, whatever is measured the second time."""

import dataclasses
import shutil

import pytest

from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.models.nn import linear_paths, products
from hotrows.runtime import measurements
from hotrows.train import Trainer
from hotrows.train.costs import measure_machine, placement
from hotrows.train.costs.step_cost import Link, Machine
from hotrows.train.run.folder import read_json
from tests.support.runs import CONFIG, SMALL, encode, same_bits

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")
SLOW = Machine("slow", 1e9, 1e9, 1e-6, 1e9, 1e6, 1e9, Link(1e-3, 1e5), ranks_per_node=2)
QUICK = dataclasses.replace(SLOW, name="quick", inner=Link(1e-9, 1e13))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def fastest(monkeypatch):
    """Makes a path of the weight gradient the fastest one of a measurement: fastest("chunked")."""

    def choose(name):
        path = products.WEIGHT_GRADIENT[name]
        monkeypatch.setattr(linear_paths, "_time", lambda run: 0.0 if run.func is path else 1.0)

    return choose


def chosen(run):
    return {path for key, path in read_json(run / "choices.json").items() if "weight" in key}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_second_run_takes_the_paths_that_the_first_one_measured(tmp_path, fastest, hotrows, precision):
    encode(tmp_path)

    def train(run):
        own = ["--model", "deepfm", "--option", "hidden=[16]", "--option", "dim=4", "--seed", 3]
        more = ["--batch-size", 64, "--linear-paths", "measured", "--precision", precision]
        told = hotrows("train", tmp_path / "enc", *own, *more, "--run", tmp_path / run)
        assert told.code == 0
        return " ".join(told.err.split())

    fastest("chunked")
    assert "linear paths: measured, and kept in" in train("first")
    fastest("torch")
    said = train("second")
    assert "linear paths: as measured on" in said and "linear paths: measured" not in said
    assert chosen(tmp_path / "first") == chosen(tmp_path / "second") == {"chunked"}
    assert same_bits(tmp_path / "first", tmp_path / "second")

    measurements.forget()
    train("third")
    assert chosen(tmp_path / "third") == {"torch"}
    if precision == "float32":
        assert not same_bits(tmp_path / "first", tmp_path / "third"), "paths are no matter of bits here"


def test_ranks_take_what_the_first_one_has_kept(tmp_path, fastest, monkeypatch):
    data = encode(tmp_path)
    options = {**SMALL, "dropout": 0.0}  # threads that are ranks draw from one generator
    config = dataclasses.replace(CONFIG, linear_paths="measured", epochs=1, model_options=options)
    machines = {0: SLOW, 1: QUICK}
    monkeypatch.setattr(placement, "_LONG", 0)  # a run that is long enough to measure

    def train(run):
        def work(ranks):
            trainer = Trainer(data, config, tmp_path / run, ranks=ranks)
            trainer.fit()
            return trainer.steps.placing, trainer.steps.choices

        on_one, on_other = on_threads(work, 2)
        assert on_one == on_other
        return on_one[0].sharding

    monkeypatch.setattr(measure_machine, "measure_machine", lambda ranks: machines[ranks.rank])
    fastest("chunked")
    first = train("first")
    machines[0] = QUICK
    fastest("torch")
    assert train("second") == first
    assert same_bits(tmp_path / "first", tmp_path / "second", random_state=False)

    shutil.rmtree(measurements.folder())
    assert train("third") != first, "both machines shard alike, so this test shows nothing"
