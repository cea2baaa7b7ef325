"""The index of the evidence: one claim a row, in one sentence; what loses stands beside what wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from benchmarks.any_model.table import is_built, passes
from benchmarks.evidence.boosting import FEW_POSITIVES, Half
from benchmarks.evidence.records import (
    Origin,
    Table,
    at,
    latency,
    mean,
    number,
    over,
    percent,
    result,
    signed,
    times,
)

HEAD = "claim | machine, day, commit | command | file"
LIBRARY = {
    "torchrec": "TorchRec",
    "fbgemm": "FBGEMM",
    "tensorflow": "TensorFlow",
    "plain-torch": "plain PyTorch",
}


@dataclass(frozen=True)
class Claim:
    """A sentence with figures of files in place of its {}, and where they come from."""

    sentence: str
    figures: Callable[[], Iterable[object]]
    origins: tuple[Origin, ...]

    def row(self) -> list[str]:
        places = dict.fromkeys(f"{o.machine}, {o.date}, {o.commit}" for o in self.origins)
        commands = dict.fromkeys(o.shown_command.replace("python -m ", "") for o in self.origins)
        files = [origin.file for origin in self.origins]
        cells = ("; ".join(places), "; ".join(commands), ", ".join(files))
        return [self.sentence.format(*self.figures()), *cells]


def claim(sentence: str, command: str, files: str, figures: Callable[[], Iterable[object]]) -> Claim:
    """A claim of figures that a command wrote into files, or into records of one: `FILE/KEY OTHER`."""
    return Claim(sentence, figures, tuple(Origin(file, command) for file in files.split()))


def faster(sentence: str, command: str, file: str, *pairs: str) -> Claim:
    """A claim of how many times as fast arms of a file are as others, by pairs `ARM / OTHER`."""
    return claim(sentence, command, file, lambda: [times(file, *pair.split(" / ")) for pair in pairs])


def _over_the_fastest(file: str) -> list[object]:
    """How many times as fast hotrows is as the fastest library, and which that is."""
    arms = at(f"{file}/arms")
    speeds = {arm: arms[arm]["samples_per_s"] for arm in LIBRARY if "samples_per_s" in arms.get(arm, {})}
    fastest = max(speeds, key=speeds.__getitem__)
    return [times(file, "hotrows", fastest), LIBRARY[fastest]]


def ratio(file: str, arm: str, base: str) -> str:
    return over(f"{file}/arms/{arm}/samples_per_s", f"{file}/arms/{base}/samples_per_s")


def span(values: Iterable[float], form: str = "{:.2f}") -> str:
    """The least and the most of values, once where both read alike."""
    values = list(values)
    least, most = form.format(min(values)), form.format(max(values))
    return least if least == most else f"{least} to {most}"


def any_model_runs() -> tuple[int, int]:
    """Library configurations whose accelerated runs equal plain ones with every optimizer, of all."""
    models = [model for library in result("any_model").values() for model in library["models"].values()]
    equal = [m for m in models if is_built(m) and all(passes(one) for one in m["optimizers"].values())]
    return len(equal), len(models)


def _let_through() -> list[object]:
    cells = at("break_even/models").values()
    gains = [cell["times_as_fast"] for cell in cells if not cell["is_left_plain"]]
    slower = sum(gain < 1 for gain in gains)
    return [len(cells), len(cells) - len(gains), slower, f"{min(gains):.2f}x", f"{max(gains):.0f}x"]


def _misses(policy: str) -> str:
    """Rows fetched relative to Bélády's optimum, by caches of 1 to 10 %, four batches in flight."""
    figures = [f for stream in STREAMS for f in at(f"misses-{stream}/figures")]
    return span(f["over_belady"] for f in figures if f["policy"] == policy and f["in_flight"] == 4)


def _larger() -> list[object]:
    """Of larger sets: how many, and the default's AUC less that of LightGBM on the same seed."""
    above = []
    for arms in at("boosting-larger/sets").values():
        ((seed, boosted),) = arms["lightgbm"].items()
        above.append(arms["ours"][seed]["auc"] - boosted["auc"])
    wins = sum(value >= 0 for value in above)
    return [len(above), wins, signed(mean(above)), span(above, "{:+.4f}")]


def _clicks(samples: str) -> list[object]:
    arms = at(f"click_log/all/{samples}")
    return [f"{arms[arm][0]:.4f}" for arm in ("hotrows", "LightGBM, tuned", "LightGBM, default")]


