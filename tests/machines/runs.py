"""Runs of several ranks, as threads, at a path or at a URL, with disks of their own."""

import dataclasses
from pathlib import Path

from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.train import Trainer
from tests.support.runs import CONFIG, Kill, Killed

# Threads share PyTorch's random state: no dropout.
CONFIG = dataclasses.replace(
    CONFIG,
    model_options={"dim": 4, "hidden": [16]},
    full_every=3,
    keep_last=2,
    sharding="rows",
    batch_size=128,
    epochs=1,
)


def fit(data, run, num_ranks, scratch="disks", kill=None, **changes):
    """Trains as so many ranks; kill: after this step they end as if they were killed."""
    config = dataclasses.replace(CONFIG, **changes)
    if "://" in str(run):
        config = dataclasses.replace(config, scratch=str(scratch))

    def work(ranks):
        trainer = Trainer(data, config, run, ranks=ranks, resume=changes.get("steps") == 0 or _begun(run))
        try:
            return trainer.fit(callbacks=[Kill(kill)] if kill else ())
        except Killed:
            return None

    return on_threads(work, num_ranks)


def _begun(run):
    return Path(str(run).removeprefix("file://"), "config.json").exists()


def content(run):
    """The files of the checkpoints of a run, and its pointer; without the random state, which threads
    share, and its checksum."""
    files = [*Path(run, "checkpoints").rglob("*"), Path(run, "checkpoints.json")]
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in files
        if file.is_file() and file.name not in ("trainer.safetensors", "manifest.json")
    }
