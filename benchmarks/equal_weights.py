"""Equal weights in, equal outputs and gradients out? Models of this library next to the peers' own.

    python -m benchmarks.equal_weights [--only din]

Each pair has the same weights (`weights.py` says how theirs are written as ours), reads the same
random samples, and gives logits and, from a random gradient of these, gradients of every dense
parameter and every row. Gradients of ours are taken with respect to the peer's parameters, so what is
compared is like with like. Differences are relative to the largest value: of the logits, of all
gradients of dense parameters, of all gradients of rows.

In float64 our layers run on their reference in PyTorch, in float32 on the native core.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import weights
from benchmarks.harness import ROOT, conditions, write
from benchmarks.peers import python_of
from benchmarks.samples import Features, Samples, ends_of

DIM = 6
BATCH_SIZE = 37
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-5}

PLAIN = Features({"user": 50, "item": 40, "shop": 9}, num_dense=3)
NO_DENSE = Features({"user": 50, "item": 40, "shop": 9})
TWO_LABELS = Features(PLAIN.rows, 3, labels=("click", "buy"))
HISTORY = Features({"user": 50, "item": 40, "shop": 9}, 3, target="item", max_length=12)


@dataclass(frozen=True)
class Pair:
    """A model of ours and the peer's that should compute the same.

    shortest: of the histories; max_length for histories of one length. prepare: is called with the
    peer's model. remark: what was made equal, or is left out.
    """

    peer: str
    name: str
    ours: tuple[str, dict[str, Any]]
    theirs: tuple[str, dict[str, Any]]
    features: Features
    mapping: weights.Mapping
    shortest: int = 0
    remark: str = ""
    prepare: Callable[[nn.Module], None] = field(default=lambda model: None)


HIDDEN = (16, 8)
CROSSES = {"num_crosses": 2, "hidden": HIDDEN}
MIXTURE = {"num_crosses": 2, "hidden": HIDDEN, "rank": 4, "experts": 3}
MMOE = {"num_experts": 3, "expert_hidden": (16, 8), "gate_hidden": (5,), "tower_hidden": (7,)}
AS_DEEPCTR = {"dnn_hidden_units": HIDDEN}
DEEPCTR_MMOE = {
    "num_experts": 3,
    "expert_dnn_hidden_units": (16, 8),
    "gate_dnn_hidden_units": (5,),
    "tower_dnn_hidden_units": (7,),
}
DIN = {"form": "paper", "attention": (10, 5), "attention_activation": "sigmoid", "hidden": HIDDEN}
DIN |= {"activation": "relu"}
DIEN = {"hidden": HIDDEN, "activation": "relu", "auxiliary": 0.0}
MLP_DIEN = DIEN | {"attention": (10, 5)}
DEEPCTR_DIN = {**AS_DEEPCTR, "att_hidden_size": (10, 5), "att_activation": "sigmoid"}
DEEPCTR_DIEN = {**AS_DEEPCTR, "att_hidden_units": (10, 5), "att_activation": "sigmoid"}
FUXICTR_DIN = {"dnn_hidden_units": list(HIDDEN), "attention_hidden_units": [10, 5]}
FUXICTR_DIEN = {"dnn_hidden_units": list(HIDDEN), "batch_norm": False}
FUXICTR_MLP_DIEN = FUXICTR_DIEN | {
    "attention_type": "din_attention",
    "attention_hidden_units": [10, 5],
    "attention_activation": "sigmoid",
}
ONE_BIAS = "theirs has one bias where the linear and the deep part of ours have one each"
SEES_PADDING = "histories of one length: its Dice takes its mean and variance over padding too"
AVERAGES_PADDING = "no empty history: it has the mean of the padding's rows there, ours is 0"


def _plain_dice(model: nn.Module) -> None:
    """The Dice of the paper, whose batch normalisation has no scale and shift of its own."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.requires_grad_(False)
            norm.eps = 1e-9


