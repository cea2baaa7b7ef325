"""Tables of docs/evidence/performance.md."""

from __future__ import annotations

from benchmarks.any_model.table import is_built, passes
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
HISTORIES = ("din-dim16", "din-dim64", "dien-dim16", "dien-dim64")
OPTIMIZERS = ("sgd", "rowwise", "adagrad", "adam")
LIBRARIES = {"deepctr": "deepctr-torch", "rechub": "torch-rechub", "fuxictr": "fuxictr"}


def embedding() -> list[list[str]]:
    arms = {"hotrows": "**hotrows**", "hotrows-inline": "hotrows, planned in the step", **NAMES}
    rows = []
    for arm, name in arms.items():
        cells = [at(f"embedding-{o}/arms").get(arm, {}).get("ms") for o in OPTIMIZERS]
        if any(cells):
            rows.append([name, *(f"{cell:.1f}" if cell else "" for cell in cells)])
    return rows


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


def bars() -> list[list[str]]:
    rows = []
    for name, label in (("deepfm", "DeepFM"), ("widedeep", "Wide & Deep"), ("dlrm", "DLRM")):
        model = at(f"bars/models/{name}")
        arms = [model["arms"][arm]["samples_per_s"] for arm in ("fuxictr", "fuxictr+hotrows", "hotrows")]
        rows.append([label, *(f"{s / 1000:.1f}" for s in (model["bars"]["samples_per_s"], *arms))])
    return rows


def accelerated() -> list[list[str]]:
    shapes = {
        "criteo": "DeepFM, Criteo's tables",
        "tenth": "DeepFM, a tenth of Criteo's rows",
        "461": "DeepFM, 461 tables of 10,000 rows",
        "cut": "DeepFM, at most 1,000 rows a table",
        "din": "DIN, four million items",
    }
    rows = []
    for shape, label in shapes.items():
        for short, library in LIBRARIES.items():
            file = f"accelerate-{shape}-{short}"
            arm = f"{library}-din" if shape == "din" else library
            try:
                arms = at(f"{file}/arms")
            except FileNotFoundError:
                continue
            memory = arms[f"{arm}+hotrows"]["peak_rss_mb"] / arms[arm]["peak_rss_mb"]
            ratio = number(arms[f"{arm}+hotrows"]["ratio"])
            rows.append(
                [
                    label,
                    library,
                    speed(file, arm),
                    speed(file, f"{arm}+hotrows"),
                    f"{ratio}x",
                    f"{memory:.2f}",
                ]
            )
    return rows


def accelerated_cache() -> list[list[str]]:
    return [[arm, f"{a['of_memory']:.2f}"] for arm, a in at("accelerate_cache/arms").items()]


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
        cells = [at(f"tiers-dim{dim}/arms/{arm}") for dim in (16, 64)]
        rows.append([name, *(f"{thousands(c['samples_per_s'])} ({percent(c['ratio'])})" for c in cells)])
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


def stores() -> list[list[str]]:
    return [
        [name, f"{s['rows_per_s'] / 1000:.1f}", f"{s['cpu_us']:.1f}", s["keeps"]]
        for name, s in at("stores/arms").items()
    ]


def depths() -> list[list[str]]:
    arms = at("store-depths/arms")
    rows = []
    for depth in (1, 8, 32, 64, 128, 256):
        cells = [arms[f"{way}, {depth}"] for way in ("io_uring", "threads")]
        rows.append(
            [
                str(depth),
                *(
                    x
                    for c in cells
                    for x in (f"{c['rows_per_s'] / 1000:.1f}", f"{c['cpu_us_per_row']:.1f}")
                ),
            ]
        )
    return rows


def advisor() -> list[list[str]]:
    rows = []
    for job, sizes in at("advisor/jobs").items():
        cells = [f"{s['predicted'] / 1000:.1f}, {s['measured'] / 1000:.1f}" for s in sizes]
        rows.append([job, f"{sizes[0]['in_memory_beside'] / 1000:,.0f}", *cells])
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


