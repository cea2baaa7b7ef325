"""FuxiCTR: the classes of its model zoo, each batch through the library's own `train_step`.

It clips the norm of all gradients at 10, as its `fit` does, and both its regularizers are on.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections import OrderedDict
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from fuxictr.features import FeatureMap
from torch import nn

from benchmarks.any_model.columns import CATEGORIES, DENSE, ITEMS, MAX_LENGTH, ROWS, Columns, columns
from benchmarks.any_model.recipe import RATES, Library, Recipe, Training, no_dropout, tell_place
from benchmarks.peers import SOURCES, source_of

# Behind the imports, for the clone has a folder `fuxictr` too; the package's is the one measured.
sys.path.insert(0, str(source_of("fuxictr-zoo")))

DIM = 8
HIDDEN = [16, 8]
SOURCE = {"c0": "user", "c1": "user", "c2": "item", "c3": "item", "c4": "context"}
OPTIMIZERS = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "adam", "adamw": "AdamW", "rmsprop": "RMSprop"}
LABELS = ("click", "buy")
REGULARIZERS = {"embedding_regularizer": 1e-5, "net_regularizer": 1e-6}
Batch = Any  # a dictionary of columns, or for LongCTR (columns, items, mask)


def library() -> Library:
    def versions() -> dict[str, str]:
        return {"fuxictr": version("fuxictr"), "its model zoo": SOURCES["fuxictr-zoo"].commit}

    return Library("fuxictr", "ctr", versions, RECIPES)


def _features(kind: str) -> dict[str, dict[str, Any]]:
    """kind: `ids` alone, `dense` beside them, `fields` with a pooled sequence too, or `history`."""
    features: dict[str, dict[str, Any]] = {}
    for name, rows in ROWS.items():
        features[name] = {"source": SOURCE[name], "type": "categorical", "vocab_size": rows}
        features[name] |= {"source": "user"} if kind == "items" else {}
        features[name] |= {"padding_idx": 0} if kind == "negatives" else {}
    if kind in ("dense", "fields"):
        for name in DENSE:
            features[name] = {"source": "context", "type": "numeric"}
    if kind == "fields":
        features["tags"] = _sequence(CATEGORIES, source="user", encoder="layers.MaskedAveragePooling()")
    if kind in ("history", "negatives", "items"):
        padded = {"type": "categorical", "padding_idx": 0, "source": "item"}
        features["item_id"] = {**padded, "vocab_size": ITEMS}
        features["cate_id"] = {**padded, "vocab_size": CATEGORIES}
    prefixes = {"history": ("",), "negatives": ("", "neg_")}.get(kind, ())
    for prefix in prefixes:
        features[f"{prefix}click_history"] = _sequence(ITEMS, share="item_id")
        features[f"{prefix}cate_history"] = _sequence(CATEGORIES, share="cate_id")
    return features


def _sequence(
    rows: int, source: str = "", encoder: str | None = None, share: str | None = None
) -> dict[str, Any]:
    spec: dict[str, Any] = {"source": source, "type": "sequence", "vocab_size": rows}
    spec |= {"max_len": MAX_LENGTH, "padding_idx": 0, "feature_encoder": encoder}
    return spec | ({"share_embedding": share} if share else {})


def _feature_map(kind: str, dim: int, labels: tuple[str, ...]) -> FeatureMap:
    feature_map = FeatureMap("any_model", tempfile.gettempdir())
    feature_map.features = OrderedDict(_features(kind))
    feature_map.labels = list(labels)
    feature_map.num_fields = feature_map.get_num_fields()
    feature_map.default_emb_dim = dim
    feature_map.total_features = sum(spec.get("vocab_size", 1) for spec in feature_map.features.values())
    feature_map.set_column_index()
    return feature_map


def _columns_of(batch: Columns, kind: str, labels: tuple[str, ...], dtype: torch.dtype) -> Batch:
    named = {name: torch.from_numpy(column) for name, column in batch.ids.items()}
    named |= {name: torch.from_numpy(column).to(dtype) for name, column in batch.dense.items()}
    named["tags"] = torch.from_numpy(batch.history[1])
    named |= {"item_id": torch.from_numpy(batch.item), "cate_id": torch.from_numpy(batch.category)}
    for prefix, sequences in (("", batch.history), ("neg_", batch.negatives)):
        named[f"{prefix}click_history"] = torch.from_numpy(sequences[0])
        named[f"{prefix}cate_history"] = torch.from_numpy(sequences[1])
    if kind == "dense":  # its DLRM takes columns as [B, 1]
        named |= {name: named[name][:, None] for name in DENSE}
    wanted = _features("fields" if kind == "items" else kind)
    chosen = {name: named[name] for name in wanted if kind != "items" or name in ROWS}
    chosen |= {name: torch.from_numpy(batch.labels[:, n]).to(dtype) for n, name in enumerate(labels)}
    if kind != "items":
        return chosen
    # Padding comes first, as in LongCTR's own loader.
    together = {}
    for name, sequence, target in (
        ("item_id", batch.history[0], batch.item),
        ("cate_id", batch.history[1], batch.category),
    ):
        together[name] = torch.from_numpy(
            np.concatenate([sequence[:, ::-1], target[:, None]], 1).reshape(-1)
        )
    mask = torch.from_numpy((batch.history[0][:, ::-1] > 0).astype(np.int64))
    return chosen, together, mask


def _copied(batch: Batch) -> Batch:
    """The dictionaries anew, for the models write into them."""
    if isinstance(batch, dict):
        return dict(batch)
    return tuple(dict(item) if isinstance(item, dict) else item for item in batch)


def _of(
    module: str,
    kind: str = "fields",
    name: str = "",
    dim: int = DIM,
    tasks: int = 1,
    recipe: dict[str, Any] | None = None,
    **options: Any,
) -> Recipe:
    labels = LABELS[:tasks]

    def build() -> nn.Module:
        model_class = getattr(
            importlib.import_module("model_zoo." + module), name or module.rsplit(".", maxsplit=1)[-1]
        )
        one = "binary_classification"
        model = model_class(
            _feature_map(kind, dim, labels),
            embedding_dim=dim,
            task=one if tasks == 1 else [one] * tasks,
            **({} if tasks == 1 else {"num_tasks": tasks}),
            optimizer="adam",
            loss="binary_crossentropy" if tasks == 1 else ["binary_crossentropy"] * tasks,
            metrics=["AUC"],
            verbose=0,
            model_root=tempfile.gettempdir(),
            **({} if "regularizer" in options else REGULARIZERS),
            **options,
        )
        _spread(model)
        return no_dropout(model)

    def batches(dtype: torch.dtype) -> list[Batch]:
        return [_columns_of(batch, kind, labels, dtype) for batch in columns()]

    def training(model: nn.Module, optimizer: str) -> Training:
        loss = "binary_crossentropy" if tasks == 1 else ["binary_crossentropy"] * tasks
        tell_place(model)
        model.compile(OPTIMIZERS[optimizer], loss, RATES[optimizer])
        model._max_gradient_norm = 10.0
        model._batch_index = 0
        return Training(model.optimizer, lambda batch: model.train_step(_copied(batch)))

    return Recipe(build, batches, training, lambda _, batch: (_copied(batch),), **(recipe or {}))


def _spread(model: nn.Module) -> None:
    """Its tables start at a standard deviation of 1e-4, where many gradients are rounding alone."""
    with torch.no_grad():
        seen: set[int] = set()
        for module in model.modules():
            if isinstance(module, nn.Embedding) and id(module.weight) not in seen:
                seen.add(id(module.weight))
                module.weight.mul_(100)


def _exported(recipes: dict[str, Recipe | str]) -> dict[str, Recipe | str]:
    """Every folder of the zoo that the recipes do not name, with that as the reason."""
    zoo = source_of("fuxictr-zoo") / "model_zoo"
    known = " ".join(recipes)
    for folder in sorted(path.name for path in zoo.iterdir() if path.is_dir()):
        if folder.startswith("__") or folder in ("LongCTR", "multitask") or folder in known:
            continue
        recipes[folder] = "has no recipe"
    return recipes


_HIDDEN = {"hidden_units": HIDDEN}
_DNN = {"dnn_hidden_units": HIDDEN}
_TARGETS = {"target": ("item_id", "cate_id"), "sequence": ("click_history", "cate_history")}
_NEGATIVES = ("neg_click_history", "neg_cate_history")
_AUXILIARY = {
    "target_field": [_TARGETS["target"]],
    "sequence_field": [_TARGETS["sequence"]],
    "neg_seq_field": [_NEGATIVES],
    "attention_hidden_units": [8],
    **_DNN,
}
_LONG = {"kind": "items", "short_seq_len": 2, "attention_dim": 8, **_DNN}
_TASKS = {"tasks": 2, "net_dropout": 0}
_EXPERTS = {**_TASKS, "expert_hidden_units": HIDDEN, "gate_hidden_units": [8], "tower_hidden_units": [8]}
_CONDITIONS = {"condition_mode": "group-wise", "condition_features": ["c0", "c1"]}
_APG = {"rank_k": 4, "overparam_p": 8, "hypernet_config": {"hidden_units": [8]}}
RECIPES: dict[str, Recipe | str] = {
    "AFM": _of("AFM.src.AFM", attention_dim=8),
    "AFN": _of("AFN.src.AFN", afn_hidden_units=HIDDEN, **_DNN),
    "AOANet": _of("AOANet.src.AOANet", **_DNN),
    "APG_DeepFM": _of("APG.src.APG_DeepFM", **_HIDDEN, **_APG),
    "APG_DeepFM, group-wise": _of("APG.src.APG_DeepFM", **_HIDDEN, **_CONDITIONS, **_APG),
    "APG_DCNv2": _of("APG.src.APG_DCNv2", parallel_dnn_hidden_units=HIDDEN, **_APG),
    "AutoInt": _of("AutoInt.src.AutoInt", use_wide=True, **_DNN),
    "BST": _of("BST.src.BST", kind="history", **_DNN),
    "CCPM": _of("CCPM.src.CCPM"),
    "DCN": _of("DCN.DCN_torch.src.DCN", **_DNN),
    "DCNv2": _of("DCNv2.src.DCNv2", parallel_dnn_hidden_units=HIDDEN),
    "DCNv2, mixture": _of(
        "DCNv2.src.DCNv2",
        parallel_dnn_hidden_units=HIDDEN,
        use_low_rank_mixture=True,
        low_rank=4,
        num_experts=2,
    ),
    "DESTINE": _of("DESTINE.src.DESTINE", **_DNN),
    "DIEN": _of("DIEN.src.DIEN", kind="negatives", attention_hidden_units=[8], **_DNN),
    "DIEN, auxiliary loss": _of(
        "DIEN.src.DIEN", kind="negatives", aux_loss_alpha=0.5, attention_hidden_units=[8], **_DNN
    ),
    "DIN": _of("DIN.src.DIN", kind="history", attention_hidden_units=[8], **_DNN),
    "DLRM": _of("DLRM.src.DLRM", kind="dense", top_mlp_units=HIDDEN, bottom_mlp_units=[16, DIM]),
    "DMIN": _of("DMIN.src.DMIN", kind="negatives", **{**_AUXILIARY, "aux_loss_lambda": 0}),
    "DMIN, auxiliary loss": _of("DMIN.src.DMIN", kind="negatives", **_AUXILIARY, aux_loss_lambda=0.5),
    "DMR": _of("DMR.src.DMR", kind="negatives", **_AUXILIARY, context_field=["c4"]),
    "DNN": _of("DNN.DNN_torch.src.DNN", **_HIDDEN),
    "DSSM": _of("DSSM.src.DSSM", kind="ids", user_tower_units=HIDDEN, item_tower_units=HIDDEN),
    "DeepCrossing": _of("DeepCrossing.src.DeepCrossing", residual_blocks=HIDDEN),
    "DeepFM": _of("DeepFM.DeepFM_torch.src.DeepFM", **_HIDDEN),
    "DeepIM": _of("DeepIM.src.DeepIM", **_HIDDEN),
    "EDCN": _of("EDCN.src.EDCN"),
    "EulerNet": _of("EulerNet.src.EulerNet"),
    "FFM": _of("FFM.src.FFM", kind="ids", dim=4, regularizer=1e-5),
    "FFMv2": _of("FFM.src.FFMv2", kind="ids", dim=4, regularizer=1e-5),
    "FGCNN": _of(
        "FGCNN.src.FGCNN",
        channels=[3, 4],
        kernel_heights=[3, 3],
        pooling_sizes=[2, 2],
        recombined_channels=[2, 2],
        **_DNN,
    ),
    "FLEN": _of("FLEN.src.FLEN", **_DNN),
    "FM": _of("FM.src.FM", regularizer=1e-5),
    "FiBiNET": _of("FiBiNET.src.FiBiNET", **_HIDDEN),
    "FiGNN": _of("FiGNN.src.FiGNN"),
    "FinalMLP": _of(
        "FinalMLP.src.FinalMLP",
        mlp1_hidden_units=HIDDEN,
        mlp2_hidden_units=HIDDEN,
        fs_hidden_units=[8],
        fs1_context=["c0"],
        fs2_context=["c2"],
    ),
    "DualMLP": _of("FinalMLP.src.DualMLP", mlp1_hidden_units=HIDDEN, mlp2_hidden_units=HIDDEN),
    "FinalNet": _of("FinalNet.src.FinalNet"),
    "FmFM": _of("FmFM.src.FmFM", regularizer=1e-5),
    "FwFM": _of("FwFM.src.FwFM", regularizer=1e-5),
    "GDCN": _of("GDCN.src.GDCN", **_DNN),
    "GDCNP": _of("GDCN.src.GDCN", name="GDCNP", **_DNN),
    "HFM": _of("HFM.src.HFM"),
    "HOFM": _of("HOFM.src.HOFM", kind="ids", dim=DIM, regularizer=1e-5),
    "InterHAt": _of("InterHAt.src.InterHAt"),
    "LR": _of("LR.src.LR", regularizer=1e-5),
    "LorentzFM": _of("LorentzFM.src.LorentzFM", regularizer=1e-5),
    "MaskNet": _of("MaskNet.src.MaskNet", **_DNN),
    "MaskNet, parallel": _of(
        "MaskNet.src.MaskNet",
        model_type="ParallelMaskNet",
        parallel_num_blocks=2,
        parallel_block_dim=8,
        **_DNN,
    ),
    "NFM": _of("NFM.src.NFM", **_HIDDEN),
    "ONN": _of("ONN.ONN_torch.src.ONN", kind="ids", dim=4, **_HIDDEN),
    "ONNv2": _of("ONN.ONN_torch.src.ONNv2", kind="ids", dim=4, **_HIDDEN),
    "PPNet": _of("PEPNet.src.PPNet", gate_priors=["c0", "c1"], gate_emb_dim=4, **_HIDDEN),
    "PEPNet": "is a file with one word, `Todo`",
    "PNN": _of("PNN.src.PNN", **_HIDDEN),
    "QNN": _of("QNN.src.QNN"),
    "QNN_alpha": _of("QNN.src.QNN_alpha"),
    "SAM": _of("SAM.src.SAM"),
    "TransAct": _of(
        "TransAct.src.TransAct",
        kind="history",
        dcn_hidden_units=HIDDEN,
        dim_feedforward=16,
        target_item_field=[_TARGETS["target"]],
        sequence_item_field=[_TARGETS["sequence"]],
    ),
    "WideDeep": _of("WideDeep.WideDeep_torch.src.WideDeep", **_HIDDEN),
    "WuKong": _of(
        "WuKong.src.WuKong",
        num_wukong_layers=2,
        lcb_features=4,
        fmb_features=4,
        fmp_rank_k=4,
        fmb_mlp_units=HIDDEN,
        mlp_hidden_units=HIDDEN,
    ),
    "xDeepFM": _of("xDeepFM.src.xDeepFM", cin_hidden_units=[8, 8], **_DNN),
    "MMoE": _of("multitask.MMoE.src.MMoE", num_experts=2, **_EXPERTS),
    "PLE": _of("multitask.PLE.src.PLE", **_EXPERTS),
    "ShareBottom": _of(
        "multitask.ShareBottom.src.ShareBottom",
        bottom_hidden_units=HIDDEN,
        tower_hidden_units=[8],
        **_TASKS,
    ),
    "LongCTR DCNv2": _of("LongCTR.DCNv2.DCNv2", kind="items", parallel_dnn_hidden_units=HIDDEN),
    "LongCTR DIEN": _of("LongCTR.DIEN.DIEN", kind="items", attention_hidden_units=[8], **_DNN),
    "LongCTR DIN": _of("LongCTR.DIN.DIN", kind="items", attention_hidden_units=[8], **_DNN),
    "LongCTR ETA": _of("LongCTR.ETA.ETA", **_LONG, topk=2),
    "LongCTR FinalMLP": _of(
        "LongCTR.FinalMLP.FinalMLP",
        kind="items",
        mlp1_hidden_units=HIDDEN,
        mlp2_hidden_units=HIDDEN,
        fs_hidden_units=[8],
    ),
    "LongCTR MIRRN": _of("LongCTR.MIRRN.MIRRN", **_LONG, topk=2, max_len=MAX_LENGTH),
    "LongCTR SDIM": _of("LongCTR.SDIM.SDIM", **_LONG),
    "LongCTR SIM": _of("LongCTR.SIM.SIM", **_LONG, topk=2),
    "LongCTR TWIN": _of("LongCTR.TWIN.TWIN", **_LONG, topk=2),
    "LongCTR TransAct": _of(
        "LongCTR.TransAct.TransAct", kind="items", dcn_hidden_units=HIDDEN, dim_feedforward=16
    ),
}
_exported(RECIPES)
