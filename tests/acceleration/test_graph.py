"""Capturing a model: which lookups become one, and that nothing else changes."""

import copy
import dataclasses
import json
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hotrows.acceleration.graph as graph_module
from hotrows.acceleration import explain
from hotrows.acceleration.graph import capture
from hotrows.acceleration.lookup import lookup
from hotrows.acceleration.report import CaptureReport


@pytest.fixture
def calls(monkeypatch):
    """What happened while graphs ran: the number of lookups of each call of lookup, and "linear"s."""

    def counted(lookups, *tensors):
        _events.append(len(lookups))
        return lookup(lookups, *tensors)

    monkeypatch.setattr(graph_module, "lookup", counted)
    _events.clear()
    return _events


class Linear(nn.Linear):
    """A layer that tells when it runs, without being seen by dynamo."""

    def forward(self, x):
        return torch.ops.capture_tests.linear(x, self.weight, self.bias)


_events = []


@torch.library.custom_op("capture_tests::linear", mutates_args=())
def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    _events.append("linear")
    return F.linear(x, weight, bias)


@_linear.register_fake
def _(x, weight, bias):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx, grad):
    x, weight = ctx.saved_tensors
    flat = grad.flatten(0, -2)
    return grad @ weight, flat.t() @ x.flatten(0, -2), flat.sum(0)


_linear.register_autograd(_backward, setup_context=_keep)


def run(model, *inputs, seed=1, **named):
    """The result of `model` and the gradient of each of its parameters, from the same random numbers."""
    model.zero_grad()
    torch.manual_seed(seed)
    result = model(*inputs, **named)
    loss = sum(tensor.square().sum() for tensor in (result if isinstance(result, tuple) else (result,)))
    if loss.requires_grad:
        loss.backward()
    return result, {name: parameter.grad for name, parameter in model.named_parameters()}


def captured(model):
    """A copy of `model` whose forward is captured, and the report."""
    ours = copy.deepcopy(model)
    report = CaptureReport(ours)
    ours.forward = capture(ours.forward, report)
    return ours, report


def equal(model, ours, *inputs, **named):
    """Results, gradients and buffers of both, on copies of the same inputs."""
    plain = run(model, *copy.deepcopy(inputs), **copy.deepcopy(named))
    other = run(ours, *copy.deepcopy(inputs), **copy.deepcopy(named))
    torch.testing.assert_close(other, plain, rtol=1e-6, atol=1e-6)  # sums in another order
    torch.testing.assert_close(dict(ours.named_buffers()), dict(model.named_buffers()), rtol=0, atol=0)


