"""The claim about optimizers: hooks, closures, settings and states act on tables as on any parameter."""

import copy
import io
import pickle
from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import hotrows
from hotrows.acceleration.table_state import TableState
from tests.acceleration import keeping
from tests.acceleration.fuzz.loops import SharpnessAware
from tests.support.accelerated import ADAM, FIELDS, OPTIMIZERS, ROWS, assert_equal_training, build, train

SGD, SPARSE = torch.optim.SGD, (torch.optim.SparseAdam, {"lr": 0.01})
MOMENTUM = OPTIMIZERS["momentum"]


def both(run, optimizer=ADAM):
    """The run of a plain pair and of an accelerated one, which end alike; returns what they showed."""
    shown = []
    for accelerated in (False, True):
        model, made = build(optimizer, accelerated)
        shown.append((model, made, run(model, made)))
    (plain, its, expected), (fast, own, actual) = shown
    assert_equal_training((plain, its), (fast, own))
    torch.testing.assert_close(actual, expected)
    return actual


def halve(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.mul_(0.5)


# ---- closures


@pytest.mark.parametrize(
    ("kind", "options"), [(torch.optim.LBFGS, {"lr": 0.1, "max_iter": 4}), (SharpnessAware, {"lr": 0.1})]
)
def test_an_optimizer_that_calls_its_closure_again_is_left_alone(kind, options):
    x, calls = torch.randint(0, ROWS, (8, FIELDS)), []

    def run(model, optimizer):
        assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
        calls.append(0)

        def closure():
            calls[-1] += 1
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return [optimizer.step(closure).detach() for _ in range(3)]

    both(run, (kind, options))
    assert calls[0] == calls[1] > 3


def test_hooks_behind_a_step_may_call_its_closure():
    x = torch.randint(0, ROWS, (8, FIELDS))

    def run(model, optimizer):
        losses = []
        optimizer.register_step_post_hook(lambda optimizer, args, kwargs: losses.append(args[1]()))

        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        return [[optimizer.step(closure) for _ in range(3)], losses]

    both(run)


# ---- hooks


@pytest.mark.parametrize("name", ["sgd", "adam", "amsgrad"])
@pytest.mark.parametrize("where", ["late", "global", "scheduler", "clip"])
def test_hooks_in_front_of_a_step_change_gradients_of_tables(name, where):
    def run(model, optimizer):
        norms, handle = [], None
        if where == "global":
            handle = register_optimizer_step_pre_hook(halve)
        elif where == "clip":
            optimizer.register_step_pre_hook(
                lambda *_: norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
            )
        else:
            optimizer.register_step_pre_hook(halve)
        if where == "scheduler":  # which wraps `step`
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        try:
            train(model, optimizer, steps=4)
        finally:
            if handle is not None:
                handle.remove()
        return norms

    both(run, OPTIMIZERS[name])


def test_hooks_around_a_step_see_gradients_of_tables():
    plain, fast = build(), build()
    seen = [[], []]
    for (model, optimizer), gradients in zip((plain, fast), seen, strict=True):
        for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
            register(lambda *_, m=model, g=gradients: g.append(m.shared.weight.grad.clone() + 0))
    hotrows.accelerate(*fast, packing=False, always=True)
    for pair in (plain, fast):
        train(*pair, steps=3)
    torch.testing.assert_close(*seen)


def test_a_step_that_fails_leaves_no_gradient_for_the_next():
    def run(model, optimizer):
        train(model, optimizer, steps=2)
        optimizer.state[model.shared.weight].pop("exp_avg")
        with pytest.raises(KeyError, match="exp_avg"):
            train(model, optimizer, steps=1)
        optimizer.state.clear()
        train(model, optimizer, steps=2)

    model, optimizer = build(accelerated=True)
    run(model, optimizer)
    hotrows.restore(model)
    assert type(model.shared.weight) is nn.Parameter


# ---- settings


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (MOMENTUM, {"momentum": 0.0}),
        ((SGD, {"lr": 0.1}), {"momentum": 0.9}),
        ((SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}), {"momentum": 0.0}),
        (MOMENTUM, {"maximize": True}),
        (MOMENTUM, {"nesterov": True, "weight_decay": 0.1}),
        (ADAM, {"maximize": True}),
        (ADAM, {"betas": (0.5, 0.6), "weight_decay": 0.1, "decoupled_weight_decay": True}),
        (ADAM, {"differentiable": True}),
        (OPTIMIZERS["amsgrad"], {"amsgrad": False}),
        (OPTIMIZERS["adagrad"], {"maximize": True, "lr_decay": 0.1}),
        (OPTIMIZERS["rmsprop, centered"], {"momentum": 0.0, "centered": False}),
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["in place", "loaded"])
def test_settings_that_change_are_those_of_tables_too(optimizer, settings, how):
    def put(made, changes):
        if how == "in place":
            for group in made.param_groups:
                group.update(changes)
        else:
            state = copy.deepcopy(made.state_dict())
            for group in state["param_groups"]:
                group.update(changes)
            made.load_state_dict(state)

    def run(model, made):
        before = {name: made.param_groups[0][name] for name in settings}
        for changes in ({}, settings, before):
            put(made, changes)
            train(model, made, steps=3)

    both(run, optimizer)


