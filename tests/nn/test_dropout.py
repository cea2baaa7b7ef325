"""Dropout: the right share, the same elements forward and backward, the same bits for a seed."""

import pytest
import torch
from torch.testing import assert_close

from hotrows.models.nn.dropout import Dropout
from hotrows.ops.layers.dropout import dropout, dropout_reference

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@DTYPES
def test_the_share_is_dropped_and_the_mean_kept(dtype):
    kept = Dropout(0.3)(torch.ones(1000, 301, dtype=dtype))
    assert abs((kept == 0).float().mean().item() - 0.3) < 0.005
    assert_close(kept.float().mean(), torch.tensor(1.0), rtol=0, atol=0.02)
    assert abs((kept[:, 1:] * kept[:, :-1] == 0).float().mean().item() - (1 - 0.7**2)) < 0.005


@DTYPES
def test_the_gradient_passes_where_the_value_did(dtype):
    x = torch.ones(37, 100, dtype=dtype, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@DTYPES
def test_a_seed_fixes_what_is_dropped_on_any_number_of_threads(threads, dtype):
    x = torch.randn(300, 70).to(dtype)
    results = []
    for count in (1, 2):
        threads(count)
        torch.manual_seed(3)
        results.append(Dropout(0.2)(x))
    assert torch.equal(*results)
    assert not torch.equal(Dropout(0.2)(x), results[0])


def test_evaluation_nothing_and_everything():
    x = torch.randn(5, 3)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()
    assert Dropout(0.5)(x[:0]).shape == (0, 3)


@DTYPES
@pytest.mark.parametrize("shape", [(0,), (1,), (7, 3), (4, 1027)])
def test_the_core_drops_what_the_reference_drops(shape, dtype):
    x, key = torch.randn(shape).to(dtype), 2**61 + 12345
    assert torch.equal(dropout(x, key, 20_000), dropout_reference(x, key, 20_000))
