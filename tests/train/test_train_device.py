"""A run on a device: the run of the host, whatever the store, the policy and the model.

On a pretended GPU, where any tensor on the wrong side raises. It computes what the host computes but
for the native core's fused layers, so weights are equal up to rounding; of the device's own runs, bit
for bit.
"""

import dataclasses
import threading

import numpy
import pytest
import torch

from hotrows.engine import checkpoint
from hotrows.models.deepfm import DeepFM
from hotrows.optim import FTRL, SGD, DenseAdam, DenseSGD, LazyAdam
from hotrows.runtime.device import Cuda
from hotrows.train import Trainer, load_run
from hotrows.train.loop.step import Step
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.run import folder as run_folder
from hotrows.train.start.defaults import settle
from hotrows.train.telling.reports import Reports
from tests.support import pretend
from tests.support.devices import CONFIG, KINDS, assert_same, device_of, on_device
from tests.support.runs import encode

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("data"))


ROUNDING = 1e-4


@pytest.mark.pairs
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fast_memory": 1500},
        {"fast_memory": 1500, "cache_transfer": "staged", "policy": "lru"},
        {"row_optimizer": LazyAdam(), "clip_norm": 1.0, "dense_optimizer": "adagrad"},
        {"row_optimizer": FTRL(), "dense_optimizer": "sgd", "plan_depth": 0},
        {"micro_batches": 3, "row_optimizer": SGD()},
        {"micro_batches": 3, "streams": 2, "fast_memory": 4000},
        {"streams": 3, "pack_parts": 2},
        {"row_optimizer": DenseAdam(lr=0.01, weight_decay=1e-3), "streams": 2},
        {"row_optimizer": DenseSGD(lr=0.1, momentum=0.9), "fast_memory": 3000},
    ],
    ids=[
        *("whole", "cache", "staged", "adam", "ftrl", "micro", "micro-lanes", "streams", "dense"),
        "dense-cache",
    ],
)
def test_a_run_on_the_device_is_that_of_the_host(encoded, tmp_path, settings):
    config = dataclasses.replace(CONFIG, **settings)
    here = Trainer(encoded, config, tmp_path / "here").fit()
    there, _ = on_device(encoded, config, tmp_path / "there")
    assert there.test.log_loss == pytest.approx(here.test.log_loss, rel=ROUNDING)
    assert there.steps == here.steps
    assert_same(tmp_path / "here", tmp_path / "there", ROUNDING)


@pytest.mark.parametrize("kind", ["pretended", pytest.param("real", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "settings", [{}, {"dense_optimizer": "sgd", "streams": 2, "fast_memory": 4000, "clip_norm": 1.0}]
)
def test_a_captured_run_has_the_bits_of_one_that_is_not(encoded, tmp_path, settings, kind):
    """The dense rate, too, which is no float32 as it is given, and changes from step to step."""
    config = dataclasses.replace(
        CONFIG, **settings, device="cuda", dense_lr=0.0123, warmup_steps=5, steps=7
    )
    on_device(encoded, config, tmp_path / "plain", kind)
    on_device(encoded, dataclasses.replace(config, cuda_graph=True), tmp_path / "captured", kind)
    assert_same(tmp_path / "plain", tmp_path / "captured")


@pytest.mark.parametrize("model", ["deepfm", "dlrm", "dcnv2", "dnn"])
def test_nothing_of_a_step_lives_on(encoded, tmp_path, model, monkeypatch):
    """A graph that did would bring the stream of that step into a capture, and end it."""
    run, steps = Step.run, []

    def node(parameter):
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]

    def checked(self, *args):
        parameters = list(self.model.parameters())

        def mark(*_):
            for parameter in parameters:
                node(parameter).metadata["step"] = len(steps)

        with self.model.register_forward_hook(mark):
            loss = run(self, *args)
        assert not any(node(parameter).metadata for parameter in parameters)
        steps.append(loss)
        return loss

    monkeypatch.setattr(Step, "run", checked)
    options = {"dim": 4, "dropout": 0.0}
    config = dataclasses.replace(CONFIG, model=model, model_options=options, steps=2)
    Trainer(encoded, config, tmp_path / "run").fit()
    assert len(steps) == 2


def test_behind_a_cache_tables_are_dealt_to_the_planning_threads(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, fast_memory=1500, planning_threads=2, planning="host")
    there = dataclasses.replace(config, device="cuda", planning=None)
    assert settle(there, encoded).pack_parts == 1  # the device plans them at once
    here = Trainer(encoded, config, tmp_path / "here").fit()
    there, _ = on_device(encoded, config, tmp_path / "there")
    assert there.test.log_loss == pytest.approx(here.test.log_loss, rel=ROUNDING)
    assert_same(tmp_path / "here", tmp_path / "there", ROUNDING)
    for name in ("here", "there"):
        assert run_folder.read_config(tmp_path / name).pack_parts == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("hotrows-")]
    whole = Trainer(encoded, dataclasses.replace(config, pack_parts=1), tmp_path / "whole").fit()
    assert whole.test == here.test
    assert_same(tmp_path / "here", tmp_path / "whole")