def _whole_log() -> list[object]:
    """Of the largest log: its rows, and of each arm seconds, peak memory and test AUC."""
    rows, arms = max(at("click_log_whole/rows").items(), key=lambda pair: int(pair[0]))
    cells = [
        f"AUC {arm['auc']:.4f} in {arm['seconds']:,.0f} s with {arm['peak_mb'] / 1000:.1f} GB"
        if "auc" in arm
        else "fails"
        for arm in arms.values()
    ]
    return [f"{int(rows):,}", *cells]


def _prepared() -> list[object]:
    arms = at("prepare/arms")
    memory = arms["hotrows"]["peak_rss_mb"] / arms["polars"]["peak_rss_mb"]
    speeds = [over("prepare/arms/hotrows/rows_per_s", f"prepare/arms/{a}/rows_per_s") for a in ENCODERS]
    return [speeds[0], percent(memory), speeds[1]]


def _served_in_bits() -> list[object]:
    cells = [at(f"serving_core/figures/{model}-1000") for model in ("dien", "din")]
    ms = [[f"{cell[way]['p50_cpu_ms']:.1f}" for way in ("core, int8", "core", "onnx")] for cell in cells]
    worst = max(cell["core, int8"]["largest_difference"] for cell in cells)
    return [*ms[0], *ms[1], f"{worst:.0e}"]


def _after_a_loss() -> list[object]:
    m = at("machines/result")
    megabytes = 10_000 / sum(m["own_megabytes"])
    seconds = m["of_these_to_start"] + megabytes * (m["resume_seconds"] - m["of_these_to_start"])
    return [f"{seconds:.0f}", f"{max(m['fetched_of_own']):.2f}", percent(max(m["upload_share"], 0))]


def _preempted() -> list[object]:
    p = at("preemptions/result")
    assert p["equal_bits"]
    return [p["preemptions"], p["checkpoints_lost"], p["steps_made_twice_after_notice"]]


def _faults() -> list[object]:
    kinds = at("faults/kinds").values()
    good, trials = sum(k["equal"] + k["refused"] for k in kinds), sum(k["trials"] for k in kinds)
    return [f"{good:,}", f"{trials:,}"]


STREAMS = ("zipf", "criteo", "drift")
ENCODERS = ("polars", "sklearn")
LIBRARIES = {"deepctr": "deepctr-torch", "rechub": "torch-rechub", "fuxictr": "fuxictr"}


def _accelerated(shape: str) -> list[object]:
    return [ratio(f"accelerate-{shape}-{n}", f"{arm}+hotrows", arm) for n, arm in LIBRARIES.items()]


