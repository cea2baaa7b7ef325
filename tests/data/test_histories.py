"""Histories by reference: the batches of copied lists, from events that are stored once."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows import Dense, Dynamic, Schema, Sequence, Sparse, Time, Trainer
from hotrows.data import (
    EncodedData,
    Encoder,
    Loader,
    draft_schema,
    open_parquet,
    prepare,
    prepare_schema,
    write_encoded,
)
from hotrows.data.datasets.event_samples import samples_of
from hotrows.data.encode.encoder import stored_values
from hotrows.data.encode.events import EventFiles, EventIndex
from hotrows.data.hot_cold.profile import profile
from hotrows.data.hot_cold.regroup import regroup
from hotrows.data.stored import part as parts
from hotrows.data.stored.encoded import read_manifest, write_signed
from hotrows.data.stored.sections import open_sections
from hotrows.serving import Scorer
from hotrows.serving.export.whole import export
from hotrows.train.run import folder as run_folder
from tests.support.bundles import known_program, trained
from tests.support.histories import copied, events_and_samples, schema

FIELDS = ("features", "ids", "offsets", "weights", "dense", "labels", "groups", "sample_weights")


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


HOW = [
    {},
    {"shuffle": True},
    {"shuffle": True, "order": "reuse:2"},
    {"shuffle": True, "rank": 1, "num_ranks": 3},
]


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
        for section in expected.arrays:
            assert np.array_equal(sampled.values(section), expected.values(section))
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


@pytest.mark.parametrize("shared", [None, ("user", "history", "kinds"), ("user", "tags")])
def test_weights_of_ids_and_vectors_stand_beside_histories(tmp_path, shared):
    events, samples = events_and_samples()
    of_user = samples.groupby("user")["at"].transform("first")
    samples = samples.assign(at=of_user, request=samples["user"]).sort_values("request")
    samples["tags"] = [[user % 3, user % 5] for user in samples["user"]]
    samples["scores"] = [[0.5, float(user)] for user in samples["user"]]
    samples["image"] = [[float(row), -1.0] for row in range(len(samples))]
    more = Sparse("tags", many=True, weights="scores"), Dense("image", width=2)
    fields = {} if shared is None else {"request": "request", "shared": shared}
    made = (schema(by_reference) for by_reference in (True, False))
    schemas = [dataclasses.replace(x, features=(*x.features, *more), **fields) for x in made]
    ours, theirs = both(tmp_path, events, samples, *schemas)
    for how in HOW:
        assert_equal_batches(ours.parts["train"], theirs.parts["train"], **how)


def test_samples_of_a_request_at_several_times_share_no_history(tmp_path):
    events, samples = events_and_samples(2)
    samples = samples.assign(request=samples["user"]).sort_values("request")
    with pytest.raises(
        ValueError, match="'histories': expected the value of the row before, of the same"
    ):
        fields = {"request": "request", "shared": ("history", "kinds")}
        prepare(samples, schema(**fields), tmp_path / "enc", events=events)


def test_the_last_events_are_cut_at_load(tmp_path):
    ours, theirs = both(tmp_path, *events_and_samples(3))
    loaded = Loader(ours.cut(2).parts["train"], 50).batches(0)
    for batch, expected in zip(loaded, Loader(theirs.parts["train"], 50).batches(0), strict=True):
        lists = np.split(expected.ids.numpy(), expected.offsets.numpy()[1:-1])
        assert batch.ids.tolist() == [id for one in lists for id in one[-2:]]
    with pytest.raises(ValueError, match="expected histories in schema 'custom'"):
        theirs.cut(2)


def test_a_run_keeps_the_number_of_last_events(tmp_path):
    """Its later evaluation, its resume and the encoder of its rows all cut as the training did."""
    events, samples = events_and_samples(3)
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    run = trained(data.cut(2), tmp_path / "run", "din")
    assert {f.max_length for f in run_folder.open_data(run).parts["test"].schema.sequences} == {2}
    rows = copied(events, samples)[:9]
    batch = next(run_folder.open_encoder(run).encode(rows))
    assert int(batch.offsets.diff()[18:].max()) == 2
    with pytest.raises(ValueError, match="max_length of feature 'history' was 2, is 5"):
        Trainer(data, run_folder.read_config(run), run, resume=True)


events_of_few = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-2, 4), st.integers(0, 5)), min_size=1, max_size=30
)
samples_of_few = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 5)), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(events_of_few, samples_of_few)
def test_no_history_has_an_event_at_or_after_the_time_of_its_sample(tmp_path_factory, events, samples):
    """Items are the numbers of events, so that lists say which events they have."""
    events = pd.DataFrame(events, columns=["user", "at", "kind"]).assign(
        item=lambda rows: range(len(rows))
    )
    samples = pd.DataFrame([*samples, (events["user"][0], 9)], columns=["user", "at"]).assign(
        item=0, click=1
    )
    seen = schema(lengths={"history": None, "kinds": None})
    folder = tmp_path_factory.mktemp("property")
    data = prepare(samples, seen, folder / "enc", events=events, split="fraction:1,0,0")
    ordered = events.sort_values("at", kind="stable")
    rows = data.parts["train"].shard(0)
    items = stored_values(data)["item"]
    for row, (user, at) in enumerate(zip(samples["user"], samples["at"], strict=True)):
        ids = rows[row : row + 1].values("ids/history")
        past = ordered[(ordered["user"] == user) & (ordered["at"] < at)]["item"]
        assert [int(items.value(id - 3)) for id in ids.tolist()] == past.tolist()


def test_a_leak_stops_the_preparation(tmp_path, monkeypatch):
    """As if the search took the events of the sample's own time as well."""
    events, samples = events_and_samples()
    check = EventIndex._check_past
    monkeypatch.setattr(
        EventIndex, "_check_past", lambda self, at, begins, ends: check(self, at, begins, ends + 1)
    )
    with pytest.raises(ValueError, match="has an event that is not before its time"):
        prepare(samples, schema(), tmp_path / "enc", events=events)
    assert not (tmp_path / "enc").exists()


