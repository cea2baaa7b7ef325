"""The words of the code: no function word is an identifier, and no two public classes share a name."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import hotrows

PACKAGE = Path(hotrows.__file__).parent
FUNCTION_WORDS = {
    *("of", "at", "here", "there", "each", "own", "rest", "whole"),
    *("found", "made", "given", "told", "asked"),
}


@pytest.fixture(scope="module")
def trees():
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def identifiers(node: ast.AST) -> Iterator[str]:
    """The names that a node of a syntax tree introduces or uses."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.rpartition(".")[2]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name


def test_no_function_word_is_an_identifier(trees):
    uses = [
        f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', '?')}: {name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        for name in identifiers(node)
        if name in FUNCTION_WORDS
    ]
    assert not uses, "name the thing, not its place in a sentence:\n" + "\n".join(uses)


def test_no_two_public_classes_share_a_name(trees):
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not shared, shared


def test_a_function_word_is_noticed():
    tree = ast.parse("def f(x):\n    return [of.result() for of in x.found(given=1)]")
    names = [name for node in ast.walk(tree) for name in identifiers(node)]
    assert {"of", "found", "given"} <= set(names)
