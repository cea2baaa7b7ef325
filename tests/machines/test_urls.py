"""Every command takes URLs where it takes paths, or refuses them in a sentence."""

import json
import os
import shlex

import click
import pytest

from hotrows import cli
from hotrows.cli.paths import Here, New, Place, Run, RunToTrain
from tests.support.commands import SMALL

# What each path of each command does with a URL. Texts that name raw files, data to train on and
# places of versions are opened by their readers.
PATHS = {
    "data": {"raw": "refuses", "out": "writes", "samples": "reads"},
    "synth": {"out": "writes"},
    "schema": {"raw": "text", "out": "writes"},
    "prepare": {"raw": "text", "out": "writes", "like": "reads", "extend": "reads"},
    "describe": {"folder": "reads", "picture": "writes", "html": "writes"},
    "train": {
        "folder": "text",
        "run": "trains",
        "config_file": "reads",
        "trace": "writes",
        "repeat": "run",
        "start_from": "run",
    },
    "tune": {"folder": "text", "out": "writes", "run": "refuses"},
    "eval": {"run": "run", "folder": "reads"},
    "predict": {"run": "run", "raw": "text", "out": "writes"},
    "report": {"runs": "run", "out": "writes", "folder": "reads"},
    "contributions": {"run": "run", "raw": "text", "folder": "reads"},
    "simulate": {"folder": "reads", "picture": "writes"},
    "plan": {"folder": "reads", "picture": "writes"},
    "profile": {"folder": "reads"},
    "regroup": {"folder": "reads", "out": "writes"},
    "export": {"run": "run", "out": "writes"},
    "serve": {"bundle": "reads"},
    "versions": {"folder": "text"},
    "tables": {"place": "reads", "picture": "writes"},
    "checkpoint inspect": {"place": "reads"},
    "checkpoint merge": {"place": "reads", "out": "writes"},
    "doctor": {"store": "refuses"},
}
KINDS = {Place: "reads", Here: "refuses", RunToTrain: "trains", Run: "run"}


def paths(group, before=""):
    for name, command in group.commands.items():
        full = f"{before} {name}".strip()
        if isinstance(command, click.Group):
            yield from paths(command, full)
            continue
        for param in command.params:
            if isinstance(param.type, Place):
                kind = "writes" if isinstance(param.type, New) else KINDS[type(param.type)]
                yield full, param.name, kind


def test_each_path_of_a_command_is_in_the_table():
    known = {(c, p): k for c, of in PATHS.items() for p, k in of.items() if k != "text"}
    assert {(command, param): kind for command, param, kind in paths(cli.cli)} == known


@pytest.fixture
def at_url(tmp_path, monkeypatch):
    """Runs a line of the command line in an empty folder; B is a URL, whose files are in bucket/."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(line, code=0):
        try:
            cli.main(shlex.split(line.replace("B/", f"file://{tmp_path}/bucket/")))
            ended = 0
        except SystemExit as left:
            ended = left.code or 0
        assert ended == code

    return run


def small(name):
    return " ".join([name, *SMALL])


@pytest.mark.parametrize("at", ["local", "url"])
def test_a_whole_day_of_work(at_url, tmp_path, at, capsys):
    place = "B/" if at == "url" else "../bucket/"
    for line in (
        "synth criteo --rows 1500 --out B/raw --cardinality-scale 0.001",
        "prepare B/raw/train.txt --schema criteo --split position:0.8,0.1,0.1 --out B/enc",
        "describe B/enc --html B/data.html",
        small("train B/enc --model deepfm --epochs 1 --batch-size 512 --run B/run"),
        "eval B/run",
        "eval B/run --data B/enc",
        "predict B/run B/raw/train.txt --out B/scores.csv",
        "report B/run --rows 100 --out B/page.html",
        "tables B/run --json",
        "checkpoint inspect B/run --verify",
        "checkpoint merge B/run B/whole",
        "export B/run --out B/bundle",
        "train B/enc --init-from B/run --epochs 1 --batch-size 512 --run B/second",
        "regroup B/enc --fast-memory 1MiB --out B/grouped --force",
    ):
        if line:
            at_url(line.replace("B/", place))
    made = {path.name for path in (tmp_path / "bucket").iterdir()}
    files = {"data.html", "scores.csv", "page.html"}
    assert made >= {"raw", "enc", "run", "whole", "bundle", "second", "grouped", *files}
    assert json.loads((tmp_path / "bucket/run/result.json").read_text())["steps"] > 0
    assert not [name for name in os.listdir() if name.endswith(":")], os.listdir()
    at_url(f"train {place}enc --run {place}run --batch-size 512", 1)
    assert "exists already: resume it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("doctor --store B/tables", "is a URL, and this must be a path"),
        ("tune B/enc --for auc --run B/search", "is a URL, and this must be a path"),
        ("train B/enc --fast-memory 1MiB --store file:s3://bucket/tables", "is a URL, and this must be"),
        ("eval B/nosuch", "bucket/nosuch does not exist; correct the path"),
        ("describe B/nosuch", "nosuch does not exist; check the address"),
        ("describe nosuch://bucket/enc", "nosuch://bucket/enc cannot be opened"),
        ("prepare a.csv --schema criteo --out nosuch://b/enc", "nosuch://b/enc cannot be opened"),
        ("train a --run nosuch://bucket/run", "nosuch://bucket/run cannot be opened"),
    ],
)
def test_what_is_refused_is_refused_in_a_sentence(at_url, line, words, capsys):
    at_url(line, 2 if "is a URL" in words else 1)
    assert words in " ".join(capsys.readouterr().err.split())
    assert not os.listdir()
