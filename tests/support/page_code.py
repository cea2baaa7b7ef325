"""The code blocks of the pages: what they are, the commands in them, and how they run.

A block of Python or of a shell runs, in the order of its page, unless the line above it says why not:

    <!-- not run: the code of another library -->
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from hotrows import cli

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "sh", "text", "json", "toml", "diff"}

# Commands of pages that a page's folder cannot run, and what runs them instead.
ELSEWHERE = {
    "pip install": "installing is tested from wheels",
    "python3 tasks.py": "the tests run in it",
    "python3 csrc/build.py": "the tests run on what it built",
    "python csrc/build.py": "the tests run on what it built",
    "python csrc/tidy.py": "a minute of clang-tidy",
    "python -m benchmarks": "hours; figures come from it",
    "python3 -m benchmarks": "hours, and a GPU",
    "python -m tests": "tests/ runs shorter ones",
    "PYTHONPATH=src": "tests/ runs shorter ones",
    "torchrun": "tests/faults and tests/distributed run it; its options are checked here",
    "nvidia-smi": "names a GPU",
    "nproc": "counts processors",
    "ulimit": "says a limit",
    "curl": "tests/serving sends requests",
    "hotrows serve": "it runs for ever; tests/serving starts servers",
    "hotrows doctor": "tests/cli runs it",
    "hotrows data NAME --raw": "gigabytes; tests/datasets builds each set from small files",
    "python examples/retrieval.py": "tests/serving runs it",
    "python examples/click_to_score.py": "tests/test_examples.py runs it",
    "export PYTHONPATH": "sets a variable",
    "export PIP_EXTRA_INDEX_URL": "sets a variable",
    "eval": "completion of a shell",
    "source": "completion of a shell",
    "_HOTROWS_COMPLETE": "completion of a shell",
}
MADE = r'(?:prepare\w*|write_encoded|Trainer)\(.*?"((?:enc|runs/|prepared)[\w/-]*)"'  # by Python
# Options that end a command of a page early, by words of it.
SHORTER = {
    ("train", "adult"): ["--steps", "40"],
    ("train", "shop"): ["--steps", "40"],
    ("train", "clicks"): ["--steps", "10"],
    ("synth", "200000"): ["--rows", "2000"],
    ("tune",): ["--seconds", "1"],
    ("regroup",): ["--force"],
    ("--stream",): ["--stop-when-idle", "0.3"],
    ("runs/live", "--resume"): ["--stop-when-idle", "0.3"],
    ("--publish", "--model"): ["--publish-every", "1b"],
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, code, line, and why it is not run ("": it is)."""

    language: str
    code: str
    line: int
    not_run: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    fence = re.compile(r"^(?:<!-- not run: ([^\n]+) -->\n)?```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)
    return [
        Block(m[2], m[3], text[: m.start()].count("\n") + 1, m[1] or "") for m in fence.finditer(text)
    ]


def commands(code: str) -> Iterator[list[str]]:
    """The commands of a block of shell, as words; lines that end with a backslash are joined."""
    for line in re.sub(r"\\\n", " ", code).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set("&|;"):
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words


def elsewhere(words: list[str]) -> bool:
    text = " ".join(words)
    raw = words[:2] == ["hotrows", "data"] and "--raw" in words
    return raw or any(text.startswith(start) for start in ELSEWHERE)


def arguments(words: list[str]) -> list[str] | None:
    """What a command gives to hotrows, under torchrun too; None of another command."""
    if words[0] == "hotrows":
        return words[1:]
    text = shlex.join(words)
    return shlex.split(text.split("-m hotrows", 1)[1]) if "-m hotrows" in text else None


def check(given: list[str]) -> None:
    """Raises where the command line would refuse a command: its name, its options, their values."""
    command: click.Command = cli.cli
    context = click.Context(command, **command.context_settings)  # its options of help are kept
    while isinstance(command, click.Group) and given:
        found = command.get_command(context, given[0])
        if found is None:
            raise click.UsageError(f"no command {given[0]!r}")
        command, given = found, given[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    values, _, _ = command.make_parser(context).parse_args([*given])
    for parameter in command.params:
        value = values.get(parameter.name)
        is_path = isinstance(parameter.type, click.Path)  # of a file that is not there
        if isinstance(value, str | list) and not is_path:
            parameter.type_cast_value(context, value)


def run_shell(block: Block) -> None:
    """Runs the commands of hotrows of a block in this process, in the current folder."""
    for words in commands(block.code):
        given = arguments(words)
        if elsewhere(words):
            continue
        if given is None:
            raise AssertionError(f"line {block.line}: say how {words} is run, or why not")
        _make_room(given)
        shorter = [
            option for word, options in SHORTER.items() if {*word} <= {*given} for option in options
        ]
        try:
            cli.main([*given, *shorter])
        except SystemExit as left:
            if left.code:
                raise AssertionError(
                    f"line {block.line}: {shlex.join(words)} ended with {left.code}"
                ) from None


def run_python(block: Block, page: str, names: dict[str, Any]) -> None:
    """Runs a block of Python with the names of the blocks before it, in the current folder."""
    for place in re.findall(MADE, block.code, re.S):
        _remove(place)
    exec(compile(block.code, f"{page}:{block.line}", "exec"), names)


def _make_room(given: list[str]) -> None:
    """Deletes what a command is to make: another block of the page, or the test's folder, has made it."""
    if "--resume" in given:
        return
    for option, value in pairwise(given):
        if option in ("--out", "--run") or (option == "--config" and given[0] == "tune"):
            _remove(value)


def _remove(place: str) -> None:
    shutil.rmtree(place) if os.path.isdir(place) else Path(place).unlink(missing_ok=True)
