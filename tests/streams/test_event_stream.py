"""Events become batches: when they are cut, what is malformed or late, and how much is read ahead."""

import itertools
import json
import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch

from hotrows.data import Encoder, prepare
from hotrows.data.streams import DeadLetters, EventStream, StreamConfig, StreamState, table_events
from hotrows.data.streams.events import LineEvents, message_events
from hotrows.data.streams.line_log import LineLog, read_lines
from hotrows.schema import Dense, Label, Schema, Sparse, Time
from hotrows.train.run.state import RunState
from hotrows.train.run.stream_batches import StreamBatches

SCHEMA = Schema(
    (Dense("n", transform="none"), Sparse("a")),
    label=Label("y"),
    time=Time("t"),
    delimiter=",",
    name="timed",
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timed")
    (folder / "raw.csv").write_text(
        "y,n,a,t\n" + "".join(f"{i % 2},{i},v{i % 7},{i}\n" for i in range(100))
    )
    prepare([folder / "raw.csv"], SCHEMA, folder / "enc", split="position:0.8,0.1,0.1")
    return Encoder.open(folder / "enc")


def event(n, time=None, label=1):
    return {"y": label, "n": n, "a": f"v{n % 7}", "t": n if time is None else time}


def lines(events):
    return "".join(json.dumps(e) + "\n" if isinstance(e, dict) else e + "\n" for e in events).encode()


class Listed:
    """A source of a list of events, as lines or tables; `pause` stops it until it is set free."""

    def __init__(self, events, most=1000, ends=True):
        self.name, self.most, self.ends = "listed", most, ends
        self.events, self.number, self.reads = list(events), 0, 0

    @property
    def position(self):
        return {"number": self.number}

    def seek(self, position):
        self.number = position["number"]

    def read(self, limit, wait):
        self.reads += 1
        chosen = self.events[self.number : self.number + min(limit, self.most)]
        if not chosen:
            return None if self.ends else LineEvents("listed", b"")
        self.number += len(chosen)
        return LineEvents("listed", lines(chosen), self.number - len(chosen) + 1)

    def read_to(self, position, wait):
        return self.read(position["number"] - self.number, wait)

    def has_reached(self, position):
        return self.number >= position["number"]

    def close(self):
        pass


def numbers(batch):
    return [int(n) for n in batch.dense[:, 0]]


def test_a_batch_that_came_before_anyone_listened_wakes_who_trains(encoder):
    """It came once planning had found none, and before the stream knew whom to wake: training waited
    until another one came."""
    with EventStream(Listed([event(1)], ends=False), encoder, 1) as stream:
        assert stream.wait(60)
        woken = []
        StreamBatches(stream, RunState(), None, lambda: False).on_arrival(lambda: woken.append(True))
        assert woken


def test_events_that_came_while_the_process_was_stopped_are_read_before_the_stream_ends(encoder):
    class Stopped(Listed):
        def read(self, limit, wait):
            if self.reads == 0:
                self.reads += 1
                time.sleep(0.5)  # longer than a stream waits for an event
                return LineEvents("listed", b"")
            return super().read(limit, wait)

    source = Stopped(map(event, range(3)), ends=False)
    with EventStream(source, encoder, 4, StreamConfig(stop_when_idle=0.3)) as stream:
        assert [numbers(batch) for batch in stream] == [[0, 1, 2]]


def test_a_stream_of_what_is_no_event_is_not_idle(encoder):
    """Thousands of tombstones ended a stream before the events behind them."""

    class Tombstones(Listed):
        def read(self, limit, wait):
            time.sleep(0.05)
            self.number += 1
            return LineEvents("listed", lines([event(3)] if self.number == 12 else []))

    source = Tombstones([], ends=False)
    with EventStream(source, encoder, 1, StreamConfig(stop_when_idle=0.2)) as stream:
        assert numbers(next(stream)) == [3]


def test_workers_of_a_data_loader_are_refused(encoder, monkeypatch):
    """Each would read all events."""
    worker = SimpleNamespace(num_workers=2)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: worker)
    with pytest.raises(
        ValueError, match="each of 2 workers of a DataLoader would read all events of lis"
    ):
        EventStream(Listed([]), encoder, 1)


def test_batches_are_full_but_for_the_last(encoder):
    with EventStream(Listed(map(event, range(10)), most=3), encoder, 4) as stream:
        batches = list(stream)
    assert [numbers(batch) for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch.first_sample for batch in batches] == [0, 4, 8]
    assert stream.state == StreamState("listed", {"number": 10}, events=10, read=10, event_time=9)


