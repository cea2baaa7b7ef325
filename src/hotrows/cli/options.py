"""What the commands share: types of arguments, a bar, tables, and examples that keep their lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hotrows import models
from hotrows.planning.budget import parse_bytes

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


class Bytes(click.ParamType):
    """A size such as 64MiB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


BYTES = Bytes()


class Numbers(click.ParamType):
    """Whole numbers of at least 1, such as 8,64,1024."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        if isinstance(value, list):
            return value
        parts = [part.strip().replace("_", "") for part in value.split(",")]
        if not all(part.isdigit() and int(part) for part in parts):
            self.fail(f"{value!r} must be numbers of at least 1, such as 8,64,1024", param, ctx)
        return [int(part) for part in parts]


NUMBERS = Numbers()


class ModelName(click.ParamType):
    """A model of the library, or one's own as file.py:Class or module:Class."""

    name = "model"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(models.BY_NAME)}|FILE.py:CLASS]"

    def convert(self, value: str, param: Any, ctx: Any) -> str:
        if value not in models.BY_NAME and ":" not in value:
            self.fail(
                f"{value!r} is none of {', '.join(models.BY_NAME)}; your own is named as "
                f"file.py:Class or module:Class",
                param,
                ctx,
            )
        return value


MODEL = ModelName()


class Taught(click.Command):
    """A command whose examples keep their lines."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.strip().splitlines():
                    formatter.write(f"  {line.strip()}\n")


def name_and_value(text: str, option: str = "--option", such_as: str = "dim=32") -> tuple[str, Any]:
    """dim=32 -> ("dim", 32)."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{option} must be NAME=VALUE, such as {such_as}, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@contextmanager
def bar() -> Iterator[Callable[..., None]]:
    """progress(stage, done, total, note): a bar on a terminal, nothing elsewhere."""
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = messages()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as shown:
        tasks: dict[str, Any] = {}

        def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
            if stage not in tasks:
                for earlier in tasks.values():
                    shown.update(earlier, visible=False)
                tasks[stage] = shown.add_task(stage, total=total, note=note)
            shown.update(tasks[stage], completed=done, total=total, note=note, visible=True)

        yield progress


def print_table(table: Table) -> None:
    """As wide as the terminal; 120 columns elsewhere."""
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def messages() -> Console:
    return Console(stderr=True, highlight=False)
