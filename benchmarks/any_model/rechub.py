"""torch-rechub: each batch goes through `train_one_epoch` of the library's own trainers.

Their default weight decay, 1e-5, stays on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
from torch_rechub.models import generative, matching, multi_task, ranking
from torch_rechub.models.matching.dssm_senet import DSSM as SenetDSSM
from torch_rechub.trainers import CTRTrainer, MatchTrainer, MTLTrainer, SeqTrainer
from torch_rechub.trainers.rqvae_trainer import Trainer as QuantizerTrainer

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
from benchmarks.any_model.recipe import CLASSES, RATES, Library, Recipe, Training, no_dropout, place_of

DIM = 8
MLP = {"dims": [16, 8], "dropout": 0.0, "activation": "relu"}
TOWER = {"dims": [16, DIM], "activation": "relu"}
Inputs = dict[str, Tensor]


def library() -> Library:
    return Library("torch-rechub", "ctr", lambda: {"torch-rechub": version("torch-rechub")}, RECIPES)


# A feature keeps the table that it once made, so each model gets features of its own.
def _sparse(rows: dict[str, int] = ROWS, dim: int = DIM) -> list[Any]:
    return [SparseFeature(name, num_rows, dim) for name, num_rows in rows.items()]


def _dense() -> list[Any]:
    return [DenseFeature(name) for name in DENSE]


def _target() -> list[Any]:
    return [
        SparseFeature("item", ITEMS, DIM, padding_idx=0),
        SparseFeature("category", CATEGORIES, DIM, padding_idx=0),
    ]


def _history(prefix: str = "hist_", pooling: str = "concat") -> list[Any]:
    return [
        SequenceFeature(prefix + name, rows, DIM, pooling, shared_with=name, padding_idx=0)
        for name, rows in (("item", ITEMS), ("category", CATEGORIES))
    ]


def _user() -> list[Any]:
    return _sparse({name: ROWS[name] for name in ("c0", "c3")})


def _items() -> tuple[list[Any], list[Any], list[Any]]:
    """The item, its history and the negatives beside it, all of one table."""
    return (
        [SparseFeature("item", ITEMS, DIM)],
        [SequenceFeature("hist_item", ITEMS, DIM, "concat", shared_with="item")],
        [SequenceFeature("neg_items", ITEMS, DIM, "concat", shared_with="item")],
    )


def _named(batch: Columns, dtype: torch.dtype) -> Inputs:
    arrays = batch.ids | {"item": batch.item, "category": batch.category}
    for prefix, sequences in (("hist_", batch.history), ("neg_", batch.negatives)):
        arrays |= {prefix + "item": sequences[0], prefix + "category": sequences[1]}
    arrays |= {"seq": batch.history[0], "tags": batch.history[1]}
    arrays |= {"pos": np.roll(batch.history[0], 1, 1), "neg": batch.negatives[0]}
    negatives = 1 + (batch.item[:, None] + np.array([3, 71, 200])) % (ITEMS - 1)
    arrays |= {"neg_items": negatives, "one_negative": negatives[:, 0]}
    arrays |= {"weight": batch.ids["c0"]}
    named = {name: torch.from_numpy(column) for name, column in arrays.items()}
    return named | {name: torch.from_numpy(column).to(dtype) for name, column in batch.dense.items()}


def _recipe(
    build: Callable[[], nn.Module],
    trainer: Callable[..., Any],
    labels: Callable[[Columns], np.ndarray],
    **extra: Any,
) -> Recipe:
    def batches(dtype: torch.dtype) -> list[Any]:
        arguments = []
        for batch in columns():
            y = torch.from_numpy(labels(batch))
            arguments.append((_named(batch, dtype), y.to(dtype) if y.is_floating_point() else y))
        return arguments

    return Recipe(
        lambda: no_dropout(build()),
        batches,
        _trained_by(trainer),
        lambda _, batch: (dict(batch[0]),),
        **extra,
    )


def _trained_by(trainer: Callable[..., Any]) -> Callable[[nn.Module, str], Training]:
    def training(model: nn.Module, name: str) -> Training:
        wrapped = trainer(
            model,
            optimizer_fn=CLASSES[name],
            optimizer_params={"lr": RATES[name], "weight_decay": 1e-5},
            device=place_of(model),
            model_path=tempfile.gettempdir(),
        )
        return Training(wrapped.optimizer, lambda batch: wrapped.train_one_epoch([batch]))

    return training


def _clicks(batch: Columns) -> np.ndarray:
    return batch.labels[:, 0]


def _two(batch: Columns) -> np.ndarray:
    return batch.labels


def _three(batch: Columns) -> np.ndarray:
    return np.stack([batch.labels[:, 1], batch.labels[:, 0], batch.labels.prod(1)], 1)


def _first(batch: Columns) -> np.ndarray:
    return np.zeros(BATCH_SIZE, np.int64)


def _items_themselves(batch: Columns) -> np.ndarray:
    return batch.item


def _rank(build: Callable[[], nn.Module], trainer: Any = CTRTrainer, **options: Any) -> Recipe:
    return _recipe(build, lambda model, **settings: trainer(model, **settings, **options), _clicks)


def _fields() -> list[Any]:
    tags = SequenceFeature("tags", CATEGORIES, DIM, "mean", padding_idx=0)
    return [*_sparse(), tags, *_dense()]


def _cross() -> tuple[list[Any], list[Any]]:
    fields = {name: rows * len(ROWS) for name, rows in ROWS.items()}
    return _sparse(dim=1), _sparse(fields)


def _sequence(kind: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: kind(_user(), _history(), _target(), **options)


def _dien() -> nn.Module:
    mlp = {"dims": [16, 8]}
    return ranking.DIEN(_user(), _history(), _history("neg_"), _target(), mlp_params=mlp)


def _tasks(kind: Any, labels: int = 2, adaptive: str | None = None, **options: Any) -> Recipe:
    towers = [{"dims": [8], "dropout": 0.0}] * labels

    def trainer(model: nn.Module, **settings: Any) -> Any:
        params = None if adaptive is None else {"method": adaptive}
        return MTLTrainer(model, ["classification"] * labels, adaptive_params=params, **settings)

    def build() -> nn.Module:
        return kind(_fields(), tower_params_list=towers, **options)

    return _recipe(build, trainer, _two)


def _esmm() -> Recipe:
    def build() -> nn.Module:
        item = _sparse({"item": ITEMS, "category": CATEGORIES})
        return multi_task.ESMM(_user(), item, {"dims": [16, 8]}, {"dims": [16, 8]})

    def trainer(model: nn.Module, **settings: Any) -> Any:
        return MTLTrainer(model, ["classification"] * 3, **settings)

    return _recipe(build, trainer, _three)


def _match(
    build: Callable[[], nn.Module],
    mode: int,
    labels: Callable[[Columns], np.ndarray] = _first,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Recipe:
    def trainer(model: nn.Module, **settings: Any) -> Any:
        return MatchTrainer(model, mode=mode, **options, **settings)

    return _recipe(build, trainer, labels, **(extra or {}))


def _two_towers(kind: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        item = _sparse({"item": ITEMS, "category": CATEGORIES})
        return kind(_user(), item, user_params=TOWER, item_params=TOWER)

    return build


def _facebook() -> nn.Module:
    positive = [SparseFeature("item", ITEMS, DIM)]
    negative = [SparseFeature("one_negative", ITEMS, DIM, shared_with="item")]
    return matching.FaceBookDSSM(_user(), positive, negative, TOWER, TOWER)


def _youtube() -> nn.Module:
    item, _, negatives = _items()
    history = SequenceFeature("hist_item", ITEMS, DIM, "mean", shared_with="item")
    return matching.YoutubeDNN([*_user(), history], item, negatives, TOWER)


def _sampling_bias() -> nn.Module:
    item = _sparse({"item": ITEMS, "category": CATEGORIES})
    weight = SparseFeature("weight", ROWS["c0"], 1)

    class Positive:
        """Starts the items' weights at one, for the model takes their logarithm."""

        def __call__(self, rows: int, dim: int, padding_idx: int | None = None) -> nn.Module:
            table = nn.Embedding(rows, dim)
            nn.init.ones_(table.weight)
            return table

    weight.initializer = Positive()
    return matching.YoutubeSBC(_user(), item, [weight], TOWER, TOWER, BATCH_SIZE)


