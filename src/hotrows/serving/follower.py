"""Follower: keeps the version that is served up to that of a folder to which training publishes.

    follower = Follower("published", every=0.03)   # seconds between looks; a thread
    follower.version                               # the present one; take it once for each request

New deltas are applied beside the version that is served, which stays as it is; then one reference is
exchanged. What cannot be applied, as a damaged delta, leaves the version before it, until there is a base
behind it: the reason is logged once, and counted. The same holds for the version to begin with.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from hotrows.runtime.atomic_files import absolute
from hotrows.runtime.background import Worker
from hotrows.runtime.suggestions import one_line
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
        self.folder = self._mirror.folder if self._mirror else absolute(folder)
        self._threads, self._trust = threads, trust
        self.applied = self.errors = 0
        self.problem: str | None = None
        if self._mirror:
            self._mirror.pull()
        versions = versions_in(self.folder)
        self.version = self._first(versions)
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

    def _first(self, versions: chain.Chain) -> Version:
        """The version to begin with: the newest, or the last before a damaged delta."""
        try:
            return version_at(self.folder, versions.pin, self._threads, self._trust)
        except (FileNotFoundError, ValueError) as error:
            if versions.pin or not versions.bases:
                raise
            self.version = open_base(self.folder, versions.bases[-1], self._threads, self._trust)
            self._go_far(versions, versions.newest)
            self._note(error)
            return self.version

    def _go(self, versions: chain.Chain) -> None:
        target = versions.pin or versions.newest
        if target != self.version.number:
            try:
                self._go_by(*versions.way(self.version.number, target))
            except (FileNotFoundError, ValueError):
                self._go_far(versions, target)
                if self.version.number != target:
                    raise
        self._rest_on_last_base(versions)

    def _go_by(self, base: int | None, deltas: Sequence[int]) -> None:
        """Goes by deltas, from a base where one is given; all the way or not at all."""
        version = self.version
        if base is not None:
            version = open_base(self.folder, base, self._threads, self._trust)
            _check_same(self.version, version)
        self.version = with_deltas(version, self.folder, deltas)

    def _go_far(self, versions: chain.Chain, target: int) -> None:
        """Goes on to the delta that is missing or damaged, and from a base behind it to the next such."""
        for base in (None, *(base for base in versions.bases if base <= target)):
            with suppress(FileNotFoundError, ValueError):
                if base is not None and base > self.version.number:
                    self._go_by(base, ())
                while self.version.number < target:
                    self._go_by(None, (self.version.number + 1,))

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
                self.problem = None
            except Exception as error:
                self._note(error)

    def _note(self, error: Exception) -> None:
        """Counts what could not be applied, and logs it once."""
        self.errors += 1
        problem = one_line(error, None)
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
