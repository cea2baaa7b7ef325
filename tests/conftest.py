"""Which tests run, on which processor, and the fixtures of all; kernels run without their device."""

import functools
import gc
import importlib.util
import os
import tempfile

import pytest
import torch

from tests.support import choice, syncs, tiers
from tests.support.redis_server import RedisServer

if not torch.cuda.is_available():
    # Read when Triton is first imported: its kernels then run on the CPU, element by element.
    os.environ.setdefault("TRITON_INTERPRET", "1")

if all(map(importlib.util.find_spec, ("jaxtyping", "beartype"))):
    from tests.support import shapes

    shapes.install()
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("busy", deadline=None)  # a machine may have other work
    settings.load_profile("busy")


def pytest_addoption(parser):
    for option, runs in (
        ("--all", "also long and slow tests, and all cases of others"),
        ("--long", "also long tests"),
        ("--touched", "only long tests that are near to what changed"),
    ):
        parser.addoption(option, action="store_true", help=runs)


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # workers and processes that tests start have it, too
        cache = tempfile.TemporaryDirectory(prefix="hotrows-cache-")  # what a user has measured stays out
        config.add_cleanup(cache.cleanup)
        os.environ["XDG_CACHE_HOME"] = cache.name
    if config.getoption("--all"):
        os.environ[choice.ALL] = "1"  # processes that tests start see it too
    tiers.only_touched = config.getoption("--touched")
    if tiers.only_touched or config.getoption("--long"):
        os.environ[tiers.WITH_LONG] = "1"  # a long test may run others
    syncs.leave_out()
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and hasattr(os, "sched_setaffinity") and not torch.cuda.is_available():
        # One processor for each worker and what it starts: threads that wait for one another then cost
        # no waking of another processor, which takes small tests on ranks half as long again.
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[int(worker[2:]) % len(processors)]})


def pytest_collection_modifyitems(config, items):
    if not choice.everything():
        left_out = choice.left_out(items)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    # The longest files first: at the end no process then waits long for the others.
    folders = ("test_", "serving/", "streams/", "train/", "tuning/")
    long = tuple(f"tests/{folder}" for folder in folders)
    items.sort(key=lambda item: not item.nodeid.startswith(long))


def pytest_collection_finish():
    gc.freeze()  # what is imported is not searched by every collection of a test


def pytest_terminal_summary(terminalreporter):
    """Prints what a test has counted for who reads the output."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            terminalreporter.section(name)
            terminalreporter.write_line(text)


def pytest_exception_interact(node, call):
    """Ends a process whose device is of no use any more, of which each later test would only say so."""
    if os.environ.get("PYTEST_XDIST_WORKER") and leaves_no_device(call.excinfo.value):
        os.write(2, f"{node.nodeid}: {call.excinfo.value}".encode())
        os._exit(3)


def leaves_no_device(error):
    """Whether an error of CUDA is one that all later calls of the process repeat."""
    words = ("illegal memory access", "device-side assert", "misaligned address", "launch failure")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True, scope="module")
def frozen():
    """What earlier files have imported is searched by no collection: a capture of a graph makes one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def threads():
    """Sets the number of threads for one test: threads(1)."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_thread():
    """Runs the tests of a module on one thread.

    Small steps are slower on two, above all where another process is busy.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def one_registry():
    """The exporter of ONNX reads the sources of its 500 functions once, and not for every export."""
    if importlib.util.find_spec("onnxscript") is None:
        yield
        return
    from torch.onnx._internal.exporter import _registration as exporter

    read = staticmethod(functools.cache(exporter.ONNXRegistry.from_torchlib))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter.ONNXRegistry, "from_torchlib", read)
        yield


@pytest.fixture
def redis_server(tmp_path):
    """A Redis server; a test that asks for it is skipped where there is none."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def no_pictures(monkeypatch):
    """Draws no picture of a run, which takes longer than a small run, and writes no events of it."""
    monkeypatch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
    monkeypatch.setattr("hotrows.train.telling.metrics_log._open_events", lambda run, keep_until: None)


class Run:
    """Exit code and output of a command."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def hotrows(capsys):
    """Runs a command of the command line in this process."""
    from hotrows import cli

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main([str(argument) for argument in arguments])
            raise SystemExit(0)
        said = capsys.readouterr()
        return Run(left.value.code, said.out, said.err)

    return run
