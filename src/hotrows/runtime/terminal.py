"""The terminal, or the notebook: where messages go, and a bar that says how far work is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def messages() -> Console:
    """The console of standard error; in a notebook, its output."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def is_watched() -> bool:
    """True if standard error is a terminal, or this is a notebook."""
    console = messages()
    return console.is_terminal or console.is_jupyter


def silent(*done: Any) -> None:
    """Progress that is not shown."""


@contextmanager
def bar(first: str = "") -> Iterator[Callable[..., None]]:
    """progress(stage, done, total, note): a bar on a terminal, or in a notebook that has ipywidgets.

    Elsewhere it shows nothing. first: a stage that is shown until another one begins.
    """
    console = messages()
    shows_widgets = console.is_jupyter and find_spec("ipywidgets") is not None
    if not (console.is_terminal or shows_widgets):
        yield silent  # a disabled bar of rich before 15 ends with an empty line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        redirect_stdout=False,
    ) as shown:
        tasks: dict[str, Any] = {}

        def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
            if stage not in tasks:
                for earlier in tasks.values():
                    shown.update(earlier, visible=False)
                tasks[stage] = shown.add_task(stage, total=total, note=note)
            shown.update(tasks[stage], completed=done, total=total, note=note, visible=True)

        if first:
            progress(first, 0, None)
        yield progress
