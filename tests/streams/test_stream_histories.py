"""Histories by reference on streams: a line reads what its user did before, and may be an event."""

import dataclasses
import json
import tracemalloc
from contextlib import closing
from itertools import pairwise
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from hotrows import Dynamic, Schema, Sequence, Sparse, Time
from hotrows.data import Encoder, prepare
from hotrows.data.stored import user_histories as stored
from hotrows.data.stored.histories import NEWEST, SortedEvents
from hotrows.data.stored.user_histories import UserHistories
from hotrows.data.streams import EventStream, StreamConfig, open_joined, open_source
from hotrows.optim import Adagrad
from hotrows.serving import Limits, Scorer, application
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.export.whole import export
from hotrows.train import Trainer, load_run
from hotrows.train.config import TrainConfig
from tests.support.bundles import known_program, trained
from tests.support.histories import LENGTHS, copied, events_and_samples, schema
from tests.support.runs import Kill, Killed, weights_of

DRAINED = StreamConfig(stop_when_idle=0.2)


CONFIG = TrainConfig(
    model="din",
    model_options={"dim": 4, "attention": [8], "hidden": [8]},
    batch_size=16,
    row_optimizer=Adagrad(lr=0.1),
    seed=3,
    linear_paths="plain",
    checkpoint_every=2,
)
UNBOUNDED = {"history": None, "kinds": None}
LONG = dict.fromkeys(LENGTHS, 10_000)


def lines_and_lists(events, seed=9, size=200, users=12, late=False):
    """Lines of a stream after the prepared events, and the same with copied lists: of each line those
    events of earlier seconds that are prepared, or came before it with a positive label. late: in no
    order, and of times before."""
    random = np.random.default_rng(seed)
    columns = {"user": users + 2, "at": 30, "item": 27, "kind": 5, "click": 2}
    lines = pd.DataFrame({name: random.integers(0, most, size) for name, most in columns.items()})
    lines["at"] += 10 if late else 25
    lines = lines if late else lines.sort_values("at", kind="stable", ignore_index=True)
    past = [events]
    lists = []
    for row in range(len(lines)):
        lists.append(copied(pd.concat(past), lines[row : row + 1]))
        if lines["click"][row]:
            past.append(lines[row : row + 1])
    return lines, pd.concat(lists)


def write_lines(folder, *parts, columns=None):
    """Writes frames as files of JSON lines, which a folder source reads in this order."""
    folder.mkdir()
    for number, part in enumerate(parts):
        text = "".join(json.dumps(row, default=int) + "\n" for row in part.to_dict("records"))
        (folder / f"{number:02}.jsonl").write_text(text)
    return f"folder:{folder}"


def both(tmp_path, late=False):
    """Prepared data by reference and with copied lists, of one vocabulary, and a stream for each."""
    events, samples = events_and_samples()
    lines, lists = lines_and_lists(events, late=late)
    lengths = LONG if late else LENGTHS
    ours = prepare(samples, schema(lengths=lengths), tmp_path / "ours", events=events)
    theirs = prepare(copied(events, samples), schema(False, lengths), tmp_path / "theirs")
    yield ours, write_lines(tmp_path / "lines", lines)
    yield theirs, write_lines(tmp_path / "lists", lists)


def batches(data, source, size=16, **how):
    encoder = Encoder.open(data.path)
    with EventStream(open_source(source, encoder.schema), encoder, size, DRAINED, **how) as stream:
        return [(batch, stream.histories) for batch in stream]


@pytest.fixture(scope="module", params=[False, True], ids=["in order", "late"])
def twins(request, tmp_path_factory):
    """What `both` makes, with lines in order and late ones."""
    return tuple(both(tmp_path_factory.mktemp("twins"), request.param))


@pytest.fixture
def one_program(tmp_path):
    """Makes the ONNX program of the model once in a test, and then only replaces its parameters."""
    with known_program(tmp_path / "program.onnx"):
        yield


