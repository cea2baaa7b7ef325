"""Shared by the commands: types of arguments, options of settings and of functions, a bar, and tables.

Modules of commands import what is heavy where they use it (PyTorch, pyarrow, rich, the engine), so that
help, completion and wrong usage are answered at once. tests/cli/test_start.py holds it.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from hotrows import models, optim
from hotrows.cli.commands import QUIET, declare, is_set
from hotrows.cli.paths import FOLDER, NEW, RUN
from hotrows.engine.distributed import job
from hotrows.runtime import terminal
from hotrows.runtime.settings import Setting
from hotrows.runtime.suggestions import did_you_mean
from hotrows.runtime.units import parse_bytes
from hotrows.train.config import SETTINGS

if TYPE_CHECKING:
    from rich.table import Table


class Bytes(click.ParamType):
    """A size such as 64MiB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


BYTES = Bytes()


class Positive(click.ParamType):
    """A finite number above 0."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = click.FLOAT.convert(value, param, ctx)
        if not 0 < number < math.inf:
            self.fail(f"it must be a finite number above 0, not {value}", param, ctx)
        return number


class Seconds(click.ParamType):
    """A number of seconds, such as 25s or 25."""

    name = "seconds"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        text = value.removesuffix("s") if isinstance(value, str) else value
        return POSITIVE.convert(text, param, ctx)


POSITIVE, SECONDS = Positive(), Seconds()
THREADS = click.IntRange(1, 1024)


class Whole(click.ParamType):
    """A whole number of 64 bits, of at least `least`; help does not spell out the bounds."""

    name = "integer"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        number = click.INT.convert(value, param, ctx)
        if not self.least <= number < 1 << 63:
            self.fail(f"it must be at least {self.least:,} and below 2**63, not {value}", param, ctx)
        return number


COUNT, INTEGER = Whole(1), Whole(-(1 << 63))


class Numbers(click.ParamType):
    """Whole numbers from 1 to 1,000,000, such as 8,64,1024."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        if isinstance(value, list):
            return value
        parts = [part.strip().replace("_", "") for part in value.split(",")]
        if not all(part.isdecimal() and len(part) < 8 and 1 <= int(part) <= 10**6 for part in parts):
            self.fail(f"{value!r} must be numbers from 1 to 1000000, such as 8,64,1024", param, ctx)
        return [int(part) for part in parts]


NUMBERS = Numbers()


class Name(click.ParamType):
    """One of some names, which are looked up when they are first needed, or what else is allowed.

    other: metavar of what else is allowed; is_other: whether a text is that; advice: on it, for messages.
    """

    name = "name"

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        other: str = "",
        is_other: Callable[[str], bool] = lambda text: False,
        advice: str = "",
    ) -> None:
        self.names, self.other, self.is_other, self.advice = names, other, is_other, advice

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join([*self.names(), *([self.other] if self.other else [])])}]"

    def convert(self, value: str, param: Any, ctx: Any) -> str:
        if not self.is_other(value) and value not in (names := list(self.names())):
            words = f"{value!r} is none of {', '.join(names)}{self.advice}{did_you_mean(value, names)}"
            self.fail(words, param, ctx)
        return value

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name) for name in self.names() if name.startswith(incomplete)]
        return [*names, *([CompletionItem(incomplete, type="file")] if self.other else [])]


MODEL = Name(
    lambda: models.BY_NAME,
    "FILE.py:CLASS",
    lambda text: ":" in text,
    "; your own is named as file.py:Class or module:Class",
)
# What options of settings take, where the type of the setting does not say it.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "model": {"type": MODEL},
    "model_options": {"multiple": True, "metavar": "NAME=VALUE"},
    "label_weights": {"multiple": True, "metavar": "LABEL=NUMBER"},
    "pretrained": {"multiple": True, "metavar": "TABLE=FILE"},
    "start_from": {"type": RUN, "metavar": "RUN", "old": ("--from",)},
    "notice": {"type": SECONDS, "metavar": "SECONDS"},
    "row_optimizer": {"type": click.Choice(sorted(optim.BY_NAME))},
}


