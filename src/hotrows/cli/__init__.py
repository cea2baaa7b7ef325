"""The command line: a thin skin over the Python API, which prints nothing that the API could not.

Results go to standard output, progress and messages to standard error. Exit codes: 0 done,
1 failed, 2 wrong usage, 75 stopped by a notice (`--notice`), 130 interrupted; of alarms of a stream
3 (calibration), 4 (no event) and 5 (no finite predictions).
"""

from __future__ import annotations

import errno
import io
import itertools
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import click

import hotrows
from hotrows.cli import (
    caching,
    checkpoints,
    data,
    datasets,
    doctor,
    report,
    runs,
    scaling,
    serving,
    training,
    tuning,
)
from hotrows.cli.commands import VERBOSE, Commands, is_set
from hotrows.engine.distributed import job
from hotrows.runtime.atomic_files import STDOUT

_TRY_AGAIN = 75  # a machine is taken away, and has no time to wait
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDIES = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some of your quota, or write to another disk",
    errno.EFBIG: "raise `ulimit -f`, or write to another file system",
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENFILE: "the system has no more; close other programs",
    errno.EROFS: "write to a folder that is not read-only",
    errno.EBUSY: "where a file is mounted by itself, mount its folder, or name another file",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits; where it fails, with one line on standard error."""
    try:
        _run(arguments)
    except KeyboardInterrupt:  # while an error was being explained
        _fail("interrupted", 130)


def _run(arguments: Sequence[str] | None) -> None:
    session = SimpleNamespace(debug=False, meets=False)
    if isinstance(sys.stdout, io.TextIOWrapper):  # paths may have bytes that are no UTF-8
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            cli.main(arguments, prog_name="hotrows", standalone_mode=False, obj=session)
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        _exit(error.exit_code, error.format_message() if session.meets else "")
    except (click.Abort, KeyboardInterrupt) as stopped:
        code = getattr(stopped.__cause__, "exit_code", 130)
        _fail(str(stopped.__cause__ or "") or "interrupted", code, session.meets)
    except BrokenPipeError as error:  # hotrows predict ... | head
        if error.filename not in (None, str(STDOUT)):
            _fail(f"{error.filename}: its reader is gone", 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        message = _message(error)
        if session.debug or message is None:
            _crash(error, session.meets)
        _fail(message, getattr(error, "exit_code", 1), session.meets)


def _message(error: Exception) -> str | None:
    """The line that explains an error; None of a mistake of ours, which its traceback explains."""
    text = error.strerror if isinstance(error, OSError) else None  # without "[Errno 28]"
    message = " ".join(str(text or error).split())
    is_bare = isinstance(error, OSError) and error.args in [(code, os.strerror(code)) for code in _FULL]
    if isinstance(error, OSError) and (error.filename is not None or is_bare):
        remedy = _REMEDIES.get(error.errno or 0, "check the path, and what it permits")
        message = f"{error.filename or 'standard output, or a file'}: {error.strerror}; {remedy}"
    elif isinstance(error, MemoryError) or "can't allocate memory" in message:
        message = (
            f"out of memory: {message[:200]}; use smaller tables, batches or models, or --fast-memory"
        )
    elif "can't start new thread" in message:
        message = "out of memory: the system starts no more threads; free memory, or raise `ulimit -u`"
    if place := _own_code(error):
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        return f"{place}: {kind}{message[:400]} (hotrows --debug shows the traceback)"
    explained = isinstance(error, (ValueError, OSError, MemoryError, job.RankLost))
    is_missing = isinstance(error, ImportError) and error.name is None  # in words: by hotrows itself
    return message if explained or is_missing or message.startswith("out of memory") else None


def _own_code(error: Exception) -> str:
    """Names the last line of the user's own model or schema that an error came through; "": of none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename} line {error.lineno}"
    libraries = (Path(hotrows.__file__).parent, Path(os.__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
        is_library = is_installed or any(path.is_relative_to(folder) for folder in libraries)
        if not is_library and path.is_file():
            return f"{frame.filename} line {frame.lineno}"
    return ""


def _show_warning(message: Warning | str, *where: Any) -> None:
    """Writes a warning in a line, without the place in the code that a program would be told."""
    sys.stderr.write(f"hotrows: warning: {message}\n")


def _fail(message: str, code: int, meets: bool = False) -> NoReturn:
    """Ends with a line on standard error. meets: other ranks wait for this one, and end with it."""
    sys.stderr.write(f"hotrows: {job.name()}{message}\n")  # at once: ranks share the terminal
    sys.stderr.flush()
    _exit(code, message if meets else "")


def _crash(error: Exception, meets: bool) -> NoReturn:
    """Shows the traceback; of a rank, below a line that says which one."""
    if not job.name():
        raise error
    words = "".join(traceback.format_exception_only(error)).strip()
    print(f"hotrows: {job.name()}{words}", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
    _exit(1, words if meets else "")


def _exit(code: int, words: str = "") -> NoReturn:
    """Ends the process. words: for the ranks that wait to meet this one."""
    # A normal exit would wait for threads, which wait for other ranks, or for storage.
    if job.name() or code == _TRY_AGAIN:
        if words:
            from hotrows.engine.distributed import process_group

            process_group.fail(words)
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


class _Messages(logging.Handler):
    """Writes messages to what standard error is at the time, where a bar makes room for them."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = "hotrows: warning: " if record.levelno >= logging.WARNING else ""
        when = f"{record.relativeCreated / 1000:8.3f} s  " if is_set(VERBOSE) else ""
        click.echo(when + kind + self.format(record), err=True)


_FIRST_STEPS = """\
hotrows trains click-through-rate models with large embedding tables.

A first model in three commands, on census data that comes with hotrows:

  hotrows data adult --out adult
  hotrows train adult --run runs/first
  hotrows eval runs/first

And then:

  hotrows data             other public data sets, and where to get them
  hotrows schema FILE      drafts a schema of your own file's columns: CSV, Parquet, JSON and others
  hotrows prepare --help   makes data to train on of your own files, by that schema
  hotrows train --help     the settings that most use; --help=all shows all
  hotrows --help           all commands, in the order of work
"""


_COMMANDS = {
    "Data": (
        *(datasets.data_command, data.synth_command, data.schema_command),
        *(data.prepare_command, data.describe_command),
    ),
    "Training": (
        *(training.train_command, tuning.tune_command, runs.eval_command),
        *(runs.predict_command, report.report_command, report.contributions_command),
    ),
    "Memory and ranks": (
        *(caching.simulate_command, scaling.plan_command),
        *(caching.profile_command, caching.regroup_command),
    ),
    "Serving": (runs.export_command, serving.serve_command, serving.versions_command),
    "What is there": (checkpoints.tables_command, checkpoints.checkpoint_group, doctor.doctor_command),
}


@click.group(
    cls=Commands,
    sections={title: [str(known.name) for known in listed] for title, listed in _COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(hotrows.__version__, prog_name="hotrows")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Trains click-through-rate models with large embedding tables.

    \b
    A first model, on census data that comes with hotrows:
      hotrows data adult --out adult
      hotrows train adult --run runs/first
      hotrows eval runs/first
    With your own file:
      hotrows schema clicks.csv --out shop.json
      hotrows prepare clicks.csv --schema shop.json --out shop
      hotrows train shop --run runs/shop
      hotrows predict runs/shop new.csv --out probabilities.txt
    """
    context.obj.debug = debug
    context.obj.meets = context.invoked_subcommand in ("train", "tune")
    log = logging.getLogger("hotrows")
    log.handlers = [_Messages()]
    log.setLevel(logging.INFO)
    if context.invoked_subcommand is None:
        click.echo(_FIRST_STEPS, nl=False)


for _command in itertools.chain.from_iterable(_COMMANDS.values()):
    cli.add_command(_command)
