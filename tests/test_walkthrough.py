"""The walk through the code: its links lead to what they name, and the path is short."""

import ast
import re
import sys
import threading
from functools import cache
from pathlib import Path

import hotrows
from hotrows.data import prepare
from hotrows.schema import Dense, Schema, Sparse

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "walkthrough.md"


@cache
def definitions(path: Path) -> dict[str, range]:
    """Classes and functions of a file by dotted name, methods included, with their lines."""
    lines: dict[str, range] = {}

    def visit(parent: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                lines[prefix + node.name] = range(first, node.end_lineno + 1)
                visit(node, f"{prefix}{node.name}.")

    visit(ast.parse(path.read_text()), "")
    return lines


def links(text: str) -> list[tuple[Path, str]]:
    pattern = r"\[`([\w.]+)`\]\((\.\./src/[^)]+)\)"
    return [((PAGE.parent / path).resolve(), name) for name, path in re.findall(pattern, text)]


def part(title: str) -> str:
    """The section of the page whose title begins so."""
    return next(s for s in re.split(r"^## ", PAGE.read_text(), flags=re.M) if s.startswith(title))


def size(text: str) -> tuple[int, int]:
    """(files, lines of definitions) that the links of a text lead to, each counted once."""
    lines = {(path, line) for path, name in links(text) for line in definitions(path)[name]}
    return len({path for path, _ in lines}), len(lines)


def test_every_link_leads_to_a_definition():
    followed = links(PAGE.read_text())
    assert len(followed) > 60
    for path, name in followed:
        assert path.is_file(), f"{path} is not there"
        assert name in definitions(path), f"{path.relative_to(ROOT)} defines no {name}"


def test_the_walk_is_short():
    files, lines = size(part("Part 1"))
    assert files <= 10 and lines <= 1100, (files, lines)
    files, lines = size(part("Part 1") + part("The whole path"))
    assert files <= 20 and lines <= 2000, (files, lines)


def test_raw_rows_become_shards_in_few_files(tmp_path):
    """Functions of `data` that run until data.json is written, in the order of their first call."""
    rows = [f"{i % 2},{i * 1.5},{i % 7},u{i % 50},i{i % 30}" for i in range(300)]
    (tmp_path / "raw.csv").write_text("\n".join(["label,price,count,user,item", *rows]) + "\n")
    features = (Dense("price", transform="log"), Dense("count"), Sparse("user"), Sparse("item"))
    schema, folder = Schema(features, delimiter=","), Path(hotrows.__file__).parent / "data"
    entered: list[str] = []

    def note(frame, event, argument) -> None:
        place = Path(frame.f_code.co_filename)
        if event == "call" and folder in place.parents and place.name != "__init__.py":
            entered.append(str(place.relative_to(folder)))
        if frame.f_code.co_name == "write_signed":
            sys.setprofile(None)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        prepare(tmp_path / "raw.csv", schema, tmp_path / "enc")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # A kind of column is read and encoded in its own file; the way around them is this long.
    kinds = {"group", "id", "key", "label", "list", "number", "time", "vector", "weight"}
    around = {path for path in entered if path not in {f"columns/{kind}.py" for kind in kinds}}
    assert 10 < len(around) <= 19, sorted(around)
