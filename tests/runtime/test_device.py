"""What a device promises, as far as the calls that it makes show it without one."""

import gc
import mmap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hotrows.engine.storage.store import empty_records
from hotrows.runtime.device import Cuda, find


class Runtime:
    """The part of CUDA's runtime that locks pages; it refuses pages that are locked already."""

    def __init__(self):
        self.pages = {}

    def cudaHostRegister(self, address, size, flags):
        pages = set(range(address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)))
        if any(pages & others for others in self.pages.values()):
            return 712
        self.pages[address] = pages
        return 0

    def cudaHostUnregister(self, address):
        del self.pages[address]
        return 0


@pytest.fixture
def runtime(monkeypatch):
    cudart = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return cudart


def test_small_tables_are_locked_each_on_pages_of_its_own(runtime):
    device = Cuda()
    kept = [empty_records(rows, stride) for rows in (1, 3, 1000) for stride in (4, 20, 516)]
    for records in kept:
        device.page_lock(records)
    assert len(runtime.pages) == len(kept)


def test_what_is_locked_is_unlocked_before_its_memory_goes_back(runtime):
    records = empty_records(100, 16)
    Cuda().page_lock(records)
    part = records[3:5]
    assert runtime.pages
    del records, part
    gc.collect()
    assert not runtime.pages


def test_what_the_system_does_not_lock_is_said(runtime, monkeypatch):
    monkeypatch.setattr(runtime, "cudaHostRegister", lambda *_: 2)
    with pytest.raises(ValueError, match="CUDA error 2"):
        Cuda().page_lock(empty_records(10, 4))


def test_a_lane_is_one_stream_for_all(monkeypatch):
    """Of every thread, and of every run in the process: PyTorch has few."""
    monkeypatch.setattr(Cuda, "_streams", {})
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority=0: time.sleep(0.01) or object())
    start = threading.Barrier(4)

    def ask(_):
        start.wait()
        return Cuda()._lane("move")

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(ask, range(4)))) == 1


@pytest.mark.parametrize(("local_rank", "index"), [(None, 2), ("0", 0), ("3", 3)])
def test_a_rank_has_the_gpu_of_its_place_on_the_host_and_others_the_one_that_is_set(
    monkeypatch, local_rank, index
):
    """Slurm or Ray, which make groups of their own, name no `LOCAL_RANK`: users set the device then."""
    was_set = []
    for name, value in {
        "is_available": lambda: True, "device_count": lambda: 4, "current_device": lambda: 2,
        "set_device": was_set.append,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert find("cuda").torch == torch.device("cuda", index)
    assert was_set == [index] * (index > 0)
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(ValueError, match="rank 4 of this host has no GPU of its own"):
        find("cuda")
