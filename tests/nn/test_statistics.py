"""Batch statistics over ranks: shares of a batch on several ranks equal the whole batch on one."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hotrows.engine.distributed.comm import OneRank
from hotrows.engine.distributed.in_process import run
from hotrows.models.nn import MLP, BatchNorm, Dice, SharedLists, share_statistics
from hotrows.models.nn.statistics import moments

DEALS = [(12, 7), (1, 18), (0, 19), (9, 0, 10), (0, 1, 18), (1, 0, 0), (1, 1, 0), (0, 0)]
deals = pytest.mark.parametrize("deal", DEALS, ids=str)
KINDS = {
    "batch norm": {"batch_norm": True},
    "dice": {"activation": "dice"},
    "both": {"batch_norm": True, "activation": "dice", "last_activation": "dice"},
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def small_model(kind, dtype=torch.float64):
    """An MLP whose parameters and running averages are all random."""
    model = MLP((4, 6, 5, 3), **KINDS[kind]).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            nn.init.uniform_(buffer, 0.5, 1.5)
    return model


def train_twice(model, batches):
    """Of two batches in turn: outputs, gradients of inputs, of parameters; then the state."""
    trained = []
    for x, weights in batches:
        leaf = x.clone().requires_grad_()
        out = model(leaf)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad((out * weights).sin().sum(), [leaf, *parameters])
        trained.append((out.detach(), gradients[0], gradients[1:]))
    return trained, {name: value.clone() for name, value in model.named_buffers()}


def dealt(batches, deal):
    """The batches of each rank."""
    pieces = [[t.split(list(deal)) for t in batch] for batch in batches]
    ranks = range(len(deal))
    return [[tuple(values[r] for values in batch) for batch in pieces] for r in ranks]


def on_ranks(model, batches, deal):
    """`train_twice` on every rank's share."""
    mine = dealt(batches, deal)

    def work(ranks):
        copied = copy.deepcopy(model)
        share_statistics(copied, ranks)
        return train_twice(copied, mine[ranks.rank])

    return run(work, len(deal))


def random_batches(size, dtype=torch.float64):
    return [
        (3 * torch.randn(size, 4, dtype=dtype) + 1, torch.randn(size, 3, dtype=dtype)) for _ in range(2)
    ]


def assert_shares_equal_the_whole(shares, expected_run, **close):
    steps, state = expected_run
    for step, (out, grad_x, gradients) in enumerate(steps):
        of_ranks = [trained[step] for trained, _ in shares]
        assert_close(torch.cat([values[0] for values in of_ranks]), out, **close)
        assert_close(torch.cat([values[1] for values in of_ranks]), grad_x, **close)
        for values, expected in zip(
            zip(*(values[2] for values in of_ranks), strict=True), gradients, strict=True
        ):
            assert_close(torch.stack(values).sum(0), expected, **close)
    for _, buffers in shares:
        assert_close(buffers, state, **close)
        for name, value in buffers.items():
            assert torch.equal(value, shares[0][1][name])


@kinds
@deals
def test_shares_on_ranks_equal_the_whole_batch_on_one(kind, deal):
    model, batches = small_model(kind), random_batches(sum(deal))
    expected_run = train_twice(copy.deepcopy(model), batches)
    assert_shares_equal_the_whole(on_ranks(model, batches, deal), expected_run, rtol=1e-12, atol=1e-12)


@kinds
@deals
def test_in_float32_they_do_to_rounding(kind, deal):
    model, batches = small_model(kind), random_batches(sum(deal))
    expected_run = train_twice(copy.deepcopy(model), batches)
    narrow = [tuple(t.float() for t in batch) for batch in batches]
    trained = [
        ([(o.double(), g.double(), [p.double() for p in ps]) for o, g, ps in steps],
         {name: v.double() if v.is_floating_point() else v for name, v in state.items()})
        for steps, state in on_ranks(copy.deepcopy(model).float(), narrow, deal)
    ]  # fmt: skip
    assert_shares_equal_the_whole(trained, expected_run, rtol=2e-3, atol=2e-3)


@kinds
def test_without_shared_statistics_they_do_not(kind):
    model, batches = small_model(kind), random_batches(19)
    (out, _, _), _ = train_twice(copy.deepcopy(model), batches)[0]
    alone = [train_twice(copy.deepcopy(model), mine)[0][0][0] for mine in dealt(batches, (12, 7))]
    assert (torch.cat(alone) - out).abs().max() > 1e-3


@kinds
@pytest.mark.parametrize("ranks", [None, OneRank()], ids=["none", "one"])
def test_one_rank_is_a_layer_as_before(kind, ranks):
    model = small_model(kind, torch.float32)
    batches = random_batches(19, torch.float32)
    expected = train_twice(copy.deepcopy(model), batches)
    share_statistics(model, ranks)
    assert all(layer.ranks is None for layer in statistics_layers(model))
    assert_shares_equal_the_whole([train_twice(model, batches)], expected, rtol=0, atol=0)


CANDIDATES = {
    "odd": [3, 1, 7, 2, 5],
    "empty requests": [0, 4, 0, 0, 3, 0],
    "one request": [5],
    "one sample": [1],
    "nothing": [],
}


