"""Small runs of the trainer: rows, schema and configuration; interruption; how two runs are compared."""

import json
import os
import signal

import torch
from safetensors.torch import load

from hotrows.data import prepare
from hotrows.engine import checkpoint
from hotrows.optim import Adagrad
from hotrows.schema import Dense, Schema, Sparse
from hotrows.train import Callback, load_run
from hotrows.train.config import TrainConfig

SMALL = {"dim": 4, "hidden": [16], "dropout": 0.1}
CONFIG = TrainConfig(
    model="deepfm",
    model_options=SMALL,
    epochs=2,
    batch_size=64,
    row_optimizer=Adagrad(lr=0.1),
    seed=3,
    checkpoint_every=5,
    linear_paths="plain",  # measured ones may differ from run to run
)


class Killed(Exception):
    pass


class Kill(Callback):
    """Ends a run after a step as a kill would, without a checkpoint of its own."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer, progress):
        if trainer.state.step == self.step:
            raise Killed


def write_rows(path, rows=1500, seed=0, clicks=True):
    """Rows whose click depends on both ids and on the number."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 30, (rows, 2), generator=generator)
    number = torch.randn(rows, generator=generator).mul(10).int()
    chance = (ids[:, 0] * 0.15 - ids[:, 1] * 0.1 + number * 0.02 - 1).float().sigmoid()
    labels = (torch.rand(rows, generator=generator) < chance).int() * clicks
    lines = ["label,n,a,b"]
    lines += [f"{y},{n},v{i},w{j}" for y, n, (i, j) in zip(labels, number, ids, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def schema(**options):
    features = (Dense("n", transform="standard"), Sparse("a", **options), Sparse("b"))
    return Schema(features, delimiter=",", name="tiny")


def encode(folder):
    """Writes such rows into a folder, and prepares them."""
    raw = write_rows(folder / "raw.csv")
    return prepare([raw], schema(), folder / "enc", split="position:0.6,0.2,0.2")


def same_bits(a, b, which="last", random_state=True):
    """Whether two runs' checkpoints hold the same rows, parameters and trainer state.

    random_state: also that of the generator. Ranks that are threads draw from one at the same time.
    """
    a, b = (_contents(checkpoint.folder_of(run, which), random_state) for run in (a, b))
    return a == b


def _contents(folder, random_state):
    """Bytes by name of file; without the random state, bytes of the trainer's other tensors by name."""
    contents = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    if not random_state:
        trainer = load(contents.pop("trainer.safetensors"))
        del trainer["random_state"]
        contents |= {name: tensor.numpy().tobytes() for name, tensor in trainer.items()}
        manifest = json.loads(contents.pop("manifest.json"))
        del manifest["files"]["trainer.safetensors"], manifest["crc32"]
        contents["manifest.json"] = manifest
    return contents


def interrupt_after(calls):
    """Progress that sends Ctrl-C to this process after so many calls."""
    left = [calls]

    def progress(now):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)

    return progress


def weights_of(run, which="last"):
    predictor = load_run(run, which)
    weights = [predictor.embedding.weights(t.name).clone() for t in predictor.embedding.tables]
    predictor.embedding.close()
    return weights + list(predictor.model.state_dict().values())


def assert_same_run(run, result, uninterrupted):
    expected_run, expected = uninterrupted
    assert (result.test, result.validation) == (expected.test, expected.validation)
    for which in ("best", "last"):
        pairs = zip(weights_of(run, which), weights_of(expected_run, which), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
