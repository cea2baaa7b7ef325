"""Tasks, the ways they are trained, and the runs that all others must equal."""

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotrows import FTRL, SGD, Adagrad, DenseAdam, LazyAdam, RowWiseAdagrad
from hotrows.data import EncodedData, prepare
from hotrows.dynamic import Dynamic
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint.manifest import read_manifest
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.schema import Dense, Schema, Sequence, Sparse
from hotrows.train import Callback, Interrupted, Trainer, load_run
from hotrows.train.config import TrainConfig
from tests.support import pretend
from tests.support.requests import SCHEMA, file_of, rows_of
from tests.support.runs import Kill, Killed, interrupt_after

OPTIMIZERS = {
    "sgd": SGD(lr=0.1),
    "adagrad": Adagrad(lr=0.1, weight_decay=0.001),
    "row-wise": RowWiseAdagrad(lr=0.1),
    "adam": LazyAdam(lr=0.01),
    "adam by row": LazyAdam(lr=0.01, per_row_step=True),
    "ftrl": FTRL(lr=0.1, l1=0.001),
    "dense adam": DenseAdam(lr=0.01, weight_decay=0.001),
}
PLACES, DATA = ("host", "device", "ranks"), ("ids", "lists", "keys", "requests")
ORDERS, BITS = ("shuffle", "reuse:4"), ("float32", "bfloat16", "int8", "int4")


@dataclass(frozen=True)
class Task:
    """What decides the bits of a run. optimizer: a name of `OPTIMIZERS`."""

    data: str = "ids"
    optimizer: str = "adagrad"
    order: str = "shuffle"
    bits: str = "float32"
    place: str = "host"

    def __post_init__(self) -> None:
        if self.optimizer == "dense adam":  # narrow weights are refused
            object.__setattr__(self, "bits", "float32")
        if self.data == "keys":  # which step reads a key decides its row
            object.__setattr__(self, "order", "shuffle")


@dataclass(frozen=True)
class Arm:
    """The way to these bits. memory: bytes for rows; None: all of them."""

    memory: int | None = None
    in_file: bool = False
    policy: str = "lookahead"
    plan_depth: int = 2
    in_flight: int = 2
    pack_parts: int = 1
    full_every: int = 1
    in_background: bool = True


def config_of(task: Task, arm: Arm, store: Path) -> TrainConfig:
    model = "din" if task.data in ("lists", "requests") else "deepfm"
    options: dict[str, Any] = {"dim": 4, "hidden": [8], "dropout": 0.0 if task.place == "ranks" else 0.1}
    cached: dict[str, Any] = {"fast_memory": arm.memory, "policy": arm.policy, "in_flight": arm.in_flight}
    if arm.memory is not None and arm.in_file:
        cached["store"] = f"file:{store}"
    return TrainConfig(
        model=model,
        model_options={**options, "attention": [4]} if model == "din" else options,
        epochs=2,
        batch_size=48,
        row_optimizer=OPTIMIZERS[task.optimizer],
        table_dtype=task.bits,
        order=task.order,
        seed=3,
        checkpoint_every=4,
        plan_depth=arm.plan_depth,
        pack_parts=arm.pack_parts,
        full_every=arm.full_every,
        background_checkpoints=arm.in_background,
        device="cuda" if task.place == "device" else "cpu",
        cuda_graph=False,
        linear_paths="plain",
        **(cached if arm.memory is not None else {}),
    )


