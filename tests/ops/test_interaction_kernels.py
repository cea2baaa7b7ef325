"""The Triton kernels of interactions against their specification, and the ops as PyTorch sees them.

On a GPU where there is one, else in Triton's interpreter.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hotrows

GPU = torch.cuda.is_available()
tl = pytest.importorskip("triton.language")

from hotrows.ops.layers import interaction  # noqa: E402
from hotrows.ops.triton import dot_interaction, second_order  # noqa: E402

interpreted = pytest.param(
    "cpu", marks=pytest.mark.skipif(GPU, reason="kernels are compiled where there is a GPU")
)
compiled = pytest.param("cuda", marks=pytest.mark.gpu)
on_both = pytest.mark.parametrize("device", [interpreted, compiled])
SHAPES = [(40, 26, 16), (40, 1, 1), (40, 5, 7), (3, 0, 3), (0, 4, 4), (3, 40, 200), (12, 127, 5)]
DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
]


@pytest.fixture(autouse=True)
def spared(monkeypatch):
    """The interpreter takes the bits of bfloat16 for integers when it multiplies matrices."""
    if not GPU:
        monkeypatch.setitem(dot_interaction._DTYPES, torch.bfloat16, tl.float32)


@contextlib.contextmanager
def poisoned():
    """Memory that is not written yet is NaN, as deterministic algorithms have it."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def sample(shape, dtypes, device):
    """Bottom and vectors, these a part of something larger on all sides."""
    size, count, width = shape
    bottom = torch.randn(size, width, device=device).to(dtypes[0])
    vectors = torch.randn(size, count + 2, width + 3, device=device).to(dtypes[1])
    return bottom, vectors[:, 1 : count + 1, 2 : width + 2]


def assert_as_exact(got, plain, exact):
    """Against float64, by root mean squares: at most twice the error of plain PyTorch.

    And the last bit of bfloat16 in the interpreter, which cuts off what a GPU rounds.
    """
    assert (got.shape, got.dtype) == (plain.shape, plain.dtype)
    cut = got.dtype == torch.bfloat16 and not GPU
    last_bit = torch.finfo(torch.bfloat16 if cut else torch.float32).eps
    if got.numel() > 0:
        error, usual, size = (rms(t) for t in (got.double() - exact, plain.double() - exact, exact))
        assert error <= 2 * usual + last_bit * size, f"{error} where plain PyTorch has {usual}"


def rms(t):
    return t.square().mean().sqrt()


def run(kernels, name, *tensors):
    """What kernel, reference, and reference in float64 return, each as a tuple."""
    with poisoned():
        got = getattr(kernels, name)(*tensors)
    plain = getattr(interaction, f"{name}_reference")
    results = got, plain(*tensors), plain(*(t.double() for t in tensors))
    return [r if isinstance(r, tuple) else (r,) for r in results]


@pytest.mark.few(6)
@pytest.mark.pairs
@on_both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_dot_interaction_is_as_exact_as_plain_pytorch(shape, dtypes, device):
    bottom, vectors = sample(shape, dtypes, device)
    assert dot_interaction.takes(bottom, vectors)
    forward = run(dot_interaction, "dot_interaction", bottom, vectors)
    grad = torch.randn(forward[1][0].shape, device=device).to(dtypes[0])
    backward = run(dot_interaction, "dot_interaction_backward", grad, bottom, vectors)
    for got, plain, exact in (*zip(*forward, strict=True), *zip(*backward, strict=True)):
        assert_as_exact(got, plain, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_core_reads_no_gradient_of_padding(dtype):
    """It would take each sample's for the begin of the next one's."""
    bottom, vectors = torch.randn(5, 4), torch.randn(5, 3, 4)
    grad = torch.randn(5, 4 + 6 + 2)
    expected = torch.ops.hotrows.dot_interaction_backward(grad[:, :-2].contiguous(), bottom, vectors)
    got = torch.ops.hotrows.dot_interaction_backward(grad, bottom.to(dtype), vectors.to(dtype))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05)


