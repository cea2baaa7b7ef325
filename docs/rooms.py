"""The map of docs/rooms.md: what each package promises, its lines, its tests and their seconds.

python docs/rooms.py   writes it into the page, between markers: at a release, and when a promise changed
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS, PAGE = ROOT / "src" / "hotrows", ROOT / "tests", ROOT / "docs" / "rooms.md"
TIMES = TESTS / "times.json"  # seconds of all cases, and of the slowest, by test: python -m tests.times
BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"


def table() -> str:
    """The map as Markdown: packages, then modules at the root, a line for each."""
    packages = sorted(path.parent for deep in ("*", "*/*") for path in SOURCE.glob(f"{deep}/__init__.py"))
    modules = sorted(path for path in SOURCE.glob("*.py") if path.stem[0] != "_")
    lines = ["| room | promise | lines | tests | seconds |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(line(room) for room in [*packages, *modules])])


def line(room: Path) -> str:
    files = sorted(room.rglob("*.py")) if room.is_dir() else [room]
    name = room.relative_to(SOURCE).with_suffix("")
    count = sum(file.read_text().count("\n") for file in files)
    tests = tests_of(room.stem)
    num_tests = sum(len(re.findall(r"^(?:    )?def test_", f.read_text(), re.M)) for f in tests)
    cells = (f"`{name}`", promise(files[0]), f"{count:,}", str(num_tests or ""), seconds(tests))
    return f"| {' | '.join(cells)} |"


def promise(file: Path) -> str:
    """The first sentence of a docstring, without the name of the room in front of it."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    first = re.split(r"\n\n|(?<=[.:])\s*\n", text)[0]
    return " ".join(first.rstrip(":").split()).replace("|", "\\|")


def tests_of(room: str) -> list[Path]:
    """The files of the folder with the room's name, and the one with its name."""
    files = [*(TESTS / room).rglob("test_*.py"), TESTS / f"test_{room}.py"]
    return sorted(file for file in files if file.exists())


def seconds(tests: list[Path]) -> str:
    """How long tests took when they were last measured; "": not measured."""
    if not TIMES.exists():
        return ""
    names = {str(path.relative_to(ROOT)) for path in tests}
    times = json.loads(TIMES.read_text())
    total = sum(time[0] for test, time in times.items() if test.split("::")[0] in names)
    return f"{total:.0f}" if total else ""


def with_table(text: str) -> str:
    """The text of the page with the map between its markers."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def stable(text: str) -> list[str]:
    """The lines of the page without what changes with every commit: lines, tests and seconds."""
    return [re.sub(r"^(\| `[\w/]+` \|.*?\|).*", r"\1", line) for line in text.splitlines()]


def main() -> int:
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
