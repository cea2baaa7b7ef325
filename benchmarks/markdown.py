"""Tables of pages that a command writes: text by hand stays around them, between markers."""

from collections.abc import Mapping
from pathlib import Path

BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"


def table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def put(page: Path, tables: Mapping[str, str]) -> None:
    """Replaces what stands between the markers of each name."""
    text = page.read_text()
    for name, content in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, after = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{after.split(end)[1]}"
    page.write_text(text)
