"""Tables of docs/evidence/performance.md."""

from __future__ import annotations

from benchmarks.any_model.table import is_built, passes
from benchmarks.evidence.claims import LIBRARIES
from benchmarks.evidence.records import Origin, Table, at, number, percent, result, speed, thousands

NAMES = {
    "hotrows": "**hotrows**",
    "glued": "FBGEMM, oneDNN, malloc settings, joined by hand",
    "tensorflow": "TensorFlow",
    "torchrec": "TorchRec",
    "fbgemm": "FBGEMM",
    "plain-torch": "plain PyTorch",
}
WHOLE = (
    "dlrm-adagrad",
    "dlrm-adagrad-bfloat16",
    "deepfm-adagrad",
    "461-tables-adagrad",
    "many-tables-adagrad",
)
HISTORIES = ("din-dim16", "dien-dim16")
SHARES = (
    "products",
    "layers over lists",
    "interactions",
    "element by element",
    "embedding",
    "optimizer",
    "rest",
)
THEN = ("then", "now", "now, known users")
PRECISE = ("movielens", "taobao_userbehavior", "short_videos")


def embedding() -> list[list[str]]:
    arms = {"hotrows": "**hotrows**", "hotrows-inline": "hotrows, planned in the step", **NAMES}
    found = at("embedding-adagrad/arms")
    return [[name, f"{found[arm]['ms']:.1f}"] for arm, name in arms.items() if arm in found]


def whole_step() -> list[list[str]]:
    return [[name, *(speed(f"end_to_end-{file}", arm) for file in WHOLE)] for arm, name in NAMES.items()]


def histories() -> list[list[str]]:
    names = {
        "hotrows": "**hotrows**",
        "padded-torch": "padded PyTorch, first layer in parts",
        "padded-torch-concat": "padded PyTorch",
        "fuxictr": "FuxiCTR, dense Adam",
        "deepctr-torch": "DeepCTR-Torch, dense Adam",
    }
    return [
        [name, *(speed(f"sequence_step-{file}", arm) for file in HISTORIES)]
        for arm, name in names.items()
    ]


def floors() -> list[list[str]]:
    return [
        [
            name,
            f"{m['batch_size']:,}",
            thousands(m["samples_per_s"]),
            f"{m['ms']:.1f}",
            f"{m['floor_ms']:.1f}",
            f"{m['ratio']:.2f}",
        ]
        for name, m in at("floors/models").items()
    ]


def shares() -> list[list[str]]:
    """Of each model, at both commits: milliseconds of a step, and percent of each kind of work."""
    commits = {"then": f"`{at('shares/commit_then')[:8]}`", "now": "now"}
    return [
        [name, commit, f"{cases[when]['ms']:.1f}"]
        + [f"{100 * max(cases[when][kind], 0.0) / cases[when]['ms']:.0f}" for kind in SHARES]
        for name, cases in at("shares/models").items()
        for when, commit in commits.items()
    ]


def losses() -> list[list[str]]:
    found = at("losses/cells")
    rows = []
    for model in at("losses/models"):
        for size in ("256", "1,024", "8,192"):
            cells = [
                found.get(f"{model}, {size}, {precision}, {threads}", {})
                for precision in ("float32", "bfloat16")
                for threads in (1, 2)
            ]
            rows.append([model, size, *(_beside(cell) for cell in cells)])
    return rows


def _beside(cell: dict) -> str:
    """Times as fast as the best peer, and its name; in bold where that is faster."""
    if not cell.get("ratio"):
        return ""
    ratio = f"{cell['ratio']:.2f}x"
    name = {"padded-torch": "padded PyTorch", **NAMES}[cell["best_peer"]]
    return f"**{ratio}** {name}" if cell["ratio"] < 1 else f"{ratio} {name}"


def user_path() -> list[list[str]]:
    names = {
        "hotrows-deepfm": "**`hotrows train`**, DeepFM",
        "step-deepfm": "its loader and step alone",
        "plain-deepfm": "a loop in plain PyTorch, DeepFM",
        "deepctr": "DeepCTR-Torch's `fit`, DeepFM",
        "fuxictr": "FuxiCTR's `fit`, DeepFM",
        "hotrows-deepfm-16384": "`hotrows train`, DeepFM, batches of 16,384",
        "hotrows-lr": "**`hotrows train`**, LR",
        "step-lr": "its loader and step alone",
        "plain-lr": "a loop in plain PyTorch, LR",
    }
    rows = []
    for arm, name in names.items():
        f = at(f"user_path/arms/{arm}")
        parts = ("seconds", "start_seconds", "training_seconds", "evaluation_seconds", "end_seconds")
        seconds = [f"{f[part]:.1f}" if f.get(part) else "within" for part in parts]
        if arm.startswith("step"):
            seconds = [""] * len(parts)
        whole = "" if arm.startswith("step") else thousands(f["samples_per_s"])
        auc = f"{f['auc']:.4f}" if f.get("auc") else ""
        rows.append([name, *seconds, whole, thousands(f["training_samples_per_s"]), auc])
    return rows


