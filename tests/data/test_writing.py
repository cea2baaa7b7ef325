"""What is written comes back; a writer that is killed and resumed ends as if there had been no break."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotrows.data import EncodedData, Loader, write_encoded
from hotrows.data.columns.number import MISSING
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.encode.writing import _checked
from hotrows.data.rows import Rows
from hotrows.data.stored.shards import ShardWriter
from hotrows.schema import Schema, Sparse
from tests.data.encoded_rows import EVERYTHING, batch_of, samples, schemas, write_rows
from tests.data.raw import files_of
from tests.reference.rows_of_data import use_plain_python
from tests.support.choice import examples

COLUMNS = SchemaColumns(EVERYTHING)

ANY = settings(
    deadline=None,
    max_examples=examples(40, 6),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@ANY
@given(schema=schemas(), rows=st.integers(0, 120), shard_rows=st.integers(1, 60), seed=st.integers(0, 99))
def test_what_is_written_comes_back(tmp_path_factory, schema, rows, shard_rows, seed):
    batch = batch_of(schema, rows, seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("any") / "out"
        data = write_rows(folder, schema, batch, shard_rows, monkeypatch)
        data.check()
        expected = samples(batch)
        for shuffle in (False, True):
            batches = list(Loader(data.parts["train"], 50, shuffle=shuffle).batches(0))
            samples_read = [sample for batch_read in batches for sample in samples(batch_read)]
            assert sorted(map(repr, samples_read)) == sorted(map(repr, expected))
            assert shuffle or samples_read == expected
            assert all((batch_read.offsets is None) == (batch.offsets is None) for batch_read in batches)
        use_plain_python(monkeypatch)
        plain = list(Loader(data.parts["train"], 50, shuffle=True).batches(0))
        assert [sample for batch_read in plain for sample in samples(batch_read)] == samples_read


@ANY
@given(rows=st.integers(1, 100), seed=st.integers(0, 99))
def test_what_is_counted_is_what_stands_there(tmp_path_factory, rows, seed):
    batch = batch_of(EVERYTHING, rows, seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("any") / "out"
        part = write_rows(folder, EVERYTHING, batch, 30, monkeypatch).parts["train"]
    batch_read = samples(batch)
    for task in range(2):
        assert part.clicks[task] == sum(sample[2][task] == 1 for sample in batch_read)
        assert part.labelled[task] == sum(sample[2][task] is not None for sample in batch_read)
    for f, feature in enumerate(EVERYTHING.id_features):
        values = [value for sample in batch_read for value in sample[0][f]]
        assert part.values[feature.name] == len(values)
        assert part.missing[feature.name] == values.count(1)
        assert part.unknown[feature.name] == sum(2 <= v < 2 + feature.num_unknown for v in values)
    empty = {
        name: sum(not sample[0][f] for sample in batch_read) for f, name in enumerate(batch.features)
    }
    assert part.empty == {name: empty[name] for name in ("many", "sequence")}


def rows_of(number: int) -> Rows:
    """Rows to append, of which some numbers are missing."""
    rows = _checked(COLUMNS, "part 'train'", 0, batch_of(EVERYTHING, number, number))
    return rows.with_arrays({MISSING: np.random.default_rng(number).random((number, 2)) < 0.4}, {})


def appended(writer: ShardWriter, rows: Rows, sizes) -> None:
    done = 0
    for size in [*sizes, len(rows)]:
        writer.append(rows[done : done + size])
        done = min(len(rows), done + size)


@ANY
@given(sizes=st.lists(st.integers(0, 40), max_size=12))
def test_the_sizes_of_appends_leave_no_trace(tmp_path_factory, sizes):
    rows = rows_of(131)
    samples_read = []
    for batch_read in (sizes, [131]):
        folder = tmp_path_factory.mktemp("any")
        writer = ShardWriter(folder, "train", COLUMNS, 25)
        appended(writer, rows, batch_read)
        samples_read.append((writer.close(), files_of(folder)))
    assert samples_read[0] == samples_read[1]
    assert len(samples_read[0][0].shards) == 6


@ANY
@given(killed_at=st.integers(0, 131), again_from=st.integers(0, 131), size=st.integers(1, 50))
def test_a_resumed_writer_ends_as_if_there_had_been_no_break(
    tmp_path_factory, killed_at, again_from, size
):
    rows = rows_of(131)
    unbroken, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    writer = ShardWriter(unbroken, "train", COLUMNS, 25)
    appended(writer, rows, [])
    expected = writer.close()
    writer = ShardWriter(broken, "train", COLUMNS, 25)
    appended(writer, rows[:killed_at], [size] * 5)
    state = json.loads(json.dumps(writer.state()))
    first = min(again_from, state["rows"])
    (broken / "train-00003.shard.part").write_bytes(b"half a sh")
    writer = ShardWriter.resume(broken, "train", COLUMNS, state, already=state["rows"] - first)
    appended(writer, rows[first:], [size] * 5)
    assert writer.close() == expected
    (broken / "train-00003.shard.part").unlink(missing_ok=True)
    assert files_of(broken) == files_of(unbroken)


def test_a_shard_that_was_lost_is_named_on_resuming(tmp_path):
    rows = rows_of(60)
    writer = ShardWriter(tmp_path, "train", COLUMNS, 25)
    writer.append(rows)
    state = writer.state()
    assert [rows for _, rows in state["shards"]] == [25, 25]
    (tmp_path / "train-00001.shard").unlink()
    with pytest.raises(ValueError, match=r"train-00001\.shard is missing; prepare the data again"):
        ShardWriter.resume(tmp_path, "train", COLUMNS, state)


def test_rows_in_any_order_are_taken_with_their_lists():
    rows = rows_of(40)
    order = np.array([7, 7, 0, 39, 3])
    taken = rows.take(order)
    for place, row in enumerate(order.tolist()):
        one, other = taken[place : place + 1], rows[row : row + 1]
        for section in rows.arrays:
            assert one.values(section).tolist() == other.values(section).tolist()
    assert len(rows.take(order[:0])) == 0


def refused(match, batch, schema=EVERYTHING):
    with pytest.raises(ValueError, match=match):
        _checked(SchemaColumns(schema), "part 'train'", 100, batch)


def test_batches_that_are_not_as_declared_are_refused():
    batch = batch_of(EVERYTHING, 10)
    change = dataclasses.replace
    refused("row 100: expected sample_weights of shape", change(batch, sample_weights=None))
    refused("row 100: expected groups of shape", change(batch, groups=None))
    refused("expected labels of shape", change(batch, labels=batch.labels[:, 0]))
    refused("expected labels of shape", change(batch, labels=None))
    refused("store no weights of single ids", change(batch, weights=torch.ones(len(batch.ids))))
    bare = Schema(EVERYTHING.features, ("click", "buy"))
    refused(r"expected sample_weights of shape None", batch, bare)
    refused(
        "expected a label 0 or 1, found 0.5 in part 'train' row 103",
        change(batch, labels=_at(batch, 0.5)),
    )
    single = Schema((Sparse("many", rows=9), Sparse("one", rows=9)))
    batch_read = change(
        batch_of(single, 3), ids=torch.arange(6), offsets=torch.tensor([0, 1, 2, 2, 4, 5, 6])
    )
    refused("feature 'many' has 0 ids in row 2 of the batch, expected one", batch_read, single)
    falling = change(batch_read, offsets=torch.tensor([0, 2, 1, 3, 4, 5, 6]))
    refused("expected offsets that rise from 0 to 6", falling, single)


def test_an_id_of_a_list_out_of_range_is_named_with_its_row():
    schema = Schema((Sparse("tags", rows=10, many=True), Sparse("one", rows=10)))
    batch = dataclasses.replace(
        batch_of(schema, 3),
        ids=torch.tensor([1, 2, 10, 0, 0, 0]),
        offsets=torch.tensor([0, 2, 2, 3, 4, 5, 6]),
    )
    message = "feature 'tags': expected ids from 0 to 9, found 10 in row 102 of part 'train'"
    refused(message, batch, schema)


def test_data_of_another_format_is_to_be_prepared_again(tmp_path):
    batch = batch_of(EVERYTHING, 5)
    write_encoded(tmp_path / "out", EVERYTHING, {"train": [batch]})
    manifest = json.loads((tmp_path / "out" / "data.json").read_text())
    (tmp_path / "out" / "data.json").write_text(json.dumps({**manifest, "version": 2}))
    with pytest.raises(ValueError, match="has format version 2, this hotrows reads 3; prepare"):
        EncodedData.open(tmp_path / "out")


def _at(batch, value):
    labels = batch.labels.clone()
    labels[:3] = 1
    labels[3, 1] = value
    return labels
