"""Every kernel compiles for the device that it is for, on a machine without one."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.ops.triton import cases
from tests.support.choice import everything
from tests.support.deferred import CASES, target_of
from tests.support.row_rules import hyper_tensor, width


def compile_all() -> None:
    """Calls each op on CPU tensors, with a driver that compiles for sm_90 and launches nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Compiles:
        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

    def compiled(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        print(self.__name__, "fma.rn.f32" in kernel.asm["ptx"], len(kernel.asm["cubin"]) > 0)
        return kernel

    driver.set_active(Compiles())
    run, JITFunction.run = JITFunction.run, compiled
    from benchmarks.gpu_parts import step_cache_kernels

    from hotrows.ops import triton as kernels

    rows = torch.arange(64)
    host, near = (torch.zeros(64, stride, dtype=torch.uint8) for stride in (516, 528))
    kernels.copy_rows(near, rows, near.clone(), None)
    sets = torch.zeros(2, 32, dtype=torch.int64), torch.zeros(2, 32, dtype=torch.int32)
    step_cache_kernels.find(rows, rows, *sets, 1)
    step_cache_kernels.replace(near[:, :516], host, rows, rows, rows, rows, rows, *sets, 1)
    step_cache_kernels.put_back(near[:, :516], host, rows, rows, 0)
    runs, starts, bags = rows.int(), torch.arange(65).int(), rows.int()
    kernels.unique_padded(rows)
    narrow = [rows.int() for _ in range(5)]
    slot_of, row_of, last_use, coming, ranking = narrow
    numbers = torch.zeros(4, 64, dtype=torch.int64)
    kernels.feed_rows(coming, rows, 5)
    kernels.touch_slots(slot_of, last_use, rows, 5)
    kernels.rank_slots(row_of, last_use, coming, ranking, rows[:3], 5, 4)
    kernels.take_slots(*narrow, rows[:3], rows, 5, 4, rows, numbers, rows[:4])
    kernels.resolve(rows, None, 16, torch.arange(4), rows[:4], rows[:4], 2)
    layouts = zip(cases.OPTIMIZERS, (16, 1, 17, 128, 64, 3, 200), [*cases.DTYPES] * 3, strict=False)
    for optimizer, dim, dtype in list(layouts)[:: 1 if everything() else 3]:
        dim = width(dim, dtype)
        layout = cases.layout_of(optimizer, dim, dtype)
        records, ints = torch.zeros(64, layout.stride, dtype=torch.uint8), layout.as_ints()
        kernels.copy_rows(records, rows, records, None)
        kernels.pool(records, ints, rows, rows.int(), None, None)
        kernels.pool(records, ints, rows, rows.int(), starts, torch.ones(64))
        kernels.sum_gradients(torch.ones(64, dim), runs, starts, bags, torch.ones(64))
        kernels.update(
            records, ints, rows, rows, runs, starts, None, None, torch.ones(64, dim), optimizer.kind,
            hyper_tensor(optimizer, 0), cases.FIRST_ROWS, cases.pieces(dim),
        )  # fmt: skip
    compile_deferred()


def compile_deferred() -> None:
    """The kernels of deferred optimizers, each kind at an odd width."""
    from hotrows.ops.triton import deferred

    rows, bounds = torch.arange(64), torch.tensor([0, 60])
    runs = rows.int(), torch.arange(65).int(), rows.int()
    scales, squares = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    kinds = (
        ("sgd nesterov", 16, torch.float32), ("sgd decay", 1, torch.float64),
        ("adagrad decay", 3, torch.float32), ("rmsprop", 128, torch.float32),
        ("adam decay", 17, torch.float32), ("adamw", 300, torch.float64),
    )  # fmt: skip
    for name, dim, dtype in kinds if everything() else kinds[4:5]:
        case = CASES[name]
        target = target_of(case, torch.zeros(64, dim, dtype=dtype), 3, 4)
        target = replace(target, steps=torch.zeros(4, 16, dtype=torch.float64))
        grad, weights = torch.ones(64, dim, dtype=dtype), torch.ones(64, dtype=dtype)
        step = *runs, weights, grad, scales, squares
        deferred.update(case.kind, [target], rows, bounds, *step)
        deferred.catch_up(case.kind, [target], None, bounds, None)
        deferred.lookup([target], rows, bounds, rows.int(), None, None)
        deferred.lookup([target], rows, bounds, rows.int(), runs[1], weights)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile them")
def test_kernels_compile_for_sm_90_without_fused_multiply_add(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    code = "from tests.ops.triton.test_compile import compile_all; compile_all()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _, _ in lines} == {
        "_count", "_fill", "_resolve", "_copy_rows", "_gather", "_pool",
        "_sum_windows", "_sum_gradients", "_update",
        "_find", "_choose", "_swap", "_put_back", "_move",
        "_feed_rows", "_touch_slots", "_age_slots",
        "_find_slots", "_search_ranking", "_vacate_slots", "_fill_slots",
        "_catch_up", "_step", "_look_up", "_sum_changes",
    }  # fmt: skip
    assert all(fused == "False" and cubin == "True" for _, fused, cubin in lines), lines


def test_the_kernels_of_layers_that_need_most_registers_spill_none():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.hopper"], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "7 kernels compiled, 0 bytes spilled\n", done.stdout + done.stderr