def accelerated() -> list[list[str]]:
    shapes = {"criteo": "Criteo's", "461": "461 of 10,000 rows"}
    rows = []
    for shape, label in shapes.items():
        for short, arm in LIBRARIES.items():
            file = f"accelerate-{shape}-{short}"
            plain, ours = (at(f"{file}/arms/{name}") for name in (arm, f"{arm}+hotrows"))
            ratio, memory = number(ours["ratio"]), ours["peak_rss_mb"] / plain["peak_rss_mb"]
            speeds = (speed(file, arm), speed(file, f"{arm}+hotrows"))
            rows.append([label, arm, *speeds, f"{ratio}x", f"{memory:.2f}"])
    return rows


def libraries() -> list[list[str]]:
    rows = []
    for library, found in result("any_model").items():
        models = found["models"].values()
        built = [model for model in models if is_built(model)]
        equal = [m for m in built if all(passes(one) for one in m["optimizers"].values())]
        version = next(iter(found["versions"].values()))[:7]
        rows.append([library, version, str(len(models)), str(len(built)), str(len(equal))])
    return rows


def tiers() -> list[list[str]]:
    names = {
        "memory": "all rows in memory",
        "arena": "a tenth in fast memory, the rest in host memory",
        "file": "**a tenth in memory, the rest in a file**",
        "file-lru-serial": "the same file, LRU, no look-ahead, stages in turn",
        "file-mapped": "tables memory-mapped from the file",
    }
    rows = []
    for arm, name in names.items():
        cell = at(f"tiers-dim16/arms/{arm}")
        rows.append([name, thousands(cell["samples_per_s"]), percent(cell["ratio"])])
    return rows


BILLIONS = {
    "criteo": "Criteo's proportions, Zen 5",
    "criteo-int8": "8 bits, Xeon",
    "criteo-epochs": "the same, two epochs of half the samples",
    "zipf": "equal tables, Zen 5",
}


def billion() -> list[list[str]]:
    files = [at(f"tiers-billion-{name}/figures") for name in BILLIONS]

    def row(name: str, cell) -> list[str]:
        return [name, *(cell(figures) for figures in files)]

    return [
        row("steps", lambda f: f"{f['steps']:,}"),
        row("median step, ms", lambda f: f"{f['median_ms']:.0f}"),
        row("the same in memory, ms", lambda f: f"{f['in_memory_ms']:.0f}"),
        row("speed relative to memory", lambda f: percent(f["ratio"])),
        row("the same by quarters", lambda f: ", ".join(percent(q) for q in f["ratio_by_quarter"])),
        row("slowest 100 steps in a row", lambda f: percent(f["ratio_slowest_window_of_100"])),
        row("start, s", lambda f: f"{f['start_seconds']:.1f}"),
        row("longest standstill of a checkpoint, s", lambda f: f"{max(f['standstills']):.1f}"),
        row("resume after a kill, s", lambda f: f"{f['resumed']['seconds']:.1f}"),
        row("losses after it bit-identical", lambda f: "yes" if f["resumed"]["equal"] else "no"),
        row("rows moved in, thousands a step", lambda f: thousands(f["rows_in_per_step"])),
    ]


def policies() -> list[list[str]]:
    names = {
        "lookahead": "look-ahead, its own window",
        "two-batch": "two batches ahead",
        "lru": "LRU",
        "frequency": "counted frequency",
        "hot": "fixed set of the most popular",
    }
    rows = []
    for policy, name in names.items():
        cells = [
            next(
                f["over_belady"]
                for f in at(f"misses-{stream}/figures")
                if (f["policy"], f["cache"], f["in_flight"]) == (policy, cache, 4)
            )
            for stream in ("zipf", "criteo", "drift")
            for cache in (0.02, 0.05, 0.1)
        ]
        planning = at(f"planning/ns_per_lookup/{policy}/all")
        rows.append([name, *(f"{cell:.2f}" for cell in cells), f"{planning:.0f}"])
    return rows


