"""Tables of docs/evidence/quality.md."""

from __future__ import annotations

from benchmarks.evidence.boosting import boosting, halves
from benchmarks.evidence.records import Origin, Table, at, mean, signed, thousands
from benchmarks.models import FIGURES
from benchmarks.models import half as half_interval

SEEDS = 5  # of models that are compared by seed
PAIRED = (
    "model | test AUC | GAUC | log loss | AUC less that of `dnn` | GAUC less that of `dnn` "
    "| log loss less that of `dnn`"
)
WAYS = ("ordered", "budget", "frequent", "lru", "lfu", "ahead", "cafe", "hashing")


MODELS = {  # what each adds, what it needs, how many labels it learns
    "lr": ("a weight per id", "", "one"),
    "fm": ("dot products of all pairs of vectors", "", "one"),
    "dnn": ("an MLP on vectors; histories are pooled", "", "one"),
    "wide_deep": ("a linear part with crosses under FTRL, and an MLP", "", "one"),
    "deepfm": ("FM and an MLP on the same vectors", "", "one"),
    "dlrm": ("dot products, with the dense features as one vector", "ids, dense features", "one"),
    "dcnv2": ("crosses of bounded degree: full, low rank, mixture of experts", "", "one"),
    "din": ("attention over the history, with the candidate item as the query", "a history", "one"),
    "dien": ("GRUs over the history, the second led by attention", "a history", "one"),
    "can": ("the item's row is a small network that reads the history", "a history", "one"),
    "tbsm": ("a DLRM at each step of the history, attention to these steps", "a history", "one"),
    "hstu": (
        "layers of pointwise attention over the history, which the candidate reads",
        "a history",
        "one",
    ),
    "mmoe": ("experts shared by tasks, a gate and a tower for each", "", "several"),
    "ple": ("experts of single tasks beside shared ones, in levels", "", "several"),
    "esmm": ("conversions of all impressions, as clicks times conversions of clicks", "", "two"),
}


def models() -> list[list[str]]:
    """Test AUC on MovieLens-1M, and speed on Criteo's shape or on histories of dim 16."""
    rows = []
    for name, (adds, needs, labels) in MODELS.items():
        aucs = at("models-movielens/models")
        forms = [f for f in (name, f"{name}, code", f"{name}, paper") if f in aucs]
        auc = ", ".join(f"{f.partition(', ')[2]} {aucs[f]['auc']:.4f}".strip() for f in forms)
        floor = at("floors/models").get(name) or at("floors/models").get(f"{name}-dim16")
        speed = thousands(floor["samples_per_s"]) if floor else ""
        rows.append([f"[{name}](#{name})", adds, needs, labels, auc, speed])
    return rows


def movielens() -> list[list[str]]:
    return [
        [
            name,
            f"{m['auc']:.4f} ± {m['auc_interval']:.4f}",
            f"{m['gauc']:.4f} ± {m['gauc_interval']:.4f}",
            f"{m['log_loss']:.4f}",
        ]
        for name, m in sorted(at("models-movielens/models").items(), key=lambda one: -one[1]["auc"])
    ]


def paired(file: str, seeds: int, base: str = "dnn") -> list[list[str]]:
    """Figures of models with so many seeds, and what each has more than another model, by seed."""
    rows, models = [], at(f"{file}/models")
    plain = {run["seed"]: run for run in models[base]["runs"]}
    for name, m in sorted(models.items(), key=lambda one: -one[1]["auc"]):
        if len(m["runs"]) < seeds:
            continue
        cells = [f"{m[figure]:.4f} ± {m[f'{figure}_interval']:.4f}" for figure in FIGURES]
        for figure in FIGURES if name != base else ():
            more = [run[figure] - plain[run["seed"]][figure] for run in m["runs"]]
            cells.append(f"{signed(mean(more))} ± {half_interval(more):.4f}")
        rows.append([name, *cells, *[""] * (2 * len(FIGURES) - len(cells))])
    return rows


def short_videos() -> list[list[str]]:
    known = at("models-short-videos/known").values()
    rows = paired("models-short-videos", SEEDS)
    for name in next(iter(known)):
        cells = [f"{mean([of_seed[name][figure] for of_seed in known]):.4f}" for figure in FIGURES]
        rows.append([f"*{name}*", *cells, *[""] * len(FIGURES)])
    return rows


