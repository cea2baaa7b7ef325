"""JSON files that are read back: signed with a checksum of their content, and made into typed values.

    {"format": 3, ..., "crc32": 2774413601}     the crc32 of all other fields: compact JSON, sorted keys

`JsonFile` is a kind of file; its `read` refuses, in one line that names the file, what is no JSON object,
is nested too deeply, names a field twice, has numbers that no field holds, is of an unknown version, or
does not match its checksum. `build` makes a value of a type, and names the first field that does not fit.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PathText = typing.NewType("PathText", str)  # may have bytes that are no UTF-8, as `os.fsdecode` has them
_SUM = "crc32"
_OBJECTS = (dict, Mapping)
_EDITED = "if you have edited it, delete its `{}` and `crc32`"


@dataclass(frozen=True)
class JsonFile:
    """A kind of file: the version of it that is read, and what to do about one that cannot be.

    remedy: for a damaged file; other: for one of an older version.
    version: the field with the version; number: the version.
    editable: whether a file without version and checksum is read, too, as those are that people write.
    problem: what is said of a file that makes no sense.
    """

    remedy: str
    other: str = "read it with the version of hotrows that wrote it"
    version: str = "format"
    number: int = 1
    editable: bool = True
    problem: str = "is damaged"

    def sign(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields with the version and their checksum, for `write_json`."""
        content = {self.version: self.number, **fields}
        return {**content, _SUM: _checksum(content)}

    def read(self, path: Path) -> dict[str, Any]:
        """The fields of a file, without version and checksum; FileNotFoundError where there is none."""
        return self.check(path, path.read_bytes())

    def check(self, path: Path, content: bytes) -> dict[str, Any]:
        """The fields of a text that was read from a file; see `read`."""
        with self.naming(path):
            fields = parse(content)
            if not isinstance(fields, dict):
                raise ValueError(f"expected a JSON object, found {shown(fields)}")
        return self.verified(path, fields)

    def verified(self, path: Path, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of an object that was read from a file, without version and checksum."""
        version = fields.get(self.version)
        is_signed = self.version in fields or not self.editable
        if is_signed:
            check_version(path, version, self.number, self.other)
        with self.naming(path):
            expected = fields.pop(_SUM, None)
            if expected is None and is_signed:
                raise ValueError("its checksum is missing")
            if expected is not None and expected != _checksum(fields):
                edited = f" ({_EDITED.format(self.version)})" if self.editable else ""
                raise ValueError(f"its checksum is wrong{edited}")
        fields.pop(self.version, None)
        return fields

    @contextmanager
    def naming(self, path: Path) -> Iterator[None]:
        """Makes a ValueError about what stands in a file say which file, and what to do."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{path} {self.problem}: {error}; {self.remedy}") from None
        except RecursionError:
            raise ValueError(f"{path} {self.problem}: it is nested too deeply; {self.remedy}") from None


def check_version(path: Path, version: Any, known: int, older: str) -> None:
    """Raises ValueError where a file is not of the version `known`, the one that is read.

    older: what to do about a file of an earlier version; for a later one hotrows is to be upgraded.
    """
    if type(version) is int and version > known:
        older = "upgrade hotrows (pip install --upgrade hotrows)"
    if type(version) is not int or version != known:
        problem = f"{path} has format version {shown(version)}"
        raise ValueError(f"{problem}, this hotrows reads {known}; {older}")


