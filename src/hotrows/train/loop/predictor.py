"""Predictor: a trained model, read back from its run, that turns rows into predictions.

    predictor = load_run("runs/a")
    predictor.predict(frame)                             # [N] float32
    for probabilities in predictor.predict(batches): ...  # of batches one after the other
    predictor.evaluate(data.parts["test"]).auc           # or of raw rows
    predictor.vectors("item")                            # a row for each item: its value and its vector

Rows are raw, and encoded as the run's data was, or encoded batches.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, overload

import numpy as np
from torch import Tensor

from hotrows import models
from hotrows.batch import Batch
from hotrows.data import Encoder, Loader, Part
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint.fetch import fetched_run
from hotrows.models import nn
from hotrows.models.model import Model
from hotrows.runtime.atomic_files import absolute
from hotrows.runtime.terminal import silent
from hotrows.train.config import TrainConfig
from hotrows.train.loop import evaluate
from hotrows.train.loop.recommender import Recommender, ranking_of
from hotrows.train.loop.vectors import vectors_of
from hotrows.train.metrics import Metrics
from hotrows.train.run import folder as run_folder
from hotrows.train.run.state import RunState
from hotrows.train.telling import notes


class Predictor(Recommender):
    """A trained model that predicts and evaluates, as `load_run` reads it.

    run: the folder that it was read from.

    >>> predictor = load_run(run)
    >>> predictor.evaluate(data.parts["test"]).samples
    10
    >>> predictor.vectors("item").column_names
    ['id', 'value', 'vector']
    """

    run: Path

    def __repr__(self) -> str:
        return f"Predictor({self.run}, {self.config.model} of {', '.join(self.labels)}; {self.schema!r})"

    def logits(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor]]:
        """Yields each batch with its logits, [B] or [B, T] in host memory.

        ValueError names the first row whose prediction is no finite number.
        """
        done = 0
        for batch, logits in evaluate.logits_of(self, batches):
            wrong = (~logits.isfinite()).nonzero()
            if len(wrong):
                row = done + int(wrong[0, 0]) + 1
                raise ValueError(
                    f"the prediction of row {row:,} is no finite number: training diverged, or the row "
                    f"has numbers that training never saw; lower the learning rates (--lr, --dense-lr), "
                    f"or give dense features another transform"
                )
            done += len(logits)
            yield batch, logits

    @overload
    def predict(self, data: Iterator[Batch] | Sequence[Batch]) -> Iterator[Tensor]: ...

    @overload
    def predict(self, data: Any, *, require_columns: bool = False) -> np.ndarray: ...

    def predict(self, data: Any, *, require_columns: bool = False) -> Any:
        """Computes predictions: [N] float32, of a model of T labels [N, T], in the order of the rows.

        data: raw rows: a pandas, Polars or Arrow frame, a dict of columns, paths, and all else that
        `Encoder.encode` takes; or encoded ones, a `Part` or a `Batch`. Labels may be absent. Of several
        batches, such as those of `Loader.batches`, it returns an iterator, which yields the
        predictions of each, [B] or [B, T], as they are computed. They are probabilities, or of labels
        that are numbers the numbers; see `hotrows.losses`. ValueError names the first row whose
        prediction is no finite number.

        require_columns: refuse raw rows without the column of a feature, which else counts as missing.
        """
        if isinstance(data, Batch):
            data, is_iterator = [data], False
        elif isinstance(data, Part):
            data, is_iterator = Loader(data, evaluate.EVALUATION_BATCH, shuffle=False).batches(0), False
        else:
            is_rows = hasattr(data, "__arrow_c_stream__")  # as a reader of record batches, an iterator
            is_iterator = (isinstance(data, Iterator) and not is_rows) or _are_batches(data)
            if not is_iterator:
                batches = self.encoder.encode(data, require_columns=require_columns)
                first = list(islice(batches, 2))
                data = first if len(first) < 2 else chain(first, batches)
            elif isinstance(data, Iterator):
                data = map(_batch, data)
        predictions = (self.predictions(logits) for _, logits in self.logits(data))
        if is_iterator:
            return predictions
        shape = (0,) if isinstance(self.tasks, int | None) else (0, len(self.labels))
        return np.concatenate([np.empty(shape, np.float32), *(p.numpy() for p in predictions)])

    @cached_property
    def encoder(self) -> Encoder:
        """Encodes raw rows as those were that the run was trained on."""
        return run_folder.open_encoder(self.run)

    def vectors(self, feature: str, role: str | None = None) -> Any:
        """The vectors of a feature's values as an Arrow table; see `hotrows.train.loop.vectors`."""
        return vectors_of(self.embedding, self.schema, run_folder.raw_values(self.run), feature, role)

    def evaluate(
        self, data: Any, progress: Callable[[int, int], None] = silent, metrics: str | None = None
    ) -> Metrics:
        """Computes metrics over a `Part` of prepared data, or over raw rows, as `predict` takes them.

        progress: called with samples done and in all, of a part.
        metrics: further ones within groups, such as "ndcg@10,mrr" (default: those that the run was
        trained with). Warns of predictions that are no better than one constant, and of values far from
        those trained on. ValueError where the rows have no labels.
        """
        if metrics is not None:
            once = copy.copy(self)  # with all that it refers to
            once.ranking = ranking_of(self.schema, metrics)
            return once.evaluate(data, progress)
        if isinstance(data, Part):
            if (usual := run_folder.encoded_data(self.run)) is not None and data.rows:
                notes.of_values(data, usual.parts.values())
            result = evaluate.evaluate(self, data, progress)
        else:
            result = self._evaluate_raw(data)
        notes.of_metrics(data.name if isinstance(data, Part) else "rows", result)
        return result

    def _evaluate_raw(self, data: Any) -> Metrics:
        evaluated = []
        for batch, logits in self.logits(self.encoder.encode(data)):
            if batch.labels is None:
                raise ValueError(f"these rows have no column {' or '.join(self.labels)} to compare with")
            evaluated.append((logits, self.targets(batch), batch.groups))
        if not evaluated:
            raise ValueError("there are no samples to evaluate")
        return evaluate.metrics_of(self, evaluated)


