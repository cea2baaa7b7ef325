"""Objects used twice, or by two at a time: iterators and threads of one Predictor, a second fit, Trainers
in threads. Each was off by its neighbour, or silently by the first use."""

import dataclasses
import os
import re
import signal
import threading

import numpy as np
import pytest
import torch

from hotrows import Callback, Trainer, load_run
from hotrows.data import Loader
from hotrows.models import DeepFM
from hotrows.runtime.random_numbers import RandomNumbers
from hotrows.train.loop.mode import Mode
from tests.support.runs import CONFIG, encode, same_bits

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

OPTIONS = {"dim": 4, "hidden": [16], "dropout": 0.3, "batch_norm": True}
SHORT = dataclasses.replace(CONFIG, steps=6, epochs=None, model_options=OPTIONS)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(encoded, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    Trainer(encoded, SHORT, run).fit()
    return run


def in_threads(work, num):
    """work(k) of each k, at once."""
    results = [None] * num
    threads = [
        threading.Thread(target=lambda k=k: results.__setitem__(k, work(k)), daemon=True)
        for k in range(num)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def batches(part, size):
    return Loader(part, size, shuffle=False).batches(0)


# ---- modes


def test_two_iterators_of_a_predictor_do_not_meet(run, encoded):
    """The first that ended put the model back into training under the other: off by .38."""
    predictor, part = load_run(run), encoded.parts["test"]
    expected = predictor.predict(part)
    short, long = predictor.predict(batches(part, 200)), predictor.predict(batches(part, 30))
    next(short)
    found = [next(long)]
    list(short)
    found += list(long)
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-6)
    assert np.array_equal(predictor.predict(part), expected)


def test_threads_predict_by_one_predictor(run, encoded):
    predictor, part = load_run(run), encoded.parts["test"]
    expected = predictor.predict(part)
    for found in in_threads(lambda k: [predictor.predict(part) for _ in range(5)], 4):
        assert all(np.array_equal(one, expected) for one in found)


def test_the_loop_over_predictions_has_gradients(run, encoded):
    """They were off for the caller's code, as the generator yielded within no_grad."""
    predictor, weight = load_run(run), torch.ones((), requires_grad=True)
    for chances in predictor.predict(batches(encoded.parts["test"], 100)):
        assert torch.is_grad_enabled() and not chances.requires_grad
        (chances * weight).sum().backward()
    assert weight.grad


def test_an_evaluation_leaves_the_mode_of_each_module_as_it_was(run, encoded):
    """A frozen layer in a model in training mode was put into training mode by `predict`."""
    predictor = load_run(run)
    assert not any(module.training for module in predictor.model.modules())  # as it was loaded
    predictor.model.train()
    frozen = list(predictor.model.modules())[-1].eval()
    before = [module.training for module in predictor.model.modules()]
    assert not frozen.training and any(before)
    predictions = predictor.predict(batches(encoded.parts["test"], 100))
    next(predictions)
    assert [module.training for module in predictor.model.modules()] == before
    predictions.close()
    predictor.evaluate(encoded.parts["test"])
    assert [module.training for module in predictor.model.modules()] == before


def test_a_step_waits_for_evaluations_and_they_for_it():
    layer, seen, inside, leave = torch.nn.Dropout(), [], threading.Event(), threading.Event()
    mode = Mode(layer)

    def step():
        with mode.training():
            seen.append(layer.training)
            inside.set()
            leave.wait(10)

    def evaluate():
        with mode.evaluating():
            seen.append(layer.training)

    stepping = threading.Thread(target=step)
    with mode.evaluating(), mode.evaluating():
        stepping.start()
        assert not inside.wait(0.05) and not layer.training
    assert inside.wait(10)
    evaluated = threading.Thread(target=evaluate)
    evaluated.start()
    evaluated.join(0.05)
    assert seen == [True] and evaluated.is_alive()
    leave.set()
    evaluated.join(10)
    assert seen == [True, False]


def test_predictions_in_a_thread_disturb_no_training(encoded, run, tmp_path):
    """A web handler that asks the trainer while it trains."""
    trainer, ends = Trainer(encoded, SHORT, tmp_path / "run"), threading.Event()
    part, asked = encoded.parts["test"], []

    def handler():
        while not ends.is_set():
            asked.append(trainer.predict(part))

    asking = threading.Thread(target=handler)
    asking.start()
    try:
        trainer.fit()
    finally:
        ends.set()
        asking.join(60)
    assert asked and not trainer.model.training and same_bits(tmp_path / "run", run)


def test_metrics_of_one_evaluation_are_not_those_of_the_next(run, encoded):
    predictor, part = load_run(run), encoded.parts["test"]
    once = predictor.evaluate(part)
    with pytest.raises(ValueError, match="group"):
        predictor.evaluate(part, metrics="mrr")
    assert predictor.evaluate(part) == once


# ---- a second fit


class At(Callback):
    """Does something after a step."""

    def __init__(self, does):
        self.does = does

    def on_step_end(self, trainer, progress):
        if trainer.state.step == 3:
            self.does(trainer)


def interrupted(trainer):
    trainer.fit(callbacks=[At(lambda trainer: os.kill(os.getpid(), signal.SIGINT))])


def failed(trainer):
    trainer.fit(callbacks=[At(lambda trainer: [][0])])


def stopped(trainer):
    trainer.fit(callbacks=[At(lambda trainer: trainer.stop())])
    raise IndexError


def without_data(trainer):
    after = trainer.steps.batches.after
    trainer.steps.batches.after = lambda state: (
        b if k < 3 else [][0] for k, b in enumerate(after(state))
    )
    trainer.fit()


def without_step(trainer):
    step, left = trainer.steps.dense_optimizer.step, [1, 1, 1]
    trainer.steps.dense_optimizer.step = lambda: (left.pop(), step())
    trainer.fit()


@pytest.mark.parametrize(
    "ends, store",
    [
        (interrupted, "memory"), (interrupted, "cache"), (interrupted, "file"), (failed, "cache"),
        (stopped, "file"), (without_data, "memory"), (without_step, "file"),
    ],
)  # fmt: skip
def test_a_fit_that_ended_before_its_end_says_how_to_go_on(encoded, run, tmp_path, ends, store):
    """It went on to other weights, or to an AssertionError; under `python -O` to a segmentation fault."""
    cache = {} if store == "memory" else {"fast_memory": 3000}
    cache |= {"store": f"file:{tmp_path / 'store'}"} if store == "file" else {}
    config = dataclasses.replace(SHORT, **cache)
    trainer, part = Trainer(encoded, config, tmp_path / "run"), encoded.parts["test"]
    with pytest.raises((KeyboardInterrupt, IndexError)):
        ends(trainer)
    assert not trainer.model.training
    again = re.escape(f"Trainer(data, config, {str(tmp_path / 'run')!r}, resume=True).fit()")
    with pytest.raises(ValueError, match=f"ended after step [0-3] of 6.*{again}"):
        trainer.fit()
    if store == "file" and ends is not stopped:
        with pytest.raises(ValueError, match=f"ended after step.*{again}"):
            trainer.predict(part)
    else:
        assert trainer.predict(part).shape == (part.rows,)  # by what it has
        assert trainer.evaluate("test").samples == part.rows
    Trainer(encoded, config, tmp_path / "run", resume=True).fit()
    assert np.array_equal(
        load_run(tmp_path / "run", "last").predict(part), load_run(run, "last").predict(part)
    )


def test_a_fit_that_has_ended_may_be_called_again_and_one_under_way_may_not(encoded, tmp_path):
    trainer = Trainer(encoded, SHORT, tmp_path / "run")

    def again(trainer):
        with pytest.raises(ValueError, match="the fit of .* is under way"):
            trainer.fit()

    assert trainer.fit(callbacks=[At(again)]) == trainer.fit()


@pytest.mark.parametrize(
    "callbacks, message",
    [
        ([At], "must be objects of hotrows.Callback, not <class"),
        ([lambda trainer: None], "must be objects of hotrows.Callback, not <function"),
        ([Callback()], "Callback has none of the methods that training calls"),
        (Callback(), "callbacks must be a list of hotrows.Callback objects, not <"),
    ],
)
def test_a_callback_that_nothing_calls_is_refused(encoded, tmp_path, callbacks, message):
    with pytest.raises(ValueError, match=message):
        Trainer(encoded, SHORT, tmp_path / "run").fit(callbacks=callbacks)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_fit_without_gradients_is_refused(encoded, tmp_path, context):
    """It ended in "element 0 of tensors does not require grad"."""
    trainer = Trainer(encoded, SHORT, tmp_path / "run")
    with context(), pytest.raises(ValueError, match=r"call fit outside of torch\.no_grad"):
        trainer.fit()


# ---- random numbers


def test_trainers_in_threads_have_random_numbers_of_their_own(encoded, run, tmp_path):
    """They shared PyTorch's generator: off by .18."""
    before = torch.get_rng_state()
    in_threads(lambda k: Trainer(encoded, SHORT, tmp_path / str(k)).fit(), 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(same_bits(tmp_path / str(k), run) for k in range(3))


def test_what_a_callback_draws_is_not_what_training_draws(encoded, run, tmp_path):
    class Draws(Callback):
        def on_step_end(self, trainer, progress):
            torch.manual_seed(5)
            torch.rand(3)

    Trainer(encoded, SHORT, tmp_path / "run").fit(callbacks=[Draws()])
    assert same_bits(tmp_path / "run", run)


class Noisy(DeepFM):
    """Draws in evaluation, too."""

    def forward(self, vectors, dense):
        logits = super().forward(vectors, dense)
        return logits + torch.rand_like(logits)


def test_a_validation_that_draws_is_repeatable(encoded, tmp_path):
    config = dataclasses.replace(SHORT, model=None, model_options={"dim": 4})
    results = []
    for k in range(2):
        torch.manual_seed(k)
        results.append(Trainer(encoded, config, tmp_path / str(k), model=Noisy).fit())
    assert results[0].validation == results[1].validation and results[0].test == results[1].test


def test_random_numbers_go_on_where_they_were():
    ours, plain = RandomNumbers([torch.default_generator], 3), torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    for _ in range(2):
        with ours.drawing():
            found = torch.rand(2)
        assert torch.equal(found, torch.rand(2, generator=plain))
    with pytest.raises(KeyError), ours.drawing():
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)
