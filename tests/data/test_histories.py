"""Histories by reference: the batches of copied lists, from events that are stored once."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows import Schema, Sequence, Sparse, Time, TrainConfig, Trainer
from hotrows.data import EncodedData, Encoder, Loader, draft_schema, open_parquet, prepare, write_encoded
from hotrows.data.encode import events as event_index
from hotrows.data.encode.writing import prepare_schema
from hotrows.data.hot_cold.profile import profile
from hotrows.data.hot_cold.regroup import regroup
from hotrows.data.stored import part as parts
from tests.support.histories import COLUMNS, copied, events_and_samples, schema

FIELDS = ("features", "ids", "offsets", "dense", "labels", "groups", "sample_weights")


def both(folder, events, samples, by_reference=None, lists=None, **how):
    """The data prepared from events, and from copied lists."""
    yield prepare(samples, by_reference or schema(), folder / "events", events=events, **how)
    yield prepare(copied(events, samples), lists or schema(False), folder / "copied", **how)


def assert_equal(ours, theirs):
    for name in FIELDS:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, name
    if ours.requests is not None:
        assert torch.equal(ours.requests.starts, theirs.requests.starts)
        assert_equal(ours.requests.shared, theirs.requests.shared)


def assert_equal_batches(ours, theirs, **how):
    pairs = zip(Loader(ours, 32, **how).batches(1), Loader(theirs, 32, **how).batches(1), strict=True)
    for one, other in pairs:
        assert_equal(one, other)


HOW = [{}, {"shuffle": True}, {"shuffle": True, "order": "reuse:2"}, {"shuffle": True, "rank": 1, "num_ranks": 3}]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_batches_equal_those_of_copied_lists(tmp_path, how, monkeypatch):
    monkeypatch.setattr(parts, "BLOCK_ROWS", 64)
    ours, theirs = both(tmp_path, *events_and_samples())
    assert vars(ours.vocabularies["item"]) == vars(theirs.vocabularies["item"])
    for name, part in ours.parts.items():
        assert part.rows
        assert_equal_batches(part, theirs.parts[name], **how)


def test_counts_and_rows_equal_those_of_copied_lists(tmp_path):
    ours, theirs = both(tmp_path, *events_and_samples(1), split="time:0.6,0.2,0.2")
    for name, part in ours.parts.items():
        other = theirs.parts[name]
        for count in ("rows", "clicks", "missing", "unknown", "values", "empty"):
            assert getattr(part, count) == getattr(other, count), count
        sampled, expected = part.sample(4, 8), other.sample(4, 8)
        for f in range(len(expected.ids)):
            assert np.array_equal(sampled.values(f), expected.values(f))
    ours.check()
    files = {path.name for path in ours.path.iterdir()}
    assert "events.shard" in files and "events" not in files, "temporary files are left"


@pytest.mark.parametrize("shared", [("user", "history", "kinds"), ("history", "kinds"), ("user",)])
def test_requests_share_histories(tmp_path, shared):
    events, samples = events_and_samples(2)
    of_user = samples.groupby("user")["at"].transform("first")
    samples = samples.assign(at=of_user, request=samples["user"]).sort_values("request")
    fields = {"request": "request", "shared": shared}
    ours, theirs = both(tmp_path, events, samples, schema(**fields), schema(False, **fields))
    for how in HOW:
        assert_equal_batches(ours.parts["train"], theirs.parts["train"], **how)


def test_samples_of_a_request_at_several_times_share_no_history(tmp_path):
    events, samples = events_and_samples(2)
    samples = samples.assign(request=samples["user"]).sort_values("request")
    with pytest.raises(ValueError, match="'histories/.*': expected the value of the row before, of the same"):
        fields = {"request": "request", "shared": ("history", "kinds")}
        prepare(samples, schema(**fields), tmp_path / "enc", events=events)


def test_the_last_events_are_cut_at_load(tmp_path):
    events, samples = events_and_samples(3)
    (cut, _), (_, short) = (
        tuple(both(tmp_path / str(length), events, samples, schema(lengths=lengths), schema(False, lengths)))
        for length, lengths in ((9, {"history": 9, "kinds": 9}), (2, {"history": 2, "kinds": 2}))
    )
    whole = prepare(copied(events, samples), schema(False, {"history": 9, "kinds": 9}), tmp_path / "whole")
    loaded = Loader(cut.parts["train"], 50, last=2).batches(0)
    for batch, expected in zip(loaded, Loader(whole.parts["train"], 50).batches(0), strict=True):
        offsets = expected.offsets.numpy()
        lists = np.split(expected.ids.numpy(), offsets[1:-1])
        assert batch.ids.tolist() == [id for one in lists for id in one[-2:]]
    assert [len(one) for one in short.parts] == [len(one) for one in cut.parts]
    with pytest.raises(ValueError, match="expected histories in schema 'custom'"):
        Loader(whole.parts["train"], 50, last=2)


events_of_few = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-2, 4), st.integers(0, 5)), min_size=1, max_size=30
)
samples_of_few = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 5)), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(events_of_few, samples_of_few)
def test_no_history_has_an_event_at_or_after_the_time_of_its_sample(tmp_path_factory, events, samples):
    """Items are the numbers of events, so that lists say which events they have."""
    events = pd.DataFrame(events, columns=["user", "at", "kind"]).assign(item=lambda rows: range(len(rows)))
    samples = pd.DataFrame([*samples, (events["user"][0], 9)], columns=["user", "at"]).assign(item=0, click=1)
    seen = schema(lengths={"history": None, "kinds": None})
    folder = tmp_path_factory.mktemp("property")
    data = prepare(samples, seen, folder / "enc", events=events, split="fraction:1,0,0")
    ordered = events.sort_values("at", kind="stable")
    rows = data.parts["train"].shard(0)
    place = [feature.name for feature in data.schema.id_features].index("history")
    values = event_index_values(data)
    for row, (user, at) in enumerate(zip(samples["user"], samples["at"], strict=True)):
        ids = rows.ids[place][rows.offsets[place][row] : rows.offsets[place][row + 1]]
        past = ordered[(ordered["user"] == user) & (ordered["at"] < at)]["item"]
        assert [values[id] for id in ids.tolist()] == [str(item) for item in past]


def event_index_values(data):
    """The values of the items by id."""
    from hotrows.data.encode.encoder import stored_values

    values = stored_values(data)["item"]
    return {3 + rank: values.value(rank).decode() for rank in range(len(values))}


def test_a_leak_stops_the_preparation(tmp_path, monkeypatch):
    """As if the search took the events of the sample's own time as well."""
    events, samples = events_and_samples()
    find = event_index.EventIndex._check_past
    monkeypatch.setattr(
        event_index.EventIndex, "_check_past", lambda self, columns, begins, ends: find(self, columns, begins, ends + 1)
    )
    with pytest.raises(ValueError, match="has an event that is not before its time"):
        prepare(samples, schema(), tmp_path / "enc", events=events)
    assert not (tmp_path / "enc").exists()
