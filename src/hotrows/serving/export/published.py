"""Published: how far a run had come at its last version, and how far it is beyond that."""

from __future__ import annotations

from dataclasses import dataclass

from hotrows.losses import Calibration
from hotrows.serving.deltas import VersionHead
from hotrows.train.run.state import RunState


@dataclass(frozen=True)
class Published:
    """step, events: of the run at its last version; events: of a stream, else 0. calibration: of that
    version. differs: whether a run that was resumed had other rows than it."""

    step: int
    calibration: Calibration
    events: int = 0
    differs: bool = False

    @staticmethod
    def from_state(state: RunState, calibration: Calibration) -> Published:
        return Published(state.step, calibration, num_events(state))

    @staticmethod
    def before(head: VersionHead, state: RunState, differs: bool, calibration: Calibration) -> Published:
        """The versions that a run which begins or resumes at `state` has published.

        On prepared data it comes to the step of that version with its bits. On a stream it comes to its
        events, but with batches that may be cut otherwise, and so with other rows after other steps.
        """
        if not head.events and state.stream is None:
            return Published(head.step, calibration)
        return Published(min(head.step, state.step), calibration, head.events, differs)

    def batches_since(self, state: RunState, calibration: Calibration) -> int:
        """The batches that the next version would be beyond the last; 0: there is nothing to publish, or
        the last version is ahead. A new calibration alone, as an evaluation fits, counts as one."""
        if num_events(state) < self.events or state.step < self.step:
            return 0
        return max(state.step - self.step, int(self.differs or calibration != self.calibration))


def num_events(state: RunState) -> int:
    """The events that a run on a stream has trained on; of others 0."""
    return 0 if state.stream is None else state.stream.events
