"""Gradients of tables: what reads and writes their memory, and every operation with a handler."""

import copy
import ctypes
import inspect
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hotrows
from hotrows.acceleration.gradient import HANDLERS, RowGradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(300, 8), nn.Embedding(50, 8)
        self.top = nn.Linear(16, 1)

    def forward(self, x):
        return self.top(torch.cat([self.user(x[:, 0]), self.item(x[:, 1])], 1)).squeeze(1)


def make(accelerated, **settings):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    if accelerated:
        hotrows.accelerate(model, optimizer, packing=False, **settings, always=True)
    return model, optimizer


def loss_of(model, step=0):
    ids = torch.stack([torch.arange(64) * (37 + step) % 300, torch.arange(64) * (11 + step) % 50], 1)
    return model(ids).square().mean() + 0.01 * model.user.weight.square().sum()


def saved(gradient):
    file = io.BytesIO()
    torch.save(gradient, file)
    file.seek(0)
    return torch.load(file)


def floats_at(gradient):
    return list((ctypes.c_float * 8).from_address(gradient.data_ptr()))


READS = {
    "numpy": lambda g: g.detach().cpu().numpy(),
    "asarray": lambda g: np.asarray(g, dtype=np.float64),
    "tolist": lambda g: g.tolist(),
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),
    "save": saved,
    "deepcopy": lambda g: copy.deepcopy(g).to_dense(),
    "data_ptr": floats_at,
    "from_dlpack": lambda g: torch.from_dlpack(g),
    "untyped_storage": lambda g: g.untyped_storage().nbytes(),
    "share_memory_": lambda g: g.share_memory_().is_shared(),
    "to": lambda g: g.to("cpu", torch.float64),
    "a row": lambda g: g[3],
    "rows": lambda g: list(g)[:5],
    "foreach norm 1": lambda g: torch._foreach_norm([g, torch.ones(3)], 1),
    "read in place": lambda g: torch.ones(g.shape).add_(g),
    "zeros of another dtype": lambda g: torch.zeros_like(g, dtype=torch.float64),
    "plus float64": lambda g: g + torch.ones(g.shape, dtype=torch.float64),
    "by nothing": lambda g: g.div(0.0),
    "times infinity": lambda g: g * float("inf"),
}


@pytest.mark.parametrize("fast_memory", [None, "20KiB"])
@pytest.mark.parametrize("read", READS)
def test_a_gradient_is_read_as_memory_and_stays_one_of_rows(read, fast_memory):
    """numpy and dlpack were errors or crashed; views made the step dense, which a cache refuses."""
    (plain, slow), (fast, quick) = make(False), make(True, fast_memory=fast_memory)
    for model in (plain, fast):
        loss_of(model).backward()
    expected, actual = READS[read](plain.user.weight.grad), READS[read](fast.user.weight.grad)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert fast.user.weight.grad.dense is None
    for optimizer in (slow, quick):
        optimizer.step()
    torch.testing.assert_close(fast.user.weight.detach(), plain.user.weight.detach())


