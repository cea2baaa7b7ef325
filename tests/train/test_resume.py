"""A run goes on with the settings that it has where the new ones leave them open, or may not change."""

import dataclasses
import re

import pytest
import torch

from hotrows import SGD, Adagrad, Callback, TrainConfig, Trainer
from hotrows.models import Model, tables
from hotrows.train.run import folder as run_folder
from tests.support.runs import encode, same_bits

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


class Own(Model):
    """A model that is code."""

    def __init__(self, schema):
        super().__init__()
        self.tables = tables.vector_tables(schema, 1)
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, vectors, dense):
        return vectors.stack().sum((1, 2)) + self.bias


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("data"))


@pytest.mark.few(8)
@pytest.mark.parametrize("model", ["deepfm", "dcnv2", "fm", "dlrm"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"epochs": 1}, {"epochs": 3}),
        ({"epochs": 2, "stop_patience": 1}, {"epochs": 3, "stop_patience": None, "decay_patience": 9}),
        ({"steps": 8}, {"steps": 12, "evaluate_every": 5}),
        ({"steps": 8}, {"epochs": 2}),
        ({"epochs": 1, "model_options": {"dim": 4}}, {"epochs": 2, "batch_size": 64}),
    ],
)
def test_a_run_goes_on_with_other_epochs_whatever_was_filled_in(encoded, tmp_path, model, first, then):
    """Rates and decay that depend on epochs were filled in anew, and the run refused a row_optimizer that
    no one had named."""
    Trainer(encoded, TrainConfig(model=model, **first), tmp_path / "run").fit()
    begun = run_folder.read_config(tmp_path / "run")
    trainer = Trainer(encoded, TrainConfig(**then), tmp_path / "run", resume=True)
    changed = {"steps": None, "stop_patience": 4} if "epochs" in then else {}
    assert trainer.config == dataclasses.replace(begun, **{**changed, **then})
    result = trainer.fit()
    assert result.steps == trainer.total_steps or result.stopped_early
    assert run_folder.read_config(tmp_path / "run") == trainer.config


def test_a_run_that_went_on_is_interrupted_and_goes_on_with_its_new_settings(encoded, tmp_path):
    """config.json kept the first epochs: resumed once more, the run was over."""
    config = TrainConfig(model="dlrm", epochs=1, seed=2, linear_paths="plain")
    longer = dataclasses.replace(config, epochs=3, stop_patience=None)
    Trainer(encoded, longer, tmp_path / "whole").fit()
    Trainer(encoded, config, tmp_path / "run").fit()
    trainer = Trainer(encoded, longer, tmp_path / "run", resume=True)
    trainer.fit(callbacks=[_StopAt(trainer.state.step + 2)])
    again = TrainConfig(seed=2, linear_paths="plain", stop_patience=None)
    result = Trainer(encoded, again, tmp_path / "run", resume=True).fit()
    assert result.steps == 3 * trainer.reports.epoch_steps
    assert same_bits(tmp_path / "whole", tmp_path / "run")


class _StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer, progress):
        if trainer.state.step == self.step:
            trainer.stop()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 128}, "batch_size=64, not 128"),
        ({"model": "fm"}, "model='deepfm', not 'fm'"),
        ({"row_optimizer": SGD(lr=0.5)}, "row_optimizer=Adagrad(lr=0.05"),
        ({"row_optimizer": SGD(lr=0.5)}, "not SGD(lr=0.5"),
        ({"dense_lr": 0.5}, "dense_lr=0.001, not 0.5"),
        ({"seed": 9}, "seed=0, not 9"),
        ({"clip_norm": 2.0}, "clip_norm=None, not 2.0"),
        ({"model_options": {"dim": 3}}, "not {'dim': 3}"),
        ({"precision": "bfloat16"}, "precision='float32', not 'bfloat16'"),
    ],
)
def test_a_setting_that_may_not_change_is_refused_with_both_values(encoded, tmp_path, changes, said):
    run = tmp_path / "run"
    config = TrainConfig(model="deepfm", steps=3, row_optimizer=Adagrad(lr=0.05), dense_lr=0.001)
    Trainer(encoded, config, run).fit()
    with pytest.raises(ValueError, match=rf"was begun with .*{re.escape(said)}"):
        Trainer(encoded, TrainConfig(**{"steps": 6, **changes}), run, resume=True)
    Trainer(encoded, TrainConfig(steps=6), run, resume=True).fit()


def test_a_model_that_is_code_is_named_again(encoded, tmp_path):
    Trainer(encoded, TrainConfig(steps=3), tmp_path / "run", model=Own).fit()
    with pytest.raises(ValueError, match="names a model that is code"):
        Trainer(encoded, TrainConfig(steps=6), tmp_path / "run", resume=True)
    trainer = Trainer(encoded, TrainConfig(steps=6), tmp_path / "run", model=Own, resume=True)
    assert trainer.fit().steps == 6
