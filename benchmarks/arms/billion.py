"""Trains DLRM as `benchmarks.billion` says, in its own process, and notes every step and checkpoint."""

import json
import sys
import time
from pathlib import Path

import torch

import hotrows
from benchmarks.workload import DLRM_BOTTOM, DLRM_TOP, LEARNING_RATE
from hotrows.train.config import TrainConfig
from hotrows.train.loop.trainer import Trainer


def main() -> None:
    setting = json.loads(sys.argv[1])
    torch.set_num_threads(2)
    folder = Path(setting["folder"])
    cache = {}
    if "fast_memory" in setting:
        cache = {name: setting[name] for name in ("fast_memory", "lookahead_memory")}
        cache["store"] = f"file:{folder / 'store'}"
    config = TrainConfig(
        model="dlrm",
        model_options={"dim": 16, "bottom": list(DLRM_BOTTOM[:-1]), "top": list(DLRM_TOP[:-1])},
        row_optimizer=hotrows.RowWiseAdagrad(lr=LEARNING_RATE),
        table_dtype=setting["dtype"],
        batch_size=8192,
        steps=setting["steps"],
        epochs=None,
        evaluate_every=10**9,
        checkpoint_every=500,
        shuffle=False,
        **cache,
    )
    run = folder / "run"
    trainer = Trainer(setting["data"], config, run, resume=run.exists())
    with open(folder / setting["notes"], "a", buffering=1) as notes:
        _note_all(trainer, notes)
        trainer.fit(verbose=False)


def _note_all(trainer: Trainer, notes) -> None:
    train, save, tables = trainer.steps.train, trainer._save, trainer.cached_tables

    def noted_train(work, scale=1.0):
        loss = train(work, scale)
        note = {"kind": "step", "step": trainer.state.step, "loss": loss.item().hex()}
        if tables:
            traffic = tables.traffic(work.item.plan)
            note |= {"rows_in": traffic.rows_in, "bytes_out": traffic.bytes_out}
            note |= _of_store(tables.files[0]) if trainer.state.step % 20 == 1 else {}
        print(json.dumps(note | {"at": time.monotonic()}), file=notes)
        return loss

    def noted_save():
        begin = time.monotonic()
        save()
        print(json.dumps({"kind": "checkpoint", "seconds": time.monotonic() - begin}), file=notes)

    trainer.steps.train, trainer._save = noted_train, noted_save


def _of_store(store) -> dict:
    memory = Path("/proc/self/status").read_text().splitlines()
    anonymous = next(int(line.split()[1]) for line in memory if line.startswith("RssAnon"))
    pace = store._pace
    return {
        "anonymous_mb": anonymous / 1024,
        "store": store.counters | {"worked": pace.worked, "held_back": pace.held_back},
        "store_bytes": store.num_bytes,
        "logs": len(store._logs),
        "fullness": store._fullness(),
    }


if __name__ == "__main__":
    main()
