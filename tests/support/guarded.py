"""Triton's interpreter with pages that nobody may touch around all tensors, and programs in any order.

    python -m pytest -p tests.support.guarded tests/ops/triton/test_update.py

The interpreter reads and writes host memory, where an access beyond a tensor mostly finds other memory.
Here each storage is copied to the end of a mapping between two pages without access, so that such an
access ends the process; and a result that depends on which program comes first is not the reference's.
GUARD_SIDE=start: at the begin of its mapping; GUARD_ORDER=reverse, forward: of the programs.
"""

import ctypes
import inspect
import itertools
import mmap
import os
import random

import torch

_PAGE = mmap.PAGESIZE
_NO_ACCESS, _READ_AND_WRITE, _PRIVATE = 0, 3, 0x22
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
launches = {"kernels": 0, "programs": 0}


class Mappings:
    """Copies of storages, each between two pages without access."""

    def __init__(self):
        self._mappings = []

    def copy(self, storage):
        size = storage.nbytes()
        if not size:
            return storage
        inner = -(-size // _PAGE) * _PAGE
        base = _libc.mmap(None, inner + 2 * _PAGE, _READ_AND_WRITE, _PRIVATE, -1, 0)
        for guard in (base, base + _PAGE + inner):
            _libc.mprotect(guard, _PAGE, _NO_ACCESS)
        begin = base + _PAGE
        if os.environ.get("GUARD_SIDE", "end") == "end":
            begin += inner - -(-size // 16) * 16  # the last 15 bytes at most are not guarded
        ctypes.memmove(begin, storage.data_ptr(), size)
        self._mappings.append((base, inner + 2 * _PAGE))
        block = (ctypes.c_uint8 * size).from_address(begin)
        return torch.frombuffer(block, dtype=torch.uint8).untyped_storage()

    def close(self):
        for mapping in self._mappings:
            _libc.munmap(*mapping)


def in_order(grid):
    """The programs of a grid, as GUARD_ORDER says."""
    programs = list(itertools.product(*map(range, grid)))
    order = os.environ.get("GUARD_ORDER", "random")
    if order == "random":
        random.shuffle(programs)
    return programs[::-1] if order == "reverse" else programs


def install():
    """Lets the interpreter launch kernels so from here on."""
    from triton.runtime import interpreter

    def copied(executor, args, kwargs):
        storages, executor.mappings = {}, Mappings()

        def copy(arg):
            if isinstance(arg, tuple):
                return interpreter._tuple_create(arg, map(copy, arg))
            if not hasattr(arg, "data_ptr"):
                return arg
            tensor = interpreter._unwrap_tensor(arg)
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                storages[storage.data_ptr()] = executor.mappings.copy(storage)
            place = tensor.storage_offset(), tensor.size(), tensor.stride()
            new = tensor.new_empty(0, device="cpu").set_(storages[storage.data_ptr()], *place)
            return interpreter._rewrap_tensor(new, original_tensor=arg)

        return [*map(copy, args)], {name: copy(arg) for name, arg in kwargs.items()}

    def launch(executor, *args, **kwargs):
        names = inspect.getfullargspec(executor.fn).args
        kwargs = {name: value for name, value in kwargs.items() if name in names}
        host_args, host_kwargs = copied(executor, args, kwargs)
        scope = interpreter._patch_lang(executor.fn)
        try:
            values = inspect.getcallargs(executor.fn, *host_args, **host_kwargs)
            values = {
                name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
                for name, value in values.items()
            }
            grid = tuple(executor.grid(values) if callable(executor.grid) else executor.grid)
            grid += (1,) * (3 - len(grid))
            builder = interpreter.interpreter_builder
            builder.set_grid_dim(*grid)
            programs = in_order(grid)
            for program in programs:
                builder.set_grid_idx(*program)
                executor.fn(**values)
        finally:
            scope.restore()
        launches["kernels"] += 1
        launches["programs"] += len(programs)
        executor._restore_args_dev(args, host_args, kwargs, host_kwargs)
        del host_args, host_kwargs, values
        executor.mappings.close()

    interpreter.GridExecutor._init_args_hst = copied
    interpreter.GridExecutor.__call__ = launch


def pytest_configure(config):
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
        install()


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(
        f"guarded: {launches['kernels']} launches, {launches['programs']} programs"
    )
