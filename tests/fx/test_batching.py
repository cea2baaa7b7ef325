"""Batched models against themselves, run as they are written; and what they launch."""

import copy
import itertools
import random

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.testing import assert_close

from hotrows.acceleration.graph import hotrows
from hotrows.fx.batching import MAX_FLOPS, Batching, describe
from hotrows.nn import batched
from tests.nn.launches import launches_of_step


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Looped(nn.Module):
    """A model that is a function of its modules and its inputs."""

    def __init__(self, modules, function):
        super().__init__()
        self.parts, self.function = modules, function

    def forward(self, *inputs):
        return self.function(self.parts, *inputs)


def linears(num, width=6, to=4):
    return nn.ModuleList(nn.Linear(width, to) for _ in range(num))


def perceptrons(num, *sizes, last=True):
    pairs = list(itertools.pairwise(sizes))
    layers = [[m for pair in pairs for m in (nn.Linear(*pair), nn.ReLU())] for _ in range(num)]
    return nn.ModuleList(nn.Sequential(*modules[: None if last else -1]) for modules in layers)


def tensors_of(outputs):
    return [outputs] if isinstance(outputs, torch.Tensor) else [*outputs]


def results(model, inputs):
    """Outputs, and the gradients of inputs and parameters; the loss is a weighted sum of the outputs."""
    inputs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = tensors_of(model(*inputs))
    leaves = [x for x in (*inputs, *model.parameters()) if x.requires_grad]
    loss = sum((out.double() * _weights_like(out)).sum() for out in outputs)
    return outputs, torch.autograd.grad(loss, leaves, allow_unused=True)


def _weights_like(out):
    return torch.linspace(0.5, 2.0, out.numel(), device=out.device).view_as(out)


def check(model, *inputs, rtol=1e-12, atol=1e-12, backend="eager") -> Batching:
    """The batched model gives what the model gives; returns what was done to its first graph."""
    done = []
    names = list(model.state_dict())
    compiled = batched(model, backend, report=done.append)
    for batch_inputs in (inputs, [torch.cat([x, x[:3]]) for x in inputs]):  # another batch size
        expected, outcomes = results(model, batch_inputs), results(compiled, batch_inputs)
        assert_close(outcomes, expected, rtol=rtol, atol=atol)
        for out, plain in zip(outcomes[0], expected[0], strict=True):
            assert out.stride() == plain.stride() or out.is_contiguous() == plain.is_contiguous()
    assert list(model.state_dict()) == names
    return done[0]


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def calls(done):
    return {(group.call, group.num) for group in done.groups}


def test_projections_of_fields_are_one_product_one_relu_and_one_layout_change():
    def project(parts, x):
        return torch.cat([F.relu(part(x[:, i])) for i, part in enumerate(parts)], 1)

    model = Looped(linears(5), project).double()
    done = check(model, double(7, 5, 6))
    assert calls(done) == {("linear", 5), ("relu", 5)}
    assert (done.calls_before, done.calls_after) == (11, 5)  # stacks of weights and biases included


def test_lookups_that_come_one_by_one_are_stacked():
    def project(parts, *xs):
        return torch.stack([part(x).relu() for part, x in zip(parts, xs, strict=True)], 1)

    model = Looped(linears(4), project).double()
    assert calls(check(model, *(double(7, 6) for _ in range(4)))) == {("linear", 4), ("relu", 4)}


@pytest.mark.parametrize("pieces", ["split", "chunk", "unbind", "slices", "select"])
def test_pieces_of_one_tensor_are_never_copied(pieces):
    def project(parts, x):
        taken = {
            "split": lambda: x.split(6, 1),
            "chunk": lambda: torch.chunk(x, 4, dim=1),
            "unbind": lambda: x.unflatten(1, (4, 6)).unbind(1),
            "slices": lambda: [x[:, 6 * i : 6 * i + 6] for i in range(4)],
            "select": lambda: map(x.unflatten(1, (4, 6)).select, [1] * 4, range(4)),
        }[pieces]()
        return sum(part(piece) for part, piece in zip(parts, taken, strict=True))

    model = Looped(linears(4), project).double()
    assert check(model, double(7, 24)).calls_after == 4  # two stacks, baddbmm, sum


