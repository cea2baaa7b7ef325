"""Predictions of many ranks: shapes, curves, and what the command line makes of them."""

import json

import numpy as np
import pytest

from hotrows import data, models
from hotrows.data import Loader
from hotrows.data.datasets import schemas, synthetic
from hotrows.engine.planning.sharding import BY_COLUMNS, Placement
from hotrows.tools.tuning.scaling import kind_of, predict_scaling
from hotrows.train.config import TrainConfig
from hotrows.train.costs import workload
from hotrows.train.costs.frequencies import Frequencies
from hotrows.train.costs.machines import MACHINES
from hotrows.train.costs.volumes import TableLoad
from hotrows.train.start.defaults import settle

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    raw = synthetic.synth_criteo(3000, folder / "raw", seed=0, cardinality_scale=0.001)
    return data.prepare([raw], schemas.load("criteo"), folder / "enc", split="position:0.8")


@pytest.fixture(scope="module")
def shape(encoded):
    return workload.of_data(encoded, TrainConfig(model="dlrm", model_options={"dim": 4}, batch_size=256))


def test_the_shape_of_data_is_its_tables_its_counts_and_its_dense_layers(encoded, shape):
    model = models.build("dlrm", encoded.schema, dim=4)
    assert [load.rows for load in shape.loads] == [table.rows for table in model.tables]
    assert all(load.ids.rows == load.rows and load.lookups == 1 for load in shape.loads)
    assert shape.loads[0].record_bytes == 32  # four weights, and as much for Adagrad
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    assert shape.step.flops_per_sample == 6 * matrices
    assert shape.step.dense_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert 39 * 2 < shape.step.bytes_per_sample < 39 * 10


def test_distinct_rows_of_a_batch_are_those_that_batches_have(encoded, shape):
    batches = list(Loader(encoded.parts["train"], 256, shuffle=True).batches(0))[:-1]
    ids = [batch.ids.view(26, -1).numpy() for batch in batches]
    for f, load in enumerate(shape.loads):
        measured = np.mean([len(np.unique(batch_ids[f])) for batch_ids in ids])
        assert load.ids.distinct(256) == pytest.approx(measured, rel=0.1, abs=0.5), load.name


def test_sequences_and_other_widths_and_types(tmp_path):
    path = tmp_path / "raw.csv"
    rows = [f"{n % 2},{n % 7},{'|'.join(str(m % 11) for m in range(n % 5))}" for n in range(400)]
    path.write_text("\n".join(["label,item,history", *rows]) + "\n")
    features = [
        {"kind": "sparse", "name": "item"},
        {"kind": "sequence", "name": "history", "separator": "|"},
    ]
    (tmp_path / "schema.json").write_text(
        json.dumps({"features": features, "label": "label", "delimiter": ","})
    )
    schema = schemas.load(str(tmp_path / "schema.json"))
    enc = data.prepare([path], schema, tmp_path / "enc", split="position:1.0")
    for dtype, size in {"bfloat16": 2, "int8": 1, "int4": 0.5}.items():
        config = TrainConfig(model="dnn", model_options={"dim": 8}, table_dtype=dtype, batch_size=64)
        job = workload.of_data(enc, config)
        assert [load.weight_bytes for load in job.loads] == [size, size]
    history = next(load for load in job.loads if "history" in load.name)
    assert history.lookups == pytest.approx(2, rel=0.01) and history.pooled


def test_the_workloads_are_as_large_as_they_are_said_to_be():
    sizes = {name: sum(load.rows for load in workload.named(name).loads) for name in workload.NAMED}
    assert sizes["criteo-1tb"] == 204_184_588
    assert sizes["criteo-1tb-uncapped"] == 882_774_559
    assert sizes["criteo-kaggle"] == 33_762_577
    assert workload.named("100tb").table_bytes == pytest.approx(100e12, rel=0.001)
    assert workload.named("criteo-1tb").lookups == 214
    with pytest.raises(ValueError, match="nor a well-known job .criteo-kaggle"):
        workload.named("criteo")


