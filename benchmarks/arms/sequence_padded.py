"""Careful PyTorch: sparse gradients, row-sparse Adagrad and fused Adam; histories padded, sorted."""

from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.arms import arm, sequence_arm
from benchmarks.arms.padded_models import CAN, DIEN, DIN
from benchmarks.samples import Samples
from benchmarks.sequences import (
    ATTENTION,
    CAN_HIDDEN,
    CO_ACTION,
    DENSE_LEARNING_RATE,
    FEATURES,
    HIDDEN,
    ORDERS,
    ROW_LEARNING_RATE,
    batches_of,
)


class Batch(NamedTuple):
    """Sorted by length, the longest first."""

    ids: dict[str, Tensor]  # [B] by field
    items: Tensor  # [B + N]: the target's ids, then those of all histories
    places: Tensor  # [N]: where each of the histories' elements stands among [B * L]
    lengths: Tensor  # [B]
    dense: Tensor
    labels: Tensor


def main() -> None:
    args = sequence_arm.parse(first=("concat", "decomposed"))
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    arm.report(args, _step(args), "torch")


def _step(args: Namespace) -> Callable[[int], float]:
    data = [_sorted(samples) for samples in batches_of()]
    width = len(FEATURES.fields) * args.dim + FEATURES.num_dense
    tables = {name: _table(rows, args.dim) for name, rows in FEATURES.rows.items()}
    if args.model == "can":
        model: nn.Module = CAN(args.dim, width, CO_ACTION, ORDERS, CAN_HIDDEN)
        num_weights = sum(a * b for a, b in pairwise(CO_ACTION))
        tables["weights"] = _table(FEATURES.rows["item"], num_weights)
        tables["inputs"] = _table(FEATURES.rows["item"], CO_ACTION[0])
    else:
        kind = {"din": DIN, "dien": DIEN}[args.model]
        model = kind(args.dim, width, ATTENTION, HIDDEN, args.first)
    rows = torch.optim.Adagrad([table.weight for table in tables.values()], ROW_LEARNING_RATE)
    dense = torch.optim.Adam(model.parameters(), DENSE_LEARNING_RATE, fused=True)

    def step(k: int) -> float:
        batch = data[k % len(data)]
        target, past = _looked_up(tables["item"], batch)
        found = {"item": target, "user": None, "category": None}
        for name in ("user", "category"):
            found[name] = tables[name](batch.ids[name])
        others = torch.cat([*(found[name] for name in FEATURES.fields), batch.dense], 1)
        if args.model == "can":
            weights = tables["weights"](batch.ids["item"])
            of_history = tables["inputs"](batch.items[len(target) :])
            logits = model(others, past, batch.lengths, weights, _padded(of_history, batch))
        else:
            logits = model(others, target, past, batch.lengths)
        loss = binary_cross_entropy_with_logits(logits, batch.labels)
        loss.backward()
        for optimizer in (rows, dense):
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return step


def _looked_up(table: nn.Embedding, batch: Batch) -> tuple[Tensor, Tensor]:
    """The target's vectors [B, D] and the histories' [B, L, D], of one lookup."""
    target, past = table(batch.items).split([len(batch.lengths), len(batch.places)])
    return target, _padded(past, batch)


def _padded(past: Tensor, batch: Batch) -> Tensor:
    size, longest = len(batch.lengths), int(batch.lengths[0])
    padded = past.new_zeros(size * longest, past.shape[1]).index_copy(0, batch.places, past)
    return padded.view(size, longest, -1)


def _table(rows: int, dim: int) -> nn.Embedding:
    table = nn.Embedding(rows, dim, sparse=True)
    nn.init.uniform_(table.weight, -0.01, 0.01)
    return table


def _sorted(samples: Samples) -> Batch:
    lengths = np.diff(samples.offsets)
    order = np.argsort(-lengths, kind="stable")
    parts = [samples.history[samples.offsets[b] : samples.offsets[b + 1]] for b in order]
    lengths = lengths[order]
    mask = np.arange(lengths[0]) < lengths[:, None]
    ids = dict(zip(FEATURES.fields, torch.from_numpy(samples.ids[:, order]), strict=True))
    return Batch(
        ids,
        torch.cat([ids["item"], torch.from_numpy(np.concatenate(parts))]),
        torch.from_numpy(np.flatnonzero(mask)),
        torch.from_numpy(lengths),
        torch.from_numpy(samples.dense[order]),
        torch.from_numpy(samples.labels[order]),
    )


if __name__ == "__main__":
    main()
