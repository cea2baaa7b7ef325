"""Models on a device, without one: nothing is mixed with host memory, and nothing waits for it.

Tensors on PyTorch's device "meta" have no values, so whatever would read one fails; `Watch` also
refuses what a GPU would do by waiting: host tensors copied to it, or used beside its own.
"""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hotrows import models
from tests.models.looked_up import WITH_HISTORY, build, planned

aten = torch.ops.aten
AUTOCAST = torch.autocast
CASES = [
    ("lr", {}),
    ("fm", {}),
    ("dnn", {"batch_norm": True, "dropout": 0.2}),
    ("wide_deep", {"dropout": 0.2}),
    ("deepfm", {"batch_norm": True, "dropout": 0.2}),
    ("dlrm", {"dropout": 0.2}),
    ("dcnv2", {"dropout": 0.2, "rank": 4, "experts": 2}),
    ("dcnv2", {}),
    ("mmoe", {"dropout": 0.2}),
    ("din", {"form": "paper"}),
    ("din", {"form": "code"}),
    ("dien", {"form": "paper"}),
    ("dien", {"form": "code"}),
    ("dien", {"evolution": "aigru"}),
    ("can", {"base": "pooled"}),
    ("can", {"base": "din"}),
    ("can", {"base": "dien"}),
    ("tbsm", {}),
    ("hstu", {}),
]

every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=str)


class Watch(TorchDispatchMode):
    """Refuses operations that wait for a device or reach from host memory into it."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        on_device = [t for t in tensors if t.device.type == self.device]
        on_host = [t for t in tensors if t.device.type != self.device]
        if on_device and op in (aten._local_scalar_dense.default, aten.equal.default):
            raise AssertionError(f"{op} waits for the device")
        if on_device and [t for t in on_host if t.dim() > 0]:
            raise AssertionError(f"{op} of tensors on the device and in host memory")
        if on_device and op is aten.index.Tensor and any(t.dtype == torch.bool for t in tensors[1:]):
            raise AssertionError("a mask as an index waits for the device")
        out = op(*args, **kwargs)
        results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if on_host and not on_device and any(t.device.type == self.device for t in results):
            raise AssertionError(f"{op} copies from host memory, and waits for it")
        return out


@pytest.fixture
def meta_autocast(monkeypatch):
    """Autocast knows no device without values; layers only ask it to stand aside."""

    def known(kind, *args, **options):
        return AUTOCAST("cpu" if kind == "meta" else kind, *args, **options)

    monkeypatch.setattr(torch, "autocast", known)


def test_the_watch_refuses_what_waits():
    on_device = torch.ones(3, device="meta")
    with Watch("meta"):
        assert (on_device + 1).sum().shape == ()
        assert torch.ones(3).sum().item() == 3
        for waiting in (
            lambda: on_device.sum().item(),
            lambda: on_device[on_device > 0],
            lambda: on_device.nonzero(),
            lambda: torch.equal(on_device, on_device),
            lambda: torch.arange(3, device="meta").repeat_interleave(on_device.long()),
            lambda: on_device + torch.ones(3),
            lambda: on_device[torch.tensor([1, 2])],
            lambda: torch.tensor([1.0]).to("meta"),
        ):
            with pytest.raises((AssertionError, NotImplementedError, RuntimeError)):
                waiting()


@every_case
@pytest.mark.usefixtures("meta_autocast")
def test_a_step_waits_for_nothing(name, options):
    model = build(name, **options).train().to("meta")
    vectors, dense = planned(model, "meta")
    labels = torch.empty(len(dense), *((2,) if name == "mmoe" else ()), device="meta")
    with Watch("meta"):
        logits, model_loss = models.logits_and_loss(model(vectors, dense))
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        (loss if model_loss is None else loss + model_loss).backward()
    assert all(leaf.grad.device.type == "meta" for leaf in vectors.leaves)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if case[0] not in WITH_HISTORY], ids=str
)
def test_a_forward_pass_is_one_on_a_gpu(name, options):
    """Where layers ask for the device by name. (Without a GPU, autograd does not run on such tensors.)"""
    model = build(name, **options).train()
    state, (vectors, dense) = model.state_dict(), planned(model, "cpu")
    with FakeTensorMode(), torch.no_grad():

        def on_device(t):
            return torch.empty(t.shape, dtype=t.dtype, device="cuda")

        state = {name: on_device(value) for name, value in state.items()}
        vectors.leaves = tuple(map(on_device, vectors.leaves))
        with Watch("cuda"):
            logits = functional_call(model, state, (vectors, on_device(dense)))
    assert logits.device.type == "cuda" and len(logits) == 6


@pytest.mark.gpu
@every_case
def test_a_gpu_learns_as_the_cpu_does_twice_the_same_and_waits_for_nothing(name, options):
    model = build(name, **{**options, "dropout": 0.0} if "dropout" in options else options).train()
    twin = copy.deepcopy(model).to("cuda")
    expected = step(model, *seeded(planned, model, "cpu"))
    on_device = seeded(planned, twin, "cuda")
    with waits_refused():
        got, again = step(twin, *on_device), step(twin, *on_device)
    for one, other, of_cpu in zip(got, again, expected, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one.cpu(), of_cpu, rtol=1e-3, atol=1e-4)


def seeded(make, *arguments):
    torch.manual_seed(1)
    return make(*arguments)


@contextlib.contextmanager
def waits_refused():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def step(model, vectors, dense):
    """Logits, and the gradients of leaves and parameters."""
    logits = models.logits_and_loss(model(vectors, dense))[0]
    used = [p for name, p in model.named_parameters() if ".tells." not in name]  # of a loss of its own
    return logits, *torch.autograd.grad(logits.square().sum(), [*vectors.leaves, *used])
