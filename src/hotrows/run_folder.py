"""The run folder: what was trained, on what, where, and how it went.

    config.json        the TrainConfig, with all that was left open filled in
    schema.json        the data's schema, with the rows of every vocabulary
    data.json          the data folder and its fingerprint
    encoders/          what turns raw rows into ids: the run predicts without the data folder
    environment.json   versions, processor, cores, native core, commit
    choices.json       choices made by measurement; resume, evaluation and prediction read them
    placing.json       how tables were dealt over ranks and packs, and why, by number of ranks
    metrics.jsonl      a line per interval of training and per evaluation
    ranks/             the same as seen by each other rank, where several train together
    events.out.tfevents.*   the same for TensorBoard, where it is installed
    checkpoints.json, checkpoints/      see `hotrows.checkpoint`
    report.png         loss, AUC and throughput; result.json: how it ended

Nothing in it names the machine; the paths outside it are those of the data and of a model of your own.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotrows.config import TrainConfig
from hotrows.data import EncodedData, Encoder, open_source
from hotrows.data.aside import link_or_copy
from hotrows.environment import environment
from hotrows.schema import Schema

log = logging.getLogger("hotrows")

METRICS = "metrics.jsonl"
_ENCODERS = "encoders"
_PLACING = "placing.json"

# Fields that may change when a run goes on: they say how long it lasts, how it is driven and by how
# many, and decide no bit of the steps before.
_FREE = (
    "epochs",
    "steps",
    "checkpoint_every",
    "keep_last",
    "full_every",
    "background_checkpoints",
    "plan_depth",
    "fast_memory",
    "policy",
    "in_flight",
    "lookahead_memory",
    "memory_split",
    "micro_batches",
    "pack_parts",
    "device",
    "way",
    "lanes",
    "compile",
    "cuda_graph",
    "sharding",
    "wire_dtype",
    "timeout",
)


def check(run: Path, resume: bool) -> bool:
    """Whether `run` has begun; refuses to begin it twice."""
    begun = (run / "choices.json").exists()
    if resume and not (run / "config.json").exists():
        raise ValueError(f"there is no run to resume in {run}; begin it without resume")
    if not resume and run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise ValueError(
            f"{run} exists already: go on with it (resume=True, --resume), or name a new folder"
        )
    return begun


def begin(run: Path, config: TrainConfig, data: EncodedData, choices: dict) -> None:
    """Fills the folder of a new run; choices.json comes last and says that it has begun."""
    if not data.parts["validation"].rows:
        log.warning("the validation part is empty: the last checkpoint counts as the best")
    run.mkdir(parents=True, exist_ok=True)
    config.save(run / "config.json")
    data.schema.save(run / "schema.json")
    write_json(run / "data.json", _place_of(data))
    write_json(run / "environment.json", environment())
    _keep_encoders(run, data)
    write_json(run / "choices.json", choices)


def check_same(run: Path, config: TrainConfig, data: EncodedData) -> None:
    """Refuses to go on with a run under settings, or on data, that would make it another one."""
    stored = read_config(run)
    config = TrainConfig.from_json(config.to_json())  # a list where the options have a tuple
    for name in (field.name for field in dataclasses.fields(config)):
        then, now = getattr(stored, name), getattr(config, name)
        if then != now and name not in _FREE:
            raise ValueError(
                f"run {run} was begun with {name}={then!r}, not {now!r}; resume it with the same "
                f"settings, or begin a new run"
            )
    if read_json(run / "data.json")["fingerprint"] != data.fingerprint:
        difference = _difference(Schema.load(run / "schema.json"), data.schema)
        raise ValueError(
            f"run {run} was begun on other data than {data.path}: {difference}; resume it with the "
            f"same data, or begin a new run"
        )


def _difference(then: Schema, now: Schema) -> str:
    """The first field in which two schemas differ, in words."""
    if then.name != now.name:
        return f"schema {then.name!r} then, {now.name!r} now"
    before = {feature.name: dataclasses.asdict(feature) for feature in then.features}
    after = {feature.name: dataclasses.asdict(feature) for feature in now.features}
    for feature in [*before, *after]:
        if feature not in before or feature not in after:
            return f"only one of them has feature {feature!r}"
        for name, value in before[feature].items():
            new = after[feature].get(name)
            if new != value:
                return f"{name} of feature {feature!r} was {value!r}, is {new!r}"
    return "the values behind the ids are others"


def _place_of(data: EncodedData) -> dict[str, Any]:
    """Where the data is found again: its folder, or the files that it is read from."""
    place: dict[str, Any] = {"fingerprint": data.fingerprint}
    if data.source is not None:
        return {**place, "source": data.source}
    return {**place, "path": str(Path(data.path).resolve())}


def open_data(run: Path, folder: Path | None = None) -> EncodedData:
    """The data that a run was trained on; folder: where it has moved to."""
    stored = read_json(run / "data.json")
    if folder is None and "source" in stored:
        data = open_source(stored["source"])
    else:
        data = EncodedData.open(folder or stored["path"])
    if data.fingerprint != stored["fingerprint"]:
        difference = _difference(Schema.load(run / "schema.json"), data.schema)
        raise ValueError(
            f"the data in {data.path} is not what {run} was trained on: {difference}; "
            f"name the right folder, or train a new run"
        )
    return data


def open_encoder(run: Path) -> Encoder:
    """What encodes raw rows as the run's training data was encoded."""
    if not (run / _ENCODERS).is_dir():
        raise ValueError(
            f"{run} has no encoders: its data came encoded; encode the rows in the same way and "
            f"predict with load_run(run).predict(batches)"
        )
    return Encoder.open(run / _ENCODERS)


