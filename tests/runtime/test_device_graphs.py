"""Captures, streams and waits of a device, pretended or real; and that the pretended one refuses what a
real one refuses: a mistake is planted, and found."""

import threading
import warnings

import pytest
import torch

from hotrows import ops
from hotrows.engine.storage.store import empty_records
from hotrows.runtime.device import Cuda
from hotrows.runtime.transfer import to_device
from tests.support import pretend
from tests.support.devices import KINDS, device_of

CUDA = pretend.CUDA


@pytest.fixture(params=KINDS)
def device(request):
    with device_of(request.param) as device:
        yield device


@pytest.fixture
def pretended():
    with pretend.gpu() as device:
        yield device


@pytest.fixture
def training(device):
    """The stream of training, current."""
    with device.ahead_of_lanes():
        yield torch.cuda.current_stream()


def on_device(*numbers):
    return torch.tensor(numbers, device="cpu").to(CUDA)


# ---- captures


def test_a_graph_repeats_its_operations_with_the_numbers_of_its_capture(device, training):
    total, step = on_device(0.0), 5

    def work():
        nonlocal step
        total.add_(step)
        step += 5
        return total * 2

    launch = device.capture(work)
    assert total.item() == 0, "a capture executes nothing"
    assert [launch().item() for _ in range(3)] == [10, 20, 30] and step == 10
    total.fill_(1)
    assert launch().item() == 12, "what is in memory is read again"


def test_a_graph_reads_what_is_in_its_tensors_when_it_is_launched(device, training):
    read, rows = on_device(1.0, 2.0), on_device(1, 0)
    launch = device.capture(lambda: read[rows].cumsum(0)[1:] + read.new_ones(1))
    assert launch().item() == 4
    read.copy_(on_device(5.0, 7.0))
    assert launch().item() == 13


def test_random_numbers_of_a_graph_are_new_ones(device, training):
    launch = device.capture(lambda: torch.rand(8, device=CUDA))
    first = launch().cpu().clone()
    assert not torch.equal(first, launch().cpu())


def test_lanes_of_a_capture_are_in_its_graph(device, training):
    x, other = on_device(1.0), on_device(1.0)

    def work(joins=True):
        mark = device.launch("side 0", lambda: x.mul_(2), [device.mark()], [x])
        if joins:
            device.wait(mark, [x])
        return (x if joins else other) + 1

    launch = device.capture(work)
    assert [launch().item() for _ in range(3)] == [3, 5, 9]
    with pytest.raises(RuntimeError):
        device.capture(lambda: work(joins=False))


def test_captures_of_one_pool_share_its_memory(device, training):
    pool, x = device.graph_pool(), on_device(1.0)
    launches = [device.capture(lambda n=n: (x * n).sum(), pool) for n in range(1, 5)]
    assert [launch().item() for launch in launches] == [1, 2, 3, 4]


