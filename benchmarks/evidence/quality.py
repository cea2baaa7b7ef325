"""Tables of docs/evidence/quality.md."""

from __future__ import annotations

from itertools import product
from statistics import stdev

from benchmarks.boosting import half_of
from benchmarks.evidence.claims import auc_less_one_hot
from benchmarks.evidence.records import Origin, Table, at, mean, signed, thousands
from benchmarks.models import FIGURES
from benchmarks.models import half as half_interval

DATA = (
    "criteo",
    "avazu",
    "adult",
    "tiny",
    "rare",
    "rarest",
    "ids",
    "dense",
    "movielens",
    "flights",
    "caravan",
    "default",
)
SETS = {
    "criteo": "Criteo, 10,000 rows",
    "avazu": "Avazu, 14,000 rows",
    "adult": "Adult",
    "movielens": "MovieLens-1M, a quarter of the users",
    "clicks": "synthetic clicks with histories",
}
SEEDS = 5  # of models that are compared by seed
PAIRED = (
    "model | test AUC | GAUC | log loss | AUC less that of `dnn` | GAUC less that of `dnn` "
    "| log loss less that of `dnn`"
)
BOOSTING_PEERS = ("lightgbm", "catboost")
# Data, models, normalisation and orders of the study of requests.
REQUESTS = ("rated", "drawn"), ("din", "deepfm", "hstu", "dien"), ("batch", "none"), ("whole", "parts")
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


def movielens_pairs() -> list[list[str]]:
    return paired("models-movielens", SEEDS)


def short_videos() -> list[list[str]]:
    known = at("models-short-videos/known").values()
    rows = paired("models-short-videos", SEEDS)
    for name in next(iter(known)):
        cells = [f"{mean([of_seed[name][figure] for of_seed in known]):.4f}" for figure in FIGURES]
        rows.append([f"*{name}*", *cells, *[""] * len(FIGURES)])
    return rows


def defaults() -> list[list[str]]:
    models = ("lr", "fm", "deepfm", "dcnv2")
    rows = []
    for data in DATA:
        one_hot = mean([run["auc"] for run in at(f"defaults/sets/{data}/one-hot").values()])
        rows.append([data, f"{one_hot:.4f}", *(auc_less_one_hot(data, model) for model in models)])
    return rows


def boosting() -> list[list[str]]:
    """AUC of the default before and now, means over seeds, and their difference; on seed 0 AUC of each
    peer, how far the default is above the best of them, and CPU seconds."""
    table, sets = [], at("boosting/sets")
    for name in sorted(sets, key=lambda name: (half_of(name), name)):
        arms, changed = sets[name], sets[name]["difference"]
        before, now = (arms[arm] for arm in ("before", "ours"))
        seeds = sorted(before.keys() & now.keys())
        both = [f"{mean(runs[seed]['auc'] for seed in seeds):.4f}" for runs in (before, now)]
        times = mean(now[seed]["log_loss"] / before[seed]["log_loss"] for seed in seeds)
        row = [name, half_of(name), f"{now['0']['rows']:,}", str(len(seeds)), *both]
        row += [f"{changed['auc']:+.4f} ± {changed['error']:.4f}", f"{times:.3f}"]
        peers = {peer: arms[peer]["0"] for peer in BOOSTING_PEERS if "0" in arms.get(peer, {})}
        row += [f"{peers[peer]['auc']:.4f}" if peer in peers else "" for peer in BOOSTING_PEERS]
        above = now["0"]["auc"] - max(run["auc"] for run in peers.values())
        is_whole = len(peers) == len(BOOSTING_PEERS)
        took = [arms[arm]["0"]["cpu_seconds"] if arm in arms else None for arm in ("catboost", "ours")]
        row += [f"{above:+.4f}" if is_whole else ""]
        table.append([*row, *("" if seconds is None else f"{seconds:.1f}" for seconds in took)])
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


def bfloat16() -> list[list[str]]:
    rows = []
    for data in DATA:
        arms = at(f"defaults/sets/{data}")
        if "deepfm, bfloat16" in arms:
            plain, rounded = arms["deepfm"]["0"]["auc"], arms["deepfm, bfloat16"]["0"]["auc"]
            rows.append([data, f"{plain:.4f}", signed(rounded - plain)])
    return rows


