"""The claim of `accelerate`: nothing but the speed differs from plain PyTorch."""

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import hotrows
from hotrows.acceleration.accelerate import acceleration_of
from hotrows.acceleration.gradient import RowGradient
from hotrows.acceleration.parameter import TableParameter
from tests.support.accelerated import (
    DIM,
    FIELDS,
    OPTIMIZERS,
    ROWS,
    Model,
    assert_equal_training,
    assert_same,
    build,
    train,
)


def pair(**options):
    return build(**options), build(accelerated=True, **options)


@pytest.mark.few(10)
@pytest.mark.pairs
@pytest.mark.parametrize("l2", [False, True], ids=["", "l2"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_plain_pytorch(name, l2):
    plain, fast = pair(optimizer=OPTIMIZERS[name])
    assert_same(train(*plain, l2=l2), train(*fast, l2=l2))
    assert type(fast[0].vectors[0].weight.grad) is RowGradient
    assert_equal_training(plain, fast)


@pytest.mark.pairs
@pytest.mark.parametrize("clip", ["norm", "value"])
@pytest.mark.parametrize("l2", [False, True], ids=["", "l2"])
@pytest.mark.parametrize("passes", [1, 2])
def test_clipping_and_accumulation(clip, l2, passes):
    plain, fast = pair()
    settings = {"clip": clip, "l2": l2, "passes": passes}
    assert_same(train(*plain, **settings), train(*fast, **settings))
    assert_equal_training(plain, fast)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "adam, decay", "rmsprop"])
@pytest.mark.parametrize("l2", [False, True], ids=["", "l2"])
def test_float32_errs_at_most_twice_as_much_as_plain(name, l2):
    exact = build(optimizer=OPTIMIZERS[name])
    plain, fast = pair(optimizer=OPTIMIZERS[name], dtype=torch.float32)
    for model in (plain[0], fast[0]):
        model.load_state_dict(exact[0].state_dict())
    exact[0].load_state_dict(plain[0].state_dict())
    for run in (exact, plain, fast):
        train(*run, l2=l2)
    truth, theirs, ours = (dict(run[0].state_dict()) for run in (exact, plain, fast))
    for name, value in truth.items():
        error = (theirs[name].double() - value).abs().max()
        floor = 4 * torch.finfo(torch.float32).eps * value.abs().max()
        assert (ours[name].double() - value).abs().max() <= 2 * error + floor


def test_learning_rates_that_change_and_groups_of_parameters():
    def run(accelerated):
        torch.manual_seed(0)
        model = Model().double()
        vectors = list(model.vectors.parameters())
        others = [p for name, p in model.named_parameters() if not name.startswith("vectors")]
        groups = [{"params": vectors, "lr": 0.02}, {"params": others, "weight_decay": 0.1}]
        optimizer = torch.optim.Adam(groups, lr=0.01)
        before = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        if accelerated:
            hotrows.accelerate(model, optimizer, packing=False, always=True)
        after = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.2], total_steps=40)
        for step in range(12):
            train(model, optimizer, steps=1, seed=step)
            (before if step < 6 else after).step()
        return model, optimizer

    assert_equal_training(run(False), run(True))


def test_a_table_that_no_batch_reads_keeps_still_until_it_is_read():
    class Sometimes(Model):
        skips = False

        def forward(self, x):
            return (
                super().forward(x)
                if not self.skips
                else self.mlp[2](
                    self.mlp[0](
                        torch.cat([t(x[:, f]) for f, t in enumerate(self.vectors)] + [self.bag(x)], 1)
                    )
                ).squeeze(1)
            )

    plain, fast = pair(model=Sometimes)
    for step in range(12):
        for model, optimizer in (plain, fast):
            model.skips = step % 3 == 1
            train(model, optimizer, steps=1, seed=step)
    assert_equal_training(plain, fast)


def test_gradients_set_to_zero_still_count_as_a_step():
    plain, fast = pair()
    train(*plain, to_none=False)
    train(*fast, to_none=False)
    assert_equal_training(plain, fast)