PAIRS = [
    Pair("deepctr-torch", "LR", ("lr", {}), ("lr", {}), PLAIN, weights.deepctr_lr,
         remark="its WDL without a deep part"),
    Pair("deepctr-torch", "FM", ("fm", {}), ("fm", {}), PLAIN, weights.deepctr_lr,
         remark="its DeepFM without a deep part"),
    Pair("deepctr-torch", "DNN", ("dnn", {"hidden": HIDDEN}), ("dnn", AS_DEEPCTR), PLAIN,
         weights.deepctr_dnn, remark="its WDL without a wide part"),
    Pair("deepctr-torch", "WDL", ("wide_deep", {"hidden": HIDDEN}), ("wide_deep", AS_DEEPCTR), PLAIN,
         weights.deepctr_wide_deep, remark=ONE_BIAS),
    Pair("deepctr-torch", "DeepFM", ("deepfm", {"hidden": HIDDEN}), ("deepfm", AS_DEEPCTR), PLAIN,
         weights.deepctr_deepfm, remark=ONE_BIAS),
    Pair("deepctr-torch", "DCN", ("dcnv2", CROSSES), ("dcnv2", {**AS_DEEPCTR, "cross_num": 2}), PLAIN,
         weights.deepctr_dcn, remark="matrices; its further linear part is left out"),
    Pair("deepctr-torch", "DCNMix", ("dcnv2", MIXTURE),
         ("dcnv2_mixture", {**AS_DEEPCTR, "cross_num": 2, "low_rank": 4, "num_experts": 3}), PLAIN,
         weights.deepctr_dcn_mixture, remark="its further linear part is left out"),
    Pair("deepctr-torch", "MMOE", ("mmoe", MMOE), ("mmoe", DEEPCTR_MMOE), TWO_LABELS,
         weights.deepctr_mmoe, remark="its gates have no last bias, ours is 0"),
    Pair("deepctr-torch", "DIN", ("din", DIN), ("din", DEEPCTR_DIN), HISTORY, weights.deepctr_din),
    Pair("deepctr-torch", "DIN normalized", ("din", DIN | {"normalize": True}),
         ("din", DEEPCTR_DIN | {"att_weight_normalization": True}), HISTORY,
         weights.deepctr_din_normalized, shortest=1, remark=AVERAGES_PADDING),
    Pair("deepctr-torch", "DIN Dice", ("din", DIN | {"attention_activation": "dice"}),
         ("din", DEEPCTR_DIN | {"att_activation": "Dice"}), HISTORY, weights.deepctr_din,
         shortest=HISTORY.max_length, remark=SEES_PADDING + "; without its scale and shift",
         prepare=_plain_dice),
    Pair("deepctr-torch", "DIEN AIGRU", ("dien", MLP_DIEN | {"evolution": "aigru"}),
         ("dien", DEEPCTR_DIEN | {"gru_type": "AIGRU"}), HISTORY, weights.deepctr_dien),
    Pair("deepctr-torch", "DIEN AGRU", ("dien", MLP_DIEN | {"evolution": "agru"}),
         ("dien", DEEPCTR_DIEN | {"gru_type": "AGRU"}), HISTORY, weights.deepctr_dien),
    Pair("deepctr-torch", "DIEN AUGRU", ("dien", MLP_DIEN),
         ("dien", DEEPCTR_DIEN | {"gru_type": "AUGRU"}), HISTORY, weights.deepctr_dien,
         remark="its AUGRU has one bias where ours, as nn.GRU, has two"),
    Pair("fuxictr", "LR", ("lr", {}), ("lr", {}), NO_DENSE, weights.fuxictr_lr),
    Pair("fuxictr", "FM", ("fm", {}), ("fm", {}), NO_DENSE, weights.fuxictr_lr),
    Pair("fuxictr", "DNN", ("dnn", {"hidden": HIDDEN}), ("dnn", {"hidden": HIDDEN}), NO_DENSE,
         weights.fuxictr_dnn),
    Pair("fuxictr", "WideDeep", ("wide_deep", {"hidden": HIDDEN}), ("wide_deep", {"hidden": HIDDEN}),
         NO_DENSE, weights.fuxictr_dnn),
    Pair("fuxictr", "DeepFM", ("deepfm", {"hidden": HIDDEN}), ("deepfm", {"hidden": HIDDEN}),
         NO_DENSE, weights.fuxictr_dnn),
    Pair("fuxictr", "DCNv2", ("dcnv2", CROSSES), ("dcnv2", CROSSES), NO_DENSE, weights.fuxictr_dcn),
    Pair("fuxictr", "DCNv2 mixture", ("dcnv2", MIXTURE), ("dcnv2_mixture", MIXTURE), NO_DENSE,
         weights.fuxictr_dcn_mixture),
    Pair("fuxictr", "DIN", ("din", DIN),
         ("din", FUXICTR_DIN | {"attention_hidden_activations": "sigmoid"}), HISTORY,
         weights.fuxictr_din),
    Pair("fuxictr", "DIN normalized", ("din", DIN | {"normalize": True}),
         ("din", FUXICTR_DIN | {"attention_hidden_activations": "sigmoid", "din_use_softmax": True}),
         HISTORY, weights.fuxictr_din_normalized, shortest=1, remark=AVERAGES_PADDING),
    Pair("fuxictr", "DIN Dice",
         ("din", DIN | {"attention_activation": "dice", "activation": "dice"}),
         ("din", FUXICTR_DIN | {"attention_hidden_activations": "Dice", "dnn_activations": "Dice"}),
         HISTORY, weights.fuxictr_din, shortest=HISTORY.max_length, remark=SEES_PADDING),
    Pair("fuxictr", "DIEN AGRU", ("dien", DIEN | {"evolution": "agru"}),
         ("dien", FUXICTR_DIEN | {"gru_type": "AGRU"}), HISTORY, weights.fuxictr_dien,
         remark="bilinear attention"),
    Pair("fuxictr", "DIEN AUGRU", ("dien", DIEN), ("dien", FUXICTR_DIEN), HISTORY,
         weights.fuxictr_dien, remark="bilinear attention"),
    Pair("fuxictr", "DIEN AUGRU of DIN", ("dien", MLP_DIEN), ("dien", FUXICTR_MLP_DIEN), HISTORY,
         weights.fuxictr_dien, remark="DIN's attention"),
    Pair("padded-torch", "DIN", ("din", DIN | {"normalize": True}),
         ("din", {"attention": (10, 5), "hidden": HIDDEN}), HISTORY, weights.padded_din, shortest=1),
    Pair("padded-torch", "DIN decomposed", ("din", DIN | {"normalize": True}),
         ("din", {"attention": (10, 5), "hidden": HIDDEN, "first": "decomposed"}), HISTORY,
         weights.padded_din, shortest=1),
    Pair("padded-torch", "DIEN", ("dien", MLP_DIEN),
         ("dien", {"attention": (10, 5), "hidden": HIDDEN}), HISTORY, weights.padded_dien, shortest=1),
    Pair("padded-torch", "CAN", ("can", {"hidden": HIDDEN}),
         ("can", {"sizes": (16, 8, 4), "orders": 3, "hidden": HIDDEN}), HISTORY, weights.padded_can),
]  # fmt: skip

