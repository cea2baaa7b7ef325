"""Kinds of columns from outside: subclasses of `Sparse`, known by their name in a schema."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

KINDS: dict[str, type[Any]] = {}  # by the name of the class, in small letters
_GROUP = "hotrows.columns"  # of entry points, by which packages name their kinds


class OwnKind:
    """What a kind of one's own may say: see CONTRIBUTING. expected: what it reads, for messages."""

    expected = "value"

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__.lower()] = cls

    @property
    def parts(self) -> tuple[Any, ...]:
        """The features that it stands for in a schema."""
        return (self,)

    def ids_of(self, texts: Any) -> Any:
        """What ids are made of: an Arrow array of text, null where missing, one for each of `texts`; a
        value of which nothing is made is wrong."""
        return texts

    @classmethod
    def drafted(cls, name: str, values: Iterable[Any]) -> Any:
        """The feature that a column of text is, with these values; None if it is not of this kind."""
        return None


def load_kind(name: str) -> None:
    """Imports the kind of this name, if a package that is installed has it."""
    for point in entry_points(group=_GROUP, name=name) if name not in KINDS else ():
        point.load()
