"""Tuning: what is taken on machines whose windows vary, and what is measured on this one."""

import dataclasses
import json
import random
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

from hotrows import Adagrad, Caching, Embedding
from hotrows.data import prepare
from hotrows.engine import stages
from hotrows.engine.distributed.comm import OneRank
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.tools.tuning.benchmark import Comparison, PairedBenchmark, TimedTraining
from hotrows.tools.tuning.tune import (
    Decision,
    TunedSetting,
    confirm,
    coordinate_descent,
    settings_to_tune,
    tune,
    verdict,
)
from hotrows.train.config import TrainConfig
from hotrows.train.loop.step_trainer import StepTrainer
from tests.support.embeddings import loss_of, mixed_tables, single_batch
from tests.support.runs import CONFIG, schema, write_rows
from tests.support.sharded import whole_weights

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

DEFAULTS = TrainConfig(fast_memory=1 << 20, micro_batches=1)
SETTINGS = (
    TunedSetting("micro_batches", (1, 2, 4, 8), "rounding"),
    TunedSetting("plan_depth", (0, 1, 2, 4, 8), "no bit"),
    TunedSetting("in_flight", (1, 2, 4, 8, 16), "no bit"),
    TunedSetting("policy", ("lookahead", "lru", "frequency"), "no bit", ordered=False),
)


class FakeMachine:
    """A machine whose windows vary: each by itself, each opening by a luck of its own, and all by drift.

    speed: what a configuration would make on a quiet machine.
    """

    def __init__(self, speed, seed=0, window=0.0, opening=0.0, drift=0.0):
        self.speed, self.random = speed, random.Random(seed)
        self.window, self.opening, self.drift = window, opening, drift
        self.weather = 1.0
        self.compared = []

    def compare(self, before, after, num_pairs, after_first=False):
        self.compared.append(after)
        luck = [self.random.lognormvariate(0, self.opening) for _ in (before, after)]
        comparison = Comparison((), ())
        while len(comparison.before) < num_pairs and not comparison.is_lost(num_pairs):
            speeds = [self._window(config, luck[n]) for n, config in enumerate((before, after))]
            comparison = Comparison((*comparison.before, speeds[0]), (*comparison.after, speeds[1]))
        return comparison

    def _window(self, config, luck):
        self.weather *= self.random.lognormvariate(0, self.drift)
        noise = self.random.lognormvariate(0, self.window)
        return self.speed(config) * luck * noise * self.weather


def table_of_speeds(seed, spread):
    """The speed of any configuration: the product of a factor for each value of each knob."""
    draw = random.Random(seed)
    factors = {
        (knob.name, value): draw.lognormvariate(0, spread) for knob in SETTINGS for value in knob.values
    }

    def speed(config):
        product = 10_000.0
        for knob in SETTINGS:
            product *= factors[knob.name, getattr(config, knob.name)]
        return product

    return speed


def chosen_on(machine):
    chosen, _, _ = coordinate_descent(machine, DEFAULTS, SETTINGS)
    return chosen if chosen == DEFAULTS else confirm(machine, DEFAULTS, chosen)[0]


