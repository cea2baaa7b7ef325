"""Tables of the reference pages that follow from the code: commands, settings, data sets.

python docs/generated.py   writes them into docs/reference/, between markers
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from hotrows import cli
from hotrows.data import datasets
from hotrows.data.streams import settings as streams
from hotrows.runtime.settings import Setting
from hotrows.train import config

REFERENCE = Path(__file__).parent / "reference"
ALL = 20  # options of a command that takes the settings of a training


def contents() -> dict[str, dict[str, str]]:
    """Markdown by page and by name of its markers."""
    groups = {
        "settings": settings_tables(config.SETTINGS, config.GROUPS),
        "streams": settings_tables(streams.SETTINGS, streams.GROUPS),
    }
    return {
        "command_line.md": {"commands": "\n\n".join(map(described, commands(cli.cli, "hotrows")))},
        "settings.md": groups,
        "data_sets.md": {"sets": sets()},
    }


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name, groups left out."""
    if isinstance(command, click.Group):
        for word, member in sorted(command.commands.items()):
            yield from commands(member, f"{name} {word}")
    else:
        yield name, command


def described(named: tuple[str, click.Command]) -> str:
    """The section of a command: usage, what it does, its options, examples."""
    name, command = named
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    help = textwrap.dedent(f"    {command.help}").replace("\b\n", "").strip()
    parts = [f"## {name}", f"```text\n{usage}\n```", help]
    options = [option for option in command.params if isinstance(option, click.Option)]
    shared = [option for option in options if is_setting(option)]
    if len(shared) < ALL:  # a few of equal names, which mean what this command says
        shared = []
    own = [option for option in options if option not in shared]
    if own:
        lines = ["| option | what it does |", "|---|---|", *(_line(option, context) for option in own)]
        parts.append("\n".join(lines))
    if shared:
        names = ", ".join(f"`{option.opts[0]}`" for option in shared)
        parts.append(f"[Settings](settings.md) as options: {names}.")
    if command.epilog:
        parts.append(f"```text\n{command.epilog.strip()}\n```")
    return "\n\n".join(parts)


def is_setting(option: click.Option) -> bool:
    """Whether an option of a training is described among the settings."""
    known = config.SETTINGS.get(option.name or "") or streams.SETTINGS.get(option.name or "")
    return known is not None and known.option_name in option.opts


def _line(option: click.Option, context: click.Context) -> str:
    hidden, option.hidden = option.hidden, False  # which have no line in the help
    names, help = option.get_help_record(context) or ("", "")
    option.hidden = hidden
    words = re.sub(r"([|\[\]])", r"\\\1", " ".join(help.split()))
    return f"| `{names.replace('|', ' or ')}` | {words} |"


def settings_tables(settings: Mapping[str, Setting], groups: Mapping[str, Sequence[str]]) -> str:
    """The settings as Markdown, a heading and a table for each group and a line for each setting."""
    tables = (_settings_table([settings[name] for name in names]) for names in groups.values())
    return "\n\n".join(f"### {title}\n\n{table}" for title, table in zip(groups, tables, strict=True))


def _settings_table(settings: Sequence[Setting]) -> str:
    lines = ["| setting | what it does | default | changes | on resume |", "|---" * 5 + "|"]
    for known in settings:
        values = ", ".join(value for value in known.choices if value != known.default) or known.bounds
        same = known.option_name == f"--{known.name.replace('_', '-')}"
        option = "" if same else f" Option `{known.option_name}`." if known.option_name else " No option."
        what = f"{known.help}.{f' Values: {values}.' if values else ''}{option}"
        may = "may change" if known.resumable else "stays"
        lines.append(f"| `{known.name}` | {what} | {known.default_text} | {known.changes} | {may} |")
    return "\n".join(lines)


def sets() -> str:
    """A table of the public data sets."""
    lines = ["| data set | what | raw rows | raw size | licence | download |", "|---" * 6 + "|"]
    for one in datasets.ALL:
        how = "bundled" if one.bundled else "login" if one.sign_in else "direct"
        name = f"[{one.name}](#{one.name})"
        lines.append(f"| {name} | {one.title} | {one.rows:,} | {one.size} | {one.licence} | {how} |")
    return "\n".join(lines)


def put(page: Path, tables: dict[str, str]) -> str:
    """The text of a page with what is between the markers of each name replaced."""
    text = page.read_text()
    for name, content in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"
    return text


def main() -> int:
    for name, tables in contents().items():
        page = REFERENCE / name
        page.write_text(put(page, tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