def row_bits() -> list[list[str]]:
    rows = []
    for model, data in product(
        ("deepfm", "dcnv2", "dlrm"), ("criteo", "avazu", "movielens", "synthetic")
    ):
        for optimizer, by_dtype in at("row_bits").get(f"auc of {model}", {}).get(data, {}).items():
            wide = by_dtype["float32"]
            run = [model, data, optimizer, str(len(wide)), f"{mean(wide.values()):.4f}"]
            for dtype in ("int8", "int4"):
                gains = [auc - wide[seed] for seed, auc in by_dtype[dtype].items()]
                error, spread = stdev(gains) / len(gains) ** 0.5, stdev(wide.values())
                run += [f"{signed(mean(gains))} ± {error:.4f}", f"{mean(gains) / spread:+.2f}"]
            rows.append(run)
    return rows


def calibration() -> list[list[str]]:
    rows = []
    for run in at("calibration/runs"):
        gain = signed(run["log_loss"] - run["log_loss_as_trained"]) if run["scale"] != 1 else "no factor"
        numbers = (f"{run['auc']:.4f}", f"{run['log_loss_as_trained']:.4f}", f"{run['scale']:.2f}", gain)
        rows.append([run["data"], run["model"], run["arm"], *numbers])
    return rows


def peers() -> list[list[str]]:
    rows = []
    for data, label in SETS.items():
        models = at(f"accuracy/sets/{data}")
        seeds = len(next(iter(models.values()))["arms"]["hotrows"]["auc"])
        found = [d for model in models.values() for d in model["differences"].values()]
        worst = max(found, key=lambda d: abs(d["difference"]))
        within = sum(d["within_noise"] for d in found)
        names = ", ".join(models).replace("dien_of_din", "dien with DIN's attention")
        rows.append(
            [
                label,
                str(seeds),
                names,
                f"{within} of {len(found)}",
                f"{abs(worst['difference']):.4f}",
                f"{worst['standard_error']:.4f}",
            ]
        )
    return rows


def equal_weights() -> list[list[str]]:
    rows = []
    for dtype in ("float64", "float32"):
        pairs = [p for p in at("equal_weights/pairs") if p["dtype"] == dtype]
        worst = max(max(p["logits"], p["dense"], p["rows"]) for p in pairs)
        rows.append([dtype, f"{sum(p['equal'] for p in pairs)} of {len(pairs)}", f"{worst:.0e}"])
    return rows


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
            for share in (0.05, 0.1, 0.2, 0.5)
        ]
    return rows


def dynamic_ablation() -> list[list[str]]:
    """AUC of each arm on the streams where it was measured, at a tenth of the keys."""
    aucs: dict[str, dict[str, float]] = {}
    for f in at("dynamic-ablation/figures"):
        if (f["seed"], f["share"]) == (0, 0.1):
            aucs.setdefault(f["arm"], {})[f["data"]] = f["auc"]
    streams = ("movielens", "avazu", "drift")
    return [
        [arm, *(f"{aucs[arm][name]:.4f}" if name in aucs[arm] else "" for name in streams)]
        for arm in aucs
    ]


def order() -> list[list[str]]:
    """Test AUC of an order that reuses rows less that of a plain shuffle with equal seeds."""
    figures = at("order-accuracy/figures")
    names = {
        "deepfm": "DeepFM, Criteo-shaped",
        "dlrm": "DLRM, Criteo-shaped",
        "din": "DIN, MovieLens, 200 users",
        "din-larger": "DIN, MovieLens, 1,000 users",
    }
    rows = []
    for model, label in names.items():
        cells = []
        for way in ("reuse:8", "reuse:32"):
            seeds = [
                key.rsplit(" ", 1)[1] for key in figures if key.rsplit(" ", 1)[0] == f"{model} {way}"
            ]
            less = [
                figures[f"{model} {way} {s}"]["auc"] - figures[f"{model} shuffle {s}"]["auc"]
                for s in seeds
            ]
            cells.append(
                f"{signed(mean(less))} ± {2 * stdev(less) / len(less) ** 0.5:.4f}, {len(less)} seeds"
                if less
                else ""
            )
        rows.append([label, *cells])
    return rows


