"""A batch in shares, some of them empty: ranks keep in step, and are together what one rank is."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from hotrows import models
from hotrows.engine.distributed.in_process import run
from hotrows.models.interests import EVOLUTIONS
from hotrows.models.nn import choose_linear_paths, share_statistics, use_linear_paths
from tests.models.looked_up import FakeVectors, build, logits_of, lookup

CASES = [
    *((name, {}) for name in models.BY_NAME),
    *((name, {"batch_norm": True}) for name in ("dnn", "deepfm")),
    *((name, {"form": form}) for name in ("din", "dien") for form in ("paper", "code")),
    *(("dien", {"evolution": evolution, "form": "code"}) for evolution in EVOLUTIONS),
    *(("dien", {"attention": (8, 4), "activation": a}) for a in ("dice", "prelu")),
    *(("can", {"base": base, "activation": "dice"}) for base in ("pooled", "din", "dien")),
    *((name, {"dropout": 0.5}) for name in ("dnn", "din", "mmoe")),
    ("dcnv2", {"structure": "stacked"}),
    ("dcnv2", {"experts": 2, "rank": 4}),
]
every_case = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{name} {options or ''}" for name, options in CASES]
)


def train_on(model, vectors, size):
    """The way forward and back of a training step, its loss a mean times the share of samples."""
    logits, model_loss = models.logits_and_loss(model(vectors, torch.randn(size, 3)))
    mean = F.binary_cross_entropy_with_logits(logits, torch.rand_like(logits))
    loss = mean if model_loss is None else mean + model_loss
    (loss * (size / 8)).backward()
    return logits


@pytest.mark.pairs
@every_case
@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("chosen", [False, True], ids=["plain", "chosen paths"])
def test_an_empty_share_gives_zero_gradients(name, options, bfloat16, chosen):
    model = build(name, **options)
    if chosen:
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        use_linear_paths(model, choose_linear_paths(model, dtype))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    vectors = lookup(model, 0, lengths=[])
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = train_on(model, vectors, 0)
    assert len(logits) == 0
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), key
    assert all(leaf.grad is not None and not len(leaf.grad) for leaf in vectors.leaves.values())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.step()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


SHARES = {"samples, no histories": [0, 0], "one element": [1, 0], "none": []}


@every_case
@pytest.mark.parametrize("lengths", SHARES.values(), ids=SHARES)
def test_a_share_with_little_keeps_step_with_one_that_has_much(name, options, lengths):
    """The auxiliary network of DIEN used to be left out where there was nothing to tell."""
    torch.manual_seed(1)
    model = build(name, **options)
    state = model.state_dict()

    def work(ranks):
        copied = build(name, **options)
        copied.load_state_dict(state)
        share_statistics(copied, ranks)
        mine = [3, 0, 4, 1, 2, 2] if ranks.rank == 0 else lengths
        train_on(copied, lookup(copied, len(mine), 1.0, mine), len(mine))
        return copied

    one, other = run(work, 2)
    for copied in (one, other):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in copied.parameters())
    assert all(torch.equal(*pair) for pair in zip(one.buffers(), other.buffers(), strict=True))


def dealt(vectors, dense, deal):
    """A batch cut by samples: looked-up vectors, leaves of their own, and dense values by rank."""
    shares, begin = [], 0
    for size in deal:
        end, leaves, offsets = begin + size, {}, {}
        for (feature, role), leaf in vectors.leaves.items():
            first, last = begin, end
            if feature in vectors.offsets:
                bounds = vectors.offsets[feature]
                first, last = int(bounds[begin]), int(bounds[end])
                offsets[feature] = bounds[begin : end + 1] - bounds[begin]
            leaves[feature, role] = leaf[first:last].detach().clone().requires_grad_()
        shares.append((FakeVectors(leaves, offsets), dense[begin:end]))
        begin = end
    return shares


def gradients_of(model, vectors, dense):
    logits = logits_of(model, vectors, dense)
    logits.sin().sum().backward()
    leaves = {key: leaf.grad for key, leaf in vectors.leaves.items()}
    parameters = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), leaves, parameters


WHOLE = [
    ("dnn", {"batch_norm": True}),
    *(("din", {"form": form}) for form in ("paper", "code")),
    *(("dien", {"form": form, "auxiliary": 0.0}) for form in ("paper", "code")),
    ("can", {"base": "din", "activation": "dice"}),
]


@pytest.mark.parametrize(("name", "options"), WHOLE, ids=str)
@pytest.mark.parametrize("deal", [(9, 7), (1, 15), (6, 0, 10)], ids=str)
def test_ranks_with_shares_are_one_rank_with_the_batch(name, options, deal):
    model = build(name, **options)
    vectors, dense = lookup(model, 16, 1.0), torch.randn(16, 3)
    mine = dealt(vectors, dense, deal)

    def work(ranks):
        copied = copy.deepcopy(model)
        share_statistics(copied, ranks)
        return *gradients_of(copied, *mine[ranks.rank]), list(copied.buffers())

    of_ranks = run(work, len(deal))
    logits, leaves, gradients = gradients_of(model, vectors, dense)
    close = {"rtol": 1e-3, "atol": 1e-4}
    assert_close(torch.cat([entry[0] for entry in of_ranks]), logits, **close)
    for key, expected in leaves.items():
        assert_close(torch.cat([entry[1][key] for entry in of_ranks]), expected, **close)
    for key, expected in gradients.items():
        assert_close(sum(entry[2][key] for entry in of_ranks), expected, **close)
    for entry in of_ranks:
        assert_close(entry[3], list(model.buffers()), **close)