REFUSED = {
    "a number": lambda x: x * x[0].item(),
    "a mask": lambda x: x[x > 1],
    "a mask that is written": lambda x: x.index_put_((x > 1,), x.new_zeros(())),
    "distinct values": lambda x: x.unique_consecutive(),
    "counts": lambda x: x.long().bincount(),
    "copies to the host": lambda x: x.cpu(),
    "copies from the host": lambda x: x + torch.ones(2, device="cpu").to(x.device),
    "an index of the host": lambda x: x[torch.tensor([0], device="cpu")],
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_waits_for_the_device_fails_in_a_capture_and_leaves_the_process_as_it_was(
    device, training, what
):
    x = on_device(1.0, 2.0)
    with pytest.raises(RuntimeError):
        device.capture(lambda: REFUSED[what](x))
    assert torch.cuda.current_stream() == training
    torch.cuda.empty_cache()  # which asserts that no capture is under way
    torch.rand(2, device=CUDA)
    assert torch.equal(x.cpu(), torch.tensor([1.0, 2.0], device="cpu"))
    assert device.capture(lambda: x * 2)().cpu().tolist() == [2, 4]


def test_work_that_raises_leaves_the_process_as_it_was(device, training):
    with pytest.raises(KeyError):
        device.capture(lambda: {}["missing"])
    torch.cuda.empty_cache()
    torch.rand(2, device=CUDA)
    assert torch.cuda.current_stream() == training


@pytest.mark.gpu
def test_after_a_refused_capture_memory_of_lanes_is_reused():
    device = Cuda()
    with device.ahead_of_lanes():
        x = torch.ones(8, device="cuda")
        with pytest.raises(RuntimeError):
            device.capture(lambda: x * x[0].item())
        for step in range(200):
            block = device.empty("upload", 16 << 20)
            device.wait(device.launch("upload", block.zero_, holds=[block]), [block])
            del block
            if step == 20:
                torch.cuda.synchronize()
                before = torch.cuda.memory_reserved()
        torch.cuda.synchronize()
        assert torch.cuda.memory_reserved() <= before + (256 << 20)


def test_a_failed_capture_that_nobody_ends_is_noticed(pretended, monkeypatch):
    """As a real one is: by random numbers, the allocator, and the stream."""
    monkeypatch.setattr(pretend.PretendDevice, "_end_failed_capture", lambda self, pool: None)
    x = on_device(1.0)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        pretended.capture(lambda: x * x.item())
    with pytest.raises(RuntimeError, match="Offset increment outside graph capture"):
        torch.rand(2, device=CUDA)
    with pytest.raises(RuntimeError, match="INTERNAL ASSERT"):
        torch.cuda.empty_cache()


def test_a_graph_that_reads_what_was_given_back_is_noticed(pretended):
    read = [on_device(1.0)]
    launch = pretended.capture(lambda: read[0] + 1)
    assert launch().item() == 2
    read.clear()
    with pytest.raises(RuntimeError, match="given back"):
        launch()


# ---- waits


def test_waits_are_noted_with_their_places_and_those_of_other_threads_are_not(device, training):
    x = on_device(1.0, 2.0)
    with device.noting_waits() as places:
        x.sum()
    assert places == []
    with pytest.warns(UserWarning, match="another"), device.noting_waits() as places:
        warnings.warn("another", stacklevel=1)
        assert x.sum().item() == 3
        thread = threading.Thread(target=lambda: x.max().item())
        thread.start()
        thread.join()
    assert len(places) == 1 and "test_device_graphs.py:" in places[0]
    assert torch.cuda.get_sync_debug_mode() == 0


def test_where_waits_are_errors_they_raise(device, training):
    x = on_device(1.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            x.item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_copies_wait_unless_their_memory_is_locked(pretended):
    x = on_device(1.0, 2.0)
    pretend.waits.clear()
    locked = to_device(pretended, torch.ones(3, device="cpu"))
    pretended.wait(locked.mark, locked.blocks)
    torch.ones(2, device="cpu").pin_memory().to(CUDA, non_blocking=True)
    assert not pretend.waits
    torch.ones(2, device="cpu").to(CUDA, non_blocking=True)
    x.cpu()
    assert pretend.waits.total() == 2


def test_a_kernel_reads_no_host_memory_that_is_not_locked(device):
    records, rows = empty_records(8, 16), on_device(3, 1)
    records.random_(0, 256)
    out = device.empty("move", 2, 16)
    with pytest.raises(ValueError, match="cannot be accessed"):
        device.wait(device.mark())
        ops.copy_rows(records, rows, out, None)
    device.page_lock(records)
    mark = device.launch("move", lambda: ops.copy_rows(records, rows, out, None), [device.mark()], [rows])
    device.finish(mark)
    assert torch.equal(out.cpu(), records[[3, 1]])


# ---- streams


def test_training_and_what_is_captured_of_it_come_before_lanes(device):
    with device.ahead_of_lanes():
        assert torch.cuda.current_stream().priority < 0
    priorities = {name: device._lane(name).priority for name in ("capture", "side 2", "plan", "move")}
    assert priorities == {"capture": -1, "side 2": -1, "plan": 0, "move": 0}


def test_a_stopped_run_is_waited_for(pretended):
    """The default stream gets its tables' memory back, while kernels may be under way."""
    outer = torch.cuda.current_stream()
    with pytest.raises(KeyboardInterrupt), pretended.ahead_of_lanes():
        stream = torch.cuda.current_stream()
        raise KeyboardInterrupt
    assert outer.waited_for == [stream] and torch.cuda.current_stream() is outer


@pytest.fixture
def tf32():
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    yield products
    products.allow_tf32 = before == "tf32"
    products.fp32_precision = before


@pytest.mark.parametrize("way", ["new", "old"])
@pytest.mark.parametrize("is_on", [True, False])
def test_products_in_tf32_by_either_name(tf32, way, is_on):
    from hotrows.ops.triton import launch

    if way == "new":
        tf32.fp32_precision = "tf32" if is_on else "ieee"
    else:
        tf32.allow_tf32 = is_on
    assert launch.products() == ("tf32" if is_on else "tf32x3")
    with Cuda().products_in_tf32():
        assert tf32.allow_tf32 and launch.products() == "tf32"
    assert launch.products() == ("tf32" if is_on else "tf32x3")
    assert tf32.allow_tf32 == is_on
