"""The code of the pages: every block is run, or says why not; every command is one that hotrows takes."""

import json
import os
import sys

import click
import pytest

from tests.support import page_code, page_folders
from tests.support.page_code import PAGES, ROOT, Block

IDS = [str(page.relative_to(ROOT)) for page in PAGES]
QUICK = {"README.md", "docs/python.md"}
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in IDS if name not in QUICK]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_block_says_its_language_and_is_of_it(page):
    for block in page_code.blocks(page):
        assert block.language in page_code.LANGUAGES, f"line {block.line}: {block.language!r}"
        if block.language == "json" and not block.not_run:
            json.loads(block.code)
        elif block.language == "python" and not block.not_run:
            compile(block.code, f"{page.name}:{block.line}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_the_command_line_takes_every_command(page):
    for block in page_code.blocks(page):
        for words in page_code.commands(block.code) if block.language == "sh" else ():
            given = page_code.arguments(words)
            assert given is not None or block.not_run or page_code.elsewhere(words), (
                f"line {block.line}: say how {words} is run, or why not"
            )
            if given is not None:
                page_code.check(given)


def test_a_wrong_command_is_noticed():
    for given, why in (
        (["trian", "enc"], "no command"),
        (["train", "enc", "--modle", "fm"], "--modle"),
        (["train", "enc", "--epochs", "many"], "many"),
        (["train", "enc", "--model"], "requires an argument"),
    ):
        with pytest.raises(click.UsageError, match=why):
            page_code.check(given)


def test_a_block_that_fails_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="line 7: hotrows eval nowhere ended with"):
        page_code.run_shell(Block("sh", "hotrows eval nowhere\n", 7, ""))
    with pytest.raises(AssertionError, match="say how"):
        page_code.run_shell(Block("sh", "make coffee\n", 7, ""))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Raw rows, prepared data and a run, as pages name them."""
    folder = tmp_path_factory.mktemp("pages")
    page_folders.fill(folder)
    return folder


@pytest.mark.usefixtures("one_thread", "no_pictures")
@pytest.mark.parametrize("name", [*sorted(QUICK), *OTHERS])
def test_the_page_runs(name, prepared, tmp_path, monkeypatch):
    if not [b for b in page_code.blocks(ROOT / name) if b.language in ("python", "sh") and not b.not_run]:
        return
    names = page_folders.names(name, prepared, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for block in page_code.blocks(ROOT / name):
        if block.not_run:
            continue
        if block.language == "python":
            names |= page_folders.renewed(name)
            page_code.run_python(block, name, names)
        elif block.language == "sh":
            page_code.run_shell(block)
    page_folders.judge(name, names)
    assert os.listdir(tmp_path)