@pytest.mark.parametrize("size", [1, 7, 64])
def test_lines_read_the_histories_that_copied_lists_have(twins, size):
    (ours, lines), (theirs, lists) = twins
    pairs = list(zip(batches(ours, lines, size), batches(theirs, lists, size), strict=True))
    assert sum(batch.size for (batch, _), _ in pairs) == 200
    for (one, _), (other, _) in pairs:
        for name in ("features", "ids", "offsets", "labels"):
            a, b = getattr(one, name), getattr(other, name)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, name


def test_impressions_that_wait_for_labels_read_the_histories_of_their_time(tmp_path):
    """As lines whose label came with them, in the order in which labels are known; killed or not."""
    events, samples = events_and_samples()
    lines, _ = lines_and_lists(events)
    data = prepare(samples, schema(lengths=LENGTHS), tmp_path / "enc", events=events)
    due = lines["at"] + np.where(lines["click"] > 0, 0, 3)
    order = np.argsort(due, kind="stable")[: int((due <= lines["at"].max()).sum())]
    plain = [batch for batch, _ in batches(data, write_lines(tmp_path / "plain", lines), 1)]

    lines["id"] = np.arange(len(lines))
    shown = write_lines(tmp_path / "shown", lines.drop(columns="click"))
    clicks = write_lines(tmp_path / "clicks", lines[lines["click"] > 0][["id", "at"]])
    encoder = Encoder.open(data.path)
    config = dataclasses.replace(DRAINED, join_on="id", label_window="3s")
    with EventStream(open_joined(shown, clicks, data.schema, "id"), encoder, 1, config) as stream:
        joined = list(stream)
    assert len(joined) == len(order) > 150
    for batch, number in zip(joined, order.tolist(), strict=True):
        for name in ("ids", "offsets", "labels"):
            assert torch.equal(getattr(batch, name), getattr(plain[number], name)), (number, name)

    def fit(run, **how):
        trainer = Trainer(data, CONFIG, run, resume=run.exists())
        trainer.fit_stream(shown, config, labels=clicks, **how)

    fit(tmp_path / "whole")
    with pytest.raises(Killed):
        fit(tmp_path / "run", callbacks=[Kill(5)])
    fit(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")


def before(events, user, at):
    return [e for e in sorted(events, key=lambda e: e[1]) if e[0] == user and e[1] < at]


def seen(past, user, at, kept):
    """The items that a line sees of what came before it, told without sorting runs."""
    prepared, appended = past[: len(PREPARED)], past[len(PREPARED) :]
    newest = max((e[1] for e in appended if e[0] == user), default=at)
    stay = before(appended, user, max(newest, at))[-kept:]
    return [e[2] for e in before(prepared + stay, user, at)]


PREPARED = [(0, at, 100 + at) for at in range(6)]
lines_of_few = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.booleans()), max_size=40)


