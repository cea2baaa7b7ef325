"""Trained models as plain files: weights, bundles that turn raw rows into scores, published versions."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.export.publisher import Publisher as Publisher
    from hotrows.export.whole import export as export

__getattr__, __dir__ = lazy_names(
    __name__, {"hotrows.export.publisher": ["Publisher"], "hotrows.export.whole": ["export"]}
)