ACCELERATED = (
    "DeepFM of DeepCTR-Torch, torch-rechub and FuxiCTR trains {}, {} and {} as fast under `accelerate` "
)
CLAIMS = (
    claim(
        "DLRM on Criteo's tables trains {} as fast as in plain PyTorch, and {} as in {}, the fastest "
        "library.",
        "benchmarks.end_to_end dlrm-adagrad",
        "end_to_end-dlrm-adagrad",
        lambda: [
            times("end_to_end-dlrm-adagrad", "hotrows", "plain-torch"),
            *_over_the_fastest("end_to_end-dlrm-adagrad"),
        ],
    ),
    faster(
        "DLRM in bfloat16 trains {} as fast as FBGEMM, oneDNN and malloc settings joined by hand.",
        "benchmarks.end_to_end dlrm-adagrad-bfloat16",
        "end_to_end-dlrm-adagrad-bfloat16",
        "hotrows / glued",
    ),
    *(
        claim(
            f"{model} trains {{}} as fast as in {{}}, the fastest library.",
            f"benchmarks.end_to_end {name}",
            f"end_to_end-{name}",
            partial(_over_the_fastest, f"end_to_end-{name}"),
        )
        for name, model in (
            ("deepfm-adagrad", "DeepFM on Criteo's tables"),
            ("461-tables-adagrad", "A small MLP over 461 tables"),
            ("many-tables-adagrad", "A small MLP over 1,000 tables"),
        )
    ),
    faster(
        "Lookup, backward and update alone, with Adagrad, are {} as fast as in FBGEMM.",
        "benchmarks.embedding adagrad",
        "embedding-adagrad",
        "hotrows / fbgemm",
    ),
    *(
        faster(
            f"{name} on histories of 40 events trains {{}} as fast as in padded PyTorch, "
            "and {} as in FuxiCTR with dense Adam.",
            f"benchmarks.sequence_step {name.lower()}-dim16",
            f"sequence_step-{name.lower()}-dim16",
            "hotrows / padded-torch",
            "hotrows / fuxictr",
        )
        for name in ("DIN", "DIEN")
    ),
    claim(
        "`hotrows train` with DeepFM on four million rows, from the command's start to its end, is {} "
        "as fast as a loop in plain PyTorch, {} as DeepCTR-Torch's `fit` and {} as FuxiCTR's.",
        "benchmarks.user_path",
        "user_path",
        lambda: [
            ratio("user_path", "hotrows-deepfm", base) for base in ("plain-deepfm", "deepctr", "fuxictr")
        ],
    ),
    claim(
        f"{ACCELERATED}with Criteo's tables.",
        "benchmarks.accelerate",
        " ".join(f"accelerate-criteo-{name}" for name in LIBRARIES),
        lambda: _accelerated("criteo"),
    ),
    claim(
        f"{ACCELERATED}with 461 tables of 10,000 rows.",
        "benchmarks.accelerate",
        " ".join(f"accelerate-461-{name}" for name in LIBRARIES),
        lambda: _accelerated("461"),
    ),
    claim(
        "Of {} models of 4 to 26 tables `accelerate` leaves {} plain; {} of the others become slower, "
        "and they train {} to {} as fast as plain.",
        "benchmarks.break_even",
        "break_even",
        _let_through,
    ),
    claim(
        "{} of {} configurations of five libraries train to equal weights under `accelerate` with every "
        "optimizer; the others do not run in plain PyTorch, have no tables, or differ by rounding.",
        "benchmarks.any_model",
        "any_model/fuxictr/models/AFM",
        any_model_runs,
    ),
    claim(
        "DLRM with a tenth of the rows in memory and the rest in a file trains at {} of the speed with "
        "all rows in memory; with memory-mapped tables, at {}.",
        "benchmarks.tiers dim16",
        "tiers-dim16",
        lambda: [percent(at(f"tiers-dim16/arms/{arm}/ratio")) for arm in ("file", "file-mapped")],
    ),
    claim(
        "DLRM on a billion rows within 2 GiB trains at {} of the speed of ten million rows in memory in "
        "the median step, and at {} in the slowest 100 steps in a row.",
        "benchmarks.tiers billion",
        "tiers-billion-criteo",
        lambda: [
            percent(at(f"tiers-billion-criteo/figures/{key}"))
            for key in ("ratio", "ratio_slowest_window_of_100")
        ],
    ),
    claim(
        "Look-ahead fetches {} times the rows of Bélády's optimum, and LRU {}, with caches of 1 to 10 % "
        "on three streams.",
        "benchmarks.misses",
        " ".join(f"misses-{stream}" for stream in STREAMS),
        lambda: [_misses("lookahead"), _misses("lru")],
    ),
    faster(
        "Two ranks on two cores train DLRM {} as fast as TorchRec, pipelined, {} as TensorFlow's "
        "parameter server, and {} as one rank with two threads.",
        "benchmarks.ranks dlrm",
        "ranks-dlrm",
        "hotrows-ranks / torchrec-ranks-pipeline",
        "hotrows-ranks / tensorflow-ps",
        "hotrows-ranks / hotrows",
    ),
    faster(
        "Two ranks train DeepFM {} as fast as TensorFlow's parameter server, and {} as one rank.",
        "benchmarks.ranks deepfm",
        "ranks-deepfm",
        "hotrows-ranks / tensorflow-ps",
        "hotrows-ranks / hotrows",
    ),
    faster(
        "Two ranks train 461 tables {} as fast as TorchRec, {} as TensorFlow's parameter server, and {} "
        "as one rank.",
        "benchmarks.ranks 461-tables",
        "ranks-461-tables",
        "hotrows-ranks / torchrec-ranks",
        "hotrows-ranks / tensorflow-ps",
        "hotrows-ranks / hotrows",
    ),
    *(
        faster(
            f"Two ranks train {name} {{}} as fast as TensorFlow's parameter server with padded "
            "histories, {} without padding, and {} as one rank.",
            f"benchmarks.ranks {name.lower()}",
            f"ranks-{name.lower()}",
            "hotrows-ranks / tensorflow-ps",
            "hotrows-ranks / tensorflow-ps-packed",
            "hotrows-ranks / hotrows-histories",
        )
        for name in ("DIN", "DIEN")
    ),
    claim(
        "`prepare` of a million rows is {} as fast as Polars alone with {} of its memory, and {} as "
        "Polars and scikit-learn.",
        "benchmarks.prepare",
        "prepare",
        _prepared,
    ),
    claim(
        "`prepare` reads 20 GB of text within 2 GiB, page cache included, at {} rows a second.",
        "benchmarks.prepare --limit 2GiB",
        "prepare-bounded",
        lambda: [number(at("prepare-bounded/figures/rows_per_s"))],
    ),
    claim(
        "Shuffled batches load {} as fast as by PyTorch's DataLoader with two workers, and {} as from "
        "memory-mapped rows.",
        "benchmarks.loader",
        "loader",
        lambda: [
            over("loader/arms/ours-shuffled/rows_per_s", f"loader/arms/{arm}/rows_per_s")
            for arm in ("dataloader", "memmap-rows")
        ],
    ),
    claim(
        "On requests of 16 candidates DIEN trains {} and DIN {} as fast as on expanded samples; on "
        "requests of one candidate {} and {}.",
        "benchmarks.requests",
        "requests",
        lambda: [
            f"{number(at(f'requests/candidates/{n}/{model}/speedup'))}x"
            for n in (16, 1)
            for model in ("dien", "din")
        ],
    ),
    claim(
        "A request of 500 candidates of DeepFM on one core lasts {}; with tables of 8 bits {}.",
        "benchmarks.serving",
        "serving",
        lambda: [latency(f"serving/figures/deepfm/{kind}") for kind in ("float32", "int8")],
    ),
    claim(
        "On histories of 1,000 events the core scores a request of DIEN in 8 bits in {} ms (float32 {}, "
        "ONNX Runtime {}) and of DIN in {} ms ({}, {}); probabilities differ by {} at most.",
        "benchmarks.serving core",
        "serving_core",
        _served_in_bits,
    ),
    claim(
        "From the append of an event to a score that has learned it: {} at 5,000 events a second, {} at "
        "20,000, with training and server on two cores.",
        "benchmarks.freshness",
        "freshness/figures/5000",
        lambda: [latency(f"freshness/figures/{rate}", "s") for rate in (5000, 20000)],
    ),
    *(
        claim(
            f"On half {half}{words}, {{}} small data sets have {FEW_POSITIVES} positives to test on. The "
            "default's test AUC is significantly below the best of logistic regression, LightGBM and "
            "CatBoost on {} of them and above on {}; less the best it is {} on average ({} to {}). Log "
            "loss is at most 1.01 times the best on {}.",
            "benchmarks.boosting",
            "boosting",
            lambda half=half: Half(half).claim(),
        )
        for half, words in (("A", ", on which its constants were chosen"), ("B", ""))
    ),
    claim(
        "On {} sets of 260,000 to 2.8 million samples the default is at least as good as LightGBM on {}; "
        "its test AUC less that is {} on average ({}).",
        "benchmarks.boosting --larger",
        "boosting-larger",
        _larger,
    ),
    claim(
        "On a synthetic click log of 200,000 samples hotrows reaches test AUC {}, LightGBM {} tuned and "
        "{} by default; on 20,000 samples {}, {} and {}.",
        "benchmarks.click_log",
        "click_log",
        lambda: [*_clicks("200000"), *_clicks("20000")],
    ),
    claim(
        "On a CSV of {} synthetic clicks hotrows, without a setting, reaches {} up to its first served "
        "score; LightGBM by default {}; one epoch of FuxiCTR's `fit`, from prepared arrays, {}.",
        "benchmarks.click_log --whole",
        "click_log_whole",
        _whole_log,
    ),
    claim(
        "{} of {} trials of the fault campaign ended bit-identical to an undisturbed run, or with a "
        "one-line error.",
        "tests.faults",
        "faults/campaigns/-1",
        _faults,
    ),
    claim(
        "{} damaged inputs gave equal rows or one clear message.",
        "tests.fuzz",
        "fuzz/runs/-1",
        lambda: [f"{at('fuzz/all'):,}"],
    ),
    claim(
        "{} states of the pipeline were explored, and each reads as serial training does.",
        "tests.model_checker",
        "model_checker/runs/-1",
        lambda: [f"{at('model_checker/states'):,}"],
    ),
    claim(
        "After the loss of a machine a rank with 10 GB of rows trains again in {} s, extrapolated, and "
        "has fetched {} times its own bytes; uploads cost {} of the speed.",
        "benchmarks.machines",
        "machines/conditions",
        _after_a_loss,
    ),
    claim(
        "{} preemptions of 4, 3 and 1 ranks lost {} checkpoints and ended bit-identical to an "
        "undisturbed run; {} steps were trained twice.",
        "benchmarks.preemptions",
        "preemptions/conditions",
        _preempted,
    ),
)
TABLE = Table("claims", HEAD, lambda: [one.row() for one in CLAIMS])
