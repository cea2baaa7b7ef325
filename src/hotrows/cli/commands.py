"""Commands and their help: in groups, the most used options first, old names that still work.

hotrows                      the first steps
hotrows help train           what `hotrows train --help` shows
hotrows train --help         the options that most use
hotrows train --help=all     all of them
hotrows train --help=ranks   those of a section, or with a word in their name or help
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import click

from hotrows.cli.asked import answers, words_of

QUIET, VERBOSE = "hotrows.quiet", "hotrows.verbose"  # in the meta of a context
OVERWRITE = "hotrows.overwrite"  # in the meta of a context: whether files may be replaced
_WORD = "hotrows.help"  # in the meta of a context: what help is asked for
_SAME = 0.1  # names less close than the closest one by more are not suggested
_FEW = 3  # examples in a short help
_LONG = 40  # letters of choices that stand behind the text
_COMMON, _OTHERS = "Options that most use", "Options"  # titles


class RenamedOption(click.Option):
    """An option with `old` names that are accepted, and that help does not show."""

    def __init__(self, *args: Any, old: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._old = frozenset(old)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, [name for name in self.opts if name not in self._old]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


def declare(*names: str, old: Sequence[str] = (), **how: Any) -> Callable:
    """Returns an option as `click.option` does. old: names that it had, which are accepted.

    A default that the help says in words is not shown again.
    """
    how["show_default"] = how.get("show_default", False) and "[default: " not in how.get("help", "")
    if not old:
        return click.option(*names, **how)
    return click.option(*old, *names, cls=RenamedOption, old=old, **how)


class Command(click.Command):
    """A command whose help lists its options in sections and ends with examples that keep their lines.
    One that writes files which its options name has --overwrite; --out is also -o.

    sections: names of parameters by title; all others are in the last section, `Options`.
    common: names of the parameters that the help lists where it is not asked for more; none: all.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Sequence[str]], common: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sections, self._common = sections, common
        files = [param.opts[-1] for param in self.params if getattr(param.type, "is_written", False)]
        if files:
            self.params.append(click.Option(
                ["--overwrite"], is_flag=True, is_eager=True, expose_value=False,
                callback=lambda ctx, param, value: ctx.meta.update({OVERWRITE: value}),
                help=f"Replace the file of {' or '.join(files)} if there is one.",
            ))  # fmt: skip
        for param in self.params:
            if "--out" in param.opts:
                param.opts.insert(0, "-o")
        self.params += [
            _tone(
                QUIET,
                "-q",
                "--quiet",
                "Print no progress and no notes: results, warnings and errors only.",
            ),
            _tone(VERBOSE, "-v", "--verbose", "Print details, and when each message was written."),
        ]
        self._help = click.Option(
            ["-h", "--help"], is_flag=False, flag_value="", metavar="[=WORD]", is_eager=True,
            expose_value=False, callback=_show_help,
            help="Show this help; --help=all shows all.",
        )  # fmt: skip

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        return self._help if self._common else super().get_help_option(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            words = error.option_name.strip("-").replace("-", " ") + " "
            options = [param for param in self.params if isinstance(param, click.Option)]
            meant = [param.opts[-1] for param in options if (param.help or "").lower().startswith(words)]
            meant = answers(error.option_name, [name for o in options for name in o.opts]) or meant
            if meant:
                what = f"No such option {error.option_name!r}. Did you mean {' or '.join(meant)}?"
                raise click.UsageError(what, error.ctx) from None
            near = closest(error.option_name, error.possibilities or ())
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {param.name: record for param in known if (record := param.get_help_record(ctx))}
        word = self._word(ctx)
        sections = {title: list(names) for title, names in self._sections.items()}
        placed = {name for names in sections.values() for name in names}
        sections[_OTHERS] = [name for name in records if name not in placed]
        if not word:
            sections = {_COMMON: [*self._common, self._help.name]}
        num_hidden = len(records)
        for title, names in sections.items():
            lines = [records[name] for name in names if name in records]
            if word not in ("", "all"):
                lines = [line for line in lines if _has(word.lower(), title, line)]
            if lines:
                num_hidden -= len(lines)
                with formatter.section(title):
                    formatter.write_dl(
                        lines if word else list(map(_short, lines)), col_max=26 if word else 21
                    )
        if num_hidden:
            words = ", ".join(re.split(r"\W", title)[0].lower() for title in self._sections)
            formatter.write_paragraph()
            formatter.write_text(
                f"{num_hidden} more: --help=all, or --help=WORD with a word or a section ({words})."
            )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            lines = self.epilog.splitlines()
            shown = lines if self._word(ctx) == "all" else lines[:_FEW]
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in shown))

    def _word(self, ctx: click.Context) -> str:
        """The word that help is asked for; `all` where a command has no common options."""
        return ctx.meta.get(_WORD, "") if self._common else "all"


def _has(word: str, title: str, line: tuple[str, str]) -> bool:
    """True if an option's section, name, help or other words have a word."""
    others = " ".join(map(words_of, re.findall(r"--[a-z-]+", line[0])))
    return word in f"{title} {' '.join(line)} {others}".lower()


def _tone(key: str, *names_and_help: str) -> click.Option:
    """An option that sets how much a command prints."""

    def set_it(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[key] = True
            level = logging.WARNING if key == QUIET else logging.DEBUG
            logging.getLogger("hotrows").setLevel(level)

    *names, words = names_and_help
    return click.Option(
        names, is_flag=True, is_eager=True, expose_value=False, callback=set_it, help=words
    )


def is_set(key: str) -> bool:
    """True if the command that runs has --quiet, or --verbose: QUIET, VERBOSE."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(key))


def _short(line: tuple[str, str]) -> tuple[str, str]:
    """A line of help with long lists of choices behind its text: `--model NAME`."""
    names, text = line
    option, bracket, choices = names.partition(" [")
    if len(choices) < _LONG or not bracket:
        return line
    words, bracket, default = text.partition("  [default")
    listed = ", ".join(choices[:-1].split("|"))
    return f"{option} NAME", f"{words[:-1]}: {listed}.{bracket and bracket + default}"


def _show_help(ctx: click.Context, param: click.Parameter, word: str | None) -> None:
    if word is not None and not ctx.resilient_parsing:
        ctx.meta[_WORD] = word
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class Commands(click.Group):
    """A group whose help lists commands in groups, in the order of work.

    sections: names of commands by title. `help` with the name of a command is its `--help`.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width - 6 - max(map(len, self.commands))
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(width)) for name in names]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":
            args = [*args[1:], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help(), color=ctx.color)
                ctx.exit()
        return super().resolve_command(ctx, args)


def command(
    name: str,
    *examples: str,
    group: Any = click,
    sections: Mapping[str, Sequence[str]] | None = None,
    common: Sequence[str] = (),
) -> Callable[[Callable], click.Command]:
    """Decorates a function as a command of a group; its help ends with examples, as they are typed.

    sections, common: see `Command`.
    """
    epilog = "\n".join(examples)
    return group.command(name, cls=Command, epilog=epilog, sections=sections or {}, common=common)


def closest(word: str, names: Iterable[str]) -> list[str]:
    """The names that are as close to a word as the closest one, or nearly.

    >>> closest("--epoch", ["--epochs", "--policy"])
    ['--epochs']
    """
    likeness = {n: SequenceMatcher(None, word.strip("-"), n.strip("-")).ratio() for n in names}
    best = max(likeness.values(), default=0)
    return [name for name, value in likeness.items() if value >= max(best - _SAME, 0.6)]