class Many(nn.Module):
    """Tables in a list, in a dict and in bags, one of them shared, and a layer."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(9, 4, padding_idx=-1), nn.Embedding(7, 4)])
        self.named = nn.ModuleDict({"user": nn.Embedding(9, 4), "shared": nn.Embedding(9, 4)})
        self.tied = nn.Embedding(9, 4)
        self.tied.weight = self.named["user"].weight
        self.mean = nn.EmbeddingBag(9, 4, padding_idx=2, include_last_offset=True)
        self.sum = nn.EmbeddingBag(9, 4, mode="sum")
        self.linear = Linear(4, 3)

    def forward(self, x, ends, scales):  # x: [B, 4]
        first = self.linear(scales.view(-1, 4))  # dense, and before the lookups
        vectors = [table(x[:, place] % 7) for place, table in enumerate(self.tables)]
        vectors += [self.named[name](x[:, 2]) for name in self.named]
        vectors += [self.named["shared"](x[:, 0]), self.tied(x[:, 1])]
        vectors += [self.mean(x.reshape(-1), ends), self.sum(x), self.sum(x, per_sample_weights=scales)]
        vectors += [F.embedding(input=x[:, 3], weight=self.tied.weight, padding_idx=-2)]
        vectors += [torch.embedding_bag(self.sum.weight, x.reshape(-1), ends[:-1], mode=1)[0]]
        vectors += [torch.ops.aten.embedding(self.tied.weight, x[:, 3], 3)]
        return first.sum() + torch.cat([self.linear(vector) for vector in vectors])


def example_of_many(num_samples=5):
    x = torch.arange(num_samples * 4).view(-1, 4) % 9
    return x, torch.arange(num_samples + 1) * 4, torch.rand(num_samples, 4)


def test_lookups_of_all_kinds_become_one_call_before_all_else(calls):
    model = Many()
    ours, report = captured(model)
    equal(model, ours, *example_of_many())
    calls.clear()
    ours(*example_of_many())
    assert calls == [12] + ["linear"] * 13
    (graph,) = report.graphs
    tables = [lookup.table for lookup in graph.packs[0]]
    assert tables[:5] == [
        "tables.0.weight",
        "tables.1.weight",
        "named.user.weight",
        "named.shared.weight",
        "named.shared.weight",
    ]
    assert graph.alone == () and (graph.packs[0][6].kind, graph.packs[0][6].rows) == ("bag, mean", 9)


def test_batches_of_any_size_and_the_modes_of_pytorch_give_equal_results(calls):
    model = Many()
    ours, report = captured(model)
    for num_samples in (5, 3, 8, 1):
        equal(model, ours, *example_of_many(num_samples))
    assert calls == (["linear"] * 13 + [12] + ["linear"] * 13) * 4
    model.eval(), ours.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        example = example_of_many()
        torch.testing.assert_close(ours(*example), model(*example), rtol=0, atol=0)
    named = dict(zip(("x", "ends", "scales"), example, strict=True))
    torch.testing.assert_close(ours(**named), model(**named))  # sums in another order
    assert set(calls) == {12, "linear"} and report.notes == []


class Case(nn.Module):
    """Three tables, a layer, and a forward that each test brings along."""

    def __init__(self, forward):
        super().__init__()
        self.a, self.b, self.c = (nn.Embedding(10, 4) for _ in range(3))
        self.bag, self.largest = (nn.EmbeddingBag(10, 4, mode="sum"), nn.EmbeddingBag(10, 4, mode="max"))
        self.often = nn.Embedding(10, 4, scale_grad_by_freq=True)
        self.clipped = nn.Embedding(10, 4, max_norm=0.5)
        self.norm, self.drop, self.linear = nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4)
        self.scales = nn.Parameter(torch.rand(6))
        self.register_buffer("position", torch.arange(6) % 3)
        self.f = forward

    def forward(self, x):
        return self.f(self, x)


def dependent(m, x):
    more = m.a(x).argmax(1)
    return m.a(x) + m.b(more) + m.c(x)


def dependent_in_memory(m, x):
    ids = x.clone()
    ids.copy_(m.a(x).argmax(1))
    return m.b(ids) + m.c(x) + m.a(x)


def changed_before(m, x):
    ids = x.clone()
    ids[0] = 3
    ids += 1
    return m.a(ids) + m.b(ids)


def changed_between(m, x):
    ids = x.clone()
    first = m.a(ids) + m.b(ids)
    ids.add_(1)
    return first + m.b(ids) + m.c(ids)


def changed_through_a_view(m, x):
    ids = x.clone()
    first = m.a(ids).sum() + m.b(ids).sum()
    ids.view(2, 3)[0].fill_(1)
    return first + m.a(ids) + m.b(ids)


@torch.library.custom_op("capture_tests::next", mutates_args=("ids",))
def _next(ids: torch.Tensor) -> None:
    ids.add_(1)


def changed_by_a_custom_op(m, x):
    ids = x.clone()
    first = m.a(ids).sum() + m.b(ids).sum() + m.c(x)
    torch.ops.capture_tests.next(ids)
    torch.ops.aten.add_(ids, 0)
    return first + m.a(ids) + m.b(ids)


def changed_input(m, x):
    first = m.a(x) + m.b(x)
    x.mul_(2).remainder_(10)
    torch.add(x, 0, out=x)
    return first + m.a(x) + m.b(x)


def changed_vectors(m, x):
    v = m.a(x)
    v *= 2
    v = m.drop(F.relu(m.norm(v), inplace=True))
    v[0] = 1
    return v + m.b(x) + m.c(m.position)


def changed_table(m, x):
    first = m.a(x) + m.c(x)
    with torch.no_grad():
        m.b.weight.mul_(2)
    return first.detach() + m.b(x) + m.c(x)


def random_ids(m, x):
    ids = torch.randint(0, 10, x.shape)
    return m.a(ids) + m.b(torch.rand_like(m.scales).mul(9).long()) + m.c(x) + m.b(x)


def no_grad_between(m, x):
    first = m.a(x) + m.b(x)
    with torch.no_grad():
        second = m.b(x) + m.c(x)
    return first + second


def kinds_that_stay_alone(m, x):
    bags = x.view(-1, 1)
    computed = F.embedding(x, m.a.weight * 2)
    trained = F.embedding_bag(bags, m.bag.weight, mode="sum", per_sample_weights=m.scales[:, None])
    return m.a(x) + m.b(x) + m.largest(bags) + m.often(x) + computed + trained


def clipped(m, x):
    return m.clipped(x) + m.a(x) + m.b(x)


def printing(m, x):
    v = m.a(x) + m.b(x)
    print("between")
    return v + m.b(x) + m.c(x)


def with_item(m, x):
    v = m.a(x) + m.b(x)
    return v + m.b(x % (x.max().item() + 1)) + m.c(x)


def branching(m, x):
    v = m.a(x) + m.b(x)
    if v.sum() > 1e9:
        return v
    return v * m.b(x) + m.c(x)


CHANGE_IDS = (  # as autograd would not have it
    changed_between,
    changed_through_a_view,
    changed_by_a_custom_op,
    changed_input,
)
CASES = [
    (dependent, [3], {"b.weight": "its ids depend on another lookup"}),
    (dependent_in_memory, [3], {"b.weight": "its ids depend on another lookup"}),
    (changed_before, [2], {}),
    (changed_between, [2, 2], {}),
    (changed_through_a_view, [2, 2], {}),
    (changed_by_a_custom_op, [3, 2], {}),
    (changed_input, [2, 2], {}),
    (changed_vectors, [3], {}),
    (changed_table, [2, 2], {}),
    (random_ids, [2], dict.fromkeys(("a.weight", "b.weight"), "its ids are made of random numbers")),
    (no_grad_between, [2, 2], {}),
    (
        kinds_that_stay_alone, [2],
        {
            "largest.weight": "mode max", "often.weight": "scale_grad_by_freq",
            "bag.weight": "its per_sample_weights are trained",
            "mul": "its table is computed in the model",
        },
    ),
    (clipped, [2], {"clipped.weight": "max_norm changes rows while reading"}),
    (printing, [2, 2], {}),
    (with_item, [2, 2], {}),
    (branching, [2, 2], {}),
]  # fmt: skip


@pytest.mark.few(6)
@pytest.mark.parametrize(("forward", "packs", "alone"), CASES, ids=[case[0].__name__ for case in CASES])
def test_each_lookup_is_packed_as_far_as_its_ids_allow(forward, packs, alone, calls):
    model = Case(forward)
    ours, report = captured(model)
    with torch.set_grad_enabled(forward not in CHANGE_IDS):
        for _ in range(2):
            equal(model, ours, torch.arange(6) * 7 % 10)
    assert calls == packs * 2
    assert {
        single.lookup.table: single.reason for graph in report.graphs for single in graph.alone
    } == alone
    assert report.notes == []


def test_an_input_that_aliases_another_only_later_is_read_at_its_place(calls):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Embedding(10, 4), nn.Embedding(10, 4)

        def forward(self, x, y):
            x.add_(1)
            return self.a(y) + self.b(y)

    model = Two()
    ours, _ = captured(model)
    with torch.no_grad():
        equal(model, ours, torch.zeros(5).long(), torch.zeros(5).long())
        x = torch.zeros(5).long()
        result = ours(x, x.view(-1))
    torch.testing.assert_close(result, model.a(x) + model.b(x))
    assert calls == [2, 2]


def test_what_the_user_did_wrong_arrives_as_it_would(calls):
    model = Case(dependent)
    ours, _ = captured(model)
    for x in (torch.tensor([1, 12]), torch.tensor([1.0, 2.0]), "word"):
        with pytest.raises(Exception) as plain:
            model(x)
        with pytest.raises(type(plain.value)) as other:
            ours(x)
        assert type(other.value) is type(plain.value)
        assert str(other.value).startswith(str(plain.value).splitlines()[0])


def test_where_dynamo_gives_up_the_model_runs_once_as_it_is(monkeypatch):
    seen = []

    def forward(m, x):
        seen.append("begun")
        v = m.a(x) + m.b(x)
        print("between")
        seen.append("going on")
        return v + m.c(x) + m.a(x)

    def fail(graph, example_inputs, report, linear_paths):
        if any("c_" in str(node.target) for node in graph.graph.nodes):
            raise AssertionError("this graph is too much")
        return rewrite(graph, example_inputs, report, linear_paths)

    rewrite = graph_module.rewrite
    monkeypatch.setattr("hotrows.acceleration.graph.rewrite", fail)
    model = Case(forward)
    ours, report = captured(model)
    for _ in range(2):
        equal(model, ours, torch.arange(5))
    assert seen == ["begun", "going on"] * 4
    assert len(report.notes) == 1 and "this graph is too much" in report.notes[0]


def test_past_the_recompile_limit_the_model_runs_as_it_is(calls):
    model = Case(lambda m, x: (m.a(x) + m.b(x)) * len(m.word))
    ours, report = captured(model)
    with torch._dynamo.config.patch(recompile_limit=2):
        for word in ("a", "bc", "def", "ghij"):  # each is a graph of its own
            model.word = ours.word = word
            equal(model, ours, torch.arange(5))
    assert calls == [2, 2]
    assert len(report.notes) == 1 and "recompile_limit" in report.notes[0]


def test_models_of_one_class_share_no_limit(calls):
    model = Case(dependent)
    with torch._dynamo.config.patch(recompile_limit=2):
        reports = []
        for _ in range(4):
            ours, report = captured(model)
            equal(model, ours, torch.arange(5))
            reports.append(report)
    assert calls == [3] * 4
    assert all(report.notes == [] and len(report.graphs) == 1 for report in reports)


def test_several_threads_run_one_model(calls):
    model = Case(dependent)
    ours, report = captured(model)
    inputs = [torch.arange(size) % 10 for size in (3, 4, 5, 6)]
    results = {}

    def work(x):
        for _ in range(5):
            results[len(x)] = ours(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x in inputs:
        torch.testing.assert_close(results[len(x)], model(x), rtol=0, atol=0)
    assert report.notes == [] and calls == [3] * 20


def test_a_model_with_one_lookup_runs_without_dynamo():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.seen = []

        def forward(self, x):
            self.seen.append(torch.compiler.is_compiling())
            return self.table(x)

    ours, report = captured(Small())
    for _ in range(3):
        ours(torch.arange(5))
    assert ours.seen[1:] == [False, False]
    assert report.graphs[0].alone[0].reason == "no other lookup to pack it with"


def test_a_captured_model_is_compiled_within_another(calls):
    model = Case(dependent)
    ours, _ = captured(model)
    x = torch.arange(5)
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)


def test_the_backend_goes_by_its_name(calls):
    model = Case(dependent)
    ours = copy.deepcopy(model)
    ours.compile(backend="hotrows")
    equal(model, ours, torch.arange(5))
    assert calls == [3]


def test_explain_tells_what_becomes_of_each_lookup_and_leaves_the_model_as_it_was():
    model = Case(lambda m, x: dependent(m, x) + m.drop(m.norm(m.clipped(x))))
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    explained = dataclasses.replace(
        explain(model, torch.arange(10)), refused={"bag.weight": "shared with another optimizer"}
    )
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    text = str(explained)
    assert "3 lookups of 2 tables in 1 pack" in text and "pack 0: 3 lookups (dim 4: 3)" in text
    assert "alone: b.weight (its ids depend on another lookup)" in text
    assert "alone: clipped.weight (max_norm changes rows while reading)" in text
    assert "read by no lookup here: often.weight" in text
    assert "left as it is: bag.weight (shared with another optimizer)" in text
    assert json.loads(json.dumps(explained.as_dict()))["unread"] == [
        "bag.weight",
        "largest.weight",
        "often.weight",
    ]


def test_explain_tells_where_graphs_break(capsys):
    explained = explain(Case(printing), torch.arange(5))
    assert [len(graph.packs) for graph in explained.graphs] == [1, 1]
    assert (
        "break between graphs: Failed to trace builtin operator" in str(explained) and not explained.notes
    )
    assert capsys.readouterr().out == "between\n"


class Seen(nn.Parameter):
    """A table that tells who reads it, but lets dynamo see the call itself."""

    intercepts_in_graphs = True

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if not torch.compiler.is_dynamo_compiling():
            _events.append(function.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def test_a_table_that_intercepts_calls_still_does_so_while_graphs_run(calls):
    model = Case(dependent)
    for table in (model.a, model.b, model.c):
        table.weight.__class__ = Seen
    report = CaptureReport(model)
    forward = capture(model.forward, report)
    forward(torch.arange(5))
    calls.clear()
    forward(torch.arange(5))
    assert [call for call in calls if call in (3, "embedding")] == [3, "embedding"]
    assert [lookup.table for lookup in report.graphs[0].packs[0]] == ["a.weight", "a.weight", "c.weight"]
