"""Trained models as plain files: weights, bundles that turn raw rows into scores, published versions."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.serving.export.publisher import Publisher as Publisher
    from hotrows.serving.export.whole import export as export

__getattr__, __dir__ = lazy_names(
    __name__,
    {"hotrows.serving.export.publisher": ["Publisher"], "hotrows.serving.export.whole": ["export"]},
)
