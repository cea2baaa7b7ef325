"""A small run that publishes, and checksums by which its versions are compared with it, step by step."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hotrows.data import EncodedData, prepare
from hotrows.optim import Adagrad
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.programs import parameters
from hotrows.serving.version import Version
from hotrows.train import Callback, Trainer
from hotrows.train.config import TrainConfig
from tests.support.bundles import SMALL, known_program
from tests.support.clicks import SCHEMA, table

Sums = dict[str, int]


def train_published(data: Path, run: Path, steps: int, *callbacks: Callback) -> None:
    """Begins a run or goes on with it; its program is made once, beside the data."""
    config = TrainConfig(
        model="dlrm", model_options=SMALL["dlrm"], steps=steps, batch_size=16,
        row_optimizer=Adagrad(lr=0.1), dense_lr=0.02, seed=3, linear_paths="plain", evaluate_every=steps,
        checkpoint_every=7, full_every=3, keep_last=2,
    )  # fmt: skip
    resume = (run / "config.json").exists()
    with (
        known_program(data.parent / "program.onnx"),
        mock.patch("hotrows.train.telling.pictures.draw_run"),
    ):
        Trainer(EncodedData.open(data), config, run, resume=resume).fit(callbacks=callbacks)


def undisturbed(data: Path, run: Path, steps: int) -> dict[str, Sums]:
    """Prepares the data, and makes the program; returns what a run has after each step."""
    prepare(table(400), SCHEMA, data, split="position:0.8")
    contents = Contents()
    train_published(data, run, steps, contents, Publisher(run.with_name("undisturbed"), f"{steps}b"))
    return {str(step): sums for step, sums in contents.by_step.items()}


class Contents(Callback):
    """The checksums of all tables and of the dense part after each step."""

    def __init__(self) -> None:
        self.by_step: dict[int, Sums] = {}

    def on_begin(self, trainer: Trainer) -> None:
        self.on_step_end(trainer, None)

    def on_step_end(self, trainer: Trainer, progress: Any) -> None:
        weights = {t.name: trainer.embedding.weights(t.name) for t in trainer.embedding.tables}
        sums = {name: zlib.crc32(tensor.numpy().tobytes()) for name, tensor in weights.items()}
        state = trainer.model.state_dict()
        sums |= {f"model.{name}": zlib.crc32(value.numpy().tobytes()) for name, value in state.items()}
        self.by_step[trainer.state.step] = sums


def contents_of(version: Version) -> Sums:
    """The checksums of all tables and of the dense part of a version."""
    sums = {name: zlib.crc32(t.stored(np.arange(t.rows)).tobytes()) for name, t in version.tables.items()}
    program = version.program.content()
    return sums | {name: zlib.crc32(program[b:e]) for name, (b, e) in parameters(program).items()}


def is_of(contents: Sums, expected: Sums) -> bool:
    """Whether a version has all tables and parameters that its program has as a run had them."""
    tables = {name for name in expected if not name.startswith("model.")}
    return tables < contents.keys() and all(expected[name] == sum_ for name, sum_ in contents.items())
