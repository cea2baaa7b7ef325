"""The models whose accuracy is compared: the same sizes in every library that has them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from benchmarks.samples import Features, Samples

DIM = 16
ROW_LEARNING_RATE = 0.02
HIDDEN = (128, 64)
ATTENTION = (64, 32)
EXPERTS = (64, 32)
TOWER = (32,)

Options = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """ours, theirs: a model's name there, and its options. history: whether it reads one."""

    ours: tuple[str, Options]
    theirs: dict[str, tuple[str, Options]]
    batch_size: int = 256
    history: bool = False
    labels: int = 1
    remark: str = ""

    def seen(self, features: Features, *parts: Samples) -> tuple[Any, ...]:
        """The features and samples without what the model does not read."""
        features = replace(features, labels=features.labels[: self.labels])
        if not self.history:
            features = replace(features, target=None, max_length=0)
        return features, *(self._labelled(part) for part in parts)

    def _labelled(self, part: Samples) -> Samples:
        if part.labels.ndim == 1 or self.labels == part.labels.shape[1]:
            return part
        return part._replace(labels=part.labels[:, 0].copy())


_DEEPCTR = {"dnn_hidden_units": HIDDEN}
_OURS = {"hidden": HIDDEN, "activation": "relu"}
_UNIT = {"form": "paper", "attention": ATTENTION, "attention_activation": "sigmoid", "normalize": False}
_FUXICTR = {"dnn_hidden_units": list(HIDDEN)}


def _both(ours: Options, deepctr: Options, fuxictr: Options, name: str) -> Recipe:
    theirs = {"deepctr-torch": (name, deepctr), "fuxictr": (name, fuxictr)}
    return Recipe((name, ours), theirs)


def _sequence(ours: tuple[str, Options], remark: str = "", **theirs: Options) -> Recipe:
    named = {library.replace("_", "-"): (ours[0], options) for library, options in theirs.items()}
    return Recipe(ours, named, batch_size=512, history=True, remark=remark)


RECIPES = {
    "lr": _both({}, {}, {}, "lr"),
    "dnn": _both({"hidden": HIDDEN}, _DEEPCTR, {"hidden": HIDDEN}, "dnn"),
    "wide_deep": _both({"hidden": HIDDEN}, _DEEPCTR, {"hidden": HIDDEN}, "wide_deep"),
    "deepfm": _both({"hidden": HIDDEN}, _DEEPCTR, {"hidden": HIDDEN}, "deepfm"),
    "dcnv2": _both(
        {"hidden": HIDDEN, "num_crosses": 2},
        {**_DEEPCTR, "cross_num": 2},
        {"hidden": HIDDEN, "num_crosses": 2},
        "dcnv2",
    ),
    "din": _sequence(
        ("din", _OURS | _UNIT),
        deepctr_torch={**_DEEPCTR, "att_hidden_size": ATTENTION, "att_activation": "sigmoid"},
        fuxictr={
            **_FUXICTR,
            "attention_hidden_units": list(ATTENTION),
            "attention_hidden_activations": "sigmoid",
        },
    ),
    "dien": _sequence(
        ("dien", _OURS | {"auxiliary": 0.0}),
        "bilinear attention",
        fuxictr={**_FUXICTR, "batch_norm": False},
    ),
    "dien_of_din": _sequence(
        ("dien", _OURS | {"auxiliary": 0.0, "attention": ATTENTION}),
        "DIN's attention; ours projects the target before",
        deepctr_torch={
            **_DEEPCTR,
            "att_hidden_units": ATTENTION,
            "att_activation": "sigmoid",
            "gru_type": "AUGRU",
        },
    ),
    "mmoe": Recipe(
        ("mmoe", {"num_experts": 3, "expert_hidden": EXPERTS, "gate_hidden": (), "tower_hidden": TOWER}),
        {
            "deepctr-torch": (
                "mmoe",
                {
                    "num_experts": 3,
                    "expert_dnn_hidden_units": EXPERTS,
                    "gate_dnn_hidden_units": (),
                    "tower_dnn_hidden_units": TOWER,
                },
            )
        },
        labels=2,
    ),
}
# Few rows test noisily: more seeds tell more.
SEEDS_OF = {"criteo": 20, "avazu": 10, "adult": 5, "movielens": 3, "clicks": 5}
EPOCHS_OF = {"criteo": 2, "avazu": 2, "adult": 2, "movielens": 1, "clicks": 2}
CLASSICS = ("lr", "dnn", "wide_deep", "deepfm", "dcnv2")
SEQUENCES = ("din", "dien", "dien_of_din")
MODELS_OF = {
    "criteo": CLASSICS,
    "avazu": CLASSICS,
    "adult": CLASSICS,
    "movielens": SEQUENCES,
    "clicks": (*SEQUENCES, "mmoe"),
}
