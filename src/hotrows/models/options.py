"""Options of a model: the arguments of its class, checked before it is made.

They come from the command line and from JSON, where a slip is common and nothing else says what was
meant. An argument without an annotation takes anything.
"""

from __future__ import annotations

import inspect
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}


def check(kind: type, options: Mapping[str, Any]) -> None:
    """Refuses an option that the class does not have, or of another type than it says."""
    known = {n: p for n, p in inspect.signature(kind).parameters.items() if n != "schema"}
    types_of = _types_of(kind)
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f"{kind.__name__} has no option {name!r}; it has {', '.join(known) or 'none'}"
            )
        if name in types_of and not _fits(value, types_of[name]):
            wanted = inspect.formatannotation(types_of[name]).replace("collections.abc.", "")
            default = known[name].default
            such_as = (
                "" if default in (None, (), inspect.Parameter.empty) else f" such as {default!r},"
            )
            raise ValueError(
                f"{kind.__name__}'s option {name} must be {wanted},{such_as} not {value!r}"
            )


def _types_of(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    except NameError:  # names that only a type checker imports
        return {}


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of a type, which is plain, a union, or a sequence; of others nothing is said."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Sequence:
        return isinstance(value, Sequence) and all(_fits(each, inner[0]) for each in value)
    if wanted in _NUMBERS:
        return isinstance(value, _NUMBERS[wanted]) and not isinstance(value, bool)
    return not isinstance(wanted, type) or isinstance(value, wanted)
