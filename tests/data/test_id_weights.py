"""Weights of the ids of a list: from every format to the sum that a model reads, and to a bundle."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import embedding_bag

from hotrows import SGD, Embedding, Table
from hotrows.data import Encoder, Loader, open_parquet, prepare, write_encoded
from hotrows.schema import Schema, Sequence, Sparse
from hotrows.serving import Scorer
from hotrows.serving.export.whole import export
from hotrows.train import load_run
from hotrows.train.telling.row_sample import rows_of, score
from tests.support.bundles import expected_logits, furthest, trained

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]
ROWS = 240
RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(0, 5, ROWS)
TAGS = [RANDOM.integers(0, 12, n).tolist() for n in LENGTHS]
SCORES = [RANDOM.normal(size=n).astype(np.float32).tolist() for n in LENGTHS]
TABLE = pa.table(
    {
        "user": [n % 7 for n in range(ROWS)],
        "tags": pa.array(TAGS, pa.list_(pa.int64())),
        "scores": pa.array(SCORES, pa.list_(pa.float32())),
        "click": RANDOM.integers(0, 2, ROWS),
    }
)
WEIGHED = Sparse("tags", many=True, weights="scores")
SCHEMA = Schema((Sparse("user"), WEIGHED, Sparse("plain", column="tags", many=True)), label="click")


def prepared(rows, folder, schema=SCHEMA, **options):
    return prepare(rows, schema, folder / "enc", **{"split": "position:1,0,0", **options})


def weights_of(batch, feature):
    """Per sample the list of weights of a feature."""
    place, ends = batch.features.index(feature) * batch.size, batch.offsets.tolist()
    return [batch.weights[ends[place + b] : ends[place + b + 1]].tolist() for b in range(batch.size)]


@pytest.mark.parametrize("kind", ["parquet", "json lines", "csv", "pandas", "text in a frame"])
def test_every_format_gives_the_same_weights(tmp_path, kind):
    rows = TABLE
    text = {
        name: ["|".join(map(repr, x)) for x in TABLE[name].to_pylist()] for name in ("tags", "scores")
    }
    if kind == "parquet":
        pq.write_table(TABLE, tmp_path / "rows.parquet")
        rows = tmp_path / "rows.parquet"
    elif kind == "json lines":
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()))
        rows = tmp_path / "rows.jsonl"
    elif kind in ("csv", "text in a frame"):
        rows = pd.DataFrame({**TABLE.to_pydict(), **text})
        if kind == "csv":
            rows.to_csv(tmp_path / "rows.csv", index=False)
            rows = tmp_path / "rows.csv"
    elif kind == "pandas":
        rows = pd.DataFrame(TABLE.to_pydict())
    schema = dataclasses.replace(SCHEMA, delimiter=",")
    (batch,) = Loader(prepared(rows, tmp_path, schema).parts["train"], ROWS).batches(0)
    assert weights_of(batch, "tags") == SCORES
    assert weights_of(batch, "plain") == [[1.0] * n for n in LENGTHS]


def test_a_shuffle_moves_weights_with_their_ids_and_long_lists_keep_their_last(tmp_path):
    schema = Schema(
        (Sparse("row", column="n"), dataclasses.replace(WEIGHED, max_length=2)), label="click"
    )
    rows = TABLE.append_column("n", pa.array([f"{n}" for n in range(ROWS)]))
    data = prepared(rows, tmp_path, schema)
    first = next(Loader(data.parts["train"], ROWS).batches(0))
    row_of = {row_id: row for row, row_id in enumerate(first.ids[:ROWS].tolist())}
    seen = []
    for batch in Loader(data.parts["train"], 50, shuffle=True, seed=1).batches(0):
        for b, weights in enumerate(weights_of(batch, "tags")):
            seen.append(row_of[int(batch.ids[b])])
            assert weights == SCORES[seen[-1]][-2:]
    assert sorted(seen) == list(range(ROWS)) != seen


@pytest.mark.parametrize(
    ("tags", "scores", "message"),
    [
        (
            [1, 2, 3],
            [0.5, 1.0],
            r"row 4, column 'scores': expected a list of 3 numbers, as 'tags' has ids, found",
        ),
        (
            [1, 2],
            None,
            "row 4, column 'scores': expected a list of 2 numbers, as 'tags' has ids, found nothing",
        ),
        ([1, 2], [0.5, None], "row 4, column 'scores': expected a list of 2 numbers"),
        ([1, 2], [0.5, 1e39], "row 4, column 'scores': expected a list of 2 numbers"),
    ],
)
def test_lists_of_unequal_length_and_wrong_weights_are_named(tmp_path, tags, scores, message):
    columns = TABLE.to_pydict()
    columns["tags"][4], columns["scores"][4] = tags, scores
    pq.write_table(
        pa.table({**columns, "scores": pa.array(columns["scores"])}), tmp_path / "rows.parquet"
    )
    short = dataclasses.replace(WEIGHED, max_length=1)
    for feature in (WEIGHED, short):
        with pytest.raises(ValueError, match="rows.parquet " + message):
            prepared(tmp_path / "rows.parquet", tmp_path, Schema((feature,), label="click"))


def test_text_that_is_no_number_and_a_column_that_is_absent_are_named(tmp_path):
    (tmp_path / "rows.csv").write_text("tags,scores,click\n1|2,0.5|1,0\n3,x,1\n")
    schema = Schema((WEIGHED,), label="click", delimiter=",")
    with pytest.raises(
        ValueError, match="rows.csv line 3, column 'scores': expected a list of 1 numbers, .*'x'"
    ):
        prepared(tmp_path / "rows.csv", tmp_path, schema)
    encoder = Encoder.open(prepared(TABLE, tmp_path).path)
    with pytest.raises(ValueError, match="expected both columns 'tags' and 'scores', found one"):
        list(encoder.encode(TABLE.drop_columns(["scores", "click"])))
    with pytest.raises(ValueError, match="'tags' has weights: make data with `hotrows prepare`"):
        open_parquet(
            Schema((dataclasses.replace(WEIGHED, rows=9),), label="click"), tmp_path / "none.parquet"
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sparse("a", weights="w"), "'a': weights are of lists that are summed: give many=True"),
        (
            lambda: Sparse("a", many=True, pooling="mean", weights="w"),
            "'a': weights are of lists that are summed",
        ),
        (
            lambda: Schema((Sparse("a", many=True, weights="click"),), label="click"),
            r"features \['a'\] read a label",
        ),
    ],
)
def test_declarations_that_contradict_themselves_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_schemas_round_trip_and_those_without_weights_are_as_they_were():
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    assert "weights" not in json.loads(Schema((Sparse("a"),)).to_json())["features"][0]
    assert SCHEMA.raw_columns == ("user", "tags", "scores", "click")


def test_the_sum_and_its_gradient_are_those_of_embedding_bag(tmp_path):
    data = prepared(TABLE, tmp_path)
    (batch,) = Loader(data.parts["train"], ROWS).batches(0)
    span = slice(*batch.offsets[[ROWS, 2 * ROWS]].tolist())
    batch = dataclasses.replace(
        batch,
        features=("tags",),
        ids=batch.ids[span],
        offsets=batch.offsets[ROWS : 2 * ROWS + 1] - span.start,
        weights=batch.weights[span],
    )
    embedding = Embedding(
        (Table("tags", data.schema.rows_of("tags"), 4, ("tags",)),), optimizer=SGD(lr=1.0)
    )
    before = embedding.weights("tags").clone().requires_grad_()
    plan = embedding.plan(batch)
    vectors = embedding.lookup(plan)
    starts, weights = batch.offsets[:-1], batch.weights
    expected = embedding_bag(batch.ids, before, starts, mode="sum", per_sample_weights=weights)
    torch.testing.assert_close(vectors["tags"], expected)
    vectors["tags"].square().sum().backward()
    expected.square().sum().backward()
    embedding.update(plan, vectors)
    torch.testing.assert_close(embedding.weights("tags"), (before - before.grad).detach())


def test_written_batches_and_requests_keep_weights(tmp_path):
    data = prepared(TABLE, tmp_path)
    again = write_encoded(
        tmp_path / "again", data.schema, {"train": Loader(data.parts["train"], 64).batches(0)}
    )
    (batch,) = Loader(again.parts["train"], ROWS).batches(0)
    assert weights_of(batch, "tags") == SCORES
    per_request = pa.table(
        {
            "r": ["a", "b"],
            "tags": pa.array([[1, 2], [3]]),
            "scores": pa.array([[0.5, 2.0], [4.0]]),
            "item": pa.array([[1, 2], [3]]),
            "click": pa.array([[0, 1], [1]]),
        }
    )
    schema = Schema((WEIGHED, Sparse("item")), label="click", request="r", shared=("tags",))
    (tmp_path / "requests").mkdir()
    shared = prepared(per_request, tmp_path / "requests", schema)
    (batch,) = Loader(shared.parts["train"], 3).batches(0)
    assert batch.requests.shared.weights.tolist() == [0.5, 2.0, 4.0] and batch.weights is None
    assert weights_of(batch.expanded(), "tags") == [[0.5, 2.0], [0.5, 2.0], [4.0]]


@pytest.mark.usefixtures("one_registry")
def test_a_run_its_report_and_its_bundle_weigh_alike(tmp_path):
    history = Sequence("history", column="plain_tags", vocabulary="tags")
    schema = dataclasses.replace(SCHEMA, features=(*SCHEMA.features[:2], history))
    rows = TABLE.append_column("plain_tags", TABLE["tags"])
    run = trained(
        prepared(rows, tmp_path, schema, split="position:0.8"),
        tmp_path / "run",
        "deepfm",
        crosses=[],
        effects=[],
    )
    predictor, fresh = load_run(run), rows.slice(0, 40)
    expected = expected_logits(predictor, fresh)
    without = fresh.set_column(2, "scores", pa.array([[1.0] * n for n in LENGTHS[:40]]))
    assert furthest(expected_logits(predictor, without), expected) > 1e-3
    names = [feature.name for feature in predictor.schema.id_features]
    sample = rows_of([b.expanded(names) for b in predictor.encoder.encode(fresh)], names, 40)
    outputs = score(predictor, sample)["click"].outputs.numpy()
    np.testing.assert_allclose(np.sign(outputs - outputs.mean()), np.sign(expected - expected.mean()))
    features = ["user", "tags", "scores", "plain_tags"]
    scorer = Scorer(
        export(run, tmp_path / "bundle", format="onnx", shared=("tags", "history")), trust=True
    )
    assert furthest(scorer.logits(fresh.select(features)), expected) < 1e-5
    shared = {"tags": [3, 4], "scores": [2.0, -1.0], "plain_tags": [3, 4]}
    users = [{"user": n} for n in range(12)]
    one_by_one = np.concatenate([scorer.logits([user | shared]) for user in users])
    assert furthest(scorer.logits(users, shared), one_by_one) < 1e-5
    with pytest.raises(ValueError, match="expected both columns 'tags' and 'scores', found one"):
        scorer.logits([{"user": 1, "scores": [1.0, 1.0]}], {"tags": [3, 4]})
