"""The layers' kernels against their references in float64, in Triton's interpreter or on a GPU."""

import importlib

import pytest
import torch
from torch.testing import assert_close

from hotrows.ops.layers import attention, batch_norm, co_action, dice, jagged, log_loss, prelu, recurrent
from hotrows.ops.layers.by_device import OPS
from tests.ops.triton import layer_cases

LAYERS = (attention, batch_norm, co_action, dice, jagged, log_loss, prelu, recurrent)


def kernel(name):
    return getattr(importlib.import_module(f"hotrows.ops.triton.{OPS[name]}"), name)


def reference(name):
    return next(function for layer in LAYERS if (function := vars(layer).get(f"{name}_reference")))


def results(function, arguments):
    found = function(*arguments)
    return found if isinstance(found, tuple) else (found,)


def assert_is_reference(name, arguments, device):
    on_device = layer_cases.moved(arguments, lambda t: t.to(device))
    got = results(kernel(name), on_device)
    exact = results(reference(name), layer_cases.moved(arguments, wide))
    for one, other in zip(got, exact, strict=True):
        if other is None:
            assert one is None
        else:
            assert one.dtype == torch.float32
            assert_close(one.cpu(), other.float(), rtol=1e-4, atol=2e-5, check_stride=False)
    for one, again in zip(got, results(kernel(name), on_device), strict=True):
        assert one is again is None or torch.equal(one, again)
    return got


def wide(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_kernel_is_its_reference_twice_the_same(name, device):
    calls = [arguments for op, arguments in layer_cases.calls() if op == name]
    assert len(calls) > 1
    for arguments in calls:
        assert_is_reference(name, arguments, device)


