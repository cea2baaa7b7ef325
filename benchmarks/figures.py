"""Figures: what the pictures of benchmarks share: colours, style, a title, and how they are written.

Drawn with matplotlib on its Agg canvas, without a display and
without touching pyplot's state. Where it is missing, this is said in one sentence and nothing is drawn.

    figure = new_figure(9.5, 6.2)
    if figure is None:
        return None
    with style():
        axes = figure.subplots()
        ...
        set_title(figure, "Skew of the lookups", "a line below it")
        return save(figure, path)
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotrows.runtime.atomic_files import replaced
from hotrows.runtime.pages.numbers import number, percent, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("hotrows")

__all__ = ["number", "percent", "short"]
BLUE, ORANGE, GREEN, GRAY, INK = "#2563a8", "#d9730d", "#2f855a", "#8a8f98", "#22252a"
_STYLE: dict[Any, Any] = {
    "font.size": 10.5,
    "font.family": "sans-serif",
    "axes.edgecolor": "#c4c8ce",
    "axes.labelcolor": INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e7e9ec",
    "xtick.color": "#5b616a",
    "ytick.color": "#5b616a",
    "text.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "hotrows",
}


def new_figure(width: float, height: float) -> Figure | None:
    """Returns an empty figure of width x height inches; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("matplotlib is not installed, so no picture is drawn: pip install matplotlib")
        return None
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def style() -> Any:
    """A context in which figures are drawn in the style of all of them."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def set_title(figure: Figure, title: str, below: str) -> None:
    """Writes a title in large letters and a line below it, and leaves room for both."""
    height = figure.get_figheight()
    title = title.encode(errors="replace").decode()  # names of folders may have bytes that are no UTF-8
    figure.text(0.012, 1 - 0.24 / height, title, fontsize=15, fontweight="bold", va="center")
    figure.text(0.012, 1 - 0.54 / height, below, fontsize=10.5, va="center", color="#5b616a")
    layout = {"rect": (0.006, 0.01, 0.988, 1 - 0.84 / height), "w_pad": 0.12}
    figure.get_layout_engine().set(**layout)  # type: ignore[union-attr]


def save(figure: Figure, path: Path) -> Path | None:
    """Writes the figure as PNG, with the folders above it; where that fails, warns and returns None, as
    what it shows is there without it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as part:
            figure.savefig(part, format="png", dpi=130)
    except OSError as error:
        log.warning("the picture %s was not written: %s", path, error.strerror or error)
        return None
    return path
