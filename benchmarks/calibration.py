"""What does the factor of calibration change in the log loss of the test part?

    python -m benchmarks.calibration --raw FOLDER_OF_RAW_FILES

Each run is trained once, by its defaults or as `ARMS` says, and evaluated with its factor and without.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import defaults_data
from benchmarks.harness import conditions, write
from hotrows.config import TrainConfig
from hotrows.train import Trainer

NAME, QUESTION = "calibration", __doc__.splitlines()[0]
ARMS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "rows by Adam, rate 0.01": {"row_optimizer": {"kind": "adam", "lr": 0.01}, "epochs": 10},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--sets", nargs="+", default=["criteo", "avazu", "tiny", "dense", "adult"])
    parser.add_argument("--models", nargs="+", default=["deepfm", "dcnv2"])
    parser.add_argument("--raw", type=Path, default=defaults_data.RAW, help="folder of raw files")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for name in args.sets:
        for model in args.models:
            for arm, settings in ARMS.items():
                figures = _figures(name, args.raw, {"model": model, "plan_depth": 0, **settings})
                runs.append({"data": name, "model": model, "arm": arm, **figures})
                print(runs[-1], flush=True)
    write(NAME, {**conditions(1), "runs": runs})


def _figures(name: str, raw: Path, settings: dict[str, Any]) -> dict[str, float]:
    """The factor, and AUC and log loss of the test part with and without it."""
    data = defaults_data.load(name, 0, raw)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(data, TrainConfig.from_fields(settings), Path(folder) / "run")
        result, losses = trainer.fit(), trainer.recommender.losses
        with trainer.recommender.as_trained():
            as_trained = trainer.evaluate("test")
    assert result.test is not None and result.test.auc == as_trained.auc
    return {
        "scale": losses[0].scale,
        "auc": as_trained.auc,
        "log_loss_as_trained": as_trained.log_loss,
        "log_loss": result.test.log_loss,
    }


if __name__ == "__main__":
    main()
