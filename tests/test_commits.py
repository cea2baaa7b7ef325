"""Commits say what and why: a subject of one thing, and a body."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BASE = "a1980357"  # of the commits after it the form is asked; those before it stay as they are
MOST_LETTERS = 72  # of a subject: `git log --oneline` shows it whole


def faults(message: str) -> list[str]:
    """What a commit's message lacks."""
    subject, _, body = message.strip().partition("\n")
    missing = []
    if not 8 <= len(subject) <= MOST_LETTERS:
        missing.append(f"a subject of 8 to {MOST_LETTERS} letters, not {len(subject)}")
    if subject.endswith("."):
        missing.append("a subject without a full stop")
    if not body.startswith("\n") or len(body.split()) < 5:
        missing.append("a body, after an empty line, that says why")
    return missing


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