def ranks() -> list[list[str]]:
    arms = (
        "hotrows-ranks",
        "hotrows",
        "hotrows-histories",
        "torchrec-ranks",
        "torchrec-ranks-pipeline",
        "plain-ranks",
        "tensorflow-ps",
        "tensorflow-ps-packed",
    )
    rows = []
    for model, label in (
        ("dlrm", "DLRM"),
        ("deepfm", "DeepFM"),
        ("461-tables", "461 tables"),
        ("din", "DIN"),
        ("dien", "DIEN"),
    ):
        s = {arm: speed(f"ranks-{model}", arm) for arm in arms}
        rows.append(
            [
                label,
                s["hotrows-ranks"],
                s["hotrows"] or s["hotrows-histories"],
                s["torchrec-ranks"],
                s["torchrec-ranks-pipeline"],
                s["plain-ranks"],
                s["tensorflow-ps"],
                s["tensorflow-ps-packed"],
            ]
        )
    return rows


def prepared() -> list[list[str]]:
    names = {
        "hotrows": "**hotrows**, every line checked",
        "polars": "Polars alone",
        "sklearn": "Polars and scikit-learn",
    }
    return [
        [
            name,
            f"{at(f'prepare/arms/{arm}/rows_per_s') / 1000:.0f}",
            f"{at(f'prepare/arms/{arm}/peak_rss_mb'):,.0f}",
        ]
        for arm, name in names.items()
    ]


def loaded() -> list[list[str]]:
    names = {
        "ours-shuffled": "**`Loader`**, shuffled",
        "ours-stream": "`Loader.stream`, loaded ahead",
        "ours-in-order": "`Loader`, in order",
        "dataloader": "DataLoader over a TensorDataset, two workers",
        "memmap-columns": "memory-mapped columns, permuted",
        "memmap-rows": "memory-mapped rows, permuted",
        "parquet-ours": "straight from Parquet, two threads",
        "parquet-bare": "bare decoding by pyarrow, two threads",
    }
    return [[name, f"{at(f'loader/arms/{arm}/rows_per_s') / 1e6:.2f}"] for arm, name in names.items()]


def requested() -> list[list[str]]:
    return [
        [
            n,
            f"{c['times_smaller']:.1f}x",
            *(f"{c[name]['speedup']:.2f}x" for name in ("din", "dien", "hstu")),
        ]
        for n, c in at("requests/candidates").items()
    ]


def served() -> list[list[str]]:
    rows = []
    for model in ("deepfm", "dlrm"):  # models with histories are among the ways
        for kind in ("float32", "int8", "int4"):
            f = at(f"serving/figures/{model}/{kind}")
            rows.append(
                [
                    model,
                    kind,
                    f"{f['table_bytes'] / 1e6:.1f}",
                    f"{f['p50_ms']:.1f}",
                    f"{f['p99_ms']:.1f}",
                    f"{f['largest_error']:.4f}",
                    f"{f['auc']:.4f}",
                ]
            )
    return rows


def served_ways() -> list[list[str]]:
    keys = ("p50_cpu_ms", "p99_cpu_ms", "largest_difference")
    return [
        [model, way, *(str(f[key]) for key in keys)]
        for model, ways in at("serving_core/figures").items()
        for way, f in ways.items()
    ]


def served_load() -> list[list[str]]:
    return [
        [
            name,
            str(f["scored_per_second"]),
            str(f["p50_ms"]),
            str(f["p99_ms"]),
            ", ".join(f"{count} x {status}" for status, count in f["answers_by_status"].items()),
        ]
        for name, f in at("serving_load/figures").items()
    ]


def served_then() -> list[list[str]]:
    return [
        [
            model,
            *("" if (f := arms.get(name)) is None else str(f["scored_per_second"]) for name in THEN),
            *("" if (f := arms.get(name)) is None else f"{f['times']:.2f}x" for name in THEN[1:]),
        ]
        for model, arms in at("serving_then/medians").items()
    ]


def precise() -> list[list[str]]:
    """By model and precision: largest differences, of probabilities by set."""
    sets = [at(f"precisions/sets/{name}") for name in PRECISE]
    rows = []
    for model in sets[0]:
        ways = sets[0][model]["differences"]
        for way in ways if ways.get("int8") != ways.get("bfloat16") else [*ways][:2]:
            cells = [found[model]["differences"][way] for found in sets]
            worst = [max(cell[key] for cell in cells) for key in ("auc", "mean")]
            predictions = [f"{cell['prediction']:.3g}" for cell in cells]
            rows.append([model, way, *predictions, f"{worst[0]:.1g}", f"{100 * worst[1]:.1g} %"])
    return rows


def fresh() -> list[list[str]]:
    return [
        [f"{int(rate):,}", str(f["p50_s"]), str(f["p90_s"]), str(f["p99_s"])]
        for rate, f in at("freshness/figures").items()
    ]


def of(command: str, *files: str) -> tuple[Origin, ...]:
    return tuple(Origin(file, command) for file in files)


