"""Drawings: charts and bars as inline SVG, whose colours are the page's, in light and dark.

chart([Line("a", x, y, color=0)], x_label="step")       lines over two axes
bar(0.3)                                                a bar in a cell of a table
whisker(0.1, (0.05, 0.15), -0.1, 0.2)                   a dot with its interval in such a cell
picture("Run a", "batch 64", [("Loss", chart(..), ())]) a file of several charts
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hotrows.runtime.pages.markup import Html, element, joined
from hotrows.runtime.pages.numbers import short

_WIDTH, _HEIGHT = 440, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 10, 42
_MOST_POINTS = 500
Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """Points that a line joins. kind: its class: bold, faint, dashed, dots or steps; dots have no line.

    names: of the points, which are shown when they are pointed at; intervals: low and high of each y.
    """

    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    kind: str = "bold"
    names: Sequence[str] = ()
    intervals: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Box:
    """A filled rectangle between two numbers on each axis; name: shown when it is pointed at."""

    left: float
    right: float
    low: float
    high: float
    color: int = 0
    name: str = ""


class _Axes:
    """Places of numbers in the drawing. ticks: x and y of the marks, by default round numbers."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        log: tuple[bool, bool],
        marks: tuple[Sequence[float] | None, Sequence[float] | None],
    ) -> None:
        self.x_range, self.y_range, self.log = x, y, log
        of_log = [_powers if is_log else ticks for is_log in log]
        self.x_ticks, self.y_ticks = (
            places(*span) if chosen is None else chosen
            for chosen, places, span in zip(marks, of_log, (x, y), strict=True)
        )

    def x(self, value: float) -> float:
        return _LEFT + _share(value, self.x_range, self.log[0]) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = min(max(_share(value, self.y_range, self.log[1]), -0.02), 1.02)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _share(value: float, span: tuple[float, float], log: bool) -> float:
    """Where a number stands in a range, from 0 to 1."""
    low, high = span
    if log:
        value, low, high = (math.log10(max(v, 1e-12)) for v in (value, low, high))
    return (value - low) / (high - low)


def chart(
    lines: Sequence[Line],
    x_label: str,
    *,
    boxes: Sequence[Box] = (),
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    x_ticks: Sequence[float] | None = None,
    y_ticks: Sequence[float] | None = None,
    x_format: Format = short,
    y_format: Format = short,
    log_x: bool = False,
    log_y: bool = False,
) -> Html:
    """Draws boxes and lines over two axes; ranges: by default those of the points, with a margin in y.

    Empty where there is nothing to draw.
    """
    points = [(x, y) for line in lines for x, y in zip(line.x, line.y, strict=True)]
    points += [corner for box in boxes for corner in ((box.left, box.low), (box.right, box.high))]
    if not points:
        return Html()
    x_range = x_range or (min(x for x, _ in points), max(x for x, _ in points))
    ends = [end for line in lines for interval in line.intervals for end in interval]
    y_range = y_range or (_padded([y for _, y in points] + ends, log_y))
    axes = _Axes(_apart(x_range), _apart(y_range), (log_x, log_y), (x_ticks, y_ticks))
    parts = [*_grid(axes, x_format, y_format), *(_filled(box, axes) for box in boxes)]
    parts += [_drawn(line, axes) for line in lines]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(element("text", x_label, x=middle, y=_HEIGHT - 6, text_anchor="middle", kind="label"))
    return element("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", kind="chart")


