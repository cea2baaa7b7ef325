"""Defaults of a training that its config leaves open, chosen from schema and size of the data."""

from __future__ import annotations

import dataclasses
import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np

from hotrows import losses, models, optim
from hotrows.data import EncodedData
from hotrows.data.columns.label import missing_labels
from hotrows.engine.distributed.all_or_none import together
from hotrows.engine.distributed.comm import Ranks
from hotrows.models.model import Model
from hotrows.runtime.atomic_files import local
from hotrows.train.config import TrainConfig
from hotrows.train.run import folder as run_folder
from hotrows.train.start import effects

# L2 term of weights of single features, and of the vectors of FM, which learn by heart sooner.
_DECAY, _DECAY_OF_FM = 3.0, 10.0
# How many samples are few, which `Model.small` reads again: the L2 term of their vectors, and about the
# most that the gradient of a logit is by an element of a vector.
_FEW, _DECAY_OF_VECTORS, _VECTOR_GRADIENT = 2_000_000, 100.0, 0.3
# Rates of a deep network, of a small one and of weights of dense features, and B p (1 - p) of a batch
# from which on they are the whole ones.
_DENSE_LR, _SMALL_LR, _LINEAR_LR, _ENOUGH = 0.001, 0.002, 0.01, 8.0
_LEAST_BATCH, _STEPS, _SMALL_STEPS = 64, 500, 125  # steps of an epoch; a small network needs fewer
# Features up to which L2 terms stand as they are, the rate of weights of single features follows their
# number, and that of vectors is the whole one. See docs/reference/settings.md.
_USUAL, _MOST_SHARING, _MOST_WHOLE = 39, 50, 100
_SAMPLE = 16, 1024  # blocks and rows of each, of which the deviation of labels is taken
_SUGGESTED = {"crosses", "effects", "effect_trees"}  # options that the data suggests
_NEAR = 3.0  # a deviation that is at most so many times 1, or 1 of it, is near 1
_OF_A_RANK = {
    "device",
    "store",
    "start_from",
    "pretrained",
    "planning_threads",
    "scratch",
    "data_cache",
    "notice",
}  # of its machine


