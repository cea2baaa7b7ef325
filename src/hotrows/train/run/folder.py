"""The run folder: what was trained, on what, where, and how it went.

    config.json        the TrainConfig, with all that was left open filled in
    schema.json        the data's schema, with the rows of every vocabulary
    data.json          the data folder and its fingerprint
    encoders/          what turns raw rows into ids: the run predicts without the data folder
    environment.json   versions, processor, cores, native core, commit
    choices.json       choices made by measurement; resume, evaluation and prediction read them
    placing.json       how tables are dealt over ranks and packs, and why, by number of ranks
    metrics.jsonl      a line per interval of training and per evaluation
    stream.json        of a run on a stream: its source and settings; stream.jsonl: a line per batch, of
                       which reads it was made; dead_letters.jsonl: malformed and late events
    ranks/             metrics of each rank but the first, where several train together
    events.out.tfevents.*   metrics for TensorBoard, where it is installed
    checkpoints.json, checkpoints/      see `hotrows.engine.checkpoint`
    lock               while a process trains the run: which one
    report.svg         losses, AUC and throughput; result.json: how it ended

What is read back has a checksum (`hotrows.runtime.json_file`). Nothing but `lock` names the machine; the
paths outside the folder are those of the data and of a model of your own.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hotrows import models
from hotrows.data import EncodedData, Encoder, open_source
from hotrows.data.encode.encoder import stored_values
from hotrows.data.encode.vocabulary import Values
from hotrows.data.stored.encoded import copy_manifest
from hotrows.data.stored.user_histories import UserHistories
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint.manifest import bases
from hotrows.engine.distributed.all_or_none import together
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.storage.unsaved import remove_unsaved
from hotrows.runtime.atomic_files import link_or_copy, make_folder, shown, sync, write_json, write_text
from hotrows.runtime.json_file import JsonFile, PathText, build, value_of
from hotrows.runtime.locks import NAME as LOCK
from hotrows.runtime.machine import environment
from hotrows.runtime.remote import is_url, origin_of
from hotrows.schema import Schema
from hotrows.train.config import SETTINGS, TrainConfig
from hotrows.train.costs.placement import ShardingPlan

log = logging.getLogger("hotrows")

ENCODERS = "encoders"
HISTORIES = "histories/appended/"  # in the names of tensors of a checkpoint with the events of users
_BEFORE_A_RUN = {LOCK, "config.json.part"}  # what a run leaves that was stopped before it began
# What a run leaves that ended before its first step; its logs are empty then.
_BEFORE_A_STEP = re.compile(
    rf"(choices|config|data|environment|placing|result|schema|stream)\.json|{LOCK}|encoders|ranks|.+\.part"
    r"|events\.out\.tfevents\..+"
)
# Settings whose None on resume means: as the run has it.
_MAY_BE_OPEN = (
    *("batch_size", "row_optimizer", "linear_optimizer", "dense_lr", "precision", "evaluate_every"),
    "shares",
)
# What of the environment may change bits.
_OF_BITS = (
    *("hotrows", "commit", "torch", "numpy", "processor", "threads", "native_core"),
    *("gpu", "cuda", "triton"),
)
_PLACING, _STREAM = "placing.json", "stream.json"
# Of a run that ended before its first step, what the next one that begins here may not write.
_NOT_OVERWRITTEN = ("choices.json", _PLACING, _STREAM, "result.json")
_RUN_OF_STORE = "run"  # a file in the folder of a file store, with the path of its run
_JSON = JsonFile("restore it from a copy")
_NO_PATH = PathText("")


@dataclass(frozen=True)
class DataOfRun:
    """The data that a run was trained on: where it is, or the Parquet files that it is read from."""

    fingerprint: str
    path: PathText = _NO_PATH
    source: dict[str, Any] | None = None


def check(run: Path, resume: bool) -> bool:
    """Returns whether `run` goes on; ValueError where it is to begin twice, or to resume and cannot. To
    resume at a URL is to begin, if there is no run yet; a run that ended before its first step may begin
    twice."""
    is_there = (run / "config.json").exists()
    if resume and not is_there and (url := origin_of(run)):
        resume = False  # a job that is started again has one command
        if not run.exists():  # of two calls the first
            log.info(f"{url} has no run yet, which begins")
    if resume and not is_there:
        raise ValueError(f"there is no run to resume in {shown_place(run)}; begin it without resume")
    if not resume and run.exists() and not (run.is_dir() and _is_free(run)):
        raise ValueError(
            f"{shown_place(run)} exists already: resume it (resume=True, --resume), or name a new folder"
        )
    return resume and (run / "choices.json").exists()


def _is_free(run: Path) -> bool:
    """True if a folder has nothing but what a run leaves that ended before its first step."""
    if not (run / "choices.json").exists():
        return not set(os.listdir(run)) - _BEFORE_A_RUN
    return all(
        _BEFORE_A_STEP.fullmatch(path.name) or (path.suffix == ".jsonl" and not path.stat().st_size)
        for path in [*run.iterdir(), *run.glob("ranks/*")]
    )


def begin(run: Path, config: TrainConfig, data: EncodedData, choices: dict) -> None:
    """Fills the folder of a new run; choices.json comes last and says that it has begun."""
    if not data.parts["validation"].rows:
        log.warning("the validation part is empty: the last checkpoint counts as the best")
    for label, value in data.parts["train"].constant_labels.items():
        log.warning(
            f"the label {label!r} is {_shown(value)} in the whole training part: a model learns that "
            f"alone; check its column, or split the data in another way"
        )
    for label, value in data.parts["validation"].constant_labels.items():
        best = "it has no AUC there, and the log loss says which checkpoint is best"
        log.warning(
            f"the label {label!r} is {_shown(value)} in the whole validation part: "
            f"{'it chooses no checkpoint' if value is None else best}; --split stratified:0.8,0.1,0.1 "
            f"keeps both values"
        )
    make_folder(run)
    for name in _NOT_OVERWRITTEN:
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / ENCODERS, ignore_errors=True)
    _write_config(run, config)
    write_json(run / "schema.json", _JSON.sign(json.loads(data.schema.to_json())))
    path = origin_of(Path(data.path)) or str(Path(data.path).resolve())
    source = {"path": path} if data.source is None else {"source": data.source}
    write_json(run / "data.json", _JSON.sign({"fingerprint": data.fingerprint, **source}))
    write_json(run / "environment.json", environment())
    if data.encodes_raw:  # what `Encoder.open` reads, as the run may outlive the data
        make_folder(run / ENCODERS)
        copy_manifest(data, run / ENCODERS)
        files = [vocabulary.file for vocabulary in data.vocabularies.values()]
        for file in (*files, *([data.events.file] if data.events else [])):
            link_or_copy(data.path / file, run / ENCODERS / file)
        sync(run / ENCODERS)
    write_json(run / "choices.json", _JSON.sign(choices))


def shown_place(run: Path) -> Path | str:
    """The folder of a run as it is written in the working directory, or its URL, for messages."""
    return origin_of(run) or shown(run)


def _shown(value: int | None) -> str:
    return "missing, or of weight 0," if value is None else str(value)


def with_settings_of(run: Path, config: TrainConfig) -> TrainConfig:
    """The config of a run to resume: what it leaves open is as the run has it, also where that was filled
    in. A model that is code is none that may be left open."""
    path = run / "config.json"
    if not path.exists():  # `check` refuses it
        return config
    stored = read_config(run)
    names = [name for name in _MAY_BE_OPEN if getattr(config, name) is None]
    if config.epochs is config.steps is None:
        names += ["epochs", "steps"]
    changes = {name: getattr(stored, name) for name in names}
    changes["model"] = models.confirmed(stored.model, path, config.model, trust=False)
    changes["model_options"] = {**stored.model_options, **config.model_options}
    return dataclasses.replace(config, **changes)


def check_same(run: Path, config: TrainConfig, data: EncodedData) -> None:
    """Raises ValueError where settings that may not change, or data, differ from those that the run was
    begun with."""
    stored, config = read_config(run), _as_read(config)
    for name, setting in SETTINGS.items():
        then, now = getattr(stored, name), getattr(config, name)
        if then != now and not setting.resumable:
            raise ValueError(
                f"run {shown_place(run)} was begun with {name}={then!r}, not {now!r}; resume it with the "
                f"same settings, or begin a new run"
            )
    if read_data(run).fingerprint != data.fingerprint or read_schema(run) != data.schema:
        difference = _difference(read_schema(run), data.schema)
        raise ValueError(
            f"run {shown_place(run)} was begun on other data than {shown(data.path)}: {difference}; "
            f"resume it with the same data, or begin a new run"
        )


def compare_environment(run: Path) -> None:
    """Says in a line where this process computes otherwise than the one that began the run."""
    try:
        then, now = json.loads((run / "environment.json").read_text()), environment()
    except (OSError, ValueError):  # nothing is read of it but this
        return
    names = [name for name in _OF_BITS if then.get(name) != now.get(name)]
    differ = [f"{name} {then.get(name)} then, {now.get(name)} now" for name in names]
    if differ:
        log.warning(
            f"{run} was begun in another environment ({'; '.join(differ)}): sums may be rounded "
            f"otherwise, and its weights then differ from those of a run that never stopped"
        )


def keep_config(run: Path, config: TrainConfig) -> None:
    """Writes the settings with which a run goes on, where they are others than before."""
    if read_config(run) != _as_read(config):
        _write_config(run, config)


def _as_read(config: TrainConfig) -> TrainConfig:
    """The config as a file has it: with a list where options have a tuple."""
    return TrainConfig.from_json(config.to_json())


def _write_config(run: Path, config: TrainConfig) -> None:
    write_json(run / "config.json", _JSON.sign(json.loads(config.to_json())))


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


def open_data(run: Path, folder: Path | None = None) -> EncodedData:
    """The data that a run was trained on; folder: where it has moved to."""
    stored = read_data(run)
    if folder is None and stored.source is not None:
        with _JSON.naming(run / "data.json"):
            data = open_source(stored.source)
    elif folder is None and not is_url(stored.path) and not Path(stored.path).exists():
        raise ValueError(
            f"the data of {run} was in {stored.path}, which is gone: say where it is now (--data FOLDER)"
        )
    else:
        data = EncodedData.open(folder or stored.path)
    if data.fingerprint != stored.fingerprint:
        difference = _difference(read_schema(run), data.schema)
        raise ValueError(
            f"the data in {data.path} is not what {run} was trained on: {difference}; "
            f"name the right folder, or train a new run"
        )
    return data.read_by(read_schema(run))


def open_encoder(run: Path) -> Encoder:
    """Opens the encoder of the run's training data, for raw rows."""
    if not (run / ENCODERS).is_dir():
        raise ValueError(
            f"{run} has no encoders: its data came encoded; encode the rows in the same way and "
            f"predict with load_run(run).predict(batches)"
        )
    return Encoder.open(run / ENCODERS)


