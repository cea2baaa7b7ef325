"""Sources: a folder that grows and a pipe; what is read, in which order, and where a later process goes
on."""

import json
import os
import time
from contextlib import ExitStack, closing

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.reading import Reading
from hotrows.data.streams.folder import FolderSource
from hotrows.data.streams.standard_input import StandardInput
from hotrows.schema import Dense, Label, Schema, Sparse

SCHEMA = Schema((Dense("n"), Sparse("a")), label=Label("y"), delimiter=",", name="small")
BARE = Schema(SCHEMA.features, label=Label("y"), delimiter=",", name="bare", columns=("y", "n", "a"))


def numbers_of(events):
    """The column n of events."""
    if events is None or not len(events):
        return []
    how = Reading(SCHEMA, threads=1)
    return [int(n) for n in SchemaColumns(how.schema).read(events.columns(how)).values["dense"][0]]


def everything(source, limit=4):
    """All that is there, in reads of so many events."""
    numbers = []
    while more := numbers_of(source.read(limit, 0)):
        numbers += more
    return numbers


@pytest.fixture
def opened(tmp_path):
    """Opens the folder of the test; what was opened is closed."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(FolderSource(tmp_path, SCHEMA)))


def csv(numbers, header="y,n,a\n"):
    return header + "".join(f"1,{n},x{n}\n" for n in numbers)


def table(numbers):
    return pa.table({"y": [1 for _ in numbers], "n": list(numbers), "a": [f"x{n}" for n in numbers]})


def json_lines(numbers):
    return "".join(json.dumps({"y": 0, "n": n, "a": n}) + "\n" for n in numbers)


def test_files_are_read_in_the_order_of_their_names_whatever_is_in_them(opened, tmp_path):
    (tmp_path / "b.jsonl").write_text(json_lines(range(3, 9)))
    (tmp_path / "a.csv").write_text(csv(range(3)))
    parquet.write_table(table(range(9, 20)), tmp_path / "c.parquet", row_group_size=4)
    (tmp_path / "d").mkdir()
    feather.write_feather(table(range(20, 25)), tmp_path / "d" / "1.arrow")
    for name in ("_SUCCESS", ".hidden", "0.csv.tmp", "a.part"):
        (tmp_path / name).write_text(csv([77]))
    assert everything(opened()) == list(range(25))


def test_a_line_is_read_once_its_line_break_is_there(opened, tmp_path):
    source, path = opened(), tmp_path / "a.csv"
    assert everything(source) == []
    path.write_text("y,n")
    assert everything(source) == []
    path.write_text(csv([1, 2])[:-1])
    assert everything(source) == [1]
    path.write_text(csv([1, 2, 3]) + "1,4,x")
    assert everything(source) == [2, 3]
    (tmp_path / "b.csv").write_text(csv([5]))
    assert everything(source) == [4, 5]  # no line break will come


def test_pipes_and_links_that_lead_back_are_no_files_of_a_folder(opened, tmp_path):
    """To open a pipe waits for who writes to it; two links to their own folder are 2^40 paths."""
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "1.csv").write_text(csv(range(3)))
    os.mkfifo(tmp_path / "a.csv")
    for place in (tmp_path, tmp_path / "days"):
        (place / "b").symlink_to(tmp_path)
        (place / "c").symlink_to(tmp_path / "days")
    (tmp_path / "z").symlink_to(tmp_path / "days" / "1.csv")
    for link, goal in (("e", "e"), ("f", "g"), ("g", "f"), ("h", "nowhere")):  # to no file at all
        (tmp_path / link).symlink_to(goal)
    assert everything(opened()) == [0, 1, 2] * 3  # as c, as days, as z


@pytest.mark.parametrize("text", [json_lines(range(3)), csv(range(3))])
def test_a_byte_order_mark_is_no_part_of_the_first_line(opened, tmp_path, text):
    """One before objects of JSON made a header of them, whose columns were missing."""
    (tmp_path / "a").write_text(text, encoding="utf-8-sig")
    assert everything(opened(), 1) == [0, 1, 2]


def test_a_file_that_is_not_whole_is_waited_for_and_a_file_that_comes_too_late_is_named(
    opened, tmp_path, caplog
):
    source = opened()
    parquet.write_table(table([1, 2]), tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    (tmp_path / "b.parquet").write_bytes(content[:-4])
    (tmp_path / "c.csv").write_text(csv([3]))
    assert everything(source) == []
    source.close()
    assert caplog.messages == [
        f"{tmp_path}/b.parquet is not whole: its events, and those of later files, were not read"
    ]
    (tmp_path / "b.parquet").write_bytes(content)
    assert everything(source) == [1, 2, 3]
    (tmp_path / "a.csv").write_text(csv([0]))
    assert everything(source) == [] and everything(source) == []
    assert [message for message in caplog.messages if "came after" in message] == [
        f"{tmp_path}/a.csv came after c.csv and is before it by name: it is not read, nor are 0 others; "
        f"give later files later names"
    ]


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_position_leads_back_whatever_the_file(opened, tmp_path, limit):
    """After each read: another source goes on there, and reads up to where the first one has been."""
    (tmp_path / "a.csv").write_text(csv(range(5)))
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "c.jsonl").write_text(json_lines(range(5, 12)))
    parquet.write_table(table(range(12, 20)), tmp_path / "d.parquet", row_group_size=3)
    source, numbers, places = opened(), [], []
    while more := numbers_of(source.read(limit, 0)):
        numbers += more
        places.append(json.loads(json.dumps(source.position)))
    assert numbers == list(range(20))
    for place in places:
        later = opened()
        later.seek(place)
        assert later.position["events"] == place["events"]
        assert everything(later, limit) == numbers[place["events"] :]
        again, repeated = opened(), []
        while not again.has_reached(place):
            repeated += numbers_of(again.read_to(place, 0))
        assert repeated == numbers[: place["events"]]


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_blank_lines_are_no_events(opened, tmp_path, limit):
    """Each counted as malformed. Lines keep their numbers, and positions lead back."""
    blank = csv(range(4)).replace("\n", "\n\n\r\n")
    (tmp_path / "a.csv").write_text(f"\n\n{blank}\r")
    (tmp_path / "b.jsonl").write_text("\n" + json_lines(range(4, 7)).replace("\n", "\n\n"))
    source, numbers, places = opened(), [], []
    while events := source.read(limit, 0):
        numbers += numbers_of(events)
        places += [events[n:].place(0).rpartition(" ")[2] for n in range(len(events))]
        later = opened()
        later.seek(source.position)
        assert everything(later, limit) == list(range(len(numbers), 7))
    assert numbers == list(range(7))
    assert places == ["6", "9", "12", "15", "2", "4", "6"]


def test_64_mib_of_line_breaks_are_passed_over_in_seconds(opened, tmp_path):
    (tmp_path / "a.csv").write_bytes(csv([1]).encode() + b"\n" * (64 << 20) + b"1,2,x\n")
    source, begin = opened(), time.monotonic()
    assert everything(source) == [1, 2]
    assert time.monotonic() - begin < 30


def test_files_may_go_once_they_are_read_and_not_before(opened, tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text(csv([1, 2]))
    source = opened()
    assert numbers_of(source.read(1, 0)) == [1]
    half = source.position
    assert everything(source) == [2]
    done = source.position
    a.unlink()
    b.write_text(csv([3]))
    assert everything(source) == [3]
    resumed = opened()
    resumed.seek(done)
    assert resumed.position == done
    assert everything(resumed) == [3]
    with pytest.raises(
        ValueError, match=r"a\.csv is gone, and events of it were not read yet: bring it back"
    ):
        opened().seek(half)
    a.write_text("y,n,a\n")
    cut = opened()
    cut.seek(done)
    with pytest.raises(ValueError, match=r"a\.csv is shorter than the \d+ bytes of it that were read"):
        cut.read(1, 0)


def written(path, name, text):
    path.with_name(name).write_text(text)
    return path.with_name(name)


def rename(path):
    path.rename(path.with_name("a.jsonl.1"))


CHANGES = {
    "shorter": lambda path, text: path.write_text(text[:30]),
    "longer": lambda path, text: path.write_text(text),
    "by a rename": lambda path, text: written(path, ".new", text).rename(path),
    "by another link": lambda path, text: (path.unlink(), path.symlink_to(written(path, ".b", text))),
    "made anew": lambda path, text: (path.unlink(), path.write_text(text)),
    "renamed, and made anew": lambda path, text: (rename(path), path.write_text(text)),
    "renamed": lambda path, text: rename(path),
}


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_is_another_one_while_it_is_read_is_refused(opened, tmp_path, how, is_running):
    """The new events were lost: the reader stayed at its place in the old file, or in the middle of a
    line of the new one."""
    path, source = tmp_path / "a.jsonl", opened()
    if how == "by another link":
        path.symlink_to(written(path, ".a", json_lines(range(9))))
    else:
        path.write_text(json_lines(range(9)))
    assert everything(source) == list(range(9))
    place = source.position
    CHANGES[how](path, json_lines(range(100, 140)))
    if not is_running and how != "renamed":
        source = opened()
        source.seek(place)
    with pytest.raises(ValueError, match="truncated or replaced|was replaced|renamed to a.jsonl.1 while"):
        everything(source)


def test_a_file_that_is_copied_over_with_more_events_is_read_on(opened, tmp_path):
    """rsync writes a file that has grown anew, and renames it."""
    path, source = tmp_path / "a.jsonl", opened()
    path.write_text(json_lines(range(9)))
    assert everything(source) == list(range(9))
    written(path, ".a", json_lines(range(12))).rename(path)
    assert everything(source) == [9, 10, 11]
    position = source.position
    path.unlink()  # as in a restore from a copy
    path.write_text(json_lines(range(15)))
    source = opened()
    source.seek(position)
    assert everything(source) == [12, 13, 14]
    old = {name: value for name, value in position.items() if name[0] != "_"}  # as runs before wrote it
    source = opened()
    source.seek(old)
    assert everything(source) == [12, 13, 14]


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize(
    "name, write", [("a.parquet", parquet.write_table), ("a.arrow", feather.write_feather)]
)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_whole_file_that_is_replaced_while_it_is_read_is_refused(
    opened, tmp_path, name, write, in_place, is_running
):
    path, source = tmp_path / name, opened()
    write(table(range(9)), path)
    assert numbers_of(source.read(5 if is_running else 9, 0)) == list(range(5 if is_running else 9))
    place = source.position
    write(table(range(100, 109)), tmp_path / ".new")
    if in_place and is_running:
        everything(source)
        path.write_bytes((tmp_path / ".new").read_bytes())
    else:
        (tmp_path / ".new").rename(path)
    if not is_running:
        source = opened()
        source.seek(place)
    with pytest.raises(ValueError, match="truncated or replaced after . rows of it were read"):
        everything(source)


def test_an_arrow_file_that_is_truncated_while_it_is_read_is_an_error(opened, tmp_path):
    """It was mapped into memory, and a bus error ended the process."""
    path, source = tmp_path / "a.arrow", opened()
    feather.write_feather(table(range(40_000)), path, compression="uncompressed", chunksize=10_000)
    assert numbers_of(source.read(5, 0)) == list(range(5))
    os.truncate(path, 5000)
    with pytest.raises(ValueError, match=r"a\.arrow is damaged"):
        everything(source, 10_000)


def test_a_file_that_came_too_late_is_named_whether_a_process_ran_or_not(opened, tmp_path, caplog):
    """Late files come mostly while the run is down, at the outage that their writer had, too."""
    for name in "bcd":
        (tmp_path / f"{name}.jsonl").write_text(json_lines([1]))
    source = opened()
    assert everything(source) == [1, 1, 1]
    place = json.loads(json.dumps(source.position))
    (tmp_path / "b.jsonl").unlink()
    resumed = opened()
    resumed.seek(place)
    assert everything(resumed) == [] and not caplog.messages
    time.sleep(0.02)  # the clock of a file system has coarse ticks
    (tmp_path / "a.jsonl").write_text(json_lines([0]))  # as many as before
    with open(tmp_path / "d.jsonl", "a") as file:
        file.write(json_lines([2]))
    resumed = opened()
    resumed.seek(place)
    assert everything(resumed) == [2] and everything(resumed) == []
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}/a.jsonl came after d.jsonl") and "nor are 0 others" in message


def test_files_that_are_gone_unread_or_grow_after_they_were_read_are_named(opened, tmp_path, caplog):
    source = opened()
    (tmp_path / "a.csv").write_text(csv([1, 2, 3]))
    (tmp_path / "b.csv").write_text(csv([4]))
    assert numbers_of(source.read(1, 0)) == [1]
    (tmp_path / "b.csv").unlink()
    assert everything(source) == [2, 3]
    (tmp_path / "c.csv").write_text(csv([5]))
    assert everything(source) == [5]
    with open(tmp_path / "a.csv", "a") as file:
        file.write(csv([6], ""))
    assert everything(source) == [] and everything(source) == []
    gone, grown = caplog.messages
    assert gone.startswith(f"{tmp_path}/b.csv is gone, and its events were not read")
    assert grown == f"{tmp_path}/a.csv was written to after it was read: that is not read"


def test_a_folder_that_is_away_is_waited_for(opened, tmp_path, caplog):
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "a.csv").write_text(csv([1]))
    with closing(FolderSource(folder, SCHEMA)) as source:
        assert everything(source) == [1]
        folder.rename(tmp_path / "away")
        assert everything(source) == []
        (tmp_path / "away").rename(folder)
        (folder / "b.csv").write_text(csv([2]))
        assert everything(source) == [2]
    (message,) = caplog.messages
    assert "No such file or directory" in message and message.endswith("; it is tried again")


def test_a_damaged_file_is_named(opened, tmp_path):
    parquet.write_table(table(range(5)), path := tmp_path / "a.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 40 + content[44:])
    with pytest.raises(ValueError, match=r"a\.parquet is damaged \(.*\); write it again"):
        opened().read(9, 0)


def test_what_no_stream_is_made_of_says_so(opened, tmp_path):
    with pytest.raises(ValueError, match="is no folder; make it before events are written"):
        FolderSource(tmp_path / "none", SCHEMA)
    for content in (b"\x1f\x8b" + bytes(30), json_lines([1]).encode("utf-16")):
        (tmp_path / "a.gz").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.gz is compressed or UTF-16; a stream reads UTF-8 text"):
            opened().read(1, 0)
    (tmp_path / "a.gz").unlink()
    (tmp_path / "a.csv").write_text("y,n,b\n")
    with pytest.raises(ValueError, match="lacks the columns"):
        opened().read(1, 0)
    parquet.write_table(table([1]).rename_columns(["y", "n", "A"]), tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"lacks the columns \['a'\] .* did you mean 'A'"):
        opened().read(1, 0)


@pytest.fixture
def pipe():
    """Both ends of a pipe; what is open is closed."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        if end >= 0:
            os.close(end)


