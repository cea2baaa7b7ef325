"""Emulated launches: the wrappers of `hotrows.ops.triton` take tensors in host memory."""

from __future__ import annotations

import os
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

    change: of the PTX of each kernel, by its name, for mutants; known: further tensors that kernels
    reach by addresses alone; seen: names of the kernels that ran, and how often.
    """

    seed: int = 0
    mixed: bool = True
    races: bool = True
    arch: int = 80
    change: object = None
    known: list = field(default_factory=list)
    seen: dict = field(default_factory=dict)
    instructions: int = 0
    record: list | None = None


setting = Setting()
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
        name = self.metadata.name
        if setting.change is not None:
            text = setting.change(name, text)
        setting.seen[name] = setting.seen.get(name, 0) + 1
        kernel, program = program_of(text)
        regions, numbers = _places(_flat(self.kinds, args), program.granules["global"])
        setting.seed += 1
        machine = Machine(
            kernel, program, (x, y, z), [*numbers, 0, 0], regions, self.metadata.shared,
            setting.seed, setting.mixed, setting.races,
        )  # fmt: skip
        machine.run()
        setting.instructions += machine.executed


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
    known = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in setting.known}
    for address, storage in known.items():
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
