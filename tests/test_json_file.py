"""JSON files: what stands in them is what was written, or one line says which file and field is wrong."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from hotrows.runtime import json_file
from hotrows.runtime.json_file import JsonFile, build

FILE = JsonFile("bring it back", "use the other hotrows", number=3, editable=False)
EDITED = JsonFile("bring it back")


@dataclass(frozen=True)
class Piece:
    name: str
    size: int = 0


@dataclass(frozen=True)
class Content:
    step: int
    rate: float = 0.5
    pieces: tuple[Piece, ...] = ()
    columns: tuple[int, int] = (0, 1)
    files: dict[str, Piece] = field(default_factory=dict)
    first: Piece | None = None
    state: Any = None
    flag: bool = False


FIELDS = {"step": 7, "rate": 1e-5, "pieces": [{"name": "a", "size": 2}], "files": {"é": {"name": "b"}}}


def read(tmp_path, content, file=FILE):
    path = tmp_path / "m.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return file.read(path)


def test_what_was_signed_is_read_however_it_is_laid_out(tmp_path):
    signed = FILE.sign({**FIELDS, "columns": (0, 3), "by": {1: "x", 10: "y", 2: "z"}})
    for indent in (None, 3):
        text = json.dumps(dict(reversed(signed.items())), indent=indent, ensure_ascii=bool(indent))
        fields = read(tmp_path, text.encode())
        assert fields == {**FIELDS, "columns": [0, 3], "by": {"1": "x", "10": "y", "2": "z"}}


def test_every_changed_digit_is_noticed(tmp_path):
    text = json.dumps(FILE.sign(FIELDS))
    for place, letter in enumerate(text):
        if letter.isdigit():
            for other in "0123456789".replace(letter, ""):
                changed = text[:place] + other + text[place + 1 :]
                with pytest.raises(ValueError, match=r"m\.json (is damaged: .*; bring|has form)"):
                    read(tmp_path, changed.encode())


def test_only_what_people_edit_may_have_no_checksum(tmp_path):
    signed = FILE.sign(FIELDS)
    assert read(tmp_path, FIELDS, EDITED) == FIELDS
    with pytest.raises(ValueError, match="its checksum is missing"):
        read(tmp_path, {**FIELDS, "format": 3})
    with pytest.raises(ValueError, match="its checksum is wrong; bring"):
        read(tmp_path, {**signed, "step": 8})
    with pytest.raises(ValueError, match=r"wrong \(if you have edited it, delete its `format`"):
        read(tmp_path, {**EDITED.sign(FIELDS), "step": 8}, EDITED)
    for version in (2, 4, "3", True, None):
        remedy = "upgrade hotrows" if version == 4 else "use"
        with pytest.raises(ValueError, match=f"format version .*, this hotrows reads 3; {remedy}"):
            read(tmp_path, {**signed, "format": version})
    with pytest.raises(ValueError, match="has format version None, this hotrows reads 3; use"):
        read(tmp_path, FIELDS)


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 50_000, "nested too deeply"),
        (b"[]", r"expected a JSON object, found \[\]"),
        (b'{"a": NaN}', "expected finite numbers, found 'NaN'"),
        (b'{"a": -Infinity}', "expected finite numbers"),
        (b'{"a": 1e999}', "expected finite numbers"),
        (b'{"a": 1180591620717411303424}', "expected numbers of 64 bits, found '1180591620717411303424'"),
        (b'{"a": ' + b"9" * 5000 + b"}", "expected numbers of 64 bits, found '9999"),
        (b'{"a": 18446744073709551616}', "expected numbers of 64 bits"),
        (b'{"a": "\xff"}', "can't decode byte 0xff"),
        (b'{"a": 1, "b": 2, "a": 1}', "expected each name of an object once, found 'a' again"),
        (b'{"a": [{"b": 1, "b": 2}]}', "found 'b' again"),
    ],
)
def test_what_is_no_json_that_a_file_may_hold_is_one_line(tmp_path, content, said):
    with pytest.raises(ValueError, match=rf"m\.json is damaged: .*{said}.*; bring it back$") as error:
        read(tmp_path, content)
    assert str(error.value).isprintable() and len(str(error.value)) < 400


def test_the_largest_whole_number_is_of_64_bits():
    assert json_file.parse(b"[18446744073709551615, -9223372036854775808]") == [2**64 - 1, -(2**63)]


def test_values_are_built_of_their_types():
    assert build(Content, {"step": 1, "pieces": [{"name": "a"}], "first": {"name": "c"}}) == Content(
        1, pieces=(Piece("a"),), first=Piece("c")
    )
    assert build(Content, {"step": 1, "files": {"f": Piece("a", 3)}, "columns": [2, 4]}) == Content(
        1, files={"f": Piece("a", 3)}, columns=(2, 4)
    )


@pytest.mark.parametrize(
    "fields, said",
    [
        ([], r"expected an object of the fields of a content, found \[\]"),
        ({}, r"a content lacks the fields \['step'\]"),
        ({"step": 1, "stop": 2}, "a content has no field 'stop', only"),
        ({"step": 1.0}, "step of a content must be of type int, not 1.0"),
        ({"step": True}, "step of a content must be of type int, not True"),
        ({"step": 1 << 63}, "step of a content must be of type int"),
        ({"step": None}, "step of a content must be of type int, not None"),
        ({"step": 1, "rate": "x"}, "rate of a content must be of type float, not 'x'"),
        ({"step": 1, "flag": 1}, "flag of a content must be of type bool, not 1"),
        ({"step": 1, "pieces": {}}, "pieces of a content must be of type tuple"),
        ({"step": 1, "pieces": [3]}, "pieces of a content must be of type Piece, not 3"),
        ({"step": 1, "pieces": [{"size": 3}]}, r"a piece lacks the fields \['name'\]"),
        ({"step": 1, "columns": [1, 2, 3]}, r"columns of a content must be of type tuple\[int, int\]"),
        ({"step": 1, "files": {"f": {"name": 4}}}, "name of a piece must be of type str, not 4"),
        ({"step": 1, "files": {"f": 4}}, "'f' in files of a content must be of type Piece, not 4"),
        ({"step": 1, "first": {"name": "a\ud800"}}, "name of a piece must be of type str"),
        ({"step": 1, "first": 3}, "first of a content must be of type"),
    ],
)
def test_the_first_field_that_does_not_fit_is_named(fields, said):
    with pytest.raises(ValueError, match=said):
        build(Content, fields)


def test_messages_have_words_where_types_have_names():
    """`--set` of a wrong field said "a trainconfig"."""

    @dataclass(frozen=True)
    class _StateOfRun:
        step: int

    with pytest.raises(ValueError, match="^step of a state of run must be of type int"):
        build(_StateOfRun, {"step": "x"})
    with pytest.raises(ValueError, match="^a training configuration lacks the fields"):
        build(_StateOfRun, {}, "training configuration")
