"""Predictor: a model and its tables as one thing that turns batches into probabilities.

Predictions are made in float32 whatever the precision of training was: half of a rounding's width
would make ties of samples that the model tells apart. They change no state: no row, no parameter,
no random number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

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
            sequences=[feature.name for feature in schema.sequences],
            pooling={feature.name: feature.pooling for feature in schema.sparse},
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

    def evaluate(
        self, part: Part, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Metrics:
        """Metrics over a whole part of the data; progress: called with samples done and in all."""
        if not part.rows:
            raise ValueError("this part of the data has no rows: prepare it with another split")
        loader = Loader(part, EVALUATION_BATCH, shuffle=False)
        logits = torch.empty(part.rows)
        labels = torch.empty(part.rows)
        done = 0
        for batch, found in self.logits(loader.batches(0)):
            assert batch.labels is not None
            logits[done : done + batch.size] = found
            labels[done : done + batch.size] = batch.labels
            done += batch.size
            progress(done, part.rows)
        return measure(logits, labels)


def _by_table(
    hot_ids: Mapping[str, Tensor], tables: Sequence[Table], schema: Schema
) -> dict[str, Tensor]:
    """The hot ids of each table, from those of the vocabulary that its features read."""
    vocabularies = {f.name: vocabulary_of(f) for f in schema.id_features}
    return {table.name: hot_ids[vocabularies[table.features[0]]] for table in tables}