def predicted_steps() -> list[list[str]]:
    return [
        [
            str(r["num_ranks"]),
            r["sharding"],
            f"{1000 * r['measured']['step']:.0f}",
            f"{1000 * r['alone']['step']:.0f}",
            f"{100 * r['error']:+.0f} %",
        ]
        for r in at("scale_check/rows")
    ]


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


def by_reference() -> list[list[str]]:
    found = at("histories")
    loaded, made = found["loader_samples_per_s_of_a_core"], found["preparation"]
    rows = [
        [f"shards, {case}: times smaller than copied lists", f"{size['times_smaller']:.1f}"]
        for case, size in found["shards"].items()
    ]
    for order, speeds in loaded.items():
        for arm, name in (("once", "events stored once"), ("copied", "copied lists")):
            rows.append([f"loader {order}, {name}: million samples/s a core", f"{speeds[arm] / 1e6:.1f}"])
    for events, of in made.items():
        speed, of_core = of["events_per_s"] / 1e3, of["events_per_s_of_a_core"] / 1e3
        rows.append([f"preparation, {events}: thousand events/s", f"{speed:.0f}"])
        rows.append([f"preparation, {events}: thousand events/s of a core", f"{of_core:.0f}"])
        rows.append([f"preparation, {events}: peak MiB", f"{of['peak_bytes'] / 2**20:.0f}"])
    ratio = at("histories-ray/ray_over_process")
    rows.append(
        ["preparation, 1 million events, on Ray: times the speed of one process", f"{ratio:.2f}x"]
    )
    return rows


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


def served_beside() -> list[list[str]]:
    words = {"alone": "alone", "beside": "300 idle connections, one sender of the largest bodies"}
    return [
        [words[name], str(f["p50_ms"]), str(f["p99_ms"])]
        for name, f in at("serving_beside/medians").items()
    ]


def served_tenfold() -> list[list[str]]:
    rows = []
    for model in ("deepfm", "dlrm"):
        for kind in ("Zipf 1.05", "Zipf 1.05, nothing read ahead", "Zipf 1.2"):
            f = at(f"serving_tenfold/figures/{model}")[kind]
            rows.append(
                [model, kind, f"{f['p50_ms']:.1f}", f"{f['p99_ms']:.1f}", str(f["peak_memory_mib"])]
            )
    return rows


def fresh() -> list[list[str]]:
    return [
        [f"{int(rate):,}", str(f["p50_s"]), str(f["p90_s"]), str(f["p99_s"])]
        for rate, f in at("freshness/figures").items()
    ]


def dynamic_cost() -> list[list[str]]:
    return [
        [
            where,
            f"{d['ms']['static']:.0f}",
            f"{d['ms']['dynamic']:.0f}",
            f"{d['ratio']:.2f}x ({min(d['ratios']):.2f} to {max(d['ratios']):.2f})",
        ]
        for where, d in (
            ("in memory", at("dynamic_step-memory-2")),
            ("a tenth in memory, a file", at("dynamic_step-file-2")),
        )
    ]


def keys() -> list[list[str]]:
    return [
        [
            name,
            f"{k['hit']:.0f}",
            f"{k['zipf']:.0f}",
            f"{k['insert']:.0f}",
            f"{k['most_bytes']:.1f}",
            f"{k['pause']:,.0f}",
        ]
        for name, k in at("dynamic-keys-33m/ns_per_lookup/33,800,000").items()
    ]


def threads() -> list[list[str]]:
    names = {
        "lr, batch 128": "LR, batch 128",
        "tiny deepfm, batch 128": "DeepFM 16-16, batch 128",
        "deepfm, batch 128": "DeepFM 400-400-400, batch 128",
        "deepfm, batch 2048": "DeepFM 400-400-400, batch 2,048",
    }
    rows = []
    for key, name in names.items():
        cells = [
            at("threads/arms")[f"{key}, {who}, beside {others} processes"]["two_over_one"]
            for who in ("hotrows", "plain")
            for others in (0, 2)
        ]
        rows.append([name, *(f"{cell:.2f}x" for cell in cells)])
    return rows


def of(command: str, *files: str) -> tuple[Origin, ...]:
    return tuple(Origin(file, command) for file in files)


