"""Without what Windows lacks, data is prepared and a model is trained, on reference ops."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import hotrows

WITHOUT = """
    import ctypes, mmap, os, signal, sys
    import click, pyarrow.parquet, rich.console, torch._dynamo  # these know Windows by other signs

    missing = {
        os: ["O_CLOEXEC", "O_DIRECT", "SEEK_DATA", "fork", "pread", "pwrite", "register_at_fork",
             "sched_getaffinity", "statvfs", "sysconf", "uname"],
        mmap: [name for name in dir(mmap) if name.startswith(("MAP_", "MADV_", "PROT_"))],
        signal: ["SIGHUP", "SIGKILL", "SIGUSR1", "pthread_kill", "pthread_sigmask"],
    }
    for module, names in missing.items():
        for name in names:
            delattr(module, name)
    sys.modules.update(dict.fromkeys(["fcntl", "grp", "pwd", "resource", "termios"]))

    class kernel32:
        def GetPhysicallyInstalledSystemMemory(kibibytes):
            kibibytes._obj.value = 3 << 20
            return 1

    ctypes.windll = type("windll", (), {"kernel32": kernel32})
    from hotrows.runtime import native
    native._open = lambda stem: None
"""


def run(code, tmp_path):
    """Runs code in a process that has only what Windows has; its stdout."""
    environment = {**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT) + textwrap.dedent(code)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_is_trained(tmp_path):
    code = """
        import hotrows.cli
        for command in (
            "synth criteo --rows 1000 --out raw",
            "prepare raw/train.txt --schema criteo --out enc",
            "train enc --model deepfm --steps 3 --run run",
            "eval run",
        ):
            sys.argv = ["hotrows", *command.split()]
            hotrows.cli.main()
    """
    assert "log loss" in run(code, tmp_path)


def test_memory_and_open_files(tmp_path):
    code = """
        from pathlib import Path
        from hotrows.runtime import locks, machine
        assert machine.total_memory() <= 3 << 30
        lock = locks.Lock(Path("folder"))
        Path("folder").rename("renamed")  # as Windows does where no file in it is open
        files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        assert not any(file.endswith("/lock") for file in files), files
    """
    run(code, tmp_path)


def test_stores_in_files_and_unbounded_tables_are_refused(tmp_path):
    code = """
        from hotrows.engine.caching import Caching
        from hotrows.storage.store import _reserved_records
        for make in (lambda: Caching(2**20, store="file:rows"), lambda: _reserved_records(1000, 64)):
            try:
                make()
            except ValueError as error:
                print(error)
    """
    out = run(code, tmp_path)
    assert "needs Linux, macOS or WSL 2" in out and "give it a capacity=ROWS" in out