def load_run(
    run: Path | str,
    which: str = "best",
    *,
    model: str | type[Model] | Model | None = None,
    trust: bool = False,
    device: str = "cpu",
) -> Predictor:
    """The model of a run from its `best` or `last` checkpoint, ready to evaluate and predict.

    which: the checkpoint to read.
    device: where the model and its rows are, `cpu` or `cuda`; behind a cache if the run had one.

    A run with a model of your own, whose code would run, needs one of these:
    model: its class, its name as `file.py:Class`, or an object of it, whose parameters become those of
        the checkpoint; it takes the place of the one in the run's folder.
    trust: run the code that the folder names.

    >>> one = {"user": ["u1"], "item": ["i2"], "history": ["i1|i3"], "price": [9.5]}
    >>> load_run(run).predict(one).shape
    (1,)
    """
    run = absolute(fetched_run(run))
    config, data = run_folder.read_config(run), run_folder.read_data(run)
    name = None if model is None else models.name_of(model)
    name = models.confirmed(config.model, run / "config.json", name, trust)
    config, model = dataclasses.replace(config, model=name), None if isinstance(model, str) else model
    folder = checkpoint.folder_of(run, which)
    schema = run_folder.read_schema(run)
    dealt = run_folder.read_placing(run, 1)  # a file store is read in the packs that it was written in
    place = None if dealt is None else lambda model: dealt
    reading = _for_reading(config, device)
    predictor = Predictor(reading, schema, read_only=True, model=model, place=place)
    predictor.run = run
    rows = predictor.embedding
    stored = checkpoint.load(folder, rows, predictor.model, data.fingerprint, read_only=True)
    predictor.calibrate(RunState.from_json(stored.fields).calibration_of(predictor.calibration))
    predictor.histories = run_folder.histories_at(run, stored.tensors)
    predictor.model.eval()
    nn.use_linear_paths(predictor.model, run_folder.read_choices(run))
    return predictor


def _are_batches(data: Any) -> bool:
    return isinstance(data, list | tuple) and len(data) > 0 and isinstance(data[0], Batch)


def _batch(data: Any) -> Batch:
    if not isinstance(data, Batch):
        raise TypeError(
            f"expected batches, such as those of Loader.batches, found {type(data).__name__}: raw rows "
            f"are given by themselves or in a list, not by an iterator"
        )
    return data


def _for_reading(config: TrainConfig, device: str) -> TrainConfig:
    """The config of a run for lookups alone, on any machine: what fits in memory needs no cache, but on a
    device, whose memory is smaller.

    A file store is read without a policy's help, `hot` having no data at hand that says what is.
    """
    config = dataclasses.replace(config, device=device, cuda_graph=False, planning="host")
    if config.store == "memory" and device == "cpu":
        return dataclasses.replace(config, fast_memory=None)
    return dataclasses.replace(config, policy="lru")
