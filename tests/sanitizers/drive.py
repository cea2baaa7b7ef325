"""What the tests run under a sanitizer, in a new folder: python -m tests.sanitizers.drive FOLDER [train].

Prepares data, and with `train` trains a model on it behind a cache over a file store.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from hotrows.data import EncodedData, prepare
from hotrows.runtime import native
from hotrows.train import Trainer, load_run
from tests.support.runs import CONFIG, schema, write_rows


def main(folder: Path, with_training: bool) -> None:
    torch.set_num_threads(3)
    raw = write_rows(folder / "raw.csv", 600)
    assert "sanitized" in native.load()._name, "another core was loaded"
    data = prepare([raw], schema(many=True), folder / "enc", split="stratified:0.6,0.2,0.2", threads=3)
    data.check()
    empty = folder / "empty.csv"  # columns without a value: nothing is counted
    empty.write_text("label,n,a,b\n" + "0,1,,\n1,2,,\n" * 9)
    prepare([empty], schema(), folder / "empty", split="position:0.6,0.2,0.2", threads=3)
    if with_training:
        small = replace(
            CONFIG, epochs=1, fast_memory=40 * 40, in_flight=2, store=f"file:{folder / 'rows'}"
        )
        Trainer(EncodedData.open(folder / "enc"), small, folder / "run").fit()
        load_run(folder / "run").evaluate(data.parts["test"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), "train" in sys.argv[2:])
