"""The index of the evidence: one claim a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.any_model.table import is_built, passes
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
    spread,
    times,
)

HEAD = "claim | figure | against | machine | date | commit | command | file"


@dataclass(frozen=True)
class Claim:
    """What is claimed, the figure of a file, and what it is compared with."""

    claim: str
    figure: Callable[[], str]
    against: str
    origin: Origin

    def row(self) -> list[str]:
        of = self.origin
        command = f"`{of.command}`"
        figures = [self.claim, self.figure(), self.against]
        return [*figures, of.machine, of.date, of.commit, command, of.file]


def faster(claim: str, file: str, arm: str, base: str, against: str, command: str) -> Claim:
    """A claim of how many times as fast one arm of a file is as another."""
    return Claim(claim, lambda: times(file, arm, base), against, Origin(file, command))


def ratios(text: str) -> list[Claim]:
    """Claims of speed: lines `file: command of benchmarks`, below each `claim | arm | base | against`."""
    claims, file, command = [], "", ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            claim, arm, base, against = line.strip().split(" | ")
            claims.append(faster(claim, file, arm, base, against, f"benchmarks.{command}"))
        else:
            file, command = line.split(": ")
    return claims


def let_through() -> tuple[float, float]:
    """The least and the largest gain of models that `accelerate` does not leave plain."""
    cells = at("break_even/models").values()
    gains = [cell["times_as_fast"] for cell in cells if not cell["is_left_plain"]]
    return min(gains), max(gains)


def any_model_runs() -> tuple[int, int]:
    """Library configurations whose accelerated runs equal plain ones with every optimizer, of all."""
    models = [model for library in result("any_model").values() for model in library["models"].values()]
    equal = [m for m in models if is_built(m) and all(passes(one) for one in m["optimizers"].values())]
    return len(equal), len(models)


def misses(file: str, policy: str) -> str:
    """Rows fetched relative to Bélády's optimum, by caches of 2, 5 and 10 %, four batches in flight."""
    figures = at(f"{file}/figures")
    ratios = [f["over_belady"] for f in figures if f["policy"] == policy and f["in_flight"] == 4]
    least, most = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return least if least == most else f"{least} to {most}"


def auc_less_one_hot(data: str, model: str) -> str:
    """Test AUC less that of one-hot logistic regression: mean, lowest and highest over seeds."""
    arms = at(f"defaults/sets/{data}")
    one_hot = arms["one-hot"]
    less = [run["auc"] - one_hot.get(seed, one_hot["0"])["auc"] for seed, run in arms[model].items()]
    return f"{signed(mean(less))} ({signed(min(less))} to {signed(max(less))})"


def _prepared(arm: str) -> str:
    arms = at("prepare/arms")
    ratios = [
        one["rows_per_s"] / other["rows_per_s"]
        for one, other in zip(arms["hotrows"]["rounds"], arms[arm]["rounds"], strict=True)
    ]
    return f"{number(arms['hotrows']['rows_per_s'] / arms[arm]['rows_per_s'])}x{spread(ratios)}"


def _alike() -> str:
    models = [model for found in at("accuracy/sets").values() for model in found.values()]
    within = [d["within_noise"] for model in models for d in model["differences"].values()]
    return f"{sum(within)} of {len(within)} pairs"


def _checksums() -> str:
    jobs = at("durability/jobs/checkpoint")
    return f"{jobs['as it is']['cpu_seconds'] - jobs['no checksums']['cpu_seconds']:.2f} s of the CPU"


def _dynamic(data: str, share: float) -> str:
    aucs = {
        way: mean([f["auc"] for f in at(f"{data}/figures") if f["way"] == way and f["share"] == share])
        for way in ("ahead", "lru")
    }
    return f"{aucs['ahead']:.4f} against {aucs['lru']:.4f}"


