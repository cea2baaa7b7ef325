"""Pages by kind: how many there are, how many words they have, and how their sentences are built."""

import re

import pytest

from tests.support.page_words import DOCS, PATTERNS, crowded, habits, num_words, sentences

GUIDES = (
    *("data", "training", "python", "your_own_model", "any_model", "caching", "dynamic_ids", "requests"),
    *("streaming", "serving", "deploying", "ranks", "gpu", "tuning"),
)
KINDS = {
    "start": (
        "installation",
        "choosing_a_model",
        "improving",
        "troubleshooting",
        "tutorials/first_model",
    ),
    "tutorials": (
        *("click_log", "larger_than_memory", "many_machines", "events_to_scores"),
        *("from_deepctr_torch", "from_fuxictr", "from_torchrec", "from_keras"),
    ),
    "guides": GUIDES,
    "reference": ("command_line", "settings", "formats", "models", "data_sets"),
    "api": ("hotrows", "data", "serving"),
    "explanation": ("cache", "ranks", "kernels"),
    "evidence": ("index", "performance", "quality", "reliability", "papers", "gpu"),
    "code": (*("architecture", "walkthrough", "glossary", "rooms", "stability"), "gpu_first_run"),
    "decisions": ("index",),
    "good_first_issues": ("index",),
}
FOLDERS = {"tutorials", "reference", "api", "explanation", "evidence", "decisions", "good_first_issues"}
# One is read at a time: they grow in number, and their words are not counted.
RECORDS = r"(?:decisions/\d{4}|good_first_issues/\d\d)-[a-z0-9-]+\.md"
# Written words: without code, tables that a command writes, and targets of links.
MOST_PAGES, MOST_WORDS = 52, 40_903
NUMBERS_OF_A_SENTENCE = 3  # in guides and tutorials


def pages(kind: str) -> list[str]:
    return [f"{kind}/{name}.md" if kind in FOLDERS else f"{name}.md" for name in KINDS[kind]]


def cases(*kinds: str) -> list[str]:
    """Pages of some kinds."""
    return [name for kind in kinds for name in pages(kind)]


def test_every_page_has_a_kind():
    known = [name for kind in KINDS for name in pages(kind)]
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    there = {name for name in there if not re.fullmatch(RECORDS, name)}
    assert sorted(known) == sorted(there) and len(there) <= MOST_PAGES


def test_all_pages_keep_to_their_words():
    """Whoever needs more words deletes others, or says in the commit what a higher number buys."""
    words = {name: num_words(DOCS / name) for name in cases(*KINDS)}
    assert sum(words.values()) <= MOST_WORDS, words


@pytest.mark.parametrize(
    "name", cases("start", "tutorials", "guides", "reference", "explanation", "evidence", "code")
)
def test_a_page_keeps_the_habits_of_plain_english(name):
    assert habits(DOCS / name) == []


@pytest.mark.parametrize("name", cases("start", "tutorials", "guides"))
def test_sentences_of_a_guide_have_few_numbers(name):
    """Numbers belong in tables, and figures in docs/evidence/."""
    assert crowded(DOCS / name, NUMBERS_OF_A_SENTENCE) == []


@pytest.mark.parametrize(
    "text",
    [
        "Of list features, owners send sums.",
        "Logged are the settings.",
        "Runs measure anew.",
        "Resuming is refused in a line.",
        "The data at hand decides.",
        "That hardly matters.",
        "Planning runs beside the step.",
        "This is no run folder.",
        "A model of one's own is refused.",
        "The share of 1 is small.",
        "All are mended.",
        "It differs by .0014.",
    ],
)
def test_a_habit_is_noticed(text, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nIt works. {text}\n\n```text\nOf code nothing is said anew.\n```\n")
    assert habits(page)


def test_plain_sentences_pass_and_numbers_are_counted(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Page 1\n\nThere is no limit. It has 1, 2, 3 or 4 rows, see [5](6.md).\n\n| 1 | 2 | 3 | 4 |\n"
    )
    assert habits(page) == [] and len(sentences(page)) == 2
    assert crowded(page, 4) != [] and crowded(page, 5) == []
    assert len(PATTERNS) == 12