def test_tables_in_a_file_train_on_the_device(encoded, tmp_path):
    runs = {}
    for name in ("here", "there"):
        store = f"file:{tmp_path / name}-rows"
        config = dataclasses.replace(CONFIG, fast_memory=1500, store=store)
        if name == "here":
            runs[name] = Trainer(encoded, config, tmp_path / name).fit()
        else:
            runs[name], _ = on_device(encoded, config, tmp_path / name)
    assert runs["there"].test.log_loss == pytest.approx(runs["here"].test.log_loss, rel=ROUNDING)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fast_memory": 3000},
        {"micro_batches": 2, "streams": 2},
        {"row_optimizer": DenseAdam(weight_decay=1e-3)},
    ],
)
def test_a_step_waits_for_nothing(encoded, tmp_path, settings, monkeypatch):
    """From step to step the host asks the device for nothing: not even the loss."""
    monkeypatch.setattr(Reports, "interval_is_over", False)  # the loss is asked for at its end
    config = dataclasses.replace(
        CONFIG, **settings, steps=13, clip_norm=1.0, evaluate_every=1000, batch_size=64
    )
    seen = {}
    on_device(
        encoded, config, tmp_path / "run",
        progress=lambda of: seen.setdefault((of.stage, of.done), sum(pretend.waits.values())),
    )  # fmt: skip
    assert seen["train", 3] == seen["train", 12]
    assert max(seen.values()) > 0  # an evaluation does wait


def test_a_checkpoint_of_the_device_trains_on_the_host_and_back(encoded, tmp_path):
    on_device(encoded, CONFIG, tmp_path / "first")
    second = dataclasses.replace(CONFIG, start_from=str(tmp_path / "first"), seed=4)
    Trainer(encoded, second, tmp_path / "host").fit()
    on_device(encoded, second, tmp_path / "device")
    assert_same(tmp_path / "host", tmp_path / "device", ROUNDING)


def test_increments_of_the_device_hold_what_changed(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, checkpoint_every=2, full_every=4, keep_last=3)
    on_device(encoded, config, tmp_path / "run")
    Trainer(encoded, config, tmp_path / "host").fit()
    assert_same(tmp_path / "host", tmp_path / "run", ROUNDING)
    assert checkpoint.pointed(tmp_path / "run") is not None