def settle(
    config: TrainConfig,
    data: EncodedData,
    own_model: str | type[Model] | Model | None = None,
    resumed: Path | None = None,
) -> TrainConfig:
    """Fills in what the config leaves open, for a training on these data.

    own_model: the model itself, if it is not found by its name; an object has its options.
    resumed: the run that goes on, if there is one.
    """
    # What holds for all models.
    num_samples = _num_training_samples(data)
    model = config.model or models.default_name(data.schema, config.label)
    kind = _class_of(model, own_model)
    is_small = kind.small is not None and _are_read_again(config, data)
    batch_size = config.batch_size or _batch_size(num_samples, _SMALL_STEPS if is_small else _STEPS)
    epochs = config.epochs or 1
    is_shallow = kind.rates != "network"
    rate = _LINEAR_LR if is_shallow else _SMALL_LR if is_small else _DENSE_LR
    dense_lr = _dense_lr(config, data, batch_size, rate)
    rows = linear = optim.Adagrad()
    if is_shallow:
        epochs = config.epochs or min(max(4_000_000 // num_samples, 1), 20)
        rows = linear = _linear_rows(data, batch_size, _DECAY)
        if kind.rates == "products":
            decayed = _linear_rows(data, batch_size, _DECAY_OF_FM * _times_as_wide(data, _USUAL))
            rows = dataclasses.replace(decayed, lr=1 / len(data.schema.features))
    elif is_small:
        epochs = config.epochs or _epochs_of_few(num_samples)
        rows, linear = _vectors(data, batch_size), _linear_rows(data, batch_size, _DECAY)
    elif kind.small is not None:
        rows = _whole_vectors(data)
    return dataclasses.replace(
        config,
        model=_absolute_model(model),
        model_options=config.model_options
        if isinstance(own_model, Model)
        else _options(config, model, kind, is_small, data),
        loss=_loss(config, _learned(config, kind, own_model, data), data, resumed),
        epochs=epochs,
        batch_size=batch_size,
        row_optimizer=config.row_optimizer or rows,
        linear_optimizer=config.linear_optimizer or config.row_optimizer or linear,
        dense_lr=config.dense_lr or dense_lr,
        precision=config.precision or ("float32" if config.device == "cpu" else "tf32"),
        pack_parts=_pack_parts(config),
        store=_absolute_store(config.store),
        pretrained={name: str(local(file).resolve()) for name, file in config.pretrained.items()},
    )


def _class_of(model: str, own_model: str | type[Model] | Model | None) -> type[Model]:
    if isinstance(own_model, Model):
        return type(own_model)
    try:
        return own_model if isinstance(own_model, type) else models.class_of(model)
    except ValueError:  # of a notebook, or wrong: `models.build` says so
        return Model


def _options(
    config: TrainConfig, model: str, kind: type[Model], is_small: bool, data: EncodedData
) -> dict[str, Any]:
    """The config's options, before those of a small network, or of the run that this one begins with."""
    first = dict(kind.small or {}) if is_small else {}
    is_fitted = is_small and "effects" in inspect.signature(kind).parameters and not config.plain
    if config.start_from is None and is_fitted and not _SUGGESTED & {*config.model_options}:
        first = {**first, **effects.options(data, config.label)}
    elif config.start_from is not None:
        is_open = config.row_optimizer is None  # a resumed run has its options, and may be alone
        earlier = run_folder.read_config(local(config.start_from)) if is_open else config
        first = earlier.model_options if earlier.model == model else {}
    return {**first, **config.model_options}


def _learned(
    config: TrainConfig, kind: type[Model], own_model: str | type[Model] | Model | None, data: EncodedData
) -> list[str]:
    """The labels that the model learns."""
    if isinstance(own_model, Model) and own_model.labels is not None:
        return list(own_model.labels)
    names = [label.name for label in data.schema.labels]
    if "labels" in inspect.signature(kind).parameters:
        return list(config.model_options.get("labels") or names)
    return [config.label or names[0]]


def _loss(config: TrainConfig, learned: list[str], data: EncodedData, resumed: Path | None) -> str | None:
    """The config's losses, with the units of labels: those of the run that goes on, or that this one
    begins with, else the deviations of labels where they are far from 1."""
    known = {label.name: label.loss or losses.Loss.name for label in data.schema.labels}
    said = losses.texts_by_label(config.loss) if config.loss else {}
    texts = {
        name: said.get(name) or said.get("") or known.get(name, losses.Loss.name) for name in learned
    }
    has_comma = len(learned) > 1 and any("," in name for name in learned)  # which parts their losses
    is_wrong = bool(said.keys() - {"", *learned})  # which is refused where the model is made
    if is_wrong or has_comma or not any(map(losses.is_open, texts.values())):
        return config.loss
    first = resumed or config.start_from
    earlier = run_folder.read_config(local(first)).loss if first else None
    before = losses.parse_by_label(earlier) if earlier else {}
    chosen = {name: losses.parse(text) for name, text in texts.items()}
    for name, loss in chosen.items():
        if isinstance(loss, losses.OfNumbers) and losses.is_open(texts[name]):
            other = before.get(name) or before.get("")
            unit = other.unit if isinstance(other, losses.OfNumbers) else _unit(data, name)
            chosen[name] = dataclasses.replace(loss, unit=unit)
    if len(learned) == 1:
        return chosen[learned[0]].text
    return ",".join(f"{name}={loss.text}" for name, loss in chosen.items())


def _unit(data: EncodedData, label: str) -> float:
    """The deviation of a label in a sample of the training part; 1 where it is near 1, or unknown."""
    train, names = data.parts["train"], [label.name for label in data.schema.labels]
    if not train.rows:
        return 1.0
    labels = train.sample(*_SAMPLE).arrays["labels"].reshape(-1, len(names))[:, names.index(label)]
    present = labels[~missing_labels(labels)].astype(np.float64)
    deviation = float(f"{present.std():.2g}") if len(present) else 0.0
    return deviation if deviation > 0 and not 1 / _NEAR < deviation < _NEAR else 1.0


def _num_training_samples(data: EncodedData) -> int:
    """The samples of the training part, at least 1; ValueError where there are none, but some in others:
    data without any is for a stream."""
    if not data.parts["train"].rows and any(part.rows for part in data.parts.values()):
        raise ValueError(
            f"the training part of {data.path} has no samples: prepare the data with another split"
        )
    return max(data.parts["train"].rows, 1)


def _batch_size(num_samples: int, steps: int) -> int:
    """The largest power of two that leaves so many steps an epoch, from 64 to 8,192."""
    fitting = max(num_samples // steps, 1)
    return min(max(1 << (fitting.bit_length() - 1), _LEAST_BATCH), 8192)


def _dense_lr(config: TrainConfig, data: EncodedData, batch_size: int, rate: float) -> float:
    """Adam's rate for a dense part: less than `rate` where a batch says little of a label that is nearly
    always 0, or 1.

    Adam's steps are as long for noise as for what a batch says. That is worth B p (1 - p) of its B
    samples; as with the size of batches, the rate follows its root. Of several labels the one counts
    that says most, and of smaller batches one of 64. See docs/reference/settings.md.
    """
    train = data.parts["train"]
    worth = [
        min(max(min(ones, rows - ones), 1) / rows, 0.5)
        for label, ones, rows in zip(data.schema.labels, train.clicks, train.labelled, strict=False)
        if label.values.binary and rows and config.label in (None, label.name)
    ]
    size = max(batch_size, _LEAST_BATCH)
    enough = max((size * share * (1 - share) / _ENOUGH for share in worth), default=1.0)
    return rate if enough >= 1 else float(f"{rate * math.sqrt(enough):.2g}")


def _is_counted(data: EncodedData) -> bool:
    """True if it is known how frequent each id is, by which the decay of rows is divided."""
    return bool(data.vocabularies) and not data.schema.dynamic_vocabularies


def _linear_rows(data: EncodedData, batch_size: int, decay: float) -> optim.Adagrad:
    """Adagrad for the weights of single features.

    The step is shared by all features, whose frequent ids move together. The sum of squares begins at
    that of one sample's gradient, 1 / batch_size: else the first step would be as long for a sample that
    was expected, as most are where labels are rare, as for a surprising one. Decay is that of an L2
    term, decay / 2 times the squares of all weights, beside the log loss summed over an epoch: the more
    features, the less each one says. It needs counts of ids, which data read as it is stored lacks, and
    dynamic features. See docs/reference/settings.md.
    """
    is_counted = _is_counted(data)
    decay *= _times_as_wide(data, _USUAL)
    return optim.Adagrad(
        1 / min(len(data.schema.features), _MOST_SHARING),
        initial_accumulator=1 / batch_size**2,
        weight_decay=decay / batch_size if is_counted else 0.0,
        decay_by_count=is_counted,
    )


def _are_read_again(config: TrainConfig, data: EncodedData) -> bool:
    """True if samples are few and are to be read more than once, while vectors decay.

    That takes counts of ids, if there are ids, and a validation part, which tells when to stop. Optimizer
    and number of steps must be open: runs of before have theirs.
    """
    is_open = config.row_optimizer is None and config.steps is None and config.epochs != 1
    has_few = data.parts["train"].rows <= _FEW and bool(data.parts["validation"].rows)
    return is_open and has_few and (_is_counted(data) or not data.schema.id_features)


def _epochs_of_few(num_samples: int) -> int:
    """Five while that reads at most five million samples, and more of less than 100,000."""
    return min(max(500_000 // num_samples, min(5, 5_000_000 // num_samples)), 10)


def _times_as_wide(data: EncodedData, features: int) -> float:
    """How many times more features there are; at least 1."""
    return max(len(data.schema.features) / features, 1.0)


def _whole_vectors(data: EncodedData) -> optim.Adagrad:
    """Adagrad for vectors whose products over all pairs of features are summed, or that are crossed."""
    return optim.Adagrad(optim.Adagrad.lr / _times_as_wide(data, _MOST_WHOLE))


def _vectors(data: EncodedData, batch_size: int) -> optim.Adagrad:
    """Adagrad for vectors that a deep network reads, beside weights of single features.

    The sum of squares begins at that of one sample's gradient, as it does for these weights. Without
    decay samples that are read again would be learned by heart.
    """
    return dataclasses.replace(
        _whole_vectors(data),
        initial_accumulator=(_VECTOR_GRADIENT / batch_size) ** 2,
        weight_decay=_DECAY_OF_VECTORS * _times_as_wide(data, _MOST_WHOLE) / batch_size,
        decay_by_count=True,
    )


def _pack_parts(config: TrainConfig) -> int:
    """Planning on the host spends most of its time on slots of a cache, and each part has its own."""
    looks_ahead = config.policy.startswith(("lookahead", "lru"))
    on_device = config.device != "cpu" and config.planning != "host" and looks_ahead
    if config.pack_parts is not None:
        return config.pack_parts
    if config.fast_memory is None or on_device:
        return 1
    from hotrows.engine.planning.threads import num_threads

    return num_threads(config.planning_threads, config.device == "cpu")


def _absolute_store(store: str) -> str:
    """The store by an absolute path, so that the run can be resumed from any folder."""
    from hotrows.engine.caching import FILE

    return f"{FILE}{Path(store[len(FILE) :]).resolve()}" if store.startswith(FILE) else store


def _absolute_model(model: str) -> str:
    """The model's file by an absolute path, so that the run can be read from any folder."""
    file, colon, kind = model.rpartition(":")
    return f"{Path(file).resolve()}:{kind}" if colon and file.endswith(".py") else model


def agreed(
    ranks: Ranks,
    data: EncodedData | Path | str,
    config: TrainConfig | None,
    model: str | type[Model] | Model | None,
    resumed: Path | str | None,
) -> tuple[EncodedData, TrainConfig, TrainConfig]:
    """Collective: opens the data, and returns the config before and after it was settled. What fails on
    one rank fails on all, which must have equal data. resumed: the run whose settings are taken."""

    def settled() -> tuple[EncodedData, TrainConfig, TrainConfig]:
        open_config = checked(config, model)
        begun = None if resumed is None else local(resumed)
        if begun is not None and not (begun / "config.json").exists():
            begun = None
        if begun is not None:
            open_config = run_folder.with_settings_of(begun, open_config)
        source = opened(data, open_config.data_cache)
        return source, open_config, settle(open_config, source, model, begun)

    source, open_config, filled = together(ranks, settled)
    rows = {name: part.rows for name, part in source.parts.items()}
    texts = {f.name: repr(getattr(open_config, f.name)) for f in dataclasses.fields(open_config)}
    (first, settings), *others = ranks.gather_objects(((source.fingerprint, rows), texts))
    for rank, (other, of_other) in enumerate(others, 1):
        if other != first:
            raise ValueError(f"rank {rank} has other data in {source.path} than rank 0; copy one to both")
        for name in sorted(settings.keys() - _OF_A_RANK):
            if of_other[name] != settings[name]:
                raise ValueError(
                    f"rank {rank} has {name}={of_other[name]}, and rank 0 {name}={settings[name]}: give "
                    f"all ranks the same settings"
                )
    return source, open_config, filled


def opened(data: EncodedData | Path | str, cache: int | None = None) -> EncodedData:
    """The prepared data that a `Trainer` was given, or that of its folder or URL."""
    if isinstance(data, str | Path):
        return EncodedData.open(data, cache)
    if not isinstance(data, EncodedData):
        what = type(data).__name__
        raise ValueError(f"expected prepared data, not {what}: hotrows.prepare(rows, schema, folder)")
    return data


def checked(config: TrainConfig | None, model: str | type[Model] | Model | None) -> TrainConfig:
    """The config that a `Trainer` was given, with the name of its model."""
    if config is not None and not isinstance(config, TrainConfig):
        advice = "; the name of a model is model=" if isinstance(config, str) else ""
        raise ValueError(f"config must be a TrainConfig, not {config!r:.60}{advice}")
    config = config or TrainConfig()
    return config if model is None else dataclasses.replace(config, model=models.name_of(model))
