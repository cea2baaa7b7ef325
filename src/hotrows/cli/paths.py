"""Types of arguments that are paths or URLs: what is read, and what is written.

A command gets a path on this machine. What is at a URL is fetched first (`runtime.remote`); what is to be
there is sent when the command has ended well.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from hotrows.cli.commands import OVERWRITE
from hotrows.engine.distributed import job
from hotrows.runtime.atomic_files import STDOUT, address, local
from hotrows.runtime.remote import fetched, is_url, named, sent


class Place(click.Path):
    """A path, which may not be empty: that would be this folder. Of a URL it is that of a copy on this
    machine, which is fetched."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            self.fail("the name is empty", param, ctx)
        if value == "-":
            self.fail("it must be a path: ./- is a file or folder of that name", param, ctx)
        return super().convert(self.opened(value, param, ctx), param, ctx)

    def opened(self, value: Any, param: Any, ctx: Any) -> Any:
        """The path on this machine of what was named."""
        return fetched(value)


class Here(Place):
    """A path on this machine; a URL is refused."""

    def opened(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return local(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class New(Place):
    """A folder to write; one of a URL is sent there at the end of the command."""

    def opened(self, value: Any, param: Any, ctx: Any) -> Any:
        return ctx.with_resource(sent(value, bool(ctx.meta.get(OVERWRITE)))) if is_url(value) else value


class Run(Place):
    """The folder of a run; what is none is refused before PyTorch is imported."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        run = super().convert(value, param, ctx)
        if not (run / "config.json").exists():
            problem = "is not a run folder: it has no config.json" if run.exists() else "does not exist"
            raise ValueError(f"{named(run)} {problem}; correct the path")
        return run

    def opened(self, value: Any, param: Any, ctx: Any) -> Any:
        if not is_url(value):
            return value
        from hotrows.engine.checkpoint.fetch import fetched_run

        return fetched_run(value)


class RunToTrain(Place):
    """The folder of a run to begin or to resume, or its URL, which stays one."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return address(value) if is_url(value) else super().convert(value, param, ctx)


FOLDER = Place(file_okay=False, path_type=Path)
HERE = Here(file_okay=False, path_type=Path)
NEW = New(file_okay=False, path_type=Path)
TO_TRAIN = RunToTrain(file_okay=False, path_type=Path)
RUN = Run(file_okay=False, path_type=Path)
FILE = Place(dir_okay=False, path_type=Path)


class Output(New):
    """A file to write, which replaces another one only with --overwrite; a link, a pipe and a device are
    written as they are. `-` is standard output: what the command prints besides is then for people."""

    is_written = True  # a command with one has --overwrite

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "-":
            ctx.with_resource(redirect_stdout(sys.stderr))
            return STDOUT
        path = super().convert(value, param, ctx)
        is_kept = path.is_file() and not path.is_symlink() and not self.dir_okay
        if is_kept and not (ctx.meta.get(OVERWRITE) or job.restarted()):
            self.fail(f"{path} exists; name another file, or replace it: --overwrite", param, ctx)
        return path


OUT = Output(dir_okay=False, readable=False, path_type=Path)


class Suffixed(Output):
    """A file whose name ends as what is written into it; what: it, in words."""

    def __init__(self, suffix: str, what: str) -> None:
        super().__init__(dir_okay=False, readable=False, path_type=Path)
        self._suffix, self._what = suffix, what

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        path = super().convert(value, param, ctx)
        is_named = path != STDOUT and (path.is_file() or not path.exists())  # not a pipe or a device
        if path.suffix != self._suffix and is_named:
            right = path.with_suffix(self._suffix) if path.name else self._suffix
            self.fail(f"{self._what}: {right}, not {value}", param, ctx)
        return path


PICTURE = Suffixed(".svg", "pictures are SVG")