def test_what_is_left_open_is_chosen_and_said(encoded, tmp_path, caplog):
    open_config = dataclasses.replace(CONFIG, cuda_graph=None)
    with caplog.at_level("INFO", "hotrows"):
        on_device(encoded, open_config, tmp_path / "open")
    (line,) = [line for line in caplog.messages if line.startswith("GPU: ")]
    assert "products in TF32" in line and "planned on the GPU" in line
    assert "as one CUDA graph" in line and "\n" not in line
    assert run_folder.read_config(tmp_path / "open").precision == "tf32"
    on_device(encoded, CONFIG, tmp_path / "launched")
    assert_same(tmp_path / "open", tmp_path / "launched")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dense_optimizer": "adagrad"}, "kernel by kernel (PyTorch's Adagrad cannot be captured)"),
        (
            {"micro_batches": 2},
            "on the host (batches are trained in micro-batches), steps launched kernel",
        ),
        (
            {"precision": "bfloat16", "planning": "host"},
            "in bfloat16, batches planned on the host (asked",
        ),
        ({"row_optimizer": DenseAdam()}, "how many steps rows of table"),
        ({"cuda_graph": False}, "kernel by kernel (cuda_graph is off)"),
        ({"model_options": {"dim": 1100, "hidden": [4]}}, "has dim 1,100, and rows wider than 1,024"),
    ],
    ids=str,
)
def test_why_another_way_is_taken_is_said(encoded, settings, said, caplog):
    config = dataclasses.replace(CONFIG, **{"device": "cuda", "cuda_graph": None, **settings})
    with pretend.gpu(), caplog.at_level("INFO", "hotrows"):
        steps = StepTrainer(encoded, config)
        assert isinstance(steps.step, Step) == ("as one CUDA graph" not in caplog.text)
        steps.embedding.close()
    assert said in next(line for line in caplog.messages if line.startswith("GPU: "))


