"""Follower: keeps the version that is served up to that of a folder to which training publishes.

    follower = Follower("published", every=0.03)   # seconds between looks; a thread
    follower.version                               # the present one; take it once for each request

New deltas are applied beside the version that is served, which stays as it is; then one reference is
exchanged. What cannot be applied leaves the version as it is: the reason is logged once, and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from pathlib import Path

from hotrows.runtime.background import Worker
from hotrows.serving import chain
from hotrows.serving.places import Mirror
from hotrows.serving.version import (
    TRIES,
    Version,
    on_base,
    open_base,
    version_at,
    versions_in,
    with_deltas,
)

log = logging.getLogger("hotrows")

_LEAST_REMOTE = 0.1  # seconds between looks at another place


class Follower:
    """Follows the versions in `folder`, or at the URL of a place (`places`), copied into `cache`.

    every: seconds between looks, by a thread; None: only when `look` is called. threads, trust: of
    programs, see `Scorer`. ValueError where there is no version to begin with.

    applied: versions that were gone through; errors: looks that failed; problem: of the last look.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        every: float | None = 0.03,
        threads: int = 1,
        trust: bool = False,
        cache: Path | str | None = None,
    ) -> None:
        self._mirror = Mirror.open(folder, cache)
        self.folder = self._mirror.folder if self._mirror else Path(folder)
        self._threads, self._trust = threads, trust
        self.applied = self.errors = 0
        self.problem: str | None = None
        if self._mirror:
            self._mirror.pull()
        versions = versions_in(self.folder)
        self.version: Version = version_at(self.folder, versions.pin, threads, trust)
        self._looking = threading.Lock()
        self._ends = threading.Event()
        self._worker: Worker[None] | None = None
        if every is not None:
            follow = partial(self._follow, max(every, _LEAST_REMOTE if self._mirror else 0.001))
            self._worker = Worker("hotrows following", follow, self._ends.set)

    @property
    def staleness(self) -> float:
        """Seconds since training had the state that is served."""
        assert self.version.head is not None
        return max(0.0, time.time() - self.version.head.time)

    def look(self) -> int:
        """Goes to the newest version, or the pinned one; returns how many versions it went on.

        ValueError or OSError says why it could not go all the way; it then went as far as it could.
        """
        with self._looking:
            if self._mirror:
                self._mirror.pull()
            before = self.version.number
            try:
                for attempt in range(TRIES):
                    versions = chain.look(self.folder)
                    try:
                        self._go(versions)
                        break
                    except (FileNotFoundError, ValueError):
                        # What was deleted meanwhile, as there is a later base, is no longer needed.
                        if attempt == TRIES - 1 or chain.look(self.folder) == versions:
                            raise
            finally:
                self.applied += max(0, self.version.number - before)
            return self.version.number - before

    def close(self) -> None:
        """Ends the thread; the version stays."""
        if self._worker is not None:
            self._worker.close()

    def _go(self, versions: chain.Chain) -> None:
        target = versions.pin or versions.newest
        version = self.version
        if target == version.number:
            self._rest_on_last_base(versions)
            return
        try:
            base, deltas = versions.way(version.number, target)
        except ValueError:
            reach = version.number  # the deltas before the gap are right
            while reach + 1 in versions.deltas and reach + 1 < target:
                reach += 1
            if reach > version.number:
                self.version = with_deltas(version, self.folder, range(version.number + 1, reach + 1))
            raise
        if base is not None:
            opened = open_base(self.folder, base, self._threads, self._trust)
            _check_same(version, opened)
            version = opened
        self.version = with_deltas(version, self.folder, deltas)
        self._rest_on_last_base(versions)

    def _rest_on_last_base(self, versions: chain.Chain) -> None:
        """Reads unchanged rows from the last base, once it is there: memory has only later ones."""
        version = self.version
        later = [n for n in versions.bases if version.base < n <= version.number]
        if later:
            base = open_base(self.folder, later[-1], self._threads, self._trust)
            _check_same(version, base)
            self.version = on_base(version, base)

    def _follow(self, every: float) -> None:
        while not self._ends.wait(every):
            try:
                self.look()
                problem = None
            except Exception as error:
                self.errors += 1
                problem = " ".join(str(error).split()) or type(error).__name__
                if problem != self.problem:
                    log.error("version %s stays: %s", f"{self.version.number:,}", problem)
            self.problem = problem


def _check_same(version: Version, base: Version) -> None:
    """Refuses a base of another model."""
    assert version.head is not None
    if base.head is None or base.head.chain != version.head.chain:
        raise ValueError(
            f"{base.bundle.path} is of another model than version {version.number:,}, which is served; "
            f"publish each run into a folder of its own"
        )
