"""Decisions and issues for beginners: the parts that a reader looks for, and a line in the index."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "decisions"
RECORDS = sorted(FOLDER.glob("0*.md"))
ISSUES = sorted((DOCS / "good_first_issues").glob("[01]*.md"))
FORM = re.compile(
    r"# (?P<number>\d+)\. (?P<title>\S.*)\n\n"
    r"Date: (?P<date>\d{4}-\d\d-\d\d)\.(?: Extended: [\d, -]+\.)? "
    r"Status: (?P<status>accepted|under question|replaced by \d+)[^\n]*\.\n\n"
    r"## Context\n\n\S.*?\n\n## Decision\n\n\S.*?\n\n## Revisit when\n\n\S.*\.\n",
    re.DOTALL,
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name[:4])
def test_a_record_has_its_parts_and_a_line_in_the_index(record):
    match = FORM.fullmatch(record.read_text())
    assert match, "date, status, context, decision, revisit when: docs/decisions/index.md has the form"
    words = re.findall(r"[a-z0-9]+", match["title"].lower().replace("'s", "s"))
    assert record.name == f"{int(match['number']):04d}-{'-'.join(words)}.md"
    cells = (match["number"], f"[{match['title']}]({record.name})", match["date"], match["status"])
    assert f"| {' | '.join(cells)} |" in (FOLDER / "index.md").read_text()


def test_numbers_are_given_once_and_by_date():
    heads = [FORM.fullmatch(record.read_text()) for record in RECORDS]
    assert [int(head["number"]) for head in heads] == list(range(1, len(heads) + 1))
    assert len(heads) >= 45 and [head["date"] for head in heads] == sorted(head["date"] for head in heads)


@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.stem)
def test_an_issue_has_a_place_a_test_and_a_size(issue):
    text = issue.read_text()
    for part in ("**Place.** ", "**Test to add.** ", "**Expected size.** "):
        assert text.count(f"\n\n{part}") == 1, part
    title, size = text.splitlines()[0][2:], text.split("**Expected size.** ")[1].strip().rstrip(".")
    assert f"| [{title}]({issue.name}) | {size} |" in (issue.parent / "index.md").read_text()
