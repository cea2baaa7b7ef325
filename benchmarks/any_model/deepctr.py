"""DeepCTR-Torch: each batch goes through the library's own `fit`, with its L2 terms as they are."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import deepctr_torch.models as zoo
import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
from torch import nn

from benchmarks.any_model.columns import (
    BATCH_SIZE,
    CATEGORIES,
    DENSE,
    ITEMS,
    MAX_LENGTH,
    ROWS,
    Columns,
    columns,
)
from benchmarks.any_model.recipe import Library, Recipe, Training, optimizer_of, tell_place

DIM = 8
HIDDEN = (16, 8)
Batch = tuple[list[np.ndarray], np.ndarray]


def library() -> Library:
    return Library("deepctr-torch", "ctr", lambda: {"deepctr-torch": version("deepctr-torch")}, RECIPES)


def _fields(dense: bool = True, tags: bool = True) -> list[Any]:
    fields: list[Any] = [SparseFeat(name, rows, DIM) for name, rows in ROWS.items()]
    if tags:
        fields.append(VarLenSparseFeat(SparseFeat("tags", CATEGORIES, DIM), MAX_LENGTH, "mean"))
    return fields + [DenseFeat(name, 1) for name in DENSE if dense]


def _history(negatives: bool = False) -> list[Any]:
    fields: list[Any] = [SparseFeat(name, ROWS[name], DIM) for name in ("c0", "c1")]
    fields += [SparseFeat("item", ITEMS, DIM), SparseFeat("category", CATEGORIES, DIM)]
    for prefix in ("hist_", "neg_hist_")[: 1 + negatives]:
        for name, rows in (("item", ITEMS), ("category", CATEGORIES)):
            feature = SparseFeat(prefix + name, rows, DIM, embedding_name=name)
            fields.append(VarLenSparseFeat(feature, MAX_LENGTH, length_name="length"))
    return [*fields, DenseFeat("d0", 1)]


def _columns_of(batch: Columns) -> dict[str, np.ndarray]:
    named = batch.ids | batch.dense | {"item": batch.item, "category": batch.category}
    named |= {"tags": batch.history[1], "length": batch.length}
    for prefix, sequences in (("hist_", batch.history), ("neg_hist_", batch.negatives)):
        named |= {prefix + "item": sequences[0], prefix + "category": sequences[1]}
    return named


def _recipe(build: Callable[[], nn.Module], labels: int = 1, **extra: Any) -> Recipe:
    def batches(dtype: torch.dtype) -> list[Batch]:
        kind = np.float64 if dtype == torch.float64 else np.float32
        names = list(build().feature_index)
        arguments = []
        for batch in columns():
            named = _columns_of(batch)
            x = [named[n].reshape(BATCH_SIZE, -1).astype(kind) for n in names]
            arguments.append((x, batch.labels[:, :labels].astype(kind)))
        return arguments

    def training(model: nn.Module, name: str) -> Training:
        losses = ["binary_crossentropy"] * labels if labels > 1 else "binary_crossentropy"
        tell_place(model)
        # Its own names where it has them; its own rates are too small to move DIM weights.
        model.compile(optimizer_of(model, name), losses)

        def step(batch: Batch) -> object:
            x, y = batch
            return model.fit(list(x), y, batch_size=len(y), epochs=1, verbose=0, shuffle=False)

        return Training(model.optim, step)

    def arguments(model: nn.Module, batch: Batch) -> tuple[Any, ...]:
        return (torch.from_numpy(np.concatenate(batch[0], -1)),)

    return Recipe(build, batches, training, arguments, **extra)


def _wide_deep(kind: str, *, dense: bool = True, tags: bool = True, **options: Any) -> Recipe:
    options = {"dnn_hidden_units": HIDDEN, **options}

    def build() -> nn.Module:
        fields = _fields(dense, tags)
        return getattr(zoo, kind)(fields, fields, **options)

    return _recipe(build)


def _multi_task(kind: str, **options: Any) -> Recipe:
    def build() -> nn.Module:
        return getattr(zoo, kind)(_fields(), tower_dnn_hidden_units=HIDDEN, **options)

    return _recipe(build, labels=2)


def _sequence(
    kind: str, negatives: bool = False, extra: dict[str, Any] | None = None, **options: Any
) -> Recipe:
    def build() -> nn.Module:
        fields, items = _history(negatives), ["item", "category"]
        return getattr(zoo, kind)(fields, items, dnn_hidden_units=HIDDEN, **options)

    return _recipe(build, **(extra or {}))


def _afm() -> nn.Module:
    fields = _fields(dense=False)
    return zoo.AFM(fields, fields)


def _afn() -> nn.Module:
    fields = _fields()
    return zoo.AFN(fields, fields, 8, HIDDEN)


def _mlr() -> nn.Module:
    return zoo.MLR(_fields(), bias_feature_columns=[SparseFeat("c0", ROWS["c0"], DIM)])


def _pnn(**options: Any) -> Recipe:
    return _recipe(lambda: zoo.PNN(_fields(), HIDDEN, **options))


_EXPERTS = {"expert_dnn_hidden_units": HIDDEN, "gate_dnn_hidden_units": (8,)}
_SINGLE = {"remark": "its auxiliary loss makes float32 by name: no float64 run", "float64": False}
RECIPES: dict[str, Recipe | str] = {
    "WDL": _wide_deep("WDL"),
    "DeepFM": _wide_deep("DeepFM"),
    "xDeepFM": _wide_deep("xDeepFM", cin_layer_size=(8, 8)),
    "AFM": _recipe(_afm),
    "DIFM": _wide_deep("DIFM", att_head_num=2),
    "IFM": _wide_deep("IFM"),
    "AutoInt": _wide_deep("AutoInt"),
    "DCN": _wide_deep("DCN"),
    "DCN, matrix": _wide_deep("DCN", cross_parameterization="matrix"),
    "DCNMix": _wide_deep("DCNMix", low_rank=4, num_experts=2),
    "FiBiNET": _wide_deep("FiBiNET"),
    "NFM": _wide_deep("NFM"),
    "MLR": _recipe(_mlr),
    "ONN": _wide_deep("ONN", tags=False),
    "PNN": _pnn(),
    "PNN, outer": _pnn(use_inner=False, use_outter=True),
    "CCPM": _wide_deep("CCPM", dense=False),
    "DIEN": _sequence("DIEN"),
    "DIEN, AUGRU, negatives": _sequence("DIEN", True, _SINGLE, gru_type="AUGRU", use_negsampling=True),
    "DIN": _sequence("DIN"),
    "AFN": _recipe(_afn),
    "SharedBottom": _multi_task("SharedBottom", bottom_dnn_hidden_units=HIDDEN),
    "ESMM": _multi_task("ESMM"),
    "MMOE": _multi_task("MMOE", **_EXPERTS),
    "PLE": _multi_task("PLE", **_EXPERTS),
}