def test_experts_that_share_their_input_stay_batched_from_the_first_layer_to_the_last():
    def mix(parts, x):
        experts = torch.stack([expert(x) for expert in parts["experts"]], 1)
        gates = [gate(x).softmax(-1) for gate in parts["gates"]]
        mixed = [(gate.unsqueeze(1) @ experts).squeeze(1) for gate in gates]
        return [tower(x) for tower, x in zip(parts["towers"], mixed, strict=True)]

    parts = {
        "experts": perceptrons(8, 12, 8, 6),
        "gates": linears(3, 12, 8),
        "towers": perceptrons(3, 6, 5, 1, last=False),
    }
    done = check(Looped(nn.ModuleDict(parts), mix).double(), double(9, 12))
    assert calls(done) >= {("linear", 8), ("relu", 8), ("linear", 3), ("softmax", 3), ("matmul", 3)}
    assert done.calls_after < done.calls_before / 2


def attention(parts, *inputs):
    """DIN's, padded, in plain PyTorch: queries [B, D], keys [B, T, D] and a mask of each history."""
    outcomes = []
    for i, mlp in enumerate(parts):
        query, keys, mask = inputs[3 * i : 3 * i + 3]
        queries = query.unsqueeze(1).expand(-1, keys.shape[1], -1)
        scores = mlp(torch.cat([queries, keys, queries - keys, queries * keys], -1)).squeeze(-1)
        scores = scores.masked_fill(mask == 0, -1e9).softmax(-1)
        outcomes.append(torch.matmul(scores.unsqueeze(1), keys).squeeze(1))
    return torch.cat(outcomes, 1)


def test_attentions_are_one_jointly_padded_attention():
    parts = nn.ModuleList(
        nn.Sequential(nn.Linear(16, 5), nn.Sigmoid(), nn.Linear(5, 1)) for _ in range(6)
    )
    inputs = [x for _ in parts for x in (double(3, 4), double(3, 7, 4), torch.rand(3, 7) > 0.3)]
    done = check(Looped(parts, attention).double(), *inputs)
    names = {group.call for group in done.groups}
    assert names >= {"cat", "linear", "sigmoid", "masked_fill", "softmax", "matmul"}
    assert all(group.num == 6 for group in done.groups)
    assert done.calls_after < done.calls_before / 3


def test_co_actions_are_one_batched_product_per_layer():
    def act(_, *inputs):
        outcomes = []
        for weights, x in zip(inputs[::2], inputs[1::2], strict=True):
            first, second = weights[:, :12].view(-1, 4, 3), weights[:, 12:].view(-1, 3, 2)
            hidden = torch.tanh(torch.bmm(x, first))
            outcomes.append(torch.cat([hidden, torch.bmm(hidden, second)], -1).sum(1))
        return torch.cat(outcomes, -1)

    inputs = [x for _ in range(4) for x in (double(5, 18), double(5, 6, 4))]
    done = check(Looped(nn.ModuleList(), act), *inputs)
    assert [g.call for g in done.groups] == ["bmm", "tanh", "bmm", "cat", "sum"]


def test_groups_of_different_widths_are_apart():
    def project(parts, *xs):
        return torch.cat([part(x) for part, x in zip(parts, xs, strict=True)], 1)

    parts = nn.ModuleList(nn.Linear(width, 4) for width in (3, 5, 3, 5, 3, 5, 7))
    model = Looped(parts, project).double()
    done = check(model, *(double(6, part.in_features) for part in parts))
    assert [(g.call, g.num) for g in done.groups] == [("linear", 3), ("linear", 3)]


def test_modules_that_depend_on_one_another_are_apart():
    def chain(parts, x):
        first = [part(x) for part in parts[:3]]
        second = [part(y) for part, y in zip(parts[3:6], first, strict=True)]
        return parts[6](first[0]) + parts[7](sum(second))

    done = check(Looped(linears(8, 6, 6), chain).double(), double(5, 6))
    assert [group.num for group in done.groups] == [3, 4]  # and one alone


