"""Markup: HTML and SVG elements whose texts are escaped, so that no name or value of data becomes markup.

element("td", "a < b", kind="number")       <td class="number">a &lt; b</td>
element("td", element("b", "a & b"))        what is `Html` already stays
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

_STYLE = Path(__file__).with_name("style.css")
_EMPTY = ("meta", "path", "line", "circle", "rect")
_SHOWN = 20  # rows of a long table


class Html(str):
    """Text that is markup already."""


def element(tag: str, *children: Any, kind: str = "", **attributes: Any) -> Html:
    """An element; children: texts, which are escaped, and `Html`. kind: its class.

    >>> element('p', 'a < b', kind='note')
    '<p class="note">a &lt; b</p>'
    """
    known = {"class": kind, **attributes} if kind else attributes
    words = "".join(f' {name.replace("_", "-")}="{escape(str(value))}"' for name, value in known.items())
    if tag in _EMPTY and not children:
        return Html(f"<{tag}{words}>" if tag == "meta" else f"<{tag}{words}/>")
    return Html(f"<{tag}{words}>{joined(children)}</{tag}>")


def joined(children: Iterable[Any]) -> Html:
    """Elements and texts one after the other."""
    return Html("".join(one if isinstance(one, Html) else escape(str(one)) for one in children))


def document(title: str, below: str, sections: Mapping[str, Html], refresh: int | None = None) -> str:
    """A page that needs nothing but itself. sections: by title, empty ones are left out; refresh: seconds
    after which a reader loads it again."""
    present = {name: content for name, content in sections.items() if content}
    anchors = {name: name.lower().replace(" ", "-") for name in present}
    links = [element("a", name, href=f"#{anchor}") for name, anchor in anchors.items()]
    body = [
        element("header", element("h1", title), element("p", below), element("nav", *links)),
        *(element("section", element("h2", n), content, id=anchors[n]) for n, content in present.items()),
    ]
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="refresh", content=refresh) if refresh else "",
        element("title", title),
        element("style", Html(_STYLE.read_text(encoding="utf-8"))),
    ]
    page = element("html", element("head", *head), element("body", element("main", *body)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], kind: str = "") -> Html:
    """A table, which scrolls where the page is narrow; the first cell of each row is its name."""
    head = element("tr", *(element("th", name, scope="col") for name in header))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in cells))
        for first, *cells in rows
    ]
    thead = element("thead", head) if any(header) else ""
    content = element("table", thead, element("tbody", *body), kind=kind)
    return element("div", content, kind="wide") if body else Html()


def shortened(header: Sequence[Any], rows: Sequence[Sequence[Any]], what: str) -> Html:
    """A table whose rows from some on are folded; what: they are."""
    more = f"{len(rows) - _SHOWN:,} more {what}"
    return joined((table(header, rows[:_SHOWN]), folded(more, table(header, rows[_SHOWN:]))))


def compared(
    names: Sequence[str],
    texts: Sequence[Mapping[str, str]],
    only: Iterable[str] | None = None,
    marked: bool = True,
) -> Html:
    """A table with a column of texts by name for each run; what differs from the first is marked.

    only: the names to show, by default all; marked: whether differences are.
    """
    rows = []
    for name in dict.fromkeys(name for one in texts for name in one) if only is None else only:
        values = [one.get(name, "") for one in texts]
        kinds = ["differs" if marked and value != values[0] else "same" for value in values]
        if any(values):
            rows.append((name, *(element("span", v, kind=k) for v, k in zip(values, kinds, strict=True))))
    return table(("", *(names if len(names) > 1 else [""])), rows, kind="texts")


def figure(title: str, drawing: Html, below: str = "", keys: Sequence[tuple[str, int]] = ()) -> Html:
    """A drawing below its title; empty where the drawing is. keys: name and colour of what it shows."""
    if not drawing:
        return drawing
    legend = [element("span", name, kind=f"key c{color}") for name, color in keys]
    shown = element("p", *legend, kind="keys") if legend else ""
    return element("figure", element("figcaption", title), shown, drawing, note(below) if below else "")


def named(names: Iterable[str]) -> list[Html]:
    """Names beside squares in the colours of what they stand for."""
    return [element("span", name, kind=f"key c{color}") for color, name in enumerate(names)]


def folded(title: str, content: Html) -> Html:
    """Content that is shown when its title is clicked; empty where the content is."""
    return element("details", element("summary", title), content) if content else Html()


def note(text: str) -> Html:
    return element("p", text, kind="note")


def grid(figures: Iterable[Html]) -> Html:
    """Figures side by side, as many as fit."""
    present = [one for one in figures if one]
    return (
        element("div", *present, kind="grid pairs" if len(present) == 4 else "grid")
        if present
        else Html()
    )
