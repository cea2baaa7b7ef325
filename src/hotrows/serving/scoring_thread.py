"""The thread that scores: it takes all requests that wait, and computes them together.

While the program runs requests gather, so that groups grow with the load and nobody waits for company.
A full queue refuses at once, and a request whose time is over is dropped unread: under any load the work
that is begun is work that somebody still wants.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from hotrows.serving.requests import Request
from hotrows.serving.scorer import Scorer

log = logging.getLogger("hotrows")

_MOST_TOGETHER = 64  # requests in one run of the program


class Overloaded(Exception):
    """There is no time, or no place, for one more request."""


@dataclass(frozen=True)
class Scored:
    """The scores of a request, and the number of the version that computed all of them."""

    scores: np.ndarray
    version: int


@dataclass(frozen=True)
class _Job:
    encode: Callable[[], list[Request]]
    deadline: float
    result: Future[Scored] = field(default_factory=Future)


class ScoringThread:
    """Scores requests, in the order of their arrival.

    most_waiting: requests that may wait; one more is refused.
    """

    def __init__(self, scorer: Scorer, most_waiting: int) -> None:
        self._scorer = scorer
        self._jobs: queue.Queue[_Job | None] = queue.Queue(most_waiting)
        self._closed = False
        self.groups = 0
        self._thread = threading.Thread(target=self._run, name="hotrows scoring", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether requests are scored."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return self._jobs.qsize()

    def submit(self, encode: Callable[[], list[Request]], deadline: float) -> Future[Scored]:
        """The scores of a request, to come; Overloaded where none can wait any more.

        encode: makes the request of its body, on the thread; what it raises is the result. deadline: of
        `time.monotonic`; what has not begun by then is Overloaded.
        """
        job = _Job(encode, deadline)
        try:
            if self._closed:
                raise queue.Full
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Overloaded("the server has more requests than it can answer; come back later") from None
        return job.result

    def close(self, patience: float = 60.0) -> None:
        """Refuses new requests, scores those that wait, and ends the thread; gives up after so many
        seconds, as a program may not return."""
        if self._closed:
            return
        self._closed, until = True, time.monotonic() + patience
        with suppress(queue.Full):
            self._jobs.put(None, timeout=patience)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            log.error("the program has not returned for %g s: requests are left unanswered", patience)

    def _run(self) -> None:
        job = self._jobs.get()
        while job is not None:
            jobs, last = [job], False
            while len(jobs) < _MOST_TOGETHER and not last:
                try:
                    following = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    last = True
                else:
                    jobs.append(following)
            self._score(jobs)
            job = None if last else self._jobs.get()

    def _score(self, jobs: list[_Job]) -> None:
        encoded = [(job, requests) for job in jobs if (requests := _encoded(job)) is not None]
        if encoded:
            self._answer(encoded)

    def _answer(self, encoded: list[tuple[_Job, list[Request]]]) -> None:
        """Computes jobs together; where that fails, each by itself, so that only its cause is refused."""
        version, all_requests = self._scorer.version, [r for _, requests in encoded for r in requests]
        try:
            logits = self._scorer.logits_of(all_requests, version)
        except Exception as error:
            if len(encoded) == 1:
                encoded[0][0].result.set_exception(error)
            else:
                for job_and_requests in encoded:
                    self._answer([job_and_requests])
            return
        self.groups += 1
        for job, requests in encoded:
            try:
                own_logits = np.concatenate([logits.pop(0) for _ in requests])
                job.result.set_result(Scored(self._scorer.predictions(own_logits), version.number))
            except Exception as error:
                job.result.set_exception(error)


def _encoded(job: _Job) -> list[Request] | None:
    """The request of a job; None where it has none, and its result says why."""
    if not job.result.set_running_or_notify_cancel():
        return None
    try:
        if time.monotonic() > job.deadline:
            raise Overloaded("the request waited longer than a request may take; come back later")
        return job.encode()
    except Exception as error:
        job.result.set_exception(error)
        return None
