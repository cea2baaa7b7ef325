"""Processes of their own for tests, forked from one that has imported torch.

That takes a tenth of a second, where a process that begins anew imports for three.
"""

import multiprocessing
import traceback

from tests.support import syncs

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_CONTEXT = multiprocessing.get_context(_METHOD)
_CONTEXT.set_forkserver_preload(["torch", "numpy", "pyarrow", "pytest", "hypothesis", "hotrows.train"])


class Forked:
    """A process that calls work(*arguments), or work(say, *arguments) where the test listens.

    error: the traceback of what it raised, once it has ended.
    """

    def __init__(self, work, *arguments, listens=False):
        self._says, theirs = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(target=_work, args=(theirs, work, arguments, listens))
        self.process.start()
        theirs.close()
        self.error = ""

    def hear(self):
        """What the process says next; None once it has ended."""
        try:
            kind, text = self._says.recv()
        except (EOFError, OSError):
            return None
        if kind == "error":
            self.error = text
            return None
        return text

    def end(self, timeout=120):
        """The exit code, once the process has ended."""
        while self._says.poll(timeout) and self.hear() is not None:
            pass
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise AssertionError(f"the process did not end within {timeout} s")
        self._says.close()
        return self.process.exitcode


def run(work, *arguments):
    """Calls a function of a module in a process of its own, and fails with its traceback."""
    process = Forked(work, *arguments)
    code = process.end()
    assert code == 0, process.error or f"the process ended with {code}"


def _work(pipe, work, arguments, listens):
    syncs.leave_out()
    try:
        work(*((lambda text: pipe.send(("said", text)),) if listens else ()), *arguments)
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        raise SystemExit(1) from None