def request_order() -> list[list[str]]:
    """What an order of requests adds to figures of the order of samples with equal seeds."""
    rows, found = [], at("request_order/runs")
    for data, model, norm, arm in product(*REQUESTS):
        runs = found.get(data, {}).get(model, {}).get(norm, {})
        plain, other = runs.get("samples", {}), runs.get(arm, {})
        seeds = [seed for seed in other if seed in plain]
        if len(seeds) > 2:
            level = mean([plain[seed]["auc"] for seed in seeds])
            gains = ([other[seed][f] - plain[seed][f] for seed in seeds] for f in FIGURES)
            cells = [f"{signed(mean(more))} ± {half_interval(more):.4f}" for more in gains]
            rows.append([data, model, norm, arm, str(len(seeds)), f"{level:.4f}", *cells])
    return rows


def fae() -> list[list[str]]:
    return [
        [
            name,
            f"{arm['auc']['mean']:.4f}",
            signed(arm["auc"]["more_than_plain"]),
            "{:+.4f} to {:+.4f}".format(*arm["auc"]["interval_95"]),
        ]
        for name, arm in at("fae-accuracy/arms").items()
    ]


def ladder() -> list[list[str]]:
    ages = ("1 s", "1 min", "30 min", "5 h", "1 day")
    return [
        [name, *(f"{auc[age]:.4f}" for age in ages)] for name, auc in at("freshness_ladder/auc").items()
    ]


CLICK_LOG = [
    Table(
        "click-log",
        "samples | columns | trained by | test AUC | log loss | seconds",
        click_log,
        (Origin("click_log", "benchmarks.click_log"),),
    )
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
        "movielens-pairs",
        PAIRED,
        movielens_pairs,
        (Origin("models-movielens/models/hstu", "benchmarks.models movielens"),),
    ),
    Table(
        "short-videos",
        PAIRED,
        short_videos,
        (Origin("models-short-videos/models/hstu", "benchmarks.short_videos"),),
    ),
    Table(
        "boosting",
        "data | half | samples | seeds | before | default | difference | log loss, times before "
        "| LightGBM | CatBoost | less the best | CPU seconds: CatBoost | default",
        boosting,
        (Origin("boosting", "benchmarks.boosting"),),
    ),
    Table(
        "defaults",
        "data | one-hot LR | lr | fm | deepfm | dcnv2",
        defaults,
        (Origin("defaults", "benchmarks.defaults"),),
    ),
    Table(
        "bfloat16",
        "data | DeepFM, test AUC | bfloat16",
        bfloat16,
        (Origin("defaults", "benchmarks.defaults"),),
    ),
    Table(
        "row_bits",
        "model | data | row optimizer | seeds | test AUC | 8 bits ± standard error | in deviations | "
        "4 bits ± standard error | in deviations",
        row_bits,
        (Origin("row_bits", "benchmarks.row_bits"),),
    ),
    Table(
        "calibration",
        "data | model | settings | test AUC | log loss as trained | factor | with it",
        calibration,
        (Origin("calibration", "benchmarks.calibration"),),
    ),
    Table(
        "peers",
        "data | seeds | models | pairs within noise | largest difference | its standard error",
        peers,
        (Origin("accuracy/sets/criteo/dnn/arms/hotrows/conditions", "benchmarks.accuracy"),),
    ),
    Table(
        "equal-weights",
        "numbers | equal pairs | largest relative difference",
        equal_weights,
        (Origin("equal_weights", "benchmarks.equal_weights"),),
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
    Table(
        "dynamic-ablation",
        "arm | MovieLens | Avazu | synthetic, drifting",
        dynamic_ablation,
        (Origin("dynamic-ablation", "benchmarks.dynamic_ablation"),),
    ),
    Table(
        "order",
        "model, data | `reuse:8`, test AUC less that of a shuffle | `reuse:32`",
        order,
        (Origin("order-accuracy", "benchmarks.order"),),
    ),
    Table(
        "request_order",
        "data | model | statistics | requests | seeds | samples, test AUC | AUC | GAUC | log loss",
        request_order,
        (Origin("request_order", "benchmarks.request_order"),),
    ),
    Table(
        "fae",
        "order | test AUC | less plain | 95 % interval",
        fae,
        (Origin("fae-accuracy", "benchmarks.fae"),),
    ),
    Table(
        "ladder",
        "test AUC, published every | 1 s | 1 min | 30 min | 5 h | 1 day",
        ladder,
        (Origin("freshness_ladder", "benchmarks.freshness_ladder"),),
    ),
]
