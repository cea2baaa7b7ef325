"""metrics.jsonl and TensorBoard events of a run."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hotrows.runtime.arrow import pa
from hotrows.runtime.atomic_files import write_text
from hotrows.runtime.json_file import parse

log = logging.getLogger("hotrows")

METRICS = "metrics.jsonl"
_KINDS = ("train", "evaluation", "window")
Listener = Callable[[str, int, Mapping[str, float]], None]  # of kind, step and numbers of a line


def read_metrics(run: Path, file: str = METRICS) -> list[dict[str, Any]]:
    """Reads the lines of metrics.jsonl; those that a crash cut off, or that are damaged, are left out."""
    path = run / file
    records, text = [], path.read_bytes() if path.exists() else b""
    for line in text.splitlines():
        try:
            record = parse(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("kind") in _KINDS and type(record.get("step")) is int:
            records.append(record)
    return records


def history(run: Path) -> Any:
    """The lines of metrics.jsonl as an Arrow table; metrics of a label are in columns tasks/LABEL/..."""
    records = [dict(flat(record)) for record in read_metrics(run)]
    names = dict.fromkeys(["kind", "step", *(name for record in records for name in record)])
    return pa.table({name: [record.get(name) for record in records] for name in names})


def utilization(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns how busy the machine was in lines of training.

    The mean `cores_busy` and `machine_busy`, the largest `peak_memory_bytes`, and by stage the share of
    the time in which it was at work. Empty where there are no lines.
    """
    seconds = sum(line["seconds"] for line in steps)
    if not seconds:
        return {}
    shares = ("cores_busy", "machine_busy")
    weighted = {name: sum(line.get(name, 0.0) * line["seconds"] for line in steps) for name in shares}
    stages = dict.fromkeys(name for line in steps for name in line if name.startswith("busy_"))
    at_work = {
        name.removeprefix("busy_").replace("_", " "): sum(line.get(name, 0.0) for line in steps)
        for name in stages
    }
    means = {name: value / seconds for name, value in (weighted | at_work).items() if value}
    peak = max((line["peak_memory_bytes"] for line in steps if "peak_memory_bytes" in line), default=None)
    return means if peak is None else means | {"peak_memory_bytes": peak}


class MetricsLog:
    """Appends to metrics.jsonl, and to TensorBoard's events where it is installed."""

    def __init__(
        self,
        run: Path,
        keep_until: int,
        evaluated: int,
        file: str = METRICS,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """Keeps what was written up to step `keep_until` and evaluations up to `evaluated`.

        file: another one than the run's, of one rank alone: no events are written beside it.
        listeners: called with each line of the run's.
        """
        limits = {"train": keep_until, "evaluation": evaluated, "window": keep_until}
        records = [r for r in read_metrics(run, file) if r["step"] <= limits[r["kind"]]]
        path = run / file
        path.parent.mkdir(exist_ok=True)
        write_text(path, "".join(json.dumps(record) + "\n" for record in records))
        with ExitStack() as opened:
            self._file = opened.enter_context(open(path, "a", buffering=1))
            self._opened = opened.pop_all()
        self._events = _open_events(run, keep_until) if file == METRICS else None
        self._listeners = listeners if file == METRICS else ()

    def write(self, kind: str, step: int, fields: dict[str, Any]) -> None:
        """kind: `train`, `evaluation` or `window`."""
        numbers = numbers_of(fields)
        with self._named():
            self._file.write(json.dumps({"kind": kind, "step": step, **fields}) + "\n")
            if self._events is not None:
                self._events.write(kind, step, numbers)
        for listener in self._listeners:
            listener(kind, step, numbers)

    def close(self) -> None:
        with self._named():  # tries to write once more what it could not
            with self._opened:
                self._file.flush()
                os.fsync(self._file.fileno())
            if self._events is not None:
                self._events.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Makes errors say which file they are about, and what to do."""
        try:
            yield
        except OSError as error:
            raise OSError(
                f"could not write {self._file.name}: {error.strerror or error}; earlier checkpoints "
                f"are whole; make room, then resume the run"
            ) from error


def flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the fields, and those of nested fields as parent/name."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _open_events(run: Path, keep_until: int) -> _Events | None:
    try:
        return _Events(run, keep_until)
    except ImportError:
        log.info("tensorboard is not installed, so no events are written: pip install tensorboard")
        return None


def numbers_of(fields: Mapping[str, Any]) -> dict[str, float]:
    """The fields that are numbers, those of nested fields as parent/name."""
    return {
        name: value
        for name, value in flat(fields)
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


class _Events:
    """TensorBoard's event file.

    Its records are written here because `SummaryWriter` puts the name of the host into the file's,
    and nothing in a run folder names the machine.
    """

    def __init__(self, run: Path, keep_until: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        path = run / f"events.out.tfevents.{time.time():.0f}.{os.getpid()}.hotrows"
        with ExitStack() as opened:
            self._records = RecordWriter(opened.enter_context(open(path, "wb")))
            self._opened = opened.pop_all()
        self._put(file_version="brain.Event:2")
        # TensorBoard then forgets what an earlier part of the run wrote after this step.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._put(step=keep_until + 1, session_log=start)

    def write(self, kind: str, step: int, numbers: Mapping[str, float]) -> None:
        values = [
            self._summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in numbers.items()
        ]
        self._put(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        self._opened.close()

    def _put(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        self._records.flush()
