"""The GPU benchmark's logic runs without a GPU, so that a mistake in it costs no time on one."""

import sys
from types import SimpleNamespace

import pytest
import torch
from benchmarks import gpu
from benchmarks.arms import gpu_arms, gpu_cache, gpu_runs
from benchmarks.gpu_parts import (
    cache,
    claims,
    cuembed,
    fields,
    kernels,
    limits,
    lookup,
    memory,
    plain,
    probe,
    timing,
    workloads,
)
from benchmarks.gpu_parts.part import Findings, Setting, read
from benchmarks.gpu_parts.source import source_hash
from benchmarks.gpu_parts.tuning import sweep
from benchmarks.gpu_parts.workloads import scattered, zipf_ids, zipf_stream
from benchmarks.harness import ROOT

import hotrows
from hotrows.ops.record import RecordLayout
from hotrows.train.telling import pictures
from tests.conftest import leaves_no_device
from tests.support import pretend

SMALL = ["--small", "--device", "cpu", "--minutes", "60"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch, tmp_path, threads):
    threads(1)
    monkeypatch.setattr(cache, "DATA", tmp_path)
    monkeypatch.setattr(pictures, "draw_run", lambda run: None)


@pytest.mark.parametrize("part", [name for name, part in gpu.PARTS.items() if part.module is None])
@pytest.mark.filterwarnings("ignore")  # of the profiler and of PyTorch's sparse gradients
def test_every_part_runs_checks_first_and_writes_what_it_finds(part, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "benchmarks.gpu_parts.kernels.run_tests", lambda paths, limit: (0, "tests/a.py::b PASSED [100%]")
    )
    assert gpu.main([*SMALL, part, "--out", str(tmp_path), "--commit", "abc"]) == 0
    found = read(tmp_path / "gpu.json")[part]
    assert found["complete"] and found["arms"] and found["error"] is None
    assert set(found["checks"].values()) == {"passed"}
    assert found["commit"] and found["machine"] and found["versions"]["torch"]
    gigabytes = gpu.PARTS[part].gigabytes or 80
    assert found["setting"] == {"device": "cpu", "small": True, "gigabytes": gigabytes}
    assert found["source"] == source_hash()


@pytest.fixture
def quick_part(monkeypatch):
    """A part that takes no time: `speed` finds the arms a and b, one in each run."""

    def run(findings, setting):
        for arm in ("a", "b"):
            if not findings.has(arm):
                findings.add(arm, {"speed": 2.0})
                return arm == "b"
        return True

    monkeypatch.setattr(gpu, "PARTS", {"speed": gpu.Part("?", 0), "later": gpu.Part("?", 0)})
    for name in gpu.PARTS:
        monkeypatch.setitem(sys.modules, f"benchmarks.gpu_parts.{name}", SimpleNamespace(run=run))


def test_one_file_holds_all_parts_and_begins_as_the_known_results(tmp_path, quick_part, monkeypatch):
    results, out = tmp_path / "results", tmp_path / "out"
    gpu.main([*SMALL, "speed", "--out", str(results)])
    monkeypatch.setattr(gpu, "RESULTS", results)
    gpu.main([*SMALL, "speed", "later"])
    assert list(read(results / "gpu.json")) == ["speed"], "a small run without --out writes nothing"
    gpu.main(["--list", "--out", str(out)])
    gpu.main([*SMALL, "later", "--out", str(out)])
    assert list(read(out / "gpu.json")) == ["speed", "later"]


def test_the_list_says_what_has_run_and_what_is_pending(tmp_path, capsys, quick_part):
    out = ["--out", str(tmp_path)]
    gpu.main([*SMALL, "speed", *out])
    gpu.main(["--list", *out])
    assert f"cut, 1 arms, source {source_hash()}" in capsys.readouterr().out
    gpu.main([*SMALL, "speed", *out])
    gpu.main([*SMALL, "speed", *out])
    assert "speed: has run; --again" in capsys.readouterr().out
    gpu.main(["--list", *out])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "done, 2 arms" in lines["speed"] and "pending" in lines["later"]


