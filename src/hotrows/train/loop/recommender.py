"""Recommender: a model with its tables and its loss.

A model of one label gives a logit per sample, [B]; one of T labels [B, T].
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hotrows import losses, models
from hotrows.batch import Batch
from hotrows.data.stored.user_histories import UserHistories
from hotrows.engine.distributed.comm import OneRank, Ranks
from hotrows.engine.embedding import Embedding
from hotrows.losses import Calibration, Loss
from hotrows.models import nn
from hotrows.models.tables import LINEAR
from hotrows.runtime.device import find
from hotrows.runtime.machine import total_memory
from hotrows.runtime.random_numbers import TURN, RandomNumbers, restored
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema, vocabulary_of
from hotrows.table import Table
from hotrows.train.config import TrainConfig
from hotrows.train.costs.placement import ShardingPlan
from hotrows.train.costs.workload import stored_tables
from hotrows.train.loop.mode import Mode
from hotrows.train.start.pretrained import frozen

_WIDE = 256  # features from which on a model may be too large for its data
_MOST_OF_MEMORY = 0.75
_BYTES_PER_WEIGHT = 16  # float32 weight, gradient, and two moments

# Which of a schema's labels are trained: None, its only one; a number, one of several; or several.
Tasks = None | int | tuple[int, ...]


@dataclass(frozen=True)
class Targets:
    """Labels of a batch, and how much each counts.

    labels: float32, [B] or of several tasks [B, T]; weights: of their shape or [B],
    0 where a label is missing; None: all 1.
    """

    labels: Tensor
    weights: Tensor | None = None


class Recommender:
    """The model that `config` names, for data of `schema`, with its tables.

    model: the dense part, an `nn.Module`; embedding: the tables. Both begin as the seed says, and
    the caller's random state stays as it is. calibration: turns outputs into predictions.
    read_only: open tables in a file for reading alone.
    popular: by vocabulary, the ids that the policy `hot` keeps in fast memory.
    ranks: the processes that share the tables; they train, predict and evaluate together.
    place: returns how the tables of the model are dealt over ranks and packs.
    model: a class, or an object that is used as it is; None: the one that `config` names.
    histories: of users, to be served beside the model; None: those of the data.
    shares: of the ranks in every batch that is evaluated; (): equal ones.
    """

    histories: UserHistories | None = None
    shares: tuple[int, ...] = ()

    def __init__(
        self,
        config: TrainConfig,
        schema: Schema,
        *,
        read_only: bool = False,
        popular: Mapping[str, Tensor] | None = None,
        ranks: Ranks | None = None,
        place: Callable[[models.Model], ShardingPlan] | None = None,
        model: models.Model | type[models.Model] | None = None,
    ) -> None:
        self.config, self.schema = config, schema
        self.ranks, self.device = ranks or OneRank(), find(config.device)
        self.random = RandomNumbers(self.device.generators(), config.seed, type(self.ranks) is OneRank)
        with TURN, self.random.drawing():
            check_defaults()
            _check_size(config, schema)
            named = model or config.model
            assert named is not None, "settle the config first"
            self.model = models.build(named, schema, **config.model_options)
        if isinstance(model, models.Model):
            _check_equal(model, self.ranks)
        self.model.tables = _with_linear(frozen(self.model.tables, config.frozen), config)
        self.model.to(self.device.torch)
        self.mode = Mode(self.model)
        self.tasks = tasks_of(schema, self.model.labels, config.label)
        of_labels = losses_of(schema, self.tasks, config.loss)
        self.calibration = Calibration(dict(zip(self.labels, of_labels, strict=True)))
        self.ranking = ranking_of(schema, config.metrics)
        weights = task_weights(config.label_weights, self.labels)
        self._task_weights = None if weights is None else weights.to(self.device.torch)
        hot = None if popular is None else _by_table(popular, self.model.tables, schema)
        placing = ShardingPlan() if place is None else place(self.model)
        self.embedding = Embedding.for_model(
            self.model,
            schema,
            table_dtype=config.table_dtype,
            optimizer=config.row_optimizer,
            seed=config.seed,
            caching=config.caching(hot),
            read_only=read_only,
            ranks=self.ranks,
            sharding=placing.sharding or "rows",
            micro_batches=config.micro_batches,
            pack_parts=placing.pack_parts,
            summed=placing.summed,
            wire_dtype=config.wire_dtype,
            device=self.device,
            streams=config.streams,
            first_layer_roles=_first_layer_roles(self.model, config),
            planning_threads=config.planning_threads,
            planning=config.planning,
            narrow_vectors=config.precision == "bfloat16",
        )
        nn.share_statistics(self.model, self.ranks)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that are predicted, in the order of the logits."""
        names = [label.name for label in self.schema.labels]
        return tuple(names[task] for task in task_numbers(self.tasks))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of the labels, in the order of the logits."""
        return tuple(self.calibration.losses.values())

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """The names of predictions in files: `probability`, or `prediction`, and the label of several."""
        kinds = ["probability" if loss.link == "sigmoid" else "prediction" for loss in self.losses]
        if len(kinds) == 1:
            return tuple(kinds)
        return tuple(f"{kind}_{label}" for kind, label in zip(kinds, self.labels, strict=True))

    def choose_linear_paths(self) -> dict[str, str]:
        """Returns the path of each linear layer, by the rule of this processor: for the precision of
        training, and for the float32 of predictions; none where the config wants plain paths."""
        if not self.device.on_host or self.config.linear_paths == "plain":
            return {}
        choices = nn.choose_linear_paths(self.model)
        if self.config.precision == "bfloat16":
            choices |= nn.choose_linear_paths(self.model, torch.bfloat16)
        return choices

    def begin_at(self, means: Sequence[float | None]) -> None:
        """Lets the model begin at the mean of each label that it learns, given those of the schema's."""
        of_tasks = [means[task] for task in task_numbers(self.tasks)]
        first = [
            0.0 if mean is None else loss.first_output(mean)
            for loss, mean in zip(self.losses, of_tasks, strict=True)
        ]
        self.model.begin_at(torch.tensor(first))
        self.base_logits = [None if mean is None else Loss().first_output(mean) for mean in of_tasks]

    def calibrate(self, calibration: Calibration) -> None:
        """Predicts with it from here on, where the config wants predictions calibrated."""
        if self.config.calibration == "scale":
            self.calibration = calibration

    def targets(self, batch: Batch) -> Targets:
        """The labels that the model is to predict for a batch, and their weights."""
        return targets_of(batch, self.tasks)

    def loss(self, output: Tensor | tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        """The loss that training minimizes: those of the labels, and what the model itself may add.

        Of each label the sum of weight times loss over the samples that have it, divided by the
        batch's number of samples; then the sum over labels, each times its weight. A function that the
        model returns takes the place of both.
        """
        logits, model_loss = models.logits_and_loss(output)
        targets, num_tasks = self.targets(batch), len(task_numbers(self.tasks))
        weights = targets.weights
        if self._task_weights is not None:
            weights = self._task_weights if weights is None else weights * self._task_weights
        if logits.shape != targets.labels.shape:
            raise ValueError(
                f"{type(self.model).__name__} must return logits {list(targets.labels.shape)} for labels "
                f"{', '.join(self.labels)}, not {list(logits.shape)}"
            )
        outputs, labels = logits.float(), targets.labels
        if callable(model_loss):
            return model_loss(outputs, labels, None if weights is None else weights.expand_as(labels))
        if all(type(loss) is Loss for loss in self.losses):  # of all labels at once
            loss = functional.binary_cross_entropy_with_logits(outputs, labels, weights)
            loss = loss * num_tasks if num_tasks > 1 else loss
        else:
            loss = self._sum_of_losses(outputs, labels, weights, batch.groups)
        return loss if model_loss is None else loss + model_loss

    def _sum_of_losses(
        self, outputs: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None
    ) -> Tensor:
        weights = torch.ones_like(labels) if weights is None else weights.expand_as(labels)
        columns = (
            of_all.view(len(labels), len(self.losses)).unbind(1) for of_all in (outputs, labels, weights)
        )
        tasks = zip(self.losses, *columns, strict=True)
        return torch.stack([loss(*of_task, groups) for loss, *of_task in tasks]).sum()

    def predictions(self, outputs: Tensor) -> Tensor:
        """The predictions of the labels by outputs of the model, [B] or [B, T], in the labels' units."""
        return self.calibration.predictions(outputs)


def check_defaults() -> None:
    """Raises ValueError where PyTorch, as it is set by the caller, would not compute as models do: the
    settings of a run say what it computes, wherever it is called."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    if dtype != torch.float32 or device.type != "cpu":
        raise ValueError(
            f"PyTorch makes tensors of {dtype} on {device} by default, and models need torch.float32 on "
            f"cpu: call torch.set_default_dtype(torch.float32) and torch.set_default_device('cpu')"
        )
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise ValueError(
            "PyTorch's autocast is on here: train and predict outside of torch.autocast; with the "
            "setting precision='bfloat16' (--precision bfloat16) a run trains in fewer bits"
        )


def model_and_tables(config: TrainConfig, schema: Schema) -> tuple[models.Model, list[Table]]:
    """The model of a settled config, and its tables as they are stored."""
    assert config.model is not None, "settle the config first"
    with restored():
        built = models.build(config.model, schema, **config.model_options)
    built.tables = _with_linear(frozen(built.tables, config.frozen), config)
    return built, stored_tables(built, config.table_dtype, config.row_optimizer)


def _with_linear(tables: Sequence[Table], config: TrainConfig) -> tuple[Table, ...]:
    """The tables, of which those with weights of ids have the config's optimizer where they name none."""
    linear = config.linear_optimizer
    return tuple(
        dataclasses.replace(t, optimizer=t.optimizer or linear) if t.role == LINEAR else t for t in tables
    )


def _first_layer_roles(model: models.Model, config: TrainConfig) -> tuple[str, ...]:
    """Roles that a first layer may read by distinct rows: products in float32, of no compiled graph."""
    plain = config.precision != "bfloat16" and not config.compile
    return model.first_layer_roles if plain else ()


def _check_equal(model: models.Model, ranks: Ranks) -> None:
    """Raises ValueError where the parameters of a model differ between ranks; collective."""
    if ranks.num_ranks > 1:
        values = [value.detach().cpu() for value in model.state_dict().values()]
        crc = zlib.crc32(b"".join(v.contiguous().view(torch.uint8).numpy().tobytes() for v in values))
        if len(set(ranks.gather_objects(crc))) > 1:
            raise ValueError(
                f"the {type(model).__name__} differs between ranks: make it by one seed on all of them "
                f"(torch.manual_seed), or pass its class"
            )


def _by_table(
    popular: Mapping[str, Tensor], tables: Sequence[Table], schema: Schema
) -> dict[str, Tensor]:
    """The popular ids of each table, from those of the vocabulary that its features read; crosses have
    none."""
    vocabularies = {f.name: vocabulary_of(f) for f in schema.id_features}
    none = torch.empty(0, dtype=torch.int64)
    return {t.name: popular.get(vocabularies.get(t.features[0], ""), none) for t in tables}


def _check_size(config: TrainConfig, schema: Schema) -> None:
    """Raises ValueError where a model of many features needs more memory than there is: dense weights
    with their optimizer, and what enters its layers. The model is counted without its weights."""
    if len(schema.features) < _WIDE or config.model is None or config.model not in models.BY_NAME:
        return
    with restored(), torch.device("meta"):
        model = models.build(config.model, schema, **config.model_options)
    weights = sum(parameter.numel() for parameter in model.parameters())
    widths = sum(layer.in_features for layer in model.modules() if isinstance(layer, torch.nn.Linear))
    memory = total_memory()
    needed = _BYTES_PER_WEIGHT * weights + 2 * 4 * widths * (config.batch_size or 1)
    if needed > _MOST_OF_MEMORY * memory:
        raise ValueError(
            f"model {config.model!r} of {len(schema.features):,} features has {weights:,} dense weights "
            f"and needs about {needed / 2**30:,.0f} GiB of memory, of {memory / 2**30:,.0f}; use deepfm, "
            f"dnn or lr, a smaller dim or batch, or fewer features"
        )


def tasks_of(schema: Schema, labels: Sequence[str] | None, label: str | None) -> Tasks:
    """Finds the labels that a model learns among those of the schema.

    labels: those of a model of several. label: of a model of one; None: the first.
    """
    names = [known.name for known in schema.labels]
    unknown = [name for name in (*(labels or ()), *([label] if label else [])) if name not in names]
    if unknown:
        hint = did_you_mean(unknown[0], names)
        raise ValueError(f"label must be one of {', '.join(names)}, not {unknown[0]!r}{hint}")
    if labels is not None:
        if label is not None:
            raise ValueError(
                f"the model learns {', '.join(labels)} together, so label={label!r} says nothing; "
                f"leave it out, or give the model option labels"
            )
        return tuple(map(names.index, labels))
    return None if len(names) == 1 else names.index(label or names[0])


def task_numbers(tasks: Tasks) -> tuple[int, ...]:
    """The numbers of the labels that are trained, in the schema."""
    return tasks if isinstance(tasks, tuple) else (tasks or 0,)


def task_weights(weights: Mapping[str, float], labels: Sequence[str]) -> Tensor | None:
    """The weights of the labels in the loss, [T], 1 where not named; None: all 1."""
    unknown = [name for name in weights if name not in labels]
    if unknown:
        raise ValueError(
            f"label_weights are of the labels that the model learns ({', '.join(labels)}), "
            f"not of {unknown[0]!r}"
        )
    return torch.tensor([weights.get(name, 1.0) for name in labels]) if weights else None


def losses_of(schema: Schema, tasks: Tasks, text: str | None) -> tuple[Loss, ...]:
    """The losses of the labels that are trained: what the text says, else the schema.

    text: as `losses.parse_by_label` reads it; None: it says nothing.
    """
    labels = [schema.labels[task] for task in task_numbers(tasks)]
    said = {} if text is None else losses.parse_by_label(text)
    unknown = [name for name in said if name and name not in [label.name for label in labels]]
    if unknown:
        names = ", ".join(label.name for label in labels)
        raise ValueError(
            f"losses are of the labels that the model learns ({names}), not of {unknown[0]!r}"
        )
    of_all = said.get("")
    chosen = tuple(
        said.get(label.name) or of_all or losses.parse(label.loss or Loss.name) for label in labels
    )
    for label, loss in zip(labels, chosen, strict=True):
        if loss.is_order and schema.grouping is None:
            raise ValueError(
                f"the loss {loss.name} of label {label.name!r} compares samples of a group, and schema "
                f"{schema.name!r} has none: say which column that is, group=COLUMN, and prepare again"
            )
    return chosen


def ranking_of(schema: Schema, text: str | None) -> tuple[str, ...]:
    """The metrics within groups that a text names, such as ndcg@10,mrr; None: there are none."""
    names = () if text is None else losses.parse_ranking(text)
    if names and schema.grouping is None:
        raise ValueError(
            f"the metric {names[0]} is one within groups, and schema {schema.name!r} has none: say which "
            f"column that is, group=COLUMN, and prepare again"
        )
    return names


def targets_of(batch: Batch, tasks: Tasks) -> Targets:
    """The labels of a batch and their weights, for the tasks that are trained."""
    assert batch.labels is not None
    if tasks is None:
        return Targets(batch.labels, batch.sample_weights)
    labels = batch.labels if batch.labels.dim() == 2 else batch.labels[:, None]  # [B, L]
    if isinstance(tasks, int):
        labels = labels[:, tasks]
    else:  # labels[:, tasks], without an index that a device would wait for
        labels = torch.stack([labels[:, task] for task in tasks], 1)
    present = (~labels.isnan()).float()  # [B] or [B, T]
    if batch.sample_weights is not None:
        present *= batch.sample_weights if isinstance(tasks, int) else batch.sample_weights[:, None]
    return Targets(labels.nan_to_num(), present)
