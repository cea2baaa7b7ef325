"""What a training does where its config leaves it open: chosen from schema and size of the data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hotrows import models, optim
from hotrows.config import TrainConfig
from hotrows.data import EncodedData

# L2 term of models whose rows weigh single features; of FM the vectors too, which learn by heart sooner.
_DECAYS = {"lr": 3.0, "fm": 10.0}


def settle(config: TrainConfig, data: EncodedData) -> TrainConfig:
    """Fills in what the config leaves open, for a training on these data."""
    num_samples = _num_training_samples(data)
    model = config.model or models.default_name(data.schema, config.label)
    batch_size = config.batch_size or _batch_size(num_samples)
    decay = _DECAYS.get(model)
    is_linear = decay is not None
    rows = optim.Adagrad() if decay is None else _linear_rows(data, batch_size, decay)
    return dataclasses.replace(
        config,
        model=_absolute_model(model),
        epochs=config.epochs or (_linear_epochs(num_samples) if is_linear else 1),
        batch_size=batch_size,
        row_optimizer=config.row_optimizer or rows,
        dense_lr=config.dense_lr or (0.01 if is_linear else 0.001),
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


def _linear_rows(data: EncodedData, batch_size: int, decay: float) -> optim.Adagrad:
    """Adagrad for the weights of single features.

    The step is shared by all features, whose frequent ids move together. The sum of squares begins at
    that of one sample's gradient, 1 / batch_size: else the first step would be as long for a sample that
    was expected, as most are where labels are rare, as for a surprising one. Decay is that of an L2
    term, decay / 2 times the squares of all weights, beside the log loss summed over an epoch; it needs
    counts of ids, which data read as it is stored lacks, and dynamic features. See docs/defaults.md.
    """
    is_dynamic = any(feature.dynamic is not None for feature in data.schema.id_features)
    is_counted = bool(data.vocabularies) and not is_dynamic
    return optim.Adagrad(
        1 / len(data.schema.features),
        initial_accumulator=1 / batch_size**2,
        weight_decay=decay / batch_size if is_counted else 0.0,
        decay_by_count=is_counted,
    )


def _linear_epochs(num_samples: int) -> int:
    """As many as make four million samples, from 1 to 20; early stop mostly ends them before."""
    return min(max(4_000_000 // num_samples, 1), 20)


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