class Penalized(nn.Module):
    """Tables that are looked up together; the loss has the squares of each."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 8) for rows in (300, 1, 50))

    def forward(self, ids):
        return torch.cat([table(ids % table.num_embeddings) for table in self.tables], 1)

    def loss(self, step):
        penalty = sum(torch.norm(table.weight, 2) ** 2 for table in self.tables)
        return self(torch.arange(64) * (37 + step)).square().mean() + 0.01 * penalty

    def weights(self):
        return [table.weight for table in self.tables]


def penalized(accelerated):
    torch.manual_seed(0)
    model = Penalized()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    if accelerated:
        hotrows.accelerate(model, optimizer, always=True)
    return model, optimizer


def one_stepped_alone(model, optimizer):
    kept = [weight.grad for weight in model.weights()[1:]]
    for weight in model.weights()[1:]:
        weight.grad = None
    optimizer.step()
    model.weights()[0].grad = None
    for weight, gradient in zip(model.weights()[1:], kept, strict=True):
        weight.grad = gradient


def one_written(model, optimizer):
    with torch.no_grad():
        model.weights()[1].mul_(3.0)


def again(model, optimizer):
    optimizer.zero_grad()
    model.loss(1).backward()


BETWEEN = {
    "nothing": lambda model, optimizer: None,
    "a write of one table": one_written,
    "a write through data": lambda model, optimizer: model.weights()[2].data.fill_(0.25),
    "a step of one table": one_stepped_alone,
    "another loss": lambda model, optimizer: model.loss(1).backward(),
    "zero_grad, and a loss": again,
}


@pytest.mark.parametrize("between", BETWEEN)
def test_norms_are_those_of_the_present_weights(between):
    """Norms of all tables are made at once: what happens to one of them must not leave them old."""
    seen = []
    for accelerated in (False, True):
        model, optimizer = penalized(accelerated)
        for step in range(3):
            optimizer.zero_grad()
            model.loss(step).backward()
            norms = [weight.grad.norm() for weight in model.weights()]
            optimizer.step()
        again(model, optimizer)
        norms += [weight.grad.norm() for weight in model.weights()]
        BETWEEN[between](model, optimizer)
        gradients = [weight.grad for weight in model.weights() if weight.grad is not None]
        norms += [gradient.norm() for gradient in gradients]
        seen.append([*norms, *(gradient.to_dense() for gradient in gradients)])
    assert len(seen[0]) >= 10
    torch.testing.assert_close(seen[1], seen[0])


def test_a_penalty_that_is_added_after_a_write_counts_with_the_weights_as_they_are():
    seen = []
    for accelerated in (False, True):
        model, _ = penalized(accelerated)
        one, other, _ = model.weights()
        held = torch.square(one)  # by somebody who may yet ask for it
        (model(torch.arange(64)).square().mean() + other.square().sum()).backward()
        norms = [other.grad.norm(), one.grad.norm()]
        with torch.no_grad():
            one.mul_(5.0)
        one.square().sum().backward()
        seen.append([*norms, one.grad.norm(), held.sum()])
    torch.testing.assert_close(seen[1], seen[0])


def numpy_written(gradient):
    gradient.numpy()[:3] = 1.0


def view_kept(gradient):
    flat = gradient.view(-1)
    gradient.mul_(2.0)
    flat.add_(0.5)
    gradient.tanh_()
    return flat.clone()


WRITES = {
    "numpy": numpy_written,
    "dlpack": lambda g: torch.from_dlpack(g).mul_(2.0),
    "a view that is kept": view_kept,
    "apply_": lambda g: g.apply_(lambda x: 2 * x),
    "clamp_ min": lambda g: g.clamp_(min=-1e-3),
    "clamp_ max": lambda g: g.clamp_(max=1e-3),
    "clamp above zero": lambda g: g.clamp_(min=1e-3),
    "lerp_": lambda g: g.lerp_(torch.ones(g.shape), weight=0.1),
    "addcdiv_": lambda g: g.addcdiv_(torch.ones(g.shape), torch.ones(g.shape), value=0.1),
    "copy_ of one row": lambda g: g.copy_(torch.arange(8.0)),
    "out": lambda g: torch.add(g, g, out=g),
    "foreach, of lists": lambda g: torch._foreach_add_(
        [g, torch.ones(g.shape)], [torch.ones(g.shape), g]
    ),
    "foreach mul_": lambda g: torch._foreach_mul_([g, torch.ones(2)], [2.0, 3.0]),
    "clip_grad_value_": lambda g: g.clamp_(-1e-3, 1e-3),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_to_a_gradient_is_stepped(write):
    (plain, slow), (fast, quick) = make(False), make(True)
    for model, optimizer in ((plain, slow), (fast, quick)):
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            WRITES[write](model.user.weight.grad)
            optimizer.step()
    torch.testing.assert_close(fast.user.weight.detach(), plain.user.weight.detach())


@pytest.mark.parametrize("norm_type", [1, 2, float("inf")])
@pytest.mark.parametrize("foreach", [False, True])
def test_clipping_by_any_norm(norm_type, foreach):
    norms = []
    for accelerated in (False, True):
        model, _ = make(accelerated)
        loss_of(model).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type, foreach=foreach))
        norms += [p.grad.to_dense() for p in model.parameters()]
    half = len(norms) // 2
    torch.testing.assert_close(norms[half:], norms[:half])


@pytest.mark.parametrize("operation", HANDLERS, ids=str)
def test_handlers_take_what_the_schema_of_their_operation_allows(operation):
    """`clamp_(min=)` was a TypeError: its handler wanted both bounds."""
    arguments = operation._schema.arguments
    by_place = [argument for argument in arguments if not argument.kwarg_only]
    by_name = {argument.name: None for argument in arguments if argument.kwarg_only}
    signature = inspect.signature(HANDLERS[operation])
    signature.bind(*by_place, **by_name)
    signature.bind(*(argument for argument in by_place if not argument.has_default_value()))


def test_tables_are_not_shared_with_other_processes():
    model, optimizer = make(True)
    loss_of(model).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"hotrows.restore\(model\) first"):
        model.share_memory()


def test_a_gradient_without_memory_is_no_crash():
    model, _ = make(True)
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        torch.utils.dlpack.to_dlpack(model.user.weight.grad)


def by_parameter(model, loss):
    params = list(model.parameters())
    for p, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
        p.grad = gradient


def twice(model, loss):
    loss.backward(retain_graph=True)
    (2 * loss).backward()


WAYS_BACK = {
    "autograd.grad": by_parameter,
    "inputs": lambda model, loss: loss.backward(inputs=list(model.parameters())),
    "twice": twice,
}


@pytest.mark.parametrize("fast_memory", [None, "20KiB"])
@pytest.mark.parametrize("way", WAYS_BACK)
def test_gradients_by_parameter(way, fast_memory):
    """Behind a cache, autograd.grad looked for the gradient of a copy: "not used in the graph"."""
    weights = []
    for accelerated in (False, True):
        model, optimizer = make(accelerated, **({"fast_memory": fast_memory} if accelerated else {}))
        for step in range(3):
            optimizer.zero_grad()
            WAYS_BACK[way](model, loss_of(model, step))
            optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])
    torch.testing.assert_close(weights[1], weights[0])


def test_a_sum_with_dense_numbers_does_not_share_them():
    model, _ = make(True)
    loss_of(model).backward()
    ones = torch.ones(300, 8)
    total = torch.zeros_like(model.user.weight.grad) + ones
    ones.mul_(2)
    assert type(total) is RowGradient and bool((total == 1).all())


def test_restoring_after_a_step_with_a_term_over_the_table():
    """The gradient holds a multiple of a weight that is no more, so restoring was an error."""
    model, optimizer = make(True)
    loss_of(model).backward()
    optimizer.step()
    with pytest.warns(UserWarning, match=r"gradients of user\.weight are None"):
        hotrows.restore(model)
    assert model.user.weight.grad is None and type(model.item.weight.grad) is torch.Tensor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: None, ""),
        (lambda ids: ids.add_(1), "changed in place since the forward pass"),
        (lambda ids: ids.zero_(), "different metadata than during the forward pass"),
    ],
    ids=["the same", "others", "fewer"],
)
def test_a_checkpoint_runs_again_with_the_ids_that_it_had(change, message):
    """Plain PyTorch takes the gradient of the changed ids, which are not those of the output."""

    def gradient(accelerated):
        model, _ = make(accelerated)
        ids = torch.tensor([3, 1, 4, 1, 5])
        out = checkpoint(lambda: model.top(model.user(ids).repeat(1, 2)), use_reentrant=False)
        change(ids)
        out.square().sum().backward()
        return model.user.weight.grad.to_dense()

    if message:
        with pytest.raises(RuntimeError, match=message):
            gradient(accelerated=True)
    else:
        torch.testing.assert_close(gradient(accelerated=True), gradient(accelerated=False))


def test_lookups_of_one_weight_have_a_sparse_gradient_only_if_all_of_them_ask_for_it():
    """Adamax refused the gradient of a weight that a dense bag and a sparse one read."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.user = torch.nn.EmbeddingBag(9, 4, mode="sum")
            self.friend = torch.nn.EmbeddingBag(9, 4, mode="sum", sparse=True)
            self.friend.weight = self.user.weight

        def forward(self, ids):
            return (self.user(ids) * self.friend(ids.flip(0))).sum()

    weights = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.Adamax(model.parameters())
        if accelerated:
            model, optimizer = hotrows.accelerate(model, optimizer, always=True)
        model(torch.arange(6).view(3, 2)).backward()
        assert not model.user.weight.grad.is_sparse
        optimizer.step()
        weights.append(model.user.weight.detach().clone())
    torch.testing.assert_close(weights[1], weights[0])


