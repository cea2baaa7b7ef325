"""Options of a model: the arguments of its class, checked before it is made.

They come from the command line and from JSON, where a slip is common and nothing else says what was
meant. Only plain types, and lists of them, are checked: an argument of another annotation, or of
none, takes anything.
"""

from __future__ import annotations

import inspect
import math
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from hotrows.runtime.suggestions import did_you_mean

_PLAIN: dict[Any, type] = {
    int: numbers.Integral,
    float: numbers.Real,
    bool: bool,
    str: str,
    type(None): type(None),
}


def check(kind: type, options: Mapping[str, Any]) -> None:
    """Refuses an option that the class does not have, or of another type than it says."""
    known = {n: p for n, p in inspect.signature(kind).parameters.items() if n != "schema"}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    wanted = _types_of(kind)
    for name, value in options.items():
        if name not in known and not takes_any:
            raise ValueError(
                f"{kind.__name__} has no option {name!r}; it has {', '.join(known) or 'none'}"
                f"{did_you_mean(name, known)}"
            )
        if name in known and name in wanted and not _fits(value, wanted[name]):
            said = inspect.formatannotation(wanted[name]).replace("collections.abc.", "")
            raise ValueError(
                f"{kind.__name__}'s option {name} must be {said}{_such_as(known[name])}, not {value!r}"
            )


def _types_of(kind: type) -> dict[str, Any]:
    try:
        return inspect.get_annotations(kind.__init__, eval_str=True)  # type: ignore[misc]
    except NameError:  # names that only a type checker imports
        return {}


def _fits(value: Any, wanted: Any) -> bool:
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, member) for member in inner)
    if origin is Sequence:
        return isinstance(value, Sequence) and all(_fits(element, inner[0]) for element in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(element, inner[1]) for key, element in value.items()
        )
    if isinstance(value, bool) and wanted in (int, float):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return False
    return wanted not in _PLAIN or isinstance(value, _PLAIN[wanted])


def _such_as(argument: inspect.Parameter) -> str:
    says_something = argument.default not in (None, (), inspect.Parameter.empty)
    return f", such as {argument.default!r}" if says_something else ""