def _padded(values: Sequence[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        return low / 1.3, high * 1.3
    margin = (high - low) * 0.06
    return (0.0 if low >= 0 > low - 3 * margin else low - margin), high + margin


def _apart(span: tuple[float, float]) -> tuple[float, float]:
    low, high = span
    return span if high > low else (low - abs(low) * 0.1 - 1e-9, high + abs(high) * 0.1 + 1e-9)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most so many round numbers in a range, evenly apart.

    >>> ticks(0.0, 10.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """The powers of ten in a range."""
    return [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _grid(axes: _Axes, x_format: Format, y_format: Format) -> Iterator[Html]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in axes.y_ticks:
        y = f"{axes.y(value):.1f}"
        yield element("line", x1=_LEFT, x2=right, y1=y, y2=y, kind="grid-line")
        yield element("text", y_format(value), x=_LEFT - 6, y=y, dy="0.35em", text_anchor="end")
    for value in axes.x_ticks:
        x = f"{axes.x(value):.1f}"
        yield element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, kind="axis")
        yield element("text", x_format(value), x=x, y=bottom + 18, text_anchor="middle")
    yield element("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, kind="axis")


def _filled(box: Box, axes: _Axes) -> Html:
    left, right, low, high = axes.x(box.left), axes.x(box.right), axes.y(box.low), axes.y(box.high)
    place = {"x": f"{left:.1f}", "y": f"{high:.1f}"}
    place |= {"width": f"{max(right - left, 0.4):.1f}", "height": f"{low - high:.1f}"}
    name = [element("title", box.name)] if box.name else []
    return element("g", element("rect", *name, **place), kind=f"c{box.color}")


def _drawn(line: Line, axes: _Axes) -> Html:
    places = [
        (axes.x(x), axes.y(y), n)
        for n, (x, y) in enumerate(zip(line.x, line.y, strict=True))
        if math.isfinite(x) and math.isfinite(y)
    ]
    parts: list[Html] = []
    for (x, _, _), (low, high) in zip(places, line.intervals, strict=False):
        ends = {"y1": f"{axes.y(low):.1f}", "y2": f"{axes.y(high):.1f}"}
        parts.append(element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", kind="whisker", **ends))
    if line.kind != "dots":
        stride = max(1, -(-len(places) // _MOST_POINTS))
        chosen = places[::stride] + ([places[-1]] if places and (len(places) - 1) % stride else [])
        words = "H{0:.1f}V{1:.1f}" if line.kind == "steps" else "L{0:.1f} {1:.1f}"
        path = "".join(
            ("M{0:.1f} {1:.1f}" if not n else words).format(x, y) for n, (x, y, _) in enumerate(chosen)
        )
        parts.append(element("path", d=path))
    if line.kind == "dots" or line.names:
        for x, y, n in places:
            said = [element("title", line.names[n])] if line.names else []
            parts.append(element("circle", *said, cx=f"{x:.1f}", cy=f"{y:.1f}", r=3.5))
    return element("g", *parts, kind=f"{line.kind} c{line.color}")


def bar(share: float, color: int = 0) -> Html:
    """A bar of a share of its cell."""
    return _cell(
        element("rect", x=0, y=2, width=f"{100 * min(max(share, 0), 1):.2f}", height=6), color=color
    )


def whisker(
    value: float,
    interval: tuple[float, float],
    low: float,
    high: float,
    color: int = 0,
    zero: float | None = None,
) -> Html:
    """A mark at a value, with its interval (nan: none), in a cell from low to high.

    zero: where a line stands.
    """

    def place(number: float) -> str:
        return f"{100 * min(max((number - low) / max(high - low, 1e-30), 0), 1):.2f}"

    parts: list[Any] = []
    if zero is not None:
        parts.append(element("line", x1=place(zero), x2=place(zero), y1=0, y2=10, kind="axis"))
    if not math.isnan(interval[0]):
        ends = {"x1": place(interval[0]), "x2": place(interval[1])}
        parts.append(element("line", y1=5, y2=5, kind="whisker", **ends))
    parts.append(element("line", x1=place(value), x2=place(value), y1=1.5, y2=8.5, kind="mark"))
    return _cell(*parts, color=color)


def _cell(*parts: Html, color: int) -> Html:
    view = {"viewBox": "0 0 100 10", "preserveAspectRatio": "none"}
    return element("svg", *parts, kind=f"cell c{color}", **view)


def stacked(cells: Sequence[Html]) -> Html:
    """Cells of several runs, one below the other."""
    return joined(element("div", one) for one in cells)


# A file of its own has no page's style: colours are those of a page in light.
_COLORS = ("#2563a8", "#d0660a", "#2f855a", "#8a4fbf", "#c23a3a", "#0c8591", "#8a8f98")
_PICTURE_STYLE = """\
text { font: 13px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: #5b626d; }
.title { font-size: 19px; font-weight: 600; fill: #1c1f24; } .panel { font-weight: 600; fill: #1c1f24; }
path { fill: none; stroke-width: 2.2; stroke-linejoin: round; } .thin path { stroke-width: 1.3; }
.faint path { opacity: .3; stroke-width: 1.1; } .dashed path { stroke-width: 1.2; stroke-dasharray: 5 4; }
.best circle { r: 6.5px; } .grid-line { stroke: #e2e4e8; } .axis { stroke: #8a8f98; }
""" + "".join(
    f".c{n} path {{ stroke: {color}; }} .c{n} circle, .c{n} rect, .c{n}.key {{ fill: {color}; }}\n"
    for n, color in enumerate(_COLORS)
)
Panel = tuple[str, Html, Sequence[tuple[str, int]]]  # title, chart, names and colours of what it shows


def picture(title: str, below: str, panels: Sequence[Panel], last: str = "", columns: int = 2) -> str:
    """An SVG file of charts in a grid, each below its title and above its legend.

    below: a line under the title; last: a line at the bottom.
    """
    legends = [_legend(names) for _, _, names in panels]
    height = _HEIGHT + 30 + 20 * max((len(legend) for legend in legends), default=0)
    columns = min(columns, max(len(panels), 1))
    wide = max(columns * (_WIDTH + 24) + 24, *(48 + 7 * len(line) for line in (below, last)))
    high = 70 + -(-len(panels) // columns) * height + 26
    parts = [element("text", title, x=24, y=34, kind="title"), element("text", below, x=24, y=56)]
    for n, ((name, drawing, _), legend) in enumerate(zip(panels, legends, strict=True)):
        x, y = 24 + n % columns * (_WIDTH + 24), 78 + n // columns * height
        parts.append(element("text", name, x=x, y=y + 12, kind="panel"))
        place: dict[str, Any] = {
            "x": x,
            "y": y + 18,
            "width": _WIDTH,
            "height": _HEIGHT,
            "overflow": "visible",
        }
        parts.append(element("svg", drawing, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", **place))
        for line, entries in enumerate(legend):
            for offset, word, color in entries:
                place = {"x": x + offset, "y": y + _HEIGHT + 24 + 20 * line}
                square = element("rect", width=10, height=10, **place)
                parts.append(element("g", square, kind=f"c{color}"))
                parts.append(element("text", word, x=place["x"] + 16, y=place["y"] + 10))
    parts.append(element("text", last, x=24, y=high - 12))
    # A white page with the style in it, so that the file stands by itself.
    style = element("style", Html(_PICTURE_STYLE))
    paper = element("rect", width="100%", height="100%", fill="#fff")
    size: dict[str, Any] = {"viewBox": f"0 0 {wide} {high}", "width": wide, "height": high}
    return element("svg", style, paper, *parts, xmlns="http://www.w3.org/2000/svg", **size) + "\n"


def _legend(names: Sequence[tuple[str, int]]) -> list[list[tuple[int, str, int]]]:
    """Lines of entries: offset in pixels, word, colour."""
    lines: list[list[tuple[int, str, int]]] = []
    x = _WIDTH
    for word, color in names:
        width = 34 + 7 * len(word)
        if x + width > _WIDTH:
            lines.append([])
            x = _LEFT if width <= _WIDTH - _LEFT else 0
        lines[-1].append((x, word, color))
        x += width
    return lines