@pytest.mark.parametrize(
    "schema, text", [(SCHEMA, csv(range(5))), (BARE, csv(range(5), "")), (BARE, json_lines(range(5)))]
)
def test_lines_come_through_a_pipe_until_it_is_closed(pipe, schema, text):
    source = StandardInput(schema, descriptor=pipe[0])
    assert numbers_of(source.read(9, 0.0)) == []
    os.write(pipe[1], b"\n\r\n" + text[:-3].encode())
    assert numbers_of(source.read(2, 1.0)) == [0, 1]
    assert source.position == {"events": 2}
    assert numbers_of(source.read(9, 1.0)) == [2, 3]
    os.write(pipe[1], text[-3:-1].encode())
    os.close(pipe[1])
    pipe[1] = -1
    assert numbers_of(source.read(9, 1.0)) == [4]
    assert source.read(9, 1.0) is None


def test_a_pipe_is_resumed_only_where_it_begins_anew(pipe):
    os.write(pipe[1], csv(range(5)).encode())
    with pytest.raises(ValueError, match="standard input cannot be read again: .* --stream -:replay"):
        StandardInput(SCHEMA, descriptor=pipe[0]).seek({"events": 3})
    source = StandardInput(SCHEMA, replays=True, descriptor=pipe[0])
    source.seek({"events": 3})
    assert numbers_of(source.read(9, 1.0)) == [3, 4]
    os.close(pipe[1])
    pipe[1] = -1
    with pytest.raises(ValueError, match="standard input ended after 5 events, 7 of which were trained"):
        source.seek({"events": 7})


def test_lines_without_a_header_need_columns(pipe):
    os.write(pipe[1], b"1,2,x\n")
    with pytest.raises(ValueError, match="line 1"):
        StandardInput(SCHEMA, descriptor=pipe[0]).read(1, 1.0)
