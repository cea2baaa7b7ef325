"""Tests with emulated kernels: `python -m pytest -p tests.ptx.plugin tests/ops/triton`.

The kernels' own tests are emulated where the interpreter would run them, and so is what a pretended GPU
runs (`tests.support.pretend`). PTX_SEED: of the order of warps and blocks, 0 unless set;
PTX_ARCH: 80 unless set; of 90 all kernels run but those that use wgmma.
"""

import functools
import importlib
import os
import pkgutil

import torch

from tests.ptx import launch


def pytest_configure(config):
    launch.setting.seed = int(os.environ.get("PTX_SEED", "0"))
    launch.setting.arch = int(os.environ.get("PTX_ARCH", "80"))
    install()


def install():
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    from hotrows.ops.triton import deferred
    from tests.support import pretend

    launch.install()
    lines = deferred._lines

    def noted_lines(targets):
        parts = ((target.weights, *target.states, target.last, target.steps) for target in targets)
        launch.known.tensors = [t for part in parts for t in part if isinstance(t, torch.Tensor)]
        return lines(targets)

    deferred._lines = noted_lines
    # Tests that note what the interpreter runs note what is emulated.
    interpreter.GridExecutor.__call__ = lambda self, *args, **options: self.fn.run(
        *args, grid=self.grid, warmup=False, **options
    )
    JITFunction.__getitem__ = lambda self, grid: interpreter.GridExecutor(self, self.arg_names, grid, [])
    pretend._KERNELS = {f"hotrows::{name}": kernel for name, kernel in of_a_device().items()}


def of_a_device():
    """The ops that are Triton kernels on a GPU, to be called with tensors in host memory."""
    from hotrows.ops import layers
    from hotrows.ops.deferred import on_device
    from hotrows.ops.layers import by_device
    from hotrows.ops.rows import cuda

    for module in pkgutil.iter_modules(layers.__path__):  # whose ops are then known
        importlib.import_module(f"{layers.__name__}.{module.name}")
    tables = on_device._Ops("hotrows.ops.triton.deferred")
    of_tables = ("catch_up_tables", "step_tables", "look_up_tables")
    return {
        **{name: functools.partial(_rows, name) for name in cuda._TRITON},
        **{name: by_device._in_triton(name, module, getattr(torch.ops.hotrows, name))
           for name, module in by_device.OPS.items()},
        **{name: getattr(tables, name) for name in of_tables},
    }  # fmt: skip


def _rows(name, *args, **options):
    return getattr(importlib.import_module("hotrows.ops.triton"), name)(*args, **options)


def pytest_terminal_summary(terminalreporter):
    seen = launch.setting.seen
    terminalreporter.write_line(
        f"emulated: {sum(map(len, seen.values()))} launches of {len(seen)} kernels"
    )
    if path := os.environ.get("PTX_SEEN"):
        launch.write_seen(path)