@pytest.fixture
def rehearsal(monkeypatch):
    """Parts are processes with a pretended GPU."""
    monkeypatch.setattr(gpu, "_COMMAND", [sys.executable, "-m", "tests.support.rehearsal"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return monkeypatch


def test_parts_that_die_run_out_of_memory_or_of_time_stop_no_other(tmp_path, rehearsal, capfd):
    rehearsal.setenv("HOTROWS_REHEARSED", "layers=die,micro=memory,probe=hang")
    rehearsal.setitem(gpu.RUNS, "first", {"layers": 200, "micro": 200, "probe": 25, "host": 200})
    command = ["--small", "--out", str(tmp_path), "--minutes", "12", "first"]
    assert gpu.main(command) == 3
    found = read(tmp_path / "gpu.json")
    assert {name: (record["complete"], record["error"]) for name, record in found.items()} == {
        "layers": (False, "died: SIGSEGV"),
        "micro": (False, "OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 GiB."),
        "probe": (False, "cut at its limit of 25 s"),
        "host": (True, None),
    }
    said = capfd.readouterr().out
    assert "what it found is kept, and the next part runs" in said
    assert "interleaving in parts, memory and time: not measured yet: OutOfMemoryError" in said
    rehearsal.setitem(gpu.RUNS, "first", {"host": 200})
    assert gpu.main(command) == 0 and "host: has run" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("run", gpu.RUNS)
def test_a_run_of_ten_minutes_comes_to_its_end_on_a_pretended_device(tmp_path, rehearsal, run):
    rehearsal.setitem(gpu.RUNS, run, dict.fromkeys(gpu.RUNS[run], 600))
    assert gpu.main(["--small", "--out", str(tmp_path), "--minutes", "60", run]) == 0
    assert all(record["complete"] for record in read(tmp_path / "gpu.json").values())


def test_runs_are_of_known_parts_and_end_in_time():
    assert all(gpu.PARTS[name] for parts in gpu.RUNS.values() for name in parts)
    assert max(sum(parts.values()) for parts in gpu.RUNS.values()) <= 570 - 15
    assert all(gpu.PARTS[n].seconds <= s for parts in gpu.RUNS.values() for n, s in parts.items())


@pytest.mark.parametrize(("gib", "gigabytes"), [(79.6, 50), (139.8, 80), (23.6, 15)])
def test_records_fit_the_card(monkeypatch, gib, gigabytes):
    properties = SimpleNamespace(total_memory=int(gib * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert gpu._gigabytes(SimpleNamespace(device="cuda")) == gigabytes


def test_a_store_that_is_not_to_be_had_leaves_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SMALL_ORDER", (("zipf", "sgd", ("whole-there", "10%")),))
    make = gpu_cache.Memory

    def memory_of(num_rows, layout, on_device, setting):
        if on_device:
            raise torch.OutOfMemoryError("80 GB")
        return make(num_rows, layout, on_device, setting)

    monkeypatch.setattr(gpu_cache, "Memory", memory_of)
    assert gpu.main([*SMALL, "cache", "--out", str(tmp_path)]) == 1
    found = read(tmp_path / "gpu.json")["cache"]
    assert list(found["arms"]) == ["zipf-sgd-10%"] and found["complete"]
    assert "no store: OutOfMemoryError: 80 GB" in found["checks"]["zipf-sgd-whole-there: runs"]


def test_reads_hide_the_launches_of_a_call():
    assert [timing.num_reads(ms) for ms in (0.0, 0.15, 0.3, 2.0, 500.0)] == [1, 2, 3, 11, 50]
    assert timing.Timing(3.0, 3.0, 3.0, 2.9).is_of_the_host
    assert not timing.Timing(3.0, 3.0, 3.0, 1.0).is_of_the_host


def test_every_claim_has_its_figure_and_says_where_it_is_missing():
    assert {part for claim in claims.CLAIMS for part in claim.parts} <= {*gpu.PARTS}
    assert {figure for _, figure, _ in claims.lines({})} == {claims.NOT_YET}
    cached = {"of_best": 0.93, "waited": 0.02, "samples_per_s": 11.0}
    by_host = {"of_best": 0.8, "waited": 0.2, "samples_per_s": 10.5}
    arms = {
        "kernels": {"tests": {"passed": 500, "failed": 1, "error": 0}},
        "sync": {"cached": {"steps": 12}},
        "cache-16": {"zipf-rowwise-10%": cached, "zipf-rowwise-10%-host": by_host,
                     "zipf-rowwise-hybridhash": by_host, "zipf-rowwise-2%": {"of_best": 0.7}},
        "fields": {"packed-1000": {"over_fewest_fields": 1.2, "launches": 30},
                   "apart-1000": {"launches": 2030}},
        "micro": {"8 micro-batches": {"peak_mb": 900.0, "over_one": 1.3, "is_of_the_host": True}},
        "lookup": {key: {"forward_share": 0.7, "update_share": 0.4} for key in ("rowwise", "adam")},
        "planning": {"device-slots": {"ms": 2.0, "launches_ms": 0.3}},
        "probe": {"region-80-shuffled": {"in_gb_s": 50.0, "out_gb_s": 48.0},
                  "beside-24": {"in_gb_s_beside": 45.0, "product_slower": 1.01}},
        "accelerate": {"adam": {"pytorch_ms": 9.0, "ms": 2.0}},
        "deterministic": {"a": {"of_default": 0.97, "of_deterministic": 1.6}},
        "gates": {"dlrm": {"gain": 1.02}, "din": {"gain": 1.2}, "streams": {"gain": 1.01}},
    }  # fmt: skip
    records = {part: {"arms": found, "checks": {}, "error": None} for part, found in arms.items()}
    figures = {claim: figure for claim, figure, _ in claims.lines(records)}
    assert claims.NOT_YET not in figures.values()
    assert figures["gate: dense kernels"] == "dlrm 1.02x, din 1.20x: stays (asked 1.1)"
    assert figures["gate: streams of packs"].endswith("goes (asked 1.05)")
    assert figures["gate: slots mapped on the device"] == "1.05x the host's: goes (asked 1.1)"
    assert figures["how small a cache may be"] == "10% 93%, 2% 70%"
    records["micro"] = {"arms": {}, "checks": {}, "error": "died: SIGSEGV"}
    assert "time: not measured yet: died: SIGSEGV" in claims.in_words(records)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["speeed", "--out", "x"], "no part speeed; there are host"),
        (["--out", "x"], "name the parts to run"),
        (["probe"], "--out OUT"),
        (["probe", "--out", "x", "--device", "cpu"], "--small --device cpu"),
    ],
)
def test_a_command_that_would_lose_its_results_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit):
        gpu.main(arguments)
    assert words in capsys.readouterr().err


