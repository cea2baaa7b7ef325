"""How often the source asks which of the engine's axes it is on: `python -m tests.axes` prints it.

An axis (host or device, one rank or several, ..) is answered once, where an object is made; a function
that runs for each batch asks none of them. What is counted is a condition (of `if`, `while`, `assert`, a
conditional expression, a filter, or an operand of `and`, `or` and `not`) that has one of an axis's
spellings in it, whichever: `caching is None`, `not caching` and `len(lists)` of a bare name alike. A name
that is handed on is no question. `MOST` is what was reached: lower it, never raise it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

KINDS = "kind of column"
SOURCE = Path(__file__).resolve().parents[1] / "src" / "hotrows"
# Of each axis: what a condition is in full, when it asks for the truth of a value or compares it with
# None; and what it has in it otherwise.
TRUTHS = {
    "host or device": r".*\.(on_host|is_cuda|is_cpu)|on_host",
    "one rank or several": r".*\b(routes|has_ranks|_is_alone|_alone|is_several)",
    "static or dynamic ids": r"(.*\.)?dynamic(\.vocabularies)?|is_static|.*\b_is_dynamic",
    "all in memory or cached": r"(.*\.)?(_?cached_tables|cached|caching)|.*\.fast_memory|fast_memory",
    "lazy or dense row optimizer": r".*\bdense_rows",
    "samples or requests": r"(.*\.)?requests",
    "data or stream": r"is_stream|(state|_state|self)\.stream",
    KINDS: r".*\.(weighted|many|keeps_times|has_numbers|sequences)|.*schema\.(histories|vectors)",
    "exact or padded plan": r"(.*\.)?_?(padded|pads)",
}
OTHERS = {
    "host or device": r"\.type [!=]= '(cpu|cuda)'",
    "one rank or several": r"\bnum_ranks (==|!=|>|<=) 1\b",
    "lazy or dense row optimizer": r"\bDenseRowOptimizer\b|\bin (self\.)?_?dense(_rows)?\b",
    KINDS: r"\bis_list\((?!.*(type|kind|array))|"
    r"isinstance\([^)]*\b(Dense|Sparse|SequenceFeature|ListFeature)\)",
}
# Where an axis is answered: kinds of columns where they are declared and made into objects, devices where
# these are and where an op chooses the kernel of one, ranks where their processes are.
ANSWERED = {
    KINDS: ("data/columns/", "schema.py", "schema_checks.py"),
    "host or device": ("runtime/device.py", "runtime/native.py", "ops/"),
    "one rank or several": ("engine/distributed/job.py",),
}
MOST = 192


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """The smallest expressions whose truth decides something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield from _operands(node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield from _operands(test)
        elif isinstance(node, ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            yield from _operands(node)


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _operands(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand)
    elif isinstance(test, ast.Call) and ast.unparse(test.func) in ("any", "all", "bool") and test.args:
        inner = test.args[0]
        yield from _operands(inner.elt if isinstance(inner, ast.GeneratorExp) else inner)
    else:
        yield test


def axis_of(condition: ast.expr) -> str | None:
    """The axis that a condition asks."""
    text = ast.unparse(condition)
    value = re.sub(r" is (?:not )?None$|\(\)$", "", text)
    for axis, names in TRUTHS.items():
        if re.fullmatch(names, value) or (axis in OTHERS and re.search(OTHERS[axis], text)):
            return axis
    return None


def questions() -> dict[str, list[str]]:
    """The lines that ask, by axis, as `file:number: line`."""
    asked: dict[str, list[str]] = {axis: [] for axis in TRUTHS}
    for path in sorted(SOURCE.rglob("*.py")):
        place, text = path.relative_to(SOURCE).as_posix(), path.read_text()
        lines = text.splitlines()
        found = {(axis_of(c), c.lineno) for c in conditions(ast.parse(text))}
        for axis, number in sorted(one for one in found if one[0] is not None):
            if not place.startswith(ANSWERED.get(axis, ())):
                asked[axis].append(f"{place}:{number}: {lines[number - 1].strip()}")
    return asked


if __name__ == "__main__":
    for axis, lines in questions().items():
        print(f"{len(lines):4} {axis}")
        print(*(f"       {line}" for line in lines), sep="\n")
    print(f"{sum(map(len, questions().values())):4} in all")
