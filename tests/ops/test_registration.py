"""What the dispatcher knows of each op: what it mutates, returns, and on which device it runs."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from hotrows import ops
from hotrows.ops.rows import cuda
from tests.support.op_arguments import arguments

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
    real = getattr(torch.ops.hotrows, name)(*arguments("cpu")[name])
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [
            torch.empty(arg.shape, dtype=arg.dtype, device=device)
            if isinstance(arg, torch.Tensor)
            else arg
            for arg in arguments("cpu")[name]
        ]
        fake = getattr(torch.ops.hotrows, name)(*args)
    for traced, expected in zip(_tuple(fake), _tuple(real), strict=True):
        assert traced.shape == expected.shape and traced.dtype == expected.dtype
        assert traced.device.type == device


def test_how_many_rows_are_distinct_is_not_known_without_computing():
    with FakeTensorMode(), pytest.raises(DynamicOutputShapeException):
        ops.unique(torch.zeros(4, dtype=torch.int64))


@on_devices
def test_first_values_are_the_same_bits_on_every_device(device, monkeypatch):
    monkeypatch.setattr(cuda, "_CHUNK_BYTES", 50)  # three rows at a time
    (records, *keys), (expected, *_) = (arguments(device)["initialize"], arguments("cpu")["initialize"])
    cuda.initialize(records, *keys)
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
