"""The dense optimizer is that of PyTorch, and its first step does not import the compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hotrows
from hotrows.train.config import DENSE_OPTIMIZERS, TrainConfig
from hotrows.train.loop.step import dense_optimizer, load_optimizer, optimizer_tensors


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("name", DENSE_OPTIMIZERS)
def test_steps_and_state_are_those_of_torch_optim(name, decay):
    ours, theirs, resumed = (torch.nn.Linear(3, 2) for _ in range(3))
    theirs.load_state_dict(ours.state_dict())
    kind = {"adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}[name]
    config = TrainConfig(dense_optimizer=name, dense_lr=0.1, dense_weight_decay=decay)
    expected = kind(theirs.parameters(), lr=0.1, fused=True, weight_decay=decay)
    optimizers = [dense_optimizer(config, ours), expected]
    assert isinstance(optimizers[0], kind)

    def steps(pairs):
        for step in range(3):
            for model, optimizer in pairs:
                model(torch.full((4, 3), step + 1.0)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    steps(list(zip((ours, theirs), optimizers, strict=True)))
    resumed.load_state_dict(ours.state_dict())
    optimizers.append(dense_optimizer(config, resumed))
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizers[0]).items()}
    load_optimizer(optimizers[2], saved)
    steps(list(zip((ours, theirs, resumed), optimizers, strict=True)))
    for model, optimizer in ((ours, optimizers[0]), (resumed, optimizers[2])):
        assert all(map(torch.equal, model.parameters(), theirs.parameters()))
        torch.testing.assert_close(optimizer.state_dict(), optimizers[1].state_dict(), rtol=0, atol=0)
        assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_training_imports_no_compiler(tmp_path):
    """`torch._dynamo` takes three seconds, and sympy, which checks given gradients, more than one."""
    code = """
import sys, hotrows
frame = {"user": [1, 2, 3, 4] * 50, "label": [0, 1, 1, 0] * 50}
data = hotrows.prepare(frame, hotrows.Schema((hotrows.Sparse("user"),)), "enc")
hotrows.Trainer(data, hotrows.TrainConfig(model="dnn", steps=3, batch_size=16), "run").fit(verbose=False)
print(*(name in sys.modules for name in ("torch", "torch._dynamo", "sympy")))
"""
    source = Path(hotrows.__path__[0]).resolve().parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "False", "False"]
