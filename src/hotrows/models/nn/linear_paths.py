"""The path of each product of a model's linear layers, as a flat table of strings, fit for JSON:

    {"forward float32 367x512": "onednn", "weight_gradient float32 13x512": "onednn_turned", ...}

The rule is in `ops.layers.products`. Paths differ in rounding, so a run keeps its table, for when it is
resumed or read on another processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import nn

from hotrows.models.nn.linear import DTYPES, PathLinear
from hotrows.ops.layers import products
from hotrows.ops.layers.products import Paths, paths_of

# Runs of 0.1.0rc1 measured these, too; now their products are plain, which differs by rounding.
_MEASURED = ("sum", "outer", "onednn_copied", "turned", "chunked")


def choose_linear_paths(model: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, str]:
    """Returns the path of every product of the model's `nn.Linear` layers, by this processor's rule."""
    choices = {}
    for layer in _linears(model):
        paths = paths_of(layer.in_features, layer.out_features, dtype)
        for product, path in zip(products.BY_PRODUCT, paths, strict=True):
            choices[_key(product, dtype, (layer.in_features, layer.out_features))] = path
    return choices


def use_linear_paths(model: nn.Module, choices: Mapping[str, str]) -> None:
    """Makes every `nn.Linear` of the model compute its products on the chosen paths.

    Layers without a choice stay plain, and so does everything on a GPU. Parameters keep their
    identity and their names; optimizers made before keep working.
    """
    for key, path in choices.items():
        product, dtype = key.split(" ")[:2]
        is_known = product in products.BY_PRODUCT and dtype in DTYPES
        known = products.paths_for(product, DTYPES[dtype]) if is_known else []
        if path not in known and path not in _MEASURED:
            raise ValueError(
                f"linear path {path!r} for {key!r} is not offered by PyTorch {torch.__version__} "
                f"here, only {known}; resume with the PyTorch and the processor that wrote the run"
            )
    for layer in _linears(model):
        shape = (layer.in_features, layer.out_features)
        by_dtype = {name: _paths(choices, dtype, shape) for name, dtype in DTYPES.items()}
        layer.__class__ = PathLinear
        cast("PathLinear", layer).paths = by_dtype


def _linears(model: nn.Module) -> Iterator[nn.Linear]:
    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module) in (nn.Linear, PathLinear):
            yield module


def _key(product: str, dtype: torch.dtype, shape: tuple[int, int]) -> str:
    return f"{product} {str(dtype).removeprefix('torch.')} {shape[0]}x{shape[1]}"


def _paths(choices: Mapping[str, str], dtype: torch.dtype, shape: tuple[int, int]) -> Paths:
    chosen = [choices.get(_key(p, dtype, shape), products.PLAIN) for p in products.BY_PRODUCT]
    return Paths(*(products.PLAIN if path in _MEASURED else path for path in chosen))
