"""The written words of pages, without code and what a command writes; sentences; patterns to avoid."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Patterns of language that pages do not use, by what to write.
PATTERNS = {
    "the subject first, not 'Of X'": r"(?:^|[.;:] )Of (?!course)[a-z]",
    "who does it, not a participle first": r"(?:^|[.:;] )(?:Logged|Compared|Measured|Refused|Read|Tested"
    r"|Written|Kept|Counted|Checked|Left out|Mended|Found) (?:are|is|were|was|of|by|beside)\b",
    "again": r"\banew\b",
    "one message, or nothing": r"\bin a (?:line|sentence)\b",
    "available, current": r"\bat hand\b",
    "barely, rarely, also, as usual": r"\b(?:hardly|seldom|likewise|as ever)\b",
    "compared with, next to, during": r"\b[Bb]eside\b",
    "is not a, contains NaN": r"(?<!here )\b(?:is|are) no "
    r"(?!longer|such|more|fewer|less|worse|better|slower|faster)[a-z]+",
    "your own, the model's": r"\bof (?:one's|a model of one's) own\b",
    "positives, positive rate": r"\bshare of (?:1|ones)\b",
    "fix": r"\b(?:mend|mended|mends)\b",
    "a zero before the point": r"(?<![\w.])[+-]?\.\d{3}",
}
NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,.]*")


def written(page: Path) -> str:
    """What somebody has written: without what a command writes between markers, comments and code."""
    text = re.sub(r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->", "", page.read_text(), flags=re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return re.sub(r"(!?\[[^\]]*\])\([^)]*\)", r"\1", text)  # links without their targets


def num_words(page: Path) -> int:
    return len(re.findall(r"[^\W_][\w'’.,/-]*", written(page)))


def sentences(page: Path) -> list[str]:
    """The sentences of prose and of lists, without code, tables and headings."""
    lines = written(page).splitlines()
    prose = "\n".join("" if re.match(r"\s*(?:\||#|::: )", line) else line for line in lines)
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose):
        text = " ".join(re.sub(r"`[^`]*`", "`x`", paragraph).split())
        found += [s for s in re.split(r"(?<=[.!?:;]) (?=[A-Z*`\[])", text) if s]
    return found


def habits(page: Path) -> list[str]:
    """Places that use a pattern to avoid, and what to write."""
    texts = [*sentences(page), *(line for line in written(page).splitlines() if line.startswith("|"))]
    found = []
    for text in texts:
        plain = re.sub(r"`[^`]*`", "`x`", text).strip("*-| ")
        found += [f"{better}: {text[:100]}" for better, p in PATTERNS.items() if re.search(p, plain)]
    return found


def crowded(page: Path, most: int) -> list[str]:
    """Sentences with more numbers than `most`."""
    return [s for s in sentences(page) if len(NUMBER.findall(s)) > most]