TABLES = [
    Table(
        "embedding",
        "ms a step | SGD | row-wise Adagrad | Adagrad | Adam",
        embedding,
        of("benchmarks.embedding", *(f"embedding-{o}" for o in OPTIMIZERS)),
    ),
    Table(
        "whole",
        "thousand samples/s | DLRM | DLRM, bfloat16 | DeepFM | 461 tables | 1,000 tables",
        whole_step,
        of("benchmarks.end_to_end", *(f"end_to_end-{file}" for file in WHOLE)),
    ),
    Table(
        "histories",
        "thousand samples/s | DIN, dim 16 | DIN, dim 64 | DIEN, dim 16 | DIEN, dim 64",
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
        "bars",
        "thousand samples/s | log of BARS, V100 | FuxiCTR | FuxiCTR under `accelerate` | hotrows",
        bars,
        of("benchmarks.bars", "bars/models/deepfm"),
    ),
    Table(
        "threads",
        "two threads over one | hotrows | hotrows, busy | plain PyTorch | plain PyTorch, busy",
        threads,
        of("benchmarks.threads", "threads"),
    ),
    Table(
        "accelerate",
        "model | library | plain, thousand samples/s | accelerated | ratio | peak memory over plain",
        accelerated,
        of(
            "benchmarks.accelerate",
            *(f"accelerate-{s}-fuxictr" for s in ("criteo", "tenth", "461", "cut", "din")),
        ),
    ),
    Table(
        "accelerate-cache",
        "rows in | speed relative to memory",
        accelerated_cache,
        of("benchmarks.accelerate_cache", "accelerate_cache"),
    ),
    Table(
        "libraries",
        "library | version | configurations | run plain, with tables | equal with every optimizer",
        libraries,
        of("benchmarks.any_model", "any_model/fuxictr/models/AFM"),
    ),
    Table(
        "tiers",
        "thousand samples/s (relative to memory) | dim 16, Adagrad | dim 64, row-wise Adagrad",
        tiers,
        of("benchmarks.tiers", "tiers-dim16", "tiers-dim64"),
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
        "stores",
        "store | thousand rows/s, read and written | CPU, µs a row | after a kill",
        stores,
        of("benchmarks.stores", "stores"),
    ),
    Table(
        "depths",
        "in flight | io_uring, thousand rows/s | µs of CPU | threads, thousand rows/s | µs of CPU",
        depths,
        of("benchmarks.store depths", "store-depths"),
    ),
    Table(
        "advisor",
        "predicted, measured | in memory | 5 % of the tables | 10 % | 20 % | 40 %",
        advisor,
        of("benchmarks.advisor", "advisor"),
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
        "predicted",
        "ranks | sharding | measured step, ms | predicted | error",
        predicted_steps,
        of("benchmarks.scale_check", "scale_check"),
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
        "histories-once",
        "events stored once | figure",
        by_reference,
        of("benchmarks.histories", "histories", "histories-ray"),
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
        "load",
        "load | scored a second | p50, ms | p99, ms | answers",
        served_load,
        of("benchmarks.serving_load", "serving_load"),
    ),
    Table(
        "hostile",
        "what else the server has | p50, ms | p99, ms",
        served_beside,
        of("benchmarks.serving_load beside", "serving_beside"),
    ),
    Table(
        "tenfold",
        "model | requests | p50, ms | p99, ms | peak MiB",
        served_tenfold,
        of("benchmarks.serving_tenfold", "serving_tenfold"),
    ),
    Table(
        "freshness", "events/s | p50, s | p90, s | p99, s", fresh, of("benchmarks.freshness", "freshness")
    ),
    Table(
        "dynamic",
        "tables | known ids, ms | dynamic ids, ms | ratio",
        dynamic_cost,
        of("benchmarks.dynamic_step", "dynamic_step-memory-2", "dynamic_step-file-2"),
    ),
    Table(
        "keys",
        "33.8 million keys | ns a lookup | Zipf | ns a new key | bytes a key at most | longest batch, ms",
        keys,
        of("benchmarks.dynamic_keys", "dynamic-keys-33m"),
    ),
]