def test_gradients_read_as_tensors_are_those_of_plain_pytorch():
    plain, fast = pair()
    for model, optimizer in (plain, fast):
        train(model, optimizer, steps=3, l2=True)
        optimizer.zero_grad()
        (model(torch.arange(10).reshape(2, 5)).sum() + model.l2()).backward()
    for (name, p), (_, q) in zip(plain[0].named_parameters(), fast[0].named_parameters(), strict=True):
        assert p.grad.shape == q.grad.shape and p.grad.dtype == q.grad.dtype, name
        torch.testing.assert_close(q.grad + 0.5, p.grad + 0.5, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(q.grad.norm(), p.grad.norm(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(q.grad.abs().max(), p.grad.abs().max(), rtol=1e-10, atol=1e-12)


def test_a_gradient_that_holds_old_weights_is_not_read_after_the_step():
    model, optimizer = build(accelerated=True)
    train(model, optimizer, steps=1, l2=True)
    with pytest.raises(RuntimeError, match="vectors.0.weight .* before optimizer.step()"):
        model.vectors[0].weight.grad.norm()
    with pytest.raises(RuntimeError, match="zero_grad"):
        model.l2().backward()


def test_hooks_see_gradients_and_may_change_them():
    seen = []

    def run(accelerated):
        model, optimizer = build(accelerated=accelerated)
        weight = model.vectors[1].weight
        weight.register_hook(lambda grad: grad * 0.5)
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))
        model.shared.register_forward_hook(lambda module, args, out: out * 2)
        train(model, optimizer)
        return model, optimizer

    plain = run(False)
    expected, seen = seen, []
    fast = run(True)
    assert_same(expected, seen)
    assert_equal_training(plain, fast)


@pytest.mark.parametrize("early", [True, False], ids=["before accelerate", "after it"])
def test_a_hook_is_not_called_of_a_table_that_the_loss_does_not_read(early):
    """Of tables that are read at once PyTorch calls it, with None."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (nn.EmbeddingBag(9, 4, mode="sum") for _ in range(2))

        def forward(self, x):
            return (self.a(x).detach().sum(1) + self.b(x).square().sum(1)).sum()

    model, seen = Two(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def watch():
        for name in ("a", "b"):
            model.get_submodule(name).weight.register_hook(
                lambda grad, name=name: seen.append((name, tuple(grad.shape)))
            )

    if early:
        watch()
    hotrows.accelerate(model, optimizer, always=True)
    if not early:
        watch()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([[1, 2], [3, 1]])).backward()
        optimizer.step()
    assert seen == [("b", (9, 4))] * 3


def test_plain_code_on_a_whole_weight_is_right_too():
    """L1 terms, a tied output layer: dense gradients, and steps by the optimizer itself."""

    class Tied(Model):
        def forward(self, x):
            scores = functional.linear(self.shared(x[:, 0]), self.shared.weight)
            return super().forward(x) + scores.mean(1) + 0.1 * self.bag.weight.abs().sum()

    plain, fast = pair(model=Tied)
    for run in (plain, fast):
        train(*run, steps=6)
    assert_equal_training(plain, fast)


def test_copies_saving_and_loading():
    plain, fast = pair()
    train(*plain, steps=5)
    train(*fast, steps=5)
    model = fast[0]
    assert isinstance(model.shared.weight, TableParameter) and isinstance(model, Model)

    copied = copy.deepcopy(model)
    assert type(copied) is Model and type(copied.shared.weight) is nn.Parameter
    assert_same(dict(plain[0].state_dict()), dict(copied.state_dict()))
    assert type(pickle.loads(pickle.dumps(model))) is Model
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": fast[1].state_dict()}, file)

    for options in ({}, {"accelerated": True}):
        file.seek(0)
        saved = torch.load(file)
        other = build(**options)
        train(*other, steps=2, seed=9)
        other[0].load_state_dict(saved["model"])
        other[1].load_state_dict(saved["optimizer"])
        train(*other, steps=5, seed=2)
        again = copy.deepcopy(plain[0]), None
        optimizer = torch.optim.Adam(again[0].parameters(), lr=0.01)
        optimizer.load_state_dict(copy.deepcopy(plain[1].state_dict()))
        train(again[0], optimizer, steps=5, seed=2)
        assert_equal_training((again[0], optimizer), other)


def test_restore_gives_the_plain_model_back():
    plain, fast = pair()
    train(*plain, steps=5)
    train(*fast, steps=5)
    model = hotrows.restore(fast[0])
    assert type(model) is Model and type(model.shared.weight) is nn.Parameter
    assert_same(plain[0].shared.weight.grad, model.shared.weight.grad)
    train(*plain, steps=5, seed=2)
    train(*fast, steps=5, seed=2)
    hotrows.accelerate(*fast, always=True)
    train(*plain, steps=5, seed=3)
    train(*fast, steps=5, seed=3)
    assert_equal_training(plain, fast)


def test_a_weight_read_during_training_is_up_to_date():
    plain, fast = pair()
    for step in range(5):
        train(*plain, steps=1, seed=step)
        train(*fast, steps=1, seed=step)
        for read in (
            lambda model: model.shared.weight.detach().clone(),
            lambda model: model.vectors[2].weight[3:5] * 1.0,
            lambda model: torch.norm(model.linear[0].weight),
            lambda model: model.bag.weight.sum(),
        ):
            torch.testing.assert_close(read(fast[0]), read(plain[0]), rtol=1e-10, atol=1e-12)


def test_weights_that_the_user_writes():
    plain, fast = pair(optimizer=OPTIMIZERS["adam, decay"])
    for step in range(6):
        for model, optimizer in (plain, fast):
            train(model, optimizer, steps=1, seed=step, l2=True)
            with torch.no_grad():
                model.shared.weight[2:4].fill_(0.25)
                model.vectors[0].weight.mul_(0.9)
            model.bag.weight.data = model.bag.weight.data * 0.5
    assert_equal_training(plain, fast)


def test_lazy_leaves_rows_that_are_not_read():
    model, optimizer = build(accelerated=True, lazy=True)
    x = torch.tensor([[1, 2, 3, 4, 5]])
    model(x).sum().backward()
    optimizer.step()
    touched = model.vectors[1].weight.detach().clone()
    optimizer.zero_grad()
    model(x + 1).sum().backward()
    optimizer.step()
    assert torch.equal(model.vectors[1].weight[2], touched[2])  # dense Adam would move it on
    assert not torch.equal(model.vectors[1].weight[3], touched[3])


def test_rows_are_never_further_behind_than_a_bound(monkeypatch):
    monkeypatch.setattr("hotrows.acceleration.optimizer_hooks.MAX_DEFERRED_STEPS", 4)
    plain, fast = pair(optimizer=(torch.optim.Adam, {"weight_decay": 0.1}))
    tables = acceleration_of(fast[0]).tables
    behind = []
    fast[1].register_step_post_hook(lambda *_: behind.append(tables[0].history.num_recorded))
    train(*plain)
    train(*fast)
    assert 0 in behind[3:] and max(behind) == 3
    assert len({id(table.history) for table in tables}) == 1
    assert_equal_training(plain, fast)


@pytest.mark.parametrize("packing", [True, False])
def test_rows_that_are_read_and_not_learned_from_stay_as_they_are(packing):
    """SparseAdam moves rows by their momentum where their gradient is zero, not where there is none."""

    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.items, self.users = (nn.Embedding(6, 3, sparse=True) for _ in range(2))

        def forward(self, ids):
            target = self.items(ids[:, 1]).detach() + self.users(ids[:, 2]).detach()
            return (self.items(ids[:, 0]) * target).sum()

    torch.manual_seed(0)
    plain = Pairs().double()
    fast = copy.deepcopy(plain)
    for model in (plain, fast):
        optimizer = torch.optim.SparseAdam(list(model.parameters()), 0.1)
        if model is fast:
            hotrows.accelerate(model, optimizer, packing=packing, always=True)
        for ids in ([[0, 1, 2]], [[1, 0, 2]], [[2, 0, 1], [2, 1, 1]]):
            optimizer.zero_grad()
            model(torch.tensor(ids)).backward()
            assert model.users.weight.grad is None
            optimizer.step()
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name], weight)


def test_no_gradient_is_recorded_in_inference_mode():
    """`enable_grad` within it does not change that."""

    class Enabling(nn.Module):
        def __init__(self):
            super().__init__()
            self.items = nn.Embedding(6, 3)

        def forward(self, ids):
            with torch.enable_grad():
                return [self.items(ids), self.items.weight.norm(), self.items.weight.square().sum()]

    model = Enabling()
    hotrows.accelerate(model, torch.optim.SGD(model.parameters(), 0.1), packing=False, always=True)
    with torch.inference_mode():
        assert not any(result.requires_grad for result in model(torch.tensor([1, 2])))


def test_sparse_adam_equals_pytorchs():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(ROWS, DIM, sparse=True) for _ in range(FIELDS))

        def forward(self, x):
            return sum(table(x[:, f]).prod(1) for f, table in enumerate(self.tables))

    plain, fast = pair(optimizer=(torch.optim.SparseAdam, {"lr": 0.01}), model=Sparse)
    train(*plain)
    train(*fast)
    assert_equal_training(plain, fast)


def test_a_gradient_scaler():
    plain, fast = pair(dtype=torch.float32)
    scaled = []
    for model, optimizer in (plain, fast):
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        draw = torch.Generator().manual_seed(1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.randint(0, ROWS, (8, FIELDS), generator=draw)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        scaled.append(scaler.get_scale())
    assert scaled[0] == scaled[1]
    assert_equal_training(plain, fast, rtol=1e-4, atol=1e-6)


def test_a_step_with_a_closure():
    plain, fast = pair()
    x = torch.randint(0, ROWS, (8, FIELDS))
    for model, optimizer in (plain, fast):

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
    assert_equal_training(plain, fast)


def test_two_optimizers():
    def run(accelerated):
        torch.manual_seed(0)
        model = Model().double()
        wide = torch.optim.SGD(model.linear.parameters(), lr=0.1, momentum=0.9)
        others = [p for name, p in model.named_parameters() if not name.startswith("linear")]
        deep = torch.optim.Adam(others, lr=0.01)
        if accelerated:
            model, (wide, deep) = hotrows.accelerate(model, [wide, deep], packing=False, always=True)
        for step in range(8):
            wide.zero_grad()
            train(model, deep, steps=1, seed=step)
            wide.step()
        return model, deep

    assert_equal_training(run(False), run(True))


@pytest.mark.parametrize(
    "ids", [torch.tensor([[30, 1, 1, 1, 1]]), torch.tensor([[-1, 1, 1, 1, 1]])], ids=["30", "-1"]
)
def test_an_id_outside_its_table_is_named(ids):
    model, _ = build(accelerated=True)
    with pytest.raises(IndexError, match=rf"id {int(ids[0, 0])} .* vectors.0.weight of 30 rows"):
        model(ids)


def test_an_optimizer_of_another_model_is_warned_of():
    """The model was made anew, and the optimizer is still that of the one before."""
    model, optimizer = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Embedding(ROWS, DIM)), build()[1]
    with pytest.warns(UserWarning, match="the optimizer updates no embedding of this model"):
        hotrows.accelerate(model, optimizer, always=True)


def test_what_cannot_be_accelerated_stays_plain_and_says_why():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.short = nn.Embedding(ROWS, DIM).bfloat16()
            self.frozen = nn.Embedding(ROWS, DIM).requires_grad_(False)
            self.forgotten = nn.Embedding(ROWS, DIM)
            self.fine = nn.Embedding(ROWS, DIM)

        def forward(self, x):
            return (self.short(x).float() * self.frozen(x) * self.forgotten(x) + self.fine(x)).sum()

    model = Mixed()
    optimizer = torch.optim.Adam([model.short.weight, model.frozen.weight, model.fine.weight])
    hotrows.accelerate(model, optimizer, always=True)
    reasons = {x.names[0]: x.rule for x in model._hotrows.embeddings if isinstance(x.rule, str)}
    assert set(reasons) == {"short.weight", "frozen.weight", "forgotten.weight"}
    assert "bfloat16" in reasons["short.weight"] and "frozen" in reasons["frozen.weight"]
    assert "none of the optimizers" in reasons["forgotten.weight"]
    model(torch.tensor([1, 2])).backward()
    optimizer.step()
    assert type(model.short.weight) is nn.Parameter


WRONG = [
    (lambda m, o: hotrows.accelerate(m, "adam"), "must be a torch.optim.Optimizer, .* not str"),
    (lambda m, o: hotrows.accelerate(m, None), "must be a torch.optim.Optimizer, .* not NoneType"),
    (lambda m, o: hotrows.accelerate(m, type(o)), "must be a torch.optim.Optimizer, .* not type"),
    (lambda m, o: hotrows.accelerate(m, [o, 3]), "must be a torch.optim.Optimizer, .* not int"),
    (lambda m, o: hotrows.accelerate(o, m), r"not \w+; the call is hotrows.accelerate\(model"),
    (lambda m, o: hotrows.accelerate(type(m), o), r"of torch.nn.Module, not the class \w+; the call is"),
    (lambda m, o: hotrows.accelerate(m, o, fast_memory=1.5), "number of bytes from 1 on.*, not 1.5"),
    (lambda m, o: hotrows.accelerate(m, o, fast_memory=True), "number of bytes from 1 on.*, not True"),
    (lambda m, o: hotrows.accelerate(m, o, fast_memory=-1), "number of bytes from 1 on.*, not -1"),
    (lambda m, o: hotrows.accelerate(m, o, fast_memory=9, store=Path("t")), "'file:PATH', not .*Path"),
    (lambda m, o: hotrows.lookahead(m, []), r"not list; the call is hotrows.lookahead\(loader, model\)"),
    (lambda m, o: hotrows.explain([1], m), "not list; the call is hotrows.explain"),
    (lambda m, o: hotrows.restore("model"), "not str; the call is hotrows.restore"),
]  # fmt: skip


def test_wrong_arguments():
    """Some were an AttributeError, or a TypeError about an object that is not iterable."""
    model, optimizer = build()
    for call, said in WRONG:
        with pytest.raises(ValueError, match=said):
            call(model, optimizer)
    with pytest.raises(ValueError, match="not accelerated"):
        hotrows.restore(model)
    hotrows.accelerate(model, optimizer, always=True)
    with pytest.raises(ValueError, match="accelerated already"):
        hotrows.accelerate(model, optimizer, always=True)
    with pytest.raises(ValueError, match="before it is wrapped"):
        hotrows.accelerate(nn.DataParallel(build()[0]), optimizer, always=True)


def follow_whole(model):
    model.register_buffer("snapshot", model.linear[0].weight.data)


def follow_rows(model):
    model.head = nn.Parameter(model.linear[0].weight.data[:3])


def follow_turned(model):
    model.decoder = nn.Linear(ROWS, model.linear[0].weight.shape[1], bias=False)
    model.decoder.weight.data = model.linear[0].weight.data.T


@pytest.mark.parametrize("follow", [follow_whole, follow_rows, follow_turned])
def test_a_table_whose_memory_another_parameter_has_stays_plain(follow):
    """Its rows that were behind were read there, and two optimizers' steps were one."""
    model = Model()
    follow(model)
    model, _ = hotrows.accelerate(model, torch.optim.Adam(model.parameters()), always=True)
    refused = hotrows.explain(model, torch.randint(0, ROWS, (8, FIELDS))).refused
    assert (
        list(refused) == ["linear.0.weight"] and "give one of them a copy" in refused["linear.0.weight"]
    )


def test_explain_tells_what_was_packed_and_what_stays_plain():
    torch.manual_seed(0)
    model = Model()
    model.linear[0].weight.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    x = torch.randint(0, ROWS, (8, FIELDS))
    before = hotrows.explain(model, x)
    hotrows.accelerate(model, optimizer, always=True)
    after = hotrows.explain(model, x)
    assert "13 lookups of 12 tables in 1 pack" in str(after) and "13 lookups" in str(before)
    assert "linear.0.weight (frozen" in str(after) and not before.refused