def histories_at(run: Path, tensors: Mapping[str, Any]) -> UserHistories | None:
    """The histories of users at a checkpoint of the run, which has these tensors; None: those of the
    data."""
    events = {n.split(HISTORIES)[1]: tensors[n].numpy() for n in tensors if HISTORIES in n}
    if not events:
        return None
    histories = UserHistories.open(run / ENCODERS, EncodedData.open(run / ENCODERS).schema)
    return histories and histories.appended(events)


def encoded_data(run: Path) -> EncodedData | None:
    """The run's training data as its encoders have it, counts included; None: that came encoded."""
    folder = run / ENCODERS
    return EncodedData.open(folder) if folder.is_dir() else None


def raw_values(run: Path) -> Mapping[str, Values] | None:
    """The raw values behind the ids of a run, by vocabulary; None: its data came encoded."""
    return None if (data := encoded_data(run)) is None else stored_values(data)


def read_files(run: Path) -> dict[str, bytes]:
    """The contents of all files that `load_run` reads of the best checkpoint, by their paths in the run;
    ValueError where tables are elsewhere, in a file store."""
    if (store := read_config(run).store) != "memory":
        raise ValueError(
            f"the rows of {run} are in the store {store}, which no pickle holds: keep both where they "
            f"are, and read the model in another process with hotrows.load_run({str(run)!r})"
        )
    best = checkpoint.folder_of(run, "best")
    unread = {path.name for path in best.parent.iterdir()} - {best.name, *bases(best)}
    files = [path for path in run.rglob("*") if path.is_file() and path.name != LOCK]
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in files
        if not (path.is_relative_to(best.parent) and unread.intersection(path.parts))
    }


