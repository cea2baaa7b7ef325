"""Options: every one has its help, and those of functions are declared where the function is."""

import re

import click
import pytest

from hotrows.cli import cli
from hotrows.cli.options import COUNT, INTEGER, of_function
from hotrows.cli.paths import FOLDER
from hotrows.serving.limits import Limits

COMMANDS = {**cli.commands, **cli.commands["checkpoint"].commands}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "checkpoint"])
def test_every_option_has_a_help_of_whole_sentences(name):
    for option in COMMANDS[name].params:
        if isinstance(option, click.Option):
            assert option.help and re.fullmatch(r"[A-Z].*\.(  \[default: [^\]]+\])?", option.help), (
                f"{name} {option.opts}: {option.help!r}"
            )
            assert "(default" not in option.help
            shown = option.get_help_record(click.Context(COMMANDS[name]))
            assert shown is None or shown[1].count("[default: ") <= 1, shown


def params(*arguments, **changes):
    command = click.command()(of_function(*arguments, **changes)(lambda **values: None))
    return {option.name: option for option in command.params}


def test_an_option_has_name_type_default_and_help_of_the_parameter():
    options = params("data.datasets.dataset:prepare", "raw", "samples", "seed")
    assert (options["raw"].required, options["samples"].required, options["seed"].default) == (
        True,
        False,
        0,
    )
    assert [options[name].type for name in ("raw", "samples", "seed")] == [FOLDER, FOLDER, INTEGER]
    assert options["seed"].help == "The seed of the split and of the builder's draws."
    assert options["raw"].help == "The folder of the raw files."


def test_fields_of_a_class_are_options_behind_a_prefix():
    options = params("serving.limits:Limits", "rows", prefix="most_", waiting={"spelling": "--queue"})
    assert options["most_rows"].default == Limits().rows and options["most_rows"].type is COUNT
    assert options["most_rows"].opts == ["--most-rows"] and options["most_waiting"].opts == ["--queue"]


def test_a_parameter_that_the_function_does_not_have_is_an_error_of_ours():
    with pytest.raises(KeyError, match="seeds"):
        params("data.datasets.dataset:prepare", "seeds")
