"""Every part of the papers' evidence runs at tiny sizes; the tables show the figures of the results."""

import json

import numpy as np
import pytest
import torch
from benchmarks.gpu_parts.part import read
from benchmarks.papers import __main__ as command
from benchmarks.papers.__main__ import PAPERS, main, tables
from benchmarks.papers.cafe import CafeRows, HotSketch, Setting
from benchmarks.papers.hybrid_hash import hybrid_hash
from benchmarks.papers.part import Paper, Part

from hotrows import Batch

PARTS = [(paper, part) for paper in PAPERS for part in PAPERS[paper].parts]


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


@pytest.mark.parametrize(("paper", "part"), PARTS)
def test_every_part_runs_and_its_table_can_be_made(paper, part, tmp_path):
    assert main([paper, "--only", part, "--quick", "--out", str(tmp_path)]) == 0
    record = read(tmp_path / f"papers-{paper}.json")[part]
    assert record["complete"] and record["arms"] and record["error"] is None
    assert set(record["checks"].values()) <= {"passed"}
    assert PAPERS[paper].parts[part].table(record["arms"]).startswith(("|", "!["))


@pytest.mark.parametrize("paper", PAPERS)
def test_the_tables_of_the_results_are_printed(paper, capsys):
    assert main([paper, "--tables"]) == 0
    printed = capsys.readouterr().out
    for name, table in tables(PAPERS[paper]).items():
        assert f"## {paper} {name}\n\n{table}" in printed and "Not measured yet" not in table


def test_hybrid_hash_as_described():
    batches = [np.array(rows) for rows in ([0, 1], [0, 2], [0, 1], [2], [2], [2, 3], [2])]
    fetched, swapped = hybrid_hash(4, 1, batches, warm_up=1, refresh_every=1)
    assert fetched.tolist() == [2, 1, 1, 1, 1, 2, 0] and swapped.tolist() == [0, 1, 0, 0, 0, 0, 1]
    fetched, swapped = hybrid_hash(4, 2, batches, warm_up=2, refresh_every=3)  # holds 0, 1, then 0, 2
    assert fetched.tolist() == [2, 2, 0, 1, 1, 1, 0] and swapped.tolist() == [0, 0, 2, 0, 0, 1, 0]


def test_hot_sketch_is_a_dictionary_of_the_keys_it_has_room_for():
    """The twin keeps keys in dictionaries, one for each bucket, and looks at all of them."""
    draw, sketch = np.random.default_rng(0), HotSketch(rows=7, threshold=5.0, decay=0.5)
    scores, rows, added = [{} for _ in range(7)], {}, 0.0
    for key, score in zip(draw.zipf(1.3, 6000) % 90, draw.exponential(1.0, 6000), strict=True):
        key, score, of_bucket = int(key), float(score), scores[int(key) % 7]
        got, added = sketch.add(key, score), added + score
        if key in of_bucket or len(of_bucket) < 4:
            was_known = key in of_bucket
            of_bucket[key] = of_bucket.get(key, 0.0) + score
            is_hot = was_known and of_bucket[key] >= 5.0 and key not in rows and len(rows) < 7
            assert (got is not None) == is_hot and got not in rows.values()
            rows |= {key: got} if is_hot else {}
        elif (least := min(of_bucket, key=of_bucket.get)) not in rows:
            of_bucket[key] = of_bucket.pop(least) + score
        if added > 10 * 7 * 5.0:
            added, scores = 0.0, [{k: s * 0.5 for k, s in bucket.items()} for bucket in scores]
            rows = {k: row for k, row in rows.items() if scores[k % 7][k] >= 5.0}
        sketch.fade()
        found = {slot[0]: slot[1] for bucket in sketch.buckets for slot in bucket}
        assert found == pytest.approx({k: s for bucket in scores for k, s in bucket.items()})
        assert {k: row for k in range(90) if (row := sketch.row(k)) is not None} == rows
    assert len(set(rows.values())) == len(rows) and sorted([*rows.values(), *sketch.free]) == [*range(7)]