DIFFERS = {
    "both: DIN with softmax": "scores are not divided by sqrt(D), as by ours and its authors; what ours "
    "divides is made sqrt(D) times as large",
    "both: DIEN with DIN's attention": "the target is not projected, as by ours and its authors; ours "
    "projects it onto itself",
    "both: empty histories": "with softmax DIN has the mean of the padding's rows there, ours has 0",
    "both: Dice": "takes mean and variance over padding too; compared without padding",
    "deepctr-torch: Dice": "has a scale and shift, which Dice has not: 1 and 0; and fails in the MLP on "
    "top, for it takes [B, L, D] alone",
    "deepctr-torch: AUGRU": "registers one bias twice: what it adds to inputs and states is the same",
    "deepctr-torch: DIEN with GRU": "attention over the states of a second GRU; ours has no such form",
    "deepctr-torch: DCN and DCNMix": "add a linear part to the logit; left out, as in the paper and ours",
    "fuxictr: dense values": "each is multiplied with a vector of its own; compared without them, but "
    "in DIN and DIEN",
    "fuxictr: DIEN with AIGRU": "fails: multiplies states [B, L, D] with scores [B, L]",
    "fuxictr: MMoE": "not in the package",
}


class LookedUp:
    """The rows of tables as a model of ours asks for them."""

    def __init__(self, tables: dict[str, Tensor], features: Features, samples: Samples) -> None:
        self.tables, self.features = tables, features
        self.ids = dict(zip(features.fields, torch.from_numpy(samples.ids), strict=True))
        self.history = torch.from_numpy(samples.history)
        self.offsets = torch.from_numpy(samples.offsets)

    def __getitem__(self, key: str | tuple[str, str]) -> Tensor:
        feature, role = (key, "vector") if isinstance(key, str) else key
        return self._table(feature, role)[self.ids[feature]]

    def stack(self, role: str = "vector", features: Sequence[str] | None = None) -> Tensor:
        return torch.stack([self[name, role] for name in features or self.features.fields], 1)

    def sequence(self, feature: str, role: str = "vector") -> tuple[Tensor, Tensor]:
        assert self.features.target is not None
        return self._table(self.features.target, role)[self.history], self.offsets

    def _table(self, field: str, role: str) -> Tensor:
        return self.tables[field if role == "vector" else f"{field}.{role}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Equal weights in, equal outputs out?")
    parser.add_argument("--only", default="", help="pairs whose name has this; nothing is written")
    args = parser.parse_args()
    if find_spec("deepctr_torch") is None:
        command = [python_of("ctr"), "-W", "ignore", "-m", "benchmarks.equal_weights", *sys.argv[1:]]
        sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
    torch.set_num_threads(1)
    rows = []
    for pair in PAIRS:
        if args.only.lower() not in f"{pair.peer} {pair.name}".lower():
            continue
        for dtype in LIMITS:
            rows.append(compared(pair, dtype))
            print(line(rows[-1]), flush=True)
    for what, why in DIFFERS.items():
        print(f"differs: {what}: {why}")
    if not args.only:
        packages = ("torch", "deepctr-torch", "fuxictr")
        facts = {"versions": {package: version(package) for package in packages}}
        write("equal_weights", facts | conditions(1) | {"pairs": rows, "differs": DIFFERS})
    sys.exit(any(not row["equal"] for row in rows))