def _keep_encoders(run: Path, data: EncodedData) -> None:
    """Links or copies what `Encoder.open` reads into the run, so that it outlives the data."""
    if not data.encodes_raw:
        return
    for file in ("data.json", *(v.file for v in data.vocabularies.values())):
        target = run / _ENCODERS / file
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(data.path / file, target)


def read_config(run: Path) -> TrainConfig:
    if not (run / "config.json").exists():
        raise ValueError(f"{run} is no run folder: it has no config.json")
    return TrainConfig.load(run / "config.json")


def write_json(path: Path, fields: Any) -> None:
    """Writes aside and renames, so that a reader never sees half a file."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(fields, indent=2, allow_nan=False) + "\n")
    os.replace(part, path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path.parent} is no run folder: it has no {path.name}") from None
    except ValueError:
        raise ValueError(f"{path} is damaged: expected JSON; restore it from a copy") from None


def read_placing(run: Path, num_ranks: int) -> dict[str, Any] | None:
    """How the run dealt its tables over so many ranks; None: it never had as many."""
    path = run / _PLACING
    return read_json(path).get(str(num_ranks)) if path.exists() else None


def write_placing(run: Path, num_ranks: int, fields: dict[str, Any]) -> None:
    path = run / _PLACING
    known = read_json(path) if path.exists() else {}
    write_json(path, {**known, str(num_ranks): fields})


def next_folder(parent: Path, model: str) -> Path:
    """parent/<model>-<number>, the first number that is free."""
    number = 1
    while (parent / f"{model}-{number}").exists():
        number += 1
    return parent / f"{model}-{number}"


def read_metrics(run: Path, file: str = METRICS) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; one that a crash cut off is left out."""
    path = run / file
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


class MetricsLog:
    """Appends to metrics.jsonl, and to TensorBoard's events where it is installed."""

    def __init__(self, run: Path, keep_until: int, evaluated: int, file: str = METRICS) -> None:
        """Keeps what was written up to step `keep_until` and evaluations up to `evaluated`.

        file: another one than the run's, of one rank alone: no events are written beside it.
        """
        limits = {"train": keep_until, "evaluation": evaluated}
        kept = [r for r in read_metrics(run, file) if r["step"] <= limits[r["kind"]]]
        path = run / file
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text("".join(json.dumps(record) + "\n" for record in kept))
        os.replace(part, path)
        self._file = open(path, "a", buffering=1)  # noqa: SIM115
        self._events = _open_events(run, keep_until) if file == METRICS else None

    def write(self, kind: str, step: int, fields: dict[str, Any]) -> None:
        """kind: `train` or `evaluation`."""
        with self._named():
            self._file.write(json.dumps({"kind": kind, "step": step, **fields}) + "\n")
            if self._events is not None:
                self._events.write(kind, step, fields)

    def close(self) -> None:
        with self._named():  # tries to write once more what it could not
            self._file.close()
            if self._events is not None:
                self._events.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors say of which file, and what to do."""
        try:
            yield
        except OSError as error:
            raise OSError(
                f"could not write {self._file.name}: {error.strerror or error}; earlier checkpoints "
                f"are whole; make room, then resume the run"
            ) from error


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields with those of fields in them, as parent/name."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _open_events(run: Path, keep_until: int) -> _Events | None:
    try:
        return _Events(run, keep_until)
    except ImportError:
        log.info("tensorboard is not installed, so no events are written: pip install tensorboard")
        return None


class _Events:
    """TensorBoard's event file, written here because its own writer puts the host in the name."""

    def __init__(self, run: Path, keep_until: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        path = run / f"events.out.tfevents.{time.time():.0f}.{os.getpid()}.hotrows"
        self._records = RecordWriter(open(path, "wb"))  # noqa: SIM115
        self._put(file_version="brain.Event:2")
        # TensorBoard then forgets what an earlier part of the run wrote after this step.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._put(step=keep_until + 1, session_log=start)

    def write(self, kind: str, step: int, fields: dict[str, Any]) -> None:
        values = [
            self._summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in _flat(fields)
            if isinstance(value, int | float)
        ]
        self._put(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        self._records.close()

    def _put(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        self._records.flush()