def _interests(kind: Any, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        item, history, negatives = _items()
        return kind(_user(), history, item, negatives, **options)

    return build


def _dynamic() -> nn.Module:
    model = _interests(matching.ComirecDR, max_length=MAX_LENGTH)()
    nn.init.normal_(model.capsule.w, std=0.1)  # it never gets a value from the library
    return model


def _sine() -> nn.Module:
    names = (["hist_item"], ["item"], ["neg_items"])
    return matching.SINE(*names, ITEMS, DIM, 8, num_concept=10, num_intention=3, seq_max_len=MAX_LENGTH)


def _narm(**options: Any) -> Callable[[], nn.Module]:
    return lambda: matching.NARM(SequenceFeature("hist_item", ITEMS, DIM), 8, 0.0, 0.0, **options)


def _stamp() -> nn.Module:
    return matching.STAMP(SequenceFeature("hist_item", ITEMS, DIM), 0.05, 0.05)


def _sasrec() -> nn.Module:
    shared = {"shared_with": "seq", "pooling": "concat", "embed_dim": DIM}
    features = [SequenceFeature("seq", ITEMS, DIM, "concat")]
    features += [SequenceFeature(name, ITEMS, **shared) for name in ("pos", "neg")]
    return matching.SASRec(features, max_len=MAX_LENGTH, dropout_rate=0.0)


def _pairwise_sasrec() -> Recipe:
    """Its scores are [B, T], and the library's loss takes [B] alone."""

    def trainer(model: nn.Module, **settings: Any) -> Any:
        wrapped = MatchTrainer(model, mode=1, **settings)
        loss = wrapped.criterion
        wrapped.criterion = lambda positive, negative: loss(positive.flatten(), negative.flatten())
        return wrapped

    return _recipe(_sasrec, trainer, _first, remark="scores flattened for the library's own loss")


def _generative(build: Callable[[], nn.Module]) -> Recipe:
    def batches(dtype: torch.dtype) -> list[Any]:
        arguments = []
        for batch in columns():
            tokens = torch.from_numpy(batch.history[0])
            seconds = torch.arange(MAX_LENGTH).flip(0) * 97 + tokens % 50
            arguments.append(
                (tokens, torch.arange(MAX_LENGTH), seconds, torch.from_numpy(batch.item)[:, None])
            )
        return arguments

    return Recipe(
        lambda: no_dropout(build()),
        batches,
        _trained_by(SeqTrainer),
        lambda _, batch: (batch[0], batch[2]),
    )


def _hstu(**options: Any) -> Callable[[], nn.Module]:
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "dqk": 8, "dv": 8, "max_seq_len": MAX_LENGTH}
    return lambda: generative.HSTUModel(ITEMS, **sizes, dropout=0.0, **options)