@pytest.mark.parametrize("spread", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_what_is_chosen_is_never_slower_than_the_defaults_beyond_noise(spread, noise):
    """100 machines each; where the median alone decides, some settings are 6 % slower."""
    for seed in range(100):
        speed = table_of_speeds(seed, spread)
        machine = FakeMachine(speed, seed, window=noise, opening=0.02, drift=0.02)
        assert speed(chosen_on(machine)) > 0.98 * speed(DEFAULTS)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_a_clear_winner_is_found_and_the_rest_stays(noise):
    def speed(config):
        return 10_000 * (1.3 if config.in_flight >= 8 else 1.0) * 0.8 ** (config.micro_batches - 1)

    configs = [chosen_on(FakeMachine(speed, seed, window=noise)) for seed in range(50)]
    assert sum(config.in_flight >= 8 for config in configs) == 50
    assert sum(config.micro_batches == 1 for config in configs) == 50


def test_on_a_quiet_machine_the_best_of_every_knob_is_found_where_speeds_have_one_peak():
    best = {"micro_batches": 4, "plan_depth": 1, "in_flight": 16, "policy": "frequency"}

    def speed(config):
        product = 1000.0
        for knob in SETTINGS:
            value = knob.values.index(getattr(config, knob.name))
            product *= 0.9 ** abs(value - knob.values.index(best[knob.name]))
        return product

    chosen = chosen_on(FakeMachine(speed))
    assert {name: getattr(chosen, name) for name in best} == best


def test_a_knob_is_turned_on_while_it_wins_and_back_only_where_it_never_won():
    machine = FakeMachine(lambda config: 1000.0 * min(config.in_flight, 8))
    chosen, decisions, _ = coordinate_descent(machine, DEFAULTS, SETTINGS[2:3])
    assert [(decision.before, decision.after, decision.taken) for decision in decisions] == [
        (4, 8, True),
        (8, 16, False),
    ]
    assert chosen.in_flight == 8
    machine = FakeMachine(lambda config: 1000.0 / config.in_flight)
    _, decisions, _ = coordinate_descent(machine, DEFAULTS, SETTINGS[2:3])
    assert [decision.after for decision in decisions] == [8, 2, 1]


def test_what_won_by_the_luck_of_one_opening_is_not_taken():
    """Tables that lie better in memory make a trial faster as long as it is open."""

    class Lucky(FakeMachine):
        def compare(self, before, after, num_pairs, after_first=False):
            comparison = super().compare(before, after, num_pairs)
            faster = 1.2 if after not in self.compared[:-1] else 1.0
            return Comparison(comparison.before, tuple(faster * rate for rate in comparison.after))

    chosen, decisions, _ = coordinate_descent(
        Lucky(lambda config: 1000.0, window=0.001), DEFAULTS, SETTINGS
    )
    assert chosen == DEFAULTS
    assert {verdict(decision) for decision in decisions} == {"won, but not once more"}


def test_together_no_faster_than_the_defaults_means_the_defaults():
    first = dataclasses.replace(DEFAULTS, in_flight=8)
    machine = FakeMachine(lambda config: 1000.0, window=0.01)
    chosen, final = confirm(machine, DEFAULTS, first)
    assert chosen == DEFAULTS
    assert not final.wins


def test_what_is_refused_is_noted_and_left():
    class Refuses(FakeMachine):
        def compare(self, before, after, num_pairs, after_first=False):
            raise ValueError("fast memory must hold a row of every group")

    chosen, decisions, _ = coordinate_descent(Refuses(lambda config: 1.0), DEFAULTS, SETTINGS[:1])
    assert chosen == DEFAULTS
    assert verdict(decisions[0]) == "refused: fast memory must hold a row of every group"


def test_when_it_is_late_the_knobs_that_are_left_are_named():
    machine = FakeMachine(lambda config: 1.0)
    _, decisions, skipped = coordinate_descent(
        machine, DEFAULTS, SETTINGS, is_late=lambda: len(machine.compared) > 2
    )
    assert len(decisions) == 3
    assert skipped == ("in_flight", "policy")


def test_a_win_is_a_median_over_two_percent_with_the_lower_quartile_over_one():
    base = (100.0,) * 5
    steady = Comparison(base, (103.0, 102.5, 104.0, 103.0, 102.9))
    assert steady.wins and steady.ratio == pytest.approx(1.03)
    assert not Comparison(base, (101.9,) * 5).wins
    wild = Comparison(base, (130.0, 90.0, 120.0, 95.0, 110.0))
    assert wild.ratio == pytest.approx(1.1)
    assert wild.quartiles == pytest.approx((0.95, 1.2))
    assert not wild.wins
    assert verdict(Decision(SETTINGS[0], 1, 2, wild)) == "no difference beyond noise"
    assert verdict(Decision(SETTINGS[0], 1, 2, Comparison(base, (90.0,) * 5))) == "slower"
    small = Comparison(base, (101.0,) * 5)
    assert verdict(Decision(SETTINGS[0], 1, 2, small)) == "too small a gain"


@pytest.mark.parametrize("num_pairs", [5, 7, 11])
def test_a_comparison_ends_early_only_where_it_could_not_be_won(num_pairs):
    for lost in range(num_pairs + 1):
        so_far = Comparison((1.0,) * lost, (0.999,) * lost)
        best = Comparison((1.0,) * num_pairs, (0.999,) * lost + (9.0,) * (num_pairs - lost))
        if so_far.is_lost(num_pairs):
            assert not best.wins
    assert Comparison((1.0,) * 4, (0.9,) * 4).is_lost(num_pairs)


# ---- on this machine


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    raw = write_rows(folder / "raw.csv", 1200)
    return prepare([raw], schema(), folder / "enc", split="position:0.6,0.2,0.2")


SMALL = dataclasses.replace(CONFIG, batch_size=16, epochs=1)
CACHED = dataclasses.replace(SMALL, fast_memory=40 * 40, in_flight=2)


@pytest.fixture
def slow_unless(monkeypatch):
    """Makes every step slow, unless the configuration is one that the test likes."""

    def install(likes, seconds=0.004):
        train = StepTrainer.train

        def slow(self, work, scale=1.0):
            loss = train(self, work, scale)
            time.sleep(seconds / 10 if likes(self.config) else seconds)
            return loss

        monkeypatch.setattr(StepTrainer, "train", slow)

    return install


@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.pairs), 2])
def test_the_faster_of_two_is_told_and_every_rank_is_told_the_same(encoded, slow_unless, num_ranks):
    slow_unless(lambda config: config.plan_depth == 4, seconds=0.1)  # longer than a busy machine's steps

    def work(ranks):
        with PairedBenchmark(encoded, ranks, window_seconds=0.2) as benchmark:
            other = dataclasses.replace(SMALL, plan_depth=4)
            return benchmark.compare(SMALL, other, 5), benchmark.compare(other, SMALL, 5)

    comparisons = on_threads(work, num_ranks) if num_ranks > 1 else [work(OneRank())]
    assert len(set(comparisons)) == 1
    wins, loses = comparisons[0]
    assert wins.wins and wins.ratio > 1.3
    assert not loses.wins
    assert len(loses.before) < 5  # more windows would be a waste


