"""Wrong changes of C++: of each token that has an opposite or a neighbor, as the core's code is laid out.

Binary operators have spaces around them there, brackets of templates have none, and a statement that ends
on its line is one without a type before its first name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PAIRS = {
    "comparison": (r"(?<= )(?:<=?|>=?|==|!=)(?= )", "< <=  <= <  > >=  >= >  == !=  != =="),
    "arithmetic": (r"(?<= )(?:[-+*/%&|]|<<|>>)(?= )", "+ -  - +  * /  / *  % /  & |  | &  << >>  >> <<"),
    "and or": (r"&&|\|\|", "&& ||  || &&"),
    "step": (r"\+\+|--|(?<= )[+-]=(?= )", "++ --  -- ++  += -=  -= +="),
    "min max": (r"(?<=std::)(?:min|max)(?=[(<])", "min max  max min"),
    "constant": (r"\b(?:true|false)\b", "true false  false true"),
}
OPPOSITES = {kind: dict(p.split() for p in pairs.split("  ")) for kind, (_, pairs) in PAIRS.items()}
NOT = re.compile(r"!(?=[\w(])")
NUMBER = re.compile(r"(?<![\w.'])\d+(?![\w.'])")
STATEMENT = re.compile(r"(?:[\w.\[\]:]|->)+(?:\(.*\)| (?:[-+*|&^]|<<|>>)?= .*|\+\+);|(?:continue|break);")
CONDITION = re.compile(r"\b(?:if|while) \(")
SILENT = re.compile(r'//.*|"(?:\\.|[^"\\])*"|^ *#.*|^ *static_assert.*|^ *using .*|^ *template.*')


def changes(content: bytes) -> Iterator[tuple[str, int, int, str]]:
    """The kind of each change, the bytes that it replaces, and their new text."""
    begin, continues = 0, False
    for line in content.decode("latin-1").splitlines(keepends=True):  # a letter for each byte
        code = SILENT.sub(lambda found: " " * len(found[0]), line)
        if not continues and code.strip():  # of no macro
            for kind, start, stop, new in _changes(code):
                yield kind, begin + start, begin + stop, new
        continues = line.rstrip().endswith("\\")
        begin += len(line)


def _changes(code: str) -> Iterator[tuple[str, int, int, str]]:
    for kind, (pattern, _) in PAIRS.items():
        for found in re.finditer(pattern, code):
            yield kind, found.start(), found.end(), OPPOSITES[kind][found[0]]
    for found in NOT.finditer(code):
        yield "not", found.start(), found.end(), ""
    for found in NUMBER.finditer(code):
        yield "constant", found.start(), found.end(), str(int(found[0]) + 1)
    for found in CONDITION.finditer(code):
        stop = _closing(code, found.end())
        if stop is not None:
            yield "branch", found.end(), stop, f"!({code[found.end() : stop]})"
    if (whole := STATEMENT.fullmatch(code.strip())) is not None:
        start = code.index(whole[0])
        yield "statement", start, start + len(whole[0]), ";"


def _closing(code: str, start: int) -> int | None:
    """Where the bracket closes that opens before `start`; None where that is on another line."""
    depth = 1
    for place in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return None