TABLES = [
    Table(
        "embedding",
        "Adagrad | ms a step",
        embedding,
        of("benchmarks.embedding adagrad", "embedding-adagrad"),
    ),
    Table(
        "whole",
        "thousand samples/s | DLRM | DLRM, bfloat16 | DeepFM | 461 tables | 1,000 tables",
        whole_step,
        of("benchmarks.end_to_end", *(f"end_to_end-{file}" for file in WHOLE)),
    ),
    Table(
        "histories",
        "thousand samples/s | DIN | DIEN",
        histories,
        of("benchmarks.sequence_step", *(f"sequence_step-{file}" for file in HISTORIES)),
    ),
    Table(
        "floors",
        "model | batch | thousand samples/s | step, ms | floor, ms | step over floor",
        floors,
        of("benchmarks.floors", "floors"),
    ),
    Table(
        "shares",
        f"model | commit | step, ms | {' | '.join(f'{kind}, %' for kind in SHARES)}",
        shares,
        of("benchmarks.shares", "shares"),
    ),
    Table(
        "losses",
        "model | batch | float32, 1 thread | 2 threads | bfloat16, 1 thread | 2 threads",
        losses,
        of("benchmarks.losses", "losses"),
    ),
    Table(
        "user-path",
        "four million rows | seconds | start | training | evaluations | end | samples/s | training | AUC",
        user_path,
        of("benchmarks.user_path", "user_path"),
    ),
    Table(
        "accelerate",
        "tables | DeepFM of | plain, thousand samples/s | accelerated | ratio | peak memory over plain",
        accelerated,
        of(
            "benchmarks.accelerate",
            *(f"accelerate-{shape}-{name}" for shape in ("criteo", "461") for name in LIBRARIES),
        ),
    ),
    Table(
        "libraries",
        "library | version | configurations | run plain, with tables | equal with every optimizer",
        libraries,
        of("benchmarks.any_model", "any_model/fuxictr/models/AFM"),
    ),
    Table(
        "tiers",
        "rows | thousand samples/s | relative to memory",
        tiers,
        of("benchmarks.tiers dim16", "tiers-dim16"),
    ),
    Table(
        "billion",
        " | " + " | ".join(BILLIONS.values()),
        billion,
        of("benchmarks.tiers billion", *(f"tiers-billion-{name}" for name in BILLIONS)),
    ),
    Table(
        "policies",
        "over Bélády | zipf 2 % | 5 % | 10 % | criteo 2 % | 5 % | 10 % | drift 2 % | 5 % | 10 % | ns",
        policies,
        (
            *of("benchmarks.misses", "misses-zipf", "misses-criteo", "misses-drift"),
            *of("benchmarks.planning", "planning"),
        ),
    ),
    Table(
        "ranks",
        "thousands/s | hotrows | one rank | TorchRec | pipelined | PyTorch | TensorFlow | unpadded",
        ranks,
        of(
            "benchmarks.ranks",
            "ranks-dlrm",
            "ranks-deepfm",
            "ranks-461-tables",
            "ranks-din",
            "ranks-dien",
        ),
    ),
    Table(
        "prepare",
        "preparing a million rows | thousand rows/s | peak MB",
        prepared,
        of("benchmarks.prepare", "prepare"),
    ),
    Table(
        "loader", "loading batches of 8,192 | million rows/s", loaded, of("benchmarks.loader", "loader")
    ),
    Table(
        "requests",
        "candidates | shards smaller | DIN | DIEN | HSTU",
        requested,
        of("benchmarks.requests", "requests"),
    ),
    Table(
        "serving",
        "model | tables | MB | p50, ms | p99, ms | largest error | test AUC",
        served,
        of("benchmarks.serving", "serving"),
    ),
    Table(
        "core",
        "model | way | p50, ms | p99, ms | largest difference",
        served_ways,
        of("benchmarks.serving core", "serving_core"),
    ),
    Table(
        "precisions",
        "model | precision | MovieLens | Taobao | short videos | AUC, worst | mean, worst",
        precise,
        of("benchmarks.precisions", "precisions"),
    ),
    Table(
        "then",
        "16 connections, scored a second | `4f1ff9fd` | now | known users | faster | faster, known users",
        served_then,
        of("benchmarks.serving_load then", "serving_then"),
    ),
    Table(
        "load",
        "load | scored a second | p50, ms | p99, ms | answers",
        served_load,
        of("benchmarks.serving_load", "serving_load"),
    ),
    Table(
        "freshness", "events/s | p50, s | p90, s | p99, s", fresh, of("benchmarks.freshness", "freshness")
    ),
]