def larger() -> list[list[str]]:
    """AUC, log loss and seconds of the default and of one epoch, means of the same seeds; LightGBM, and
    the default less it, on its seed."""
    table = []
    for name, arms in at("boosting-larger/sets").items():
        seeds = sorted(arms["ours"].keys() & arms["once"].keys())
        means = {
            figure: [mean([arms[arm][seed][figure] for seed in seeds]) for arm in ("ours", "once")]
            for figure in ("auc", "log_loss", "cpu_seconds")
        }
        ((seed, boosted),) = arms["lightgbm"].items()
        table.append(
            [
                name,
                f"{arms['ours'][seeds[0]]['rows']:,}",
                *(f"{auc:.4f}" for auc in means["auc"]),
                f"{boosted['auc']:.4f}",
                signed(arms["ours"][seed]["auc"] - boosted["auc"]),
                *(f"{loss:.4f}" for loss in means["log_loss"]),
                *(f"{seconds:.0f}" for seconds in means["cpu_seconds"]),
            ]
        )
    return table


def click_log() -> list[list[str]]:
    """AUC, log loss and seconds of each arm, by samples; last those of numbers only."""
    rows, found = [], at("click_log")
    for columns, words in (("all", "numbers and ids"), ("numbers", "only numbers")):
        for samples, arms in sorted(found.get(columns, {}).items(), key=lambda pair: int(pair[0])):
            for arm, (auc, loss, seconds) in arms.items():
                rows.append(
                    [f"{int(samples):,}", words, arm, f"{auc:.4f}", f"{loss:.4f}", f"{seconds:.0f}"]
                )
    return rows


def whole_log() -> list[list[str]]:
    """The whole way from a file, by rows and arms; an arm that failed has no AUC."""
    return [
        [
            f"{int(rows):,}",
            arm,
            f"{f['seconds']:,.0f}",
            f"{f['cpu_seconds']:,.0f}",
            f"{f['peak_mb']:,}",
            f"{f['auc']:.4f}" if "auc" in f else f["error"],
        ]
        for rows, arms in sorted(at("click_log_whole/rows").items(), key=lambda pair: int(pair[0]))
        for arm, f in arms.items()
    ]


def definitions() -> list[list[str]]:
    return [[who, what] for who, what in at("equal_weights/differs").items()]


def kept_auc(data: str, way: str, share: float) -> float:
    """Mean test AUC where tables hold this share of the keys, chosen in this way."""
    figures = at(f"dynamic-{data}/figures")
    seeds = {f["seed"] for f in figures if f["way"] == WAYS[0]}  # which all ways have
    chosen = [f for f in figures if (f["way"], f["share"]) == (way, share)]
    return mean([f["auc"] for f in chosen if f["seed"] in seeds])


def dynamic() -> list[list[str]]:
    rows = []
    for name, label in (("movielens", "MovieLens"), ("avazu", "Avazu"), ("drift", "synthetic, drifting")):
        rows += [
            [
                label,
                f"{share:.0%}",
                f"{kept_auc(name, 'unlimited', 1.0):.4f}",
                *(f"{kept_auc(name, way, share):.4f}" for way in WAYS),
            ]
            for share in (0.1, 0.5)
        ]
    return rows


CLICK_LOG = [
    Table(
        "click-log",
        "samples | columns | trained by | test AUC | log loss | seconds",
        click_log,
        (Origin("click_log", "benchmarks.click_log"),),
    ),
    Table(
        "click-log-whole",
        "samples | trained by | seconds | CPU seconds | peak MB | test AUC",
        whole_log,
        (Origin("click_log_whole", "benchmarks.click_log --whole"),),
    ),
]
MODEL_TABLES = [
    Table("models", "model | what it adds | needs | labels | test AUC | thousand samples/s", models)
]
TABLES = [
    Table(
        "movielens",
        "model | test AUC | AUC within users | log loss",
        movielens,
        (Origin("models-movielens/models/deepfm", "benchmarks.models movielens"),),
    ),
    Table(
        "short-videos",
        PAIRED,
        short_videos,
        (Origin("models-short-videos/models/hstu", "benchmarks.short_videos"),),
    ),
    Table(
        "boosting",
        "data | half | samples | default | LR | LightGBM | CatBoost | less the best | significant "
        "| log loss | seeds | CPU seconds: CatBoost | default",
        boosting,
        (Origin("boosting", "benchmarks.boosting"),),
    ),
    Table(
        "halves",
        "half | sets that count | below the best | above | mean difference | log loss ≤ 1.01x | most",
        halves,
    ),
    Table(
        "larger",
        "data | samples | default | one epoch | LightGBM | less LightGBM | log loss: default | one epoch "
        "| CPU seconds: default | one epoch",
        larger,
        (Origin("boosting-larger", "benchmarks.boosting --larger"),),
    ),
    Table("definitions", "library: layer | how its definition differs", definitions),
    Table(
        "dynamic",
        "data | keys | all keys | ordered | budget | frequent | LRU | LFU | look-ahead | CAFE | hashing",
        dynamic,
        tuple(
            Origin(f"dynamic-{name}", "benchmarks.dynamic") for name in ("movielens", "avazu", "drift")
        ),
    ),
]