class ReadsTheDevice(DeepFM):
    """A model whose forward waits for the device."""

    def forward(self, vectors, dense):
        logits = super().forward(vectors, dense)
        return logits * (1 if float(logits.detach().sum()) < 1e9 else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_cannot_be_captured_is_launched_or_refused(
    encoded, tmp_path, caplog, kind, monkeypatch
):
    for device in (Cuda, pretend.PretendDevice):
        monkeypatch.setattr(device, "capture", None)  # it is known before anything is captured
    with device_of(kind):
        config = dataclasses.replace(CONFIG, device="cuda", cuda_graph=None)
        plain, wanted = (dataclasses.replace(config, cuda_graph=value) for value in (False, True))
        left_open = Trainer(encoded, config, tmp_path / "open", model=ReadsTheDevice).fit()
        (said,) = [line for line in caplog.messages if "cannot be captured as a CUDA graph" in line]
        assert f"waits for the device at {__file__}:" in said
        launched = Trainer(encoded, plain, tmp_path / "launched", model=ReadsTheDevice).fit()
        assert left_open.test == launched.test
        with pytest.raises(ValueError, match=r"cannot be captured .* leave out cuda_graph, or let its"):
            Trainer(encoded, wanted, tmp_path / "wanted", model=ReadsTheDevice).fit()


class FailsInACapture(DeepFM):
    """A model that a graph cannot have, for another reason than a wait."""

    def forward(self, vectors, dense):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not in a graph")
        return super().forward(vectors, dense)


@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_that_fails_leaves_a_run_that_trains(encoded, tmp_path, caplog, kind):
    config = dataclasses.replace(CONFIG, device="cuda", model_options={"dim": 4, "dropout": 0.5})
    with device_of(kind):
        open_, launched = (
            Trainer(
                encoded, dataclasses.replace(config, cuda_graph=value), tmp_path / str(value),
                model=FailsInACapture,
            ).fit()
            for value in (None, False)
        )  # fmt: skip
    assert "cannot be captured as a CUDA graph (not in a graph)" in caplog.text
    assert open_.test == launched.test


def test_memory_that_does_not_suffice_for_a_step_is_told_with_advice(encoded, tmp_path, monkeypatch):
    step = Step.run

    def run(self, plan, *args):
        if plan.step == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
        return step(self, plan, *args)

    monkeypatch.setattr(Step, "run", run)
    for parts, advice in ((1, 2), (3, 6)):
        config = dataclasses.replace(CONFIG, micro_batches=parts)
        words = rf"needs more .*\(micro_batches={advice}\), .* batch_size.*\(fast_memory\).*2.00 GiB"
        with pytest.raises(ValueError, match=words) as refused:
            on_device(encoded, config, tmp_path / f"run{parts}")
        assert "\n" not in str(refused.value)


@pytest.mark.gpu
def test_after_running_out_of_memory_a_process_trains_on(encoded, tmp_path, monkeypatch):
    step = Step.run

    def run(self, plan, *args):
        if plan.step == 3:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return step(self, plan, *args)

    with monkeypatch.context() as patches:
        patches.setattr(Step, "run", run)
        with pytest.raises(ValueError, match="needs more of the device's memory"):
            on_device(encoded, CONFIG, tmp_path / "stopped", "real")
    on_device(encoded, CONFIG, tmp_path / "first", "real")
    on_device(encoded, CONFIG, tmp_path / "second", "real")
    assert_same(tmp_path / "first", tmp_path / "second")


def test_rows_too_wide_for_a_captured_step_are_refused(encoded, tmp_path):
    wide = dataclasses.replace(
        CONFIG, model_options={"dim": 1100, "hidden": [4]}, cuda_graph=True, device="cuda"
    )
    with pytest.raises(
        ValueError, match=r"cuda_graph: table .* has dim 1,100, and rows wider than 1,024"
    ):
        on_device(encoded, wide, tmp_path / "run")


def test_a_captured_step_of_rows_that_catch_up_is_refused(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, row_optimizer=DenseAdam(), cuda_graph=True, device="cuda")
    with pytest.raises(ValueError, match="cuda_graph: how many steps rows of table .* choose a lazy row"):
        on_device(encoded, config, tmp_path / "run")


def test_a_device_that_is_not_there_is_said(encoded, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(ValueError, match="sees no CUDA device"):
        Trainer(encoded, dataclasses.replace(CONFIG, device="cuda"), tmp_path / "run")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fast_memory": 1500},
        {"fast_memory": 1500, "cache_transfer": "staged"},
        {"micro_batches": 3, "streams": 2},
    ],
    ids=["whole", "cache", "staged", "micro"],
)
def test_a_run_on_a_real_device_is_that_of_the_host(encoded, tmp_path, settings):
    config = dataclasses.replace(CONFIG, **settings)
    here = Trainer(encoded, config, tmp_path / "here").fit()
    there = Trainer(encoded, dataclasses.replace(config, device="cuda"), tmp_path / "there").fit()
    again = Trainer(encoded, dataclasses.replace(config, device="cuda"), tmp_path / "again").fit()
    assert there.test.log_loss == pytest.approx(here.test.log_loss, rel=1e-3)
    assert_same(tmp_path / "there", tmp_path / "again")
    assert again.test == there.test or there.test.gauc != there.test.gauc


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{}, {"fast_memory": 20_000}, {"compile": True}])
def test_a_real_graph_has_the_bits_of_its_steps(encoded, tmp_path, settings):
    config = dataclasses.replace(
        CONFIG, **settings, device="cuda", epochs=3, batch_size=64, clip_norm=1.0
    )
    Trainer(encoded, config, tmp_path / "steps").fit()
    Trainer(encoded, dataclasses.replace(config, cuda_graph=True), tmp_path / "graph").fit()
    assert_same(tmp_path / "steps", tmp_path / "graph")


@pytest.mark.parametrize(
    "settings", [{"fast_memory": 1500}, pytest.param({}, marks=pytest.mark.slow)], ids=str
)
def test_a_run_is_evaluated_and_predicts_on_a_device(encoded, tmp_path, settings):
    Trainer(encoded, dataclasses.replace(CONFIG, **settings), tmp_path / "run").fit()
    part, here = encoded.parts["test"], load_run(tmp_path / "run")
    with pretend.gpu():
        there = load_run(tmp_path / "run", device="cuda")
        assert next(there.model.parameters()).is_cuda
        assert there.evaluate(part).auc == pytest.approx(here.evaluate(part).auc, rel=ROUNDING)
        numpy.testing.assert_allclose(there.predict(part), here.predict(part), rtol=ROUNDING)
        assert bool(there.embedding.cached_tables) == bool(settings)
