"""Docstrings as Markdown, for the reference: sentences `name: what it is` become items, examples code.

Docstrings here name parameters in plain lines; read as Markdown, these would run into one paragraph, and
the `>>>` of examples would be quotations in quotations.
"""

import ast
import re
from typing import Any

from griffe import Extension, Object, Parameter

ITEM = re.compile(r"((?:\w+, )*\*{0,2}\w+): (?=\S)")


class ParameterLists(Extension):
    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring:
            functions = [member for member in (obj, obj.members.get("__init__")) if member is not None]
            parameters = [p for f in functions for p in getattr(f, "parameters", None) or ()]
            helps = {p.name: help for p in parameters if (help := as_default(p))}
            names = {p.name for p in parameters} | set(obj.members)
            listed = "\n".join(f"- `{name}`: {help}" for name, help in helps.items())
            obj.docstring.value = f"{as_list(obj.docstring.value, names)}\n\n{listed}".strip()


def as_default(parameter: Parameter) -> str:
    """Puts the default of a `setting(default, help, ..)` in its place; returns the help."""
    text = str(parameter.default)
    if not text.startswith("setting("):
        return ""
    (statement,) = ast.parse(text).body
    default, words = statement.value.args[:2]  # type: ignore[attr-defined]
    parameter.default = ast.unparse(default)
    return ast.literal_eval(words)


def as_list(docstring: str, names: set[str]) -> str:
    """The text, where sentences that begin with names and a colon begin an item each."""
    return "\n\n".join(_items(part, names) for part in docstring.split("\n\n"))


def _items(paragraph: str, names: set[str]) -> str:
    if paragraph.startswith("    "):  # code, or a drawing
        return paragraph
    words, prompt, example = paragraph.partition(">>>")
    if prompt and (not words or words.endswith("\n")):  # an example: `>>>` would begin quotations
        fenced = f"```pycon\n>>>{example.rstrip()}\n```"
        return f"{_items(words.rstrip(), names)}\n\n{fenced}".strip()
    text = " ".join(line.strip() for line in paragraph.splitlines())
    starts = [
        match.start()
        for match in ITEM.finditer(text)
        if set(match[1].replace("*", "").split(", ")) <= names
        and (match.start() == 0 or text[match.start() - 2] in ".;:)")
    ]
    if not starts:
        return paragraph
    before = text[: starts[0]].strip()
    items = [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    listed = "\n".join(ITEM.sub(r"- `\1`: ", item, count=1) for item in items)
    return f"{before}\n\n{listed}" if before else listed
