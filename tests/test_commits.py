"""Commits say what and why: a subject of one thing, and a body."""

import subprocess
from pathlib import Path

import pytest

from tests.support.commit_form import faults, main

ROOT = Path(__file__).parents[1]
BASE = "a1980357"  # of the commits after it the form is asked; those before it stay as they are


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def test_commits_after_the_base_say_what_and_why():
    if not git("rev-parse", "--verify", "--quiet", f"{BASE}^{{commit}}"):
        pytest.skip(f"no git history that reaches {BASE}: a sdist, or a shallow clone")
    commits = git("log", "--no-merges", "-z", "--format=%h%n%B", f"{BASE}..HEAD").split("\0")
    wrong = {text[:8]: faults(text.partition("\n")[2]) for text in commits if text.strip()}
    assert {commit: found for commit, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Bits", "letters"),
        (f"Rows {'and rows ' * 10}", "letters"),
        ("Rows are read once.\n\nThey had been read twice.", "full stop"),
        ("Rows are read once", "why"),
        ("Rows are read once\nThey had been read twice before.", "why"),
        ("Rows are read once\n\nBits.", "why"),
    ],
)
def test_a_fault_of_a_message_is_named(message, words):
    assert any(words in fault for fault in faults(message))


def test_a_message_that_says_why_passes():
    assert faults("Rows are read once\n\nThey had been read twice: 12 ms a batch.\n") == []


def test_the_hook_reads_the_message_without_comments(tmp_path):
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text("Bits\n\n# five words of a comment only\n")
    assert "letters" in main(str(file)) and "why" in main(str(file))
    file.write_text("Merge branch 'bits'\n# comment\n")
    assert main(str(file)) is None