def test_parts_of_other_files_and_vocabularies_of_other_data_take_events_too(tmp_path):
    events, samples = events_and_samples(4)
    files = {"validation": samples[:30], "test": samples[30:60]}
    lists = {name: copied(events, rows) for name, rows in files.items()}
    ours = prepare(samples[60:], schema(), tmp_path / "a", events=events, **files)
    theirs = prepare(copied(events, samples[60:]), schema(False), tmp_path / "b", **lists)
    later, of_later = events_and_samples(5)
    for how in ("like", "extend"):
        one = prepare(of_later, None, tmp_path / f"{how}-a", events=later, **{how: ours.path})
        other = prepare(copied(later, of_later), None, tmp_path / f"{how}-b", **{how: theirs.path})
        assert_equal_batches(one.parts["train"], other.parts["train"])


@pytest.mark.parametrize("killed", ["count", "encode"])
def test_a_preparation_that_was_interrupted_goes_on_to_the_same_bytes(tmp_path, killed, monkeypatch):
    events, samples = events_and_samples()
    files = {"events": tmp_path / "events.csv", "samples": tmp_path / "samples.csv"}
    for name, frame in (("events", events), ("samples", samples)):
        frame.to_csv(files[name], index=False)

    def prepared(name):
        return prepare(files["samples"], schema(), tmp_path / name, events=files["events"])

    whole = prepared("whole")
    stopped = EventFiles.remove if killed == "encode" else EventFiles.count
    name = stopped.__name__

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(EventFiles, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared("resumed")
    monkeypatch.setattr(EventFiles, name, stopped)
    prepared("resumed")
    for path in whole.path.iterdir():
        assert (tmp_path / "resumed" / path.name).read_bytes() == path.read_bytes(), path.name


def test_users_in_other_types_are_the_same_and_users_without_events_have_none(tmp_path):
    events = {"user": ["7", "8", "9"], "at": [1, 2, 3], "item": ["a", "b", "c"], "kind": [1, 2, 3]}
    samples = {"user": [7, 8, 6, None], "at": [9, 1, 9, 9], "item": ["a"] * 4, "click": [0, 1, 1, 1]}
    data = prepare(samples, schema(), tmp_path / "enc", events=events, split="fraction:1,0,0")
    assert data.parts["train"].shard(0).bounds["history"].tolist() == [0, 1, 1, 1, 1]
    with pytest.raises(
        ValueError, match="no sample has a user of the events: .*'7' in the events and 'u7'"
    ):
        named = {**samples, "user": [f"u{user}" for user in samples["user"]]}
        prepare(named | {"user": ["u7", "u8", "u6", "u5"]}, schema(), tmp_path / "other", events=events)


@pytest.mark.parametrize(("years", "dtype"), [(100, "u4"), (200, "i8")])
def test_times_of_events_take_four_bytes_unless_centuries_lie_between(tmp_path, years, dtype):
    events, samples = events_and_samples()
    last = years * 365 * 86_400
    events.loc[events["at"] > 10, "at"] += last
    samples.loc[samples["at"] > 10, "at"] += last
    ours, theirs = both(tmp_path, events, samples)
    assert open_sections(ours.path / "events.shard")["times"].dtype == np.dtype(dtype)
    assert_equal_batches(ours.parts["train"], theirs.parts["train"])
    (run,) = Encoder.open(ours.path).histories.runs
    assert run.times(np.arange(len(events))).max() == events["at"].max()


def test_a_history_of_ten_thousand_events(tmp_path):
    moments = np.arange(12_000)[::-1]  # out of order: they are sorted
    events = pd.DataFrame({"user": 1, "at": moments, "item": moments % 7, "kind": 0})
    samples = pd.DataFrame({"user": 1, "at": [10_500, 0], "item": 0, "click": [0, 1]})
    long = schema(lengths={"history": 10_000, "kinds": None})
    ours, theirs = both(
        tmp_path,
        events,
        samples,
        long,
        schema(False, {"history": 10_000, "kinds": None}),
        split="fraction:1,0,0",
    )
    assert ours.parts["train"].values["history"] == 10_000
    assert_equal_batches(ours.parts["train"], theirs.parts["train"])


def test_dynamic_keys_are_histories_too(tmp_path):
    dynamic = Dynamic(capacity=100, evict="lru")
    events, samples = events_and_samples(6)

    def of(column, **fields):
        features = (Sparse("item", dynamic=dynamic), Sequence("history", column, "item", dynamic=dynamic))
        return Schema(features, label="click", time=Time("at"), **fields)

    ours, theirs = both(
        tmp_path, events, samples, of("item", user="user", histories=("history",)), of(None)
    )
    assert_equal_batches(ours.parts["train"], theirs.parts["train"])


def test_words_that_mean_missing_may_be_of_columns_that_events_lack(tmp_path):
    events, samples = events_and_samples(6)

    def of(column, **fields):
        features = (Sparse("item"), Sequence("history", column, "item"))
        return Schema(features, label="click", time=Time("at"), missing={"click": ("NA",)}, **fields)

    ours, theirs = both(
        tmp_path, events, samples, of("item", user="user", histories=("history",)), of(None)
    )
    assert_equal_batches(ours.parts["train"], theirs.parts["train"])


BAD = {
    "a user": ({"user": [None, 1]}, {}, "is an event without a user"),
    "a time": ({"at": [1, None]}, {}, "is an event without a time"),
    "no column": ({"at": None}, {}, r"lacks the columns \['at'\]"),
    "no item": ({"item": None}, {}, r"lacks the columns \['item'\]"),
    "a time of a sample": ({}, {"at": [5, None]}, "has no time, which says where its history ends"),
    "no user of samples": ({}, {"user": None}, r"lacks the columns \['user'\]"),
    "no events": ({"user": [], "at": [], "item": [], "kind": []}, {}, "the table has no rows"),
    "other times": (
        {"at": ["2020-01-01", "2020-01-02"]},
        {},
        "expected a time unix .* found '2020-01-01'",
    ),
    "lists": ({"item": [[3], [4]]}, {}, "column 'item': expected a single value, found list"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message(case, tmp_path):
    of_events, of_samples, message = BAD[case]
    events = {"user": [1, 1], "at": [1, 2], "item": [3, 4], "kind": [5, 6]} | of_events
    samples = {"user": [1, 1], "at": [5, 6], "item": [3, 4], "click": [0, 1]} | of_samples
    events, samples = ({k: v for k, v in rows.items() if v is not None} for rows in (events, samples))
    with pytest.raises(ValueError, match=message):
        prepare(samples, schema(), tmp_path / "enc", events=events)


def test_events_whose_times_are_all_later_are_warned_of(tmp_path):
    """As timestamps are, of which samples have numbers in another unit: all histories would be empty."""
    events, samples = events_and_samples()
    later = events.assign(at=pd.to_datetime(events["at"] + 10**9, unit="s"))
    with pytest.warns(UserWarning, match="no sample has an event before its time: write times alike"):
        prepare(samples, schema(), tmp_path / "enc", events=later)


def test_the_first_user_of_the_events_is_known_without_a_look_at_all_others(tmp_path, monkeypatch):
    """Each chunk once was compared with all users; a user none of whose events is seen is known, too."""
    without = SimpleNamespace(**{name: of for name, of in vars(np).items() if name != "isin"})
    monkeypatch.setattr("hotrows.data.encode.events.np", without)
    events = {"user": [1], "at": [7], "item": [3], "kind": [5]}
    samples = {"user": [1, 2], "at": [5, 5], "item": [3, 4], "click": [0, 1]}
    with pytest.warns(UserWarning, match="no sample has an event before its time"):
        prepare(samples, schema(), tmp_path / "enc", events=events)
    events["user"] = [3]
    with pytest.raises(ValueError, match="no sample has a user of the events"):
        prepare(samples, schema(), tmp_path / "other", events=events)


def test_events_of_several_files_are_one_log_with_columns_in_any_order(tmp_path):
    """Values in another type are the same; a file without a column is refused."""
    events, samples = events_and_samples(8)
    whole = prepare(samples, schema(), tmp_path / "whole", events=events)
    events[:100].to_csv(tmp_path / "a.csv", index=False)
    events[100:].astype({"item": str, "user": float})[["kind", "at", "user", "item"]].to_parquet(
        tmp_path / "b.parquet"
    )
    files = [tmp_path / "a.csv", tmp_path / "b.parquet"]
    in_two = prepare(samples, schema(), tmp_path / "two", events=files)
    assert_equal_batches(in_two.parts["train"], whole.parts["train"])
    events[100:].drop(columns="kind").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b.parquet lacks the columns \['kind'\]"):
        prepare(samples, schema(), tmp_path / "refused", events=files)


def test_events_and_histories_belong_together(tmp_path):
    events, samples = events_and_samples()
    with pytest.raises(ValueError, match="and events were not given"):
        prepare(samples, schema(), tmp_path / "enc")
    with pytest.raises(ValueError, match="and events were given"):
        prepare(copied(events, samples), schema(False), tmp_path / "enc", events=events)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": None},
        {"time": None},
        {"histories": ("item",)},
        {"histories": ()},
        {"histories": ("nosuch",)},
    ],
    ids=str,
)
def test_a_schema_names_user_time_and_sequences(fields):
    declared = {"time": Time("at"), "user": "user", "histories": ("history",)} | fields
    with pytest.raises(ValueError, match="expected user=COLUMN, time=Time"):
        Schema((Sparse("item"), Sequence("history", "item")), label="click", **declared)


def test_a_schema_with_histories_is_written_and_read():
    assert Schema.from_json(schema().to_json()) == schema()
    assert not {"user", "histories"} & set(json.loads(schema(False).to_json()))  # fingerprints stay
    with pytest.raises(ValueError, match="name all histories in shared, or none"):
        schema(request="request", shared=("history",))


def test_data_without_its_events_is_refused(tmp_path):
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    (data.path / "events.shard").rename(tmp_path / "aside")
    with pytest.raises(ValueError, match="events.shard is missing; prepare the data again"):
        Loader(EncodedData.open(data.path).parts["train"], 8)
    others = events.assign(item=events["item"] + 1)
    other = prepare(samples, schema(), tmp_path / "other", events=others)
    shutil.copy(other.path / "events.shard", data.path / "events.shard")
    with pytest.raises(ValueError, match="events.shard is not the file that was written there"):
        Loader(EncodedData.open(data.path).parts["train"], 8)
    (tmp_path / "aside").rename(data.path / "events.shard")
    content = bytearray((data.path / "events.shard").read_bytes())
    content[-70] ^= 1
    (data.path / "events.shard").write_bytes(content)
    with pytest.raises(ValueError, match="events.shard: section 'ids/.*' is damaged"):
        list(Loader(EncodedData.open(data.path).parts["train"], 8).batches(0))


def test_a_manifest_that_names_no_events_is_refused(tmp_path):
    events, samples = events_and_samples()
    data = prepare(samples, schema(), tmp_path / "enc", events=events)
    manifest = read_manifest(data.path)
    for wrong in (None, {"file": "../events.shard", "rows": 300, "header": 1}):
        write_signed(data.path, {**manifest, "events": wrong})
        with pytest.raises(ValueError, match="expected file and rows of the events"):
            EncodedData.open(data.path)


def test_what_takes_lists_refuses_events_in_a_sentence(tmp_path):
    data = prepare(events_and_samples()[1], schema(), tmp_path / "enc", events=events_and_samples()[0])
    hot = profile(data, bytes_per_row=dict.fromkeys(data.vocabularies, 16), fast_memory=4096)
    for refused in (
        lambda: write_encoded(tmp_path / "w", data.schema, {"train": []}),
        lambda: prepare_schema(schema(), tmp_path / "s"),
        lambda: open_parquet(data.schema, tmp_path / "nosuch.parquet"),
        lambda: regroup(data, hot, tmp_path / "r", force=True),
    ):
        with pytest.raises(ValueError, match="takes histories as lists in the samples"):
            refused()


@pytest.mark.usefixtures("one_registry")
def test_rows_to_predict_have_histories_as_lists(tmp_path):
    """As copied lists, in a run and in a bundle; without them, a prediction would differ in silence."""
    events, samples = events_and_samples()
    ours, theirs = both(tmp_path, events, samples)
    rows = copied(events, samples)[:20].drop(columns="click")
    encoded = [next(Encoder.open(data.path).encode(rows)) for data in (ours, theirs)]
    assert_equal(*encoded)
    with pytest.raises(
        ValueError, match=r"lacks the columns \['kinds'\]: rows to predict have a history as"
    ):
        list(Encoder.open(ours.path).encode(rows.drop(columns="kinds")))
    runs = [trained(data, tmp_path / f"run-{data.path.name}", "din") for data in (ours, theirs)]
    with known_program(tmp_path / "program.onnx"):
        bundles = [export(run, tmp_path / f"bundle-{run.name}", format="onnx") for run in runs]
    scorers = [Scorer(bundle, trust=True) for bundle in bundles]
    requests = rows.drop(columns="at").to_dict("records")
    scores = [scorer.logits(requests) for scorer in scorers]
    assert np.array_equal(*scores) and len(np.unique(scores[0])) > 5
    with pytest.raises(ValueError, match="the request lacks the columns"):
        scorers[0].logits([{"user": 1, "item": 2, "history": [1]}])


def test_a_draft_names_histories():
    samples = events_and_samples()[1]
    samples["at"] += 10**9
    draft = draft_schema(samples, "click", "user", ("item", "kind"))
    declared = {f.name: (f.column, f.vocabulary) for f in draft.schema.sequences}
    assert declared == {"item_history": ("item", "item"), "kind_history": ("kind", None)}
    assert (draft.schema.user, draft.schema.histories) == ("user", ("item_history", "kind_history"))


def test_the_commands_draft_and_prepare_histories(hotrows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events, samples = events_and_samples()
    for frame, name in ((events, "events.csv"), (samples, "samples.csv")):
        frame.assign(at=frame["at"] + 10**9).to_csv(name, index=False)
    history = ("--history", "item", "--history", "kind")
    told = hotrows("schema", "samples.csv", "--user", "user", *history, "--out", "s.json")
    assert told.code == 0 and "--events FILE" in told.err
    prepared = ("prepare", "samples.csv", "--schema", "s.json", "--split", "position:0.8")
    assert hotrows(*prepared, "--events", "events.csv", "--out", "enc").code == 0
    assert EncodedData.open("enc").parts["train"].values["item_history"] > 0
    told = hotrows(*prepared, "--out", "none")
    assert told.code == 1 and "(--events FILE) belong together" in told.err


def test_samples_of_events_train_a_model(tmp_path):
    events, _ = events_and_samples(7, events=2000, users=40, moments=500)
    events.to_parquet(tmp_path / "events.parquet")
    made = [
        samples_of(
            tmp_path / "events.parquet",
            tmp_path / name,
            user="user",
            time="at",
            item="item",
            num_negatives=2,
            seed=seed,
        )
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    read = [{part: pd.read_parquet(path) for part, path in paths.items()} for paths in made]
    assert all(read[0][part].equals(read[1][part]) for part in read[0])
    assert not read[0]["train"].equals(read[2]["train"])
    rows, of_user = read[0], events.groupby("user")["item"].apply(set)
    for part in rows.values():
        chosen = [item in of_user[user] for user, item in zip(part["user"], part["item"], strict=True)]
        assert chosen == (part["label"] == 1).tolist()
        assert (part.groupby("request")["label"].agg(["sum", "size"]) == [1, 3]).to_numpy().all()
    assert len(rows["test"]) == len(rows["validation"]) == 3 * events["user"].nunique()
    assert (
        rows["test"].groupby("user")["at"].min() >= rows["validation"].groupby("user")["at"].max()
    ).all()
    shared = {"request": "request", "shared": ("user", "history", "kinds")}
    declared = dataclasses.replace(schema(**shared), label="label")
    files = {part: made[0][part] for part in ("validation", "test")}
    data = prepare(
        made[0]["train"], declared, tmp_path / "enc", events=tmp_path / "events.parquet", **files
    )
    run = trained(data, tmp_path / "run", "din")
    assert (run / "best").exists() or any(run.iterdir())
