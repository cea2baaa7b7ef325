"""Sums over a whole table: a value is that of every row as it is now; only a gradient is lazy.

A table brought only the rows of a batch up to date, and its norm counted all others as they were
stored: a loss divided by that number trained other weights than plain PyTorch.
"""

import threading

import pytest
import torch
from torch import nn

import hotrows

ROWS = 700


def _added(error, w):
    """DeepCTR-Torch adds to zeros of one number in place."""
    terms = torch.zeros((1,), dtype=error.dtype)
    terms += torch.sum(1e-3 * torch.square(w))
    return error + terms


def _seen_through_views(error, w):
    terms = torch.zeros((), dtype=error.dtype)
    view = terms.view(1)
    terms += 1e-3 * w.square().sum()
    return error * (1 + terms.detach()) + view.sum()


def _in_place(error, w):
    loss = error * 1
    loss += 1e-3 * w.norm() ** 2
    loss /= 2
    loss *= 3.0
    return loss


LOSSES = {
    "+ squares": lambda e, w: e + 1e-3 * w.square().sum(),
    "1 - (squares - error)": lambda e, w: 1 - (1e-3 * (w * w).sum() - e),
    "sum of a list": lambda e, w: sum([e, w.pow(2).mean(), 1e-3 * w.norm() ** 2]) / 3,
    "+ norm": lambda e, w: e + 0.1 * w.norm(),
    "/ norm": lambda e, w: e / torch.no_grad()(w.norm)(),
    "* item": lambda e, w: e * (w * w).sum().item(),
    "* squares": lambda e, w: e * (1 + w.square().sum()),
    "log squares": lambda e, w: e + torch.log(w.square().sum()),
    "stacked": lambda e, w: torch.stack([e, 1e-3 * w.square().sum()]).sum(),
    "detached": lambda e, w: e * w.square().sum().detach(),
    "if": lambda e, w: e if w.square().sum() > 5000 else 2 * e,
    "text": lambda e, w: e * float(f"{w.norm():.9e}"),
    "added in place": _added,
    "seen through views": _seen_through_views,
    "changed in place": _in_place,
}


def _trained(accelerates, loss_of, read, dtype=torch.float64, **options):
    """What the loop has read of its losses, and the weights that it ends with."""
    torch.manual_seed(0)
    user, item, out = nn.Embedding(ROWS, 8), nn.Embedding(ROWS, 8), nn.Linear(8, 1)
    model = nn.ModuleList([user, item, out]).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    if accelerates:
        hotrows.accelerate(model, optimizer, **options, always=True)
    seen, losses = [], []
    for step in range(5):
        u, i, y = torch.randint(ROWS, (16,)), torch.randint(ROWS, (16,)), torch.rand(16, 1, dtype=dtype)
        optimizer.zero_grad()
        loss = loss_of((out(user(u) + item(i)) - y).square().mean(), user.weight)
        losses = [*losses[-1:], loss]
        if read == "before":
            seen.append(loss.item())
        if read == "the later one first" and step % 2:
            seen += [loss.item() for loss in reversed(losses)]
        loss.backward()
        if read == "clip":
            seen.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()
        if read == "behind the step":
            seen.append(loss.item())
        if read == "a step later" and len(losses) > 1:
            seen.append(losses[-2].item())
    return torch.cat(
        [torch.tensor(seen, dtype=dtype), *(p.detach().flatten() for p in model.parameters())]
    )


@pytest.mark.parametrize(
    "read", ["before", "behind the step", "a step later", "clip", "the later one first"]
)
@pytest.mark.parametrize("name", LOSSES)
def test_a_value_counts_every_row_as_it_is(name, read):
    expected = _trained(False, LOSSES[name], read)
    torch.testing.assert_close(_trained(True, LOSSES[name], read), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("read", ["before", "a step later", "the later one first"])
@pytest.mark.parametrize("name", ["+ squares", "/ norm", "added in place"])
def test_a_value_behind_a_cache_counts_every_row_as_it_is(name, read):
    in_memory = _trained(False, LOSSES[name], read, torch.float32)
    cached = _trained(True, LOSSES[name], read, torch.float32, fast_memory="30KiB")
    torch.testing.assert_close(cached, in_memory, rtol=1e-4, atol=1e-4)


def _accelerated(optimizer=torch.optim.Adam, **options):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Embedding(ROWS, 8), nn.Embedding(ROWS, 8)])
    return hotrows.accelerate(model, optimizer(model.parameters(), lr=0.1), **options, always=True)