def test_a_part_whose_checks_are_red_gives_no_figures(tmp_path, quick_part, monkeypatch):
    def run(findings, setting):
        findings.check("equal", False, "1 is not 2")
        findings.add("a", {"speed": 2.0})

    monkeypatch.setitem(sys.modules, "benchmarks.gpu_parts.speed", SimpleNamespace(run=run))
    assert gpu.main([*SMALL, "speed", "--out", str(tmp_path)]) == 1
    found = read(tmp_path / "gpu.json")["speed"]
    assert found["arms"] == {} and "no figures" in found["error"]
    assert found["checks"] == {"equal": "failed: 1 is not 2"}


def test_one_red_test_of_many_takes_no_count_with_it(tmp_path, monkeypatch, capsys):
    lines = [
        *(f"[gw1] [ {n}0%] PASSED tests/a.py::ok[{n}] " for n in range(1, 4)),
        "[gw1] [ 50%] FAILED tests/a.py::b ", "[gw1] [ 60%] FAILED tests/a.py::c ",
        "FAILED tests/a.py::b - assert 1 == 2",
    ]  # fmt: skip
    monkeypatch.setattr(kernels, "run_tests", lambda paths, limit: (1, "\n".join(lines)))
    assert gpu.main([*SMALL, "kernels", "--out", str(tmp_path)]) == 1
    found = read(tmp_path / "gpu.json")["kernels"]
    assert found["arms"]["tests"]["passed"] == 3 and found["arms"]["tests"]["failed"] == 2
    assert found["checks"] == {"tests/a.py::b": "failed: assert 1 == 2"}
    assert "gw1 first FAILED: tests/a.py::b" in capsys.readouterr().out


def test_a_fault_that_leaves_no_device_is_known_from_others():
    fault = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert leaves_no_device(fault)
    assert not leaves_no_device(RuntimeError("CUDA error: out of memory"))
    assert not leaves_no_device(AssertionError("illegal memory access"))


@pytest.mark.parametrize(
    "line", ["tests/a.py::b[{}] PASSED      [  3%]", "[gw2] [ 10%] PASSED tests/a.py::b[{}] "]
)
def test_a_cut_run_of_the_tests_keeps_what_it_has_counted(line, tmp_path, monkeypatch):
    cut = "\n".join(["collecting", *map(line.format, range(7)), "tests/a.py::b[8] "])
    monkeypatch.setattr("benchmarks.gpu_parts.kernels.run_tests", lambda paths, limit: (None, cut))
    assert gpu.main([*SMALL, "kernels", "--out", str(tmp_path)]) == 0
    found = read(tmp_path / "gpu.json")["kernels"]
    assert not found["complete"] and found["arms"]["tests"]["passed"] == 7
    assert "cut after" in found["arms"]["tests"]["closing_line"]


