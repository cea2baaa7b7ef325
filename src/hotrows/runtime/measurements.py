"""Measurements kept: what was measured on this machine once, later runs read, and have equal bits.

    rates = Measurement("machine", {"ranks": 2})
    answer = rates.read()                       # None: not measured yet
    if answer is None:
        answer = rates.write(measure())         # what was written first, here or by another process

Times differ from run to run, and some choices that they lead to change the rounding of sums. So every
measurement has a file in the user's cache folder, `$XDG_CACHE_HOME/hotrows/measurements` or else
`~/.cache/hotrows/measurements`: plain JSON, under the machine, its threads and the versions. Where none
can be read or written, runs measure anew, and a warning says so once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotrows.runtime import machine, native
from hotrows.runtime.atomic_files import write_first
from hotrows.version import VERSION

log = logging.getLogger("hotrows")

_RENEW = "`hotrows doctor --renew` has all measured anew"


@dataclass(frozen=True)
class Measurement:
    """Something that is measured on this machine: its name, and the conditions, plain values for JSON."""

    name: str
    conditions: Mapping[str, Any]

    def read(self) -> Any | None:
        """The answer that was kept, or None; says where it is from."""
        try:
            text = self._path.read_text()
            day = time.strftime("%Y-%m-%d", time.localtime(self._path.stat().st_mtime))
            kept = json.loads(text)
        except (OSError, ValueError, RecursionError):  # absent, unreadable or damaged
            return None
        if not isinstance(kept, dict) or kept.get("of") != self._key or "answer" not in kept:
            return None
        log.info("%s: as measured on %s, read from %s; %s", self.name, day, self._path, _RENEW)
        return kept["answer"]

    def write(self, answer: Any) -> Any:
        """Keeps the answer, unless another process has meanwhile kept one; returns what is kept."""
        text = json.dumps({"of": self._key, "answer": answer}, indent=2) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if write_first(self._path, text.encode()):
                log.info("%s: measured, and kept in %s for later runs", self.name, self._path)
                return json.loads(text)["answer"]
            first = self.read()
            if first is None:  # damaged
                self._path.unlink()
                write_first(self._path, text.encode())
            return json.loads(text)["answer"] if first is None else first
        except OSError as error:
            _warn_once(getattr(error, "strerror", None) or str(error))
            return json.loads(text)["answer"]

    @functools.cached_property
    def _key(self) -> dict[str, Any]:
        """All that the answer depends on, as JSON has it."""
        key = {"name": self.name, "conditions": dict(self.conditions), "machine": _machine()}
        return json.loads(json.dumps(key, sort_keys=True))

    @property
    def _path(self) -> Path:
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        return folder() / f"{self.name.replace(' ', '-')}-{digest[:16]}.json"


def folder() -> Path:
    """Where measurements are kept; OSError: the user has no home."""
    return machine.cache_folder() / "measurements"


def forget() -> None:
    """Deletes all that was kept, of every machine that shares the folder."""
    if folder().exists():
        shutil.rmtree(folder())


def _machine() -> dict[str, Any]:
    """Describes what times on the host depend on, without the machine's name."""
    return {
        "processor": machine.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": machine.num_cores(),
        "threads": torch.get_num_threads(),
        "hotrows": VERSION,
        "torch": torch.__version__,
        "native_core": native.name(),
    }


@functools.cache
def _warn_once(reason: str) -> None:
    log.warning(
        "what is measured cannot be kept (%s): the next run measures anew, and may differ in rounding; "
        "set XDG_CACHE_HOME to a folder that can be written",
        reason,
    )