def test_events_are_encoded_as_predict_encodes_rows(encoder):
    """Chunk by chunk or at once, lines or tables: the same ids and numbers, also of mixed types."""
    events = [{**event(n), "a": n if n % 3 else f"v{n}", "n": n / 2} for n in range(20)]
    events[5].pop("a")
    columns = {name: [str(e.get(name, "")) for e in events] for name in ("y", "n", "a", "t")}
    whole = next(encoder.encode(columns, batch_size=100))
    for most in (1, 7, 20):
        with EventStream(Listed(events, most), encoder, 100) as stream:
            (batch,) = stream
        for name in ("ids", "dense", "labels"):
            assert torch.equal(getattr(batch, name), getattr(whole, name)), (name, most)


def test_a_batch_is_trained_after_a_while_though_it_is_not_full(encoder):
    source = Listed(map(event, range(3)), ends=False)
    with EventStream(source, encoder, 100, StreamConfig(max_wait=0.01)) as stream:
        assert numbers(next(stream)) == [0, 1, 2]
        assert not stream.wait(0.0)


def test_reading_pauses_where_enough_batches_wait(encoder):
    source = Listed(map(event, range(1000)))
    with EventStream(source, encoder, 10, StreamConfig(queue=3)) as stream:
        next(stream)
        until_full(stream, 3)
        assert source.number <= 10 * (1 + 3 + 1)  # taken, waiting, and in the thread's hand


def until_full(stream, size):
    with stream._queue._changed:
        assert stream._queue._changed.wait_for(lambda: len(stream._queue._items) == size, 60)


BAD = [
    '{"y": 1, "n": "x", "a": 1, "t": 1}',
    "not json",
    '{"y": 7, "n": 1, "a": 1, "t": 1}',
    "{}",
    "",
    "[1]",
]


@pytest.mark.parametrize("most", [1, 5, 100])
def test_malformed_events_go_to_dead_letters_with_position_and_reason(encoder, tmp_path, most, caplog):
    """A stream none of whose events could be read, for want of one column, ended as if it had none."""
    events = list(itertools.chain.from_iterable([event(n), bad] for n, bad in enumerate(BAD)))
    letters = DeadLetters(tmp_path / "letters.jsonl")
    with EventStream(Listed(events, most), encoder, 4, dead_letters=letters) as stream:
        assert [numbers(batch) for batch in stream] == [[0, 1, 2, 3], [4, 5]]
    letters.close()
    written = list(read_lines(tmp_path / "letters.jsonl"))
    assert [letter["read"] for letter in written] == [1, 3, 5, 7, 9, 11]
    assert [letter["event"] for letter in written] == BAD
    assert {letter["reason"] for letter in written} == {"malformed"}
    assert "event 2, column 'n': expected a number, found 'x'" in written[0]["what"]
    assert "line 4: expected an object of JSON per line" in written[1]["what"]
    assert (stream.state.read, stream.state.events, stream.state.malformed) == (12, 6, 6)
    (warning,) = caplog.messages
    assert "expected a number, found 'x'" in warning and f"go to {letters.path}" in warning


def test_late_events_are_dropped_or_trained_as_declared(encoder, tmp_path):
    times = [100, 95, 89, 120, 110, 109, 10, 130]
    events = [event(n, time) for n, time in enumerate(times)]
    for most in (1, 8):
        letters = DeadLetters(tmp_path / "letters.jsonl")
        with EventStream(
            Listed(events, most), encoder, 8, StreamConfig(lateness=10), None, letters
        ) as stream:
            assert [numbers(batch) for batch in stream] == [[0, 1, 3, 4, 7]]
        assert (stream.state.late, stream.state.event_time) == (3, 130)
        letters.close()
        assert [(x["read"], x["reason"]) for x in read_lines(letters.path)] == [
            (n, "late") for n in (2, 5, 6)
        ]
    trained = StreamConfig(lateness=10, late="train")
    with EventStream(Listed(events), encoder, 8, trained) as stream:
        assert [numbers(batch) for batch in stream] == [list(range(8))]
    assert stream.state.late == 3