@mock.patch.object(stored, "_LEAST_SPARE", 1)
@settings(max_examples=60, deadline=None)
@given(lines_of_few, st.integers(1, 3), st.lists(st.integers(0, 40), max_size=6), st.integers(0, 3))
def test_a_user_has_the_same_events_however_they_were_added(
    tmp_path_factory, lines, longest, cuts, restart
):
    """In whatever pieces, from a checkpoint or from a file of a bundle: a line sees what is before its
    second of all prepared events, and of the last appended ones. Lists that lack events are counted."""
    folder = tmp_path_factory.mktemp("histories")
    declared = schema(lengths={"history": longest, "kinds": 1})
    users, times, items = np.array(PREPARED).T
    columns = {"times": times, "numbers": times * 0, "ids/history": items, "ids/kinds": -items}
    prepared = SortedEvents.joined({"users": users.astype(np.uint64), **columns})
    base = UserHistories({"history": longest, "kinds": 1}, (prepared,))
    assert base.kept == 2 * longest
    histories, past = base, list(PREPARED)
    bounds = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
    for number, (first, end) in enumerate(pairwise(bounds)):
        users, times, clicks = (np.array(c) for c in zip(*lines[first:end], strict=True))
        items = np.arange(first, end)
        ids = {"history": items, "kinds": -items}
        lists, num_short, histories = histories.read(users.astype(np.uint64), times, clicks, ids)
        lacking = 0
        for name, length, sign in (("history", longest, 1), ("kinds", 1, -1)):
            found = np.split(lists[name][0], lists[name][1][1:-1])
            partial = list(past)
            for row, (user, at, click) in enumerate(lines[first:end]):
                expected = [sign * item for item in seen(partial, user, at, base.kept)][-length:]
                assert found[row].tolist() == expected
                exact = [sign * e[2] for e in before(partial, user, at)][-length:]
                lacking += name == "history" and expected != exact
                partial += [(user, at, first + row)] if click else []
        past = partial
        assert lacking <= num_short
        if number == restart:
            histories = base.appended(histories.since(base.count))
        elif number + 1 == restart:
            histories.write(folder / "events.shard")
            histories = base = UserHistories.open(folder, declared)
    assert histories.count == len(past) - len(PREPARED)
    sent = base.appended(histories.since(base.count))
    users = np.arange(3, dtype=np.uint64)
    for at in (-1, 3, 6, NEWEST):
        offsets, (lists, _) = (of(users, np.full(3, at)) for of in (sent.offsets_of, sent.lists))
        found = np.split(lists["history"][0], lists["history"][1][1:-1])
        assert [f.tolist() for f in found] == [seen(past, u, at, base.kept)[-longest:] for u in range(3)]
        assert all(of.tolist() == lists[name][1].tolist() for name, of in offsets.items())


def test_memory_holds_the_last_events_of_each_user(tmp_path):
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    histories, users = Encoder.open(data.path).histories, np.arange(10, dtype=np.uint64)
    for second in range(1000):
        ids = {"history": users.astype(np.int64), "kinds": users.astype(np.int64)}
        histories = histories.append(users, np.full(10, second), ids)
    assert sum(len(run.columns["times"]) for run in histories.runs[1:]) < 3 * 10 * (histories.kept + 1)
    assert len(histories.since(0)["times"]) < 3 * 10 * (histories.kept + 1)


def test_a_file_of_events_is_written_in_about_its_own_bytes_of_memory(tmp_path):
    """Memory once held all events twice, with users and numbers of 8 bytes each, and sorted both."""
    size, random = 200_000, np.random.default_rng(0)
    ids = {"history": random.integers(0, 9, size)}
    events = {"times": random.integers(0, 1000, size), "numbers": np.zeros(size, np.int64)}
    users = random.integers(0, 1 << 63, 500, np.uint64)[random.integers(0, 500, size)] * np.uint64(2)
    base = SortedEvents.joined({"users": users, **events, "ids/history": ids["history"].astype(np.int32)})
    histories = UserHistories({"history": 10_000}, (base,))
    histories = histories.append(users[:1000], np.full(1000, 1001), {"history": ids["history"][:1000]})
    tracemalloc.start()
    histories.write(tmp_path / "events.shard")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * (tmp_path / "events.shard").stat().st_size
    declared = Schema((Sequence("history", "item", max_length=10_000),), user="user", time=Time("at"),
                      histories=("history",))  # fmt: skip
    stored = UserHistories.open(tmp_path, declared)
    asked = base.users, np.full(len(base.users), NEWEST)
    lists = [of.lists(*asked)[0]["history"] for of in (stored, histories)]
    assert all(np.array_equal(one, other) for one, other in zip(*lists, strict=True))


def test_a_stream_refuses_histories_without_a_length(tmp_path):
    """Each event of a user would stay in memory. Those that are cut may stream, prepared as they are."""
    events, samples = events_and_samples()
    lines, _ = lines_and_lists(events)
    data = prepare(samples, schema(lengths=UNBOUNDED), tmp_path / "enc", events=events)
    source = write_lines(tmp_path / "lines", lines)
    with pytest.raises(ValueError, match="'history' has no max_length, and a stream would keep all"):
        train(data, source, tmp_path / "run")
    train(data.cut(5), source, tmp_path / "cut")


