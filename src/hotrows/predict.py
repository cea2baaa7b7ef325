"""Predictor: a model and its tables as one thing that turns batches into probabilities.

Predictions are made in float32 whatever the precision of training was: half of a rounding's width
would make ties of samples that the model tells apart. They change no state: no row, no parameter,
no random number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows import models, nn
from hotrows.batch import Batch
from hotrows.config import TrainConfig
from hotrows.data import Loader, Part
from hotrows.embedding import Embedding
from hotrows.metrics import Metrics, measure
from hotrows.pipeline.stream import ahead
from hotrows.schema import Schema, Table, vocabulary_of

EVALUATION_BATCH = 8192
_WORTH_MEASURING = 3e11  # multiply-adds forward: some ten seconds of training on two cores


class Predictor:
    """The model that `config` names, for data of `schema`, with its tables.

    model: the dense part, an `nn.Module`; embedding: the tables. Both begin as the seed says, and
    the caller's random state stays as it is. read_only: tables in a file are not opened for training.
    hot_ids: by vocabulary, what the policy `hot` keeps in fast memory.
    """

    def __init__(
        self,
        config: TrainConfig,
        schema: Schema,
        *,
        read_only: bool = False,
        hot_ids: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.config = config
        self.schema = schema
        self.task = task_of(schema, config.label)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.model = models.build(config.model, schema, **config.model_options)
            self.random_state = torch.get_rng_state()
        tables: tuple[Table, ...] = self.model.tables  # type: ignore[assignment]
        caching = config.caching()
        if caching is not None and hot_ids is not None:
            caching = dataclasses.replace(caching, hot_ids=_by_table(hot_ids, tables, schema))
        self.embedding = Embedding(
            [dataclasses.replace(table, dtype=config.table_dtype) for table in tables],
            optimizer=config.row_optimizer,
            seed=config.seed,
            pooling=models.tables.pooling(schema),
            caching=caching,
            read_only=read_only,
        )

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
                choices |= nn.choose_linear_paths(self.model, self.config.batch_size, dtype)
        nn.use_linear_paths(self.model, choices)
        return choices

    def _measures(self, num_samples: int) -> bool:
        if self.config.linear_paths != "auto":
            return self.config.linear_paths == "measured"
        return num_samples * nn.products_per_sample(self.model) >= _WORTH_MEASURING

    def logits(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor]]:
        """Each batch with its [B] logits; the next batches are planned meanwhile."""
        training = self.model.training
        self.model.eval()
        planned = ahead(batches, lambda b: (b, self.embedding.plan(b)), self.config.plan_depth)
        try:
            with closing(planned):  # type: ignore[type-var]
                for batch, plan in planned:
                    with torch.no_grad():
                        yield batch, self.model(self.embedding.lookup(plan), batch.dense)
        finally:
            self.model.train(training)

    def predict(self, batches: Iterable[Batch]) -> Iterator[Tensor]:
        """The probabilities of each batch, [B] float32, in order."""
        for _, logits in self.logits(batches):
            yield logits.float().sigmoid()

    def targets(self, batch: Batch) -> Targets:
        """What the model is to say of each sample of a batch, and how much that counts."""
        return targets_of(batch, self.task)

    def evaluate(
        self, part: Part, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Metrics:
        """Metrics over a whole part of the data; progress: called with samples done and in all."""
        if not part.rows:
            raise ValueError("this part of the data has no rows: prepare it with another split")
        loader = Loader(part, EVALUATION_BATCH, shuffle=False)
        found: list[tuple[Tensor, Targets, Tensor | None]] = []
        done = 0
        for batch, logits in self.logits(loader.batches(0)):
            found.append((logits, self.targets(batch), batch.groups))
            done += batch.size
            progress(done, part.rows)
        return _measured(found)


@dataclass(frozen=True)
class Targets:
    """labels: [B] float32, 0 or 1; weights: [B] float32, 0 where a label is missing; None: all 1."""

    labels: Tensor
    weights: Tensor | None = None


def task_of(schema: Schema, label: str | None) -> int | None:
    """Which of several labels is trained, the first by default; None where there is but one."""
    names = [of.name for of in schema.labels]
    if label is not None and label not in names:
        raise ValueError(f"label must be one of {', '.join(names)}, not {label!r}")
    return None if len(names) == 1 else names.index(label or names[0])


def targets_of(batch: Batch, task: int | None) -> Targets:
    """The labels and weights of a batch, of one of several labels."""
    assert batch.labels is not None
    if task is None:
        return Targets(batch.labels, batch.sample_weights)
    labels = batch.labels[:, task]
    present = ~labels.isnan()
    weights = present.float() if batch.sample_weights is None else batch.sample_weights * present
    return Targets(labels.nan_to_num(), weights)


def _measured(found: Sequence[tuple[Tensor, Targets, Tensor | None]]) -> Metrics:
    logits = torch.cat([of for of, _, _ in found])
    labels = torch.cat([of.labels for _, of, _ in found])
    weights = _joined([of.weights for _, of, _ in found])
    groups = _joined([of for _, _, of in found])
    if weights is not None:  # what does not count is no sample
        kept = weights > 0
        if not kept.any():
            raise ValueError("no sample of this part has the label and a weight above 0")
        logits, labels, weights = logits[kept], labels[kept], weights[kept]
        groups = None if groups is None else groups[kept]
    return measure(logits, labels, weights, groups)


def _joined(pieces: Sequence[Tensor | None]) -> Tensor | None:
    present = [piece for piece in pieces if piece is not None]
    return torch.cat(present) if present else None


def _by_table(
    hot_ids: Mapping[str, Tensor], tables: Sequence[Table], schema: Schema
) -> dict[str, Tensor]:
    """The hot ids of each table, from those of the vocabulary that its features read."""
    vocabularies = {f.name: vocabulary_of(f) for f in schema.id_features}
    return {table.name: hot_ids[vocabularies[table.features[0]]] for table in tables}
