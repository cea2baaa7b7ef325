"""The harness of benchmarks: rounds that other programs disturbed, and results that are replaced."""

import argparse
import json
import sys
import time
from typing import ClassVar

import pytest
import torch
from benchmarks import harness, headlines
from benchmarks.any_model import recipe, worker
from benchmarks.harness import OURS, Arm, run, summarize, table
from torch import nn

ARMS = {"ours": Arm(OURS, "a"), "theirs": Arm(OURS, "b")}


@pytest.fixture
def measured(monkeypatch):
    """Lets arms measure a sequence of (speed of ours, of theirs, cores of others), round by round."""

    def of(*rounds):
        figures = iter(
            [figure for ours, theirs, others in rounds for figure in ((ours, 0.0), (theirs, others))]
        )

        def measure(arm, setting, threads):
            speed, others = next(figures)
            if speed is None:
                return {"error": "it failed"}
            return {"samples_per_s": speed, "ms": 1.0, "peak_rss_mb": 1.0, "other_cores": others}

        monkeypatch.setattr(harness, "_measure", measure)

    return of


def test_a_disturbed_round_does_not_count_and_is_repeated(measured):
    """A ratio of 15.7 was printed out of one quiet round and one in which the other arm was disturbed."""
    measured((40, 20, 0.0), (40, 2, 0.9), (44, 20, 0.1))
    rounds = run(ARMS, "", 2, 1, ARMS)
    assert [figures.get("disturbed", False) for figures in rounds["ours"]] == [False, True, False]
    figures = summarize(rounds, "theirs", ARMS)
    assert figures["ours"]["ratio"] == pytest.approx(2.1)
    assert (figures["theirs"]["samples_per_s_lowest"], figures["theirs"]["quiet_rounds"]) == (20, 2)
    assert "no quiet round" not in table(figures)


def test_twice_the_rounds_are_the_most_and_the_table_says_that_none_was_quiet(measured):
    measured(*[(40, 20, 0.5)] * 4)
    rounds = run(ARMS, "", 2, 1, ARMS)
    assert len(rounds["ours"]) == 4
    figures = summarize(rounds, "theirs", ARMS)
    assert figures["ours"]["quiet_rounds"] == 0 and figures["ours"]["ratio"] == 2
    assert table(figures).count("no quiet round") == 2


def test_an_arm_that_fails_is_left_out_of_later_rounds(measured, monkeypatch):
    measured((40, None, 0.0))
    both = run(ARMS, "", 1, 1, ARMS)
    assert summarize(both, "theirs", ARMS)["theirs"]["error"] == "it failed"
    assert summarize(both, "theirs", ARMS)["ours"]["ratio"] is None
    monkeypatch.setattr(harness, "_measure", lambda arm, *_: {"error": f"{arm.module} failed"})
    assert run(ARMS, "", 3, 1, ARMS) == {
        "ours": [{"error": "a failed"}],
        "theirs": [{"error": "b failed"}],
    }


def test_a_result_that_is_replaced_is_named(tmp_path, capsys):
    path = tmp_path / "speed.json"
    harness.write_to(path, {"commit": "a" * 40, "date": "2026-11-01"})
    harness.write_to(path, {"commit": "a" * 40, "date": "2026-11-01", "more": 1})
    harness.write_to(path, {"commit": "b" * 40, "date": "2026-11-02"})
    told = capsys.readouterr().out.splitlines()
    assert told == ["speed.json is new", "speed.json replaces the result of 2026-11-01 at aaaaaaaa"]
    assert json.loads(path.read_text())["date"] == "2026-11-02"


def test_figures_are_added_below_their_keys_and_facts_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert harness.stored("some") == {}
    harness.add("some", ["sets", "adult", "lr", "0"], 0.9, {"commit": "a", "threads": 1})
    harness.add("some", ["sets", "adult", "lr", "1"], 0.8, {"commit": "b"})
    assert harness.stored("some") == {
        "commit": "b",
        "sets": {"adult": {"lr": {"0": 0.9, "1": 0.8}}},
        "threads": 1,
    }


