"""TrainConfig: how a model is trained, as one frozen value that round-trips to JSON.

Every setting is declared once, as a field; the options of `hotrows train`, the checks of values, what a
resumed run may change and `tune` may try, and the tables in docs/reference/settings.md are read from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotrows import losses, optim
from hotrows.optim import RowOptimizer
from hotrows.runtime.atomic_files import local, write_text
from hotrows.runtime.json_file import JsonFile, build, parse, shown
from hotrows.runtime.settings import (
    CACHE_TRANSFERS,
    GONE,
    PLANNING,
    SHARDINGS,
    SPLITS,
    Setting,
    declared,
    setting,
    without_gone,
)
from hotrows.runtime.suggestions import did_you_mean, refusing_unknown
from hotrows.runtime.units import parse_bytes
from hotrows.table import TABLE_DTYPES

if TYPE_CHECKING:
    from torch import Tensor

    from hotrows.engine.caching import Caching

PRECISIONS = ("float32", "tf32", "bfloat16")
LINEAR_PATHS = ("auto", "measured", "plain")
HOT_COLD = ("scheduled", "sequential")
ROW_OPTIMIZERS = ("row_optimizer", "linear_optimizer")  # settings whose values are such
DENSE_OPTIMIZERS = ("adam", "adagrad", "sgd")
WIRE_DTYPES = ("float32", "bfloat16", "float16")
CONFIG_FILE = JsonFile("correct it, or bring it back from a copy", problem="cannot be read")


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. `train.start.defaults` fills in what is left open (None), from the data.

    >>> TrainConfig(model="deepfm", epochs=2, model_options={"dim": 8}).epochs
    2
    """

    model: str | None = setting(
        None,
        "Model to train; your own as module:Class or file.py:Class",
        unset="deepfm; mmoe for several labels",
    )
    model_options: dict[str, Any] = setting(
        {}, "Argument of the model's class, such as dim=32 or top=[256,128]", option="--option"
    )
    label: str | None = setting(None, "Label that a model of one label learns", unset="the first")
    label_weights: dict[str, float] = setting(
        {}, "Weight of a label in the loss of several, such as buy=2", unset="1", option="--label-weight"
    )
    loss: str | None = setting(
        None,
        "Loss: log_loss, soft, weighted:10, focal:2, fake_negative, squared, huber:1, poisson or bpr:16; "
        "for several labels rating=squared,click=focal",
        unset="the schema's, or log_loss",
    )
    plain: bool = setting(False, "Give a small deepfm no effects, trees or crosses that data suggests")
    start_from: str | None = setting(
        None,
        "Begin with the best checkpoint of this run; tables grow where its data was extended",
        unset="initial values",
        option="--init-from",
    )
    pretrained: dict[str, str] = setting(
        {}, "File of initial values of a table, by raw value, such as item=vectors.parquet", unset="none"
    )
    frozen: str | None = setting(None, "Tables that are not trained, with commas between", unset="none")
    epochs: int | None = setting(
        None,
        "How often all training samples are read",
        unset="1, and up to 20 on small data",
        least=1,
        most=10**9,
        resumable=True,
    )
    steps: int | None = setting(
        None, "Batches in all, in place of epochs", unset="--epochs decides", least=1, resumable=True
    )
    batch_size: int | None = setting(
        None, "Samples per step, all ranks", unset="64 to 8192, by the data's size", least=1, most=1 << 40
    )
    row_optimizer: RowOptimizer | None = setting(
        None, "Optimizer of rows", unset="adagrad", option="--optimizer"
    )
    linear_optimizer: RowOptimizer | None = setting(
        None,
        "Optimizer of weights of single ids beside vectors, as deepfm has",
        unset="by the data's size; row_optimizer where that is given",
        option="",
    )
    dense_optimizer: str = setting("adam", "Optimizer of the dense part", choices=DENSE_OPTIMIZERS)
    dense_lr: float | None = setting(
        None,
        "Learning rate of the dense part",
        unset="0.001, 0.002 for few samples, 0.01 for lr and fm; less for rare labels",
        above=0,
    )
    dense_weight_decay: float = setting(0.0, "Weight decay of the dense part, as L2 term", least=0)
    clip_norm: float | None = setting(
        None, "Largest norm of the dense gradients", unset="no limit", above=0
    )
    clip_rows: bool = setting(
        False,
        "Let clip_norm limit all gradients, of rows and L2 terms too, as PyTorch's clip_grad_norm_ does",
    )
    precision: str | None = setting(
        None, "Format of matrices in the dense part", unset="float32; tf32 on CUDA", choices=PRECISIONS
    )
    table_dtype: str = setting(
        "float32", "Number format of stored weights; optimizer state is float32", choices=TABLE_DTYPES
    )
    seed: int = setting(0, "Seed of initial values, dropout and the order of samples")
    shuffle: bool = setting(True, "Read samples in random order")
    order: str = setting(
        "shuffle",
        "Random order: shuffle, shards:NUMBER at a time, or reuse:CLUSTERS, which fetches fewer rows",
    )
    evaluate_every: int | None = setting(
        None,
        "Steps between evaluations",
        unset="a quarter of the first epoch, then an epoch",
        least=1,
        resumable=True,
    )
    metrics: str | None = setting(
        None,
        "Further metrics within the schema's groups: ndcg@10, hit@5, mrr, with commas between",
        unset="none",
        changes="no bit",
    )
    calibration: str = setting(
        "scale",
        "Scale of logits about the base rate in predictions, of least log loss on the validation part",
        choices=("scale", "none"),
        changes="no bit",
    )
    checkpoint_every: int | None = setting(
        None,
        "Steps between checkpoints, beside those at evaluations and at the end",
        unset="none",
        least=1,
        changes="no bit",
    )
    keep_last: int = setting(1, "Checkpoints that stay beside the best one", least=1, changes="no bit")
    full_every: int = setting(
        1, "Write a full checkpoint every N saves, increments between", least=1, changes="no bit"
    )
    background_checkpoints: bool = setting(
        True, "Train on while checkpoints are written, where memory has room for a copy", changes="no bit"
    )
    warmup_steps: int = setting(0, "Steps over which both learning rates rise evenly from 0", least=0)
    decay_factor: float = setting(
        0.3, "Factor of both rates after decay_patience evaluations without a better score", above=0
    )
    decay_patience: int | None = setting(
        2, "Evaluations without a better score that lower the learning rates", least=1, resumable=True
    )
    stop_patience: int | None = setting(
        4, "Evaluations without a better score after which training stops", least=1, resumable=True
    )
    plan_depth: int = setting(
        2,
        "Batches that are planned ahead, beside training; 0: every stage in turn, on one thread",
        least=0,
        most=1024,
        changes="no bit",
    )
    fast_memory: int | None = setting(
        None,
        "Size of fast memory for rows, such as 2GiB",
        unset="all rows",
        least=1,
        changes="no bit",
        unit="bytes",
    )
    store: str = setting(
        "memory",
        "Where all rows are: memory, or file:PATH, a new folder",
        changes="no bit",
        resumable=False,
    )
    policy: str = setting(
        "lookahead",
        "Which rows stay in fast memory: lookahead, lookahead:BATCHES, lru, frequency, or hot (for "
        "data regrouped by popularity)",
        changes="no bit",
    )
    hot_cold: str = setting(
        "scheduled",
        "Order of regrouped data: hot and cold batches in blocks whose length follows the loss on the "
        "validation part (scheduled), or all cold, then all hot ones of an epoch (sequential)",
        choices=HOT_COLD,
    )
    in_flight: int = setting(
        4, "Batches that move rows to and from fast memory at once", least=1, most=1024, changes="no bit"
    )
    lookahead_memory: int | None = setting(
        None,
        "Memory of the ids that are read ahead",
        unset="a quarter of fast memory, at least 64MiB",
        least=1,
        changes="no bit",
        unit="bytes",
    )
    memory_split: str = setting(
        "reads",
        "How groups of packs share fast memory: by what a sample reads of them, by what their rows take, "
        "or evenly",
        choices=SPLITS,
        changes="no bit",
    )
    linear_paths: str = setting(
        "auto",
        "Matrix products on the paths that the rule for this kind of processor names, or plain PyTorch; "
        "measured, of earlier versions: as auto",
        choices=LINEAR_PATHS,
        changes="rounding",
        resumable=False,
    )
    micro_batches: int = setting(
        1,
        "Parts of a batch that are computed in turn, with one update in all; rows of the next part are "
        "exchanged between ranks meanwhile",
        least=1,
        most=4096,
        changes="rounding",
    )
    pack_parts: int | None = setting(
        None,
        "Packs that tables of equal attributes are dealt to; 0: packs of far more volume than the "
        "mean are split evenly",
        unset="1; planning_threads behind a cache",
        least=0,
        most=4096,
        changes="no bit",
    )
    planning_threads: int | None = setting(
        None,
        "Threads that plan packs side by side",
        unset="1; with a device all cores but 2, at most 8",
        least=1,
        most=1024,
        changes="no bit",
    )
    planning: str | None = setting(
        None, "Where batches are planned", unset="device on CUDA", choices=PLANNING, changes="no bit"
    )
    sharding: str = setting(
        "auto", "How tables are sharded over ranks", choices=("auto", *SHARDINGS), changes="rounding"
    )
    shares: str | None = setting(
        None, "Parts of a batch by rank: 1,2, equal or auto (measured)", unset="equal", changes="rounding"
    )
    wire_dtype: str = setting(
        "float32", "Number format of rows and gradients on the wire", choices=WIRE_DTYPES, resumable=True
    )
    scratch: str | None = setting(
        None, "Local folder for the copy of a run at a URL", unset="in the user's cache", changes="no bit"
    )
    data_cache: int | None = setting(
        None, "Room for shards of data at a URL", unset="all", least=1, unit="bytes", changes="no bit"
    )
    notice: float | None = setting(
        None, "Seconds from SIGTERM until the machine is gone", unset="none", above=0, changes="no bit"
    )
    timeout: float = setting(
        300.0, "Seconds after which a silent rank is given up", above=0, most=10**9, changes="no bit"
    )
    device: str = setting("cpu", "Where fast memory and the model are: cpu, cuda", changes="rounding")
    cache_transfer: str = setting(
        "zero_copy",
        "How rows cross between host memory and the device: it reads and writes them itself "
        "(zero_copy), or the host gathers them and blocks are copied (staged)",
        choices=CACHE_TRANSFERS,
        changes="no bit",
    )
    compile: bool = setting(False, "Compile the dense part by torch.compile", changes="rounding")
    cuda_graph: bool | None = setting(
        None,
        "Launch whole steps as CUDA graphs",
        unset="yes on CUDA, if a step can be captured",
        changes="no bit",
    )
    streams: int = setting(
        1,
        "CUDA streams on which packs are looked up and updated side by side; with several, a "
        "micro-batch is looked up while another one is trained",
        least=1,
        most=1024,
        changes="no bit",
    )

    def __post_init__(self) -> None:
        for known in SETTINGS.values():
            value = _plain(known, getattr(self, known.name))
            known.check(value)
            object.__setattr__(self, known.name, value)
        _check_together(self)
        self.caching()  # what it refuses is refused here

    def caching(self, hot_ids: Mapping[str, Tensor] | None = None) -> Caching | None:
        """The cache in front of the store; None: all rows are in memory. hot_ids: see `Caching`."""
        if self.fast_memory is None:
            return None
        from hotrows.engine.caching import Caching
        from hotrows.engine.planning import policy

        return Caching(
            self.fast_memory,
            self.store,
            policy.parse(self.policy),
            self.in_flight,
            self.lookahead_memory,
            hot_ids,
            memory_split=self.memory_split,
            cache_transfer=self.cache_transfer,
        )

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in SETTINGS}
        for name in ROW_OPTIMIZERS:
            fields[name] = None if fields[name] is None else optim.to_json(fields[name])
        return json.dumps(fields, indent=2)

    @staticmethod
    def from_json(text: str) -> TrainConfig:
        return TrainConfig.from_fields(parse(text))

    @staticmethod
    def from_fields(fields: Any) -> TrainConfig:
        """Returns the config with these values, as a file states them."""
        if not isinstance(fields, Mapping):
            raise ValueError(f"expected an object of settings, found {shown(fields)}")
        fields = without_gone(fields)
        for name in sorted(fields.keys() - SETTINGS):
            raise ValueError(f"a training configuration has no field {name!r}{advice_on(name)}")
        plain = {name: _plain(SETTINGS[name], value) for name, value in fields.items()}
        return build(TrainConfig, plain, "training configuration")

    def save(self, path: Path | str) -> None:
        write_text(Path(path), self.to_json() + "\n")

    @staticmethod
    def load(path: Path | str) -> TrainConfig:
        path = local(path)
        fields = CONFIG_FILE.read(path)
        with CONFIG_FILE.naming(path):
            return TrainConfig.from_fields(fields)