def test_the_files_that_have_tests_for_a_gpu_are_there(monkeypatch):
    paths = kernels._files()
    assert {"tests/ops/triton", "tests/train/test_train_device.py"} <= {*paths}
    monkeypatch.setattr(kernels, "run_tests", lambda small, _: paths.extend(small) or (5, ""))
    setting = Setting("cpu", small=True)
    kernels.run(Findings("kernels", "", setting, None), setting)
    assert all((ROOT / path).exists() for path in paths)


def test_figures_of_other_code_or_another_setting_are_not_gone_on_with():
    findings = Findings("a", "", Setting("cpu"), None)
    like = {"setting": Setting("cpu").facts(), "source": findings.source, "complete": False}
    like |= {"arms": {"x": {}}, "checks": {}, "commit": None, "machine": findings.record()["machine"]}
    of_other_code = [{"source": "another"}, {"source": None}]
    machines = [{"machine": {"cpu": "another"}}, {"setting": Setting("cuda").facts()}]
    for other in (*of_other_code, *machines, {"complete": True}):
        findings.go_on_from({**like, **other})
        assert not findings.has("x")
    findings.go_on_from({**like, "gpu": {"name": "another"}}, keep_older=True)
    assert not findings.has("x")
    findings.go_on_from(like)
    assert findings.arms == {"x": {}}
    findings.go_on_from({**like, **of_other_code[0]}, keep_older=True)
    assert findings.arms == {"x": {"source": "another"}}


def test_the_hash_of_the_sources_changes_with_a_byte_and_a_name_but_not_with_a_result(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "benchmarks" / ".envs").mkdir(parents=True)
    seen = set()
    for path, text in [("src/a.py", "1"), ("src/a.py", "2"), ("src/b.py", "2")]:
        (tmp_path / path).write_text(text)
        seen.add(source_hash.__wrapped__(tmp_path))
    assert len(seen) == 3
    for path in ("benchmarks/results.json", "benchmarks/.envs/c.py"):
        (tmp_path / path).write_text("3")
    assert source_hash.__wrapped__(tmp_path) in seen


def test_an_arm_has_no_ratio_to_itself_nor_to_one_that_has_not_run():
    findings = Findings("a", "", Setting("cpu"), None)
    findings.add("fast", {"speed": 4.0, "ratio": 1.0})
    findings.add("slow", {"speed": 1.0})
    findings.add("alone", {"speed": 1.0})
    findings.compare("ratio", "speed", {"fast": "fast", "slow": "fast", "alone": "missing"})
    assert findings.arms == {
        "fast": {"speed": 4.0},
        "slow": {"speed": 1.0, "ratio": 0.25},
        "alone": {"speed": 1.0},
    }


def test_a_cut_part_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SMALL_ORDER", (("zipf", "sgd", ("whole-there", "10%")),))
    measure, measured = gpu_cache.measure, []

    def one_arm_a_run(request, setting):
        measured.append(request["arms"])
        return measure(request, setting) if len(measured) in (1, 3) else ()

    monkeypatch.setattr(gpu_cache, "measure", one_arm_a_run)
    arguments = [*SMALL, "cache", "--out", str(tmp_path)]
    gpu.main(arguments)
    found = read(tmp_path / "gpu.json")["cache"]
    assert not found["complete"] and "of_best" not in found["arms"]["zipf-sgd-whole-there"]
    gpu.main(arguments)
    found = read(tmp_path / "gpu.json")["cache"]
    assert found["complete"] and measured == [("whole-there",), ("10%",), ("10%",)]
    arms = found["arms"]
    assert arms["zipf-sgd-whole-there"]["bits"] == arms["zipf-sgd-10%"]["bits"]
    speeds = [arms[f"zipf-sgd-{arm}"]["samples_per_s"] for arm in ("10%", "whole-there")]
    assert arms["zipf-sgd-10%"]["of_best"] == speeds[0] / speeds[1]


