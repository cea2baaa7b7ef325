"""The GPU benchmark's logic runs without a GPU, so that a mistake in it costs no time on one."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from benchmarks import gpu
from benchmarks.gpu_parts import cache, fields, limits, lookup
from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.tuning import sweep
from benchmarks.gpu_parts.workloads import scattered, zipf_ids

from hotrows.train import pictures

SMALL = ["--small", "--device", "cpu", "--minutes", "60"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch, tmp_path, threads):
    threads(1)
    monkeypatch.setattr(cache, "DATA", tmp_path)
    monkeypatch.setattr(pictures, "draw_run", lambda run: None)


@pytest.mark.parametrize("part", gpu.PARTS)
@pytest.mark.filterwarnings("ignore")  # of the profiler and of PyTorch's sparse gradients
def test_every_part_runs_checks_first_and_writes_what_it_finds(part, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "benchmarks.gpu_parts.kernels.run_tests", lambda paths, limit: (0, "3 passed in 1.00s")
    )
    assert gpu.main([*SMALL, "--part", part, "--out", str(tmp_path), "--commit", "abc"]) == 0
    found = json.loads((tmp_path / f"gpu-{part}.json").read_text())
    assert found["complete"] and found["arms"] and found["error"] is None
    assert set(found["checks"].values()) == {"passed"}
    assert found["commit"] and found["machine"] and found["versions"]["torch"]
    assert found["setting"] == {"device": "cpu", "small": True, "gigabytes": 80}


def test_nothing_is_written_of_small_runs_unless_told_where(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    assert gpu.main([*SMALL, "--part", "micro"]) == 0
    assert not list(tmp_path.iterdir())


def test_the_list_says_what_has_run_and_what_is_pending(tmp_path, capsys):
    gpu.main([*SMALL, "--part", "micro", "--out", str(tmp_path)])
    capsys.readouterr()
    gpu.main(["--list", "--out", str(tmp_path)])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "done, 4 arms, commit" in lines["micro"] and "pending" in lines["cache"]


def test_a_part_whose_checks_are_red_gives_no_figures(tmp_path, monkeypatch):
    wrong = (1, "FAILED tests/a.py::b - assert 1 == 2\n1 failed, 9 passed in 1.00s")
    monkeypatch.setattr("benchmarks.gpu_parts.kernels.run_tests", lambda paths, limit: wrong)
    assert gpu.main([*SMALL, "--part", "kernels", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "gpu-kernels.json").read_text())
    assert found["arms"] == {} and "no figures" in found["error"]
    assert found["checks"] == {"tests/a.py::b": "failed: assert 1 == 2"}


def test_a_cut_part_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "ORDER", (("zipf", "sgd", ("whole", "10%")),))
    measure, measured = cache._measure, []

    def one_arm_a_run(setting, stream, optimizer, arm):
        measured.append(arm)
        return measure(setting, stream, optimizer, arm) if len(measured) in (1, 3) else None

    monkeypatch.setattr(cache, "_measure", one_arm_a_run)
    arguments = [*SMALL, "--part", "cache", "--out", str(tmp_path)]
    gpu.main(arguments)
    assert not json.loads((tmp_path / "gpu-cache.json").read_text())["complete"]
    gpu.main(arguments)
    found = json.loads((tmp_path / "gpu-cache.json").read_text())
    assert found["complete"] and measured == ["whole", "10%", "10%"]
    assert list(found["arms"]) == ["zipf-sgd-whole", "zipf-sgd-10%"]


def test_figures_of_another_commit_or_size_are_not_gone_on_with():
    findings = Findings("a", "", Setting("cpu"), None)
    same = {"setting": Setting("cpu").facts(), "commit": findings.commit, "complete": False}
    same |= {"arms": {"x": {}}, "checks": {}}
    for other in ({"commit": "another"}, {"setting": Setting("cuda").facts()}, {"complete": True}):
        findings.go_on_from({**same, **other})
        assert not findings.has("x")
    findings.go_on_from(same)
    assert findings.has("x")


def test_a_check_that_raises_says_where_and_is_red():
    findings = Findings("a", "", Setting("cpu"), None)
    assert findings.check_runs("reads", lambda: torch.empty(2)[5]) is None
    assert findings.checks["reads"].startswith("failed: IndexError")


def test_the_page_has_the_tables_as_they_are_computed(tmp_path, monkeypatch):
    page = tmp_path / "gpu.md"
    page.write_text(limits.PAGE.read_text())
    monkeypatch.setattr(limits, "PAGE", page)
    before = page.read_text()
    assert gpu.main(["--page"]) == 0
    assert page.read_text() == before, "run `python -m benchmarks.gpu --page`"


def test_no_fewer_bytes_than_a_forward_pass_must_move():
    # 2 rows of 128 float32, 3 lookups: rows and slots, places and vectors.
    assert lookup.must_move(2, 3, "sgd")["forward"] == 2 * (512 + 8) + 3 * (4 + 512)
    assert lookup.must_move(2, 3, "adam")["update"] == 3 * (512 + 4) + 2 * (2 * 1536 + 20)


def test_the_device_is_busy_where_an_interval_runs():
    intervals = [(0.0, 1.0), (0.5, 2.0), (1.0, 1.5), (3.0, 4.0)]
    assert fields._busy_shares(intervals, 4).tolist() == [1.0, 1.0, 0.0, 1.0]
    assert fields._busy_shares(intervals, 1).tolist() == [0.75]


def test_a_sweep_changes_a_constant_wherever_it_was_imported_and_puts_it_back(monkeypatch):
    options = {"num_warps": 4}
    launch = SimpleNamespace(WINDOW=64, OPTIONS=options)
    kernel = SimpleNamespace(WINDOW=64, OPTIONS=options)
    monkeypatch.setitem(sys.modules, "hotrows.ops.triton.launch", launch)
    monkeypatch.setitem(sys.modules, "hotrows.ops.triton.some_kernel", kernel)
    seen = dict(sweep(("WINDOW", "num_warps"), lambda: [kernel.WINDOW, options["num_warps"]]))
    assert seen["WINDOW=32"] == [32, 4] and seen["WINDOW=256"] == [256, 4]
    assert seen["num_warps=2"] == [64, 2] and seen["num_warps=16"] == [64, 16]
    assert vars(kernel) == vars(launch) == {"WINDOW": 64, "OPTIONS": {"num_warps": 4}}


def test_hot_ids_are_scattered_one_to_one():
    for rows in (1, 2, 7, 100, 1000):
        assert scattered(torch.arange(rows), rows).sort().values.tolist() == list(range(rows))


def test_ids_follow_zipfs_law():
    ids = zipf_ids(1000, 100_000, torch.Generator().manual_seed(0))
    weights = torch.arange(1, 1001, dtype=torch.float64).pow(-1.05)
    expected = weights / weights.sum()
    seen = torch.bincount(ids, minlength=1000)[scattered(torch.arange(3), 1000)] / 100_000
    torch.testing.assert_close(seen.double(), expected[:3], rtol=0.05, atol=0)
