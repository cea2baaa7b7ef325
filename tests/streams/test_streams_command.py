"""`hotrows train --stream`: to the end of a stream, resumed without options, stopped by alarms."""

import json

import pytest

from hotrows import Dense, Schema, load_run
from hotrows.data import prepare_schema
from hotrows.data.streams.line_log import read_lines
from hotrows.train.run.folder import read_config

SMALL = ["--batch-size", 100, "--option", "dim=4", "--option", "hidden=[8]", "--model", "deepfm"]


def test_a_folder_is_trained_to_its_end_and_resumed_with_its_settings(data, lines, tmp_path, hotrows):
    folder, run = tmp_path / "events", tmp_path / "run"
    folder.mkdir()
    (folder / "a.csv").write_text("".join(lines[:401]) + "1,no number,v1,w1\n")
    train = ["train", data.path, "--run", run]
    done = hotrows(
        *train,
        *SMALL,
        "--stream",
        f"folder:{folder}",
        "--stop-when-idle",
        0,
        "--window",
        250,
        "--max-wait",
        9,
    )
    assert done.code == 0, done.err
    assert "last window" in done.out and "steps       4" in done.out
    assert "step 3: window AUC" in done.err or not done.err
    assert read_config(run).row_optimizer.weight_decay == 0  # as where samples are read once
    (letter,) = read_lines(run / "dead_letters.jsonl")
    assert letter["event"] == "1,no number,v1,w1"
    assert letter["place"] == f"{folder}/a.csv line 402"

    (folder / "b.csv").write_text("".join([lines[0], *lines[401:]]))
    done = hotrows(*train, "--resume", "--alarm-calibration", "5,6")
    assert done.code == 3 and "out of 5 to 6" in done.err
    assert hotrows(*train, "--resume", "--alarm-calibration", "0,99").code == 0
    assert hotrows(*train, "--resume", "--stream", f"folder:{folder}").code == 0
    assert hotrows(*train, "--resume").code == 0  # the bounds are a setting of the run now
    assert sum(line["size"] for line in read_lines(run / "stream.jsonl")) == 900


def test_options_of_streams_need_a_stream(data, hotrows):
    done = hotrows("train", data.path, "--max-wait", 3)
    assert done.code == 2 and "--max-wait is of a stream: say which one, --stream SOURCE" in done.err
    assert hotrows("train", data.path, "--stream", "-", "--alarm-calibration", "3").code == 2


def test_a_stream_begins_from_a_schema_alone(tmp_path, hotrows):
    """Where all ids are dynamic no row is counted first."""
    keys = {"kind": "sparse", "dynamic": {"capacity": 50, "evict": "lru"}}
    features = [{"kind": "dense", "name": "n"}, {"name": "a", **keys}, {"name": "b", **keys}]
    schema = {"label": "y", "features": features}
    (tmp_path / "all.json").write_text(json.dumps(schema))
    features[1].pop("dynamic")
    (tmp_path / "counted.json").write_text(json.dumps(schema))
    (tmp_path / "events").mkdir()
    events = ({"y": n % 2, "n": n, "a": f"v{n % 2}", "b": n % 9} for n in range(600))
    (tmp_path / "events" / "a.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))

    prepare = ["prepare", "--no-rows", "--out", tmp_path / "enc", "--schema"]
    refused = hotrows(*prepare, tmp_path / "counted.json")
    assert refused.code == 1 and "feature 'a' needs rows, whose values make its vocabulary" in refused.err
    done = hotrows(*prepare, tmp_path / "all.json")
    assert done.code == 0 and "0 train, 0 validation, 0 test" in done.out

    train = ["train", tmp_path / "enc", "--model", "fm", "--run", tmp_path / "run"]
    stream = ["--stream", f"folder:{tmp_path / 'events'}", "--stop-when-idle", 0, "--window", 500]
    done = hotrows(*train, *stream)
    assert done.code == 0, done.err
    predictor = load_run(tmp_path / "run")
    low, high = predictor.predict({"n": [0, 0], "a": ["v0", "v1"], "b": [3, 3]})
    assert low < 0.4 < 0.6 < high
    refused = hotrows("train", tmp_path / "enc", "--model", "fm", "--run", tmp_path / "offline")
    assert refused.code == 1 and "has no samples: train on a stream" in refused.err
    assert hotrows("prepare", "--out", tmp_path / "none").code == 2


def test_numbers_that_need_a_mean_need_rows(tmp_path):
    with pytest.raises(ValueError, match="feature 'n' needs rows, of whose numbers it takes the mean"):
        prepare_schema(Schema((Dense("n", transform="standard"),)), tmp_path / "enc")