def test_parameters_may_change_groups():
    def run(model, optimizer):
        group = optimizer.param_groups[0]
        own = [model.shared.weight, model.bag.weight]
        group["params"] = [p for p in group["params"] if all(p is not weight for weight in own)]
        train(model, optimizer, steps=3)
        optimizer.add_param_group({"params": own, "lr": 0.1, "betas": (0.5, 0.9)})
        train(model, optimizer, steps=3)
        optimizer.param_groups = [{**g, "weight_decay": 0.1} for g in reversed(optimizer.param_groups)]
        train(model, optimizer, steps=3)

    both(run)


# ---- states


def _written(optimizer):
    for entry in optimizer.state.values():
        for name, state in entry.items():
            if name != "step":
                state.data.mul_(0.5).add_(0.01)
            elif isinstance(state, torch.Tensor):
                state.fill_(1)


def _assigned(optimizer):
    for entry in optimizer.state.values():
        entry.update({n: x.clone() + 0.1 if n != "step" else x for n, x in entry.items()})


def _replaced(optimizer):
    optimizer.state = defaultdict(dict)


RESETS = {
    "clear": lambda optimizer: optimizer.state.clear(),
    "replace": _replaced,
    "pop": lambda optimizer: [optimizer.state.pop(weight) for weight in list(optimizer.state)[::2]],
    "clear entries": lambda optimizer: [entry.clear() for entry in optimizer.state.values()],
    "write": _written,
    "assign": _assigned,
    "read": lambda optimizer: None,
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", ["momentum", "adagrad", "adam", "rmsprop", "amsgrad"])
@pytest.mark.parametrize("reset", RESETS)
def test_states_may_be_read_and_changed_between_steps(name, reset):
    if name == "adagrad" and torch.__version__ < "2.13" and reset not in ("write", "assign", "read"):
        pytest.skip("this Adagrad of PyTorch makes its state once")

    def run(model, optimizer):
        train(model, optimizer, steps=3)
        entry = optimizer.state[model.shared.weight]
        RESETS[reset](optimizer)
        shown = [dict(entry) for entry in optimizer.state.values()]
        shown = copy.deepcopy([entry for entry in shown if entry])
        train(model, optimizer, steps=3)
        shown += [dict(entry) for entry in optimizer.state.values()]
        if reset == "read":
            assert optimizer.state[model.shared.weight] is entry
        return [*shown, dict(optimizer.state[model.shared.weight])]

    assert both(run, OPTIMIZERS[name])


def test_a_state_that_no_rule_knows_is_stepped_by_pytorch():
    """Its numbers may lie in memory otherwise, as may those of SparseAdam, whose gradients are sparse."""

    def run(model, optimizer):
        train(model, optimizer, steps=2)
        for entry in optimizer.state.values():
            for name in set(entry) - {"step"}:
                entry[name] = entry[name].t().contiguous().t()
        train(model, optimizer, steps=2)

    both(run)


def test_sparse_adam_may_maximize():
    ends = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleList(nn.Embedding(ROWS, 3, sparse=True) for _ in range(2)).double()
        optimizer = SPARSE[0](model.parameters(), **SPARSE[1])
        if accelerated:
            hotrows.accelerate(model, optimizer, packing=False, always=True)
        for step in range(4):
            optimizer.param_groups[0]["maximize"] = step > 1
            optimizer.zero_grad()
            (model[0](torch.arange(step, 5)) * model[1](torch.arange(step, 5))).sum().backward()
            optimizer.step()
        ends.append([dict(model.state_dict()), optimizer.state_dict()["state"]])
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("name", ["momentum", "adam", "amsgrad"])
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save", "optimizer", "copy"])
def test_copies_of_an_optimizer_go_on(name, how):
    def copied(model, optimizer):
        pair = model, optimizer
        if how == "deepcopy":
            return copy.deepcopy(pair)
        if how == "pickle":
            return pickle.loads(pickle.dumps(pair))
        if how == "torch.save":
            torch.save(pair, file := io.BytesIO())
            file.seek(0)
            return torch.load(file, weights_only=False)
        if how == "copy":  # it shares the model's parameters
            return model, copy.copy(optimizer)
        other = copy.deepcopy(optimizer)
        model.load_state_dict(model.state_dict())
        optimizer.load_state_dict(other.state_dict())
        return pair

    pairs = []
    for accelerated in (False, True):
        pair = build(OPTIMIZERS[name], accelerated)
        train(*pair, steps=3)
        pair = copied(*pair)
        if how in ("deepcopy", "pickle", "torch.save"):
            assert not any(isinstance(entry, TableState) for entry in pair[1].state.values())
        train(*pair, steps=3)
        pairs.append(pair)
    assert_equal_training(*pairs)


def test_states_that_were_given_out_are_up_to_date_when_they_are_loaded():
    def run(model, optimizer):
        train(model, optimizer, steps=3)
        state = optimizer.state_dict()  # of the very tensors that go on
        train(model, optimizer, steps=3)
        optimizer.load_state_dict(state)
        train(model, optimizer, steps=3)

    both(run)


def test_restored_optimizers_have_plain_states():
    model, optimizer = build(accelerated=True)
    train(model, optimizer, steps=3)
    assert isinstance(optimizer.state[model.shared.weight], TableState)
    hotrows.restore(model)
    assert all(type(entry) is dict for entry in optimizer.state.values())


# ---- behind a cache


def _kept_pair(optimizer=keeping.ADAM):
    return keeping.build(optimizer), keeping.build(optimizer, fast_memory=40 * keeping.LEAST)


@pytest.mark.parametrize("reset", ["clear", "write", "assign", "read"])
def test_states_behind_a_cache_may_be_changed(reset):
    ends = []
    for model, optimizer in _kept_pair():
        for number, ids in enumerate(keeping.quietly(keeping.batches(8))):
            keeping.step(model, optimizer, ids)
            if number == 4:
                RESETS[reset](optimizer)
                ends.append(copy.deepcopy([dict(entry) for entry in optimizer.state.values()]))
        ends.append(keeping.state_of(model, optimizer))
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-5, atol=1e-7)
    keeping.assert_near(ends[1], ends[3])


def test_settings_that_need_other_states_behind_a_cache_are_refused():
    _, (model, optimizer) = _kept_pair(keeping.OPTIMIZERS["sgd"])
    ids = keeping.batches(1)[0]
    keeping.step(model, optimizer, ids)
    assert not optimizer.state_dict()["state"]
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(RuntimeError, match=r"need the states \['momentum_buffer'\].*hotrows.restore"):
        keeping.step(model, optimizer, ids)
    optimizer.param_groups[0]["momentum"] = 0.0
    keeping.step(model, optimizer, ids)
    optimizer.param_groups[0]["differentiable"] = True
    with pytest.raises(RuntimeError, match="a state or settings in its optimizer"):
        keeping.step(model, optimizer, ids)