def test_a_run_that_begins_with_one_of_a_stream_has_its_histories(tmp_path):
    """On the same data. It once began with those of the data, and users lost what they did since."""
    events, samples = events_and_samples()
    lines, _ = lines_and_lists(events)
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    train(data, write_lines(tmp_path / "first", lines[:100]), tmp_path / "run")
    start = dataclasses.replace(CONFIG, start_from=str(tmp_path / "run"))
    later, more = events_and_samples(seed=1)
    extended = prepare(more, None, tmp_path / "extended", events=later, extend=data.path)
    source = write_lines(tmp_path / "second", lines[100:])
    for of_data, read in ((data, lines["click"]), (extended, lines["click"][100:])):
        run = tmp_path / f"on {of_data.path.name}"
        Trainer(of_data, start, run).fit_stream(source, DRAINED)
        assert load_run(run, "last").histories.count == read.sum()


def test_training_equals_that_on_copied_lists_killed_or_not(tmp_path):
    (ours, lines), (theirs, lists) = both(tmp_path)
    train(ours, lines, tmp_path / "ours-run")
    train(theirs, lists, tmp_path / "theirs-run")
    assert_same(tmp_path / "ours-run", tmp_path / "theirs-run")
    for step in (3, 9):
        with pytest.raises(Killed):
            train(ours, lines, tmp_path / "killed", callbacks=[Kill(step)])
    train(ours, lines, tmp_path / "killed")
    assert_same(tmp_path / "killed", tmp_path / "theirs-run")


def train(data, source, run, **how):
    trainer = Trainer(data, CONFIG, run, resume=run.exists())
    trainer.fit_stream(source, DRAINED, **how)
    return trainer


def assert_same(run, other):
    pairs = zip(weights_of(run), weights_of(other), strict=True)
    assert all(torch.equal(one, another) for one, another in pairs)


def score_both(scorer, rows):
    """Scores of rows with the lists, and of rows with user and time, and with the user alone."""
    rows = rows.drop(columns=["click", "kind"])
    alone = rows.drop(columns=["history", "kinds"])
    tables = (rows, alone, alone.drop(columns="at"))
    return [scorer.logits(table.to_dict("records")) for table in tables]


@pytest.mark.usefixtures("one_registry", "one_program")
def test_a_server_reads_the_newest_history_of_a_user_from_deltas(tmp_path):
    """User alone scores as the list does, in a bundle, after a delta, on a later base, and in an export;
    an event of the same second or a later one is not seen."""
    events, samples = events_and_samples()
    lines, _ = lines_and_lists(events)
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    folder = tmp_path / "lines"
    source = write_lines(folder, lines[:100])
    newest = pd.DataFrame({"user": range(14), "at": 10**6, "item": 3, "kind": 0, "click": 0})

    def asked(num_lines):
        past = pd.concat([events, lines[:num_lines][lines["click"][:num_lines] == 1]])
        return copied(past, newest)

    train(data, source, tmp_path / "run", callbacks=[publisher_of(tmp_path)])
    with closing(Scorer.watch(tmp_path / "published", every=None)) as scorer:
        before, by_time, by_user = score_both(scorer, asked(100))
        assert np.array_equal(before, by_time) and np.array_equal(before, by_user)
        assert len(np.unique(before)) > 5
        text = "".join(json.dumps(row, default=int) + "\n" for row in lines[100:].to_dict("records"))
        (folder / "01.jsonl").write_text(text)
        train(data, source, tmp_path / "run", callbacks=[publisher_of(tmp_path)])
        scorer.follower.look()
        after, by_time, by_user = score_both(scorer, asked(200))
        assert np.array_equal(after, by_time) and np.array_equal(after, by_user)
        assert scorer.version.base > 1 and scorer.version.histories.count == lines["click"].sum()
        one = scorer.logits([{"item": 3}, {"item": 4}], shared={"user": 5})
        given = asked(200)
        shared = {"user": 5, "history": given["history"][5], "kinds": given["kinds"][5]}
        assert np.array_equal(one, scorer.logits([{"item": 3}, {"item": 4}], shared=shared))
        past = pd.concat([events, lines[lines["click"] == 1]])
        for moment in (lines["at"].max(), 30, 3):  # before newer events than the lists are long
            told = scorer.logits([{"user": 5, "item": 3, "at": int(moment)}])
            of_then = copied(past, newest[5:6].assign(at=moment))
            shared = {name: of_then[name].iloc[0] for name in ("user", "history", "kinds")}
            assert np.array_equal(told, scorer.logits([{"item": 3}], shared=shared))
        with pytest.raises(ValueError, match="the request lacks the columns"):
            scorer.logits([{"item": 2}])
    bundle = export(tmp_path / "run", tmp_path / "bundle", "last", format="onnx")
    exported = score_both(Scorer(bundle), asked(200))
    assert all(np.array_equal(exported[0], other) for other in exported[1:])


