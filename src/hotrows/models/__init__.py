"""Models: from looked-up vectors and dense values to one logit per sample; they never see an id.

A model says which tables it needs in `tables`; `Embedding(model.tables)` holds them.
"""

from __future__ import annotations

from torch import nn

from hotrows.models.dcnv2 import DCNv2
from hotrows.models.deepfm import DeepFM
from hotrows.models.dlrm import DLRM
from hotrows.models.wide_deep import WideDeep
from hotrows.schema import Schema

__all__ = ["BY_NAME", "DLRM", "DCNv2", "DeepFM", "WideDeep", "build"]

BY_NAME: dict[str, type[nn.Module]] = {
    "dlrm": DLRM,
    "deepfm": DeepFM,
    "wide_deep": WideDeep,
    "dcnv2": DCNv2,
}


def build(name: str, schema: Schema, **options) -> nn.Module:
    """The model of that name for a schema; options are the arguments of its class."""
    if name not in BY_NAME:
        raise ValueError(f"model must be one of {', '.join(BY_NAME)}, not {name!r}")
    return BY_NAME[name](schema, **options)
