"""Workload: tables, lookups and dense work of a training job, of prepared data or a well-known one.

    job = workload.of_data(EncodedData.open("enc"), TrainConfig(model="dlrm", batch_size=8192))
    job = workload.named("criteo-1tb")

A workload has no rows and no ids, only how often they are read; `predict_scaling` predicts its speed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hotrows import models
from hotrows.data import EncodedData
from hotrows.data.description import row_counts
from hotrows.data.encode.encoder import readers_of
from hotrows.ops.record import layout_of
from hotrows.optim import Adagrad, RowOptimizer
from hotrows.runtime.random_numbers import restored
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema, vocabulary_of
from hotrows.table import BITS, Table
from hotrows.train.config import TrainConfig
from hotrows.train.costs.frequencies import Frequencies
from hotrows.train.costs.volumes import StepWork, TableLoad

ZIPF = 1.05  # exponent where it is not known how often ids are read
_ROW_STATE = 4  # bytes of row-wise Adagrad

# fmt: off
_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
_CAP = 40_000_000
_TERABYTE = (
    227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10,
    2209, 11938, 155, 4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36,
)
_HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
# fmt: on


@dataclass(frozen=True)
class Workload:
    """Tables and how batches read them; the dense work of a step; where the figures are from."""

    name: str
    loads: tuple[TableLoad, ...]
    step: StepWork
    note: str

    @property
    def table_bytes(self) -> float:
        return sum(load.bytes for load in self.loads)

    @property
    def lookups(self) -> float:
        """Number of ids of a sample."""
        return sum(load.lookups for load in self.loads)


def of_data(data: EncodedData, config: TrainConfig, model: models.Model | None = None) -> Workload:
    """The workload of prepared data under a config: frequencies are the counts of the training part.

    Dense work is 6 operations a sample for each weight of the model's matrices: a product, and the
    gradients of its two factors. Work per element of a sequence counts once.

    config: names the model, unless it is given, and the size of a batch.
    """
    assert config.model is not None and config.batch_size is not None, "settle the config first"
    train = data.parts["train"]
    data.check_counts("a prediction")
    if data.source is not None or not train.rows:
        raise ValueError(
            f"{data.path} has no counts of ids in a training part, which a prediction needs: "
            f"prepare the data first"
        )
    # Build the model, for its tables and the sizes of its matrices.
    name, built = type(model).__name__, model
    if built is None:
        with restored():
            name, built = config.model, models.build(config.model, data.schema, **config.model_options)
    tables = stored_tables(built, config.table_dtype, config.row_optimizer or Adagrad())
    lookups, counts = _lookups(data), row_counts(data)
    loads = tuple(_load(table, built.sequences, data.schema, counts, lookups) for table in tables)
    weights = [parameter.numel() for parameter in built.parameters()]
    matrices = [parameter.numel() for parameter in built.parameters() if parameter.dim() >= 2]
    step = StepWork(config.batch_size, 6.0 * sum(matrices), sum(weights), train.num_bytes / train.rows)
    note = f"counts of {train.rows:,} training samples; {name}"
    return Workload(data.path.name, loads, step, note)


def stored_tables(model: models.Model, dtype: str, default: RowOptimizer | None) -> list[Table]:
    """The tables of a model as they are stored: of this dtype, each with its optimizer or the default."""
    tables = model.tables
    return [dataclasses.replace(t.stored_as(dtype), optimizer=t.optimizer or default) for t in tables]


def named(name: str) -> Workload:
    """Returns the workload of `NAMED` with this name."""
    if name not in NAMED:
        raise ValueError(
            f"{name!r} is neither a folder of prepared data nor a well-known job ({', '.join(NAMED)})"
            f"{did_you_mean(name, NAMED)}"
        )
    return NAMED[name]()


def _load(
    table: Table,
    sequences: Sequence[str],
    schema: Schema,
    counts: Mapping[str, np.ndarray],
    lookups: Mapping[str, float],
) -> TableLoad:
    return TableLoad(
        name=table.name,
        rows=table.rows,
        dim=table.dim,
        record_bytes=layout_of(table).stride,
        lookups=sum(lookups.get(name, 1.0) for name in table.features),
        ids=_frequencies(table, schema, counts),
        weight_bytes=BITS[table.dtype] / 8,
        pooled=not any(name in sequences for name in table.features),
    )


def _frequencies(table: Table, schema: Schema, counts: Mapping[str, np.ndarray]) -> Frequencies:
    """Frequencies by the counts of the table's vocabulary; by Zipf's law for crosses, not counted."""
    owner = {feature.name: vocabulary_of(feature) for feature in schema.id_features}
    names = {owner[name] for name in table.features if name in owner}
    if len(names) != 1:
        return Frequencies.zipf(table.rows, ZIPF)
    known = counts[names.pop()][: table.rows]
    return Frequencies.of_counts(np.append(known, np.zeros(table.rows - len(known), np.int64)))


def _lookups(data: EncodedData) -> dict[str, float]:
    """Mean number of ids of each feature in a sample."""
    train = data.parts["train"]
    features = [feature for readers in readers_of(data.schema).values() for feature in readers]
    return {f.name: train.values.get(f.name, train.rows) / train.rows for f in features}


def _criteo_kaggle() -> Workload:
    """DLRM 512-256-64-16, 512-256-1 with element-wise Adagrad, as on the page of speed."""
    loads = tuple(
        TableLoad(f"C{n}", rows, 16, 2 * 64, 1, Frequencies.zipf(rows, ZIPF))
        for n, rows in enumerate(_KAGGLE, 1)
    )
    dense = _weights((13, 512, 256, 64, 16)) + _weights((16 + 27 * 26 // 2, 512, 256, 1))
    pairs = 27 * 26 / 2 * 16
    step = StepWork(8192, 6.0 * (dense + pairs), dense, 4 * (1 + 13 + 26))
    return Workload("criteo-kaggle", loads, step, f"DLRM, dim 16, Adagrad; ids by Zipf {ZIPF}")


def _criteo_terabyte(name: str, cap: int | None) -> Workload:
    """MLPerf's DLRM-DCNv2: dim 128, row-wise Adagrad, 214 lookups of which 26 are the data's own.

    The others are drawn once for each value, evenly over the table, and come with it every time:
    `multi_hot_distribution_type uniform` of the reference. Rows go as 16-bit numbers on the wire.
    """
    loads = []
    for n, (rows, num) in enumerate(zip(_TERABYTE, _HOTNESS, strict=True), 1):
        rows = min(rows, cap or rows)
        ids = Frequencies.zipf(rows, ZIPF).with_companions(num)
        loads.append(TableLoad(f"C{n}", rows, 128, 4 * 128 + _ROW_STATE, num, ids))
    width = 27 * 128
    crosses = 3 * 2 * width * 512
    dense = _weights((13, 512, 256, 128)) + crosses + _weights((width, 1024, 1024, 512, 256, 1))
    step = StepWork(65_536, 6.0 * dense, dense, 4 * (1 + 13 + sum(_HOTNESS)), wire_bytes=2)
    return Workload(name, tuple(loads), step, f"DLRM-DCNv2 of MLPerf, dim 128; values by Zipf {ZIPF}")


def _hundred_terabytes() -> Workload:
    """A made-up model of 100 TB: 400 tables of dim 128, 8 of them with 20 billion rows each.

    A sample has 600 lookups: 50 in each of four histories over the largest tables, one and two
    elsewhere. Crosses of rank 512 over 400 vectors, then 1,024 columns, as in DLRM-DCNv2.
    """
    sizes = (20 * 10**9,) * 8 + (10**9,) * 32 + (30 * 10**6,) * 60 + (100_000,) * 300
    lookups = (50,) * 4 + (1,) * 392 + (2,) * 4
    loads = tuple(
        TableLoad(f"T{n}", rows, 128, 4 * 128 + _ROW_STATE, num, Frequencies.zipf(rows, ZIPF))
        for n, (rows, num) in enumerate(zip(sizes, lookups, strict=True), 1)
    )
    width = 400 * 128
    dense = 3 * 2 * width * 512 + _weights((width, 1024, 1024, 512, 256, 1))
    step = StepWork(131_072, 6.0 * dense, dense, 4 * (1 + 600), wire_bytes=2)
    return Workload("100tb", loads, step, f"400 tables of dim 128, made up; ids by Zipf {ZIPF}")


def _weights(sizes: Sequence[int]) -> float:
    """Number of weights and biases of layers of these sizes."""
    return float(sum(inner * outer + outer for inner, outer in itertools.pairwise(sizes)))


NAMED: dict[str, Callable[[], Workload]] = {
    "criteo-kaggle": _criteo_kaggle,
    "criteo-1tb": lambda: _criteo_terabyte("criteo-1tb", _CAP),
    "criteo-1tb-uncapped": lambda: _criteo_terabyte("criteo-1tb-uncapped", None),
    "100tb": _hundred_terabytes,
}