def test_an_arm_with_other_rows_than_the_reference_has_no_figures():
    def figures(speed, bits="a", loss=0.5, change=9.0):
        return {"samples_per_s": speed, "bits": bits, "losses": [0.7, loss], "change": change}

    findings = Findings("cache", "", Setting("cpu"), None)
    for arm, found in {
        "whole": figures(10.0), "whole-compiled": figures(20.0, "b"), "plain": figures(9.0, "b", 0.4),
        "step-alone": figures(40.0), "10%": figures(15.0), "lru": figures(14.0, "b"),
    }.items():  # fmt: skip
        findings.add(f"zipf-rowwise-{arm}", found)
    cache._compare(findings)
    arms = {name.removeprefix("zipf-rowwise-"): found for name, found in findings.arms.items()}
    assert list(arms) == ["whole", "whole-compiled", "step-alone", "10%"]
    assert [arms[arm].get("of_best") for arm in arms] == [0.5, None, None, 0.75]
    red = [name for name, state in findings.checks.items() if state != "passed"]
    assert red == [f"zipf-rowwise-{arm}: the rows of all on the device" for arm in ("plain", "lru")]


def test_an_arm_that_goes_wrong_says_so_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SMALL_ORDER", (("zipf", "sgd", ("10%", "lru")),))
    run = gpu_cache.Run

    def broken(rig, arm):
        assert arm is not gpu_arms.ARMS["10%"], "it broke"
        return run(rig, arm)

    monkeypatch.setattr(gpu_cache, "Run", broken)
    assert gpu.main([*SMALL, "cache", "--out", str(tmp_path)]) == 1
    found = read(tmp_path / "gpu.json")["cache"]
    assert found["checks"]["zipf-sgd-10%: runs"] == "failed: AssertionError: it broke"
    assert list(found["arms"]) == ["zipf-sgd-lru"] and found["complete"]


def test_arms_have_equal_bits_on_a_pretended_device(monkeypatch):
    arms = ("whole-graph", "10%")
    monkeypatch.setattr(cache, "SMALL_ORDER", (("zipf", "rowwise", arms),))
    monkeypatch.setattr(gpu_runs, "num_threads", lambda *_: 1)
    monkeypatch.setattr(cache, "zipf_stream", lambda rows, num, _: zipf_stream(rows, num, "cpu"))
    monkeypatch.setattr(hotrows.Batch, "pin_memory", lambda batch: batch)
    findings = Findings("cache", "", Setting("cpu"), None)
    with pretend.gpu() as device:
        monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
        for name in ("empty_cache", "reset_peak_memory_stats", "max_memory_allocated"):
            monkeypatch.setattr(torch.cuda, name, lambda: 0)
        monkeypatch.setattr(memory, "lock", lambda block, _: device.lock(block))
        monkeypatch.setattr(memory, "unlock", lambda *_: None)
        assert cache.run(findings, Setting("cuda", small=True))
    assert set(findings.checks.values()) == {"passed"} and len(findings.arms) == len(arms)
    assert len({figures["bits"] for figures in findings.arms.values()}) == 1
    assert findings.arms["zipf-rowwise-10%"]["mb_out"] > 0, "rows have left the cache"


def test_memory_that_the_system_does_not_lock_is_told_and_the_rest_is_measured(monkeypatch):
    locked = []

    def lock(chunk, setting):
        if len(chunk) > 1 << 17 and len(locked) == 2:
            raise RuntimeError("0.3 GB: cudaHostRegister gives error 2")
        locked.append(chunk)

    monkeypatch.setattr(probe, "_check", lambda setting: None)
    monkeypatch.setattr(probe, "lock", lock)
    findings = Findings("probe", "", Setting("cpu", small=True), None)
    assert probe.run(findings, findings.setting)
    assert "error 2" in findings.arms["lock"]["refused"]
    assert findings.arms["lock"]["gb"] == pytest.approx(2 * 2**18 / 1e9)
    assert f"region-{2 * 2**18}-ascending" in findings.arms and "beside-8" in findings.arms