def _hllm() -> nn.Module:
    items = torch.randn(ITEMS, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": MAX_LENGTH}
    return generative.HLLMModel(items, ITEMS, **sizes, dropout=0.0)


def _quantizer() -> Recipe:
    def build() -> nn.Module:
        return generative.RQVAEModel(
            12, num_emb_list=[16, 16], e_dim=8, layers=[16], sk_epsilons=[0.0, 0.0]
        )

    def batches(dtype: torch.dtype) -> list[Tensor]:
        random = np.random.default_rng(3)
        columns = (random.standard_normal((BATCH_SIZE, 12)).astype(np.float32) for _ in range(4))
        return [torch.from_numpy(column).to(dtype) for column in columns]

    def training(model: nn.Module, name: str) -> Training:
        options = {"lr": RATES[name], "weight_decay": 1e-5}
        trainer = QuantizerTrainer(
            model, optimizer_fn=CLASSES[name], optimizer_params=options, model_path=tempfile.gettempdir()
        )
        return Training(trainer.optimizer, lambda batch: trainer.train_one_epoch([batch]))

    return Recipe(build, batches, training, lambda _, batch: (batch,))


L2 = {"regularization_params": {"embedding_l2": 1e-5, "dense_l2": 1e-5}}
_EXPERTS = {"expert_params": {"dims": [8], "dropout": 0.0}, "task_types": ["classification"] * 2}
_ATTENTION = {"attention_mlp_params": {"dims": [8], "use_softmax": False}}
_RANDOM = {"remark": "draws random numbers in its forward", "draws": True}
RECIPES: dict[str, Recipe | str] = {
    "WideDeep": _rank(lambda: ranking.WideDeep(_dense(), _fields(), MLP)),
    "DeepFM": _rank(lambda: ranking.DeepFM(_fields(), _sparse(), MLP)),
    "DeepFM, L2 terms": _rank(lambda: ranking.DeepFM(_fields(), _sparse(), MLP), **L2),
    "DCN": _rank(lambda: ranking.DCN(_fields(), 2, MLP)),
    "DCNv2": _rank(lambda: ranking.DCNv2(_fields(), 2, MLP, low_rank=4, num_experts=2)),
    "EDCN": _rank(lambda: ranking.EDCN(_sparse(), 2, MLP)),
    "AFM": _rank(lambda: ranking.AFM(_sparse(), DIM, 8)),
    "FiBiNet": _rank(lambda: ranking.FiBiNet(_sparse(), MLP)),
    "DeepFFM": _rank(lambda: ranking.DeepFFM(*_cross(), DIM, MLP)),
    "FatDeepFFM": _rank(lambda: ranking.FatDeepFFM(*_cross(), DIM, 2, MLP)),
    "AutoInt": _rank(lambda: ranking.AutoInt(_sparse(), _dense(), 2, 2, 0.0, MLP)),
    "BST": _rank(_sequence(ranking.BST, mlp_params=MLP, nhead=2, dropout=0.0, max_seq_len=8)),
    "DIN": _rank(_sequence(ranking.DIN, mlp_params={"dims": [16, 8]}, **_ATTENTION)),
    "DIEN": _rank(_dien, loss_mode=False),
    "SharedBottom": _tasks(multi_task.SharedBottom, task_types=["classification"] * 2, bottom_params=MLP),
    "ESMM": _esmm(),
    "MMOE": _tasks(multi_task.MMOE, n_expert=2, **_EXPERTS),
    "MMOE, uncertainty weights": _tasks(multi_task.MMOE, adaptive="uwl", n_expert=2, **_EXPERTS),
    "PLE": _tasks(multi_task.PLE, n_level=2, n_expert_specific=1, n_expert_shared=1, **_EXPERTS),
    "AITM": _tasks(multi_task.AITM, n_task=2, bottom_params=MLP),
    "DSSM": _match(_two_towers(matching.DSSM), 0, _clicks),
    "DSSM, in-batch negatives": _match(
        _two_towers(matching.DSSM), 0, in_batch_neg=True, in_batch_neg_ratio=3, sampler_seed=5
    ),
    "DSSM, SENet": _match(_two_towers(SenetDSSM), 0, _clicks),
    "FaceBookDSSM": _match(_facebook, 1),
    "YoutubeDNN": _match(_youtube, 2),
    "YoutubeSBC": _match(_sampling_bias, 2),
    "MIND": _match(_interests(matching.MIND, max_length=MAX_LENGTH), 2, extra=_RANDOM),
    "GRU4Rec": _match(_interests(matching.GRU4Rec, user_params=TOWER), 2),
    "NARM": _match(_narm(), 2, _items_themselves),
    "SASRec": _pairwise_sasrec(),
    "SINE": _match(_sine, 2),
    "STAMP": _match(_stamp, 2, _items_themselves),
    "ComirecDR": _match(
        _dynamic, 2, extra={"remark": "starts from memory as it finds it; given normal weights"}
    ),
    "ComirecSA": _match(_interests(matching.ComirecSA), 2),
    "HSTUModel": _generative(_hstu()),
    "HSTUModel, not tied": _generative(_hstu(tie_embeddings=False)),
    "HLLMModel": _generative(_hllm),
    "RQVAEModel": _quantizer(),
    "TIGERModel": "needs `transformers`; it is a T5 of that library with a constructor",
}
