"""Compiled models: what they compute when run as they are, in one graph for each size of batch."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from hotrows.train.loop.step import compiled
from tests.models.looked_up import WITH_HISTORY, build, planned

SHOWN_BY_OTHERS = pytest.mark.slow
CASES = [
    pytest.param("lr", {}, False, marks=SHOWN_BY_OTHERS),
    pytest.param("fm", {}, False, marks=SHOWN_BY_OTHERS),
    pytest.param("dnn", {"batch_norm": True}, False, marks=SHOWN_BY_OTHERS),
    ("wide_deep", {}, False),
    ("deepfm", {"batch_norm": True}, True),
    pytest.param("dlrm", {}, False, marks=SHOWN_BY_OTHERS),
    pytest.param("dlrm", {}, True, marks=SHOWN_BY_OTHERS),
    ("dcnv2", {"rank": 4, "experts": 2}, False),
    ("mmoe", {}, True),
]
every_case = pytest.mark.parametrize(("name", "options", "bfloat16"), CASES, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # dynamo does it


@pytest.fixture(autouse=True)
def forgotten():
    yield
    torch.compiler.reset()


def step(model, run, vectors, dense, bfloat16):
    """Logits, the gradients of leaves and of parameters, and what statistics became."""
    with torch.autocast(dense.device.type, torch.bfloat16, enabled=bfloat16):
        logits = run(vectors, dense)
    gradients = torch.autograd.grad(logits.square().sum(), [*vectors.leaves, *model.parameters()])
    return logits, *gradients, *(buffer.clone() for buffer in model.buffers())


def near(bfloat16):
    return {"rtol": 5e-2, "atol": 5e-2} if bfloat16 else {"rtol": 1e-3, "atol": 1e-4}


@every_case
def test_a_compiled_model_is_the_model_in_one_graph_per_size(name, options, bfloat16):
    model = build(name, **options).train()
    twin = copy.deepcopy(model)
    backend, run = CompileCounterWithBackend("aot_eager"), None
    for size, num_graphs in [(6, 1), (6, 1), (4, 2), (6, 2)]:
        vectors, dense = planned(model, size=size)
        run = run or compiled(model, vectors.packs, backend=backend)
        got = step(model, run, vectors, dense, bfloat16)
        expected = step(twin, twin, vectors, dense, bfloat16)
        for one, other in zip(got, expected, strict=True):
            assert_close(one, other, **near(bfloat16))
        assert backend.frame_count == num_graphs


@pytest.mark.parametrize("name", WITH_HISTORY)
def test_a_model_of_sequences_is_run_as_it_is(name):
    model = build(name)
    assert compiled(model, ()) is model


def test_dropout_is_drawn_anew_at_every_call():
    model = build("dnn", dropout=0.5).train()
    vectors, dense = planned(model)
    run = compiled(model, vectors.packs, backend="aot_eager")
    assert not torch.equal(run(vectors, dense), run(vectors, dense))


@pytest.mark.gpu
@every_case
def test_compiled_for_a_gpu_a_model_is_the_model(name, options, bfloat16):
    model = build(name, **options).train().to("cuda")
    twin = copy.deepcopy(model)
    vectors, dense = planned(model, "cuda", size=64)
    got = step(model, compiled(model, vectors.packs), vectors, dense, bfloat16)
    for one, other in zip(got, step(twin, twin, vectors, dense, bfloat16), strict=True):
        assert_close(one, other, **near(bfloat16))
