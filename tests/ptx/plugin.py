"""Runs tests with emulated kernels: `python -m pytest -p tests.ptx.plugin tests/ops/triton`.

PTX_SEED: of the order of warps and blocks, 0 unless set.
"""

import os

from tests.ptx import launch


def pytest_configure(config):
    launch.setting.seed = int(os.environ.get("PTX_SEED", "0"))
    install()


def install():
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    from hotrows.ops.triton import deferred

    launch.install()
    lines = deferred._lines

    def noted_lines(targets):
        launch.setting.known = [
            t for target in targets for t in (target.weights, *target.states, target.last, target.steps)
            if hasattr(t, "untyped_storage")
        ]  # fmt: skip
        return lines(targets)

    deferred._lines = noted_lines
    # Tests that note what the interpreter runs note what is emulated.
    interpreter.GridExecutor.__call__ = lambda self, *args, **options: self.fn.run(
        *args, grid=self.grid, warmup=False, **options
    )
    JITFunction.__getitem__ = lambda self, grid: interpreter.GridExecutor(self, self.arg_names, grid, [])


def pytest_terminal_summary(terminalreporter):
    seen = launch.setting.seen
    terminalreporter.write_line(
        f"emulated: {sum(seen.values())} launches of {len(seen)} kernels, "
        f"{launch.setting.instructions} instructions"
    )
