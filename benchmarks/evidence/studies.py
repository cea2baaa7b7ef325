"""The second table of the index: studies that are done. Their scripts stand at older commits."""

from __future__ import annotations

from benchmarks.evidence.claims import HEAD, claim, span
from benchmarks.evidence.papers import LOCALITIES, link_gain
from benchmarks.evidence.records import Table, at, latency, mean, number, over, percent, result, signed


def _quantized() -> list[object]:
    """Mean change of test AUC by rows of 8 and of 4 bits, over models, data sets and optimizers."""
    runs = [
        (by_dtype, mean(by_dtype["float32"].values()))
        for key, sets in result("row_bits").items()
        if key.startswith("auc of ")
        for by_optimizer in sets.values()
        for by_dtype in by_optimizer.values()
    ]
    changes = {
        dtype: [mean(by_dtype[dtype].values()) - wide for by_dtype, wide in runs]
        for dtype in ("int8", "int4")
    }
    return [span(change, "{:+.4f}") for change in changes.values()]


def _less(figures: dict, key: str, base: str) -> float:
    """Mean test AUC of one way to order samples less that of another, over the seeds of both."""
    seeds = [name.rsplit(" ", 1)[1] for name in figures if name.rsplit(" ", 1)[0] == key]
    return mean([figures[f"{key} {s}"]["auc"] - figures[f"{base} {s}"]["auc"] for s in seeds])


def _orders() -> list[object]:
    figures = at("order-accuracy/figures")
    models = ("deepfm", "dlrm", "din-larger", "din")
    return [signed(_less(figures, f"{m} reuse:8", f"{m} shuffle")) for m in models]


def _requests_in_parts() -> list[object]:
    """Change of test AUC by parts of requests, for models with at least ten seeds."""
    changes = []
    for model in at("request_order/runs/rated").values():
        runs = model.get("batch", {})
        plain, parts = runs.get("samples", {}), runs.get("parts", {})
        changes.append(mean([parts[s]["auc"] - plain[s]["auc"] for s in parts if s in plain]))
    return [span(changes, "{:+.4f}")]


def _losses() -> list[object]:
    ratios = [cell["ratio"] for cell in at("losses/cells").values() if cell.get("ratio")]
    return [sum(ratio < 1 for ratio in ratios), len(ratios), f"{min(ratios):.2f}x"]


def _kept() -> list[object]:
    figures = at("dynamic-avazu/figures")
    ways = (("ahead", 0.1), ("lru", 0.1), ("hashing", 0.1), ("unlimited", 1.0))
    aucs = [[f["auc"] for f in figures if (f["way"], f["share"]) == way] for way in ways]
    return [f"{mean(values):.4f}" for values in aucs]


def _keys() -> list[object]:
    cells = at("dynamic-keys-33m/ns_per_lookup/33,800,000")
    pair = [cells[name] for name in ("hotrows lru", "ska::flat_hash_map")]
    return [number(cell[key], 0) for key in ("hit", "insert") for cell in pair]


def _by_reference() -> list[object]:
    shards = [size["times_smaller"] for size in at("histories/shards").values()]
    loaded = at("histories/loader_samples_per_s_of_a_core")
    speeds = [loaded[order]["once"] / loaded[order]["copied"] for order in ("shuffled", "in order")]
    return [span(shards, "{:.1f}"), *(f"{number(speed)}x" for speed in speeds)]


def _stored() -> list[object]:
    speeds = {arm: cell["rows_per_s"] for arm, cell in at("stores/arms").items()}
    bases = (speeds["mapped"], max(speeds[arm] for arm in ("rocksdb", "lmdb", "sqlite")))
    return [f"{number(speeds['hotrows'] / base)}x" for base in bases]


def _advised() -> list[object]:
    cells = [cell for sizes in at("advisor/jobs").values() for cell in sizes]
    worst = max(cell["predicted"] / cell["measured"] for cell in cells)
    return [at("advisor/within"), at("advisor/of"), f"{number(worst)}x"]


def _checksums() -> list[object]:
    jobs = at("durability/jobs/checkpoint")
    return [f"{jobs['as it is']['cpu_seconds'] - jobs['no checksums']['cpu_seconds']:.2f}"]


def _alike() -> list[object]:
    models = [model for found in at("accuracy/sets").values() for model in found.values()]
    within = [d["within_noise"] for model in models for d in model["differences"].values()]
    return [sum(within), len(within)]


def _over_static_cache() -> list[object]:
    arms = [at(f"papers-scratchpipe/{name}/arms") for name in LOCALITIES]
    speeds = [a["10% ours"]["samples_per_s"] / a["10% static cache"]["samples_per_s"] for a in arms]
    return [span(speeds, "{:.1f}")]