def compared(pair: Pair, dtype: torch.dtype) -> dict[str, Any]:
    """The differences of a pair, as a row of the table."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        differences = _differences(pair, dtype)
    finally:
        torch.set_default_dtype(torch.float32)
    return {
        "peer": pair.peer,
        "model": pair.name,
        "dtype": str(dtype).removeprefix("torch."),
        **differences,
        "equal": all(value <= LIMITS[dtype] for value in differences.values()),  # nan is not
        "remark": pair.remark,
    }


def line(row: dict[str, Any]) -> str:
    figures = " ".join(f"{name} {row[name]:8.1e}" for name in ("logits", "dense", "rows"))
    verdict = "equal" if row["equal"] else "DIFFERS"
    return (
        f"{row['peer']:14} {row['model']:22} {row['dtype']:8} {figures}  {verdict:7}  {row['remark']}"
    ).rstrip()


def _differences(pair: Pair, dtype: torch.dtype) -> dict[str, float]:
    library = _library(pair.peer)
    theirs = library.build(pair.theirs[0], pair.features, DIM, **pair.theirs[1])
    pair.prepare(theirs)
    _randomize(theirs)
    samples = _samples(pair)
    tables = library.tables(theirs)
    in_tables = {id(table) for table in tables.values()}
    dense = {name: p for name, p in theirs.named_parameters() if id(p) not in in_tables}
    peer_logits = _run_theirs(pair, library, theirs, samples, dtype)
    expected = _run_ours(pair, dense, tables, samples, dtype)
    upstream = torch.randint(-8, 9, peer_logits.shape).to(dtype) / 8  # exact in either precision
    result = {"logits": _difference([expected], [peer_logits])}
    for kind, parameters in (("dense", dense), ("rows", tables)):
        leaves = list({id(leaf): leaf for leaf in parameters.values() if leaf.requires_grad}.values())
        ours, peers = (_gradients(out, leaves, upstream) for out in (expected, peer_logits))
        result[kind] = _difference(ours, peers)
    return result


def _library(peer: str) -> Any:
    from benchmarks.arms import deepctr_models, fuxictr_models, padded_models

    return {"deepctr-torch": deepctr_models, "fuxictr": fuxictr_models, "padded-torch": padded_models}[
        peer
    ]


def _randomize(model: nn.Module) -> None:
    """Draws every parameter anew, so that none is 0 or 1 by chance of where it begins."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.4)