@pytest.mark.parametrize(("policy", "spins"), [(None, "3000"), ("passive", None)])
def test_all_arms_have_the_same_settings_of_threads(monkeypatch, policy, spins):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    environment = harness.environment_of(2)
    assert (environment.get("GOMP_SPINCOUNT"), environment["OMP_NUM_THREADS"]) == (spins, "2")


def test_headlines_are_chosen_by_name_by_time_and_by_what_is_there():
    present = dict.fromkeys(headlines.PARTS, False)
    everything = headlines.chosen([], None, present)
    assert "billion" not in everything and "loader" in everything
    assert sum(headlines.PARTS[name].minutes for name in everything) <= 200
    assert headlines.chosen([], 9, present) == ["dlrm", "461-fields"]
    assert headlines.chosen([], 9, present | {"dlrm": True})[0] == "dlrm-bfloat16"
    assert headlines.chosen(["billion"], None, present) == ["billion"]


def test_a_headline_is_measured_again_where_code_has_changed(monkeypatch):
    part = headlines.PARTS["dlrm"]
    monkeypatch.setattr(headlines.Origin, "known", {"commit": "HEAD", "uncommitted_changes": False}.get)
    assert headlines.is_present(part) == (harness.git("diff", "--quiet", "HEAD", "--", *part.code) == "")
    assert "benchmarks/end_to_end.py" in part.code and "benchmarks/prepare.py" not in part.code
    monkeypatch.setattr(headlines, "git", lambda *_: None)
    assert not headlines.is_present(part)
    monkeypatch.setattr(headlines.Origin, "known", {"commit": "HEAD", "uncommitted_changes": True}.get)
    monkeypatch.setattr(headlines, "git", lambda *_: "")
    assert not headlines.is_present(part)


def test_a_headline_of_few_commits_ago_may_stay(monkeypatch):
    part = headlines.PARTS["dlrm"]
    monkeypatch.setattr(headlines, "git", lambda *_: "400")
    assert headlines.is_newer(part, 400) and not headlines.is_newer(part, 399)
    assert not headlines.is_newer(part, None)
    monkeypatch.setattr(headlines, "git", lambda *_: None)
    assert not headlines.is_newer(part, 400), "a commit that is not known"


def test_a_headline_that_takes_too_long_ends_with_its_processes(tmp_path):
    marker = tmp_path / "ran on"
    late = f"import time; time.sleep(3); open({str(marker)!r}, 'w')"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {late!r}])"
    assert headlines.ended([sys.executable, "-c", program], 1.0) is None
    time.sleep(3.5)
    assert not marker.exists()
    assert headlines.ended([sys.executable, "-c", "raise SystemExit(3)"], 60) == 3


class _Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item, self.top = nn.Embedding(300, 4), nn.Embedding(50, 4), nn.Linear(8, 1)

    def forward(self, ids):
        return self.top(torch.cat([self.user(ids[:, 0]), self.item(ids[:, 1])], 1)).squeeze(1)


def _recipe():
    def training(model, name):
        optimizer = recipe.optimizer_of(model, name)

        def step(ids):
            optimizer.zero_grad()
            model(ids).square().mean().backward()
            optimizer.step()

        return recipe.Training(optimizer, step)

    ids = [torch.stack([torch.arange(64) * (k + 3) % 300, torch.arange(64) % 50], 1) for k in range(20)]
    return recipe.Recipe(_Small, lambda dtype: ids, training, lambda model, batch: (batch,), ("adam",))


def test_a_model_is_checked_plain_and_accelerated_and_a_wrong_step_is_seen():
    """The check of libraries' models failed unseen, as it needs their environments; this one does not."""
    small, options = _recipe(), argparse.Namespace(optimizers=None, device=False, quick=False)
    right = worker.of_model(small, worker.Accelerate(packing=True), options)
    assert right["accelerated"]["adam"]["taken"] == right["tables"] == 2
    assert all(verdict["ok"] for verdict in right["optimizers"]["adam"].values())
    wrong = worker.of_model(small, _Doubled(), options)
    assert not any(verdict["ok"] for verdict in wrong["optimizers"]["adam"].values())


class _Doubled:
    """An acceleration whose steps are twice as long."""

    tables: ClassVar[dict] = {}

    def __call__(self, model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 2
