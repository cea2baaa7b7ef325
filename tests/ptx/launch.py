"""Emulated launches: the wrappers of `hotrows.ops.triton` take tensors in host memory."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field

os.environ["TRITON_INTERPRET"] = "0"  # read when Triton is first imported

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

from tests.ptx.instructions import Program, build
from tests.ptx.machine import Machine
from tests.ptx.memory import Region
from tests.ptx.parse import Kernel, parse


@dataclass
class Setting:
    """Of all launches from here on.

    change: of the name and the PTX of each kernel, to another PTX, for mutants; seen: of each kernel that
    ran, the shapes of its arguments in each launch, and the seconds.
    """

    seed: int = 0
    mixed: bool = True
    arch: int = 80
    change: object = None
    seen: dict[str, list] = field(default_factory=dict)


setting = Setting()
known = threading.local()  # tensors that kernels reach by addresses alone
_programs: dict[str, tuple[Kernel, Program]] = {}


def program_of(text: str) -> tuple[Kernel, Program]:
    if text not in _programs:
        kernel = parse(text)
        _programs[text] = kernel, build(kernel)
    return _programs[text]


class Launcher:
    """What Triton calls with the arguments of a launch."""

    def __init__(self, source, metadata):
        self.source, self.metadata = source, metadata
        self.kinds = tuple(source.signature.values())

    def __call__(self, x, y, z, stream, text, packed, metadata, before, after, *args):
        begun, name = time.monotonic(), name_of(self.source.fn)
        args = list(_flat(self.kinds, args))
        kernel, program = program_of(text if setting.change is None else setting.change(name, text))
        regions, numbers = _places(args, program.granules["global"])
        setting.seed += 1
        numbers += [0] * (
            len(kernel.parameters) - len(numbers)
        )  # of scratch memory, of which there is none
        Machine(
            kernel,
            program,
            (x, y, z),
            numbers,
            regions,
            self.metadata.shared,
            setting.seed,
            setting.mixed,
        ).run()
        shapes = [list(arg.shape) if hasattr(arg, "shape") else arg for arg in args]
        setting.seen.setdefault(name, []).append([(x, y, z), shapes, time.monotonic() - begun])


def name_of(function):
    """slots._fill_slots"""
    return f"{function.module.rpartition('.')[2]}.{function.__name__}"


def write_seen(path):
    with open(path, "w") as file:
        json.dump(setting.seen, file)


def _flat(kinds, args):
    for kind, arg in zip(kinds, args, strict=True):
        if isinstance(kind, tuple):
            yield from _flat(kind, arg)
        elif kind != "constexpr":
            yield arg


def _places(args, granule):
    """Regions of the tensors' storages, far apart but for those of `known`, and numbers of arguments."""
    regions, numbers, begins = [], [], {}
    for arg in args:
        if not hasattr(arg, "data_ptr"):
            numbers.append(arg)
            continue
        storage = arg.untyped_storage()
        address = storage.data_ptr()
        if address not in begins:
            begins[address] = (len(begins) + 1 << 44) + address % 4096
            regions.append(_region(storage, begins[address], granule, f"argument {len(numbers)}"))
        numbers.append(begins[address] + arg.data_ptr() - address)
    storages = [tensor.untyped_storage() for tensor in getattr(known, "tensors", ())]
    for address, storage in {storage.data_ptr(): storage for storage in storages}.items():
        regions.append(_region(storage, address, granule, "memory that is known"))
    return [region for region in regions if region is not None], numbers


def _region(storage, begin, granule, name):
    if not storage.nbytes():
        return None
    values = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).numpy()
    return Region(begin, values, granule, name)


class _Utils:
    """As much of the driver as loading a kernel needs; the function is the kernel's PTX."""

    def load_binary(self, name, kernel, shared, device):
        return None, kernel.decode(), 0, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 227 << 10, "multiprocessor_count": 132}


class Driver:
    launcher_cls, utils = Launcher, _Utils()

    def get_current_target(self):
        return GPUTarget("cuda", setting.arch, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def install():
    """From now on launches are emulated."""
    CUDABackend.make_cubin = lambda self, text, *others: text.encode()  # ptxas is not asked
    driver.set_active(Driver())