def _samples(pair: Pair) -> Samples:
    rng, features = np.random.default_rng(0), pair.features
    ids = np.stack([rng.integers(0, rows, BATCH_SIZE) for rows in features.rows.values()])
    dense = rng.standard_normal((BATCH_SIZE, features.num_dense)).astype(np.float32)
    labels = np.zeros(BATCH_SIZE, np.float32)
    lengths = np.zeros(BATCH_SIZE, np.int64)
    if features.target is not None:
        lengths = rng.integers(pair.shortest, features.max_length + 1, BATCH_SIZE)
        lengths[:2] = pair.shortest, features.max_length
    rows = features.rows[features.target] if features.target else 1
    history = rng.integers(min(1, rows - 1), rows, lengths.sum())
    return Samples(ids, dense, labels, history, ends_of(lengths))


def _run_theirs(
    pair: Pair, library: Any, model: nn.Module, samples: Samples, dtype: torch.dtype
) -> Tensor:
    as_dtype = {"dtype": dtype} if pair.peer == "deepctr-torch" else {}
    return library.logits(model, library.inputs(pair.features, samples, **as_dtype))


def _run_ours(
    pair: Pair, dense: dict[str, Tensor], tables: dict[str, Tensor], samples: Samples, dtype: torch.dtype
) -> Tensor:
    from benchmarks.arms import hotrows_models

    name, options = pair.ours
    model = hotrows_models.build(name, pair.features, DIM, **options)
    mapped = pair.mapping(dense, pair.features, DIM)
    parameters = dict(model.named_parameters())
    assert set(mapped) == set(parameters), set(mapped) ^ set(parameters)
    looked_up = LookedUp(tables, pair.features, samples)
    values = torch.from_numpy(samples.dense).to(dtype)
    with _no_rounding(dtype):
        output = torch.func.functional_call(model, mapped, (looked_up, values))
    return output[0] if isinstance(output, tuple) else output


@contextlib.contextmanager
def _no_rounding(dtype: torch.dtype) -> Iterator[None]:
    """Our models end in float32, whatever they compute in: here float64 stays what it is."""
    kept = torch.Tensor.float
    if dtype == torch.float64:
        torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.Tensor.float = kept


def _gradients(output: Tensor, leaves: list[Tensor], upstream: Tensor) -> list[Tensor]:
    if not leaves:
        return []
    gradients = torch.autograd.grad(output, leaves, upstream, retain_graph=True, allow_unused=True)
    pairs = zip(gradients, leaves, strict=True)
    return [torch.zeros_like(leaf) if grad is None else grad.to_dense() for grad, leaf in pairs]


def _difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference, relative to the largest value."""
    if not theirs:
        return 0.0
    largest = max(tensor.abs().max().item() for tensor in theirs)
    between = zip(ours, theirs, strict=True)
    return max((a - b).abs().max().item() for a, b in between) / max(largest, 1e-30)


if __name__ == "__main__":
    main()
