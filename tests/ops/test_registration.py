"""What the dispatcher knows of each op: what it mutates, returns, and on which device it runs."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from hotrows import SGD, ops
from hotrows.ops import cuda
from hotrows.optim import hyper_tensor
from hotrows.record import RecordLayout

LAYOUT = RecordLayout(4)


def arguments(device):
    """One call of each op, on a device."""
    ids, rows = torch.tensor([3, 1, 3, 0]), torch.tensor([0, 1, 3])
    order, starts = torch.tensor([3, 1, 0, 2]).int(), torch.tensor([0, 1, 2, 4]).int()
    inverse, records = torch.tensor([2, 1, 2, 0]).int(), torch.zeros(5, 16, dtype=torch.uint8)
    of = torch.tensor([0, 5]), torch.tensor([[7, 0, 1, 0, 4]])
    layout, first = LAYOUT.as_ints(), torch.tensor([0])
    bag_starts, bags = torch.tensor([0, 1, 4]).int(), torch.tensor([0, 1, 1, 1]).int()
    calls = {
        "resolve": (ids, None, 4, first, first, torch.tensor([5]), 1),
        "unique_padded": (ids,),
        "find_slots": (rows, rows, ids),
        "pool": (records, layout, rows, inverse, bag_starts, torch.ones(4)),
        "sum_gradients": (torch.ones(2, 4), order, starts, bags, None),
        "update": (records, layout, rows, rows, order, starts, bags, None, torch.ones(2, 4), "sgd",
                   hyper_tensor(SGD(), 0), *of),
        "initialize": (records, layout, torch.arange(5), *of, "uniform", 0.1, []),
        "copy_rows": (records.clone(), rows, records, None),
        "unique": (ids,),
    }  # fmt: skip
    return {
        name: tuple(arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args)
        for name, args in calls.items()
    }


NAMES = tuple(arguments("cpu"))
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@on_devices
@pytest.mark.parametrize("name", NAMES)
def test_schema_fake_and_autograd_agree_with_what_an_op_does(name, device):
    op = getattr(torch.ops.hotrows, name).default
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    torch.library.opcheck(op, arguments(device)[name], test_utils=tests)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "unique"])
def test_sizes_are_known_without_computing(name, device):
    real = getattr(ops, name)(*arguments("cpu")[name])
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [
            torch.empty(arg.shape, dtype=arg.dtype, device=device)
            if isinstance(arg, torch.Tensor)
            else arg
            for arg in arguments("cpu")[name]
        ]
        fake = getattr(ops, name)(*args)
    for found, expected in zip(_tuple(fake), _tuple(real), strict=True):
        assert found.shape == expected.shape and found.dtype == expected.dtype
        assert found.device.type == device


def test_how_many_rows_are_distinct_is_not_known_without_computing():
    with FakeTensorMode(), pytest.raises(DynamicOutputShapeException):
        ops.unique(torch.zeros(4, dtype=torch.int64))


@on_devices
def test_first_values_are_the_same_bits_on_every_device(device, monkeypatch):
    monkeypatch.setattr(cuda, "_CHUNK_BYTES", 50)  # three rows at a time
    (records, *of), (expected, *_) = arguments(device)["initialize"], arguments("cpu")["initialize"]
    cuda.initialize(records, *of)
    ops.initialize(expected, *arguments("cpu")["initialize"][1:])
    assert torch.equal(records.cpu(), expected) and expected.any()


def test_nothing_on_the_cpu_imports_triton():
    code = (
        "import sys, torch, hotrows\n"
        "from hotrows import ops\n"
        "ops.unique_padded(torch.tensor([3, 1]))\n"
        "assert 'triton' not in sys.modules, 'triton was imported'\n"
        "assert 'hotrows.ops.triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _tuple(out):
    if out is None:
        return ()
    return out if isinstance(out, tuple | list) else (out,)