@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.pairs), 2])
def test_tuning_takes_what_is_faster(encoded, slow_unless, monkeypatch, num_ranks):
    slow_unless(lambda config: config.plan_depth == 4, seconds=0.03)  # longer than a busy machine's steps
    monkeypatch.setattr(
        "hotrows.tools.tuning.tune.time", SimpleNamespace(perf_counter=lambda: 0.0)
    )  # no limit

    def work(ranks):
        fixed = ("linear_paths", "micro_batches", "pack_parts", "sharding")
        return tune(encoded, SMALL, seconds=4, fixed=fixed, ranks=ranks)

    for tuned in on_threads(work, num_ranks) if num_ranks > 1 else [work(OneRank())]:
        assert tuned.changes == {"plan_depth": 4}
        assert tuned.final.wins
        assert {decision.setting.name for decision in tuned.decisions} == {"plan_depth"}
        assert json.loads(json.dumps(tuned.to_json()))["changes"] == {"plan_depth": 4}


@pytest.mark.few(2)
@pytest.mark.parametrize("plan_depth", [0, 2])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_caches_and_stores_are_measured_and_nothing_is_left(encoded, tmp_path, num_ranks, plan_depth):
    config = dataclasses.replace(CACHED, store=f"file:{tmp_path / 'tables'}", plan_depth=plan_depth)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "kept").write_text("of another run")

    def work(ranks):
        with PairedBenchmark(encoded, ranks, window_seconds=0.01, warm_up_seconds=0.2) as benchmark:
            return benchmark.compare(config, dataclasses.replace(config, in_flight=4), 4)

    before = torch.get_rng_state()
    for result in on_threads(work, num_ranks) if num_ranks > 1 else [work(OneRank())]:
        assert min(*result.before, *result.after) > 0
        assert result.filled > 0.9
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["kept"]
    if num_ranks == 1:
        assert torch.equal(torch.get_rng_state(), before)


def test_full_logs_are_closed_and_merged_as_in_a_run(encoded, tmp_path, monkeypatch):
    monkeypatch.setattr("hotrows.engine.storage.file_store._log_rows", lambda form, log_rows: 10)
    config = dataclasses.replace(CACHED, store=f"file:{tmp_path / 'tables'}")
    training = TimedTraining(encoded, config, OneRank(), {})
    try:
        training.warm_up(0.2)
        training.window(0.2)
        assert training.last.rows_in > 0 and training.last.processor_seconds > 0
        for store in training.steps.cached_tables.files:
            assert store.generations, "no log was closed"
            assert len(store._logs) == 1, "while training is paused, nothing is merged"
    finally:
        training.close()


