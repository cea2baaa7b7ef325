"""Tools that choose settings: coordinate descent over paired benchmarks, cache simulation, scaling."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.tools.tuning import tune as tune

__getattr__, __dir__ = lazy_names(__name__)