def test_a_row_taken_by_one_number_is_a_view_that_changes_with_its_table():
    """`weight[tensor(3)]` was a copy, which kept what the row was before max_norm cut it."""
    rows = []
    for accelerated in (False, True):
        model, _ = make(accelerated)
        row = model.user.weight[torch.tensor(3)]
        with torch.no_grad():
            model.user.weight.mul_(0.5)
            model.user.weight[torch.tensor(1)].zero_()
        rows.append((row.detach().clone(), model.user.weight.detach().clone()))
    assert torch.equal(rows[0][0], rows[1][0]) and torch.equal(rows[0][1], rows[1][1])
    assert not rows[1][1][1].any()


def read_data(user, item, ids):
    return (user(ids) * item(ids)).sum(1) + item.weight.data.mean()


def assign_data(user, item, ids):  # as models of knowledge graphs do
    item.weight.data = torch.nn.functional.normalize(item.weight.data, dim=1)
    return (user(ids) + item(ids)).norm(dim=1)


def assign_data_between_lookups(user, item, ids):
    before = item(ids)
    item.weight.data = item.weight.data.flip(0)
    return (user(ids) * (before - 0.5 * item(ids))).sum(1)


def assign_data_of_all(user, item, ids):
    for weight in (user.weight, item.weight):
        weight.data = weight.data.clamp(-0.5, 0.5)
    return (user(ids) * item(ids)).sum(1)