def test_a_module_that_is_called_many_times_is_one_product_with_its_own_weights():
    def project(parts, x):
        return torch.stack([F.gelu(parts[0](column)) for column in x.unbind(1)], 1)

    model = Looped(linears(1), project).double()
    assert check(model, double(5, 4, 6)).calls_after == 2 + 1  # linear, gelu, the stack's copy


def test_modules_with_and_without_biases_norms_and_activations():
    def run(parts, x):
        return torch.cat([F.silu(norm(linear(x))) for linear, norm in parts], -1)

    for bias in (True, False):
        pairs = [
            nn.ModuleList([nn.Linear(6, 4, bias=bias), nn.LayerNorm(4, bias=bias)]) for _ in range(6)
        ]
        done = check(Looped(nn.ModuleList(pairs), run).double(), double(5, 2, 6))
        assert calls(done) == {("linear", 6), ("layer_norm", 6), ("silu", 6)}


def test_random_draws_are_made_as_before():
    def run(parts, x):
        return torch.cat([F.dropout(part(x), 0.5, parts.training).relu() for part in parts], 1)

    model = Looped(linears(4), run).double()
    x, compiled = double(5, 6), batched(model)
    for training in (True, False):
        model.train(training)
        torch.manual_seed(7)
        expected = model(x)
        torch.manual_seed(7)
        assert_close(compiled(x), expected)
    assert calls(check(model.eval(), x)) == {("linear", 4), ("relu", 4)}


def test_layers_behind_random_draws_keep_their_order():
    def run(parts, x):
        layers = [(parts[i], parts[i + 1]) for i in range(0, 6, 2)]
        return sum(second(F.dropout(first(x), 0.3)) for first, second in layers)

    model = Looped(linears(6, 6, 6), run).double()
    x, compiled = double(5, 6), batched(model)
    torch.manual_seed(3)
    expected = results(model, [x])
    torch.manual_seed(3)
    assert_close(results(compiled, [x]), expected)


def test_changes_in_place_stay_where_they_are():
    def run(parts, x):
        ys = [F.relu(part(x), inplace=True) for part in parts[:4]]
        total = torch.zeros_like(ys[0])
        for y in ys:
            total += y
        parts.counter.add_(1)
        zs = [part(total.clone()) * parts.counter for part in parts[4:]]
        total[0] = 0
        return torch.cat([*zs, total, parts[0](x[:, :6])], 1)

    parts = linears(8, 6, 6)
    parts.register_buffer("counter", torch.zeros(1, dtype=torch.float64))
    model = Looped(parts, run).double()
    plain, x = copy.deepcopy(model), double(5, 6)
    compiled = batched(model)
    for _ in range(2):
        assert_close(results(compiled, [x]), results(plain, [x]))
    assert_close(model.parts.counter, plain.parts.counter)


def test_a_weight_that_changes_between_two_calls_is_stacked_again():
    def run(parts, x):
        before = sum(part(x) for part in parts)
        with torch.no_grad():
            for part in parts:
                part.weight.mul_(2)
        return before, sum(part(x) for part in parts)

    model = Looped(linears(4), run).double()
    plain, x = copy.deepcopy(model), double(5, 6)
    with torch.no_grad():
        assert_close(batched(model)(x), plain(x))


def test_a_sum_that_changes_on_its_way_is_made_step_by_step():
    def run(parts, x):
        ys = [part(x) for part in parts]
        total = ys[0] + ys[1]
        total.mul_(2)
        begun = ys[0] + ys[1]
        return total + ys[2] + ys[3], begun, begun + ys[2]

    model, x = Looped(linears(4), run).double(), double(5, 6)
    check(model, x)
    outcomes = []
    for run in (model, batched(model)):
        _, begun, out = run(x)
        outcomes.append(torch.autograd.grad(out.sum(), begun))
    assert_close(outcomes[1], outcomes[0])


