"""How often the source asks which of the engine's axes it is on: `python -m tests.axes` prints it.

An axis (host or device, one rank or several, ..) is answered once, where an object is made; a function
that runs for each batch asks none of them. `MOST` is what was reached: lower it, never raise it.
"""

import re
from pathlib import Path

KINDS = "kind of column"  # asked in data/columns, where it is answered
SOURCE = Path(__file__).resolve().parents[1] / "src" / "hotrows"
AXES = {
    "host or device": r"\.on_host\b",
    "one rank or several": r"\bnum_ranks (?:==|!=|>) 1\b",
    "static or dynamic ids": r"\bdynamic is (?:not )?None",
    "all in memory or cached": r"\b(?:cached_tables|cached|cache|caching|fast_memory) is (?:not )?None",
    "lazy or dense row optimizer": r"^(?!.*\bimport\b).*(?:in self\.dense_rows|\bDenseRowOptimizer\b)",
    "samples or requests": r"\brequests is (?:not )?None",
    "data or stream": r"\bis_stream\b|_stream is (?:not )?None",
    KINDS: r"\bis_list\((?!.*(?:type|kind|array))|\.weighted\b|(?:schema|self)\.vectors\b(?!\()"
    r"|\bschema\.histories\b|schema\.sequences\b|\.many\b|\bkeeps_times\b|\bhas_numbers\b"
    r"|isinstance\([^)]*\b(?:Dense|Sparse|SequenceFeature|ListFeature)\b|isinstance\(feature, Sequence\b",
    "exact or padded plan": r"\bpadded\b\s*[:=](?!=)|\b(?:if|not|and|or)\b.*\bpadded\b|self\.padded\b",
}
MOST = 226


def questions() -> dict[str, list[str]]:
    """The lines that ask, by axis, as `file:number: line`."""
    asked: dict[str, list[str]] = {axis: [] for axis in AXES}
    for path in sorted(SOURCE.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for axis, pattern in AXES.items():
                if re.search(pattern, line) and not (
                    axis == KINDS and "columns" in path.relative_to(SOURCE).parts
                ):
                    asked[axis].append(f"{path.relative_to(SOURCE)}:{number}: {line.strip()}")
    return asked


if __name__ == "__main__":
    for axis, lines in questions().items():
        print(f"{len(lines):4} {axis}")
        print(*(f"       {line}" for line in lines), sep="\n")
    print(f"{sum(map(len, questions().values())):4} in all")
