"""Under DistributedDataParallel, tables are averaged over the ranks as the dense part is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hotrows

ROOT = Path(__file__).parents[2]
PACKAGES = Path(hotrows.__file__).parents[1]  # where the package with its native core lies

BEGIN = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
import hotrows, hotrows.acceleration

other = os.fork()  # once all is imported, and before anything starts a thread
rank = int(not other)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
"""


END = """
print("equal on rank", rank, flush=True)
dist.destroy_process_group()
assert not other or os.waitpid(other, 0)[1] == 0
"""


SCRIPT = """
from tests.support.accelerated import Model, ROWS, FIELDS

def run(accelerated):
    torch.manual_seed(rank)  # all begin with the weights of the first
    model = Model().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    if accelerated:
        hotrows.accelerate(model, optimizer, packing={packing}, always=True)
    parallel = nn.parallel.DistributedDataParallel(model)
    draw = torch.Generator().manual_seed(rank)
    for step in range(6):
        optimizer.zero_grad()
        first, second = (torch.randint(0, ROWS, (8, FIELDS), generator=draw) for _ in range(2))
        with parallel.no_sync():
            parallel(first).square().mean().backward()
        (parallel(second).square().mean() + model.l2()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)  # the norm of the means, equal on all ranks
        optimizer.step()
    if accelerated:  # not densely
        assert type(model.shared.weight.grad).__name__ == "RowGradient", model.shared.weight.grad
    return model.state_dict()

plain, fast = run(False), run(True)
assert plain.keys() == fast.keys()
for name in plain:
    torch.testing.assert_close(fast[name], plain[name], rtol=1e-7, atol=1e-8, msg=name)
"""


KEPT = """
from tests.acceleration.keeping import ADAM, LEAST, assert_near, batches, build, quietly, state_of

ends = []
for options in ({}, {"fast_memory": 40 * LEAST}):
    model, optimizer = build(ADAM, **options)
    parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    for ids in quietly(hotrows.lookahead(batches(seed=rank), parallel)):
        optimizer.zero_grad()
        parallel(ids).square().mean().backward()
        optimizer.step()
    ends.append(state_of(model, optimizer))
assert_near(*ends)
"""


UNEVEN = """
from tests.support.accelerated import Model, ROWS, FIELDS

model = Model()
hotrows.accelerate(model, torch.optim.Adam(model.parameters(), lr=0.01), packing=False, always=True)
parallel = nn.parallel.DistributedDataParallel(model)

def train(**options):
    with parallel.join(**options):
        for step in range(2 + rank):
            parallel(torch.randint(0, ROWS, (8, FIELDS))).square().mean().backward()

refused = {"give every rank as many batches": {}, "exhausted": {"throw_on_early_termination": True}}
for words, options in refused.items():
    try:
        train(**options)
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError("not refused")
"""


ON_DEVICES = """
from tests.support import pretend, pretend_tables
from tests.support.accelerated import FIELDS, ROWS, Model

def run(accelerates, place, narrow):
    torch.manual_seed(rank)  # all begin with the weights of the first
    kind = torch.device(place).type
    model = Model().to(place, torch.float32 if narrow else torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    if accelerates:
        hotrows.accelerate(model, optimizer, packing=False, always=True)
    parallel = nn.parallel.DistributedDataParallel(model)
    scaler = torch.amp.GradScaler(kind, init_scale=64.0, enabled=narrow)
    draw = torch.Generator().manual_seed(rank)
    for step in range(6):
        optimizer.zero_grad()
        x = torch.randint(0, ROWS, (8, FIELDS), generator=draw).to(place)
        with torch.autocast(kind, torch.bfloat16, enabled=narrow):
            loss = parallel(x).square().mean()
            assert model.mlp(torch.zeros(1, 24, dtype=loss.dtype).to(place)).dtype == (
                torch.bfloat16 if narrow else torch.float64
            )
        if narrow and (step, rank) == (3, 1):  # gradients of rows of one rank: no rank makes this step
            loss = loss + float("inf") * model.shared(x[:, 0]).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    return state | {"scale": torch.tensor(scaler.get_scale())}

for narrow, tolerance in ((False, 1e-8), (True, 2e-3)):
    plain = run(False, "cpu", narrow)
    with pretend_tables.gpu():
        fast = run(True, pretend.CUDA, narrow)
    assert plain.keys() == fast.keys()
    for name in plain:
        torch.testing.assert_close(fast[name], plain[name], rtol=10 * tolerance, atol=tolerance, msg=name)
assert plain["scale"] == 32, plain["scale"]
"""


@pytest.mark.slow
def test_two_ranks_with_a_device_each_train_as_plain_pytorch_on_processors(tmp_path):
    """In float64, and under autocast with `GradScaler`. The devices are pretended ones; the ranks' group
    has Gloo alone, so row gradients go through the host."""
    run_on_two_ranks(tmp_path, ON_DEVICES)


@pytest.mark.slow
def test_kept_tables_on_two_ranks_train_as_those_in_memory(tmp_path):
    run_on_two_ranks(tmp_path, KEPT)


@pytest.mark.parametrize("packing", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_two_ranks_train_as_plain_pytorch_does(tmp_path, packing):
    run_on_two_ranks(tmp_path, SCRIPT.replace("{packing}", str(packing)))


def test_ranks_with_unequal_numbers_of_batches_are_refused(tmp_path):
    """A rank that has joined takes part in the sums of dense gradients alone, and tables would hang."""
    run_on_two_ranks(tmp_path, UNEVEN)


def run_on_two_ranks(tmp_path, text):
    """Runs the text in two processes, of which one is forked from the other: one import for both."""
    script = tmp_path / "ranks.py"
    script.write_text(BEGIN + text + END)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "meet")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{PACKAGES}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("equal on rank") == 2
