"""Runs on regrouped data: each row once an epoch, no batch mixed, the bits of plain training in that
order, whatever interrupts them."""

import contextlib
import dataclasses
import itertools
import random

import pytest
import torch
from torch.nn import functional

from hotrows import optim
from hotrows.batch import Batch
from hotrows.data import profile, regroup, write_encoded
from hotrows.data.hot_cold.profile import row_bytes
from hotrows.engine import checkpoint
from hotrows.engine.distributed.comm import OneRank
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.models import nn
from hotrows.schema import Dense, Schema, Sparse
from hotrows.tools.tuning.benchmark import PairedBenchmark
from hotrows.train import Callback, Interrupted, Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.loop.blocks import batches_of
from hotrows.train.loop.recommender import Recommender
from hotrows.train.loop.step import Step
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.metrics import Metrics
from hotrows.train.run.state import RunState
from hotrows.train.start.defaults import settle
from tests.support.runs import assert_same_run, interrupt_after, weights_of

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

IDS, HOT_IDS = 60, 10  # of either feature
NUM_HOT, NUM_COLD = 320, 270  # training rows: 20 and 17 batches
RECORD = 40  # bytes of an id in the tables of both roles, state included
CONFIG = TrainConfig(
    model="deepfm",
    model_options={"dim": 4, "hidden": [16], "dropout": 0.1},
    epochs=2,
    batch_size=16,
    row_optimizer=optim.Adagrad(lr=0.1),
    seed=3,
    in_flight=2,
    decay_patience=None,
    linear_paths="plain",
)
SEQUENTIAL = dataclasses.replace(CONFIG, hot_cold="sequential", epochs=1)


def rows(number, seed):
    """Rows that tell their number; `number[n]` is n's where n is all-hot, and -n - 1 where it is not."""
    random = torch.Generator().manual_seed(seed)
    hot = torch.randint(0, HOT_IDS, (2, len(number)), generator=random)
    cold = torch.randint(HOT_IDS, IDS, (2, len(number)), generator=random)
    ids = torch.where(number >= 0, hot, cold)
    chance = (ids[0] * 0.05 - ids[1] * 0.03).sigmoid()
    labels = (torch.rand(len(number), generator=random) < chance).float()
    return Batch(("a", "b"), ids.flatten(), number.float()[:, None] / 512, labels)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The data as it came, and regrouped."""
    folder = tmp_path_factory.mktemp("data")
    schema = Schema((Dense("number"), Sparse("a", rows=IDS), Sparse("b", rows=IDS)), name="tiny")
    number = torch.cat([torch.arange(NUM_HOT), -1 - torch.arange(NUM_COLD)])
    number = number[torch.randperm(len(number), generator=torch.Generator().manual_seed(0))]
    parts = {"train": [rows(number, 1)], "validation": [rows(number[:96], 2)]}
    plain = write_encoded(folder / "enc", schema, {**parts, "test": [rows(number[:64], 3)]})
    tables = Recommender(CONFIG, schema).embedding.tables
    bytes_ = row_bytes(tables, schema, CONFIG.row_optimizer)
    assert bytes_ == {"a": RECORD, "b": RECORD}
    found = profile(plain, bytes_per_row=bytes_, fast_memory=2 * HOT_IDS * RECORD, sample=0.5)
    return plain, regroup(plain, found, folder / "hot")


MORE_STOPS = [pytest.param(step, marks=pytest.mark.slow) for step in (3, 5, 7, 11, 13, 15, 17, 21, 23)]


class Stop(Callback):
    """Ends the run after a step, as the last rank says."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer, progress):
        if trainer.state.step == self.step and trainer.ranks.rank == trainer.ranks.num_ranks - 1:
            trainer.stop()


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("step", [1, 9, 10, 19, *MORE_STOPS])
def test_a_stop_ends_the_run_wherever_a_block_ends(data, tmp_path, step, num_ranks):
    def work(ranks):
        config = dataclasses.replace(CONFIG, plan_depth=0)
        return Trainer(data[1], config, tmp_path / "run", ranks=ranks).fit(callbacks=[Stop(step)])

    results = on_threads(work, num_ranks)
    assert {result.steps for result in results} <= {step, step + 1}
    assert all(result.stopped_early for result in results)


