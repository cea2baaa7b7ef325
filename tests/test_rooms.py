"""The map of the source: all rooms and their promises, as the code has them now."""

import importlib.util
import json

import pytest

from tests.support.page_code import ROOT

spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
rooms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rooms)


def test_the_map_is_up_to_date():
    """Without lines, numbers of tests and seconds, which change with every commit."""
    text = rooms.PAGE.read_text()
    assert rooms.stable(text) == rooms.stable(rooms.with_table(text)), "run python docs/rooms.py"


def test_every_room_promises_something_in_a_sentence():
    lines = rooms.table().splitlines()[2:]
    promises = {line.split(" | ")[0]: line.split(" | ")[1] for line in lines}
    assert len(promises) >= 15
    assert {room: words for room, words in promises.items() if not 15 <= len(words) <= 120} == {}


@pytest.mark.parametrize(
    ("text", "promise"),
    [
        ('"""Keys: which are live.\n\nMore."""', "Keys: which are live."),
        ('"""Scores.\n    A table."""', "Scores."),
        ('"""Rows | slots, of\na line:\n\n    code"""', "Rows \\| slots, of a line"),
    ],
)
def test_a_promise_is_the_first_sentence(text, promise, tmp_path):
    file = tmp_path / "room.py"
    file.write_text(text)
    assert rooms.promise(file) == promise


def test_seconds_are_those_of_the_file_of_times(tmp_path, monkeypatch):
    times = tmp_path / "times.json"
    of_tests = {
        "test_a.py::test_x": [2, 0.1],
        "test_a.py::test_y": [1.4, 1.4],
        "test_b.py::test_x": [9, 9],
    }
    times.write_text(json.dumps({f"tests/{test}": seconds for test, seconds in of_tests.items()}))
    monkeypatch.setattr(rooms, "TIMES", tmp_path / "none.json")
    assert rooms.seconds([ROOT / "tests" / "test_a.py"]) == ""
    monkeypatch.setattr(rooms, "TIMES", times)
    assert rooms.seconds([ROOT / "tests" / "test_a.py"]) == "3"