def _plain(known: Setting, value: Any) -> Any:
    """The value as a config keeps it: the row optimizer of its name, its numbers or both; the bytes of a
    size such as 2GiB; Python's number of NumPy's."""
    if known.name in ROW_OPTIMIZERS and isinstance(value, str | Mapping):
        stated = {"kind": value} if isinstance(value, str) else {"kind": optim.Adagrad.kind, **value}
        return optim.from_json(stated)
    if known.unit == "bytes" and isinstance(value, str):
        return parse_bytes(value)
    return value.item() if getattr(value, "shape", None) == () else value


def advice_on(name: str) -> str:
    """Advice for a name that is not a setting, for messages."""
    if name in ("lr", "learning_rate", "embedding_lr"):
        return "; tables learn by row_optimizer=hotrows.Adagrad(lr=0.05), the dense part by dense_lr"
    if name in GONE:
        return f", which is gone: {GONE[name][1]}"
    elsewhere = (
        "; a model's own arguments are in model_options, and `hotrows train --help` has all settings"
    )
    return did_you_mean(name, SETTINGS) or elsewhere


def _check_together(config: TrainConfig) -> None:
    """Raises ValueError where settings are wrong that are more than a number or a name."""
    if config.store != "memory" and config.fast_memory is None:
        raise ValueError(
            f"store={config.store!r} needs fast_memory: how many bytes of rows memory may hold"
        )
    if config.cuda_graph and (config.device == "cpu" or config.dense_optimizer == "adagrad"):
        raise ValueError(
            "cuda_graph needs device='cuda', and the dense optimizer adam or sgd: PyTorch's Adagrad "
            "cannot be captured"
        )
    if config.clip_rows and (config.clip_norm is None or config.device != "cpu"):
        raise ValueError("clip_rows needs clip_norm, and device='cpu': a GPU would be waited for")
    if config.order != "shuffle" or config.shares is not None:
        from hotrows.data.stored.order import parse_order, parse_shares

        _ = parse_shares(config.shares)
        if config.order != "shuffle" and parse_order(config.order) and not config.shuffle:
            raise ValueError(f"order={config.order!r} is one of shuffled samples; leave shuffle on")
    if config.planning == "device" and config.device == "cpu":
        raise ValueError("planning='device' needs device='cuda'; leave it out on the cpu")
    for name in ROW_OPTIMIZERS:
        if type(rows := getattr(config, name)) not in (type(None), *optim.BY_NAME.values()):
            kinds = ", ".join(kind.__name__ for kind in optim.BY_NAME.values())
            raise ValueError(f"{name} must be one of {kinds}, not {rows!r}")
    for name, weight in config.label_weights.items():
        if not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ValueError(f"label_weights[{name!r}] must be above 0, not {weight!r}")
    if config.pretrained and config.start_from is not None:
        raise ValueError("pretrained and start_from both say with what a run begins; give one of the two")
    _ = config.loss is None or losses.parse_by_label(config.loss)
    _ = config.metrics is None or losses.parse_ranking(config.metrics)