@on_both
@pytest.mark.parametrize("padding", [1, 7])
def test_zeros_follow_where_padding_is_wanted(padding, device):
    bottom, vectors = sample((12, 5, 7), (torch.float16, torch.float16), device)
    plain = dot_interaction.dot_interaction(bottom, vectors)
    with poisoned():
        padded = dot_interaction.dot_interaction(bottom, vectors, padding)
        assert torch.equal(padded, nn.functional.pad(plain, (0, padding)))
        grad = torch.randn(padded.shape, device=device).half()
        got = dot_interaction.dot_interaction_backward(grad, bottom, vectors)
        expected = dot_interaction.dot_interaction_backward(grad[:, :-padding], bottom, vectors)
    assert all(map(torch.equal, got, expected))
    bottom.requires_grad_()
    interaction.dot_interaction_reference(bottom, vectors, padding).backward(grad)
    torch.testing.assert_close(bottom.grad, expected[0], rtol=1e-2, atol=1e-2)


@pytest.mark.few(6)
@pytest.mark.pairs
@on_both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_second_order_is_as_exact_as_plain_pytorch(shape, dtype, device):
    _, vectors = sample(shape, (dtype, dtype), device)
    forward = run(second_order, "second_order", vectors)
    grad = torch.randn(1, device=device).expand(shape[0])
    backward = run(second_order, "second_order_backward", grad, vectors)
    for got, plain, exact in (*zip(*forward, strict=True), *zip(*backward, strict=True)):
        assert_as_exact(got, plain, exact)


def test_the_kernels_compile_for_a_hopper_gpu():
    root = Path(__file__).parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(hotrows.__file__).parents[1]), str(root)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.hopper"], env=environment, capture_output=True, text=True
    )
    expected = ["24 kernels compiled", "8 of layers, 0 bytes spilled"]
    assert done.stdout.splitlines() == expected, done.stdout + done.stderr


def test_more_vectors_than_a_tile_holds_and_float64_are_left_to_the_reference():
    assert not dot_interaction.takes(torch.randn(1, 2), torch.randn(1, 128, 2))
    assert not dot_interaction.takes(*sample((2, 3, 4), (torch.float64, torch.float64), "cpu"))
    assert not second_order.takes(torch.randn(1, 2, 2, dtype=torch.float64))


@pytest.mark.gpu
def test_the_ops_run_the_kernels_on_a_gpu():
    bottom, vectors = sample((9, 26, 16), DTYPES[0], "cuda")
    leaves = bottom.requires_grad_(), vectors.detach().requires_grad_()
    out = interaction.dot_interaction(*leaves)
    assert torch.equal(out, dot_interaction.dot_interaction(bottom, vectors))
    grad = torch.randn_like(out)
    out.backward(grad)
    expected = dot_interaction.dot_interaction_backward(grad, bottom.detach(), vectors)
    for leaf, gradient in zip(leaves, expected, strict=True):
        assert torch.equal(leaf.grad, gradient)
    assert torch.equal(interaction.second_order(vectors), second_order.second_order(vectors))


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_ops_are_what_pytorch_asks_of_ops(dtype):
    """Schema, autograd, shapes for tracing, and ahead-of-time autograd."""
    bottom, vectors = sample((3, 4, 5), (dtype, dtype), "cpu")
    grad = torch.randn(3, 5 + 10).to(dtype)
    leaves = bottom.clone().requires_grad_(), vectors.clone().requires_grad_()
    wide = dtype if dtype == torch.float64 else torch.float32
    for op, arguments in [
        (torch.ops.hotrows.dot_interaction, leaves),
        (torch.ops.hotrows.dot_interaction_backward, (grad, bottom, vectors)),
        (torch.ops.hotrows.second_order, leaves[1:]),
        (torch.ops.hotrows.second_order_backward, (torch.randn(3, dtype=wide), vectors)),
    ]:
        torch.library.opcheck(op, arguments)


def test_a_second_derivative_is_refused():
    leaves = torch.randn(2, 3, requires_grad=True), torch.randn(2, 4, 3, requires_grad=True)
    for out in (interaction.dot_interaction(*leaves), interaction.second_order(leaves[1])):
        (first,) = torch.autograd.grad(out.square().sum(), leaves[1], create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated once, not twice"):
            first.sum().backward()
