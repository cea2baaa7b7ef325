"""Mode: whether a model evaluates or trains, batch by batch, whoever uses it in other threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Mode:
    """The mode of a model and its modules, which evaluations set and put back as it was.

    Several may evaluate at once; a step of training waits for them, and they wait for it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._changed = model, threading.Condition()
        self._num_evaluating, self._trains = 0, False
        self._before: list[nn.Module] | None = None  # those that evaluation has taken out of training

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation of one batch, without gradients."""
        with self._changed:
            self._num_evaluating += 1
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._trains)
                if self._before is None:
                    self._before = [module for module in self._model.modules() if module.training]
                    self._model.eval()
            with torch.no_grad():
                yield
        finally:
            with self._changed:
                self._num_evaluating -= 1
                if not self._num_evaluating:
                    for module in self._before or ():
                        module.training = True
                    self._before = None
                    self._changed.notify_all()

    def put(self, training: bool) -> None:
        """Puts the whole model into a mode; one in training keeps the modules that are out of it."""
        with self.training():
            if not (training and self._model.training):
                self._model.train(training)

    @contextmanager
    def training(self) -> Iterator[None]:
        """One step of training."""
        with self._changed:
            while self._num_evaluating:
                self._changed.wait()
            self._trains = True
        try:
            yield
        finally:
            with self._changed:
                self._trains = False
                if self._num_evaluating:
                    self._changed.notify_all()
