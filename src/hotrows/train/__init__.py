"""A training run: the trainer, its run folder, evaluation, and trained models read back."""

from hotrows.train.callback import Callback as Callback
from hotrows.train.loop.predictor import Predictor
from hotrows.train.loop.predictor import load_run as load_run
from hotrows.train.loop.trainer import Trainer as Trainer
from hotrows.train.run.signals import Interrupted
from hotrows.train.telling.progress import Progress
from hotrows.train.telling.result import Result

__all__ = ["Interrupted", "Predictor", "Progress", "Result"]
