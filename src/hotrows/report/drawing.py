"""Drawings: charts and bars as inline SVG, whose colours are the page's, in light and dark.

chart([Line("a", x, y, color=0)], x_label="step")       lines over two axes
bar(0.3)                                                a bar in a cell of a table
whisker(MetricInterval(0.1, 0.05, 0.15), -0.1, 0.2)           a dot with its interval in such a cell
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hotrows.report.markup import Html, element, joined
from hotrows.report.quality import MetricInterval
from hotrows.runtime.figures import short

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


class _Axes:
    """Places of numbers in the drawing."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], log_x: bool) -> None:
        self.x_range, self.y_range, self.log_x = x, y, log_x

    def x(self, value: float) -> float:
        low, high = self.x_range
        if self.log_x:
            value, low, high = (math.log10(max(v, 1e-12)) for v in (value, low, high))
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = min(max((value - low) / (high - low), -0.02), 1.02)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def chart(
    lines: Sequence[Line],
    x_label: str,
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    x_format: Format = short,
    y_format: Format = short,
    log_x: bool = False,
) -> Html:
    """Draws lines over two axes; ranges: by default those of the points, and a margin above and below.

    Empty where there is no point.
    """
    points = [(x, y) for line in lines for x, y in zip(line.x, line.y, strict=True)]
    if not points:
        return Html()
    x_range = x_range or (min(x for x, _ in points), max(x for x, _ in points))
    ends = [end for line in lines for interval in line.intervals for end in interval]
    y_range = y_range or _padded([y for _, y in points] + ends)
    axes = _Axes(_apart(x_range), _apart(y_range), log_x)
    parts = [*_grid(axes, x_format, y_format), *(_drawn(line, axes) for line in lines)]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(element("text", x_label, x=middle, y=_HEIGHT - 6, text_anchor="middle", kind="label"))
    return element("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", kind="chart")


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = (high - low) * 0.06
    return (0.0 if low >= 0 > low - 3 * margin else low - margin), high + margin


def _apart(span: tuple[float, float]) -> tuple[float, float]:
    low, high = span
    return span if high > low else (low - abs(low) * 0.1 - 1e-9, high + abs(high) * 0.1 + 1e-9)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most so many round numbers in a range, evenly apart."""
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """The powers of ten in a range."""
    return [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _grid(axes: _Axes, x_format: Format, y_format: Format) -> Iterator[Html]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in ticks(*axes.y_range):
        y = f"{axes.y(value):.1f}"
        yield element("line", x1=_LEFT, x2=right, y1=y, y2=y, kind="grid-line")
        yield element("text", y_format(value), x=_LEFT - 6, y=y, dy="0.35em", text_anchor="end")
    for value in _powers(*axes.x_range) if axes.log_x else ticks(*axes.x_range):
        x = f"{axes.x(value):.1f}"
        yield element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, kind="axis")
        yield element("text", x_format(value), x=x, y=bottom + 18, text_anchor="middle")
    yield element("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, kind="axis")


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
    estimate: MetricInterval, low: float, high: float, color: int = 0, zero: float | None = None
) -> Html:
    """A dot with its interval, in a cell from low to high; zero: where a line stands."""

    def place(value: float) -> str:
        return f"{100 * min(max((value - low) / max(high - low, 1e-30), 0), 1):.2f}"

    parts: list[Any] = []
    if zero is not None:
        parts.append(element("line", x1=place(zero), x2=place(zero), y1=0, y2=10, kind="axis"))
    if not math.isnan(estimate.low):
        ends = {"x1": place(estimate.low), "x2": place(estimate.high)}
        parts.append(element("line", y1=5, y2=5, kind="whisker", **ends))
    parts.append(
        element("line", x1=place(estimate.value), x2=place(estimate.value), y1=1.5, y2=8.5, kind="mark")
    )
    return _cell(*parts, color=color)


def _cell(*parts: Html, color: int) -> Html:
    view = {"viewBox": "0 0 100 10", "preserveAspectRatio": "none"}
    return element("svg", *parts, kind=f"cell c{color}", **view)


def stacked(cells: Sequence[Html]) -> Html:
    """Cells of several runs, one below the other."""
    return joined(element("div", one) for one in cells)
