"""The claim of `lookahead`: a loop sees the same batches and trains the same model, whatever it does."""

import gc
import random
import threading
import warnings

import pytest
import torch
from torch import nn

import hotrows
from hotrows.acceleration.accelerate import acceleration_of
from hotrows.acceleration.batch_arguments import inputs_from
from tests.acceleration.keeping import (
    DIM,
    FIELDS,
    LEAST,
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
from tests.support.choice import everything

FAST = {"little": 40 * LEAST, "plenty": 400 * LEAST}


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hotrows")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert not threads()


def test_the_loaders_own_batches_come_in_order():
    loader = [{"ids": ids, "rest": object()} for ids in batches()]
    model, optimizer = build(fast_memory=FAST["plenty"])
    ahead = hotrows.lookahead(loader, model)
    assert len(ahead) == 20
    for _ in range(2):
        seen = []
        for batch in quietly(ahead):
            seen.append(batch)
            step(model, optimizer, batch["ids"])
        assert all(one is other for one, other in zip(seen, loader, strict=True))
    assert counts(model)["ahead"] == 2 * 39, "what was learned of batches holds for later epochs"


def test_models_in_memory_are_given_the_loader():
    model, _ = build()
    loader = batches(3)
    assert all(one is other for one, other in zip(hotrows.lookahead(loader, model), loader, strict=True))
    with pytest.raises(ValueError, match="this one is not"):
        hotrows.lookahead(loader, Model())
    with pytest.raises(ValueError, match="in_flight must be at least 1"):
        hotrows.lookahead(loader, model, in_flight=0)


@pytest.mark.few(4)
@pytest.mark.parametrize("in_flight", [1, 2, 4, 7])
@pytest.mark.parametrize("size", FAST)
def test_any_number_of_batches_on_their_way(size, in_flight):
    ends = []
    for options in ({}, {"fast_memory": FAST[size]}):
        model, optimizer = build(**options)
        for _ in range(2):
            for ids in quietly(hotrows.lookahead(batches(9), model, in_flight=in_flight)):
                step(model, optimizer, ids)
        ends.append(state_of(model, optimizer))
    assert_same(*ends)


@pytest.mark.few(3)
@pytest.mark.parametrize("size", FAST)
@pytest.mark.parametrize("seed", range(8) if everything() else range(3))
def test_loops_that_do_as_they_please(seed, size, tmp_path):
    """Batches are skipped, changed, run twice, evaluated, accumulated; loops break off."""
    store = "memory" if seed % 2 else f"file:{tmp_path / 'tables'}"
    ends = []
    for options in ({}, {"fast_memory": FAST[size], "store": store}):
        chance = random.Random(seed)
        model, optimizer = build(**options)
        for epoch in range(4):
            held = []
            for ids in quietly(hotrows.lookahead(batches(8, seed=epoch), model)):
                what = chance.choice(
                    ["train"] * 4 + ["skip", "change", "twice", "test", "gather", "break"]
                )
                if what == "break":
                    break
                if what == "skip":
                    continue
                if what == "test":
                    with torch.no_grad():
                        model(batches(1, seed=chance.randrange(99))[0])
                if what == "change":
                    ids = ids.clone().fmod_(7)
                if what == "twice":
                    model(ids)
                if what == "gather":
                    held.append(model(ids).mean())
                    continue
                step_with(model, optimizer, ids, held)
                held = []
        ends.append(state_of(model, optimizer))
    assert_near(*ends)


def step_with(model, optimizer, ids, held):
    optimizer.zero_grad()
    loss = nn.functional.softplus(model(ids)).mean()
    sum(held, loss).backward()
    optimizer.step()


@pytest.mark.parametrize("size", FAST)
def test_gradients_over_several_batches(size):
    ends = []
    for options in ({}, {"fast_memory": FAST[size]}):
        model, optimizer = build(**options)
        for number, ids in enumerate(quietly(hotrows.lookahead(batches(), model))):
            model(ids).square().mean().backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        ends.append(state_of(model, optimizer))
    assert_near(*ends)


def test_states_are_saved_and_weights_written_while_rows_move():
    ends = []
    for options in ({}, {"fast_memory": FAST["little"]}):
        model, optimizer = build(**options)
        for number, ids in enumerate(quietly(hotrows.lookahead(batches(), model))):
            step(model, optimizer, ids)
            if number % 4 == 3:
                ends.append(state_of(model, optimizer))
                with torch.no_grad():
                    model.vectors[1].weight.mul_(1.5)
        ends.append(state_of(model, optimizer))
    for one, other in zip(ends[: len(ends) // 2], ends[len(ends) // 2 :], strict=True):
        assert_same(one, other)


def test_two_loaders_at_once():
    ends = []
    for options in ({}, {"fast_memory": FAST["little"]}):
        model, optimizer = build(**options)
        one, other = (hotrows.lookahead(batches(seed=seed), model) for seed in (1, 2))
        for first, second in quietly(zip(one, other, strict=True)):
            step(model, optimizer, first)
            step(model, optimizer, second)
        ends.append(state_of(model, optimizer))
    assert_near(*ends)


def test_two_models_in_one_loop():
    ends = []
    for options in ({}, {"fast_memory": FAST["little"]}):
        pairs = [build(**options), build(**options)]
        loops = [hotrows.lookahead(batches(), model) for model, _ in pairs]
        for both in quietly(zip(*loops, strict=True)):
            for pair, ids in zip(pairs, both, strict=True):
                step(*pair, ids)
        ends.append([state_of(*pair) for pair in pairs])
    for one, other in zip(*ends, strict=True):
        assert_same(one, other)


def test_an_error_in_the_loop_leaves_a_model_that_goes_on():
    ends = []
    for options in ({}, {"fast_memory": FAST["little"]}):
        model, optimizer = build(**options)
        with pytest.raises(KeyError):
            for number, ids in enumerate(quietly(hotrows.lookahead(batches(), model))):
                step(model, optimizer, ids)
                if number == 6:
                    raise KeyError("of the loop")
        gc.collect()
        for ids in quietly(hotrows.lookahead(batches(), model)):
            step(model, optimizer, ids)
        ends.append(state_of(model, optimizer))
    assert_same(*ends)


def test_an_error_of_the_loader_comes_after_the_batches_before_it():
    def loader():
        yield from batches(6)
        raise OSError("the seventh is torn")

    model, optimizer = build(fast_memory=FAST["plenty"])
    seen = 0
    with pytest.raises(OSError, match="the seventh is torn"):
        for ids in quietly(hotrows.lookahead(loader(), model)):
            step(model, optimizer, ids)
            seen += 1
    assert seen == 6


def test_an_id_outside_of_its_table_is_refused_where_it_is_looked_up():
    loader = batches(6)
    loader[4] = loader[4].clone()
    loader[4][2, 3] = 10 * ROWS
    model, optimizer = build(fast_memory=FAST["plenty"])
    seen = 0
    with pytest.raises(IndexError, match=r"id 600 is looked up in table vectors.3.weight"):
        for ids in quietly(hotrows.lookahead(loader, model)):
            step(model, optimizer, ids)
            seen += 1
    assert seen == 4


def test_rows_that_could_not_be_moved_are_said_to_be_lost(monkeypatch):
    model, optimizer = build(fast_memory=120 * LEAST)  # batches fit, and the tables do not
    group = acceleration_of(model).groups[0]
    with pytest.raises(OSError, match="disk full"):
        for number, ids in enumerate(quietly(hotrows.lookahead(batches(), model))):
            step(model, optimizer, ids)
            if number == 3:
                monkeypatch.setattr(group.cache.store, "read", _full)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="rows of the tables were lost"):
        model(batches(1)[0])


def _full(rows, out):
    raise OSError("disk full")


def test_asking_for_ids_leaves_no_trace():
    """Random numbers and buffers are as without a look ahead."""

    class Noisy(Model):
        calls = 0

        def forward(self, ids, dense=None):
            dense = self.norm(torch.rand(len(ids), 2))
            scores = super().forward(ids, None)
            Noisy.calls += 1
            return scores + dense.sum(1)

    ends, draws = [], []
    for options in ({}, {"fast_memory": FAST["plenty"]}):
        Noisy.calls = 0
        model, optimizer = build(model=Noisy, **options)
        torch.manual_seed(3)
        for ids in quietly(hotrows.lookahead(batches(), model)):
            step(model, optimizer, ids)
        assert Noisy.calls == 20
        ends.append(state_of(model, optimizer))
        draws.append(torch.rand(3))
    assert_same(*ends)
    assert torch.equal(*draws)


class Named(Model):
    """Its arguments are somewhere in a batch."""

    def forward(self, features, dense=None, *, scale=1.0):
        return scale * super().forward(features["ids"], dense)


def test_arguments_are_found_in_batches():
    loader = [({"ids": ids, "more": [torch.rand(12, 2)]}, torch.rand(12)) for ids in batches()]
    ends = []
    for options in ({}, {"fast_memory": FAST["plenty"]}):
        model, optimizer = build(model=Named, **options)
        for x, y in quietly(hotrows.lookahead(loader, model)):
            optimizer.zero_grad()
            scores = model({"ids": x["ids"]}, dense=x["more"][0].view(12, 2), scale=2.0)
            nn.functional.mse_loss(scores, y).backward()
            optimizer.step()
        ends.append(state_of(model, optimizer))
    assert_same(*ends)
    assert counts(model)["ahead"] == 2 * 19


def test_arguments_that_are_not_in_batches_are_asked_for():
    model, optimizer = build(fast_memory=FAST["plenty"])
    loader = [ids.double() for ids in batches()]
    with pytest.warns(UserWarning, match=r"argument 1 is not in the batch .* pass inputs=") as said:
        for batch in quietly_also(hotrows.lookahead(loader, model)):
            step(model, optimizer, batch.long())
    assert len(said) == 1
    ahead = hotrows.lookahead(loader, model, inputs=lambda batch: batch.long())
    for batch in ahead:
        step(model, optimizer, batch.long())
    assert counts(model)["ahead"] == 2 * 20


def quietly_also(batches):
    """As `quietly`, where other warnings are looked at."""
    iterator = iter(batches)
    while True:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            batch = next(iterator, None)
        for one in said:
            if "training waits" not in str(one.message):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        if batch is None:
            return
        warnings.filterwarnings("ignore", "training waits")
        yield batch


@pytest.mark.parametrize("inputs", [lambda b: b, lambda b: (b,), lambda b: {"ids": b}])
def test_inputs_may_be_a_tensor_a_tuple_or_names(inputs):
    model, optimizer = build(fast_memory=FAST["plenty"])
    for ids in hotrows.lookahead(batches(), model, inputs=inputs):
        step(model, optimizer, ids)
    assert counts(model) == {"ahead": 2 * 20, "brought": 0, "copied": 0}


def test_lookups_that_are_not_known_ahead_end_the_look_ahead():
    model, optimizer = build(model=Single, fast_memory=FAST["plenty"])
    loader, seen = batches(), []
    with pytest.warns(UserWarning, match="most lookups of this model") as said:
        for ids in hotrows.lookahead(iter(loader), model, inputs=lambda batch: batch):
            seen.append(ids)
            step(model, optimizer, ids)
            assert len(seen) < 10 or not threads()
    assert len(said) == 1 and all(one is other for one, other in zip(seen, loader, strict=True))
    memory = build(model=Single)
    for ids in loader:
        step(*memory, ids)
    assert_same(state_of(model, optimizer), state_of(*memory))


def test_inputs_that_fit_no_model_are_said_once():
    model, optimizer = build(fast_memory=FAST["plenty"])
    with pytest.warns(UserWarning, match=r"could not ask Model for the ids .*TypeError") as said:
        for ids in hotrows.lookahead(batches(), model, inputs=lambda b: {"unknown": b}):
            step(model, optimizer, ids)
    assert len(said) == 1


def test_a_model_within_another_module():
    class Wrapper(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, batch):
            return self.model(batch["ids"]).sigmoid()

    model, optimizer = build(fast_memory=FAST["plenty"])
    wrapper = Wrapper(model)
    loader = [{"ids": ids} for ids in batches()]
    for batch in quietly(hotrows.lookahead(loader, wrapper)):
        optimizer.zero_grad()
        wrapper(batch).mean().backward()
        optimizer.step()
    assert counts(model)["ahead"] == 2 * 19


def test_paths_are_found_by_identity_and_by_memory():
    ids, other = torch.arange(6).view(2, 3), torch.rand(2)
    batch = [{"a": (ids, other)}, "word"]
    arguments = inputs_from(batch, (ids[:], None, [other]), {"all": batch[0]})(batch)
    assert (
        torch.equal(arguments.args[0], ids)
        and arguments.args[1] is None
        and arguments.args[2][0] is other
    )
    assert arguments.kwargs["all"] is batch[0]
    with pytest.raises(LookupError, match=r"argument 1 is not in the batch"):
        inputs_from(batch, (ids[:, :2],), {})


class Captured(nn.Module):
    """Written as anyone would: its lookups are packed by capturing its forward."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.ModuleList(nn.Embedding(ROWS, DIM) for _ in range(FIELDS))
        self.linear = nn.ModuleList(nn.Embedding(ROWS, 1) for _ in range(FIELDS))
        self.norm = nn.BatchNorm1d(FIELDS * DIM)
        self.top = nn.Linear(FIELDS * DIM, 1)

    def forward(self, ids):
        deep = self.norm(torch.cat([table(ids[:, f]) for f, table in enumerate(self.vectors)], 1))
        return (self.top(deep) + sum(table(ids[:, f]) for f, table in enumerate(self.linear))).squeeze(1)


def test_captured_models_are_looked_ahead_of():
    ends = []
    for options in ({}, {"fast_memory": FAST["plenty"]}):
        torch.manual_seed(0)
        model = Captured()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        hotrows.accelerate(model, optimizer, **options, always=True)
        for ids in quietly(hotrows.lookahead(batches(), model)):
            step(model, optimizer, ids)
        ends.append(state_of(model, optimizer))
    assert_same(*ends)
    assert counts(model)["ahead"] == 2 * 19