def parse(text: str | bytes) -> Any:
    """The value of a text of JSON; ValueError, in one line, where it is none that a file may hold.

    >>> parse('{"rows": 3}')
    {'rows': 3}
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_number,
        )
    except RecursionError:
        raise ValueError("expected a JSON object, found one that is nested too deeply") from None
    except MemoryError:
        raise ValueError("expected a JSON object, found one that no memory holds") from None


def build(kind: Any, value: Any, what: str = "") -> Any:
    """A value of the dataclass `kind` from an object of JSON, whose fields may be dataclasses, tuples,
    dicts and unions of them; values that are of their type already stay as they are.

    what: what messages call it; by default the words of the type's name, as "run state".
    """
    what = what or re.sub(r"\B(?=[A-Z])", " ", kind.__name__.strip("_")).lower()
    if not isinstance(value, Mapping):
        raise ValueError(f"expected an object of the fields of a {what}, found {shown(value)}")
    kinds = types_of(kind)
    for name in value:
        if name not in kinds:
            raise ValueError(f"a {what} has no field {shown(name)}, only {sorted(kinds)}")
    built = {name: value_of(kinds[name], item, f"{name} of a {what}") for name, item in value.items()}
    fields = dataclasses.fields(kind)
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    absent = [name for name in required if name not in value]
    if absent:
        raise ValueError(f"a {what} lacks the fields {absent}")
    return kind(**built)


def value_of(kind: Any, value: Any, where: str) -> Any:
    """A value of the type `kind`; where: what the message of an error calls it."""
    if kind is Any or _is_legal(value, kind):
        return value
    if isinstance(kind, types.UnionType):
        options = [one for one in typing.get_args(kind) if _may_be(value, one)]
        if len(options) == 1:
            return value_of(options[0], value, where)
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        if arguments[-1] is Ellipsis:
            return tuple(value_of(arguments[0], item, where) for item in value)
        if len(arguments) == len(value):
            pairs = zip(arguments, value, strict=True)
            return tuple(value_of(one, item, where) for one, item in pairs)
    if typing.get_origin(kind) in _OBJECTS and isinstance(value, dict):
        one = arguments[1]
        return {name: value_of(one, item, f"{shown(name)} in {where}") for name, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return build(kind, value)
    expected = str(getattr(kind, "__name__", kind)) if not arguments else str(kind)
    raise ValueError(f"{where} must be of type {expected}, not {shown(value)}")


def check_types(declared: Any) -> None:
    """Makes tuples of what is listed, and raises ValueError for the first field of a wrong type."""
    for name, expected in types_of(declared.__class__).items():
        value = getattr(declared, name)
        if isinstance(value, Iterable) and not isinstance(value, str | bytes | tuple | dict):
            value = tuple(value)
        value = value_of(expected, value, f"{name} of a {type(declared).__name__.lower()}")
        object.__setattr__(declared, name, value)


@functools.cache
def types_of(kind: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass, by name."""
    return typing.get_type_hints(kind)


def is_name(text: str) -> bool:
    """True if a text can be the name of a file, and leads nowhere else.

    >>> is_name('model'), is_name('../model')
    (True, False)
    """
    return text.isprintable() and text not in ("", ".", "..") and "/" not in text


def shown(value: Any) -> str:
    """Formats a value for a message, shortened to 60 characters.

    >>> shown('x' * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    is_long = isinstance(value, int) and abs(value) >= 1 << 200
    text = "a number of many digits" if is_long else repr(value)
    return text[:60] + ("..." if len(text) > 60 else "")


def _is_legal(value: Any, kind: Any) -> bool:
    """True if a value is of a plain type; numbers must be finite and fit int64."""
    if isinstance(kind, types.UnionType):
        return any(_is_legal(value, one) for one in typing.get_args(kind))
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e300
    if kind is int:
        return type(value) is int and abs(value) < 1 << 63
    if kind is PathText:
        return type(value) is str
    if kind is str:
        return type(value) is str and (
            value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
        )
    return typing.get_origin(kind) is None and isinstance(value, kind)


def _may_be(value: Any, kind: Any) -> bool:
    """True if a value of JSON has the form of a type that is made of others."""
    if dataclasses.is_dataclass(kind) or typing.get_origin(kind) in _OBJECTS:
        return isinstance(value, dict)
    return typing.get_origin(kind) is tuple and isinstance(value, list | tuple)


def _checksum(fields: Mapping[str, Any]) -> int:
    """The crc32 of the fields as they will be read: keys are texts, tuples are lists."""
    content = json.loads(json.dumps(fields, allow_nan=False))
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"expected each name of an object once, found {shown(twice)} again")
    return fields


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) >= 1 << 64:
        raise ValueError(f"expected numbers of 64 bits, found {shown(text)}")
    return int(text)


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"expected finite numbers, found {shown(text)}")
    return number