def test_a_hot_key_of_cafe_begins_as_its_shared_row_and_all_take_the_bytes_of_frequent():
    rows = CafeRows([40 * 128, 90 * 128], dim=8, setting=Setting(threshold=2, shared=0.3), seed=0)
    taken = rows.own * (72 + 4 * 12) + sum(rows.shared) * 72
    assert 130 * 128 - 3 * 120 < taken <= 130 * 128
    keys = torch.tensor([5, 5, 5, 6, 1, 2, 1, 2])
    batch = Batch(("a", "b"), keys, torch.zeros(4, 0), torch.ones(4))
    before = rows.plan(batch)
    assert torch.equal(before.rows, before.shared)
    vectors = rows.lookup(before)
    sum((leaf * torch.randn(leaf.shape)).sum() for leaf in vectors.leaves).backward()
    rows.update(before, vectors)
    after = rows.plan(batch)
    hot = after.rows != after.shared
    assert hot[0, :3].all() and not hot[0, 3], "read three times, and once"
    assert torch.equal(rows.weights[after.rows], rows.weights[after.shared])
    assert (rows.squares[after.rows[0, 0]] == 0).all()


def paper_of(run) -> dict[str, Paper]:
    part = Part("Does it go on?", run, lambda arms: f"| {len(arms)} |")
    return {"some": Paper("some", "A paper", {"speed": part})}


def test_a_cut_part_goes_on_and_one_that_has_run_is_not_run_again(tmp_path, monkeypatch, capsys):
    measured = []

    def one_arm_a_run(findings, setting):
        for arm in ("a", "b"):
            if not findings.has(arm):
                measured.append(arm)
                findings.add(arm, {"speed": 1.0})
                return arm == "b"
        return True

    monkeypatch.setattr(command, "PAPERS", paper_of(one_arm_a_run))
    arguments = ["--quick", "--out", str(tmp_path)]
    for _ in range(3):
        assert main(arguments) == 0
    assert measured == ["a", "b"]
    record = json.loads((tmp_path / "papers-some.json").read_text())["speed"]
    assert record["complete"] and list(record["arms"]) == ["a", "b"]
    assert record["setting"] == {"device": "cpu", "small": True} and record["load"] >= 0
    main([*arguments, "--again"])
    assert measured == ["a", "b", "a"]
    capsys.readouterr()
    main([*arguments, "--list"])
    assert "cut, 1 arms" in capsys.readouterr().out


def test_a_part_that_goes_wrong_says_so_and_the_next_one_runs(tmp_path, monkeypatch):
    def wrong(findings, setting):
        raise ValueError("no such thing")

    papers = paper_of(wrong)
    papers["some"].parts["right"] = Part("?", lambda f, s: f.add("a", {"x": 1}), lambda arms: "| a |")
    monkeypatch.setattr(command, "PAPERS", papers)
    assert main(["--quick", "--out", str(tmp_path)]) == 1
    records = read(tmp_path / "papers-some.json")
    assert records["speed"]["error"] == "ValueError: no such thing" and records["right"]["complete"]


def test_nothing_is_written_of_quick_runs_unless_told_where(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "PAPERS", paper_of(lambda f, s: f.add("a", {"x": 1})))
    assert main(["--quick"]) == 0
    assert not list(tmp_path.iterdir())


def test_a_part_is_not_run_on_a_device_that_it_does_not_know(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "PAPERS", paper_of(lambda f, s: f.add("a", {"x": 1})))
    assert main(["--quick", "--device", "cuda", "--out", str(tmp_path)]) == 0
    assert "some speed: runs on cpu, not on cuda" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["spanish"], ["fae", "--only", "nothing"]])
def test_unknown_papers_and_parts_are_refused_with_those_there_are(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert "there are" in capsys.readouterr().err
