"""Under DistributedDataParallel, tables are averaged over the ranks as the dense part is."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch import nn
import hotrows
from tests.support.accelerated import Model, ROWS, FIELDS

dist.init_process_group("gloo")
rank = dist.get_rank()

def run(accelerated):
    torch.manual_seed(rank)  # all begin with the weights of the first
    model = Model().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    if accelerated:
        hotrows.accelerate(model, optimizer, packing={packing})
    parallel = nn.parallel.DistributedDataParallel(model)
    draw = torch.Generator().manual_seed(rank)
    for step in range(6):
        optimizer.zero_grad()
        first, second = (torch.randint(0, ROWS, (8, FIELDS), generator=draw) for _ in range(2))
        with parallel.no_sync():
            parallel(first).square().mean().backward()
        (parallel(second).square().mean() + model.l2()).backward()
        optimizer.step()
    if accelerated:  # not densely
        assert type(model.shared.weight.grad).__name__ == "RowGradient", model.shared.weight.grad
    return model.state_dict()

plain, fast = run(False), run(True)
assert plain.keys() == fast.keys()
for name in plain:
    torch.testing.assert_close(fast[name], plain[name], rtol=1e-7, atol=1e-8, msg=name)
print("equal on rank", rank)
dist.destroy_process_group()
"""


KEPT = """
import torch, torch.distributed as dist
from torch import nn
import hotrows
from tests.acceleration.keeping import ADAM, LEAST, assert_near, batches, build, quietly, state_of

dist.init_process_group("gloo")
ends = []
for options in ({}, {"fast_memory": 40 * LEAST}):
    model, optimizer = build(ADAM, **options)
    parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    for ids in quietly(hotrows.lookahead(batches(seed=dist.get_rank()), parallel)):
        optimizer.zero_grad()
        parallel(ids).square().mean().backward()
        optimizer.step()
    ends.append(state_of(model, optimizer))
assert_near(*ends)
print("equal on rank", dist.get_rank())
dist.destroy_process_group()
"""


ON_DEVICES = """
import torch, torch.distributed as dist
from torch import nn
import hotrows
from tests.support import pretend, pretend_tables
from tests.support.accelerated import FIELDS, ROWS, Model

dist.init_process_group("gloo")
rank = dist.get_rank()

def run(accelerates, place):
    torch.manual_seed(rank)  # all begin with the weights of the first
    model = Model().double().to(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    if accelerates:
        hotrows.accelerate(model, optimizer, packing=False)
    parallel = nn.parallel.DistributedDataParallel(model)
    draw = torch.Generator().manual_seed(rank)
    for step in range(6):
        optimizer.zero_grad()
        x = torch.randint(0, ROWS, (8, FIELDS), generator=draw).to(place)
        parallel(x).square().mean().backward()
        optimizer.step()
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}

plain = run(False, "cpu")
with pretend_tables.gpu():
    fast = run(True, pretend.CUDA)
assert plain.keys() == fast.keys()
for name in plain:
    torch.testing.assert_close(fast[name], plain[name], rtol=1e-7, atol=1e-8, msg=name)
print("equal on rank", rank)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_with_a_device_each_train_as_plain_pytorch_on_processors(tmp_path):
    """Pretended ones; the ranks' group has Gloo alone, so row gradients go through the host."""
    run_on_two_ranks(tmp_path, ON_DEVICES)


@pytest.mark.slow
def test_kept_tables_on_two_ranks_train_as_those_in_memory(tmp_path):
    run_on_two_ranks(tmp_path, KEPT)


@pytest.mark.parametrize("packing", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_two_ranks_train_as_plain_pytorch_does(tmp_path, packing):
    run_on_two_ranks(tmp_path, SCRIPT.replace("{packing}", str(packing)))


def run_on_two_ranks(tmp_path, text):
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(script)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("equal on rank") == 2
