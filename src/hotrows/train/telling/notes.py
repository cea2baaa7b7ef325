"""Notes of a run in the log: what it chose at its start, and where its predictions fall short."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hotrows.data import EncodedData, Part, ValueRates
from hotrows.engine.cached_tables import CachedTables
from hotrows.losses import StoredLoss, parse
from hotrows.train.config import TrainConfig
from hotrows.train.metrics import Metrics, shortcomings

_SHOWN_REASONS = 8
_SMALL, _FEW_VALUES = 200_000, 1_000  # rows, and distinct values of a column
# Labels of two parts differ where the logarithm of their odds does by so much, and by so many of its
# standard errors.
_APART, _ERRORS = math.log(1.5), 6.0
log = logging.getLogger("hotrows")


def of_model(config: TrainConfig, data: EncodedData) -> None:
    """Names the model that was chosen, and what it was chosen by; another kind where data are for it."""
    schema, num_sequences = data.schema, len(data.schema.sequences)
    labels = f"{len(schema.labels)} labels, " if len(schema.labels) > 1 else ""
    log.info(
        f"model: {config.model} ({labels}sequences {num_sequences or 'none'}, "
        f"{len(schema.sparse)} id features, {len(schema.dense_places)} dense); choose with --model, or "
        f"model="
    )
    if crosses := config.model_options.get("crosses"):
        joined = ", ".join("*".join(names) for names in crosses)
        log.info(f"pairs with vectors of their own: {joined}")
    most = max((stored.num_distinct for stored in data.vocabularies.values()), default=0)
    if data.parts["train"].rows <= _SMALL and most <= _FEW_VALUES and not num_sequences:
        log.info(
            f"few samples, and no column of more than {most:,} values: gradient boosting (LightGBM, "
            f"CatBoost) is often as good on such data, or better"
        )


def of_labels(parts: Mapping[str, Part]) -> None:
    """Warns of labels that are far more, or less, frequent in another part than in the training part."""
    train = parts["train"]
    for name, part in parts.items():
        if part is train or not train.labelled or not part.labelled:
            continue
        counts = zip(train.label_means(), train.labelled, part.label_means(), part.labelled, strict=True)
        for label, (rate, rows, other_rate, other_rows) in zip(part.schema.labels, counts, strict=True):
            if not label.values.binary or rate is None or other_rate is None:
                continue
            ones, others = rate * rows, other_rate * other_rows
            table = [n + 0.5 for n in (ones, rows - ones, others, other_rows - others)]
            error = math.sqrt(sum(1 / n for n in table))
            apart = math.log(table[2] / table[3]) - math.log(table[0] / table[1])
            if abs(apart) > max(_APART, _ERRORS * error):
                log.warning(
                    f"label {label.name!r} is 1 in {rate:.2%} of the training samples and in "
                    f"{other_rate:.2%} of the {name} samples: predictions will be too "
                    f"{'low' if apart > 0 else 'high'} there; were samples of one of them left out, or "
                    f"did the rate change with time?"
                )


def of_tables(reasons: Sequence[str], coverage: Iterable[object], run: Path) -> None:
    """Lists why tables are sharded as they are, the first reasons, and what pretrained values cover."""
    for reason in reasons[:_SHOWN_REASONS]:
        log.info(reason)
    if len(reasons) > _SHOWN_REASONS:
        log.info(f"and {len(reasons) - _SHOWN_REASONS:,} more in {run / 'placing.json'}")
    for covered in coverage:
        log.info(str(covered))


def of_pins(cached_tables: CachedTables) -> None:
    """Compares what batches in flight have pinned with the slots of a cache, where there is one."""
    if not cached_tables:
        return
    slots = [group.slots for group in cached_tables.groups]
    drained = max(one.num_drained for one in slots)
    advice = "" if not drained else "; a lower --in-flight pins fewer, a larger --fast-memory has more"
    log.info(
        f"fast memory: {sum(one.num_slots for one in slots):,} slots; {slots[0].in_flight} batches in "
        f"flight pinned at most {sum(one.most_pinned for one in slots):,} rows, and {drained:,} of "
        f"{slots[0].num_allocated:,} batches waited for all before them{advice}"
    )


def of_other_losses(before: Mapping[str, StoredLoss], now: Mapping[str, StoredLoss]) -> None:
    """Warns of labels whose loss predicts otherwise than that of the run that a run begins with."""
    outputs = np.linspace(-4, 4, 9, dtype=np.float32)
    for name in before.keys() & now.keys():
        first, then = (parse(one[name].loss).predictions(outputs) for one in (before, now))
        if not np.array_equal(first, then):
            log.warning(
                f"{name!r} was learned by {before[name].loss} in the run to begin with, and is by "
                f"{now[name].loss} here: the first predictions are not those of that run, unless "
                f"loss={before[name].loss!r} is given"
            )


def of_metrics(part: str, metrics: Metrics | None) -> None:
    """Warns of what is wrong with the predictions of a part, label by label."""
    for label, task in (metrics.tasks or {"": metrics}).items() if metrics else ():
        for line in shortcomings(task):
            log.warning(f"{part} {label}".rstrip() + f": {line}")


def of_values(part: Part, usual: Iterable[Part]) -> None:
    """Shows how many values of a part are missing and unknown; warns where that is far from `usual`."""
    rates = ValueRates.of_parts([part], usual)
    log.info(rates.summary())
    rates.warn()
