"""Ranks that are processes: here one of them, on a process group of its own."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist

from hotrows.engine.distributed import process_group
from hotrows.engine.distributed.comm import Sent
from hotrows.engine.distributed.job import RankLost
from hotrows.engine.distributed.process_group import Processes


@pytest.fixture
def alone(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Processes(timeout=10)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64]
)
@pytest.mark.parametrize("shape", [(6,), (6, 3), (0,), (0, 3)])
def test_rows_of_any_type_travel(alone, dtype, shape):
    """Gloo refuses the two of 16 bits as they are; bytes of them it takes."""
    rows = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
    found = alone.all_to_all(rows, [len(rows)], [len(rows)]).wait()
    assert found.dtype == dtype
    assert torch.equal(found, rows)


class Nccl:
    """A group of NCCL as far as its errors go."""

    def __init__(self, state):
        self.state, self.aborted = state, 0

    def get_error(self):
        return SimpleNamespace(name=self.state)

    def abort(self):
        self.aborted += 1


@pytest.mark.parametrize(
    ("state", "words"), [("TIMEOUT", "waited more than 10 s"), ("REMOTE_ERROR", "lost another")]
)
def test_what_the_watchdog_of_nccl_has_ended_ends_the_next_collective_on_any_channel(alone, state, words):
    """The device has gone on with values that mean nothing: no checkpoint may be made of them."""
    checkpoints, nccl = alone.channel("checkpoint"), Nccl("SUCCESS")
    alone._on_gpus.append(nccl)
    assert checkpoints.gather_objects(1) == [1] and nccl.aborted == 0
    nccl.state = state
    with pytest.raises(RankLost, match=words):
        checkpoints.gather_objects(1)
    assert nccl.aborted == 1  # whoever else waits for the device goes on, too


def test_a_rank_that_is_lost_to_planning_ends_what_gpus_wait_for(alone):
    planning, nccl = alone.channel("planning"), Nccl("SUCCESS")
    alone._on_gpus.append(nccl)
    with pytest.raises(RankLost):  # as where a connection closes
        planning.all_to_all(torch.ones(2), [1], [2]).wait()
    assert nccl.aborted == 1


def test_the_end_frees_the_groups_of_channels_that_are_kept(tmp_path):
    """Their threads lived into the end of the process, which one that freed a tensor then aborted."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    channel = Processes(timeout=10).channel("checkpoint")
    assert channel.gather_objects(1) == [1] and channel._group is not None
    process_group.end()
    assert channel._group is None and not dist.is_initialized()


def test_the_end_leaves_a_group_that_still_waits_for_a_rank(alone, monkeypatch):
    forever = threading.Event()
    monkeypatch.setattr(process_group, "_GRACE", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(dist, "destroy_process_group", forever.wait)
        process_group.end()
    assert not forever.is_set() and dist.is_initialized()
    forever.set()


def test_the_time_of_arrival_is_known_once_the_result_is():
    """A thread of Gloo noted it, at times after who waited had read it, or as the process ended."""
    future = torch.futures.Future()
    work = SimpleNamespace(get_future=lambda: future, wait=lambda: None)
    pending = process_group._Pending(SimpleNamespace(notes_times=True, sent=Sent()), work, torch.ones(3))
    late = threading.Timer(0.2, future.set_result, [None])
    late.start()
    pending.wait()
    assert pending.arrived_at is not None
    late.join()
