"""Predictor: a trained model, read back from its run, that turns batches into probabilities.

predictor = load_run("runs/a")
for probabilities in predictor.predict(batches): ...
predictor.evaluate(data.parts["test"]).auc
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from torch import Tensor

from hotrows import checkpoint, models, nn
from hotrows.batch import Batch
from hotrows.config import TrainConfig
from hotrows.data import Part
from hotrows.metrics import Metrics
from hotrows.train import evaluate, run_folder
from hotrows.train.recommender import Recommender


class Predictor(Recommender):
    """A recommender that predicts and evaluates."""

    def logits(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor]]:
        """Yields each batch with its logits, [B] or [B, T] in host memory."""
        return evaluate.logits_of(self, batches)

    def predict(self, batches: Iterable[Batch]) -> Iterator[Tensor]:
        """Yields the probabilities of each batch, [B] or [B, T] float32, in order.

        Raises ValueError, and names the row, where a prediction is no finite number.
        """
        done = 0
        for _, logits in self.logits(batches):
            wrong = (~logits.isfinite()).nonzero()
            if len(wrong):
                row = done + int(wrong[0, 0]) + 1
                raise ValueError(
                    f"the prediction of row {row:,} is no finite number: training diverged, or the row "
                    f"has numbers that training never saw; lower the learning rates (--lr, --dense-lr), "
                    f"or give dense features another transform"
                )
            done += len(logits)
            yield logits.float().sigmoid()

    def evaluate(
        self, part: Part, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Metrics:
        """Computes metrics over a part of the data; progress: called with samples done and in all."""
        return evaluate.evaluate(self, part, progress)


def load_run(
    run: Path | str, which: str = "best", *, model: str | None = None, trust: bool = False
) -> Predictor:
    """The model of a run from its `best` or `last` checkpoint, ready to evaluate and predict.

    Of a run with a model of one's own, whose code would run, one of these is needed.
    model: its name, as `file.py:Class`, which takes the place of the one in the run's folder.
    trust: whether to run the code that the folder names.
    """
    run = Path(run)
    config, data = run_folder.read_config(run), run_folder.read_data(run)
    name = models.confirmed(config.model, run / "config.json", model, trust)
    config = dataclasses.replace(config, model=name)
    folder = checkpoint.folder_of(run, which)
    predictor = Predictor(_for_reading(config), run_folder.read_schema(run), read_only=True)
    checkpoint.load(folder, predictor.embedding, predictor.model, data.fingerprint, read_only=True)
    nn.use_linear_paths(predictor.model, run_folder.read_choices(run))
    return predictor


def _for_reading(config: TrainConfig) -> TrainConfig:
    """The config of a run for lookups alone, on any machine: what fits in memory needs no cache.

    A file store is read without a policy's help, `hot` having no data at hand that says what is.
    """
    config = dataclasses.replace(config, device="cpu", cuda_graph=False, planning="host")
    if config.store == "memory":
        return dataclasses.replace(config, fast_memory=None)
    return dataclasses.replace(config, policy="lru")
