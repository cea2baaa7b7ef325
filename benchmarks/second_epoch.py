"""Do further epochs gain where vectors decay by how long they were not read (AdamAR's rule)?

    python -m benchmarks.second_epoch --raw FOLDER_OF_RAW_FILES [--sets criteo ...] [--models deepfm ...]

AdamAR (ICLR 2026, arXiv 2511.06374) multiplies a row that is read by max(0.1, 1 - min(1, lr a I)), where
I is the number of steps since it was last read. The rule is applied here in front of the row update of
vectors, in place of the decay by count that is the default (`train.defaults`):

    default    decay by count        none    no decay        adamar-A    the rule, with a = A

Every other setting is left open, on one thread. Runs that are in the result file are not made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks import defaults_data
from benchmarks.harness import add, conditions, measured
from hotrows.config import TrainConfig
from hotrows.engine.packed_tables import PackedTables
from hotrows.train import Trainer, defaults

NAME, QUESTION = "second_epoch", __doc__.splitlines()[0]
ARMS = ("default", "none", "adamar-0.1", "adamar-1")
EPOCHS = (1, 3)  # at most: training ends where validation gets worse, and the best is kept
FLOOR = 0.1
SETS = ("criteo", "avazu", "movielens", "ids", "tiny")


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--models", nargs="+", default=("deepfm", "dcnv2", "din"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--raw", type=Path, default=defaults_data.RAW, help="folder of raw files")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(args.seeds):
        for name in args.sets:
            for model in (m for m in args.models if m != "din" or name == "movielens"):
                for arm in ARMS:
                    for epochs in EPOCHS:
                        measure([name, model, arm, str(epochs), str(seed)], args.raw)


def measure(keys: list[str], raw: Path) -> None:
    if measured(NAME, keys):
        return
    name, model, arm, epochs, seed = keys
    data = defaults_data.load(name, int(seed), raw)
    config = TrainConfig(model=model, epochs=int(epochs), seed=int(seed), plan_depth=0)
    with tempfile.TemporaryDirectory() as folder, _decaying(arm):
        result = Trainer(data, config, Path(folder) / "run").fit()
    assert result.test is not None
    value = {"auc": result.test.auc, "log_loss": result.test.log_loss}
    add(NAME, keys, value, {"question": QUESTION, **conditions(1)})
    print(*keys, value, flush=True)


@contextmanager
def _decaying(arm: str) -> Iterator[None]:
    """Vectors decay as an arm says."""
    kind, _, alpha = arm.partition("-")
    if kind == "default":
        yield
        return
    usual = defaults._vectors

    def undecayed(*args):
        return dataclasses.replace(usual(*args), weight_decay=0.0, decay_by_count=False)

    with patch.object(defaults, "_vectors", undecayed):
        if kind == "none":
            yield
        else:
            with patch.object(PackedTables, "_update", _Rule(float(alpha)).update):
                yield


class _Rule:
    """AdamAR's rule in front of `PackedTables._update`: rows of vectors shrink by their time unread."""

    def __init__(self, alpha: float) -> None:
        self._alpha, self._usual = alpha, PackedTables._update
        self._last: dict[int, torch.Tensor] = {}  # the update that last had each row, by pack
        self._updates: dict[int, int] = {}

    @property
    def update(self):
        def update(tables: PackedTables, gradients, p, records, part, slots, places) -> None:
            if gradients.leaves[p] is not None and tables.packs[p].dim > 1:
                self._shrink(p, records, slots, tables.packs[p])
            self._usual(tables, gradients, p, records, part, slots, places)

        return update

    def _shrink(self, p: int, records: torch.Tensor, slots: torch.Tensor, pack) -> None:
        now = self._updates[p] = self._updates.get(p, 0) + 1
        last = self._last.setdefault(p, torch.zeros(len(records), dtype=torch.int64))
        unread = torch.where(last[slots] > 0, now - last[slots], 0)
        last[slots] = now
        share = 1 - (pack.tables[0].optimizer.lr * self._alpha * unread).clamp(max=1)
        records.view(torch.float32)[slots, : pack.dim] *= share.clamp(min=FLOOR)[:, None]


if __name__ == "__main__":
    main()
