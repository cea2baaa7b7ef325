"""Models on tensors of a device, without one: nothing is mixed with host memory, and nothing waits for it.

Tensors on PyTorch's device "meta" have no values, so whatever would read one fails; `Watch` also refuses what
a GPU would do by waiting: host tensors copied to it, or used beside its own.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hotrows import Batch, Embedding, models
from hotrows.vectors import Vectors
from tests.models.looked_up import DENSE, WITH_HISTORY, build

aten = torch.ops.aten
AUTOCAST = torch.autocast
OPTIONS = [
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
]


class Watch(TorchDispatchMode):
    """Refuses operations that wait for `device` or reach from host memory into it."""

    def __init__(self, device):
        super().__init__()
        self.device = torch.device(device)

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        there = [t for t in given if t.device == self.device]
        here = [t for t in given if t.device != self.device]
        if there and op in (aten._local_scalar_dense.default, aten.equal.default):
            raise AssertionError(f"{op} waits for the device")
        if there and [t for t in here if t.dim() > 0]:
            raise AssertionError(f"{op} of tensors on the device and in host memory")
        if there and op is aten.index.Tensor and any(t.dtype == torch.bool for t in given[1:]):
            raise AssertionError("a mask as an index waits for the device")
        out = op(*args, **kwargs)
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if here and not there and any(t.device == self.device for t in made):
            raise AssertionError(f"{op} copies from host memory, and waits for it")
        return out


@pytest.fixture
def meta_autocast(monkeypatch):
    """Autocast knows no device without values; layers only ask it to stand aside."""

    def known(kind, *args, **options):
        return AUTOCAST("cpu" if kind == "meta" else kind, *args, **options)

    monkeypatch.setattr(torch, "autocast", known)


def test_the_watch_refuses_what_waits():
    there = torch.ones(3, device="meta")
    with Watch("meta"):
        assert (there + 1).sum().shape == ()
        assert torch.ones(3).sum().item() == 3
        for waiting in (
            lambda: there.sum().item(),
            lambda: there[there > 0],
            lambda: there.nonzero(),
            lambda: torch.equal(there, there),
            lambda: torch.arange(3, device="meta").repeat_interleave(there.long()),
            lambda: there + torch.ones(3),
            lambda: there[torch.tensor([1, 2])],
            lambda: torch.tensor([1.0]).to("meta"),
        ):
            with pytest.raises((AssertionError, NotImplementedError, RuntimeError)):
                waiting()


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@pytest.mark.usefixtures("meta_autocast")
def test_a_step_waits_for_nothing(name, options):
    model = build(name, **options).train().to("meta")
    vectors, dense = looked_up(model, "meta")
    labels = torch.empty(len(dense), *((2,) if name == "mmoe" else ()), device="meta")
    with Watch("meta"):
        logits, own = models.logits_and_loss(model(vectors, dense))
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        (loss if own is None else loss + own).backward()
    assert all(leaf.grad.device.type == "meta" for leaf in vectors.leaves)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "options"), [case for case in OPTIONS if case[0] not in WITH_HISTORY], ids=str
)
def test_a_forward_pass_is_one_on_a_gpu(name, options):
    """Where layers ask for the device by name. (Without a GPU, autograd does not run on such tensors.)"""
    model = build(name, **options).train()
    state, (vectors, dense) = model.state_dict(), looked_up(model, "cpu")
    with FakeTensorMode(), torch.no_grad():

        def there(t):
            return torch.empty(t.shape, dtype=t.dtype, device="cuda")

        state = {name: there(value) for name, value in state.items()}
        vectors.leaves = tuple(map(there, vectors.leaves))
        with Watch("cuda"):
            logits = functional_call(model, state, (vectors, there(dense)))
    assert logits.device.type == "cuda" and len(logits) == 6


def looked_up(model, device, size=6):
    """Vectors of a random batch, by a plan on the device, and dense values."""
    embedding = Embedding(model.tables, sequences=model.sequences, crosses=model.crosses)
    lengths = [
        torch.randint(0, 4, (size,)) if name in model.sequences else torch.ones(size).long()
        for name in embedding.features
    ]
    offsets = F.pad(torch.cat(lengths).cumsum(0), (1, 0))
    ids = torch.randint(0, 9, (int(offsets[-1]),))
    on_host = embedding.plan(Batch(embedding.features, ids, torch.empty(size, 0), offsets=offsets))
    packs = tuple(
        replace(pack, sequence_starts=starts and {k: v.to(device) for k, v in starts.items()})
        for pack in on_host.packs
        for starts in [pack.sequence_starts]
    )
    plan = replace(on_host, packs=packs, on_host=on_host)
    leaves = (leaf.detach().to(device) for leaf in embedding.lookup(on_host).leaves)
    vectors = Vectors(embedding.packs, plan, tuple(leaf.requires_grad_() for leaf in leaves))
    return vectors, torch.empty(size, len(DENSE), device=device)