def data_of(kind: str, folder: Path) -> EncodedData:
    """Rows of a kind of data, prepared once in a folder."""
    if (folder / kind / "data.json").exists():
        return EncodedData.open(folder / kind)
    if kind == "requests":
        rows_in_file = file_of(folder, rows_of(90, candidates=0))
        return prepare(rows_in_file, SCHEMA, folder / kind, split="position:0.7,0.15,0.15")
    draw, size = np.random.default_rng(5), 700
    dynamic = Dynamic(capacity=20, evict="lru") if kind == "keys" else None
    rows: dict[str, Any] = {"label": draw.integers(0, 2, size), "n": draw.normal(size=size)}
    rows |= {"a": draw.integers(0, 30, size) ** 2 // 30, "b": draw.integers(0, 30, size)}
    features: tuple[Any, ...] = (
        Dense("n", transform="standard"),
        Sparse("a", dynamic=dynamic),
        Sparse("b"),
    )
    if kind == "lists":
        rows["past"] = [draw.integers(0, 30, length).tolist() for length in draw.integers(0, 6, size)]
        features = (*features, Sequence("past", vocabulary="b", max_length=4))
    return prepare(rows, Schema(features), folder / kind, split="position:0.6,0.2,0.2")


@dataclass
class Watch(Callback):
    """Notes the weights after steps: all of them, or one. evaluates: there, too."""

    at: int | None = None
    evaluates: bool = False
    seen: dict[int, str] = field(default_factory=dict)

    def on_step_end(self, trainer: Any, progress: Any) -> None:
        if self.at is not None and trainer.state.step != self.at:
            return
        if self.evaluates:
            trainer.evaluate("validation")
        self.seen[trainer.state.step] = digest(trainer)


def digest(trainer: Any) -> str:
    """Of all weights, as they are at present."""
    content = hashlib.sha256()
    tables = [trainer.embedding.weights(table.name) for table in trainer.embedding.tables]
    for value in (*tables, *trainer.model.state_dict().values()):
        content.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


@contextmanager
def place_of(task: Task) -> Iterator[None]:
    with pretend.gpu(pretend.random_delay(0)) if task.place == "device" else nullcontext():
        yield


def go(
    task: Task,
    arm: Arm,
    data: EncodedData,
    folder: Path,
    ends: tuple[str, int] | None,
    watch: Watch | None,
) -> bool:
    """Trains from where the run is. ends: how, and after how many steps more; None: by itself, which is
    what True says."""
    run, config = folder / "run", config_of(task, arm, folder / "store")
    options: dict[str, Any] = {"resume": run.exists()}
    callbacks: list[Callback] = [] if watch is None else [watch]
    how, steps = ends or ("", 0)

    def work(ranks: Any = None) -> None:
        trainer = Trainer(data, config, run, **options, **({} if ranks is None else {"ranks": ranks}))
        kills = [Kill(trainer.state.step + steps)] if how == "kill" else []
        trainer.fit(callbacks=[*callbacks, *kills])

    if task.place == "ranks":
        how, callbacks = "kill" if ends else "", []
        with suppress(Killed):
            on_threads(work, 2)
            return True
        return False
    if how == "interrupt":
        options["progress"] = interrupt_after(steps + 1)
    with place_of(task), suppress(Interrupted, Killed):
        work()
        return True
    return False


def contents(run: Path, folder: Path, task: Task) -> dict[str, bytes]:
    """The bytes of the last checkpoint, all increments merged. Of rows in a file: their weights alone."""
    last = checkpoint.folder_of(run, "last")
    predictor = load_run(run, "last")
    found = {"weights": digest(predictor).encode()}
    predictor.embedding.close()
    shutil.rmtree(folder, ignore_errors=True)
    if not read_manifest(last).stores:
        checkpoint.merge(last, folder)
        last = folder
    for path in sorted(last.rglob("*.safetensors")):
        if task.place != "ranks" or path.name != "trainer.safetensors":  # threads share a generator
            found[str(path.relative_to(last))] = path.read_bytes()
    return found


@dataclass(frozen=True)
class Plain:
    """What a run in one piece, with all rows in memory, showed."""

    seen: dict[int, str]
    contents: dict[str, bytes]


_PLAIN: dict[tuple[Task, Path], Plain] = {}


def plain(task: Task, folder: Path) -> Plain:
    """The run that all arms of a task must equal; trained once."""
    if (task, folder) not in _PLAIN:
        place = folder / "plain" / "-".join(map(str, dataclasses.astuple(task))).replace(":", "")
        shutil.rmtree(place, ignore_errors=True)
        watch = Watch()
        assert go(task, Arm(), data_of(task.data, folder), place, None, watch)
        merged = contents(place / "run", place / "merged", task)
        _PLAIN[task, folder] = Plain(watch.seen, merged)
    return _PLAIN[task, folder]
