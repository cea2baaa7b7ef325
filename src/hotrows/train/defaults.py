"""What a training does where its config leaves it open: chosen from schema and size of the data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hotrows import models, optim
from hotrows.config import TrainConfig
from hotrows.data import EncodedData


def settle(config: TrainConfig, data: EncodedData) -> TrainConfig:
    """Fills in what the config leaves open, for a training on these data."""
    num_samples = _num_training_samples(data)
    return dataclasses.replace(
        config,
        model=_absolute_model(config.model or models.default_name(data.schema, config.label)),
        batch_size=config.batch_size or _batch_size(num_samples),
        row_optimizer=config.row_optimizer or optim.Adagrad(),
        dense_lr=config.dense_lr or 1e-3,
        pack_parts=_pack_parts(config),
        store=_absolute_store(config.store),
        pretrained={name: str(Path(file).resolve()) for name, file in config.pretrained.items()},
    )


def _num_training_samples(data: EncodedData) -> int:
    """The samples of the training part; ValueError where there are none."""
    if not data.parts["train"].rows:
        raise ValueError(
            f"the training part of {data.path} has no rows: prepare the data with another split"
        )
    return data.parts["train"].rows


def _batch_size(num_samples: int) -> int:
    """The largest power of two that leaves 500 steps an epoch, from 64 to 8,192."""
    fitting = max(num_samples // 500, 1)
    return min(max(1 << (fitting.bit_length() - 1), 64), 8192)


def _pack_parts(config: TrainConfig) -> int:
    """Planning spends most of its time on slots of a cache, and each part has slots of its own."""
    if config.pack_parts is not None or config.fast_memory is None:
        return 1 if config.pack_parts is None else config.pack_parts
    from hotrows.planning.threads import num_threads

    return num_threads(config.planning_threads, config.device == "cpu")


def _absolute_store(store: str) -> str:
    """The store by an absolute path, so that the run can be resumed from any folder."""
    from hotrows.engine.caching import FILE

    return f"{FILE}{Path(store[len(FILE) :]).resolve()}" if store.startswith(FILE) else store


def _absolute_model(model: str) -> str:
    """The model's file by an absolute path, so that the run can be read from any folder."""
    file, colon, kind = model.rpartition(":")
    return f"{Path(file).resolve()}:{kind}" if colon and file.endswith(".py") else model