def write_files(run: Path, files: Mapping[str, bytes]) -> None:
    """Makes a folder of what `read_files` has read."""
    for name, content in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)


def read_config(run: Path) -> TrainConfig:
    """The settings of a run."""
    config = TrainConfig.load(path := _existing(run / "config.json"))
    unset = [name for name in ("model", "epochs", "batch_size") if getattr(config, name) is None]
    if unset:
        raise ValueError(
            f"{path} does not say which {' and '.join(unset)} the run has; restore it from a copy"
        )
    return config


def read_schema(run: Path) -> Schema:
    """The schema of the data that a run was trained on."""
    return Schema.load(_existing(run / "schema.json"))


def _existing(path: Path) -> Path:
    if not path.exists():
        raise no_run(path)
    return path


def no_run(path: Path) -> ValueError:
    """The error of a file that a run folder has, and that is not there."""
    run = path.parent
    problem = f"is not a run folder: it has no {path.name}" if run.exists() else "does not exist"
    return ValueError(f"{run} {problem}; correct the path")


def read_json(path: Path) -> dict[str, Any]:
    """The fields of a file of a run."""
    try:
        return _JSON.read(path)
    except FileNotFoundError:
        raise no_run(path) from None


def read_data(run: Path) -> DataOfRun:
    """Which data a run was trained on."""
    fields = read_json(run / "data.json")
    with _JSON.naming(run / "data.json"):
        return build(DataOfRun, fields, "run's data")


