"""TrainConfig: how a model is trained, as one frozen value that round-trips to JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotrows import optim
from hotrows.optim import RowOptimizer
from hotrows.planning import policy, sharding
from hotrows.planning.budget import SPLITS
from hotrows.schema import TABLE_DTYPES
from hotrows.storage.device_cache import WAYS
from hotrows.tiers import FILE, Caching

PRECISIONS = ("float32", "bfloat16")
LINEAR_PATHS = ("auto", "measured", "plain")
HOT_COLD = ("scheduled", "sequential")
DENSE_OPTIMIZERS = ("adam", "adagrad", "sgd")
SHARDINGS = ("auto", *sharding.KINDS)
WIRE_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. What is None is chosen from the size of the data: see `settle`.

    model: a name in `hotrows.models.BY_NAME`, or your own as `module:Class` or `file.py:Class`;
        model_options: arguments of its class.
    label: which of several labels a model of one learns; None: the first. label_weights: what a
        model of several multiplies the loss of each label with; 1 where not named. Weights of
        samples multiply their loss, and the sum is divided by the number of samples in the batch.
    start_from: the folder of a run whose best checkpoint this one begins with, optimizers included;
        its data is this one, or what this one extends: tables then grow by the new ids.
    epochs: how often all training samples are read; steps: batches in all, in place of epochs.
    row_optimizer: for tables that bring none of their own.
    dense_optimizer: `adam`, `adagrad` or `sgd`; dense_lr: its rate; clip_norm: largest norm of the
        dense gradients.
    precision: of the dense part's matrices; table_dtype: of stored weights. Sums, state and the
        dense parameters are float32 either way.
    evaluate_every: steps between evaluations. None: three times within the first epoch, and at the
        end of every one.
    checkpoint_every: steps between checkpoints beside those at evaluations, the end and Ctrl-C.
    keep_last: how many checkpoints stay beside the best one. full_every: every so-manieth holds all
        rows, those between the rows changed since the one before. background_checkpoints: training goes
        on while they are written, where there is memory for a copy of what is.
    warmup_steps: both rates rise evenly from 0 to their value over so many steps.
    decay_factor: what both rates are multiplied with after `decay_patience` evaluations without a
        better score; stop_patience: after how many such evaluations training stops. None: never.
    plan_depth: how many batches are planned ahead, beside training; 0: every stage in turn, on one
        thread. Changes no bit of the result, and neither do fast_memory, store, policy, in_flight,
        lookahead_memory and memory_split.
    fast_memory: bytes of rows held in fast memory, the rest being in the store; None: all rows.
    store: where all rows live: `memory`, or `file:PATH`, a new folder.
    policy: which rows stay in fast memory: `lookahead`, `lookahead:200` (batches), `lru`,
        `frequency`, `hot` (data regrouped by popularity).
    hot_cold: of regrouped data: hot and cold batches in blocks whose length follows the loss on the
        validation part (`scheduled`), or all cold, then all hot ones of an epoch (`sequential`).
    in_flight: how many batches may move rows at once. lookahead_memory: bytes of ids waiting in the
        look ahead; None: a quarter of fast_memory, 64 MiB at least. memory_split: how groups of packs
        share fast memory: by what a sample `reads` of them, by what their `rows` take, or `even`.
    micro_batches: in how many parts the model learns from a batch, one update in all; between ranks
        the rows of the next part travel meanwhile. pack_parts: in how many packs tables of equal
        attributes are dealt: one is looked up while the rows of another travel; 0: packs of far more
        volume than the mean are split evenly.
    sharding: where the rows of tables are among ranks: `auto`, `rows`, `tables`, `columns` or
        `replicated`. wire_dtype: of rows and gradients on their way between ranks. timeout: seconds
        after which a rank that does not answer is given up.
    device: where fast memory and the model are: `cpu` or `cuda`. way: how rows go between
        host memory and the device: `direct` (it reads and writes them itself) or `staged` (gathered on
        the host, copied in blocks). compile: the dense part through `torch.compile`. cuda_graph: steps
        are launched as one, where batches have one size. lanes: on how many packs are looked up and
        updated side by side; with several, a micro-batch is looked up while another is learned from.
    linear_paths: `measured` at the start of a run, `plain` PyTorch, or `auto`: measured where a run
        is long enough to gain from it. Paths differ in rounding, so two runs of equal settings have
        equal bits for sure only with `plain`; a resumed run always.
    """

    model: str = "dlrm"
    model_options: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    label_weights: dict[str, float] = field(default_factory=dict)
    start_from: str | None = None
    epochs: int = 1
    steps: int | None = None
    batch_size: int | None = None
    row_optimizer: RowOptimizer | None = None
    dense_optimizer: str = "adam"
    dense_lr: float | None = None
    clip_norm: float | None = None
    precision: str = "float32"
    table_dtype: str = "float32"
    seed: int = 0
    shuffle: bool = True
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    keep_last: int = 1
    full_every: int = 1
    background_checkpoints: bool = True
    warmup_steps: int = 0
    decay_factor: float = 0.3
    decay_patience: int | None = 2
    stop_patience: int | None = 4
    plan_depth: int = 2
    fast_memory: int | None = None
    store: str = "memory"
    policy: str = "lookahead"
    hot_cold: str = "scheduled"
    in_flight: int = 4
    lookahead_memory: int | None = None
    memory_split: str = "reads"
    linear_paths: str = "auto"
    micro_batches: int = 1
    pack_parts: int = 1
    sharding: str = "auto"
    wire_dtype: str = "float32"
    timeout: float = 300.0
    device: str = "cpu"
    way: str = "direct"
    compile: bool = False
    cuda_graph: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("table_dtype", self.table_dtype, TABLE_DTYPES)
        _check_choice("linear_paths", self.linear_paths, LINEAR_PATHS)
        _check_choice("hot_cold", self.hot_cold, HOT_COLD)
        _check_choice("dense_optimizer", self.dense_optimizer, DENSE_OPTIMIZERS)
        _check_choice("sharding", self.sharding, SHARDINGS)
        _check_choice("wire_dtype", self.wire_dtype, WIRE_DTYPES)
        _check_choice("memory_split", self.memory_split, SPLITS)
        for name in (
            "epochs", "steps", "batch_size", "evaluate_every", "checkpoint_every", "micro_batches",
            "keep_last", "lanes", "full_every",
        ):  # fmt: skip
            _check_at_least(name, getattr(self, name), 1)
        for name in ("decay_patience", "stop_patience"):
            _check_at_least(name, getattr(self, name), 1)
        for name in ("warmup_steps", "plan_depth", "pack_parts"):
            _check_at_least(name, getattr(self, name), 0)
        for name in ("fast_memory", "in_flight", "lookahead_memory"):
            _check_at_least(name, getattr(self, name), 1)
        if self.store != "memory" and self.fast_memory is None:
            raise ValueError(
                f"store={self.store!r} needs fast_memory: how many bytes of rows memory may hold"
            )
        _check_choice("way", self.way, WAYS)
        if self.cuda_graph and (self.device == "cpu" or self.dense_optimizer == "adagrad"):
            raise ValueError(
                "cuda_graph needs device='cuda', and the dense optimizer adam or sgd: PyTorch's Adagrad "
                "cannot be captured"
            )
        for name in ("dense_lr", "clip_norm", "decay_factor", "timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        for name, weight in self.label_weights.items():
            if not isinstance(weight, int | float) or not weight > 0:
                raise ValueError(f"label_weights[{name!r}] must be above 0, not {weight!r}")
        self.caching()  # what it refuses is refused here

    def caching(self) -> Caching | None:
        """How rows are kept; None: all of them in memory."""
        if self.fast_memory is None:
            return None
        return Caching(
            self.fast_memory,
            self.store,
            policy.parse(self.policy),
            self.in_flight,
            self.lookahead_memory,
            memory_split=self.memory_split,
            way=self.way,
        )

    def to_json(self) -> str:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if self.row_optimizer is not None:
            fields["row_optimizer"] = optim.to_json(self.row_optimizer)
        return json.dumps(fields, indent=2)

    @staticmethod
    def from_json(text: str) -> TrainConfig:
        fields = json.loads(text)
        known = {f.name for f in dataclasses.fields(TrainConfig)}
        unknown = sorted(fields.keys() - known)
        if unknown:
            raise ValueError(
                f"a training configuration has no field {unknown[0]!r}; it has {sorted(known)}"
            )
        if fields.get("row_optimizer") is not None:
            fields["row_optimizer"] = optim.from_json(fields["row_optimizer"])
        return TrainConfig(**fields)

    def save(self, path: Path) -> None:
        path.write_text(self.to_json() + "\n")

    @staticmethod
    def load(path: Path) -> TrainConfig:
        return TrainConfig.from_json(path.read_text())


def settle(config: TrainConfig, num_samples: int) -> TrainConfig:
    """Fills in what the config leaves open, from the number of training samples."""
    batch_size = config.batch_size or _batch_size(num_samples)
    return dataclasses.replace(
        config,
        batch_size=batch_size,
        row_optimizer=config.row_optimizer or optim.Adagrad(),
        dense_lr=config.dense_lr or 1e-3,
        store=_absolute(config.store),
        model=_absolute_model(config.model),
    )


def _absolute(store: str) -> str:
    """The store, wherever the run is gone on with."""
    return f"{FILE}{Path(store[len(FILE) :]).resolve()}" if store.startswith(FILE) else store


def _absolute_model(model: str) -> str:
    """The file of a model, wherever the run is read from."""
    file, colon, kind = model.rpartition(":")
    return f"{Path(file).resolve()}:{kind}" if colon and file.endswith(".py") else model


def _batch_size(num_samples: int) -> int:
    """The largest power of two that leaves 500 steps an epoch, from 64 to 8,192."""
    fitting = max(num_samples // 500, 1)
    return min(max(1 << (fitting.bit_length() - 1), 64), 8192)


def _check_choice(name: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {given!r}")


def _check_at_least(name: str, given: int | None, least: int) -> None:
    if given is not None and given < least:
        raise ValueError(f"{name} must be at least {least}, not {given}")
