"""Sweeps the launch constants of the Triton kernels, one at a time, the others as they are."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_PACKAGE = "hotrows.ops.triton"


def sweep(names: Sequence[str], measure: Callable[[], dict]) -> Iterator[tuple[str, dict]]:
    """`NAME=value` and what was measured with it: half its value, itself, twice and four times.

    names: of `hotrows.ops.triton.launch`; `num_warps` too. The kernels have run once before.
    """
    constants = vars(sys.modules[f"{_PACKAGE}.launch"])
    for name in names:
        value = constants["OPTIONS"][name] if name in constants["OPTIONS"] else constants[name]
        for tried in (max(value // 2, 1), value, 2 * value, 4 * value):
            with _changed(name, tried):
                try:
                    figures = measure()
                except Exception as error:  # what does not fit the chip is part of the answer
                    figures = {"failed": type(error).__name__}
            yield f"{name}={tried}", figures


@contextmanager
def _changed(name: str, value: int) -> Iterator[None]:
    """A constant with another value, wherever a kernel's module has imported it."""
    modules = [vars(names) for key, names in list(sys.modules.items()) if key.startswith(_PACKAGE)]
    holders = [names for names in modules if name in names]
    holders += [names["OPTIONS"] for names in modules if name in names.get("OPTIONS", ())]
    before = [names[name] for names in holders]
    for names in holders:
        names[name] = value
    try:
        yield
    finally:
        for names, former in zip(holders, before, strict=True):
            names[name] = former