@pytest.fixture
def steps(monkeypatch):
    """What `Step` is given from now on: plans and batches."""
    given, step = [], Step.__call__
    monkeypatch.setattr(Step, "__call__", lambda *a: given.append(a[1:3]) or step(*a))
    return given


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Runs with everything in memory, by `hot_cold`."""
    runs = tmp_path_factory.mktemp("runs")
    configs = {"scheduled": CONFIG, "sequential": SEQUENTIAL}
    return {
        name: (runs / name, Trainer(data[1], config, runs / name).fit())
        for name, config in configs.items()
    }


def kinds(steps):
    """`h` or `c` of each batch; none is mixed."""
    hot = [set((batch.ids < HOT_IDS).tolist()) for _, batch in steps]
    assert all(len(kind) == 1 for kind in hot)
    return "".join("h" if kind == {True} else "c" for kind in hot)


def blocks(steps):
    """Batches of each run of one kind: hhhcc hc -> [3, 2, 1, 1]."""
    return [len(list(same)) for _, same in itertools.groupby(kinds(steps))]


def behind_a_cache(config, policy, num_rows, store="memory"):
    fast_memory = num_rows * RECORD
    return dataclasses.replace(config, policy=policy, fast_memory=fast_memory, store=store)


# ---- the order


@pytest.mark.parametrize("config", [CONFIG, SEQUENTIAL], ids=["scheduled", "sequential"])
@pytest.mark.parametrize("slots", [None, 24])
def test_each_row_comes_once_an_epoch_and_no_batch_is_mixed(data, steps, tmp_path, config, slots):
    if slots:
        config = behind_a_cache(config, "lookahead", slots)
    Trainer(data[1], config, tmp_path / "run").fit()
    assert len(steps) == 37 * config.epochs
    kinds(steps)
    for epoch in range(config.epochs):
        batches = [batch for _, batch in steps[37 * epoch : 37 * (epoch + 1)]]
        numbers = torch.cat([batch.dense[:, 0] for batch in batches]).mul(512).sort().values
        assert torch.equal(numbers, torch.arange(-NUM_COLD, NUM_HOT).float())


def test_sequential_trains_cold_batches_then_hot_ones_without_an_evaluation(
    data, steps, tmp_path, monkeypatch
):
    evaluated, evaluate = [], Trainer.evaluate
    monkeypatch.setattr(Trainer, "evaluate", lambda *a: evaluated.append(a[1]) or evaluate(*a))
    config = dataclasses.replace(SEQUENTIAL, epochs=2, evaluate_every=1000)
    Trainer(data[1], config, tmp_path / "run").fit()
    assert blocks(steps) == [17, 20, 17, 20]
    assert evaluated == ["validation", "test"]  # both at the end


def test_a_run_has_the_bits_of_a_plain_loop_over_its_batches(data, steps, tmp_path):
    config = behind_a_cache(CONFIG, "hot", 48)
    Trainer(data[1], config, tmp_path / "run").fit()
    config = settle(dataclasses.replace(CONFIG, fast_memory=None), data[1])
    predictor = Recommender(config, data[1].schema)
    predictor.begin_at(data[1].label_means())
    nn.use_linear_paths(predictor.model, {})
    model, embedding = predictor.model, predictor.embedding
    optimizer = torch.optim.Adam(model.parameters(), lr=config.dense_lr, fused=True)
    torch.set_rng_state(predictor.random.states[0])
    for step, (_, batch) in enumerate(steps):
        plan = embedding.plan(batch, step)
        vectors = embedding.lookup(plan)
        logits = model(vectors, batch.dense)
        functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
        embedding.update(plan, vectors)
        optimizer.step()
        optimizer.zero_grad()
    expected = [embedding.weights(table.name) for table in embedding.tables]
    expected += model.state_dict().values()
    assert all(map(torch.equal, weights_of(tmp_path / "run"), expected))


@pytest.mark.few(5)
@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize("policy", ["hot", "lookahead", "lru"])
@pytest.mark.parametrize("slots, hot_cold", [(24, "sequential"), (80, "scheduled")])
def test_a_run_behind_a_cache_has_the_bits_of_one_in_memory(
    data, whole, tmp_path, store, policy, slots, hot_cold
):
    """The second block of 80 slots once trained unpinned rows: the first had said it was the last."""
    config = CONFIG if hot_cold == "scheduled" else SEQUENTIAL
    path = f"file:{tmp_path / 'store'}" if store == "file" else "memory"
    config = behind_a_cache(config, policy, slots, path)
    result = Trainer(data[1], config, tmp_path / "run").fit()
    assert_same_run(tmp_path / "run", result, whole[hot_cold])


# ---- interruptions


@pytest.mark.parametrize(
    "policy, hot_cold", [(None, "scheduled"), ("hot", "scheduled"), ("lookahead", "sequential")]
)
def test_an_interrupted_run_goes_on_to_the_same_bits(data, whole, tmp_path, policy, hot_cold):
    config = CONFIG if hot_cold == "scheduled" else SEQUENTIAL
    if policy:
        config = behind_a_cache(config, policy, 30, f"file:{tmp_path / 'store'}")
    run, calls, result = tmp_path / "run", random.Random(1), None
    while result is None:
        progress = interrupt_after(calls.randint(10, 60))
        trainer = Trainer(data[1], config, run, resume=run.exists(), progress=progress)
        with contextlib.suppress(Interrupted):
            result = trainer.fit()
    assert_same_run(run, result, whole[hot_cold])
    assert trainer.state == last_state(whole[hot_cold][0])


def last_state(run):
    return RunState.from_json(checkpoint.read_state(checkpoint.folder_of(run, "last")))


def test_ctrl_c_while_the_rate_is_set_forgets_no_evaluation(data, tmp_path):
    """The run was saved between blocks with the rate of the block before, and went on with it."""
    config = dataclasses.replace(CONFIG, evaluate_every=1000)
    states = []
    for name, calls in (("a", None), ("b", 20)):  # the 20th call comes from the first block's end
        run = tmp_path / name
        progress = interrupt_after(calls) if calls else None
        try:
            Trainer(data[1], config, run, progress=progress).fit()
        except Interrupted:
            Trainer(data[1], config, run, resume=True).fit()
        states.append(last_state(run))
    assert states[0] == states[1]
    assert states[0].position["rate"]["last_loss"] is not None


# ---- the rate


def fake_losses(losses):
    """Evaluations with these losses, then the last of them for ever."""
    left = list(losses)

    def evaluate(*_):
        loss = left.pop(0) if len(left) > 1 else left[0]
        return Metrics(10, 0.5, loss, 0.5, 0.5, 1.0, 0.0)

    return evaluate


def test_the_rate_halves_when_the_loss_rises_and_doubles_when_it_fell_four_times(data, steps, tmp_path):
    config = dataclasses.replace(CONFIG, epochs=3, evaluate_every=1000, stop_patience=None)
    trainer = Trainer(data[1], config, tmp_path / "run")
    trainer.fit(evaluate=fake_losses([0.6, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]))
    halves, quarters = [10, 9, 10, 8], [5, 5, 5, 5, 5, 5, 5, 2]
    assert blocks(steps) == halves + quarters + halves
    assert trainer.state.position["rate"]["percent"] == 50


def test_a_block_arrives_once_the_rate_is_set(data):
    batches = batches_of(data[1], settle(CONFIG, data[1]), OneRank())
    batches.waits = True
    state = batches.first_state()
    coming = batches.after(state)
    for step in range(19):  # 10 hot and 9 cold ones
        assert batches.has_arrived() and next(coming)[0] == step
        state = batches.advance(state)
    assert not batches.has_arrived()
    batches.arrive(dataclasses.replace(state, position={**state.position, "rate": {"percent": 25}}))
    for step in range(19, 29):  # 5 of either kind
        assert batches.has_arrived() and next(coming)[0] == step
    assert not batches.has_arrived()


def test_one_runner_trains_all_blocks(data, tmp_path, monkeypatch):
    """Each block once had stages of its own, which ended with it."""
    started, start = [], StepTrainer.start
    monkeypatch.setattr(StepTrainer, "start", lambda *a: started.append(a) or start(*a))
    Trainer(data[1], behind_a_cache(CONFIG, "lookahead", 80), tmp_path / "run").fit()
    assert len(started) == 1


def test_without_a_validation_part_blocks_keep_their_length(data, steps, tmp_path):
    parts = {**data[1].parts, "validation": dataclasses.replace(data[1].parts["test"], shards=())}
    Trainer(dataclasses.replace(data[1], parts=parts), CONFIG, tmp_path / "run").fit()
    assert blocks(steps) == [10, 9, 10, 8] * 2


def test_steps_may_end_a_run_within_a_block_and_lengthen_it_later(data, whole, tmp_path):
    run = tmp_path / "run"
    config = dataclasses.replace(CONFIG, evaluate_every=1000)
    for steps in (4, 19, 30, 74):
        config = dataclasses.replace(config, steps=steps)
        result = Trainer(data[1], config, run, resume=run.exists()).fit()
    pairs = zip(weights_of(run), weights_of(whole["scheduled"][0]), strict=True)
    assert result.steps == 74 and all(torch.equal(a, b) for a, b in pairs)


# ---- the policy `hot`


def test_an_all_hot_batch_moves_no_row(data, steps, tmp_path):
    trainer = Trainer(data[1], behind_a_cache(CONFIG, "hot", 80), tmp_path / "run")
    trainer.fit()
    moved = zip(kinds(steps), (trainer.cached_tables.traffic(plan) for plan, _ in steps), strict=True)
    by_kind = {"h": [], "c": []}
    for kind, of in moved:
        by_kind[kind].append(of)
    assert all((m.rows_in, m.bytes_in, m.bytes_out) == (0, 0, 0) for m in by_kind["h"])
    assert all(m.rows_in > 0 for m in by_kind["c"])


@pytest.mark.parametrize("store", ["memory", "file"])
def test_policy_hot_needs_regrouped_data(data, tmp_path, store):
    path = tmp_path / "store"
    config = behind_a_cache(CONFIG, "hot", 24, f"file:{path}" if store == "file" else "memory")
    with pytest.raises(
        ValueError, match="is not regrouped into hot and cold samples; do so with `hotrows"
    ):
        Trainer(data[0], config, tmp_path / "run")
    assert not list(tmp_path.iterdir())  # the next try finds nothing in its way


@pytest.mark.parametrize("fast_memory", [None, 2 * HOT_IDS * RECORD])
def test_trials_go_through_blocks_as_training_does(data, fast_memory):
    """A trial sees hot and cold batches in turn, through the ends of blocks and of epochs."""
    policy = {} if fast_memory is None else {"policy": "hot", "fast_memory": fast_memory}
    config = dataclasses.replace(CONFIG, **policy)
    with PairedBenchmark(data[1], window_seconds=0.01, warm_up_seconds=0.0) as benchmark:
        training = benchmark.opened(config)
        seen = []
        train = training.steps.train

        def noting(work):
            seen.append(bool((work.item.batch.dense >= 0).all()))
            return train(work)

        training.steps.train = noting
        while len(seen) < 80:
            assert training.window(0.01) > 0
        assert training.steps.state.step == len(seen) + 8
    blocks = [kind for kind, _ in itertools.groupby(seen)]
    assert len(blocks) >= 4