def test_where_memory_holds_one_they_are_opened_in_turn(encoded, monkeypatch):
    monkeypatch.setattr("hotrows.tools.tuning.benchmark.available_memory", lambda: 1)
    opened = []
    begin = TimedTraining.__init__

    def noting(self, data, config, *others):
        opened.append(config.plan_depth)
        begin(self, data, config, *others)

    monkeypatch.setattr(TimedTraining, "__init__", noting)
    with PairedBenchmark(encoded, window_seconds=0.01) as benchmark:
        comparison = benchmark.compare(SMALL, dataclasses.replace(SMALL, plan_depth=1), 2)
        assert len(benchmark._open) == 1
    assert len(comparison.before) == 2
    assert opened == [2, 1, 2]  # the second pair begins with the one that is open


def test_what_cannot_be_opened_is_refused_and_the_rest_goes_on(encoded):
    with PairedBenchmark(encoded, window_seconds=0.01) as benchmark:
        with pytest.raises(ValueError, match="fast memory must hold a row of every group"):
            benchmark.compare(CACHED, dataclasses.replace(CACHED, fast_memory=1), 2)
        assert len(benchmark.compare(CACHED, SMALL, 2).before) == 2


def knobs(encoded, config, may_change=(), ranks=None):
    with PairedBenchmark(encoded, ranks) as benchmark:
        return {
            knob.name: knob for knob in settings_to_tune(config, benchmark.opened(config), may_change)
        }


def test_only_what_applies_and_what_may_change_is_tried(encoded):
    assert list(knobs(encoded, SMALL)) == ["micro_batches", "pack_parts", "plan_depth"]
    tried = knobs(encoded, CACHED, ("precision", "batch_size"))
    assert tried["batch_size"].values == (4, 8, 16, 32, 64)
    assert tried["precision"].changes == "results"
    assert tried["in_flight"].values == (1, 2, 4, 8, 16)
    assert tried["policy"].values == ("lookahead", "lru", "frequency")


def test_micro_batches_change_results_where_layers_read_statistics_of_the_batch(encoded):
    config = dataclasses.replace(SMALL, model_options={"batch_norm": True, "hidden": [8]})
    assert "micro_batches" not in knobs(encoded, config)
    assert knobs(encoded, config, ("micro_batches",))["micro_batches"].changes == "results"


def test_between_ranks_sharding_and_wire_are_tried(encoded):
    tried = on_threads(lambda ranks: knobs(encoded, SMALL, ("wire_dtype",), ranks), 2)
    assert tried[0] == tried[1]  # values in the same order
    kinds = tried[0]["sharding"].values
    assert kinds[0] == "auto"
    assert 3 <= len(kinds) <= 5  # what auto comes to need not be tried again
    assert set(kinds[1:]) <= {"rows", "tables", "columns", "replicated"}
    assert tried[0]["wire_dtype"].values == ("float32", "bfloat16", "float16")


def test_wrong_names_and_times_are_refused(encoded):
    with pytest.raises(ValueError, match=r"any of precision, .*, not 'seed'"):
        tune(encoded, SMALL, may_change=["seed"])
    with pytest.raises(ValueError, match="seconds must be above 0, not 0"):
        tune(encoded, SMALL, seconds=0)


@pytest.mark.parametrize("split", ["rows", "even"])
def test_the_split_of_fast_memory_changes_slots_and_no_bit(split):
    batches = [single_batch(24) for _ in range(12)]
    results = []
    for memory_split in ("reads", split):
        caching = Caching(fast_memory=4000, memory_split=memory_split)
        embedding = Embedding(mixed_tables(Adagrad(lr=0.05)), seed=3, caching=caching)
        with closing(stages.start(embedding, enumerate(batches))) as runner:
            for work in runner:
                vectors = embedding.lookup(work.item.plan)
                loss_of(vectors, work.item.batch.first_sample).backward()
                embedding.update(work.item.plan, vectors)
        slots = [group.cache.num_slots for group in embedding.cached_tables.groups]
        results.append((slots, whole_weights([embedding])))
    (slots, weights), (other_slots, others) = results
    assert slots != other_slots
    for name, values in weights.items():
        assert torch.equal(values, others[name])


def test_a_split_of_another_name_is_refused():
    with pytest.raises(ValueError, match="memory_split must be one of reads, rows, even, not 'x'"):
        TrainConfig(memory_split="x")
    with pytest.raises(ValueError, match="memory_split must be one of reads, rows, even, not 'x'"):
        Caching(fast_memory=4000, memory_split="x")
