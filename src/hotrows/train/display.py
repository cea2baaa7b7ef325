"""Display: how far a run is, on a terminal or in a notebook: a bar, and a line for each evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hotrows.runtime import terminal
from hotrows.train.progress import Progress


@contextmanager
def display(verbose: bool | None) -> Iterator[Callable[[Progress], None]]:
    """Yields a function that shows the progress of a run.

    verbose: None: on a terminal and in a notebook alone; True: elsewhere too, where lines stand for
    evaluations and no bar; False: nowhere.
    """
    if not (terminal.is_watched() if verbose is None else verbose):
        yield lambda now: None
        return
    with terminal.bar() as progress:
        yield shown_by(progress)


def shown_by(progress: Callable[..., None]) -> Callable[[Progress], None]:
    """Shows a run's progress on a bar, `progress(stage, done, total, note)`, and by lines that stay."""

    def show(now: Progress) -> None:
        stage, total = "evaluating" if now.stage == "evaluate" else "training", now.total or None
        progress(stage, now.done, total, _note(now))
        if now.validation is not None:
            shown = list(now.validation.shown().items())[:3]
            numbers = [
                f"{name} {value:.6f}" for name, value in shown if name != "calibration" or not total
            ]
            what = f" of {total:,}: validation" if total else ": window"
            print(f"step {now.done:,}{what} {', '.join(numbers)}{_standing(now)}", file=sys.stderr)

    return show


def _standing(now: Progress) -> str:
    """The place of an evaluation among those so far."""
    if not now.is_best:
        return ""
    return ", best so far" if now.is_peak else ", kept: within one standard error of the best so far"


def _note(now: Progress) -> str:
    """The text behind the bar."""
    note = ""
    if now.loss is not None and now.samples_per_second is not None:
        note = f"loss {now.loss:.4f}  {now.samples_per_second:,.0f} samples/s"
    if now.hit_rate is not None:
        note += f"  hits {now.hit_rate:.1%}  in {_megabytes(now.bytes_in)}"
        note += f"  out {_megabytes(now.bytes_out)}"
    if now.waited is not None and now.waited > 0.01:
        note += f"  waits {now.waited:.0%} ({now.waited_for})"
    return note


def _megabytes(per_second: float | None) -> str:
    return f"{(per_second or 0) / 1e6:,.1f} MB/s"
