"""The claim of `fast_memory`: where rows are kept changes no bit of what is trained."""

import copy
import gc
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn

import hotrows
from hotrows.acceleration.accelerate import acceleration_of
from hotrows.acceleration.parameter import NO_TORCH_FUNCTION
from tests.acceleration.keeping import (
    ADAM,
    LEAST,
    OPTIMIZERS,
    ROWS,
    Model,
    Single,
    assert_near,
    assert_same,
    batches,
    build,
    counts,
    quietly,
    state_of,
    step,
)

SIZES = {"pass through": 1, "some": 40, "most": 400}
FAST = SIZES["some"] * LEAST


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("hotrows")]
    assert not left


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    return "memory" if request.param == "memory" else f"file:{tmp_path / 'tables'}"


def trained(optimizer, ahead=False, l2=False, model=Model, **options):
    model, optimizer = build(optimizer, model, **options)
    losses, middle = [], None
    loader = hotrows.lookahead(batches(), model) if ahead else batches()
    for number, ids in enumerate(quietly(loader)):
        losses.append(step(model, optimizer, ids, l2))
        if number == 9:
            middle = state_of(model, optimizer)
    return model, losses, middle, state_of(model, optimizer)


@pytest.mark.few(7)
@pytest.mark.pairs
@pytest.mark.parametrize("ahead", [False, True], ids=["in line", "ahead"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_kept_tables_are_trained_bit_by_bit_as_in_memory(name, size, ahead, store):
    l2 = name in ("adam", "rmsprop")
    _, losses, middle, end = trained(OPTIMIZERS[name], l2=l2)
    options = {"fast_memory": SIZES[size] * LEAST, "store": store}
    model, kept_losses, kept_middle, kept_end = trained(OPTIMIZERS[name], ahead, l2, **options)
    assert kept_losses == losses
    assert_same(kept_middle, middle)
    assert_same(kept_end, end)
    lookups = counts(model)
    if ahead and size == "most":
        assert lookups["ahead"] == 2 * 19, "all but the first batch"
    if size == "pass through":
        assert lookups["copied"] == 2 * 20 and not lookups["brought"]
    if size == "most" and not ahead:
        assert lookups["brought"] == 2 * 20


def test_a_lazy_rule_is_kept_as_well(store):
    options = {"lazy": True, "fast_memory": FAST, "store": store}
    assert_same(trained(ADAM, True, **options)[-1], trained(ADAM, lazy=True)[-1])


def test_sparse_adam_is_kept_as_well():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(ROWS, 4, sparse=True)

        def forward(self, ids):
            return self.table(ids).sum((1, 2))

        def l2(self):
            return 0

    sparse = (torch.optim.SparseAdam, {"lr": 0.01})
    kept = trained(sparse, True, model=Sparse, fast_memory=30 * 52)[-1]
    assert_same(kept, trained(sparse, model=Sparse)[-1])


def test_lookups_made_one_by_one(store):
    options = {"model": Single, "fast_memory": FAST, "store": store}
    memory = trained(ADAM, model=Single)
    for ahead in (False, True):
        assert_same(trained(ADAM, ahead, **options)[-1], memory[-1])
        options["store"] = "memory"


def both(fast_memory=FAST, **options):
    """A pair in memory, and one whose tables are kept."""
    return build(ADAM, **options), build(ADAM, fast_memory=fast_memory, **options)


@pytest.mark.parametrize("fast_memory", [LEAST, FAST, 400 * LEAST])
def test_gradients_of_several_batches_are_stepped_together(fast_memory):
    pairs = both(fast_memory)
    for model, optimizer in pairs:
        for number, ids in enumerate(quietly(batches())):
            model(ids).square().mean().backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    # Rows that pass through are brought up to date beside other rows than in memory: to rounding.
    (assert_same if fast_memory > FAST else assert_near)(*(state_of(*pair) for pair in pairs))


def test_clipping_by_norm_with_penalties():
    pairs = both()
    for model, optimizer in pairs:
        for ids in quietly(batches()):
            step(model, optimizer, ids, l2=True, clip=True)
    assert_near(*(state_of(*pair) for pair in pairs))


def test_values_are_clamped_in_row_gradients():
    pairs = both()
    for model, optimizer in pairs:
        for ids in quietly(batches(6)):
            model(ids).mean().backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()
    assert_same(*(state_of(*pair) for pair in pairs))


def test_evaluation_leaves_the_cache_as_it_is():
    model, optimizer = build(fast_memory=FAST)
    for ids in quietly(batches(4)):
        step(model, optimizer, ids)
    before = [group.cache.rows.tolist() for group in acceleration_of(model).groups]
    with torch.no_grad():
        model(batches(1, seed=7)[0])
    assert [group.cache.rows.tolist() for group in acceleration_of(model).groups] == before


def test_states_are_loaded_into_stores(store):
    source = build()
    for ids in batches(5):
        step(*source, ids)
    saved = [copy.deepcopy(part.state_dict()) for part in source]
    ends = []
    for options in ({}, {"fast_memory": FAST, "store": store}):
        other = build(**options)
        for ids in quietly(batches(3, seed=9)):
            step(*other, ids)
        for part, state in zip(other, saved, strict=True):
            part.load_state_dict(copy.deepcopy(state))
        assert_same(state_of(*other), state_of(*source))
        for ids in quietly(batches(5, seed=3)):
            step(*other, ids)
        ends.append(state_of(*other))
    assert_same(*ends)


def test_an_optimizer_that_has_stepped_brings_its_states(store):
    pairs = []
    for options in ({}, {"fast_memory": FAST, "store": store}):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for ids in batches(3):
            step(model, optimizer, ids)
        hotrows.accelerate(model, optimizer, packing=False, **options, always=True)
        for ids in quietly(batches(5, seed=3)):
            step(model, optimizer, ids)
        pairs.append((model, optimizer))
    assert_same(*(state_of(*pair) for pair in pairs))


def write_copy(weight):
    weight.copy_(torch.arange(weight.numel()).view(weight.shape) / 1000)


def write_init(weight):
    torch.manual_seed(5)
    nn.init.normal_(weight, std=0.1)


def write_data(weight):
    weight.data.fill_(0.25)


def write_new_data(weight):
    weight.data = torch.full(weight.shape, 0.125)


def write_detached_row(weight):
    weight.detach()[3] = 1.5


def write_item(weight):
    weight[4] = 0.75


def write_out(weight):
    torch.mul(torch.ones(weight.shape), 0.5, out=weight)


def write_by_method(weight):
    weight.mul_(2).add_(1)


def write_while_reading(weight):
    weight.data.sub_(weight.data.mean())


def write_by_two_names(weight):
    one, other = weight.data, weight.detach()
    one.mul_(0.5)
    other[3] = weight.data[3] + one[4]
    one[2] = weight.square().sum()


def write_by_numpy(weight):
    np.random.default_rng(0).shuffle(weight.detach().numpy())  # NumPy counts no versions


def write_itself(weight):  # as model.to(device) and model.float() do, where nothing changes
    weight.data = weight


def write_before_new_data(weight):
    before = weight.data
    weight.data = torch.full(weight.shape, 0.125)
    before.fill_(7)


@pytest.mark.parametrize(
    "write",
    [
        write_copy, write_init, write_data, write_new_data, write_detached_row, write_item,
        write_out, write_by_method, write_while_reading, write_by_two_names, write_by_numpy,
        write_before_new_data, write_itself,
    ],
)  # fmt: skip
def test_what_users_write_to_weights_is_kept(write):
    pairs = both()
    for model, optimizer in pairs:
        for number, ids in enumerate(quietly(batches(8))):
            if number == 4:
                with torch.no_grad():
                    write(model.vectors[1].weight)
            step(model, optimizer, ids)
    assert_same(*(state_of(*pair) for pair in pairs))


def test_weights_are_read_as_they_are():
    (plain, _), (kept, _) = pairs = both()
    for ids in quietly(batches(5)):
        for pair in pairs:
            step(*pair, ids)
    one, other = plain.vectors[0].weight, kept.vectors[0].weight
    assert other.shape == one.shape and other.dtype == one.dtype and other.numel() == one.numel()
    with torch.no_grad():
        assert torch.equal(other.detach(), one.detach())
        assert torch.equal(other[:5], one[:5]) and torch.equal(other.norm(1), one.norm(1))
    assert torch.equal(other.norm(), one.norm())
    assert str(other) == str(nn.Parameter(one.detach())) and repr(kept) == repr(plain)
    assert torch.equal(other.cpu().detach(), one.detach())
    with NO_TORCH_FUNCTION():
        assert other.untyped_storage().nbytes() == 4


def test_copies_and_pickles_are_plain(store):
    model, optimizer = build(fast_memory=FAST, store=store)
    for ids in quietly(batches(5)):
        step(model, optimizer, ids)
    copied = copy.deepcopy(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for other in (copied, pickle.loads(pickle.dumps(model)), torch.load(saved, weights_only=False)):
        assert type(other) is Model and type(other.bag.weight) is nn.Parameter
        assert_same(dict(other.state_dict()), dict(model.state_dict()))


def test_restored_models_are_plain_and_go_on(store):
    ids = batches(3, seed=4)
    ends = []
    for options in ({}, {"fast_memory": FAST, "store": store}):
        model, optimizer = build(**options)
        for batch in quietly(batches(5)):
            step(model, optimizer, batch)
        hotrows.restore(model)
        assert type(model) is Model and type(model.bag.weight) is nn.Parameter
        assert model.bag.weight.is_contiguous() and "_hotrows" not in model.__dict__
        torch.manual_seed(0)
        plain = Model()
        plain.load_state_dict(model.state_dict())
        again = torch.optim.Adam(plain.parameters(), lr=0.01)
        again.load_state_dict(optimizer.state_dict())
        for batch in ids:
            plain.zero_grad()
            nn.functional.embedding(batch, plain.vectors[0].weight).sum().backward()
            again.step()
        ends.append(state_of(plain, again))
    assert_same(*ends)


def test_learning_from_all_of_a_table_is_refused():
    model, optimizer = build(fast_memory=FAST)
    size = model.vectors[2].weight.abs().sum()
    with pytest.raises(RuntimeError, match=r"abs has read all of table vectors.2.weight, and the loss"):
        size.backward()
    model.vectors[2].weight.grad = torch.ones(model.vectors[2].weight.shape)
    with pytest.raises(RuntimeError, match=r"vectors.2.weight is kept behind a cache and has a dense"):
        optimizer.step()


def test_tables_that_cannot_be_kept_stay_in_memory_with_the_reason():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = nn.Embedding(ROWS, 4)
            self.wide = nn.Embedding(ROWS, 4, dtype=torch.float64)
            self.most = nn.EmbeddingBag(ROWS, 4, mode="max")

        def forward(self, ids):
            return self.kept(ids).sum() + self.wide(ids).sum() + self.most(ids).sum()

    ends = []
    for options in ({}, {"fast_memory": 2000}):
        model, optimizer = build(model=Mixed, **options)
        for ids in quietly(batches(5)):
            optimizer.zero_grad()
            model(ids).backward()
            optimizer.step()
        ends.append(state_of(model, optimizer))
    assert_same(*ends)
    reasons = {x.names[0]: x.why_in_memory for x in acceleration_of(model).embeddings}
    assert reasons["kept.weight"] == ""
    assert "not float32" in reasons["wide.weight"] and "max" in reasons["most.weight"]
    assert "in memory, not behind the cache: wide.weight (its weights are float64" in str(
        hotrows.explain(model, batches(1)[0])
    )


def test_rows_that_are_cut_to_a_norm():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(ROWS, 4, max_norm=0.5)

        def forward(self, ids):
            return self.table(ids).sum((1, 2))

    ends = []
    for options in ({}, {"fast_memory": 1000}):
        model, optimizer = build(model=Cut, **options)
        for ids in quietly(batches(6)):
            optimizer.zero_grad()
            model(ids).square().mean().backward()
            optimizer.step()
        ends.append(state_of(model, optimizer))
    assert_same(*ends)


def test_several_optimizers_and_a_shared_table():
    class Two(Model):
        def __init__(self):
            super().__init__()
            self.vectors[2].weight = self.vectors[0].weight

    ends = []
    for options in ({}, {"fast_memory": FAST}):
        torch.manual_seed(0)
        model = Two()
        linear = {id(table.weight) for table in model.linear}
        others = [p for p in model.parameters() if id(p) not in linear]
        both = [
            torch.optim.Adagrad([table.weight for table in model.linear], lr=0.1),
            torch.optim.Adam(others, lr=0.01),
        ]
        hotrows.accelerate(model, both, packing=False, **options, always=True)
        for ids in quietly(batches(8)):
            model.zero_grad()
            model(ids.fmod(ROWS)).square().mean().backward()
            for optimizer in both:
                optimizer.step()
        ends.append([state_of(model, optimizer) for optimizer in both])
    for one, other in zip(*ends, strict=True):
        assert_same(one, other)


def test_it_is_said_once_that_training_waits():
    model, optimizer = build(fast_memory=400 * LEAST)
    with pytest.warns(UserWarning, match=r"hotrows.lookahead") as said:
        for ids in batches(20):
            step(model, optimizer, ids)
    assert len(said) == 2, "once for the tables of each width"


def test_wrong_settings_are_refused_in_one_message(tmp_path):
    def refused(message, **options):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters())
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=message):
            hotrows.accelerate(model, optimizer, packing=False, **options, always=True)
        assert_same(dict(model.state_dict()), dict(before))
        assert type(model) is Model and type(model.bag.weight) is nn.Parameter

    refused("a size must be a number of bytes", fast_memory="lots")
    refused("must hold a row of every group", fast_memory=LEAST - 1)
    refused("store must be 'memory' or 'file:PATH'", fast_memory=FAST, store="disk")
    refused("needs fast_memory", store=f"file:{tmp_path / 'new'}")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "something").touch()
    refused("must be a new folder", fast_memory=FAST, store=f"file:{tmp_path / 'old'}")


def test_fast_memory_is_given_as_text_too():
    model, _ = build(fast_memory="1MiB")
    groups = acceleration_of(model).groups
    assert [group.cache.num_slots for group in groups] == [group.num_rows for group in groups]