def test_a_copy_of_what_changes_later_stays_that_copy():
    def run(parts, x):
        ys = [part(x) for part in parts]
        copies = [y.t().reshape(-1) for y in ys]
        for y in ys:
            y.mul_(2)
        return torch.stack([torch.relu(copy) for copy in copies])

    check(Looped(linears(5), run).double(), double(5, 6))


def test_gradients_that_are_switched_off_inside_stay_off():
    def run(parts, x):
        with torch.no_grad():
            fixed = [part(x) for part in parts]
        return sum(part(x) * factor for part, factor in zip(parts, fixed, strict=True))

    check(Looped(linears(4), run).double(), double(5, 6))


def test_what_is_returned_may_be_changed_by_the_caller():
    def run(parts, x):
        ys = [part(x) for part in parts]
        return [*ys, torch.cat([y.relu() for y in ys], 0)]

    model = Looped(linears(4), run).double()
    x, compiled = double(5, 6), batched(model)

    def change(outputs):
        for place, out in enumerate(outputs):
            out.mul_(place + 2)
        return torch.autograd.grad(sum(out.sum() for out in outputs), list(model.parameters()))

    assert_close(change(compiled(x)), change(model(x)))


def test_what_is_returned_and_used_has_the_gradient_of_its_use():
    def run(parts, x):
        ys = [part(x) for part in parts]
        return [*ys, sum(y.relu() for y in ys)]

    model = Looped(linears(4), run).double()
    x, outcomes = double(5, 6), []
    for run in (model, batched(model)):
        *ys, out = run(x)
        outcomes.append(torch.autograd.grad(out.sum(), ys))
    assert_close(outcomes[1], outcomes[0])


def test_views_that_are_returned_and_used_have_the_gradient_of_their_use():
    def run(parts, x):
        ys = [part(x).unsqueeze(0) for part in parts]
        return [*ys, sum(y.relu() for y in ys)]

    model = Looped(linears(4), run).double()
    x, outcomes = double(5, 6), []
    for run in (model, batched(model)):
        *ys, out = run(x)
        outcomes.append(torch.autograd.grad(out.sum(), ys))
    assert_close(outcomes[1], outcomes[0])


def test_returned_views_may_be_changed_by_the_caller():
    model = Looped(linears(4), lambda parts, x: [part(x).unsqueeze(0) for part in parts]).double()
    x, outcomes = double(5, 6), []
    for run in (model, batched(model)):
        outputs = [out.mul_(2) for out in run(x)]
        outcomes.append(torch.autograd.grad(sum(outputs).sum(), list(model.parameters())))
    assert_close(outcomes[1], outcomes[0])


def test_hooks_of_tensors_change_gradients_as_before():
    def run(parts, x):
        ys = [part(x) for part in parts]
        for y in ys[1:]:
            y.register_hook(lambda grad: grad * 3)
        return sum(y.relu() for y in ys)

    check(Looped(linears(5), run).double(), double(5, 6))


def test_what_does_not_learn_is_apart():
    def run(parts, x):
        return [part(x) for part in parts]

    model = Looped(linears(8), run).double()
    model.parts[:4].requires_grad_(False)
    for plain, ours in zip(model(x := double(5, 6)), batched(model)(x), strict=True):
        assert ours.requires_grad == plain.requires_grad


