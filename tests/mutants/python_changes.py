"""Wrong changes of Python: of each node of the syntax tree that has an opposite or a neighbor."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "amin": "amax",
            "amax": "amin", "any": "all", "all": "any"}  # fmt: skip


def changes(content: bytes) -> Iterator[tuple[str, int, int, str]]:
    """The kind of each change, the bytes that it replaces, and their new text."""
    starts = list(accumulate(map(len, content.splitlines(keepends=True)), initial=0))
    for node, is_default in _nodes(ast.parse(content), False):
        for kind, place, new in _changes(node):
            kind = "default" if is_default and kind == "constant" else kind
            start = starts[place.lineno - 1] + place.col_offset
            yield kind, start, starts[place.end_lineno - 1] + place.end_col_offset, new


def _nodes(node: ast.AST, is_default: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes that compute: no annotation, message, assertion, or what only type checkers read."""
    yield node, is_default
    if isinstance(node, (ast.JoinedStr, ast.Assert, ast.Raise)) or _is_for_checkers(node):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        defaults = isinstance(node, ast.AnnAssign) or name in ("defaults", "kw_defaults")
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, defaults)


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _changes(node: ast.AST) -> Iterator[tuple[str, Any, str]]:
    """The changes of one node: their kinds, the nodes that are replaced, and the new texts."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in COMPARISONS:
            yield "comparison", node, _text(ast.Compare(left, [COMPARISONS[type(op)]()], others))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if not isinstance(left, (ast.JoinedStr, ast.List)) and not isinstance(right, ast.JoinedStr):
                yield "arithmetic", node, _text(ast.BinOp(left, ARITHMETIC[type(op)](), right))
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and or", node, _text(ast.BoolOp(other, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, _text(operand)
        case ast.Constant(value=bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, str(value + 1)
            yield "constant", node, f"({value - 1})"
        case ast.IfExp(test=test, body=body, orelse=other):
            yield "branch", node, _text(ast.IfExp(test, other, body))
        case ast.If(test=test) | ast.While(test=test) if not _is_for_checkers(node):
            yield "branch", test, f"(not {_text(test)})"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in EXTREMES:
            function = ast.unparse(node.func)
            yield "min max", node.func, function.removesuffix(name) + EXTREMES[name]
        case ast.Call(func=function, args=[ast.Name() as first, ast.Name() as second, *_]):
            if first.id != second.id and ast.unparse(function) not in dir(builtins):
                yield "order", _span(first, second), f"{second.id}, {first.id}"
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield "slice", bound, _text(ast.BinOp(bound, ast.Add(), ast.Constant(1)))
    dropped = isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break))
    if isinstance(node, ast.Assign):
        dropped = all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    if dropped or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "statement", node, "pass"


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, (ast.BoolOp, ast.IfExp, ast.BinOp, ast.UnaryOp)) else text


def _span(first: ast.expr, last: ast.expr) -> ast.expr:
    span = ast.copy_location(ast.Constant(None), first)
    span.end_lineno, span.end_col_offset = last.end_lineno, last.end_col_offset
    return span
