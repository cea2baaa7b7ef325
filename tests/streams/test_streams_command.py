"""`hotrows train --stream`: to the end of a stream, resumed without its options, and stopped by
alarms."""

from pathlib import Path

from hotrows.settings import markdown_tables
from hotrows.streams.line_log import read_lines
from hotrows.streams.settings import GROUPS, SETTINGS

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


def test_the_page_has_every_setting():
    """`python -m hotrows.streams.settings` prints them."""
    page = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text()
    assert markdown_tables(SETTINGS, GROUPS) in page


def test_options_of_streams_need_a_stream(data, hotrows):
    done = hotrows("train", data.path, "--max-wait", 3)
    assert done.code == 2 and "--max-wait is of a stream: say which one, --stream SOURCE" in done.err
    assert hotrows("train", data.path, "--stream", "-", "--alarm-calibration", "3").code == 2
