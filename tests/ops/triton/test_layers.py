"""The layers' kernels against their references in float64, in Triton's interpreter or on a GPU."""

import importlib

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import _disable_current_modes

from hotrows.ops.layers.by_device import OPS
from tests.nn.launches import Launches
from tests.ops.triton import layer_cases
from tests.ops.triton.layer_cases import LAYERS, kernel, moved


def reference(name):
    return next(function for layer in LAYERS if (function := vars(layer).get(f"{name}_reference")))


def results(function, arguments):
    """What it returns, and its arguments as they are then."""
    return [*returned(function, arguments), *(a for a in arguments if isinstance(a, torch.Tensor))]


def wide(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


def assert_is_reference(name, arguments, device, tolerance=None):
    """And on a GPU twice the same; returns the calls of PyTorch that it computes with.

    tolerance: of the greatest number of each result; None: 2e-5 of 1.
    """
    one, two = (moved(arguments, lambda t: t.to(device, copy=True)) for _ in range(2))
    with Launches() as of_pytorch:
        got = results(kernel(name), one)
    expected = results(reference(name), moved(arguments, wide))
    assert len(got) == len(expected)
    for value, exact in zip(got, expected, strict=True):
        exact = exact.float() if exact.is_floating_point() else exact
        most = 2e-5 if tolerance is None else tolerance * exact.abs().max().item()
        assert_close(value.cpu(), exact, rtol=1e-4, atol=most, check_stride=False)
    if torch.device(device).type == "cuda":
        assert all(map(torch.equal, got, results(kernel(name), two)))
    return [name for name in of_pytorch.names if "empty" not in name]


@pytest.fixture
def interpreted(monkeypatch):
    """Names of the kernels that the interpreter runs."""
    names, interpreter = [], importlib.import_module("triton.runtime.interpreter")
    run = interpreter.GridExecutor.__call__

    def noted_run(self, *args, **options):
        names.append(self.fn.__name__)
        with _disable_current_modes():  # what the interpreter itself calls is not counted
            return run(self, *args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", noted_run)
    return names


@pytest.mark.few(26)
@pytest.mark.parametrize("name", sorted(OPS))
def test_a_kernel_is_its_reference_in_as_many_launches_as_said(name, device, interpreted):
    calls = [arguments for op, arguments in layer_cases.calls() if op == name]
    assert len(calls) > 1
    launches = []
    for arguments in calls:
        del interpreted[:]
        calls_of_pytorch = assert_is_reference(name, arguments, device)
        launches.append(len(interpreted) + len(calls_of_pytorch))
    assert device.type == "cuda" or max(launches) == layer_cases.LAUNCHES.get(name, 1)


def test_a_gru_whose_reset_is_after_its_product_has_four_launches_on_the_way_back(device, interpreted):
    arguments = layer_cases.recurrent([3, 0, 2], 4, "gru", "after")["recurrent_backward"]
    calls_of_pytorch = assert_is_reference("recurrent_backward", arguments, device)
    assert device.type == "cuda" or len(interpreted) + len(calls_of_pytorch) == 4


@pytest.mark.parametrize("name", sorted(OPS))
def test_positions_behind_the_last_list_are_of_no_sample(name, device):
    """A batch padded to a fixed size, with what is no number: the same results, then zeros."""
    arguments = next(arguments for op, arguments in layer_cases.calls() if op == name)
    num = next(int(a[-1]) for a in arguments if isinstance(a, torch.Tensor) and a.dtype == torch.int64)

    def padded(t):
        more = torch.full((3, *t.shape[1:]), torch.nan) if len(t) == num else t[:0]
        return torch.cat([t, more.to(t.dtype)]).to(device)

    longer = tuple(n + 3 if n is num else n for n in moved(arguments, padded))  # a number of positions
    got, expected = returned(kernel(name), longer), returned(reference(name), moved(arguments, wide))
    read = 1 if name == "recurrent" else len(got)  # gates are for the way back alone, which reads none
    for value, exact in zip(got[:read], expected[:read], strict=True):
        assert_close(value[: len(exact)].cpu(), exact.float(), rtol=1e-4, atol=2e-5)
        assert (value[len(exact) :] == 0).all()


def returned(function, arguments):
    values = function(*arguments)
    return [v for v in (values if isinstance(values, tuple) else (values,)) if v is not None]


def test_networks_wider_than_a_tile_are_left_to_the_reference():
    takes = importlib.import_module("hotrows.ops.triton.co_action").takes
    assert takes(torch.ones(1), (64, 3), 1, True)
    assert not takes(torch.ones(1), (65, 3), 1, True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(OPS))
def test_at_real_sizes_a_kernel_is_its_reference(name):
    torch.backends.cuda.matmul.allow_tf32 = False
    for op, arguments in layer_cases.real_calls():
        if op == name:
            assert_is_reference(name, arguments, "cuda", tolerance=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(OPS))
def test_a_gpu_runs_the_kernel(name):
    arguments = next(a for op, a in layer_cases.calls() if op == name)
    one, two = (moved(arguments, lambda t: t.cuda()) for _ in range(2))
    assert all(
        map(torch.equal, results(kernel(name), one), results(getattr(torch.ops.hotrows, name), two))
    )