def setting_option(
    name: str, *, filled: bool = False, settings: Mapping[str, Setting] = SETTINGS, **changes: Any
) -> Callable:
    """Returns the command line's option for a setting, by default of `TrainConfig`.

    filled: where the option is left out, its value is the setting's default; by default None.
    changes: arguments of `click.option` in place of those that the setting has.
    """
    setting = settings[name]
    default = f"  [default: {setting.default_text}]" if setting.default_text else ""
    how: dict[str, Any] = {"help": f"{setting.help}.{default}", "type": setting.type}
    spelling = setting.option_name
    if setting.choices:
        how["type"] = click.Choice(setting.choices)
    elif setting.unit == "bytes":
        how |= {"type": BYTES, "metavar": "SIZE"}
    elif setting.type is bool:
        spelling += f"/--no-{spelling.removeprefix('--')}"
        how["default"] = None
    if setting.type in (int, float):
        how["callback"] = partial(_check, setting)
    how |= _ARGUMENTS.get(name, {})
    if "multiple" in how:
        how |= {"type": str, "help": f"{setting.help}; may be repeated.{default}"}
    if filled:
        how["default"] = setting.default
    return declare(spelling, name, **(how | changes))


def _check(setting: Setting, ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuses a number that the setting may not be, as wrong usage."""
    for number in value if param.multiple else (value,):
        if number is None:  # left out
            continue
        try:
            setting.check(number)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return value


def with_options(*options: Callable) -> Callable:
    """Decorates a command with options, which its help lists in this order."""

    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# What options take, where the type of a parameter does not say it, by the name of the parameter.
_PARAMETERS: dict[str, dict[str, Any]] = {
    "device": {"type": click.Choice(["cpu", "cuda"])},
    "folder": {"spelling": "--data"},
    "format": {"type": click.Choice(["safetensors", "onnx", "pt2"])},
    "memory": {"type": BYTES, "metavar": "SIZE"},
    "model": {"type": MODEL, "help": "The model of the run, if it is your own."},
    "out": {"type": NEW},
    "part": {"type": click.Choice(["train", "validation", "test"])},
    "seconds": {"type": POSITIVE},
    "seed": {"type": INTEGER},
    "shared": {"metavar": "FEATURES"},
    "table_dtype": {"type": click.Choice(["float32", "float16", "int8", "int4"])},
    "threads": {"type": THREADS},
    "trust": {"spelling": "--trust-code", "old": ("--trust",)},
    "which": {"spelling": "--checkpoint", "type": click.Choice(["best", "last"])},
}
_TYPES = {"Path": FOLDER, "int": COUNT, "float": click.FLOAT, "str": click.STRING}
_SOURCE = Path(__file__).parents[1]
_WIDE = 1 << 12  # columns of a table that no terminal shows


def of_function(function: str, *names: str, prefix: str = "", **changes: Mapping[str, Any]) -> Callable:
    """Returns the options for parameters of a function that a command calls.

    Names, types and defaults are those of its signature, and the help is what its docstring says of
    each: `name: what it is`. Its source is read and not imported, as that would import PyTorch.

    function: module and name, such as `tools.tuning.tune:tune`; of a class its fields, or its `__init__`.
    names: of the parameters, in the order of the help; those in `changes` may be left out.
    prefix: what stands before each name in the command.
    changes: by parameter, arguments of `click.option` in place of those that follow from the function;
        `spelling`: how the command line spells it, if that is not its name.
    """
    declared = _declared(function)
    return with_options(
        *(
            _option(
                f"{prefix}{name}", declared[name], _PARAMETERS.get(name, {}) | dict(changes.get(name, {}))
            )
            for name in dict.fromkeys((*names, *changes))
        )
    )


def _option(name: str, declared: tuple[str, Any, str], changes: dict[str, Any]) -> Callable:
    annotation, default, help = declared
    how: dict[str, Any] = {"help": help, "spelling": f"--{name.replace('_', '-')}"}
    if annotation == "bool":
        how["is_flag"] = True
    elif default is ...:
        how["required"] = True
    else:
        how |= {"default": default, "show_default": True}
    if kinds := [kind for name, kind in _TYPES.items() if name in re.findall(r"\w+", annotation)]:
        how["type"] = kinds[0]
    how |= changes
    return declare(how.pop("spelling"), name, **how)


@cache
def _declared(function: str) -> dict[str, tuple[str, Any, str]]:
    """By parameter of a function or class: its type, its default (...: it has none) and its help."""
    module, _, name = function.partition(":")
    source = (_SOURCE / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
    (text,) = re.findall(rf"^(?:def|class) {name}\b.*?(?=^[^\s)]|\Z)", source, re.MULTILINE | re.DOTALL)
    (defined,) = ast.parse(text).body
    assert isinstance(defined, ast.FunctionDef | ast.ClassDef)
    declared = {name: how for name, *how in _parameters(defined)}
    helps = _helps(ast.get_docstring(defined) or "", declared)
    return {
        name: (
            ast.unparse(annotation) if annotation else "",
            _constant(default) if default else ...,
            helps.get(name, ""),
        )
        for name, (annotation, default) in declared.items()
    }


def _parameters(
    defined: ast.FunctionDef | ast.ClassDef,
) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    """Yields name, annotation and default of each parameter of a function, or field of a class."""
    if isinstance(defined, ast.ClassDef):
        for member in defined.body:
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                yield member.target.id, member.annotation, member.value
            elif isinstance(member, ast.FunctionDef) and member.name == "__init__":
                yield from _parameters(member)
        return
    arguments = defined.args
    first = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*first, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True):
        yield argument.arg, argument.annotation, default
    if arguments.kwarg is not None:
        yield arguments.kwarg.arg, None, None


def _constant(default: ast.expr) -> Any:
    """The value of a default; None if it is computed: the command then names it in its changes."""
    try:
        return ast.literal_eval(default)
    except ValueError:
        return None


def _helps(docstring: str, names: Iterable[str]) -> dict[str, str]:
    """The sentences of a docstring about each parameter: `name: what it is.`"""
    helps, one = dict[str, str](), f"(?:{'|'.join(names)})"
    for paragraph in docstring.split("\n\n"):
        text = " ".join(paragraph.split())
        _, *items = re.split(rf"(?:(?<=[.;:)] )|^)({one}(?:, {one})*): ", text)
        for listed, words in zip(items[::2], items[1::2], strict=True):
            sentence = re.sub(r"; None: [^;.]*", "", words).strip(" ;.") + "."
            sentence = re.sub(r" \(default: ([^()]*)\)\.$", r".  [default: \1]", sentence)
            helps |= dict.fromkeys(listed.split(", "), sentence[:1].upper() + sentence[1:])
    return helps


run_options = with_options(
    click.argument("run", type=RUN),
    of_function("train.loop.predictor:load_run", "which", "model", "trust"),
)


def option(*spellings: str, **how: Any) -> Callable:
    """Returns an option as `click.option` does; its help shows its default."""
    return declare(*spellings, show_default=True, **how)


def name_and_value(text: str, option: str = "--option", such_as: str = "dim=32") -> tuple[str, Any]:
    """dim=32 -> ("dim", 32)."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{option} must be NAME=VALUE, such as {such_as}, not {text!r}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def names_of(text: str | None) -> tuple[str, ...]:
    """The names in a text, between commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def bar() -> AbstractContextManager[Callable[..., None]]:
    """progress(stage, done, total, note): a bar on a terminal, nothing elsewhere.

    It says `loading` from the start on, while the caller imports what it needs.
    """
    if is_set(QUIET):
        return nullcontext(terminal.silent)
    return terminal.bar("loading" if job.is_first() else "")


def new_table(*columns: str, left: Sequence[str] = ()) -> Table:
    """An empty table; the columns in `left` are aligned to the left, all others to the right."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table


def print_table(table: Table, err: bool = False) -> None:
    """Prints a table as wide as the terminal; whole in a file or a pipe.

    err: on standard error, in a file or a pipe 80 columns wide.
    """
    from rich.console import Console

    stream, width = (sys.stderr, 80) if err else (sys.stdout, _WIDE)
    console = Console(width=None if stream.isatty() else width, stderr=err, markup=False, highlight=False)
    console.print(table)
