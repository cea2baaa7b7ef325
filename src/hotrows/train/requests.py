"""Requests: what the callbacks of a run may request of it."""

from __future__ import annotations


class Requests:
    """What a callback may request of the run that calls it."""

    _stop_called = _checkpoint_requested = False

    def stop(self) -> None:
        """Ends the run after this step, as if it were the last: to be called by a callback.

        It evaluates and saves, and `fit` returns the result. Of several ranks one may call it: all end at
        the same step, some steps later.
        """
        self._stop_called = True

    def request_checkpoint(self) -> None:
        """Writes a checkpoint after this step: to be called by a callback; of several ranks by each."""
        self._checkpoint_requested = True