@pytest.mark.parametrize("fast_memory", [None, 2_000])
@pytest.mark.parametrize(
    "computed", [read_data, assign_data, assign_data_between_lookups, assign_data_of_all]
)
def test_the_data_of_a_table_is_up_to_date_in_a_captured_forward(computed, fast_memory):
    """Dynamo reads and sets `weight.data` by functions of its own: rows that were behind went into the
    result, and what was set was lost."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = torch.nn.Embedding(40, 4), torch.nn.Embedding(30, 4)

        def forward(self, ids):
            return computed(self.user, self.item, ids)

    seen = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if accelerated:
            model, optimizer = hotrows.accelerate(model, optimizer, fast_memory=fast_memory, always=True)
        outs = []
        for step in range(5):
            optimizer.zero_grad()
            outs.append(model(torch.arange(step, step + 3)))
            outs[-1].square().sum().backward()
            optimizer.step()
        seen.append(torch.cat([*outs, model.item.weight.flatten()]).detach())
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("options", [{"max_norm": 0.5}, {"scale_grad_by_freq": True}, {}])
def test_a_checkpoint_in_the_forward_runs_its_lookups_as_plain_pytorch_does(reentrant, options):
    """Dynamo's own checkpoint refused in backward rows that its second run had cut to max_norm."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.top = torch.nn.Embedding(8, 4, **options), torch.nn.Linear(4, 1)

        def forward(self, ids):
            def part(x):
                return torch.tanh(self.top(self.user(ids)) + x)

            return checkpoint(part, self.top.bias.repeat(len(ids), 1), use_reentrant=reentrant)

    weights = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if accelerated:
            model, optimizer = hotrows.accelerate(model, optimizer, always=True)
        for _ in range(3):
            optimizer.zero_grad()
            out = model(torch.tensor([3, 1, 4, 1, 5]))
            out.square().sum().backward(retain_graph=True)
            out.square().sum().backward()
            optimizer.step()
        weights.append(model.user.weight.detach().clone())
    torch.testing.assert_close(weights[1], weights[0])


def test_functional_transforms_read_rows_that_are_up_to_date():
    """`torch.func` wraps weights as they are stored; rows that were behind went into the loss."""
    gradients = []
    for accelerated in (False, True):
        model, optimizer = make(accelerated)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        ids = torch.stack([torch.arange(300), torch.arange(300) % 50], 1)

        def loss(params, model=model, ids=ids):
            return torch.func.functional_call(model, params, (ids,)).square().mean()

        gradients.append(torch.func.grad(loss)(dict(model.named_parameters())))
    torch.testing.assert_close(gradients[1], gradients[0])
    cached, _ = make(True, fast_memory="20KiB")
    with pytest.raises(RuntimeError, match="fast_memory"):
        torch.func.grad(loss)(dict(cached.named_parameters()), cached)