def test_a_curve_rises_bends_and_says_why():
    prediction = predict_scaling(workload.named("criteo-1tb"), MACHINES["h100"], [128, 8, 1, 1024])
    assert [point.num_ranks for point in prediction.points] == [1, 8, 128, 1024]
    one, eight, many, too_many = (point.cost for point in prediction.points)
    assert one.limit == "dense" and many.limit == "bytes"
    assert too_many.limit == "messages" and too_many.latency > too_many.dense
    assert one.samples_per_second < eight.samples_per_second < many.samples_per_second
    shares = [prediction.efficiency(point) for point in prediction.points]
    assert shares[0] == 1 and shares == sorted(shares, reverse=True)
    assert json.loads(json.dumps(prediction.to_json()))["points"][1]["cost"]["limit"] == "dense"


def test_what_does_not_fit_is_said_and_left_out_of_the_curve():
    shape = workload.named("criteo-1tb-uncapped")  # 455 GB
    prediction = predict_scaling(shape, MACHINES["cpu-25g"], [1, 4])
    assert prediction.points[0].cost is None and "all tables take" in prediction.points[0].refused
    assert (
        prediction.efficiency(prediction.points[0]) is None
        and prediction.efficiency(prediction.points[1]) == 1
    )
    assert prediction.points[0].sharding(shape.loads) == "does not fit"
    with pytest.raises(ValueError, match="use more ranks"):
        predict_scaling(shape, MACHINES["cpu-25g"], [1])
    with pytest.raises(ValueError, match="ranks must be numbers of at least 1"):
        predict_scaling(shape, MACHINES["cpu-25g"], [0])


def test_ways_have_names():
    load = TableLoad("t", 10, 4, 20, 1.0, Frequencies.zipf(10, 1.0))
    assert kind_of(BY_COLUMNS, load) == "by columns"
    assert kind_of(Placement(hot=10), load) == "replicated"
    assert kind_of(Placement(hot=2), load) == "on one rank"
    assert kind_of(Placement(num_ranks=4), load) == "dealt"


def test_the_command_prints_a_line_for_each_number_of_ranks(hotrows, tmp_path):
    common = ["plan", "criteo-1tb", "--ranks", "8,64", "--machine", "h100"]
    run = hotrows(*common, "--picture", tmp_path / "scale.svg", "--why")
    assert run.code == 0, run.err
    lines = run.out.splitlines()
    assert lines[0].split()[:4] == ["ranks", "samples", "each", "step"]
    assert [line.split()[0] for line in lines[1:3]] == ["8", "64"]
    assert sum(line.strip().startswith("table C") for line in lines) == 52
    assert (tmp_path / "scale.svg").read_text().startswith("<svg")
    figures = json.loads(hotrows(*common, "--json", "--micro-batches", 4, "--wire-bytes", 4).out)
    assert (figures["step"]["micro_batches"], figures["step"]["wire_bytes"]) == (4, 4)
    assert [point["num_ranks"] for point in figures["points"]] == [8, 64]


def test_the_command_reads_prepared_data_too(encoded, hotrows):
    common = ["plan", encoded.path, "--machine", "cpu-25g", "--batch-size", 512]
    run = hotrows(*common, "--ranks", "1,2", "--option", "dim=4", "--sharding", "rows", "--json")
    assert run.code == 0, run.err
    figures = json.loads(run.out)
    assert figures["step"]["batch_size"] == 512
    assert figures["points"][1]["sharding"] == "52 dealt"
    refused = hotrows(*common, "--ranks", "two")
    assert refused.code == 2 and "such as 8,64,1024" in refused.err
    nothing = hotrows("plan", "criteo-2tb", "--ranks", "2", "--machine", "h100")
    assert nothing.code == 1 and "did you mean 'criteo-1tb'?" in nothing.err


def test_what_is_left_open_is_predicted_as_it_is_trained(encoded, hotrows):
    settled = settle(TrainConfig(), encoded)
    command = ["plan", encoded.path, "--machine", "cpu-25g", "--ranks", "1", "--json"]
    figures = json.loads(hotrows(*command).out)
    assert figures["note"].endswith(settled.model)
    assert figures["step"]["batch_size"] == settled.batch_size < 8192
