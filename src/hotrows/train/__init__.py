"""A training run: the trainer, its run folder, evaluation, and trained models read back."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.train.callback import Callback as Callback
    from hotrows.train.loop.predictor import Predictor
    from hotrows.train.loop.predictor import load_run as load_run
    from hotrows.train.loop.trainer import Trainer as Trainer
    from hotrows.train.run.signals import Interrupted
    from hotrows.train.telling.progress import Progress
    from hotrows.train.telling.result import Result

__all__ = ["Interrupted", "Predictor", "Progress", "Result"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hotrows.train.callback": ["Callback"],
        "hotrows.train.loop.predictor": ["Predictor", "load_run"],
        "hotrows.train.loop.trainer": ["Trainer"],
        "hotrows.train.run.signals": ["Interrupted"],
        "hotrows.train.telling.progress": ["Progress"],
        "hotrows.train.telling.result": ["Result"],
    },
)
