"""Settings: what is known of each field of a configuration, declared once, beside the field.

    @dataclass(frozen=True)
    class TrainConfig:
        epochs: int = setting(1, "How often all training samples are read", least=1, resumable=True)

    GROUPS = {"Training": ("epochs",)}          # as help and documentation list them
    SETTINGS = declared(TrainConfig, GROUPS)    # SETTINGS["epochs"].check(0) raises ValueError

Checks, command line options and the table in the documentation are derived from it.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hotrows.runtime.json_file import shown

log = logging.getLogger("hotrows")

# Values that the engine checks too; they are here because naming them must not load PyTorch.
CACHE_TRANSFERS = ("zero_copy", "staged")
PLANNING = ("host", "device")  # where plans are made
SHARDINGS = ("rows", "tables", "columns", "replicated")
SPLITS = ("reads", "rows", "even")  # of fast memory over groups of packs

# Settings that runs of earlier versions have: values that changed nothing, and what there is now.
GONE: dict[str, tuple[tuple[Any, ...], str]] = {
    "rows_budget": (
        (None,),
        "`hotrows simulate --rows-budget` prints capacities to write into the schema; runs keep theirs",
    ),
    "exchange": (("auto", "one_stage"), "all-to-alls go in one stage, with the same bits"),
}


def without_gone(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without settings that are gone; logs a warning of each that was used. micro_batches=0,
    as many as were predicted to gain, is 1 now."""
    for name in sorted(fields.keys() & GONE):
        unused, instead = GONE[name]
        if fields[name] not in unused:
            log.warning(f"{name}={fields[name]!r} is no longer a setting: {instead}")
    kept = {name: value for name, value in fields.items() if name not in GONE}
    if kept.get("micro_batches") == 0 and kept["micro_batches"] is not False:
        kept["micro_batches"] = 1
    return kept


@dataclass(frozen=True)
class Setting:
    """The declaration of a field of a configuration.

    help: a sentence for the command line and the documentation, without its last full stop.
    unset: what holds where the value is None or empty.
    least, most: smallest and largest value; above: bound below all values; choices: all values. Whole
        numbers fit 64 bits, others are finite, in any case.
    changes: what another value changes of the weights that are trained: `no bit`, `rounding` or
        `results`.
    resumable: whether a resumed run may have another value.
    option: how the command line spells it, where it is not the name; "": it has none.
    unit: `bytes`, or nothing.
    name, type, default: of the field; `type` is that of values other than None, which `optional` ones
        may be.
    group: title of the settings among which help and documentation list it.
    """

    help: str
    unset: str = ""
    least: int | None = None
    most: int | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    changes: Literal["no bit", "rounding", "results"] = "results"
    resumable: bool = False
    option: str | None = None
    unit: str = ""
    name: str = ""
    type: Any = None
    optional: bool = False
    default: Any = None
    group: str = ""

    @property
    def option_name(self) -> str:
        """As the command line spells it, such as --batch-size; "" where it has none."""
        return f"--{self.name.replace('_', '-')}" if self.option is None else self.option

    @property
    def default_text(self) -> str:
        """The default in words, such as 4, no, or all rows."""
        if self.default is None or self.default == {}:
            return self.unset
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def bounds(self) -> str:
        """The bounds in words, such as at least 1; "" where there are none."""
        if self.least is not None and self.most is not None:
            return f"{self.least:,} to {self.most:,}"
        ends = {"at least": self.least, "above": self.above, "at most": self.most}
        return ", ".join(f"{words} {end:,}" for words, end in ends.items() if end is not None)

    def check(self, value: Any) -> None:
        """Raises ValueError where the value is none that the setting may have."""
        if value is None and self.optional:
            return
        if self.choices and value not in self.choices:
            raise ValueError(f"{self.name} must be one of {', '.join(self.choices)}, not {shown(value)}")
        kind, words = _KINDS.get(get_origin(self.type) or self.type, (object, ""))
        if isinstance(value, str) and value.encode(errors="ignore").decode() != value:
            raise ValueError(f"{self.name} must be text of UTF-8, not {value!r}; rename the folder")
        if not isinstance(value, kind) or (isinstance(value, bool) and self.type is not bool):
            raise ValueError(f"{self.name} must be {words}, not {shown(value)}")
        if self.least is not None and value < self.least:
            raise ValueError(f"{self.name} must be at least {self.least}, not {shown(value)}")
        if self.above is not None and not value > self.above:
            raise ValueError(f"{self.name} must be above {self.above:g}, not {shown(value)}")
        if self.most is not None and value > self.most:
            raise ValueError(f"{self.name} must be at most {self.most:,}, not {shown(value)}")
        if self.type is int and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{self.name} must be a whole number of at most 64 bits, not {shown(value)}")
        if self.type is float and not abs(value) <= sys.float_info.max:
            raise ValueError(f"{self.name} must be a finite number, not {value}")


# What values of a type are, and the words for it.
_KINDS: dict[Any, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
    dict: (dict, "names with their values"),
}


def setting(default: Any, help: str, **known: Any) -> Any:
    """Declares a field of a configuration; known: fields of its `Setting`.

    resumable: by default, where another value leaves the results as they are. option: by default the
    name of the field with two dashes.
    """
    known.setdefault("resumable", known.get("changes", "results") != "results")
    metadata = {"setting": Setting(help, **known)}
    if default == {}:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def declared(config: type, groups: Mapping[str, Sequence[str]]) -> dict[str, Setting]:
    """The settings of a dataclass by name, in the order of its fields.

    groups: names by title; every field is in one.
    """
    group_of = {name: title for title, names in groups.items() for name in names}
    fields = {field.name: field for field in dataclasses.fields(config)}
    settings = {}
    for name, hint in get_type_hints(config).items():
        field = fields[name]
        kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
        default = {} if field.default is dataclasses.MISSING else field.default
        known, optional = field.metadata["setting"], NoneType in get_args(hint)
        assert name in group_of, f"say in which group the setting {name} is listed"
        settings[name] = dataclasses.replace(
            known, name=name, type=kind, optional=optional, default=default, group=group_of[name]
        )
    return settings
