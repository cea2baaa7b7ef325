"""A training run: the trainer, its run folder, evaluation, and trained models read back."""

from hotrows.train.callback import Callback
from hotrows.train.predictor import Predictor, load_run
from hotrows.train.progress import Progress
from hotrows.train.result import Result
from hotrows.train.trainer import Interrupted, Trainer

__all__ = ["Callback", "Interrupted", "Predictor", "Progress", "Result", "Trainer", "load_run"]