def publisher_of(tmp_path):
    return Publisher(tmp_path / "published", every="3b", base_every=4)


def test_a_server_refuses_long_histories_of_many_users_before_it_makes_their_lists(tmp_path, monkeypatch):
    """Lists of thousands of users once took memory before their size was refused."""
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    run = trained(data, tmp_path / "run", "din")
    scorer = Scorer(export(run, tmp_path / "bundle", "last", format="onnx"))
    scorer.warm_up()  # as `hotrows serve` begins: it once refused a row without a user
    assert not any(served.values for served in scorer.requests.value_counts.by_feature().values())
    made, make = [], UserHistories.lists
    monkeypatch.setattr(UserHistories, "lists", lambda *of: made.append(of) or make(*of))
    rows = [{"user": user, "item": 3} for user in range(12)]
    with TestClient(application(scorer, Limits(seconds=60, places=12 * (5 + 8)))) as client:
        longest = client.post("/score", json=rows)
        assert longest.status_code == 200 and len(made) == 1
        answer = client.post("/score", json=[*rows, rows[0]])
    assert answer.status_code == 413 and len(made) == 1
    assert (
        "expected at most 156 rows times values of the longest list, 169 came" in answer.json()["detail"]
    )


def test_keys_are_histories_and_lines_may_be_delimited_text(tmp_path):
    """Of dynamic features, whose keys users have; a header names no list."""
    events, samples = events_and_samples()
    lines, lists = lines_and_lists(events)
    dynamic = Dynamic(capacity=100, evict="lru")

    def declared(column, **fields):
        history = Sequence("history", column, "item", max_length=5, dynamic=dynamic)
        features = (Sparse("item", dynamic=dynamic), history)
        return Schema(features, "click", time=Time("at"), delimiter=",", **fields)

    by_user = declared("item", user="user", histories=("history",))
    ours = prepare(samples, by_user, tmp_path / "ours", events=events)
    theirs = prepare(copied(events, samples), declared(None), tmp_path / "theirs")
    (tmp_path / "text").mkdir()
    lines.to_csv(tmp_path / "text" / "a.csv", index=False)
    pairs = zip(
        batches(ours, f"folder:{tmp_path / 'text'}"),
        batches(theirs, write_lines(tmp_path / "lists", lists)),
        strict=True,
    )
    for (one, _), (other, _) in pairs:
        assert torch.equal(one.ids, other.ids) and torch.equal(one.offsets, other.offsets)


def test_a_line_without_a_time_is_malformed_and_one_without_a_user_has_no_history(tmp_path):
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    lines = pd.DataFrame({"user": [5, None, None, 5], "at": [90, None, 91, 92], "item": 3, "kind": 1})
    text = lines.assign(click=1).to_json(orient="records", lines=True)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.jsonl").write_text(text)
    encoder = Encoder.open(data.path)
    source = open_source(f"folder:{tmp_path / 'lines'}", encoder.schema)
    with EventStream(source, encoder, 8, DRAINED) as stream:
        (batch,) = stream
        assert stream.state.malformed == 1 and stream.histories.count == 2
    lengths = batch.offsets.diff().reshape(4, 3)[2]
    assert lengths.tolist() == [5, 0, 5]