def test_an_added_sum_that_nobody_reads_brings_no_row_up_to_date():
    """Though the loss is held, as loops do, until the next one takes its name."""
    model, optimizer = _accelerated()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model[0](torch.arange(5)).sum() + model[0].weight.square().sum()
        loss.backward()
        optimizer.step()
    table = model[0].weight.table
    assert table.history.num_recorded == 3 and int((table.last == 3).sum()) == 5


def test_memory_of_a_sum_that_nobody_has_read_is_no_number():
    """What gets by all functions of PyTorch, as a collective does, sees that."""
    model, _ = _accelerated()
    loss = 1 + model[0].weight.square().sum()
    with torch._C.DisableTorchFunctionSubclass():
        assert loss.isnan()
    assert type(loss) is not torch.Tensor and loss.item() > 1 and type(loss) is torch.Tensor


READS = {
    "states": lambda model, optimizer: optimizer.state_dict(),
    "weights": lambda model, optimizer: {k: v.clone() for k, v in model.state_dict().items()},
    "lookup": lambda model, optimizer: model[0](torch.arange(90)),
    "norm": lambda model, optimizer: model[0].weight.norm(),
    "write": lambda model, optimizer: model[0].weight.mul_(1.0),
}


@pytest.mark.parametrize("options", [{}, {"fast_memory": "30KiB"}], ids=["memory", "cache"])
@pytest.mark.parametrize("name", READS)
def test_training_goes_on_behind_a_read_in_inference_mode(name, options):
    """States and histories that were made there could not be changed by the next step."""
    ends = []
    for reads in (False, True):
        model, optimizer = _accelerated(**options)
        for step in range(4):
            optimizer.zero_grad()
            (model[0](torch.arange(5) * step) * model[1](torch.arange(5))).sum().backward()
            optimizer.step()
            if reads:
                with torch.inference_mode():
                    READS[name](model, optimizer)
        ends.append(torch.cat([p.detach() for p in model.parameters()]))
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("name", READS)
def test_a_second_thread_that_reads_changes_no_weight(name):
    ends = []
    for reads in (False, True):
        model, optimizer = _accelerated()
        done = threading.Event()

        def read(model=model, optimizer=optimizer, done=done):
            while not done.is_set():
                with torch.no_grad():
                    READS[name](model, optimizer)

        thread = threading.Thread(target=read)
        draw = torch.Generator().manual_seed(0)
        for step in range(60):
            optimizer.zero_grad()
            ids = torch.randint(ROWS, (16,), generator=draw)
            (model[0](ids) * model[1](ids)).sum().backward()
            optimizer.step()
            if reads and step == 2 and name != "write":
                thread.start()
        done.set()
        if thread.ident is not None:
            thread.join()
        ends.append(torch.cat([p.detach() for p in model.parameters()]))
    torch.testing.assert_close(*ends)


def test_the_error_of_a_whole_read_names_what_the_user_wrote():
    model, _ = _accelerated(fast_memory="30KiB")
    with pytest.raises(RuntimeError, match=r"^weight\.T has read all of table 0.weight"):
        (model[0].weight.T @ model[1](torch.arange(ROWS))).sum().backward()


def test_a_whole_read_behind_a_cache_is_refused_for_chosen_inputs_too():
    """`autograd.grad` of the parameters went round the copy that was read, and left its part out."""
    model, _ = _accelerated(fast_memory="30KiB")
    loss = model[0].weight.mean() + model[0](torch.arange(5)).sum()
    with pytest.raises(RuntimeError, match="has read all of table 0.weight"):
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