GROUPS = {
    "Data and run": ("start_from", "plain", "epochs", "steps", "batch_size", "shuffle", "order", "seed"),
    "Model": ("model", "model_options", "label", "label_weights", "loss", "pretrained", "frozen"),
    "Optimisation": (
        *("row_optimizer", "linear_optimizer", "dense_optimizer", "dense_lr", "dense_weight_decay"),
        *("clip_norm", "clip_rows", "warmup_steps", "decay_factor", "decay_patience"),
    ),
    "Evaluation and checkpoints": (
        *("evaluate_every", "metrics", "calibration", "stop_patience", "checkpoint_every", "keep_last"),
        *("full_every", "background_checkpoints"),
    ),
    "Caching": (
        *("fast_memory", "store", "policy", "hot_cold", "in_flight", "lookahead_memory"),
        *("memory_split", "cache_transfer"),
    ),
    "Ranks": ("sharding", "shares", "wire_dtype", "timeout", "notice", "scratch", "data_cache"),
    "Device, numbers and speed": (
        *("device", "precision", "table_dtype", "linear_paths", "compile", "cuda_graph", "streams"),
        *("micro_batches", "plan_depth", "planning", "planning_threads", "pack_parts"),
    ),
}
SETTINGS = declared(TrainConfig, GROUPS)
TrainConfig.__init__ = refusing_unknown(advice_on)(TrainConfig.__init__)  # type: ignore[method-assign]
# Settings that change results, which `hotrows tune` may try where it is asked to.
MAY_CHANGE = ("precision", "table_dtype", "wire_dtype", "batch_size", "micro_batches")