STUDIES = (
    claim(
        "{} of {} settings of five models are slower than in the fastest library, at worst {}: DCNv2 in "
        "small batches or bfloat16.",
        "benchmarks.losses",
        "losses",
        _losses,
    ),
    claim(
        "DeepFM by the recipe of BARS trains {} as fast as BARS logged on a V100 in 2022.",
        "benchmarks.bars",
        "bars/models/deepfm",
        lambda: [
            over("bars/models/deepfm/arms/hotrows/samples_per_s", "bars/models/deepfm/bars/samples_per_s")
        ],
    ),
    claim(
        "An accelerated model with a tenth of the rows in fast memory and the rest in files trains at "
        "{} of the speed in memory; without look-ahead at {}.",
        "benchmarks.accelerate_cache",
        "accelerate_cache",
        lambda: [percent(at(f"accelerate_cache/arms/{a}/of_memory")) for a in ("file, ahead", "file")],
    ),
    claim(
        "The file store reads and writes random rows {} as fast as a mapped file, and {} as the fastest "
        "of RocksDB, LMDB and SQLite.",
        "benchmarks.stores",
        "stores",
        _stored,
    ),
    claim(
        "`simulate` predicted {} of {} speeds of training from a file within 10 %; at worst it "
        "predicted {} the speed.",
        "benchmarks.advisor",
        "advisor",
        _advised,
    ),
    claim(
        "The predicted step on 1, 2 and 4 ranks is {} off at most.",
        "benchmarks.scale_check",
        "scale_check",
        lambda: [percent(max(abs(row["error"]) for row in at("scale_check/rows")))],
    ),
    claim(
        "Events stored once make shards {} times smaller than copied lists; shuffled, they load {} as "
        "fast, and in order {}.",
        "benchmarks.histories",
        "histories",
        _by_reference,
    ),
    claim(
        "A training step with dynamic ids lasts {} as long as one with known ids in memory, and {} with "
        "a file.",
        "benchmarks.dynamic_step",
        "dynamic_step-memory-2 dynamic_step-file-2",
        lambda: [f"{number(at(f'dynamic_step-{where}-2/ratio'))}x" for where in ("memory", "file")],
    ),
    claim(
        "In a table of 33.8 million keys a lookup lasts {} ns (ska::flat_hash_map {}) and a new key {} "
        "ns ({}).",
        "benchmarks.dynamic_keys",
        "dynamic-keys-33m",
        _keys,
    ),
    claim(
        "A request of DeepFM with tables ten times the memory lasts {}; with nothing read ahead {}.",
        "benchmarks.serving_tenfold",
        "serving_tenfold",
        lambda: [
            latency(f"serving_tenfold/figures/deepfm/Zipf 1.05{words}")
            for words in ("", ", nothing read ahead")
        ],
    ),
    claim(
        "Equal weights give equal outputs and gradients in {} of {} pairs with DeepCTR-Torch, FuxiCTR "
        "and padded PyTorch.",
        "benchmarks.equal_weights",
        "equal_weights",
        lambda: [
            sum(pair["equal"] for pair in at("equal_weights/pairs")),
            len(at("equal_weights/pairs")),
        ],
    ),
    claim(
        "Trained by one recipe, test AUC is within two standard errors of DeepCTR-Torch's and FuxiCTR's "
        "in {} of {} pairs.",
        "benchmarks.accuracy",
        "accuracy/sets/criteo/dnn/arms/hotrows/conditions",
        _alike,
    ),
    claim(
        "Rows of 8 bits change the test AUC of three models by {}, rows of 4 bits by {}.",
        "benchmarks.row_bits",
        "row_bits",
        _quantized,
    ),
    claim(
        "With a tenth of Avazu's keys, test AUC is {} by look-ahead, {} by LRU and {} by hashing; with "
        "all keys {}.",
        "benchmarks.dynamic",
        "dynamic-avazu",
        _kept,
    ),
    claim(
        "`--order reuse:8` changes test AUC by {} (DeepFM) and {} (DLRM); DIN on MovieLens loses, {} "
        "with 1,000 users and {} with 200.",
        "benchmarks.order",
        "order-accuracy",
        _orders,
    ),
    claim(
        "Batches of parts of requests, the default, change the test AUC of DIN, DIEN, DeepFM and HSTU "
        "by {}.",
        "benchmarks.request_order",
        "request_order",
        _requests_in_parts,
    ),
    claim(
        "On MovieLens-1M, test AUC is {} if the serving model is replaced every second, {} every half "
        "hour and {} every day.",
        "benchmarks.freshness_ladder",
        "freshness_ladder",
        lambda: [
            f"{at('freshness_ladder/auc/movielens_1m')[age]:.4f}" for age in ("1 s", "30 min", "1 day")
        ],
    ),
    claim(
        "Checksums of a full checkpoint of 512 MB cost {} s of the CPU.",
        "benchmarks.durability",
        "durability",
        _checksums,
    ),
    claim(
        "PICASSO: Wide & Deep of 461 fields trains {} as fast as in plain PyTorch.",
        "benchmarks.papers picasso",
        "papers-picasso/fields",
        lambda: [f"{number(at('papers-picasso/fields/arms/461/hotrows/ratio'))}x"],
    ),
    claim(
        "ScratchPipe: a cache of 10 % behind a link of 1/12 of the memory's speed trains {} times as "
        "fast as a static cache.",
        "benchmarks.papers scratchpipe",
        "papers-scratchpipe/medium",
        _over_static_cache,
    ),
    claim(
        "FAE: a training is {} as fast as with a static cache behind a link of 1/57, and {} behind 1/12.",
        "benchmarks.papers fae",
        "papers-fae/links papers-fae/speed",
        lambda: [
            f"{link_gain('static cache'):.2f}x",
            over("papers-fae/speed/arms/static cache/seconds", "papers-fae/speed/arms/ours/seconds"),
        ],
    ),
)
TABLE = Table("studies", HEAD, lambda: [one.row() for one in STUDIES])
