"""Settings: declared once, and what the command line and the documentation make of them."""

import dataclasses
import json
import re

import numpy as np
import pytest

from hotrows import cli, optim
from hotrows.train.config import SETTINGS, TrainConfig


def test_every_field_is_a_setting_with_help_and_a_default_that_it_may_have():
    assert list(SETTINGS) == [field.name for field in dataclasses.fields(TrainConfig)]
    for setting in SETTINGS.values():
        assert setting.help and not setting.help.endswith(".")
        assert getattr(TrainConfig(), setting.name) == setting.default
        setting.check(setting.default)


def test_train_has_an_option_for_each_setting_that_has_one():
    options = {name: param.name for param in cli.cli.commands["train"].params for name in param.opts}
    for setting in SETTINGS.values():
        if setting.option_name:
            assert options[setting.option_name] == setting.name
        else:
            assert setting.name not in options.values()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("lr", "tables learn by row_optimizer=hotrows.Adagrad(lr=0.05), the dense part by dense_lr"),
        ("learning_rate", "tables learn by row_optimizer="),
        ("n_epochs", "did you mean 'epochs'?"),
        ("hidden", "a model's own arguments are in model_options"),
    ],
)
def test_a_setting_that_is_none_is_answered_with_where_it_is(name, advice):
    """It was a TypeError about __init__."""
    with pytest.raises(ValueError, match=f"TrainConfig has no argument '{name}'; {re.escape(advice)}"):
        TrainConfig(**{name: 1})
    with pytest.raises(ValueError, match=f"configuration has no field '{name}'; {re.escape(advice)}"):
        TrainConfig.from_fields({name: 1})


def test_sizes_and_numbers_of_numpy_are_kept_as_numbers():
    """As searches draw them; a size in text was refused, which the command line and files take."""
    config = TrainConfig(
        batch_size=np.int64(64), dense_lr=np.float32(0.5), shuffle=np.bool_(False), fast_memory="2GiB"
    )
    assert config == TrainConfig(batch_size=64, dense_lr=0.5, shuffle=False, fast_memory=2 << 30)
    assert TrainConfig.from_json(config.to_json()) == config
    assert type(optim.Adagrad(lr=np.float32(0.5)).lr) is float
    with pytest.raises(ValueError, match="a size must be a number of bytes .*, not '2 Gigs'"):
        TrainConfig(fast_memory="2 Gigs")


def test_a_config_is_read_as_it_was_written_and_keeps_the_order_of_its_fields():
    config = TrainConfig(model="din", model_options={"dim": 32}, fast_memory=1 << 20)
    assert TrainConfig.from_json(config.to_json()) == config
    assert list(json.loads(config.to_json())) == list(SETTINGS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sharding": "hash"}, "sharding must be one of auto, rows, tables, columns, replicated"),
        ({"pack_parts": -1}, "pack_parts must be at least 0, not -1"),
        ({"timeout": 0.0}, "timeout must be above 0, not 0.0"),
        ({"clip_norm": float("nan")}, "clip_norm must be above 0, not nan"),
        ({"shares": "1,0"}, "shares must be equal, auto .* such as 1,2; not '1,0'"),
        ({"shares": ""}, "shares must be equal, auto .* such as 1,2; not ''"),
    ],
)
def test_a_value_that_a_setting_may_not_have_is_refused_by_name(fields, said):
    with pytest.raises(ValueError, match=said):
        TrainConfig(**fields)