@kinds
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("candidates", CANDIDATES.values(), ids=CANDIDATES)
def test_over_requests_they_are_those_over_expanded_samples(kind, num_ranks, candidates):
    """Ranks cut the batch by samples, and so cut requests; each repeats what its samples share."""
    model, starts = small_model(kind), torch.tensor([0, *candidates]).cumsum(0)
    size = int(starts[-1])
    users, items = (torch.randn(n, 2, dtype=torch.float64) for n in (len(candidates), size))
    weights = torch.randn(size, 3, dtype=torch.float64)

    def work(ranks):
        copied, (first, end) = (
            copy.deepcopy(model),
            (size * r // num_ranks for r in (ranks.rank, ranks.rank + 1)),
        )
        share_statistics(copied, ranks)
        of_rank = (starts - first).clamp(0, end - first)
        lists, user = SharedLists(of_rank, of_rank), users.clone().requires_grad_()
        trained = []
        for _ in range(2):
            out = copied(torch.cat([lists.of_samples(user), items[first:end]], 1))
            loss = (out * weights[first:end]).sin().sum()
            trained.append((out.detach(), torch.autograd.grad(loss, [user, *copied.parameters()])))
        return trained, list(copied.buffers())

    of_ranks = run(work, num_ranks)
    expanded = torch.cat([users.repeat_interleave(starts.diff(), 0), items], 1)
    expected, state = train_twice(model, [(expanded, weights)] * 2)
    for step, (out, of_inputs, of_parameters) in enumerate(expected):
        shares = [trained[step] for trained, _ in of_ranks]
        assert_close(torch.cat([share[0] for share in shares]), out, rtol=1e-12, atol=1e-12)
        of_request = torch.arange(len(candidates)).repeat_interleave(starts.diff())
        of_users = torch.zeros_like(users).index_add(0, of_request, of_inputs[:, :2])
        for place, gradient in enumerate([of_users, *of_parameters]):
            got = sum(share[1][place] for share in shares)
            assert_close(got, gradient, rtol=1e-11, atol=1e-11)
    for _, buffers in of_ranks:
        assert_close(buffers, list(state.values()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("candidates", CANDIDATES.values(), ids=CANDIDATES)
def test_moments_over_samples_are_those_over_requests_weighted_by_their_samples(candidates):
    """So statistics of requests need no form of their own, where a layer reads what is repeated."""
    starts, values = torch.tensor([0, *candidates]).cumsum(0), torch.randn(len(candidates), 3).double()
    seen = moments(SharedLists(starts, starts).of_samples(values), None)
    weights = starts.diff()[:, None] / max(int(starts[-1]), 1)
    mean = (weights * values).sum(0)
    assert seen.num_rows == int(starts[-1])
    assert_close(seen.mean, mean)
    assert_close(seen.var, (weights * (values - mean) ** 2).sum(0))


def test_moments_are_those_of_all_rows_whatever_the_deal():
    x = torch.randn(40, 3, dtype=torch.float64) + torch.tensor([0, 100, -1e5])
    for deal in [(40,), (1, 39), (0, 13, 0, 27), (0, 0, 40)]:
        parts = x.split(list(deal))
        results = run(lambda ranks, parts=parts: moments(parts[ranks.rank], ranks), len(deal))
        for seen in results:
            assert seen.num_rows == 40
            assert torch.equal(seen.mean, results[0].mean) and torch.equal(seen.var, results[0].var)
            assert_close(seen.mean, x.mean(0), rtol=1e-14, atol=1e-14)
            assert_close(seen.var, x.var(0, correction=0), rtol=1e-10, atol=0)


@kinds
def test_evaluation_exchanges_nothing(kind):
    model, x = small_model(kind).eval(), torch.randn(5, 4, dtype=torch.float64)
    of_batch = Dice(4, statistics="batch").double().eval()

    def work(ranks):
        for layer in (mine := copy.deepcopy(model)), (copied := copy.deepcopy(of_batch)):
            share_statistics(layer, ranks)
        # A rank that asked for a collective here would wait for the other one in vain.
        return (mine(x), copied(x)) if ranks.rank == 0 else None

    (trained_out, batch_out), _ = run(work, 2)
    assert torch.equal(trained_out, model(x)) and torch.equal(batch_out, of_batch(x))


def statistics_layers(model):
    return [layer for layer in model.modules() if isinstance(layer, BatchNorm | Dice)]


def test_ranks_are_no_part_of_a_models_state_nor_of_its_copies():
    class Unmovable(OneRank):
        num_ranks = 2

        def __deepcopy__(self, memo):
            raise AssertionError("ranks are not copied")

        def __reduce__(self):
            raise AssertionError("ranks are not pickled")

    model = small_model("both")
    names = list(model.state_dict())
    share_statistics(model, ranks := Unmovable())
    layers = statistics_layers(model)
    assert len(layers) == 5 and all(layer.ranks is ranks for layer in layers)
    assert list(model.state_dict()) == names
    for other in (copy.deepcopy(model), copy.copy(layers[0]), pickle.loads(pickle.dumps(model))):
        assert all(layer.ranks is None for layer in statistics_layers(other))
    small_model("both").load_state_dict(model.state_dict())
    assert_close(copy.deepcopy(model).state_dict(), model.state_dict(), rtol=0, atol=0)
    share_statistics(model, None)
    assert all(layer.ranks is None for layer in layers)
