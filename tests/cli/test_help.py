"""The help: short where it is not asked for more, in the order of work, with old names that work."""

import click
import pytest
from click.testing import CliRunner

from hotrows.cli import cli
from hotrows.cli.commands import declare
from hotrows.cli.training import COMMON
from tests.support.versions import suggests


def shown(*arguments, code=0):
    run = CliRunner().invoke(cli, arguments, obj=type("Session", (), {"debug": False})())
    assert run.exit_code == code, run.output
    return run.output


@pytest.mark.parametrize("name", ["train", "tune"])
def test_help_is_short_and_says_how_to_see_the_rest(name):
    text = shown(name, "--help")
    assert len(text.splitlines()) <= 60 + 10 * (name == "tune") and " more: --help=all" in text
    assert "--model NAME" in text and "dcnv2" in text and "--wire-dtype" not in text
    everything = shown(name, "--help=all")
    assert "--wire-dtype" in everything and " more: --help=all" not in everything
    for param in cli.commands[name].params:
        assert not isinstance(param, click.Option) or param.opts[-1] in everything


def test_help_shows_a_section_or_what_has_a_word():
    text = shown("train", "--help=caching")
    assert "--memory-split" in text and "Caching:" in text and "--learning" not in text
    text = shown("train", "--help=dropout")
    assert "--seed" in text and "--model" not in text.partition("Examples")[0].replace("--model-", "")
    for word, option in (("early", "--stop-patience"), ("gpu", "--device"), ("dim", "--option")):
        assert option in shown("train", f"--help={word}").partition("more: ")[0], word
    assert shown("train", "--help", "ranks") == shown("train", "--help=ranks")


def test_what_help_shows_is_what_most_use():
    assert {param.name for param in cli.commands["train"].params} >= set(COMMON)


def test_help_of_a_command_by_the_word_help():
    assert shown("help", "train") == shown("train", "--help")
    assert shown("help") == shown("--help")
    assert shown("help", "checkpoint", "merge") == shown("checkpoint", "merge", "--help")
    assert "No such command 'trian'." in shown("help", "trian", code=2)


def test_commands_are_listed_in_groups_each_once():
    text = shown("--help").partition("\nData:")[2]
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(cli.commands) and listed.index("prepare") < listed.index("train")


@suggests
@pytest.mark.parametrize(
    ("option", "suggested"),
    [
        ("--epoch", "Did you mean '--epochs'?"),
        ("--modle", "Did you mean '--model'?"),
        ("--zzz", "'--zzz'.\n"),
        ("--dim", "Did you mean --option dim=32?"),
        ("--use-gpu", "Did you mean --device cuda?"),
        ("--threads", "Did you mean OMP_NUM_THREADS=4 before the command"),
        ("--early-stopping", "Did you mean --stop-patience?"),
        ("--output-dir", "Did you mean --run FOLDER?"),
    ],
)
def test_only_close_names_are_suggested(option, suggested):
    assert suggested in shown("train", "enc", option, "1", code=2)


@pytest.mark.parametrize("name", ["train", "predict", "doctor", "serve"])
def test_every_command_can_print_less_and_more_and_has_a_short_out(name):
    text = shown(name, "--help=all") if name == "train" else shown(name, "--help")
    assert "-q, --quiet" in text and "-v, --verbose" in text
    assert ("-o, --out" in text) == (name == "predict")


def test_an_old_name_works_and_is_not_shown():
    @click.command()
    @declare("--max-rows", "rows", old=("--most-rows",), type=int)
    def command(rows):
        click.echo(rows)

    run = CliRunner().invoke
    assert run(command, ["--most-rows", "3"]).output == run(command, ["--max-rows", "3"]).output == "3\n"
    assert "--max-rows" in (text := run(command, ["--help"]).output) and "--most-rows" not in text
