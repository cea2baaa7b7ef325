"""pytorch-widedeep: its tabular models and `Wide`, each batch through `Trainer._train_step`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.any_model.absent import stand_in
from benchmarks.any_model.columns import DENSE, ROWS, columns
from benchmarks.any_model.recipe import Library, Recipe, Training, no_dropout, optimizer_of, place_of

# Its text and image parts import these; no tabular model uses any of them.
stand_in("torchvision", "spacy", "gensim", "cv2", "transformers", "imutils", "sentence_transformers")

from pytorch_widedeep import Trainer  # noqa: E402
from pytorch_widedeep import models as zoo  # noqa: E402

DIM = 8
HIDDEN = [16, 8]
COLUMNS = {name: n for n, name in enumerate([*ROWS, *DENSE])}
SIZED = [(name, rows, DIM) for name, rows in ROWS.items()]
SAME = list(ROWS.items())
Batch = tuple[dict[str, Tensor], Tensor]


def library() -> Library:
    return Library(
        "pytorch-widedeep", "widedeep", lambda: {"pytorch-widedeep": version("pytorch-widedeep")}, RECIPES
    )


def _recipe(tabular: Callable[[], nn.Module] | None, wide: bool = False, **trainer: Any) -> Recipe:
    """A WideDeep of these parts, trained on clicks."""

    def build() -> nn.Module:
        part = None if tabular is None else no_dropout(tabular())
        linear = zoo.Wide(sum(ROWS.values()), 1) if wide else None
        return zoo.WideDeep(wide=linear, deeptabular=part)

    def batches(dtype: torch.dtype) -> list[Batch]:
        return [_batch(part, wide, tabular is not None, dtype) for part in columns()]

    def training(model: nn.Module, name: str) -> Training:
        optimizer = optimizer_of(model, name)
        wrapped = Trainer(
            model, objective="binary", optimizers=optimizer, verbose=0, device=place_of(model), **trainer
        )
        wrapped.train_running_loss = 0.0
        return Training(wrapped.optimizer, lambda batch: wrapped._train_step(*batch, 0))

    return Recipe(build, batches, training, lambda _, batch: (dict(batch[0]),))


def _batch(batch: Any, wide: bool, deep: bool, dtype: torch.dtype) -> Batch:
    ids = np.stack(list(batch.ids.values()), 1)
    inputs = {}
    if wide:
        starts = 1 + np.cumsum([0, *list(ROWS.values())[:-1]])  # 0 stands for what was never seen
        inputs["wide"] = torch.from_numpy(ids + starts)
    if deep:
        dense = np.stack(list(batch.dense.values()), 1)
        both = np.concatenate([1 + ids, dense], 1)  # its own loader makes one matrix of them, too
        inputs["deeptabular"] = torch.from_numpy(both).to(dtype)
    return inputs, torch.from_numpy(batch.labels[:, 0]).to(dtype)


def _sized(kind: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(zoo, kind)(
        column_idx=COLUMNS, cat_embed_input=SIZED, continuous_cols=list(DENSE), **options
    )


def _same(kind: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(zoo, kind)(
        column_idx=COLUMNS, cat_embed_input=SAME, continuous_cols=list(DENSE), **options
    )


_TRANSFORMER = {"input_dim": DIM, "n_heads": 2, "n_blocks": 2, "mlp_hidden_dims": HIDDEN}
_DECODER = "decodes for self-supervised training; it has no tables"
RECIPES: dict[str, Recipe | str] = {
    "Wide": _recipe(None, wide=True),
    "TabMlp": _recipe(_sized("TabMlp", mlp_hidden_dims=HIDDEN)),
    "Wide and TabMlp": _recipe(_sized("TabMlp", mlp_hidden_dims=HIDDEN), wide=True),
    "TabResnet": _recipe(_sized("TabResnet", blocks_dims=[16, 16, 8])),
    "TabNet": _recipe(_sized("TabNet", n_steps=2, step_dim=8, attn_dim=8, ghost_bn=False)),
    "ContextAttentionMLP": _recipe(_same("ContextAttentionMLP", input_dim=DIM, n_blocks=2)),
    "SelfAttentionMLP": _recipe(_same("SelfAttentionMLP", input_dim=DIM, n_heads=2, n_blocks=2)),
    "TabTransformer": _recipe(_same("TabTransformer", **_TRANSFORMER)),
    "TabTransformer, shared": _recipe(
        _same("TabTransformer", **_TRANSFORMER, shared_embed=True, frac_shared_embed=0.25)
    ),
    "SAINT": _recipe(_same("SAINT", **_TRANSFORMER)),
    "FTTransformer": _recipe(_same("FTTransformer", **_TRANSFORMER)),
    "TabFastFormer": _recipe(_same("TabFastFormer", **_TRANSFORMER)),
    "TabPerceiver": _recipe(
        _same(
            "TabPerceiver",
            input_dim=DIM,
            n_cross_attn_heads=2,
            n_latents=4,
            latent_dim=8,
            n_latent_heads=2,
            n_latent_blocks=1,
            n_perceiver_blocks=2,
            mlp_hidden_dims=HIDDEN,
        )
    ),
    "TabMlpDecoder": _DECODER,
    "TabResnetDecoder": _DECODER,
    "TabNetDecoder": _DECODER,
}