def read_choices(run: Path) -> dict[str, str]:
    """The choices made by measurement."""
    path = run / "choices.json"
    with _JSON.naming(path):
        return value_of(dict[str, str], read_json(path), "a choice")


def read_placing(run: Path, num_ranks: int, config: TrainConfig | None = None) -> ShardingPlan | None:
    """How the run deals its tables over so many ranks; None: it has never had as many. config: of a
    training, which warns of choices that it does not go on with."""
    path = run / _PLACING
    fields = read_json(path).get(str(num_ranks)) if path.exists() else None
    with _JSON.naming(path):
        if fields is not None:
            fields.pop("stages", None)  # of earlier versions
            chosen = fields.pop("micro_batches", 1)
            if config is not None and chosen not in (1, config.micro_batches):
                log.warning(
                    f"an earlier version chose {chosen} micro-batches for {run}, which now has "
                    f"{config.micro_batches}: --micro-batches {chosen} goes on as before"
                )
        return None if fields is None else build(ShardingPlan, fields)


def write_placing(run: Path, num_ranks: int, plan: ShardingPlan) -> None:
    path = run / _PLACING
    known = read_json(path) if path.exists() else {}
    write_json(path, _JSON.sign({**known, str(num_ranks): plan.to_json()}))


def read_stream(run: Path) -> dict[str, Any]:
    """The source of a run on a stream, that of its labels, and its settings; empty: it is on none."""
    path = run / _STREAM
    return read_json(path) if path.exists() else {}


def write_stream(run: Path, source: str, labels: str | None, settings: Mapping[str, Any]) -> None:
    write_json(run / _STREAM, _JSON.sign({"source": source, "labels": labels, **settings}))


def next_folder(model: str) -> Path:
    """runs/<model>-<number>, the first number that is free; your own model is named by its class."""
    name, number = re.split("[:.]", model)[-1].lower(), 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


def make_way_for_store(config: TrainConfig, run: Path, ranks: Ranks) -> None:
    """Refuses a store that exists, since a run begins with a new one; but deletes one that was made for
    a run that did not come to begin, or for this one, which ended before its first step. Collective."""
    path = _store_of(config)
    for rank in range(ranks.num_ranks if path else 0):  # in turn: they may see one folder
        together(ranks, partial(_make_way, path if rank == ranks.rank else None, run))


def claim_store(config: TrainConfig, run: Path) -> None:
    """Notes in the store, if there is one, that it belongs to a run that has begun."""
    path = _store_of(config)
    if path is not None and not (path / _RUN_OF_STORE).exists():
        write_text(path / _RUN_OF_STORE, f"{run.resolve()}\n")


def _store_of(config: TrainConfig) -> Path | None:
    caching = config.caching()
    return caching.path if caching else None


def _make_way(path: Path | None, run: Path) -> None:
    if path is None or not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    claim = path / _RUN_OF_STORE
    owner = claim.read_text().strip() if claim.is_file() else ""
    claims = [_RUN_OF_STORE] if owner == str(run.resolve()) else []
    if path.is_dir() and remove_unsaved(path, claims):
        log.warning(f"the store in {path} was made for a run that never began: it is made anew")
        return
    run_of_store = f"its run, {owner}" if owner else "its run"
    raise ValueError(
        f"store {path} exists already: resume {run_of_store} (resume=True, --resume), or name a new "
        f"folder; delete it if no run needs it"
    )