def test_a_read_of_late_lines_alone_leaves_the_stream_open(tmp_path):
    """None of its lines is left to be trained: it once ended the stream with an error of shapes."""
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    lines = pd.DataFrame({"user": 5, "at": [90, 10, 91], "item": 3, "kind": 1, "click": 1})
    source = write_lines(tmp_path / "lines", *(lines[row : row + 1] for row in range(3)))
    encoder, config = Encoder.open(data.path), StreamConfig(stop_when_idle=0.2, lateness=5, late="drop")
    with EventStream(open_source(source, encoder.schema), encoder, 1, config) as stream:
        assert [batch.size for batch in stream] == [1, 1]
        assert stream.state.late == 1 and stream.histories.count == 2


def test_a_line_before_more_events_than_are_kept_is_counted(tmp_path, caplog):
    """And warned of; it sees those that were prepared."""
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    lines = pd.DataFrame({"user": 5, "at": [*range(100, 230), 99], "item": 3, "kind": 1, "click": 1})
    encoder = Encoder.open(data.path)
    source = open_source(write_lines(tmp_path / "lines", lines), encoder.schema)
    with EventStream(source, encoder, 200, DRAINED) as stream:
        (batch,) = stream
        assert stream.state.short == 1
    assert "1 histories may lack events: of each user the last 108 that a stream" in caplog.text
    lists = batch.offsets.diff().reshape(-1, 131)[2]
    assert lists[-1] == 5


def test_a_history_reads_the_column_of_its_name_where_it_declares_none(tmp_path):
    """On a stream as in an events file; it once read another column there, of missing values."""
    events, samples = events_and_samples()
    lines, _ = lines_and_lists(events)
    events, lines = (frame.assign(seen=frame["item"]) for frame in (events, lines))
    ids = []
    for column in ("item", None):
        features = (Sparse("item"), Sequence("seen", column, "item", max_length=5))
        declared = Schema(features, "click", time=Time("at"), user="user", histories=("seen",))
        data = prepare(samples, declared, tmp_path / f"{column}", events=events)
        source = write_lines(tmp_path / f"lines {column}", lines)
        ids.append(torch.cat([batch.ids for batch, _ in batches(data, source)]))
    assert torch.equal(*ids)


def test_an_encoder_without_events_is_refused(tmp_path):
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    (data.path / "events.shard").unlink()
    encoder = Encoder.open(data.path)
    with pytest.raises(ValueError, match="has histories, and the encoder has no events of users"):
        batches(data, f"folder:{tmp_path}")
    assert encoder.histories is None


@pytest.mark.usefixtures("one_registry")
def test_what_the_user_does_is_computed_once_for_all_candidates(tmp_path):
    """A program for shared features, with the user, and the time, once; and counts of served values."""
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    run = trained(data, tmp_path / "run", "din")
    shared = ("user", "history", "kinds")
    scorer = Scorer(export(run, tmp_path / "bundle", "last", format="onnx", shared=shared))
    rows = [{"item": item} for item in range(20)]
    asked = copied(events, pd.DataFrame({"user": [5], "at": [30]}))
    lists = {name: asked[name].iloc[0] for name in ("history", "kinds")}
    given = scorer.logits(rows, {"user": 5, **lists})
    assert np.array_equal(scorer.logits(rows, {"user": 5, "at": 30}), given)
    assert np.allclose(scorer.logits([{**row, "user": 5, "at": 30} for row in rows[:3]]), given[:3])
    served = scorer.requests.value_counts.by_feature()["history"]
    assert served.values == 5 and not served.missing, "those of the lists that were given, cut"