def test_hooks_of_modules_see_and_change_what_they_did():
    model = Looped(linears(4), lambda parts, x: sum(part(x) for part in parts)).double()
    model.parts[1].register_forward_hook(lambda module, args, out: out * 3)
    model.parts[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    check(model, double(5, 6))


def test_unused_results_and_unused_modules():
    def run(parts, x):
        ys = [part(x) for part in parts[:4]]
        return ys[1] + ys[3]

    check(Looped(linears(6), run).double(), double(5, 6))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's, at the second graph
def test_graph_breaks_leave_parts_that_are_batched_by_themselves():
    def run(parts, x):
        ys = [part(x).relu() for part in parts]
        torch._dynamo.graph_break()
        return sum(part(y[:, :3].repeat(1, 2)) for part, y in zip(parts, ys, strict=True))

    done = []
    model = Looped(linears(4), run).double()
    compiled, x = batched(model, report=done.append), double(5, 6)
    assert_close(results(compiled, [x]), results(model, [x]))
    assert len(done) == 2 and all(batching.groups for batching in done)


def test_types_under_autocast_are_those_of_the_model():
    def run(parts, x):
        ys = [part(x).relu().softmax(-1) for part in parts]
        return torch.cat(ys, 1)

    model = Looped(linears(4), run)
    x, compiled = torch.randn(64, 6), batched(model)
    with torch.autocast("cpu", torch.bfloat16):
        outcomes, expected = results(compiled, [x]), results(model, [x])
    assert outcomes[0][0].dtype == expected[0][0].dtype
    assert_close(outcomes, expected, rtol=2e-2, atol=2e-2)


def test_autocast_inside_of_the_model():
    def run(parts, x):
        with torch.autocast("cpu", torch.bfloat16):
            ys = [part(x) for part in parts]
        return sum(part(y.float()[:, :1] * x) for part, y in zip(parts, ys, strict=True))

    check(Looped(linears(4), run), torch.randn(8, 6), rtol=2e-2, atol=2e-2)


def test_large_members_are_left_alone():
    rows = MAX_FLOPS // (2 * 64 * 64)
    model = Looped(linears(4, 64, 64), lambda parts, x: sum(part(x) for part in parts))
    for factor, groups in ((0.5, 1), (2, 0)):
        torch._dynamo.reset()
        done = []
        batched(model, report=done.append)(torch.zeros(int(rows * factor), 64))
        assert len(done[0].groups) == groups


def test_two_members_are_not_worth_their_copies():
    model = Looped(linears(2), lambda parts, x, y: (parts[0](x), parts[1](y))).double()
    assert check(model, double(5, 6), double(5, 6)).groups == ()


def test_an_empty_batch():
    def run(parts, x):
        return torch.cat([part(x).relu().unsqueeze(1) for part in parts], 1)

    model = Looped(linears(4), run)
    assert_close(batched(model)(torch.zeros(0, 6)), model(torch.zeros(0, 6)))


def test_a_description_changes_nothing():
    seen = []

    def backend(graph_module, example_inputs):
        code = graph_module.code
        seen.append(describe(graph_module))
        assert graph_module.code == code
        return graph_module.forward

    model = Looped(linears(4), lambda parts, x: sum(part(x) for part in parts))
    torch.compile(model, backend=backend)(torch.randn(5, 6))
    assert str(seen[0]) == "8 calls became 4\n  4 x linear -> [5, 4]"


def test_compilers_behind_it_see_the_batched_graph():
    model = Looped(linears(4), lambda parts, x: sum(part(x).relu() for part in parts)).double()
    assert check(model, double(5, 6), backend="aot_eager").groups


def test_lookups_are_packed_behind_it_and_results_are_batched():
    def run(parts, ids):
        tables, layers = parts
        rows = [table(ids[:, i]) for i, table in enumerate(tables)]
        return torch.cat([layer(row) for layer, row in zip(layers, rows, strict=True)], 1)

    tables = nn.ModuleList(nn.Embedding(9, 6) for _ in range(4))
    model = Looped(nn.ModuleList([tables, linears(4)]), run).double()
    done = check(model, torch.randint(0, 9, (5, 4)), backend=hotrows)
    assert calls(done) == {("linear", 4)}


def test_the_graph_runs_on_the_device_as_far_as_shapes_and_types_go():
    outcomes = []

    def backend(graph_module, inputs):
        with FakeTensorMode():
            device = [torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in inputs]
            outcomes.extend(graph_module(*device))
        return graph_module.forward

    parts = nn.ModuleList(nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 1)) for _ in "abc")
    inputs = [x for _ in parts for x in (torch.rand(3, 4), torch.rand(3, 7, 4), torch.ones(3, 7))]
    expected = batched(Looped(parts, attention), backend)(*inputs)
    assert outcomes[0].shape == expected.shape and outcomes[0].device.type == "cuda"


