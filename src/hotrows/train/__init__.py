"""A training run: the trainer, its run folder, evaluation, and trained models read back."""

from hotrows.train.callback import Callback as Callback
from hotrows.train.predictor import Predictor
from hotrows.train.predictor import load_run as load_run
from hotrows.train.progress import Progress
from hotrows.train.result import Result
from hotrows.train.signals import Interrupted
from hotrows.train.trainer import Trainer as Trainer

__all__ = ["Interrupted", "Predictor", "Progress", "Result"]
