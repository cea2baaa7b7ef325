"""Decides: sees row numbers, never row values."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.engine.planning import policy as policy

__getattr__, __dir__ = lazy_names(__name__)