def test_the_launches_of_a_step_do_not_grow_with_the_number_of_modules():
    def project(parts, x):
        return torch.cat([F.relu(part(x[:, i])) for i, part in enumerate(parts)], 1)

    counts = []
    for num in (5, 20):
        torch._dynamo.reset()
        model, x = Looped(linears(num), project), torch.randn(3, num, 6, requires_grad=True)
        counts.append([launches_of_step(wrap, model, x) for wrap in (torch.compile, batched)])
    (_, few), (plain, many) = counts
    assert few == many == (5, 6)
    assert plain == (41, 120)  # of twenty: the gradients of slices of x are added up, too


# Random models

_STEPS = {
    "linear": lambda part, x: part(x),
    "relu": lambda part, x: torch.relu(x),
    "tanh": lambda part, x: x.tanh(),
    "gelu": lambda part, x: F.gelu(x),
    "softmax": lambda part, x: x.softmax(-1),
    "norm": lambda part, x: F.layer_norm(x, (4,), part.bias, part.bias),
    "square": lambda part, x: x * x,
    "residual": lambda part, x: x + part(x),
    "matmul": lambda part, x: x @ part.weight,
    "turned": lambda part, x: x.unsqueeze(1).transpose(1, 2).reshape(-1, 4),
    "outer": lambda part, x: torch.bmm(x.unsqueeze(2), x.unsqueeze(1)).sum(1),
    "halves": lambda part, x: torch.cat([x[:, 2:], x[:, :2].sigmoid()], -1),
    "chunks": lambda part, x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "scaled": lambda part, x: 1 - 0.5 * x,
    "masked": lambda part, x: x.masked_fill(x > 1, 0.25),
    "mean": lambda part, x: x - x.mean(1, keepdim=True),
}


def random_loop(seed):
    """A loop of modules: each goes through the same steps, but that some leave some out."""
    rng = random.Random(seed)
    num, steps = rng.randint(2, 7), rng.choices(sorted(_STEPS), k=rng.randint(1, 5))
    left_out = {(rng.randrange(num), rng.randrange(len(steps))) for _ in range(rng.randint(0, 2))}
    start = rng.choice(("shared", "slices", "chain"))
    end = rng.choice(("cat", "stack", "sum", "list", "some"))

    def run(parts, x):
        outcomes, last = [], x[:, 0]
        for i, part in enumerate(parts):
            y = {"shared": x[:, 0], "slices": x[:, i], "chain": last}[start]
            for place, step in enumerate(steps):
                y = y if (i, place) in left_out else _STEPS[step](part, y)
            last = y if i % 3 == 0 else last
            outcomes.append(y)
        return {
            "cat": lambda: torch.cat(outcomes, -1),
            "stack": lambda: torch.stack(outcomes, 1),
            "sum": lambda: sum(outcomes),
            "list": lambda: [y + 0 for y in outcomes],
            "some": lambda: torch.cat([outcomes[-1], *outcomes[:-1]], 0),
        }[end]()

    return Looped(linears(num, 4, 4), run).double(), double(3, num, 4)


@pytest.mark.few(20)
@pytest.mark.parametrize("seed", range(100))
def test_random_loops_equal_plain(seed):
    torch.manual_seed(seed)
    model, x = random_loop(seed)
    expected, outcomes = results(model, [x]), results(batched(model), [x])
    assert_close(outcomes, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(10))
def test_random_loops_equal_plain_on_the_device(seed):
    model, x = random_loop(torch.seed() % 100_000)
    model, x = model.cuda(), x.cuda()
    torch.full((1 << 20,), float("nan"), device="cuda")  # memory that is given out again is poisoned
    expected, outcomes = results(model, [x]), results(batched(model), [x])
    assert_close(outcomes, expected, rtol=1e-12, atol=1e-12)