def test_tables_on_one_block_begin_with_values_that_depend_on_table_and_id(tmp_path):
    layout = RecordLayout(4, state_width=1)
    ids = [torch.tensor([0, 5]), torch.tensor([1]), torch.tensor([9, 2])]
    seen = []
    for parts in (1, 2):
        rows = memory.Memory(30, layout, False, Setting("cpu", small=True))
        tables = workloads.tables_of([10, 10, 10], 4)
        with rows.in_place_of_tables():
            embedding = workloads.embedding_of(tables, "rowwise", "cpu", pack_parts=parts)
        assert embedding.stores[0].records.data_ptr() == rows.block.data_ptr()
        rows.restore(embedding, ids)
        assert rows.state_of(embedding, ids)["change"] == 0
        seen.append(rows.state_of(embedding, ids)["bits"])
        assert torch.equal(embedding.weights("C2")[9], rows.first_weights(torch.tensor([9]))[0])
        embedding.stores[0].records[0, 0] += 1
        assert rows.state_of(embedding, ids)["bits"] != seen[0]
    assert seen[0] == seen[1]


def test_a_check_that_raises_says_where_and_is_red():
    findings = Findings("a", "", Setting("cpu"), None)
    assert findings.check_runs("reads", lambda: torch.empty(2)[5]) is None
    assert findings.checks["reads"].startswith("failed: IndexError")


def test_the_page_has_the_tables_as_they_are_computed(tmp_path, monkeypatch):
    before = {}
    for name in ("PAGE", "CLAIMS_PAGE"):
        page = tmp_path / name
        before[page] = getattr(limits, name).read_text()
        page.write_text(before[page])
        monkeypatch.setattr(limits, name, page)
    assert gpu.main(["--page"]) == 0
    assert {page: page.read_text() for page in before} == before, "run `python -m benchmarks.gpu --page`"


def test_no_fewer_bytes_than_a_forward_pass_must_move():
    # 2 rows of 128 float32, 3 lookups: rows and slots, places and vectors.
    assert lookup.must_move(2, 3, "sgd")["forward"] == 2 * (512 + 8) + 3 * (4 + 512)
    assert lookup.must_move(2, 3, "adam")["update"] == 3 * (512 + 4) + 2 * (2 * 1536 + 20)


@pytest.mark.parametrize("optimizer", lookup.STATE)
def test_the_plain_table_trains_as_pytorch_does(optimizer):
    ours = plain.PlainTable.random(9, 4, optimizer, 0.1, "cpu")
    weights = torch.nn.Parameter(ours.weights.clone())
    theirs = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
    tables = [hotrows.Table("T", 9, 4, ("T",))]
    row_optimizer = workloads.OPTIMIZERS[optimizer](lr=0.1)
    embedding = hotrows.Embedding(tables, optimizer=row_optimizer)
    embedding.weights("T").copy_(ours.weights)
    sparse = theirs.get(optimizer, torch.optim.SGD)([weights], lr=0.1)
    for step in range(3):
        rows, grad = torch.tensor([1, 4, 1, 8]), torch.randn(4, 4)
        ours.update(rows, grad)
        weights.grad = torch.sparse_coo_tensor(rows[None], grad, (9, 4))
        sparse.step()
        batch = hotrows.Batch(("T",), rows, torch.zeros(4, 0))
        plan = embedding.plan(batch, step)
        vectors = embedding.lookup(plan)
        vectors.leaves[0].grad = grad
        embedding.update(plan, vectors)
    torch.testing.assert_close(ours.weights, embedding.weights("T"))
    if optimizer in theirs:
        torch.testing.assert_close(ours.weights, weights.detach())


def test_plain_pytorch_has_the_logits_of_our_model():
    model = workloads.dlrm([5, 5, 5], 8, "cpu", small=True)
    embedding = workloads.embedding_of(model.tables, "sgd", "cpu")
    batch = hotrows.Batch(("C0", "C1", "C2"), torch.arange(6) % 5, torch.randn(2, 13))
    looked_up = embedding.lookup(embedding.plan(batch))
    expected = model(looked_up, batch.dense)
    found = gpu_runs.PlainDlrm(model)(batch.dense, looked_up.stack())
    torch.testing.assert_close(found, expected)


def test_a_library_that_is_not_there_is_left_out_with_the_reason(tmp_path):
    assert "--cuembed" in cuembed.why_not(None, True)
    assert "has no cuembed/include" in cuembed.why_not(tmp_path, True)


def test_others_figures_are_scaled_by_the_bandwidth_of_the_data_sheets(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    published = lookup._published(Setting("cuda"), "sgd")
    assert published["fbgemm_h100_update_ms"] == 0.614
    assert published["fbgemm_scaled_to_4.8_tb_s_update_ms"] == pytest.approx(0.614 * 3.35 / 4.8)
    assert lookup._published(Setting("cpu"), "rowwise") == {"fbgemm_h100_forward_ms": 0.345}


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
