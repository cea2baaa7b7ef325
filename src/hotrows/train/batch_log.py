"""Batch log: `stream.jsonl` of a run on a stream, a line for each batch, by which another run cuts alike.

    {"format": 1, "step": 12, "size": 64, "reads": [{"file": "a.csv", ..}, ..], "crc32": 2774413601}

`reads`: the position of the stream behind each read that the batch was made of.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotrows import checkpoint
from hotrows.json_file import JsonFile, build
from hotrows.streams import CutBatch
from hotrows.streams.line_log import LineLog, read_lines

log = logging.getLogger("hotrows")

NAME = "stream.jsonl"
_LINE = JsonFile("bring it back from a copy")


@dataclass(frozen=True)
class LoggedBatch:
    """A batch of a run: its step, how many events it has, and the reads that it was made of."""

    step: int
    size: int
    reads: tuple[dict[str, Any], ...]


class BatchLog:
    """The log of a run that goes on after a step: lines of later batches are cut off."""

    def __init__(self, run: Path, step: int) -> None:
        path = run / NAME
        if step:
            _check_goes_to(path, step)
        self._log = LineLog(path, lambda line: type(n := line.get("step")) is int and n <= step)
        self.sync, self.close = self._log.sync, self._log.close

    def write(self, step: int, cut: CutBatch) -> None:
        self._log.write(_LINE.sign({"step": step, "size": cut.batch.size, "reads": cut.reads}))


def batches_after(place: Path, step: int) -> list[LoggedBatch]:
    """The batches after a step, by the log of a run or its folder."""
    path = place / NAME if place.is_dir() else place
    if not path.exists():
        raise ValueError(
            f"{path} does not exist: a run on a stream writes it, and its batches are cut alike"
        )
    saved = 0
    if checkpoint.pointed(path.parent) is not None:
        saved = checkpoint.read_manifest(checkpoint.folder_of(path.parent, "last")).step
    fields = [_LINE.verified(path, line) for line in read_lines(path)]
    with _LINE.naming(path):
        lines = [build(LoggedBatch, line, "batch") for line in fields]
        later = [line for line in lines if line.step > step]
        if [line.step for line in later] != list(range(step + 1, step + 1 + len(later))):
            raise ValueError(f"it does not have each batch after step {step:,} once")
        if step + len(later) < saved:
            raise ValueError(f"it lacks batch {step + len(later) + 1:,} of the {saved:,} trained")
    return later


def _check_goes_to(path: Path, step: int) -> None:
    """Raises ValueError where a line up to that of a step is missing: all were durable before its
    checkpoint."""
    if not path.exists():
        log.warning(f"{path} is gone: batches up to step {step:,} cannot be made again (--repeat)")
        return
    last = None
    for line in read_lines(path):
        number = line.get("step")
        if type(number) is not int or (last is not None and number != last + 1):
            break
        last = number
        if last == step:
            return
    raise ValueError(
        f"{path} is damaged: the line behind that of batch {last or 0:,}, of {step:,}, cannot be read; "
        f"bring it back from a copy, or move it away, if these batches need not be made again"
    )