def test_a_stream_goes_on_where_its_state_says_and_letters_are_not_written_twice(encoder, tmp_path):
    events = [event(n) if n % 3 else "bad" for n in range(30)]
    path = tmp_path / "letters.jsonl"
    first = DeadLetters(path)
    with EventStream(Listed(events, 7), encoder, 4, dead_letters=first) as stream:
        trained = [numbers(next(stream)) for _ in range(2)]
        until_full(stream, 3)  # and so letters behind the state are written
    first.close()
    state = StreamState(**json.loads(json.dumps(vars(stream.state))))
    second = DeadLetters(path, state.read)
    with EventStream(Listed(events, 5), encoder, 4, None, state, second) as stream:
        trained += [numbers(batch) for batch in stream]
    second.close()
    assert list(itertools.chain(*trained)) == [n for n in range(30) if n % 3]
    assert [letter["read"] for letter in read_lines(path)] == list(range(0, 30, 3))


def test_batches_are_cut_again_as_they_were_noted(encoder):
    with EventStream(Listed(map(event, range(20)), most=3), encoder, 7) as stream:
        cuts = [stream.take() for _ in range(3)]
    again = [json.loads(json.dumps(cut.reads)) for cut in cuts]
    with EventStream(Listed(map(event, range(20))), encoder, 50, cuts=again) as stream:
        assert [numbers(batch) for batch in stream] == [numbers(cut.batch) for cut in cuts]
    with (
        pytest.raises(ValueError, match="listed ended before .*, up to which a batch was cut"),
        EventStream(Listed(map(event, range(9))), encoder, 50, cuts=again) as stream,
    ):
        list(stream)


def test_an_error_of_the_source_comes_where_its_batch_would(encoder):
    class Broken(Listed):
        def read(self, limit, wait):
            if self.number == 4:
                raise OSError("the disk is gone")
            return super().read(limit, wait)

    with EventStream(Broken(map(event, range(8)), most=4), encoder, 4) as stream:
        assert numbers(next(stream)) == [0, 1, 2, 3]
        with pytest.raises(OSError, match="the disk is gone"):
            next(stream)
    assert not [thread for thread in threading.enumerate() if thread.name == "hotrows-events"]


def test_events_that_are_divided_keep_their_places():
    """A batch with a malformed event is halved until it is found."""
    places = ["entry 1", "entry 2", "entry 3"]
    entries = message_events([b"{}"] * 3, "the queue", None, places)
    rows = table_events(pa.table({"a": [1, 2, 3]}), "the table")
    assert [entries[n:].place(0) for n in range(3)] == places
    assert [rows[n:].place(0) for n in range(3)] == [f"the table row {n}" for n in range(3)]


def test_own_tables_are_events(encoder):
    class Tables(Listed):
        def read(self, limit, wait):
            chosen = self.events[self.number : self.number + limit]
            self.number += len(chosen)
            columns = {name: [e[name] for e in chosen] for name in ("y", "n", "a")}
            return table_events(columns) if chosen else None

    with EventStream(Tables(map(event, range(6))), encoder, 4) as stream:
        assert [numbers(batch) for batch in stream] == [[0, 1, 2, 3], [4, 5]]
    assert stream.state.event_time is None


def test_a_line_that_a_crash_has_cut_is_dropped_with_all_behind_it(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n{"n"')
    assert list(read_lines(path)) == [{"n": 1}, {"n": 2}, {"n": 3}]
    log = LineLog(path, lambda line: line["n"] < 3)
    log.write({"n": 4})
    log.close()
    assert path.read_text() == '{"n": 1}\n{"n": 2}\n{"n": 4}\n'


@pytest.mark.parametrize("line", ['{"n": 2', '{"n": 9}', '{"m": 2}', "[2]", "\\0\\0"])
def test_a_damaged_line_before_others_that_stay_is_refused_and_nothing_is_cut(tmp_path, line):
    path = tmp_path / "log.jsonl"
    path.write_text(text := f'{{"n": 1}}\n{line}\n{{"n": 3}}\n')
    with pytest.raises(ValueError, match=r"log.jsonl is damaged: line 2 cannot be read, or"):
        LineLog(path, lambda line: line.get("n", 9) < 4)
    assert path.read_text() == text


def test_settings_are_checked():
    for wrong, why in (
        ({"max_wait": 0}, "max_wait must be above 0"),
        ({"alarm_calibration": "1"}, "two numbers that rise, such as 0.8,1.25, not '1'"),
        ({"alarm_calibration": "2,1"}, "two numbers that rise"),
        ({"late": "keep"}, "late must be one of drop, train"),
    ):
        with pytest.raises(ValueError, match=why):
            StreamConfig(**wrong)
    assert StreamConfig.from_json(StreamConfig(late="train").to_json()) == StreamConfig(late="train")
