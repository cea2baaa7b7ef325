"""The same command twice on one machine has the same bits, whatever is measured the second time."""

import dataclasses
import shutil

import pytest

from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.runtime import measurements
from hotrows.train import Trainer
from hotrows.train.costs import measure_machine, placement
from hotrows.train.costs.step_cost import Link, Machine
from tests.support.runs import CONFIG, SMALL, encode, same_bits

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")
SLOW = Machine("slow", 1e9, 1e9, 1e-6, 1e9, 1e6, 1e9, Link(1e-3, 1e5), ranks_per_node=2)
QUICK = dataclasses.replace(SLOW, name="quick", inner=Link(1e-9, 1e13))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_ranks_take_what_the_first_one_has_kept(tmp_path, monkeypatch):
    data = encode(tmp_path)
    options = {**SMALL, "dropout": 0.0}  # threads that are ranks draw from one generator
    config = dataclasses.replace(CONFIG, epochs=1, model_options=options)
    machines = {0: SLOW, 1: QUICK}
    monkeypatch.setattr(placement, "_LONG", 0)  # a run that is long enough to measure

    def train(run):
        def work(ranks):
            trainer = Trainer(data, config, tmp_path / run, ranks=ranks)
            trainer.fit()
            return trainer.steps.placing

        on_one, on_other = on_threads(work, 2)
        assert on_one == on_other
        return on_one.sharding

    monkeypatch.setattr(measure_machine, "measure_machine", lambda ranks: machines[ranks.rank])
    first = train("first")
    machines[0] = QUICK
    assert train("second") == first
    assert same_bits(tmp_path / "first", tmp_path / "second", random_state=False)

    shutil.rmtree(measurements.folder())
    assert train("third") != first, "both machines shard alike, so this test shows nothing"