def least_and_most(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def link_gain(base: str) -> float:
    """How many times shorter a training with look-ahead is behind a link of 1/57 of memory."""
    arms = at("papers-fae/links/arms")
    return arms[f"1/57: {base}"]["seconds"] / arms["1/57: ours"]["seconds"]


KEYS = "dynamic-keys-33m/ns_per_lookup/33,800,000"
LOCALITIES = ("uniform", "low", "medium", "high")
END = "benchmarks.end_to_end"
RANKS = "benchmarks.ranks"
HISTORIES = "benchmarks.sequence_step"
ACCELERATE = "benchmarks.accelerate"
TIERS = "benchmarks.tiers"
PAPERS = "benchmarks.papers"

IN_MEMORY = (
    *ratios("""
end_to_end-dlrm-adagrad: end_to_end dlrm-adagrad
    DLRM on Criteo's tables, training step | hotrows | plain-torch | plain PyTorch
    DLRM on Criteo's tables, training step | hotrows | torchrec | TorchRec, the fastest library
end_to_end-dlrm-adagrad-bfloat16: end_to_end dlrm-adagrad-bfloat16
    DLRM on Criteo's tables, bfloat16 | hotrows | glued | FBGEMM, oneDNN, malloc settings, by hand
end_to_end-deepfm-adagrad: end_to_end deepfm-adagrad
    DeepFM on Criteo's tables, training step | hotrows | tensorflow | TensorFlow
end_to_end-461-tables-adagrad: end_to_end 461-tables-adagrad
    461 tables, small MLP | hotrows | plain-torch | plain PyTorch
end_to_end-many-tables-adagrad: end_to_end many-tables-adagrad
    1,000 tables, small MLP | hotrows | tensorflow | TensorFlow
embedding-adagrad: embedding adagrad
    embedding alone, Adagrad | hotrows | fbgemm | FBGEMM
sequence_step-din-dim16: sequence_step
    DIN, dim 16, histories of 40 | hotrows | padded-torch | padded PyTorch
    DIN, dim 16, histories of 40 | hotrows | fuxictr | FuxiCTR, dense Adam
sequence_step-dien-dim16: sequence_step
    DIEN, dim 16, histories of 40 | hotrows | padded-torch | padded PyTorch
sequence_step-can-dim16: sequence_step
    CAN, dim 16, histories of 40 | hotrows | padded-torch | padded PyTorch
"""),
    *(
        faster(
            "`hotrows train`, four million rows, DeepFM, from start to end",
            "user_path",
            "hotrows-deepfm",
            arm,
            against,
            "benchmarks.user_path",
        )
        for arm, against in (
            ("plain-deepfm", "a loop in plain PyTorch"),
            ("deepctr", "DeepCTR-Torch's `fit`"),
            ("fuxictr", "FuxiCTR's `fit`"),
        )
    ),
    Claim(
        "DeepFM by the recipe of BARS",
        lambda: over(
            "bars/models/deepfm/arms/hotrows/samples_per_s", "bars/models/deepfm/bars/samples_per_s"
        ),
        "the log of BARS on a V100, 2022",
        Origin("bars/models/deepfm", "benchmarks.bars"),
    ),
)
ACCELERATED = (
    *(
        faster(
            f"DeepFM of {name} under `accelerate`, Criteo's tables",
            f"accelerate-criteo-{short}",
            f"{arm}+hotrows",
            arm,
            "the same model, plain",
            ACCELERATE,
        )
        for name, short, arm in (
            ("DeepCTR-Torch", "deepctr", "deepctr-torch"),
            ("torch-rechub", "rechub", "torch-rechub"),
            ("FuxiCTR", "fuxictr", "fuxictr"),
        )
    ),
    *ratios("""
accelerate-461-fuxictr: accelerate
    FuxiCTR's DeepFM under `accelerate`, 461 tables | fuxictr+hotrows | fuxictr | the same, plain
accelerate-cut-fuxictr: accelerate
    FuxiCTR's DeepFM under `accelerate`, 1,000 rows a table | fuxictr+hotrows | fuxictr | the same, plain
"""),
    Claim(
        "accelerated model, a tenth of the rows in fast memory, the rest in files",
        lambda: percent(at("accelerate_cache/arms/file, ahead/of_memory")),
        "the speed in memory",
        Origin("accelerate_cache", "benchmarks.accelerate_cache"),
    ),
    Claim(
        "cost of `accelerate` for one small table",
        lambda: f"{percent(max(m['overhead'] for m in at('overhead/models').values()))} at most",
        "a plain step",
        Origin("overhead", "benchmarks.overhead"),
    ),
    Claim(
        "models of 4 to 26 tables that the forecast of `accelerate` lets through, slowest and fastest",
        lambda: "{:.2f}x to {:.0f}x".format(*let_through()),
        "the same models, plain",
        Origin("break_even", "benchmarks.break_even"),
    ),
    Claim(
        "library models that train equally under `accelerate`, every optimizer",
        lambda: "{} of {}".format(*any_model_runs()),
        "plain PyTorch; the others do not run plain or have no tables",
        Origin("any_model/fuxictr/models/AFM", "benchmarks.any_model"),
    ),
)
CACHED = (
    Claim(
        "DLRM with a tenth of the rows in memory, the rest in a file",
        lambda: percent(at("tiers-dim16/arms/file/ratio")),
        "the speed with all rows in memory; 220 steps, warm cache",
        Origin("tiers-dim16", TIERS),
    ),
    Claim(
        "DLRM, its tables memory-mapped from a file",
        lambda: percent(at("tiers-dim16/arms/file-mapped/ratio")),
        "the speed with all rows in memory",
        Origin("tiers-dim16", TIERS),
    ),
    Claim(
        "DLRM with a tenth of the rows in memory, 500 steps with a checkpoint and a merge",
        lambda: percent(at("tiers-sustained/arms/file/ratio")),
        "the speed with all rows in memory",
        Origin("tiers-sustained", f"{TIERS} sustained"),
    ),
    Claim(
        "DLRM on a billion rows within 2 GiB, median step",
        lambda: percent(at("tiers-billion-criteo/figures/ratio")),
        "the same model, ten million rows, in memory",
        Origin("tiers-billion-criteo", f"{TIERS} billion"),
    ),
    *(
        Claim(
            f"rows fetched over Bélády, look-ahead, stream {name}",
            partial(misses, f"misses-{name}", "lookahead"),
            "Bélády's optimum; caches of 2, 5 and 10 %",
            Origin(f"misses-{name}", "benchmarks.misses"),
        )
        for name in ("zipf", "criteo", "drift")
    ),
    Claim(
        "rows fetched, LRU, stream criteo",
        lambda: misses("misses-criteo", "lru"),
        "Bélády's optimum",
        Origin("misses-criteo", "benchmarks.misses"),
    ),
    Claim(
        "random rows read and written, file store",
        lambda: f"{number(at('stores/arms/hotrows/rows_per_s') / at('stores/arms/mapped/rows_per_s'))}x",
        "a mapped file, the fastest of RocksDB, LMDB, SQLite and itself",
        Origin("stores", "benchmarks.stores"),
    ),
    Claim(
        "predicted samples/s of training from a file, within 10 %",
        lambda: f"{at('advisor/within')} of {at('advisor/of')}",
        "measured afterwards",
        Origin("advisor", "benchmarks.advisor"),
    ),
    Claim(
        "planning of the look-ahead policy",
        lambda: f"{number(at('planning/ns_per_lookup/lookahead/all'), 0)} ns a lookup",
        "on a thread of its own",
        Origin("planning", "benchmarks.planning"),
    ),
)
RANKED = (
    *ratios("""
ranks-dlrm: ranks
    two ranks, DLRM | hotrows-ranks | hotrows | one rank with two threads
    two ranks, DLRM | hotrows-ranks | torchrec-ranks-pipeline | TorchRec, pipelined
    two ranks, DLRM | hotrows-ranks | tensorflow-ps | TensorFlow's parameter server
ranks-461-tables: ranks
    two ranks, 461 tables | hotrows-ranks | torchrec-ranks | TorchRec
ranks-din: ranks
    two ranks, DIN | hotrows-ranks | tensorflow-ps-packed | TensorFlow's parameter server, unpadded
ranks-dien: ranks
    two ranks, DIEN | hotrows-ranks | tensorflow-ps-packed | TensorFlow's parameter server, unpadded
"""),
    Claim(
        "predicted step on 1, 2 and 4 ranks",
        lambda: f"{percent(max(abs(r['error']) for r in at('scale_check/rows')))} off at most",
        "measured",
        Origin("scale_check", "benchmarks.scale_check"),
    ),
)
DATA = (
    Claim(
        "`prepare`, a million rows of Criteo",
        lambda: _prepared("polars"),
        "Polars alone",
        Origin("prepare", "benchmarks.prepare"),
    ),
    Claim(
        "`prepare`, 20 GB of text within 2 GiB",
        lambda: f"{number(at('prepare-bounded/figures/rows_per_s'))} rows/s",
        "a memory cgroup that counts page cache",
        Origin("prepare-bounded", "benchmarks.prepare --limit 2GiB"),
    ),
    Claim(
        "`prepare` on Ray, four million rows",
        lambda: f"{number(at('prepare-ray-4m/ray_over_process'))}x",
        "one process on the same cores",
        Origin("prepare-ray-4m", "benchmarks.prepare --ray"),
    ),
    Claim(
        "loading shuffled batches",
        lambda: over("loader/arms/ours-shuffled/rows_per_s", "loader/arms/dataloader/rows_per_s"),
        "PyTorch's DataLoader, two workers",
        Origin("loader", "benchmarks.loader"),
    ),
    Claim(
        "time that training waits for data",
        lambda: f"{100 * at('stall/figures/stalled_share'):.2f} %",
        "all of it",
        Origin("stall", "benchmarks.stall"),
    ),
    Claim(
        "training step with dynamic ids, tables in memory",
        lambda: f"{number(at('dynamic_step-memory-2/ratio'))}x",
        "a step with known ids",
        Origin("dynamic_step-memory-2", "benchmarks.dynamic_step"),
    ),
    Claim(
        "a lookup in the key table, 33.8 million keys, LRU",
        lambda: f"{number(at(f'{KEYS}/hotrows lru/hit'), 0)} ns",
        f"{number(at(f'{KEYS}/ska::flat_hash_map/hit'), 0)} ns, ska::flat_hash_map",
        Origin("dynamic-keys-33m", "benchmarks.dynamic_keys"),
    ),
    Claim(
        "DIEN on requests of 16 candidates",
        lambda: f"{number(at('requests/candidates/16/dien/speedup'))}x",
        "expanded samples",
        Origin("requests", "benchmarks.requests"),
    ),
)
SERVED = (
    Claim(
        "one request of 500 candidates, DeepFM, one core",
        lambda: latency("serving/figures/deepfm/float32"),
        "nothing else ran",
        Origin("serving", "benchmarks.serving"),
    ),
    Claim(
        "one request of 500 candidates, DeepFM, tables ten times the memory",
        lambda: latency("serving_tenfold/figures/deepfm/Zipf 1.05"),
        "within a memory cgroup",
        Origin("serving_tenfold", "benchmarks.serving_tenfold"),
    ),
    Claim(
        "event appended to score that has learned it, 5,000 events/s",
        lambda: latency("freshness/figures/5000", "s"),
        "training and server on the same two cores",
        Origin("freshness", "benchmarks.freshness"),
    ),
)
PAPER_CLAIMS = (
    Claim(
        "461 fields, first layer by distinct rows",
        lambda: f"{number(at('papers-picasso/fields/arms/461/hotrows/ratio'))}x",
        "plain PyTorch",
        Origin("papers-picasso/fields", f"{PAPERS} picasso"),
    ),
    Claim(
        "a cache of 10 % behind a link of 1/12, four localities",
        lambda: "{:.1f} to {:.1f}x".format(
            *least_and_most(
                [
                    arms["10% ours"]["samples_per_s"] / arms["10% static cache"]["samples_per_s"]
                    for arms in (at(f"papers-scratchpipe/{name}/arms") for name in LOCALITIES)
                ]
            )
        ),
        "a static cache of the most popular rows",
        Origin("papers-scratchpipe/medium", f"{PAPERS} scratchpipe"),
    ),
    Claim(
        "a whole training behind a link of 1/57",
        lambda: f"{link_gain('static cache'):.2f}x",
        "a static cache of the most popular rows",
        Origin("papers-fae/links", f"{PAPERS} fae"),
    ),
    Claim(
        "a whole training behind a link of 1/12",
        lambda: over("papers-fae/speed/arms/static cache/seconds", "papers-fae/speed/arms/ours/seconds"),
        "a static cache of the most popular rows",
        Origin("papers-fae/speed", f"{PAPERS} fae"),
    ),
)
QUALITY = (
    Claim(
        "equal weights, equal outputs and gradients",
        lambda: "{} of {} pairs".format(
            sum(pair["equal"] for pair in at("equal_weights/pairs")), len(at("equal_weights/pairs"))
        ),
        "DeepCTR-Torch, FuxiCTR, padded PyTorch",
        Origin("equal_weights", "benchmarks.equal_weights"),
    ),
    Claim(
        "test AUC by one recipe, within two standard errors",
        _alike,
        "DeepCTR-Torch, FuxiCTR",
        Origin("accuracy/sets/criteo/dnn/arms/hotrows/conditions", "benchmarks.accuracy"),
    ),
    *(
        Claim(
            f"test AUC of DeepFM on {data}, defaults before small networks",
            partial(auc_less_one_hot, data, "deepfm"),
            "logistic regression on one-hot ids",
            Origin(f"defaults/sets/{data}/deepfm/0", "benchmarks.defaults"),
        )
        for data in ("adult", "criteo", "movielens")
    ),
    Claim(
        "test AUC of DeepFM on MovieLens-1M, one epoch, three seeds",
        lambda: "{auc:.4f} ± {auc_interval:.4f}".format(**at("models-movielens/models/deepfm")),
        f"{at('models-movielens/models/lr/auc'):.4f}, logistic regression trained alike",
        Origin("models-movielens/models/deepfm", "benchmarks.models movielens"),
    ),
    Claim(
        "test AUC with a tenth of the keys, Avazu, look-ahead against LRU",
        lambda: _dynamic("dynamic-avazu", 0.1),
        "eviction by last use",
        Origin("dynamic-avazu", "benchmarks.dynamic"),
    ),
)
RELIABLE = (
    Claim(
        "trials of the fault campaign that ended equal or refused",
        lambda: "{:,} of {:,}".format(
            sum(k["equal"] + k["refused"] for k in at("faults/kinds").values()),
            sum(k["trials"] for k in at("faults/kinds").values()),
        ),
        "an undisturbed run",
        Origin("faults/campaigns/-1", "tests.faults"),
    ),
    Claim(
        "damaged inputs read",
        lambda: f"{at('fuzz/all'):,}",
        "one clear message or equal rows",
        Origin("fuzz/runs/-1", "tests.fuzz"),
    ),
    Claim(
        "states of the pipeline explored without a fault",
        lambda: f"{at('model_checker/states'):,}",
        "serial training",
        Origin("model_checker/runs/0", "tests.model_checker"),
    ),
    Claim(
        "checksums of a full checkpoint of 512 MB",
        lambda: _checksums(),
        "the same without",
        Origin("durability", "benchmarks.durability"),
    ),
)
GROUPS = (IN_MEMORY, ACCELERATED, CACHED, PAPER_CLAIMS, RANKED, DATA, SERVED, QUALITY, RELIABLE)
TABLES = [Table("claims", HEAD, lambda: [claim.row() for group in GROUPS for claim in group])]
