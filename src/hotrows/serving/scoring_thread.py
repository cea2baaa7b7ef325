"""Threads that score: each takes all requests that wait for it, and computes them together.

While the program runs requests gather, so that groups grow with the load and nobody waits for company.
A full queue refuses at once, and a request whose time is over is dropped unread: under any load the work
that is begun is work that somebody still wants. Requests that take long to compute are handed to a second
thread, so that short ones do not wait for them.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from hotrows.runtime.background import Worker
from hotrows.serving.requests import Request
from hotrows.serving.scorer import Scorer
from hotrows.serving.version import Version

log = logging.getLogger("hotrows")

_PATIENCE = 5.0  # seconds at the end of a process
_MOST_TOGETHER = 64  # requests in one run of the program
_MOST_ROWS, _MOST_PLACES = 1024, 1 << 16  # of a request that is not handed on


class Overloaded(Exception):
    """There is no time, or no place, for one more request."""


@dataclass(frozen=True)
class Scored:
    """The scores of a request, the outputs that they were made of, and the version that computed them."""

    scores: np.ndarray
    outputs: np.ndarray
    version: Version


@dataclass(frozen=True)
class _Job:
    encode: Callable[[], Sequence[Request]]
    deadline: float
    result: Future[Scored] = field(default_factory=Future)


class ScoringThread:
    """Scores requests, in the order of their arrival.

    most_waiting: requests that may wait; one more is refused. longer: the thread to which requests that
    take long to compute are handed (default: none are).
    """

    def __init__(self, scorer: Scorer, most_waiting: int, longer: ScoringThread | None = None) -> None:
        self._scorer, self._longer = scorer, longer
        self._jobs: queue.Queue[_Job | None] = queue.Queue(most_waiting)
        self._closed = False
        self.groups = 0
        self._worker = Worker("hotrows scoring", self._run, lambda: self.close(_PATIENCE), patience=0)

    @property
    def is_alive(self) -> bool:
        """True while requests are scored."""
        return self._worker.is_alive()

    @property
    def waiting(self) -> int:
        return self._jobs.qsize()

    def submit(self, encode: Callable[[], Sequence[Request]], deadline: float) -> Future[Scored]:
        """The scores of a request, to come; Overloaded where none can wait any more.

        encode: makes the request of its body, on the thread; what it raises is the result. deadline: of
        `time.monotonic`; what has not begun by then is Overloaded.
        """
        job = _Job(encode, deadline)
        self._put(job)
        return job.result

    def _put(self, job: _Job) -> None:
        try:
            if self._closed:
                raise queue.Full
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Overloaded("the server has more requests than it can answer; come back later") from None

    def close(self, patience: float = 60.0) -> None:
        """Refuses new requests, scores those that wait, and ends the thread; gives up after so many
        seconds, as a program may not return."""
        if self._closed:
            return
        self._closed, until = True, time.monotonic() + patience
        with suppress(queue.Full):
            self._jobs.put(None, timeout=patience)
        if not self._worker.wait(max(0.0, until - time.monotonic())):
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
        encoded = [(job, requests) for job in jobs if (requests := self._encoded(job)) is not None]
        if encoded:
            self._answer(encoded)

    def _encoded(self, job: _Job) -> Sequence[Request] | None:
        """The request of a job; None where it has none, which its result says, or is handed on."""
        if not job.result.running() and not job.result.set_running_or_notify_cancel():
            return None
        try:
            if time.monotonic() > job.deadline:
                raise Overloaded("the request waited longer than a request may take; come back later")
            requests = job.encode()
            if self._longer is None or not self._takes_long(requests):
                return requests
            self._longer._put(dataclasses.replace(job, encode=lambda: requests))
        except Exception as error:
            job.result.set_exception(error)
        return None

    def _takes_long(self, requests: Sequence[Request]) -> bool:
        rows, places = sum(r.size for r in requests), sum(map(self._scorer.places_of, requests))
        return rows > _MOST_ROWS or places > _MOST_PLACES

    def _answer(self, encoded: list[tuple[_Job, Sequence[Request]]]) -> None:
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
                scores = self._scorer.predictions(own_logits, version)
                job.result.set_result(Scored(scores, own_logits, version))
            except Exception as error:
                job.result.set_exception(error)
