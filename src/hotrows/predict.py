"""Predictor: a model and its tables as one thing that turns batches into probabilities.

A model of one label gives a logit per sample, [B]; one of T labels [B, T].

Predictions are made in float32 whatever the precision of training was: half of a rounding's width
would make ties of samples that the model tells apart. They change no state: no row, no parameter,
no random number.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hotrows import models, nn
from hotrows.batch import Batch, split
from hotrows.config import TrainConfig
from hotrows.data import Loader, Part
from hotrows.data.order import Share
from hotrows.device import find
from hotrows.embedding import Embedding
from hotrows.metrics import Metrics, mean_of, measure
from hotrows.pipeline.stream import ahead
from hotrows.placing import Placing
from hotrows.plan import Plan
from hotrows.ranks import OneRank, Ranks
from hotrows.schema import Schema, Table, vocabulary_of

EVALUATION_BATCH = 8192
_BUILDING = threading.Lock()
_WORTH_MEASURING = 3e11  # multiply-adds forward: some ten seconds of training on two cores


class Predictor:
    """The model that `config` names, for data of `schema`, with its tables.

    model: the dense part, an `nn.Module`; embedding: the tables. Both begin as the seed says, and
    the caller's random state stays as it is. read_only: tables in a file are not opened for training.
    hot_ids: by vocabulary, what the policy `hot` keeps in fast memory. ranks: those that have the
    tables together; they predict and evaluate together. place: how the tables of the model are dealt
    over them, and over packs.
    """

    def __init__(
        self,
        config: TrainConfig,
        schema: Schema,
        *,
        read_only: bool = False,
        hot_ids: Mapping[str, Tensor] | None = None,
        ranks: Ranks | None = None,
        place: Callable[[models.Model], Placing] | None = None,
    ) -> None:
        self.config = config
        self.schema = schema
        self.ranks = ranks or OneRank()
        # The random state is the process's: models that threads build come one after the other.
        with _BUILDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.model = models.build(config.model, schema, **config.model_options)
            self.random_state = torch.get_rng_state()
        self.device = find(config.device)
        self.model.to(self.device.torch)
        self.tasks = tasks_of(schema, self.model.labels, config.label)
        weights = _task_weights(config.label_weights, self.labels)
        self._task_weights = None if weights is None else weights.to(self.device.torch)
        caching = config.caching()
        if caching is not None and hot_ids is not None:
            caching = dataclasses.replace(
                caching, hot_ids=_by_table(hot_ids, self.model.tables, schema)
            )
        placing = Placing() if place is None else place(self.model)
        self.embedding = Embedding.of(
            self.model,
            schema,
            table_dtype=config.table_dtype,
            optimizer=config.row_optimizer,
            seed=config.seed,
            caching=caching,
            read_only=read_only,
            ranks=self.ranks,
            sharding=placing.sharding or "rows",
            num_slices=config.micro_batches,
            pack_parts=placing.pack_parts,
            summed=placing.summed,
            wire_dtype=config.wire_dtype,
            device=self.device,
            lanes=config.lanes,
            planning_threads=config.planning_threads,
            planning=config.planning,
        )
        nn.share_statistics(self.model, self.ranks)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that are predicted, in the order of the logits."""
        names = [of.name for of in self.schema.labels]
        return tuple(names[task] for task in _several(self.tasks))

    def measure_choices(self, num_samples: int) -> dict:
        """Finds the fastest path of each linear layer on this machine, and takes it.

        For the precision of training, and for the float32 of predictions; none where the config
        asks for plain paths, or where training `num_samples` is over too soon to gain from it.
        """
        assert self.config.batch_size is not None, "settle the config first"
        choices: dict[str, str] = {}
        if self._measures(num_samples):
            for precision in sorted({self.config.precision, "float32"}):
                dtype = getattr(torch, precision)
                per_step = -(
                    -self.config.batch_size // self.ranks.num_ranks // self.config.micro_batches
                )
                choices |= nn.choose_linear_paths(self.model, per_step, dtype)
        nn.use_linear_paths(self.model, choices)
        return choices

    def _measures(self, num_samples: int) -> bool:
        if not self.device.on_host:
            return False
        if self.config.linear_paths != "auto":
            return self.config.linear_paths == "measured"
        return num_samples * nn.products_per_sample(self.model) >= _WORTH_MEASURING

    def logits(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor]]:
        """Each batch with its logits, [B] or [B, T] in host memory; the next ones are planned
        meanwhile."""
        training = self.model.training
        self.model.eval()
        planned = ahead(batches, lambda b: (b, self.embedding.plan(b)), self.config.plan_depth)
        try:
            with closing(planned):  # type: ignore[type-var]
                for batch, plan in planned:
                    with torch.no_grad():
                        yield batch, self._logits(*self.embedding.here(batch, plan)).cpu()
        finally:
            self.model.train(training)

    def _logits(self, batch: Batch, plan: Plan) -> Tensor:
        parts = split(batch, max(len(plan.slices), 1))
        found = []
        for number, part in enumerate(parts):
            vectors = self.embedding.lookup(plan, number)
            found.append(models.logits_and_loss(self.model(vectors, part.dense))[0])
        return torch.cat(found) if len(found) > 1 else found[0]

    def predict(self, batches: Iterable[Batch]) -> Iterator[Tensor]:
        """The probabilities of each batch, [B] or [B, T] float32, in order."""
        for _, logits in self.logits(batches):
            yield logits.float().sigmoid()

    def targets(self, batch: Batch) -> Targets:
        """What the model is to say of each sample of a batch, and how much that counts."""
        return targets_of(batch, self.tasks)

    def loss(self, output: Tensor | tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        """What training makes small: cross-entropy, and the loss that the model itself may add.

        Of each label the sum of weight times cross-entropy over the samples that have it, divided by
        the batch's number of samples; then the sum over labels, each times its weight.
        """
        logits, own = models.logits_and_loss(output)
        to, num_tasks = self.targets(batch), len(_several(self.tasks))
        weights = to.weights
        if self._task_weights is not None:
            weights = self._task_weights if weights is None else weights * self._task_weights
        if logits.shape != to.labels.shape:
            raise ValueError(
                f"{type(self.model).__name__} must return logits {list(to.labels.shape)} for labels "
                f"{', '.join(self.labels)}, not {list(logits.shape)}"
            )
        loss = functional.binary_cross_entropy_with_logits(logits.float(), to.labels, weights)
        loss = loss * num_tasks if num_tasks > 1 else loss
        return loss if own is None else loss + own

    def evaluate(
        self, part: Part, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Metrics:
        """Metrics over a whole part of the data; progress: called with samples done and in all."""
        if not part.rows:
            raise ValueError("this part of the data has no rows: prepare it with another split")
        rank, num_ranks = self.ranks.rank, self.ranks.num_ranks
        loader = Loader(part, EVALUATION_BATCH, shuffle=False, rank=rank, num_ranks=num_ranks)
        found: list[_Evaluated] = []
        for number, (batch, logits) in enumerate(self.logits(loader.batches(0)), 1):
            found.append((logits, self.targets(batch), batch.groups))
            progress(min(number * EVALUATION_BATCH, part.rows), part.rows)
        found = [_of_all_ranks(found, part.rows, self.ranks)]
        if isinstance(self.tasks, int | None):
            return _measured(found, self.labels[0])
        each = {name: _measured(_column(found, t), name) for t, name in enumerate(self.labels)}
        return mean_of(each) if len(each) > 1 else each[self.labels[0]]


@dataclass(frozen=True)
class Targets:
    """labels: float32, 0 or 1, [B] or of several tasks [B, T]; weights: of their shape or [B],
    0 where a label is missing; None: all 1."""

    labels: Tensor
    weights: Tensor | None = None


# Which of a schema's labels are trained: None, its only one; a number, one of several; or several.
Tasks = None | int | tuple[int, ...]


def tasks_of(schema: Schema, several: Sequence[str] | None, label: str | None) -> Tasks:
    """several: the labels that a model of several has; label: what a model of one is to learn, the
    first by default."""
    names = [of.name for of in schema.labels]
    unknown = [
        name for name in (*(several or ()), *([label] if label else [])) if name not in names
    ]
    if unknown:
        raise ValueError(f"label must be one of {', '.join(names)}, not {unknown[0]!r}")
    if several is not None:
        if label is not None:
            raise ValueError(
                f"the model learns {', '.join(several)} together, so label={label!r} says nothing; "
                f"leave it out, or give the model option labels"
            )
        return tuple(map(names.index, several))
    return None if len(names) == 1 else names.index(label or names[0])


def targets_of(batch: Batch, tasks: Tasks) -> Targets:
    """The labels and weights of a batch."""
    assert batch.labels is not None
    if tasks is None:
        return Targets(batch.labels, batch.sample_weights)
    labels = batch.labels if batch.labels.dim() == 2 else batch.labels[:, None]
    labels = labels[:, tasks] if isinstance(tasks, int) else _columns_of(labels, tasks)
    present = (~labels.isnan()).float()
    if batch.sample_weights is not None:
        present *= batch.sample_weights if isinstance(tasks, int) else batch.sample_weights[:, None]
    return Targets(labels.nan_to_num(), present)


def _columns_of(labels: Tensor, tasks: Sequence[int]) -> Tensor:
    """labels[:, tasks], without an index that a device would wait for."""
    return torch.stack([labels[:, task] for task in tasks], 1)


def _several(tasks: Tasks) -> tuple[int, ...]:
    return tasks if isinstance(tasks, tuple) else (tasks or 0,)


def _task_weights(given: Mapping[str, float], labels: Sequence[str]) -> Tensor | None:
    unknown = [name for name in given if name not in labels]
    if unknown:
        raise ValueError(
            f"label_weights are of the labels that the model learns ({', '.join(labels)}), "
            f"not of {unknown[0]!r}"
        )
    return torch.tensor([given.get(name, 1.0) for name in labels]) if given else None


_Evaluated = tuple[Tensor, Targets, Tensor | None]  # logits, targets and groups of some samples
_Found = Sequence[_Evaluated]


def _column(found: _Found, t: int) -> _Found:
    """What was found of task t alone."""
    return [
        (logits[:, t], Targets(to.labels[:, t], to.weights[:, t]), groups)  # type: ignore[index]
        for logits, to, groups in found
    ]


def _measured(found: _Found, label: str) -> Metrics:
    logits = torch.cat([of for of, _, _ in found])
    labels = torch.cat([of.labels for _, of, _ in found])
    weights = _joined([of.weights for _, of, _ in found])
    groups = _joined([of for _, _, of in found])
    if weights is not None:  # what does not count is no sample
        kept = weights > 0
        if not kept.any():
            raise ValueError(f"no sample of this part has the label {label} and a weight above 0")
        logits, labels, weights = logits[kept], labels[kept], weights[kept]
        groups = None if groups is None else groups[kept]
    return measure(logits, labels, weights, groups)


def _of_all_ranks(found: _Found, num_samples: int, ranks: Ranks) -> _Evaluated:
    """What all ranks have found, in the order of the part, so that sums have one order."""
    logits = torch.cat([of for of, _, _ in found])
    labels = torch.cat([of.labels for _, of, _ in found])
    weights = _joined([of.weights for _, of, _ in found])
    groups = _joined([of for _, _, of in found])
    if ranks.num_ranks > 1:
        shares = [
            Share(num_samples, EVALUATION_BATCH, rank, ranks.num_ranks).among(0, num_samples)
            for rank in range(ranks.num_ranks)
        ]
        order = torch.from_numpy(np.argsort(np.concatenate(shares), kind="stable"))
        sizes = [len(of) for of in shares]
        together = [
            None if of is None else _gathered(of, sizes, ranks)[order]
            for of in (logits, labels, weights, groups)
        ]
        logits, labels, weights, groups = together  # type: ignore[assignment]
    return logits, Targets(labels, weights), groups


def _gathered(values: Tensor, sizes: Sequence[int], ranks: Ranks) -> Tensor:
    """The values of rank 0, of rank 1, ..: sizes[p] of rank p."""
    padded = values.new_zeros(max(sizes), *values.shape[1:])
    padded[: len(values)] = values
    of_ranks = ranks.all_gather(padded).wait()
    return torch.cat([of[:size] for of, size in zip(of_ranks, sizes, strict=True)])


def _joined(pieces: Sequence[Tensor | None]) -> Tensor | None:
    present = [piece for piece in pieces if piece is not None]
    return torch.cat(present) if present else None


def _by_table(
    hot_ids: Mapping[str, Tensor], tables: Sequence[Table], schema: Schema
) -> dict[str, Tensor]:
    """The hot ids of each table, from those of the vocabulary that its features read; crosses have
    none."""
    vocabularies = {f.name: vocabulary_of(f) for f in schema.id_features}
    none = torch.empty(0, dtype=torch.int64)
    return {t.name: hot_ids.get(vocabularies.get(t.features[0], ""), none) for t in tables}
