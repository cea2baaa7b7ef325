"""Ranks and their collectives: as processes behind torch.distributed, as threads, and alone."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.engine.distributed import dense_gradients as dense_gradients
    from hotrows.engine.distributed import process_group as process_group

__getattr__, __dir__ = lazy_names(__name__)
